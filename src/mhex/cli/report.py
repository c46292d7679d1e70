"""`mhex report`: a folder of evaluations as one page."""

from pathlib import Path
from typing import Annotated

import typer

from mhex._files import write_text
from mhex._settings import check_that
from mhex.cli._console import busy, complain, say, writing

EXAMPLES = """
mhex report runs/pets
mhex report runs --out pets.html --title "Pets, two models" --images 0,3,5
"""


def command(
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
    numbers = None if images is None else _numbers(images)
    file = folder / "report.html" if out is None else out
    with busy("Drawing"):
        from mhex.judge.report import evaluations
        from mhex.recommend.answer import PAGE, is_recommendation

        page = folder_page(folder, title, numbers)
        remarks = [f"{entry.name}: {remark}" for entry in evaluations(folder) for remark in entry.report.remarks]
        with writing(file):
            file.parent.mkdir(parents=True, exist_ok=True)
        write_text(page, file)
    for remark in remarks:
        complain(remark)
    say(f"Page: {file}")
    if is_recommendation(folder):
        say(f"Which method to use is said in {folder / PAGE}.")


def folder_page(folder: Path, title: str = "", images: list[int] | None = None) -> str:
    """The page of a folder; it says first which models of a suite are missing, and where a recommendation is."""
    from mhex.judge.page import page_of
    from mhex.lab.suites.stored import RECORD, missing_models, read_record
    from mhex.recommend.answer import PAGE, is_recommendation

    remarks = missing_models(read_record(folder)) if (folder / RECORD).is_file() else []
    if is_recommendation(folder):
        remarks.append(f"These are the rows of a recommendation: {PAGE}, beside this page, says which method to use.")
    return page_of(folder, title, images, remarks)


def _numbers(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    right = bool(parts) and all(part.isdecimal() for part in parts)
    check_that(right, "numbers of images with commas between after --images", repr(text))
    return [int(part) for part in parts]
