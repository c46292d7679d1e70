"""Movie Reviews of the ERASER benchmark: sentiment, and the words that people gave as reasons."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mhex._files import read_json
from mhex.lab.datasets import files
from mhex.lab.datasets.archives import Archive
from mhex.lab.datasets.catalogue import register_data
from mhex.lab.datasets.sets import TextSet
from mhex.lab.datasets.source import Originals, Source, write_rows

MOVIES_FILE, MOVIES_FOLDER = "movies.parquet", "movies"
MOVIES_CLASSES = ("negative", "positive")
SPLITS = ("train", "val", "test")
_LABELS = {"NEG": 0, "POS": 1}
_WRONG_LINE = (ValueError, KeyError, TypeError, AttributeError, OverflowError, OSError)


def _make(originals: Originals, target: Path) -> str:
    """All reviews, in the order of splits and names."""
    folder, rows = originals.folder("docs", *(f"{part}.jsonl" for part in SPLITS)), list[dict[str, Any]]()
    for part in sorted(SPLITS):
        names = [read_json(line)["annotation_id"] for line in _lines(folder / f"{part}.jsonl")]
        for name, (text, label, evidence) in sorted(zip(names, read_eraser(folder, part), strict=True)):
            rows.append({"id": name, "text": text, "label": label, "evidence": evidence, "split": part})
    write_rows(target, rows, dict)
    return ""


@register_data(
    "movies",
    title="Movie Reviews (ERASER)",
    licence="none named",
    citation="O. Zaidan, J. Eisner: Modeling Annotators. Empirical Methods in Natural Language Processing, 2008; J. "
    "DeYoung et al.: ERASER. Association for Computational Linguistics, 2020.",
    form="1,999 reviews with the words that people marked as reasons",
    files="`movies/`: `docs`, `train.jsonl`, `val.jsonl`, `test.jsonl`; or `movies.parquet`: text, label, evidence, "
    "split",
    source=Source(
        "https://www.eraserbenchmark.com", MOVIES_FILE, (Archive("movies.tar.gz"),), _make, others=(MOVIES_FOLDER,)
    ),
    kind="text",
    answers="sentiment",
    judged="rationales",
)
def load_movies(split: str = "train", *, limit: int | None = None) -> TextSet:
    """Load the Movie Reviews, splits train, val and test, in whichever layout they lie in the data folder.

    In this order: ``movies.parquet``; the folder ``movies`` as published, with ``docs/``, ``train.jsonl``. Words have
    single spaces between. Rationales are complete in the split test alone: elsewhere people marked some of the reasons.
    """
    folder = files.data_folder() / MOVIES_FOLDER
    if folder.is_dir() and not (files.data_folder() / MOVIES_FILE).is_file():
        parts = {part: read_eraser(folder, part) for part in files.split_parts(SPLITS, split)}
        reviews = [review for part in parts.values() for review in part]
        rows = files.pick_rows([part for part in parts for _ in parts[part]], split, limit)
        columns: list[list[Any]] = [[reviews[row][column] for row in rows] for column in range(3)]
    else:
        title = f"Movie Reviews of ERASER, or the published folder {MOVIES_FOLDER},"
        table, _ = files.read_split(MOVIES_FILE, title, ["text", "label", "evidence"], split, limit)
        columns = [table[name] for name in ("text", "label", "evidence")]
    texts, labels, evidence = columns
    words = [text.split() for text in texts]
    return TextSet(
        texts=tuple(" ".join(text) for text in words),
        labels=files.checked_labels(labels, MOVIES_CLASSES, "Movie Reviews"),
        classes=MOVIES_CLASSES,
        split=split,
        rationales=tuple(_spans(spans, max(1, len(text))) for spans, text in zip(evidence, words, strict=True)),
    )


def read_eraser(folder: Path, split: str) -> list[tuple[str, int, list[tuple[int, int]]]]:
    """The text, the label and the marked spans of each document of one split of the published folder."""
    path = folder / f"{split}.jsonl"
    if not path.is_file():
        raise files.DataMissingError(
            f"{path.name} is not in {str(folder)!r}: place the folder of ERASER there as published, with docs, "
            "train.jsonl, val.jsonl and test.jsonl."
        )
    return [_document(folder, line, path.name) for line in _lines(path)]


def _lines(path: Path) -> list[str]:
    return [line for line in _read(path).splitlines() if line.strip()]


def _document(folder: Path, line: str, file: str) -> tuple[str, int, list[tuple[int, int]]]:
    """The text, the label and the marked spans of one line."""
    problem = (
        f"A line of {file} should have annotation_id, classification and evidences with start_token and end_token, and "
        f"{line[:60]!r} has not"
    )
    with files.refuse_damage(problem, files.PUBLISHED, *_WRONG_LINE):
        row = read_json(line)
        name, label = row["annotation_id"], row["classification"]
        spans = [span for group in row["evidences"] for span in group]
        evidence = [(int(span["start_token"]), int(span["end_token"])) for span in spans]
        elsewhere = {span.get("docid") or name for span in spans} - {name}
        if Path(name).name != name or not isinstance(label, str):
            raise TypeError("annotation_id should be the name of a file, and classification a text")
        path = folder / "docs" / name
        present = path.is_file()  # the system refuses names that are too long
    if elsewhere:
        raise files.DataFormatError(
            f"Evidence of {name} in {file} should lie in the document itself, and {sorted(elsewhere)} came: data sets "
            "of several documents are not read here."
        )
    if not present:
        raise files.DataMissingError(f"{name} is annotated and not in {str(path.parent)!r}: place it there.")
    if label not in _LABELS:
        words = f"Classes in {file} should be {sorted(_LABELS)}, and {label!r} came"
        raise files.wrong_file(words, "place the right file")
    return _read(path), _LABELS[label], evidence


def _read(path: Path) -> str:
    with files.refuse_damage(f"{path.name} is not a text in UTF-8", files.PUBLISHED, UnicodeDecodeError):
        return path.read_text(encoding="utf-8")


def _spans(evidence: Sequence[Any] | None, words: int) -> tuple[tuple[int, int], ...]:
    """Marked spans in rising order, checked against the number of words."""
    problem = "Spans of Movie Reviews should be pairs of numbers, and others came"
    with files.refuse_damage(problem, "", TypeError, ValueError):
        spans = sorted((int(first), int(end)) for first, end in evidence or ())
    if any(not 0 <= first <= end <= words for first, end in spans):
        problem = f"Spans of words in Movie Reviews should lie in the {words} words of their review"
        raise files.wrong_file(f"{problem}, and {spans} came", "the file is damaged or of another kind")
    return tuple(span for span in spans if span[0] < span[1])  # the published file has a few empty ones
