"""The work of `mhex bench`: suites one after the other, with tables and pages of each."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mhex._files import write_text
from mhex.bench import page_of as html_page
from mhex.bench.course import remarks
from mhex.bench.suite import Suite
from mhex.bench.suite_files import find_suite, packaged_suites, read_suite
from mhex.bench.suite_page import write_page
from mhex.bench.suite_run import SuiteResult, run_suite
from mhex.bench.suite_shelf import Shelf
from mhex.bench.suite_stored import stored_result
from mhex.cli._console import complain, say, stopping, told_once
from mhex.cli._output import output_folder
from mhex.cli.models import accuracy_words
from mhex.errors import ArgumentError, MhexError

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
        record = result.told["models"][label]
        read = f", outputs of {record['evaluator']}" if record["evaluator"] else ""
        say(
            f"{label}: {record['model']}, {accuracy_words(record['accuracy'])}; {record['images']} samples of "
            f"{record['data']['name']}, target {record['target']}{read}\n"
        )
        say(f"{report.table()}\n")


def _write(result: SuiteResult, places: Places) -> None:
    """The HTML page, and the one in Markdown where it was asked for."""
    whole, page = places.html / "report.html", places.page
    made = html_page(places.rows, result.suite.title)
    write_text(made, whole)
    complain(f"Wrote {whole}.")
    if page is not None:
        files = write_page(result, page)
        charts = f", and {len(files) - 1} charts beside it" if len(files) > 1 else ""
        complain(f"Wrote {page}{charts}.")
