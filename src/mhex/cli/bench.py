"""`mhex bench`: methods by metrics by models by data, from suite files."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mhex._files import write_text
from mhex._settings import check_that
from mhex.cli import _console
from mhex.cli._console import busy, complain, say
from mhex.cli._parse import DeviceOption, check_device
from mhex.cli.lists import accuracy_words
from mhex.errors import ArgumentError, MhexError

if TYPE_CHECKING:
    from mhex.lab.config.suite import Suite
    from mhex.lab.suites.stored import SuiteResult

EVERY = "all"
TRUTH = "truth"
EXAMPLES = """
mhex bench --list
mhex bench gradtoken-segmentation --quick
mhex bench my-suite.yaml --device cuda --page results.md
mhex bench all --device cuda --out runs --no-tables
mhex bench all --from runs --page-folder pages
mhex bench truth --quick
mhex bench truth --from runs/truth --page truth.md
"""


@dataclass(frozen=True)
class Job:
    """A suite as the user named it, the folders of its rows and of `report.html`, and its page in Markdown."""

    name: str
    suite: Suite
    rows: Path
    html: Path
    page: Path | None


def command(
    suites: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SUITE]...",
            help="Suite files, names of packaged suites, or all; or truth: methods and metrics on networks whose "
            "evidence is known, with names of networks after it if not all are wanted.",
            show_default=False,
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="The quick form: few samples, in minutes.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="Folder of the run; of several suites, the folder that theirs are in. With --from, the folder of "
            "report.html. [default: out/bench/NAME]",
            show_default=False,
        ),
    ] = None,
    device: DeviceOption = "cpu",
    stored: Annotated[
        Path | None,
        typer.Option(
            "--from",
            help="Judge nothing: tables and pages from rows that are in this folder, or in folders of it. "
            "Needs neither models nor data.",
            show_default=False,
        ),
    ] = None,
    page: Annotated[Path | None, typer.Option("--page", help="Also write a page in Markdown.")] = None,
    page_folder: Annotated[
        Path | None, typer.Option("--page-folder", help="Also write NAME.md for each suite.", show_default=False)
    ] = None,
    no_tables: Annotated[
        bool, typer.Option("--no-tables", help="Judge alone; tables and pages can be made later with --from.")
    ] = False,
    remark: Annotated[
        str, typer.Option("--remark", help="A sentence on the circumstances, which pages of this run will have.")
    ] = "",
    listed: Annotated[bool, typer.Option("--list", help="List the packaged suites and leave.")] = False,
) -> None:
    """Judge methods by suites. The same command goes on where a broken run stopped.

    Prints a table with intervals for each model, and writes report.html beside the rows, which stay in the folder. Of
    several suites, one that fails does not stop the next; it is named at the end, and the exit code is 3.
    """
    if listed:
        _list()
        return
    if not suites:
        raise ArgumentError("Expected a suite: a file, a name of `mhex bench --list`, or all.")
    if no_tables and (page or page_folder or stored):
        raise ArgumentError("Expected --no-tables without pages; make them later with --from.")
    if remark and stored:
        raise ArgumentError("Expected --remark where rows are made; with --from, pages have the remark of their run.")
    if suites[0] == TRUTH:
        check_that(page_folder is None and not remark, "--page alone beside truth", "--page-folder or --remark")
        check_device(device)
        place = stored or out or Path("out") / "bench" / (f"{TRUTH}-quick" if quick else TRUTH)
        with _console.stopping(lambda: f"Rows so far are in {place}; the same command goes on from there."):
            _truth(suites[1:], place, judged=stored is not None, quick=quick, device=device, page=page)
        return
    with busy("Loading the suites"):
        from mhex.lab.suites.run import Shelf

        suites_by_name = read_suites(suites)
    if page is not None and len(suites_by_name) > 1:
        raise ArgumentError("Expected one suite beside --page; of several, --page-folder takes the pages.")
    check_device(device)
    shared: dict[str, Any] = {"quick": quick, "device": device, "remark": remark, "shelf": Shelf()}
    failed: list[str] = []
    has_losses = False
    for typed_name, suite in suites_by_name.items():
        name, single = f"{suite.name}-quick" if quick else suite.name, len(suites_by_name) == 1
        rows = html = Path("out") / "bench" / name if out is None else out if single else out / name
        if stored is not None:
            rows = stored if single and (stored / "suite.json").is_file() else stored / name
            html = rows if out is None else html
        job = Job(typed_name, suite, rows, html, page if page_folder is None else page_folder / f"{suite.name}.md")
        words = f"Rows of all that is judged so far are in {rows}; the same command goes on from there."
        try:
            with _console.stopping(lambda words=words: words):  # type: ignore[misc]
                has_losses |= _work(job, stored is not None, not no_tables, shared)
        except (MhexError, RuntimeError, OSError) as error:  # what a machine or a suite can lack; not a bug of mhex
            if single:
                raise
            if not isinstance(error, MhexError):
                traceback.print_exc()
            failed.append(suite.name)
            complain(f"{suite.name} failed: {' '.join(str(error).split()) or type(error).__name__}")
    if failed:
        sentence = f"{len(failed)} of {len(suites_by_name)} suites failed: {', '.join(failed)}."
        if len(failed) == len(suites_by_name):
            raise ArgumentError(sentence)
        complain(sentence)
    if failed or has_losses:
        raise typer.Exit(_console.LOSSES)


def _truth(names: Sequence[str], out: Path, *, judged: bool, quick: bool, device: str, page: Path | None) -> None:
    """Judge methods and metrics on networks of known evidence, or read their rows; print and write the page."""
    from mhex.lab.truth import bench
    from mhex.lab.truth.page import truth_page

    if page is not None:
        _console.output_folder(page.parent)
    if judged:
        evidences = bench.stored_evidence(out, names)
    else:
        samples = bench.QUICK_SAMPLES if quick else bench.SAMPLES
        with _console.without_repeated_warnings():
            evidences = bench.run_bench(
                _console.output_folder(out),
                names,
                samples=samples,
                device=device,
                progress=sys.stderr.isatty(),
                say=complain,
            )
        complain(f"Rows of {len(evidences)} networks are in {out}.")
    text = truth_page(evidences, f"mhex bench {' '.join([TRUTH, *names])}{' --quick' if quick else ''}")
    say(text)
    if page is not None:
        write_text(text, page)
        complain(f"Wrote {page}.")


def read_suites(names: Sequence[str]) -> dict[str, Suite]:
    """The suites of files, names, or `all`, by what the user typed; two of one name would have one folder."""
    from mhex.lab.config.suite import find_suite, packaged_suites, read_suite

    files = [file for name in names for file in (packaged_suites() if name == EVERY else [name])]
    suites = {file: read_suite(find_suite(file)) for file in files}
    titles = [suite.name for suite in suites.values()]
    for title in titles:
        check_that(titles.count(title) == 1, "suites of different names", f"{title} twice")
    return suites


def _work(job: Job, stored: bool, tables: bool, shared: dict[str, Any]) -> bool:
    """Judge a suite, or read its stored rows, and make its tables; whether samples could not be judged."""
    from mhex.judge.store import remarks
    from mhex.lab.suites.run import run_suite
    from mhex.lab.suites.stored import stored_result

    started = time.perf_counter()
    result = stored_result(job.rows, job.suite) if stored else None
    if tables:  # before any work is spent
        _console.output_folder(job.html)
        if job.page is not None:
            _console.output_folder(job.page.parent)
    if result is None:
        # The command that makes the same numbers again; the folder that they are written to changes none.
        device = "" if shared["device"] == "cpu" else f" --device {shared['device']}"
        with _console.without_repeated_warnings():
            result = run_suite(
                job.suite,
                _console.output_folder(job.rows),
                progress=sys.stderr.isatty(),
                command=f"mhex bench {Path(job.name).name}{' --quick' if shared['quick'] else ''}{device}",
                say=None if sys.stdout.isatty() else complain,
                **shared,
            )
        complain(f"Rows of {len(result.reports)} models are in {job.rows}.")
    if tables:
        _publish(result, job)
    if not sys.stdout.isatty():
        complain(f"{job.suite.name}: {time.perf_counter() - started:.1f} s in all.")
    for line in result.remarks:
        complain(line)
    for label, losses in result.lost.items():
        complain(f"{job.suite.name}: {label}: {' '.join(remarks('', losses))}")
    return bool(result.lost)


def _publish(result: SuiteResult, job: Job) -> None:
    """Print the tables, and write the HTML page and the page in Markdown where it was asked for."""
    from mhex.judge.page import page_of
    from mhex.lab.suites.page import write_page

    for label, report in result.reports.items():
        record = result.record["models"][label]
        evaluator = f", outputs of {record['evaluator']}" if record["evaluator"] else ""
        say(
            f"{label}: {record['model']}, {accuracy_words(record['accuracy'])}; {record['images']} samples of "
            f"{record['data']['name']}, target {record['target']}{evaluator}\n"
        )
        say(f"{report.table()}\n")
    file = job.html / "report.html"
    write_text(page_of(job.rows, result.suite.title, remarks=result.remarks), file)
    complain(f"Wrote {file}.")
    if job.page is not None:
        files = write_page(result, job.page)
        charts = f", and {len(files) - 1} charts beside it" if len(files) > 1 else ""
        complain(f"Wrote {job.page}{charts}.")


def _list() -> None:
    with busy("Reading the suites"):
        from mhex.zoo.shipped import missing_of

        suites = read_suites([EVERY]).values()
    rows = []
    for suite in suites:
        entries = suite.entries()
        data, models = [entry.data.name for entry in entries], [entry.model for entry in entries]
        metrics = [part.name for entry in entries for part in entry.metrics]
        columns = (data, models, missing_of(suite.networks()), metrics)
        rows.append((suite.name, suite.title, *(", ".join(dict.fromkeys(names)) for names in columns)))
    headings = ("name", "what", "data", "models", "to be built first", "metrics")
    _console.show_table(f"{len(rows)} suites", headings, rows, prose=headings[1:])
