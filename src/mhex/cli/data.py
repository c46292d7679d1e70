"""`mhex data`: which data sets there are, and how to get them."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from mhex.cli._console import busy, complain, output_folder, say, show_table, steps

EXAMPLES = """
mhex data list
mhex data get pets
mhex data get blood --from PBC_dataset_normal_DIB.zip
mhex data get camvid --from 701_StillsRaw_full.zip --from LabeledApproved_full.zip --out ~/mhex-data
"""

data_app = typer.Typer(rich_markup_mode="rich", no_args_is_help=True, help="List data sets, and get them.")


@data_app.command("list")
def listing(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with pages and what differs.")] = False,
) -> None:
    """List the data sets: licence, whether they are in the data folder, and how to get them.

    The environment variable MHEX_DATA names the data folder.
    """
    with busy("Reading the data sets"):
        from mhex.lab.datasets import CATALOGUE, DataMissingError, data_entry, data_folder

        try:
            folder: Path | None = data_folder()
        except DataMissingError as error:
            folder = None
            complain(str(error))
        rows = [_row(name, data_entry(name), folder) for name in [*CATALOGUE, "cora"]]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    cells = [[row["name"], row["title"], row["here"] or "no", row["licence"], row["get"], row["files"]] for row in rows]
    headings = ("name", "title", "here", "licence", "how to get it", "files")
    show_table(f"{len(rows)} data sets", headings, cells, prose=("title", "licence", "how to get it", "files"))


def _row(name: str, entry: Any, folder: Path | None) -> dict[str, str | None]:
    """What is said of a data set; `here` is its place in the folder."""
    source, place, how = entry.source, None, "made by its loader"
    if source is not None:
        path = folder and source.place(folder)
        place = path and str(path.relative_to(folder))
        how = f"mhex data get {name}"
        if source.make is None:
            how = f"place it yourself, from {source.page}"
        elif not source.fetchable:
            how += f"{''.join(f' --from {archive.name}' for archive in source.archives)}, from {source.page}"
    return {
        **{"name": name, "title": entry.title, "here": place, "licence": entry.licence, "get": how},
        "files": entry.files.replace("`", ""),
        "page": source and source.page,
        "differs": source and source.differs,
    }


@data_app.command(epilog="Examples:\n\n" + EXAMPLES.strip().replace("\n", "\n\n"))
def get(
    name: Annotated[str, typer.Argument(help="A data set of `mhex data list`, or NAME_64 of a MedMNIST collection.")],
    archives: Annotated[
        list[Path] | None,
        typer.Option("--from", metavar="PATH", help="An archive as published, or a folder of its content. Repeatable."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="The data folder. [default: MHEX_DATA]", show_default=False)
    ] = None,
) -> None:
    """Make the file of a data set, with the project's own splits, from published archives.

    They are fetched where their authors publish checksums; others are downloaded by you and given by --from.
    """
    with busy("Loading the data sets"):
        from mhex.lab.datasets import data_entry, data_folder
        from mhex.lab.datasets.source import get_data
    entry = data_entry(name)
    folder = data_folder() if out is None else output_folder(out.expanduser())
    with steps(1) as step:
        step(f"Getting {entry.title}")
        paths = [path.expanduser() for path in archives or ()]
        path, remark = get_data(entry, paths, folder)
    for words in filter(None, (remark, entry.source and entry.source.differs)):
        complain(f"{name}: {words}.")
    say(f"{name}: {entry.title} ({entry.licence}), in {path}")
