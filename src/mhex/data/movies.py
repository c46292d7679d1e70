"""Movie Reviews of the ERASER benchmark: sentiment, and the words that people gave as reasons."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mhex.data.eraser import SPLITS, one_of, read_eraser
from mhex.data.folder import data_file, data_folder
from mhex.data.sets import TextSet, checked_labels
from mhex.data.table import DataFormatError, pick_rows, read_columns

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
