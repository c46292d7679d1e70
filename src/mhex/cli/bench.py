"""`mhex bench`: methods by metrics by models by data, from suite files."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from mhex._files import write_text
from mhex.cli._console import LOSSES, busy, complain, output_folder, say, show_table, stopping, told_once
from mhex.cli._parse import check_device
from mhex.cli.models import accuracy_words
from mhex.errors import ArgumentError, MhexError
from mhex.judge.page import page_of
from mhex.judge.store import remarks
from mhex.lab.config.suite import Suite, find_suite, packaged_suites, read_suite
from mhex.lab.suites.page import write_page
from mhex.lab.suites.run import Shelf, run_suite
from mhex.lab.suites.stored import SuiteResult, stored_result

EVERY = "all"


@dataclass(frozen=True)
class Job:
    """A suite, and what the user called it."""

    given: str
    suite: Suite


@dataclass(frozen=True)
class Places:
    """Where things of a suite are.

    Attributes:
        rows: The folder of its rows.
        html: The folder that takes `report.html`.
        page: Its page in Markdown; None for none.
    """

    rows: Path
    html: Path
    page: Path | None


def jobs_of(given: Sequence[str]) -> list[Job]:
    """Suites that are asked for, each read and checked.

    Args:
        given: Files, names, or `all` for every packaged one.

    Raises:
        ArgumentError: One of them is wrong, or two have the same name, and would have the same folder.
    """
    names = [name for one in given for name in (packaged_suites() if one == EVERY else [one])]
    jobs = [Job(name, read_suite(find_suite(name))) for name in dict.fromkeys(names)]
    called = [job.suite.name for job in jobs]
    for name in called:
        if called.count(name) > 1:
            raise ArgumentError(f"Expected suites of different names, but {name} is there twice.")
    return jobs


@dataclass(frozen=True)
class Losses:
    """What was lost.

    Attributes:
        failed: Suites that failed.
        samples: By suite and model, how many samples could not be judged.
    """

    failed: list[str] = field(default_factory=list)
    samples: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Bench:
    """How suites are run.

    Attributes:
        quick: In their quick form.
        device: Where models run.
        stored: Read rows that are there, and judge nothing.
        tables: Print tables, and write pages.
        remark: On the circumstances, for pages.
        shelf: Models and data that suites share.
    """

    quick: bool
    device: str
    stored: bool
    tables: bool
    remark: str = ""
    shelf: Shelf = field(default_factory=Shelf)

    def work(self, jobs: Sequence[Job], places_of: Callable[[Job], Places]) -> Losses:
        """Do all suites; one that fails does not stop the next.

        Args:
            jobs: The suites.
            places_of: Where things of a suite are.

        Returns:
            What was lost. If the only suite fails, its error is raised.
        """
        losses = Losses()
        for job in jobs:
            places = places_of(job)
            try:
                with stopping(lambda places=places: _words_after_stop(places.rows)):  # type: ignore[misc]
                    losses.samples.update(self._one(job, places))
            except (MhexError, RuntimeError, OSError) as error:  # what a machine or a suite can lack; not our bugs
                if len(jobs) == 1:
                    raise
                if not isinstance(error, MhexError):
                    traceback.print_exc()
                why = " ".join(str(error).split()) or type(error).__name__
                losses.failed.append(job.suite.name)
                complain(f"{job.suite.name} failed: {why}")
        return losses

    def _one(self, job: Job, places: Places) -> dict[str, int]:
        """Do a suite; by suite and model, how many samples could not be judged."""
        started = time.perf_counter()
        result = stored_result(places.rows, job.suite) if self.stored else None
        if self.tables:  # before any work is spent
            output_folder(places.html)
            if places.page is not None:
                output_folder(places.page.parent)
        if result is None:
            with told_once():
                result = run_suite(
                    job.suite,
                    output_folder(places.rows),
                    device=self.device,
                    quick=self.quick,
                    progress=sys.stderr.isatty(),
                    command=_command(job.given, self.quick, self.device),
                    remark=self.remark,
                    shelf=self.shelf,
                    say=None if sys.stdout.isatty() else complain,
                )
            complain(f"Rows of {len(result.reports)} models are in {places.rows}.")
        if self.tables:
            _show(result)
            _write(result, places)
        if not sys.stdout.isatty():
            complain(f"{job.suite.name}: {time.perf_counter() - started:.1f} s in all.")
        for line in result.remarks:
            complain(line)
        for label, lost in result.lost.items():
            complain(f"{job.suite.name}: {label}: {' '.join(remarks('', lost))}")
        return {f"{job.suite.name}: {label}": len(lost) for label, lost in result.lost.items()}


def _words_after_stop(rows: Path) -> str:
    return f"Rows of all that is judged so far are in {rows}; the same command goes on from there."


def _command(given: str, quick: bool, device: str) -> str:
    """The command that makes the same numbers again; where they are written to changes none."""
    name = Path(given).name
    return f"mhex bench {name}{' --quick' if quick else ''}{'' if device == 'cpu' else f' --device {device}'}"


def _show(result: SuiteResult) -> None:
    for label, report in result.reports.items():
        record = result.record["models"][label]
        read = f", outputs of {record['evaluator']}" if record["evaluator"] else ""
        say(
            f"{label}: {record['model']}, {accuracy_words(record['accuracy'])}; {record['images']} samples of "
            f"{record['data']['name']}, target {record['target']}{read}\n"
        )
        say(f"{report.table()}\n")


def _write(result: SuiteResult, places: Places) -> None:
    """The HTML page, and the one in Markdown where it was asked for."""
    whole, page = places.html / "report.html", places.page
    write_text(page_of(places.rows, result.suite.title, remarks=result.remarks), whole)
    complain(f"Wrote {whole}.")
    if page is not None:
        files = write_page(result, page)
        charts = f", and {len(files) - 1} charts beside it" if len(files) > 1 else ""
        complain(f"Wrote {page}{charts}.")


EXAMPLES = """
mhex bench --list

