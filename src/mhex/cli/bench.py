"""`mhex bench`: methods by metrics by models by data, from a suite file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mhex.cli._console import busy, complain, printable, show_table
from mhex.cli._output import output_folder, writing
from mhex.cli._parse import check_device
from mhex.errors import ArgumentError

if TYPE_CHECKING:
    from mhex.bench.suite_run import SuiteResult

EXAMPLES = """
mhex bench --list

mhex bench gradtoken-segmentation --quick

mhex bench my-suite.yaml --device cuda --page results.md
"""


def bench(
    suite: Annotated[str | None, typer.Argument(help="A suite file, or the name of a packaged suite.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="The suite's quick form: few samples, in minutes.")] = False,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder of the run. [default: out/bench/NAME]", show_default=False)
    ] = None,
    device: Annotated[str, typer.Option("--device", help="cpu, cuda or cuda:1.")] = "cpu",
    page: Annotated[Path | None, typer.Option("--page", help="Also write a page in Markdown.")] = None,
    listed: Annotated[bool, typer.Option("--list", help="List the packaged suites and leave.")] = False,
) -> None:
    """Judge methods by a suite. The same command goes on where a broken run stopped.

    Prints a table with intervals for each model; rows per image stay in the folder.
    """
    if listed:
        _list()
        return
    if suite is None:
        raise ArgumentError("Expected a suite: a file, or a name of `mhex bench --list`.")
    with busy("Loading the suite"):
        from mhex.bench.suite_files import find_suite, read_suite
        from mhex.bench.suite_page import suite_page
        from mhex.bench.suite_run import run_suite
    wanted = read_suite(find_suite(suite))
    check_device(device)
    folder = output_folder(out or Path("out") / "bench" / (f"{wanted.name}-quick" if quick else wanted.name))
    if page is not None:
        output_folder(page.parent)
    result = run_suite(
        wanted,
        folder,
        device=device,
        quick=quick,
        progress=sys.stderr.isatty(),
        command=_command(suite, quick, device),
    )
    _show(result)
    complain(f"Rows of {len(result.reports)} models are in {folder}.")
    if page is not None:
        with writing(page):
            page.write_text(printable(suite_page(result)), encoding="utf-8")
        complain(f"Wrote {page}.")


def _command(suite: str, quick: bool, device: str) -> str:
    """The command that makes the same numbers again; where they are written to changes none."""
    name = Path(suite).name
    return f"mhex bench {name}{' --quick' if quick else ''}{'' if device == 'cpu' else f' --device {device}'}"


def _show(result: SuiteResult) -> None:
    from mhex.cli.models import accuracy_words

    for label, report in result.reports.items():
        record = result.told["models"][label]
        read = f", outputs of {record['evaluator']}" if record["evaluator"] else ""
        typer.echo(
            printable(
                f"{label}: {record['model']}, {accuracy_words(record['accuracy'])}; {record['images']} samples of "
                f"{record['data']['name']}, target {record['target']}{read}\n"
            )
        )
        typer.echo(printable(f"{report.table()}\n"))


def _list() -> None:
    with busy("Reading the suites"):
        from mhex.bench.suite_files import packaged_suites, read_suite

        suites = [read_suite(path) for path in packaged_suites().values()]
    show_table(
        f"{len(suites)} suites",
        ("name", "what", "data", "models", "metrics"),
        [
            (
                one.name,
                one.title,
                ", ".join(dict.fromkeys(entry.data.name for entry in one.entries())),
                ", ".join(dict.fromkeys(entry.model for entry in one.entries())),
                ", ".join(dict.fromkeys(part.name for entry in one.entries() for part in entry.metrics)),
            )
            for one in suites
        ],
    )
