"""Movie Reviews of the ERASER benchmark: sentiment, and the words that people gave as reasons."""

from __future__ import annotations

from collections.abc import Sequence

from mhex.data.folder import data_file
from mhex.data.sets import TextSet, checked_labels
from mhex.data.table import DataFormatError, pick_rows, read_columns

MOVIES_FILE = "movies.parquet"
MOVIES_CLASSES = ("negative", "positive")


def load_movies(split: str = "train", *, limit: int | None = None) -> TextSet:
    """Load one split of the Movie Reviews from `movies.parquet` in the data folder.

    Rationales are complete in the split test alone: elsewhere people marked some of the reasons.

    Args:
        split: ``"train"``, ``"val"``, ``"test"`` or ``"all"``.
        limit: At most so many reviews, evenly spaced over the split.

    Returns:
        The reviews, words with single spaces between, with labels and rationales.

    Raises:
        DataMissingError: The file is missing; the message says what to place where.
        DataFormatError: The file does not hold what it should.
        ArgumentError: The split is unknown or the limit is not positive.
    """
    columns = ["text", "label", "evidence", "split"]
    table = read_columns(
        data_file(MOVIES_FILE, f"Movie Reviews of ERASER with the columns {', '.join(columns)}"), columns
    )
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
    spans = sorted((int(first), int(end)) for first, end in evidence or ())
    if any(not 0 <= first <= end <= words for first, end in spans):
        raise DataFormatError(
            f"Spans of words in {MOVIES_FILE} should lie in the {words} words of their review, and {spans} came: the "
            "file is damaged or of another kind."
        )
    return tuple(span for span in spans if span[0] < span[1])  # the published file has a few empty ones