mhex bench gradtoken-segmentation --quick

mhex bench my-suite.yaml --device cuda --page results.md

mhex bench all --device cuda --out runs --no-tables

mhex bench all --from runs --page-folder pages
"""


def bench(
    suites: Annotated[
        list[str] | None,
        typer.Argument(metavar="[SUITE]...", help="Suite files, names of packaged suites, or all.", show_default=False),
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
    device: Annotated[str, typer.Option("--device", help="cpu, cuda or cuda:1.")] = "cpu",
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
    with busy("Loading the suites"):
        pass
    if no_tables and (page or page_folder or stored):
        raise ArgumentError("Expected --no-tables without pages; make them later with --from.")
    if remark and stored:
        raise ArgumentError("Expected --remark where rows are made; with --from, pages have the remark of their run.")
    jobs = jobs_of(suites)
    if page is not None and len(jobs) > 1:
        raise ArgumentError("Expected one suite beside --page; of several, --page-folder takes the pages.")
    check_device(device)

    def places_of(job: Job) -> Places:
        name, only = f"{job.suite.name}-quick" if quick else job.suite.name, len(jobs) == 1
        own = Path("out") / "bench" / name if out is None else out if only else out / name
        md = page if page_folder is None else page_folder / f"{job.suite.name}.md"
        if stored is None:
            return Places(own, own, md)
        rows = stored if only and (stored / "suite.json").is_file() else stored / name
        return Places(rows, rows if out is None else own, md)

    losses = Bench(quick, device, stored=stored is not None, tables=not no_tables, remark=remark).work(jobs, places_of)
    if losses.failed:
        sentence = f"{len(losses.failed)} of {len(jobs)} suites failed: {', '.join(losses.failed)}."
        if len(losses.failed) == len(jobs):
            raise ArgumentError(sentence)
        complain(sentence)
    if losses.failed or losses.samples:
        raise typer.Exit(LOSSES)


def _list() -> None:
    with busy("Reading the suites"):
        from mhex.lab.config.suite import packaged_suites, read_suite
        from mhex.zoo.places import missing_of

        suites = [read_suite(path) for path in packaged_suites().values()]
    show_table(
        f"{len(suites)} suites",
        ("name", "what", "data", "models", "to be built first", "metrics"),
        [
            (
                one.name,
                one.title,
                ", ".join(dict.fromkeys(entry.data.name for entry in one.entries())),
                ", ".join(dict.fromkeys(entry.model for entry in one.entries())),
                ", ".join(missing_of(one.networks())),
                ", ".join(dict.fromkeys(part.name for entry in one.entries() for part in entry.metrics)),
            )
            for one in suites
        ],
        prose=("what",),
        several=("data", "models", "to be built first", "metrics"),
    )
