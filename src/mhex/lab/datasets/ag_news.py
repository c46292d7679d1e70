"""AG News: short news items of four topics."""

from __future__ import annotations

import csv
from pathlib import Path

from mhex.lab.datasets.sets import DataMissingError, TextSet, checked_labels, data_file, data_folder
from mhex.lab.datasets.tables import DataFormatError, pick_rows, read_columns

AG_NEWS_FILE = "ag_news.parquet"
AG_NEWS_FULL_FILE = "ag_news_full.parquet"
AG_NEWS_FOLDER = "ag_news"
AG_NEWS_CLASSES = ("World", "Sports", "Business", "Sci/Tech")
SPLITS = ("train", "test")


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
    texts = [f"{table['title'][row]} {table['text'][row]}".strip() for row in rows]
    return _set(texts, [table["label"][row] for row in rows], split)


def load_ag_news_full(split: str = "train", *, limit: int | None = None) -> TextSet:
    """Load one split of all of AG News, in whichever layout it lies in the data folder.

    In this order: ``ag_news_full.parquet``; ``ag_news/train.csv`` and ``test.csv`` as published, with topics counted
    from 1; ``ag_news/data/train-00000-of-00001.parquet`` and ``test-...`` as on the Hugging Face hub.

    Args:
        split: ``"train"``, ``"test"`` or ``"all"``.
        limit: At most so many items, evenly spaced over the split.

    Returns:
        The items, title and text with a space between, with their topics.

    Raises:
        DataMissingError: No layout is there; the message says what to place where.
        DataFormatError: A file does not hold what it should.
        ArgumentError: The split is unknown or the limit is not positive.
    """
    root = data_folder()
    if (root / AG_NEWS_FULL_FILE).is_file():
        return load_ag_news(split, limit=limit, file=AG_NEWS_FULL_FILE)
    pick_rows(SPLITS, split)
    folder = root / AG_NEWS_FOLDER
    texts: list[str] = []
    labels: list[int] = []
    for part in SPLITS if split == "all" else (split,):
        shards = sorted((*folder.glob(f"{part}-*.parquet"), *folder.glob(f"data/{part}-*.parquet")))
        if (folder / f"{part}.csv").is_file():
            rows = _published(folder / f"{part}.csv")
        elif shards:
            rows = [one for path in shards for one in _from_hub(path)]
        else:
            raise DataMissingError(
                f"All of AG News is not in the data folder {str(root)!r}: place {AG_NEWS_FULL_FILE} there (columns "
                f"label, title, text and split), or {AG_NEWS_FOLDER}/{part}.csv as published, or "
                f"{AG_NEWS_FOLDER}/data/{part}-00000-of-00001.parquet of the Hugging Face hub."
            )
        texts += [text for text, _ in rows]
        labels += [label for _, label in rows]
    chosen = pick_rows([split] * len(texts), split, limit)
    return _set([texts[row] for row in chosen], [labels[row] for row in chosen], split)


def _set(texts: list[str], labels: list[int], split: str) -> TextSet:
    return TextSet(
        texts=tuple(texts),
        labels=checked_labels(labels, AG_NEWS_CLASSES, "AG News"),
        classes=AG_NEWS_CLASSES,
        split=split,
    )


def _published(path: Path) -> list[tuple[str, int]]:
    """Items of a published table without a heading: topic 1..4, title, text."""
    try:
        with path.open(encoding="utf-8", newline="") as stream:
            lines = [line for line in csv.reader(stream) if line]
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataFormatError(f"{path.name} is not a CSV file in UTF-8 ({error}): place the published file.") from error
    wrong = next((line for line in lines if len(line) != 3 or line[0] not in ("1", "2", "3", "4")), None)
    if wrong is not None or not lines:
        raise DataFormatError(
            f"Lines of {path.name} should be a topic 1..4, a title and a text, and {wrong} came: place the published "
            "file, which has no heading."
        )
    return [(f"{title} {text}".strip(), int(topic) - 1) for topic, title, text in lines]


def _from_hub(path: Path) -> list[tuple[str, int]]:
    table = read_columns(path, ["text", "label"])
    return [(text.strip(), label) for text, label in zip(table["text"], table["label"], strict=True)]
