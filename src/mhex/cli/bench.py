"""`mhex bench`: methods by metrics by models by data, from suite files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mhex.cli._console import LOSSES, busy, complain, show_table
from mhex.cli._parse import check_device
from mhex.errors import ArgumentError

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
        from mhex.cli._bench import Bench, Job, Places, jobs_of
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
        from mhex.bench.suite_files import packaged_suites, read_suite
        from mhex.zoo._places import missing_of

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
