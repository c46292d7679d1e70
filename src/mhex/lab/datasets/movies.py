"""Movie Reviews of the ERASER benchmark: sentiment, and the words that people gave as reasons."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mhex._files import read_json
from mhex.lab.datasets.sets import DataMissingError, TextSet, checked_labels, data_file, data_folder
from mhex.lab.datasets.tables import DataFormatError, pick_rows, read_columns

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


MOVIES_FILE = "movies.parquet"
MOVIES_FOLDER = "movies"
MOVIES_CLASSES = ("negative", "positive")
_PLACES = {"NEG": 0, "POS": 1}


def load_movies(split: str = "train", *, limit: int | None = None) -> TextSet:
    """Load one split of the Movie Reviews, in whichever layout they lie in the data folder.

    In this order: ``movies.parquet``; the folder ``movies`` as published, with ``docs/`` and ``train.jsonl``.
    Rationales are complete in the split test alone: elsewhere people marked some of the reasons.

    Args:
        split: ``"train"``, ``"val"``, ``"test"`` or ``"all"``.
        limit: At most so many reviews, evenly spaced over the split.

    Returns:
        The reviews, words with single spaces between, with labels and rationales.

    Raises:
        DataMissingError: No layout is there; the message says what to place where.
        DataFormatError: A file does not hold what it should.
        ArgumentError: The split is unknown or the limit is not positive.
    """
    columns = ["text", "label", "evidence", "split"]
    folder = data_folder() / MOVIES_FOLDER
    if folder.is_dir() and not (data_folder() / MOVIES_FILE).is_file():
        pick_rows(SPLITS, split)
        parts = SPLITS if split == "all" else (split,)
        found = [(one, part) for part in parts for one in read_eraser(folder, part)]
        table: dict[str, list[Any]] = {
            "text": [one.text for one, _ in found],
            "label": [one_of(one.classification, _PLACES, f"{part}.jsonl") for one, part in found],
            "evidence": [one.evidence for one, _ in found],
            "split": [part for _, part in found],
        }
    else:
        what = f"Movie Reviews of ERASER with the columns {', '.join(columns)}, or the published folder {MOVIES_FOLDER}"
        table = read_columns(data_file(MOVIES_FILE, what), columns)
    return _set(table, split, limit)


def _set(table: dict[str, list[Any]], split: str, limit: int | None) -> TextSet:
    rows = pick_rows(table["split"], split, limit)
    texts = [" ".join(table["text"][row].split()) for row in rows]
    spans = [_spans(table["evidence"][row], len(text.split(" "))) for row, text in zip(rows, texts, strict=True)]
    return TextSet(
        texts=tuple(texts),
        labels=checked_labels([table["label"][row] for row in rows], MOVIES_CLASSES, "Movie Reviews"),
        classes=MOVIES_CLASSES,
        split=split,
        rationales=tuple(spans),
    )


def _spans(evidence: Sequence[Sequence[int]] | None, words: int) -> tuple[tuple[int, int], ...]:
    try:
        spans = sorted((int(first), int(end)) for first, end in evidence or ())
    except (TypeError, ValueError) as error:
        raise DataFormatError(
            f"Spans of Movie Reviews should be pairs of numbers, and others came ({error})."
        ) from error
    if any(not 0 <= first <= end <= words for first, end in spans):
        raise DataFormatError(
            f"Spans of words in Movie Reviews should lie in the {words} words of their review, and {spans} came: the "
            "file is damaged or of another kind."
        )
    return tuple(span for span in spans if span[0] < span[1])  # the published file has a few empty ones
