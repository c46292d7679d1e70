"""Where results go: the output folder and names for files that do not overwrite each other."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path

from mhex import _files


def output_folder(folder: Path) -> Path:
    """Make sure that a folder exists and can be written to, before any work is spent.

    Raises:
        ArgumentError: It cannot be made or written to.
    """
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    return folder


def writing(path: Path) -> AbstractContextManager[None]:
    """Turn the system's refusal to write into one sentence."""
    return _files.writing(path, "choose another folder with --out")


def unique_labels(stems: Iterable[str]) -> list[str]:
    """A label for each stem, all different: the second `cat` becomes `cat-2`. Case does not tell labels apart."""
    stems = list(stems)
    taken: set[str] = set()
    # A stem that is its own label must not lose it to a numbered one that comes first.
    reserved = {stem.casefold() for stem in stems}
    labels = []
    for stem in stems:
        label, number = stem, 1
        while label.casefold() in taken or (number > 1 and label.casefold() in reserved):
            number += 1
            label = f"{stem}-{number}"
        taken.add(label.casefold())
        labels.append(label)
    return labels
