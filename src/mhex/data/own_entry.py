"""Data of one's own, as an entry that recipes and suites can name."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from mhex.data.entry import DataEntry
from mhex.data.folder import data_folder
from mhex.data.own_csv import is_text, load_csv
from mhex.data.own_folder import load_folder


def own_entry(kind: str, path: str) -> DataEntry:
    """The entry of a folder of photos or of a table, with splits train and test.

    Args:
        kind: ``"folder"`` or ``"csv"``.
        path: In the data folder unless it is absolute.

    Raises:
        DataMissingError: The table is not there.
    """
    where = Path(path).expanduser()
    where = where if where.is_absolute() else data_folder() / where
    return DataEntry(
        partial(load_folder if kind == "folder" else load_csv, where),
        f"own data in {where.name}",
        "none named",
        "none",
        "as it was given",
        f"`{where.name}`",
        kind="text" if kind == "csv" and is_text(where) else "image",
        validation=None,
    )
