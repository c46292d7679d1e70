"""Packed rows of suites: small, rounded, and enough for the page that they travel with."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch

from mhex.judge import store
from mhex.judge.report import Report
from mhex.lab.suites.page import fingerprint, suite_page, write_page
from mhex.lab.suites.run import run_suite
from mhex.lab.suites.stored import SuiteResult, stored_result
from support.suites import numbers_of, suite_of

DOCS = Path(__file__).parents[3] / "docs"
SWEEP = {"reference": "zero", "steps": 4}
METRICS = [{"name": "deletion", "changes": SWEEP}, "segmentation", "compactness"]


@pytest.fixture(scope="module")
def pack() -> Any:
    """The module docs/pack_rows.py."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(DOCS))
        import pack_rows

        yield pack_rows
        del sys.modules["pack_rows"], sys.modules["result_pages"]


@pytest.fixture(scope="module")
def runs(folders: tuple[Path, Path], pack: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The folder of a run with charts, and that of its packed rows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MHEX_MODELS", str(folders[0]))
        patch.setenv("MHEX_DATA", str(folders[1]))
        folder = tmp_path_factory.mktemp("packed")
        suite = suite_of(folder, metrics=METRICS, charts=True, data={"name": "pets", "split": "test", "limit": 24})
        run_suite(suite, folder / "run", command="mhex bench small")
    pack.pack_suite(folder / "run", folder / "rows")
    return folder / "run", folder / "rows"


def results(runs: tuple[Path, Path]) -> tuple[SuiteResult, SuiteResult]:
    return stored_result(runs[0]), stored_result(runs[1])


def test_the_page_of_packed_rows_is_that_of_all(runs: tuple[Path, Path], tmp_path: Path) -> None:
    full, packed = results(runs)
    assert packed.suite == full.suite
    write_page(full, tmp_path / "small.md")
    assert (tmp_path / "images" / "small-tiny-vit.svg").is_file(), "the chart of the page, which packed rows link"
    assert suite_page(packed, tmp_path) == (tmp_path / "small.md").read_text(encoding="utf-8")
    assert "### Curves" not in suite_page(packed), "there is nothing to draw it from"


def test_packed_rows_are_small_and_name_no_place(runs: tuple[Path, Path]) -> None:
    files = {path.relative_to(runs[1]).as_posix(): path for path in runs[1].rglob("*") if path.is_file()}
    assert set(files) == {"suite.json", "tiny-vit/about.json", "tiny-vit/part-000000.parquet"}
    assert '"command": "mhex bench small"' in files["tiny-vit/about.json"].read_text(encoding="utf-8")
    size = sum(path.stat().st_size for path in (runs[0] / "tiny-vit").glob("part-*"))
    assert files["tiny-vit/part-000000.parquet"].stat().st_size < size / 2


def test_values_are_rounded_by_their_spread(runs: tuple[Path, Path]) -> None:
    full, packed = (result.reports["tiny-vit"] for result in results(runs))
    assert (packed.methods, packed.metrics) == (full.methods, full.metrics)
    changed = 0
    for metric in full.metrics:
        (ids, before), (packed_ids, after) = full.values(metric), packed.values(metric)
        assert torch.equal(ids, packed_ids)
        for method, values in before.items():
            spread = values.nan_to_num().std(0, correction=0)
            assert ((values - after[method]).abs() <= spread / 400 + 1e-12).all(), (metric, method)
            changed += int((values != after[method]).sum())
    assert changed > 100, "values of full precision"
    assert all(value != value for value in packed.rows.column("seconds").to_pylist())


def test_a_reading_stands_above_the_packed_numbers_alone(runs: tuple[Path, Path]) -> None:
    packed = results(runs)[1]
    page = suite_page(packed)
    numbers = fingerprint(packed)
    assert f"Fingerprint of the numbers: `{numbers}`." in page
    assert numbers_of(page) == numbers
    suite = packed.suite.model_copy(update={"reading": "What they say.", "reading_of": numbers})
    assert "## Reading\n\nWhat they say." in suite_page(replace(packed, suite=suite))
    report = packed.reports["tiny-vit"]
    place, values = report.rows.column_names.index("value"), report.rows.column("value").to_pylist()
    higher = report.rows.set_column(place, "value", pa.array([value + 0.1 for value in values]))
    others = replace(packed, suite=suite, reports={"tiny-vit": Report(higher)})
    assert "What they say." not in suite_page(others), "the numbers of someone else"


def test_rows_of_known_evidence_keep_three_digits(pack: Any, runs: tuple[Path, Path], tmp_path: Path) -> None:
    report = stored_result(runs[0]).reports["tiny-vit"]
    report.save(tmp_path / "run" / "network--task")
    pack.pack_truth(tmp_path / "run", tmp_path)
    (file,) = tmp_path.glob("*.parquet")
    packed = Report.load(file)
    assert (packed.methods, packed.cost) == (report.methods, report.cost)
    key = ("image", "method", "options", "metric", "column", "value")
    rounded = {(*row[:-1], float(f"{row[-1]:.3g}")) for row in store.records(report.rows, *key)}
    assert set(store.records(packed.rows, *key)) == rounded
