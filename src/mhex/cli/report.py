"""`mhex report`: a folder of evaluations as one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mhex._printable import printable
from mhex.cli._console import busy, say
from mhex.cli._output import writing
from mhex.errors import ArgumentError

EXAMPLES = """
mhex report runs/pets

mhex report runs --out pets.html --title "Pets, two models" --images 0,3,5
"""


def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="What mhex.evaluate, bench or recommend wrote.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The page.", show_default="report.html in the folder")
    ] = None,
    title: Annotated[str, typer.Option("--title", help="Of the page.", show_default="the folder's name")] = "",
    images: Annotated[
        str | None,
        typer.Option(
            "--images",
            help="Numbers of the images whose maps are shown, with commas between.",
            show_default="all that were kept",
        ),
    ] = None,
) -> None:
    """Make one HTML file of evaluations: tables, curves, boxes, maps, costs, protocols and versions.

    It opens without network and holds all of its pictures. Several models are several folders in DIR.
    """
    chosen = None if images is None else _numbers(images)
    file = folder / "report.html" if out is None else out
    with busy("Drawing"):
        from mhex.bench import page_of
        from mhex.bench.saving import PAGE, is_recommendation

        made = page_of(folder, title, chosen)
        with writing(file):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(printable(made), encoding="utf-8")
    say(f"Page: {file}")
    if is_recommendation(folder):
        say(f"Which method to use is said in {folder / PAGE}.")


def _numbers(given: str) -> list[int]:
    parts = [part.strip() for part in given.split(",") if part.strip()]
    if not parts or not all(part.isdecimal() for part in parts):
        raise ArgumentError(f"Expected numbers of images with commas between after --images, but got {given!r}.")
    return [int(part) for part in parts]
