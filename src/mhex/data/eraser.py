"""The layout of the ERASER benchmark: a folder of documents, and per split a file of annotations."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from mhex._json import read_json
from mhex.data.folder import DataMissingError
from mhex.data.table import DataFormatError

SPLITS = ("train", "val", "test")


class Annotated(NamedTuple):
    """A document, the class that people gave it, and the spans of words that they marked."""

    text: str
    classification: str
    evidence: list[tuple[int, int]]


def read_eraser(folder: Path, split: str) -> list[Annotated]:
    """Read one split of a data set of ERASER whose samples are single documents.

    Args:
        folder: With ``docs/`` and ``train.jsonl``, ``val.jsonl``, ``test.jsonl``.
        split: ``"train"``, ``"val"`` or ``"test"``.

    Returns:
        The documents, words with single spaces between.

    Raises:
        DataMissingError: A file is missing; the message says what to place where.
        DataFormatError: A file does not hold what it should.
    """
    path = folder / f"{split}.jsonl"
    if not path.is_file():
        raise DataMissingError(
            f"{path.name} is not in {str(folder)!r}: place the folder of ERASER there as published, with docs, "
            "train.jsonl, val.jsonl and test.jsonl."
        )
    return [_document(folder, line, path.name) for line in _read(path).splitlines() if line.strip()]


def _document(folder: Path, line: str, file: str) -> Annotated:
    try:
        row = read_json(line)
        name, given = row["annotation_id"], row["classification"]
        spans = [one for group in row["evidences"] for one in group]
        evidence = [(int(one["start_token"]), int(one["end_token"])) for one in spans]
        elsewhere = {one.get("docid") or name for one in spans} - {name}
        if Path(name).name != name or not isinstance(given, str):
            raise TypeError("annotation_id should be the name of a file, and classification a text")
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise DataFormatError(
            f"A line of {file} should have annotation_id, classification and evidences with start_token and end_token, "
            f"and {line[:60]!r} has not ({error!r}): place the published file."
        ) from error
    if elsewhere:
        raise DataFormatError(
            f"Evidence of {name} in {file} should lie in the document itself, and {sorted(elsewhere)} came: data sets "
            "of several documents are not read here."
        )
    return Annotated(_text(folder / "docs" / name), given, evidence)


def _text(path: Path) -> str:
    if not path.is_file():
        raise DataMissingError(f"{path.name} is annotated and not in {str(path.parent)!r}: place it there.")
    return " ".join(_read(path).split())


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise DataFormatError(f"{path.name} is not a text in UTF-8 ({error}): place the published file.") from error


def one_of(value: Any, known: dict[str, int], file: str) -> int:
    """The place of a class in a data set's own words."""
    if value not in known:
        raise DataFormatError(f"Classes in {file} should be {sorted(known)}, and {value!r} came: place the right file.")
    return known[value]
