"""AG News: short news items of four topics."""

from __future__ import annotations

from mhex.data.folder import data_file
from mhex.data.sets import TextSet, checked_labels
from mhex.data.table import pick_rows, read_columns

AG_NEWS_FILE = "ag_news.parquet"
AG_NEWS_FULL_FILE = "ag_news_full.parquet"
AG_NEWS_CLASSES = ("World", "Sports", "Business", "Sci/Tech")


def load_ag_news(split: str = "train", *, limit: int | None = None, file: str = AG_NEWS_FILE) -> TextSet:
    """Load one split of AG News from a parquet file in the data folder.

    Args:
        split: ``"train"``, ``"val"``, ``"test"`` or ``"all"``.
        limit: At most so many items, evenly spaced over the split.
        file: ``"ag_news.parquet"``, or ``"ag_news_full.parquet"`` for all 127,600 items (splits train and test).

    Returns:
        The items, title and text with a space between, with their topics.

    Raises:
        DataMissingError: The file is missing; the message says what to place where.
        DataFormatError: The file does not hold what it should.
        ArgumentError: The split is unknown or the limit is not positive.
    """
    kind = "all of AG News, labels counted from 0," if file == AG_NEWS_FULL_FILE else "AG News"
    table = read_columns(
        data_file(file, f"{kind} with the columns label, title, text and split"), ["label", "title", "text", "split"]
    )
    rows = pick_rows(table["split"], split, limit)
    return TextSet(
        texts=tuple(f"{table['title'][row]} {table['text'][row]}".strip() for row in rows),
        labels=checked_labels([table["label"][row] for row in rows], AG_NEWS_CLASSES, "AG News"),
        classes=AG_NEWS_CLASSES,
        split=split,
    )
