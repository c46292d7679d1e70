"""Pages of results that are made from the rows that travel with them, and why others are not yet."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

from mhex.lab.config.suite import find_suite, read_suite
from mhex.lab.suites.page import suite_page
from mhex.lab.suites.stored import stored_result
from mhex.lab.truth.bench import stored_evidence
from mhex.lab.truth.page import truth_page

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "results"
ROWS = RESULTS / "rows"
MOST_BYTES = 5_000_000  # of all rows together
TRUTH, ACCURACY = "truth", "mhex-accuracy"
READING = "reading.md"  # what follows from rows that belong to no suite, in words

_BEFORE = "run the suite again and pack its rows: those of the page are from before rows travelled"
_AT_ONCE = "its script measures and writes in one go, and keeps no rows"
WITHOUT_ROWS: Mapping[str, str] = {
    **dict.fromkeys(
        ("cdam", "cdam-single", "gradtoken-ablations", "gradtoken-movies", "gradtoken-perturbation"), _BEFORE
    ),
    **dict.fromkeys(
        ("gradtoken-segmentation", "mhex-ablations", "mhex-agnews", "mhex-curves", "mhex-vit-blood"), _BEFORE
    ),
    **dict.fromkeys(("mhex-table3-blood", "mhex-table3-pets", "mhex-table3-pneumonia", "tokentm-cifar10"), _BEFORE),
    **dict.fromkeys(("cdam-figures", "cdam-supplement", "collaboration", "gradtoken-classes"), _AT_ONCE),
    **dict.fromkeys(("gradtoken-figures", "head-maps", "mhex-figures", "token-pictures"), _AT_ONCE),
    "heads-placement": "`heads_placement.py` keeps rows, but not the versions that made them, which the page names",
    "recommend": "rows and races of `recommend.py` are kept by its run",
}
_ABOUT = """# Rows

Rows per sample that pages of results are made of, rounded to what the pages need: `python docs/generate.py --results`
makes the pages again, and `--check --results`, which every change has to pass, compares them. A suite's rows are read
by `mhex bench NAME --from docs/results/rows/NAME`, those of known evidence by `mhex bench truth --from
docs/results/rows/truth`; charts beside the pages are drawn where a suite is run. `python docs/pack_rows.py` makes the
rows from the folder of a run. Which pages have rows here:

"""


def with_rows() -> set[str]:
    """Names of the pages whose rows travel."""
    return {ACCURACY, *(path.name for path in ROWS.iterdir() if path.is_dir())}


def result_pages() -> dict[Path, str]:
    """Every page whose rows travel, and its content."""
    pages = {RESULTS / f"{name}.md": page_of(name) for name in sorted(with_rows())}
    return {ROWS / "README.md": rows_page(), **pages}


def rows_page() -> str:
    """The page on the rows: which pages are made of them, and why others are not."""
    lines = [f"- [{name}](../{name}.md): yes" for name in sorted(with_rows())]
    lines += [f"- [{name}](../{name}.md): no; {why}" for name, why in sorted(WITHOUT_ROWS.items())]
    return _ABOUT + "\n".join(lines) + "\n"


def page_of(name: str) -> str:
    """A page by its name, from rows that travel."""
    if name == ACCURACY:
        return accuracy_page()
    return packed_truth_page(ROWS / name) if name == TRUTH else packed_suite_page(ROWS / name)


def packed_suite_page(folder: Path) -> str:
    """The page of a suite from its packed rows, with the words of the suite as it is now."""
    result = stored_result(folder, read_suite(find_suite(folder.name)))
    return suite_page(result, RESULTS)


def packed_truth_page(folder: Path) -> str:
    """The page of known evidence from its packed rows."""
    reading = folder / READING
    words = reading.read_text(encoding="utf-8") if reading.is_file() else ""
    return truth_page(stored_evidence(folder), "mhex bench truth", words)


def accuracy_page() -> str:
    """The page of accuracies from the rows beside it, as `benchmarks/mhex_accuracy.py --page` writes it."""
    sys.path.append(str(ROOT / "benchmarks"))
    from accuracy_page import page

    return page(json.loads((RESULTS / f"{ACCURACY}.json").read_text(encoding="utf-8")))
