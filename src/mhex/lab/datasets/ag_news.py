"""AG News: short news items of four topics. torchvision has no data sets of texts."""

import hashlib
from pathlib import Path
from typing import Any

from mhex.lab.datasets import files
from mhex.lab.datasets.archives import Archive
from mhex.lab.datasets.catalogue import register_data
from mhex.lab.datasets.sets import TextSet
from mhex.lab.datasets.source import Originals, Source, copy, write_rows

AG_NEWS_FILE, AG_NEWS_FULL_FILE, AG_NEWS_FOLDER = "ag_news.parquet", "ag_news_full.parquet", "ag_news"
AG_NEWS_CLASSES = ("World", "Sports", "Business", "Sci/Tech")
SPLITS = ("train", "test")
FACTS: dict[str, Any] = {
    "title": "AG News",
    "licence": "none named; non-commercial use",
    "citation": "X. Zhang, J. Zhao, Y. LeCun: Character-level Convolutional Networks for Text Classification. Advances "
    "in Neural Information Processing Systems, 2015.",
    "kind": "text",
    "answers": "topic",
}
PAGE = "https://github.com/mhjabreel/CharCnn_Keras/tree/master/data/ag_news_csv"
_URL = "https://raw.githubusercontent.com/mhjabreel/CharCnn_Keras/master/data/ag_news_csv"
TRAIN = Archive("train.csv", f"{_URL}/train.csv", "b1a00f826fdfbd249f79597b59e1dc12")
TEST = Archive("test.csv", f"{_URL}/test.csv", "d52ea96a97a2d943681189a97654912d")


def _make(originals: Originals, target: Path) -> str:
    """The items of the official test file that the list has, which are known by checksums of title and text."""
    lines = _lines(originals.folder("test.csv") / "test.csv")
    items = {
        _checksum(title, text): {"label": int(topic) - 1, "title": title, "text": text} for topic, title, text in lines
    }
    write_rows(target, originals.by_list("ag_news", items), lambda row: {**row[2], "split": row[1]})
    return ""


def _checksum(title: str, text: str) -> str:
    return hashlib.sha256(f"{title} {text}".encode()).hexdigest()[:8]


@register_data(
    "ag_news",
    **FACTS,
    form="7,043 items drawn from the official test file",
    files="`ag_news.parquet`: label, title, text, split",
    source=Source(PAGE, AG_NEWS_FILE, (TEST,), _make),
)
def load_ag_news(split: str = "train", *, limit: int | None = None, file: str = AG_NEWS_FILE) -> TextSet:
    """Load AG News, splits train, val and test; or ``"ag_news_full.parquet"``, splits train and test."""
    title = "all of AG News, labels counted from 0," if file == AG_NEWS_FULL_FILE else "AG News"
    table, _ = files.read_split(file, title, ["label", "title", "text"], split, limit)
    texts = [f"{heading} {text}".strip() for heading, text in zip(table["title"], table["text"], strict=True)]
    return _text_set(texts, table["label"], split)


@register_data(
    "ag_news_full",
    **FACTS,
    form="as published: 120,000 items to learn from, 7,600 to judge by",
    files="`ag_news/train.csv` and `test.csv` as published; or `ag_news/data/*.parquet` of the Hugging Face hub; or "
    "`ag_news_full.parquet`: label, title, text, split",
    source=Source(PAGE, AG_NEWS_FOLDER, (TRAIN, TEST), copy("train.csv", "test.csv"), others=(AG_NEWS_FULL_FILE,)),
    validation=None,
)
def load_ag_news_full(split: str = "train", *, limit: int | None = None) -> TextSet:
    """Load all of AG News, splits train and test, in whichever layout it lies in the data folder.

    In this order: ``ag_news_full.parquet``; ``ag_news/train.csv`` and ``test.csv`` as published, with topics counted
    from 1; ``ag_news/data/train-00000-of-00001.parquet`` and ``test-...`` as on the Hugging Face hub.
    """
    root = files.data_folder()
    if (root / AG_NEWS_FULL_FILE).is_file():
        return load_ag_news(split, limit=limit, file=AG_NEWS_FULL_FILE)
    folder = root / AG_NEWS_FOLDER
    items: list[tuple[str, int]] = []
    for part in files.split_parts(SPLITS, split):
        shards = sorted((*folder.glob(f"{part}-*.parquet"), *folder.glob(f"data/{part}-*.parquet")))
        if (folder / f"{part}.csv").is_file():
            items += _published(folder / f"{part}.csv")
        elif shards:
            for table in (files.read_columns(path, ["text", "label"]) for path in shards):
                items += zip(map(str.strip, table["text"]), table["label"], strict=True)
        else:
            raise files.DataMissingError(
                f"All of AG News is not in the data folder {str(root)!r}: place {AG_NEWS_FULL_FILE} there (columns "
                f"label, title, text and split), or {AG_NEWS_FOLDER}/{part}.csv as published, or "
                f"{AG_NEWS_FOLDER}/data/{part}-00000-of-00001.parquet of the Hugging Face hub."
            )
    items = files.evenly_spaced(items, limit)
    return _text_set([text for text, _ in items], [label for _, label in items], split)


def _text_set(texts: list[str], labels: list[int], split: str) -> TextSet:
    numbers = files.checked_labels(labels, AG_NEWS_CLASSES, "AG News")
    return TextSet(texts=tuple(texts), labels=numbers, classes=AG_NEWS_CLASSES, split=split)


def _published(path: Path) -> list[tuple[str, int]]:
    """Texts and labels of a published table."""
    return [(f"{title} {text}".strip(), int(topic) - 1) for topic, title, text in _lines(path)]


def _lines(path: Path) -> list[list[str]]:
    """Lines of a published table without a heading: topic 1..4, title, text."""
    lines = files.csv_lines(path, files.PUBLISHED)
    wrong = next((line for line in lines if len(line) != 3 or line[0] not in ("1", "2", "3", "4")), None)
    if wrong is not None or not lines:
        words = f"Lines of {path.name} should be a topic 1..4, a title and a text, and {wrong} came"
        raise files.wrong_file(words, f"{files.PUBLISHED}, which has no heading")
    return lines
