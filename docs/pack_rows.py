"""Pack the rows of a run, so that they travel with the pages: rounded, sorted, without curves, photos and maps.

python docs/pack_rows.py out/bench/cdam      docs/results/rows/cdam, and the suite's page and charts in docs/results
python docs/pack_rows.py out/bench/truth     docs/results/rows/truth, and truth.md

What is written is read like the folder of the run, by `mhex bench NAME --from` and `Report.load`. Values of suites are
rounded to a two-hundredth of their standard deviation or less, over the samples of a method by a number of a metric;
those of known evidence to three significant digits. Pages are made of the packed
rows, and so is the fingerprint that is printed: it belongs into the suite as `reading_of` once its reading was compared
with the page.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Hashable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from result_pages import RESULTS, ROWS, TRUTH, packed_suite_page, packed_truth_page

from mhex._files import write_text
from mhex._settings import check_that
from mhex.judge import store
from mhex.judge.report import Report, read_calls
from mhex.lab.config.suite import find_suite, read_suite
from mhex.lab.suites.page import fingerprint, write_page
from mhex.lab.suites.stored import RECORD, read_record, stored_result

_STEPS = 200  # of rounding in a standard deviation: a mean moves by some 0.07 % of half its 95 % interval
_DIGITS = 3  # significant ones


def packed(report: Report, rounded: Callable[[Any, Any], Any]) -> Any:
    """Rows of a report as an arrow table, by metric, number, method and sample, with rounded values.

    `rounded` takes values (n,) and the numbers (n,) of their groups, whose members stand beside each other.
    """
    rows = report.rows
    names = (store.labels_of(rows), *(rows.column(name).to_pylist() for name in ("metric", "column")))
    methods, metrics, columns = (_places(values) for values in names)
    order = np.lexsort((rows.column("image").to_pylist(), methods, columns, metrics))
    groups = _places(zip(metrics[order], columns[order], methods[order], strict=True))
    rows = rows.take(order)
    values = np.asarray(rows.column("value").to_pylist(), np.float64)
    table = {name: rows.column(name) for name in rows.column_names}
    table["value"] = pa.array(rounded(values, groups))
    table["seconds"] = pa.array(np.full(len(values), np.nan))  # no page has those of metrics
    rows = pa.table(table)
    check_that(Report(rows).methods == report.methods, "rows of every method by the first metric", "none of some")
    return rows


def _places(values: Iterable[Hashable]) -> Any:
    """The place of each value among the different ones, in the order in which they come."""
    listed = list(values)
    places = {value: place for place, value in enumerate(dict.fromkeys(listed))}
    return np.asarray([places[value] for value in listed])


def by_spread(values: Any, groups: Any) -> Any:
    """Round values by the standard deviation of their group; counts stay."""
    parts = np.split(values, np.flatnonzero(np.diff(groups)) + 1)
    for place, part in enumerate(parts):
        finite = part[np.isfinite(part)]
        most = finite.std() / _STEPS if len(finite) else 0.0
        if most > 0 and (finite != finite.round()).any():
            digits = -int(np.floor(np.log10(most)))
            times = max(times for times in (1, 2, 5) if times * 10.0**-digits <= most)
            parts[place] = ((part / times).round(digits) * times).round(digits) + 0.0  # no minus before zeros
    return np.concatenate(parts)


def by_digits(values: Any, groups: Any) -> Any:
    """Round values to significant digits, whatever their groups."""
    return np.asarray([float(f"{value:.{_DIGITS}g}") for value in values])


def as_they_are(values: Any, groups: Any) -> Any:
    """Leave values that were rounded before."""
    return values


def write_rows(rows: Any, path: Path) -> None:
    """Write an arrow table as small as it gets."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(
        rows,
        path,
        compression="brotli",
        compression_level=11,
        use_dictionary=[name for name in rows.column_names if name != "value"],
        data_page_size=1 << 26,  # a column in one piece, in which more is alike
        max_rows_per_page=1 << 30,
        write_statistics=False,
    )


def pack_suite(run: Path, out: Path) -> None:
    """Write the folder of a suite's run with packed rows."""
    record = read_record(run)
    for label, report in stored_result(run).reports.items():
        write_rows(packed(report, by_spread), out / label / "part-000000.parquet")
        command = record["models"][label]["command"]  # that of the call may have paths of the machine
        calls = [{**call, "command": command} for call in read_calls(run / label)]
        write_text(json.dumps(calls), out / label / "about.json")
    write_text(json.dumps(record), out / RECORD)


def pack_truth(run: Path, out: Path) -> None:
    """Write rows of the bench of known evidence as packed files, from folders of a run or from such files."""
    for source in sorted(path for path in run.iterdir() if path.is_dir() or path.suffix == ".parquet"):
        report = Report.load(source)
        file = report.to_parquet(out / f"{source.name.removesuffix('.parquet')}.parquet")
        facts = pq.read_schema(file).metadata
        write_rows(packed(report, by_digits if source.is_dir() else as_they_are).replace_schema_metadata(facts), file)


def main(run: Path) -> None:
    """Pack a run, and write its page; charts are drawn from the curves, which do not travel."""
    if not (run / RECORD).is_file():
        pack_truth(run, ROWS / TRUTH)
        write_text(packed_truth_page(ROWS / TRUTH), RESULTS / f"{TRUTH}.md")
        return
    name = read_record(run)["suite"]["name"]
    suite = read_suite(find_suite(name))
    result = stored_result(run, suite)
    check_that(not result.quick, "a run of the full suite", "its quick form")
    pack_suite(run, ROWS / name)
    page = RESULTS / f"{name}.md"
    write_page(result, page)
    write_text(packed_suite_page(ROWS / name), page)
    numbers = fingerprint(stored_result(ROWS / name, suite))
    print(f"Fingerprint of the packed numbers: {numbers} (of all digits: {fingerprint(result)}; {suite.reading_of=})")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
