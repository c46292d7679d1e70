"""The folder of an evaluation: rows, curves, photos and maps in Parquet files.

Every file is written whole or not at all, so that a run that was broken off loses nothing and can go on.
"""

import io
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from PIL import Image

from mhex._files import read_json, replacing, write_text, writing
from mhex._settings import check_that
from mhex.errors import ArgumentError, MhexError
from mhex.explanation import Explanation
from mhex.inputs.photos import BROKEN
from mhex.inputs.samples import losses_in_words
from mhex.judge.controls import is_control
from mhex.judge.plan import MethodRun, label
from mhex.methods import get_method
from mhex.metrics.case import Case
from mhex.targets import probabilities

Key = tuple[Any, ...]
Row = Mapping[str, Any]
SampleKey = tuple[int, str]  # number and digest
Call = Mapping[str, Any]  # what is written down of a call of `mhex.evaluate`


@dataclass(frozen=True)
class Kind:
    """What the files of a folder hold."""

    name: str  # files are called `NAME-000000.parquet` and so on
    columns: pa.Schema
    key: tuple[str, ...]  # columns that no two rows have in common, but for the several numbers of one metric
    noun: str  # what sentences call the contents


_FLOATS = pa.list_(pa.float32())
_SAMPLE: Mapping[str, Any] = {"run": pa.string(), "image": pa.int64(), "input": pa.string()}
_METHOD = {**_SAMPLE, **dict.fromkeys(("method", "options"), pa.string())}
_METRIC = dict.fromkeys(("metric", "settings", "protocol", "column"), pa.string())
# One row per image, method, metric and number of it; `run` says of which model, target, task and seed.
ROWS = Kind(
    "part",
    pa.schema({**_METHOD, **_METRIC, **dict.fromkeys(("value", "seconds", "explain_seconds"), pa.float64())}),
    ("image", "input", "method", "options", "metric", "protocol"),
    "rows",
)
# One row per image, method, metric and order in which units go, with T + 1 points of its curve.
CURVES = Kind(
    "curves",
    pa.schema({**_METHOD, **dict.fromkeys(("metric", "protocol", "order"), pa.string()), "points": _FLOATS}),
    (*ROWS.key, "order"),
    "curves",
)
PHOTOS = Kind("photos", pa.schema({**_SAMPLE, "jpeg": pa.binary()}), ("image", "input"), "pictures")
# `tokens` is what is said beside scores, in JSON: the predicted class, and of texts the tokens, the words that they
# belong to, and how many there were before the text was cut. Older files have nothing there for images.
_MAP = {"target": pa.string(), "probability": pa.float64(), "signed": pa.bool_(), "height": pa.int64()}
_MAP |= {"width": pa.int64(), "tokens": pa.string(), "scores": _FLOATS}
MAPS = Kind("maps", pa.schema({**_METHOD, **_MAP}), ("image", "input", "method", "options"), "maps")
_JSON = ("run", "options", "settings")  # columns whose texts are mappings
_SIDE = 256  # the longer one of a photo in the folder


def as_table(rows: Iterable[Row], kind: Kind = ROWS) -> Any:
    """Rows as an arrow table."""
    return pa.Table.from_pylist([dict(row) for row in rows], schema=kind.columns)


def records(table: Any, *names: str) -> Iterator[tuple[Any, ...]]:
    """Values of some columns of an arrow table, row by row."""
    return zip(*(table.column(name).to_pylist() for name in names), strict=True)


def labels_of(table: Any) -> list[str]:
    """What the method of each row of an arrow table is called in tables."""
    return [label(name, options) for name, options in records(table, "method", "options")]


def write(table: Any, path: Path) -> None:
    """Write a Parquet file whole or not at all."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as aside:
        pq.write_table(table, aside)


def numbered(folder: Path, kind: Kind = ROWS) -> list[tuple[int, Path]]:
    """Files of a run and their numbers, in their order."""
    names = ((re.fullmatch(rf"{kind.name}-(\d+)\.parquet", path.name), path) for path in folder.iterdir())
    return sorted((int(name[1]), path) for name, path in names if name)


def read(path: Path, kind: Kind = ROWS) -> Any:
    """Rows of a Parquet file, or of all of them in a folder, as an arrow table."""
    if not path.exists():
        raise ArgumentError(f"Expected a Parquet file or a folder of them, but there is no {path.name!r}.")
    files = [file for _, file in numbered(path, kind)] if path.is_dir() else [path]
    tables = [_checked(_parquet(file, path.is_dir(), kind), file, kind) for file in files]
    return pa.concat_tables(tables) if tables else as_table([], kind)


def _parquet(file: Path, in_folder: bool, kind: Kind) -> Any:
    with file.open("rb") as stream:
        try:
            return pq.ParquetFile(stream).read()
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # the file may be whole, but cannot be read
            damage = f"Expected {kind.noun} in {str(file)!r}, but the file is damaged ({str(error).strip()})"
            advice = "delete it, and the same call makes it again" if in_folder else "write the report once more"
            raise ArgumentError(f"{damage}; {advice}.") from error


def _checked(table: Any, file: Path, kind: Kind) -> Any:
    """A table as it should be: its columns, their types, no empty places but values, and JSON where it belongs."""
    if table.column_names != kind.columns.names:
        listed = ", ".join(kind.columns.names)
        raise ArgumentError(f"Expected the columns {listed} in {file.name!r}: it is no report of mhex.")
    try:
        table = table.cast(kind.columns).replace_schema_metadata(table.schema.metadata)
        table.validate(full=True)
        for name in kind.columns.names:
            column = table.column(name)
            inside = pc.list_flatten(column) if pa.types.is_list(column.type) else column
            if name != "value" and (column.null_count or inside.null_count):
                raise ValueError(f"the column {name} has empty places")
            if name in _JSON and not all(isinstance(read_json(text), dict) for text in column.unique().to_pylist()):
                raise ValueError(f"the column {name} should hold mappings")
    except (pa.ArrowException, ValueError) as error:
        sentence = f"Expected {kind.noun} of mhex in {file.name!r}, but it holds something else"
        raise ArgumentError(f"{sentence}: {str(error).strip().rstrip('.')}.") from error
    return table


class Parts:
    """Rows of a run, part by part, in a folder, or in memory alone if it is None.

    Model, target, task and seed of the run stand in `run`, in JSON; rows of another run are refused.
    """

    def __init__(self, folder: Path | None, run: str, kind: Kind = ROWS) -> None:
        self.folder, self.run, self.kind = folder, run, kind
        self.tables: list[Any] = []
        self.done: set[Key] = set()
        self.asked: set[Key] = set()
        if folder is None:
            return
        folder.mkdir(parents=True, exist_ok=True)
        if not (path := folder / "run.json").exists():
            write_text(run, path)
        before = path.read_text(encoding="utf-8", errors="replace")
        expectation = f"rows of this run in {folder.name!r}, {run}"
        check_that(
            before == run,
            expectation,
            f"those of another model, target, task or seed, {before}",
            "; choose another folder",
        )
        if numbered(folder, kind):
            self.tables.append(read(folder, kind))
            self.done |= set(records(self.tables[0], *kind.key))

    def _key(self, row: Row) -> Key:
        return tuple(row[name] for name in self.kind.key)

    def lacks(self, rows: Iterable[Row]) -> bool:
        """Whether some of these rows, of which only the key is read, are missing; all are noted as asked for."""
        keys = set(map(self._key, rows))
        self.asked |= keys
        return not keys <= self.done

    def add(self, rows: Iterable[Row]) -> None:
        """Add rows of a batch, which are on disk before anything else is done."""
        rows = [{"run": self.run, **row} for row in rows if self._key(row) not in self.done]
        if not rows:
            return
        table = as_table(rows, self.kind)
        if self.folder is not None:
            last = max((number for number, _ in numbered(self.folder, self.kind)), default=-1)
            write(table, self.folder / f"{self.kind.name}-{last + 1:06d}.parquet")
        self.tables.append(table)
        self.done |= set(map(self._key, rows))

    def drop(self, method: MethodRun) -> None:
        """Take out the rows of a method that were asked for, also from the folder; its other rows stay there."""
        place = self.kind.key.index("method")
        dropped = {key for key in self.asked if key[place : place + 2] == (method.name, method.options_json)}

        def others(table: Any) -> Any:
            return table.filter(pa.array([key not in dropped for key in records(table, *self.kind.key)], pa.bool_()))

        for _, file in [] if self.folder is None else numbered(self.folder, self.kind):
            table = read(file, self.kind)
            if (kept := others(table)).num_rows == 0:
                file.unlink()
            elif kept.num_rows < table.num_rows:
                write(kept, file)
        self.tables = [others(table) for table in self.tables]
        self.done -= dropped

    def table(self) -> Any:
        """All rows that were asked for, as an arrow table; other rows of the folder stay there."""
        table = pa.concat_tables(self.tables) if self.tables else as_table([], self.kind)
        return table.filter(pa.array([key in self.asked for key in records(table, *self.kind.key)], pa.bool_()))


def broken_off(calls: Sequence[Call], rows: Any) -> str:
    """A sentence on calls that did not come to their end; empty if all did, or if that was not written down."""
    for call in calls:
        if "done" not in call or call["done"] is not None or any(_covers(later, call) for later in calls):
            continue
        methods, metrics, samples = call.get("methods", []), call.get("metrics", []), call.get("samples")
        cells: dict[Key, set[Key]] = {}  # methods and metrics of each sample
        names = zip(labels_of(rows), rows.column("metric").to_pylist(), strict=True)
        for sample, pair in zip(records(rows, "image", "input"), names, strict=True):
            cells.setdefault(sample, set()).add(pair)
        complete = sum(set(product(methods, metrics)) <= pairs for pairs in cells.values())
        if samples is not None and complete >= samples:
            continue
        total = f"of {samples} samples" if samples is not None else f"of {len(cells)} samples so far"
        return (
            f"Broken off, or still running: {complete} {total} {'is' if complete == 1 else 'are'} judged by all of "
            f"{len(methods)} {'method' if len(methods) == 1 else 'methods and controls'} and {len(metrics)} "
            f"{'metric' if len(metrics) == 1 else 'metrics'}. The same call goes on from there."
        )
    return ""


def _covers(later: Call, call: Call) -> bool:
    """Whether another call came to its end, and did all that this one was to do."""
    if later.get("done") is None or (call.get("samples") or 0) > later["done"]:
        return False
    return all(set(call.get(key, [])) <= set(later.get(key, [])) for key in ("methods", "metrics"))


def remarks(broken: str, lost: Mapping[int, str]) -> list[str]:
    """Sentences that belong above or below every table of a report."""
    count = f"{len(lost)} {'sample' if len(lost) == 1 else 'samples'}"
    losses = f"Not judged: {count} ({losses_in_words(lost)})." if lost else ""
    return [sentence for sentence in (broken, losses) if sentence]


def added(costs: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """The sum of several costs, name by name."""
    entries = [entry for cost in costs for entry in cost.items()]
    return {name: sum(count for key, count in entries if key == name) for name, _ in entries}


class SavedMaps:
    """Photos of the first `count` samples of a run and their maps by every method, for a page; else as `Parts`."""

    def __init__(self, folder: Path | None, run: str, count: int, class_names: Sequence[str] | None) -> None:
        self.count, self.class_names = count, class_names
        self.photos, self.maps = Parts(folder, run, PHOTOS), Parts(folder, run, MAPS)

    def lacks(self, samples: Iterable[SampleKey], method: MethodRun) -> bool:
        """Whether a map of one of these samples is wanted, and not there."""
        names = {"method": method.name, "options": method.options_json}
        rows = [{"image": image, "input": digest, **names} for image, digest in samples if image < self.count]
        return any([self.photos.lacks(rows), self.maps.lacks(rows)])  # both note what is asked for

    def add(self, case: Case, samples: Sequence[SampleKey], method: MethodRun) -> None:
        """Write the maps of a case by a method, and its photos where they are not there yet."""
        subject, real = case.subject, case.subject.batch.real
        shares = probabilities(subject.logits, subject.multi_label).cpu()
        # Negative scores speak against the class as the method says, or as some options make it.
        signed = (not method.control and get_method(method.name).signed) or bool((case.saliency < 0).any())
        photos, maps = [], []
        for n, (image, digest) in enumerate(samples):
            if image >= self.count:
                continue
            sample, number = {"image": image, "input": digest}, int(case.needs("explained", "a class of each map")[n])
            top = int(shares[n].argmax())
            details: dict[str, Any] = {"predicted": [self._name(top), float(shares[n, top])]}
            scores = case.saliency[n].detach().float().cpu()
            if real is not None:
                scores = scores[real[n].cpu()][None]
                details |= _token_details(subject, n)
            if (image, digest) not in self.photos.done:  # once, and not for every method
                photos.append({**sample, "jpeg": b"" if real is not None else _jpeg(subject.prepared.pictures[n])})
            maps.append(
                {
                    **sample,
                    **{"method": method.name, "options": method.options_json, "target": self._name(number)},
                    **{"probability": float(shares[n, number]), "tokens": json.dumps(details), "signed": signed},
                    **{"scores": scores.flatten().tolist(), "height": scores.shape[0], "width": scores.shape[1]},
                }
            )
        self.photos.add(photos)
        self.maps.add(maps)

    def _name(self, number: int) -> str:
        names = self.class_names
        return names[number] if names and number < len(names) else f"class {number}"


def explanations_from(photos: Any, maps: Any) -> dict[int, dict[str, Explanation]]:
    """Explanations by number of the sample and label of the method, from arrow tables of photos and maps."""
    jpegs = {(row["image"], row["input"]): row["jpeg"] for row in photos.to_pylist()}
    explanations: dict[int, dict[str, Explanation]] = {}
    for row in maps.to_pylist():
        jpeg = jpegs.get((row["image"], row["input"]))
        try:
            picture = Image.open(io.BytesIO(jpeg), formats=["JPEG"]).convert("RGB") if jpeg else None
            explanation = _explanation(row, picture)
        except MhexError:
            raise
        except (*BROKEN, AttributeError, Image.DecompressionBombError) as error:
            damage = f"The map of sample {row['image']} by {row['method']!r} is damaged ({str(error).rstrip('.')})"
            raise ArgumentError(f"{damage}; delete photos-*.parquet and maps-*.parquet to make all again.") from error
        explanations.setdefault(row["image"], {})[explanation.method] = explanation
    return dict(sorted(explanations.items()))


def _explanation(row: dict[str, Any], picture: Any) -> Explanation:
    """A map as `mhex.viz` draws it: a batch of one sample with one class."""
    details = read_json(row["tokens"]) if row["tokens"] else {}
    is_text = "tokens" in details
    scores = torch.tensor(row["scores"]).view(1, row["height"], row["width"])
    predicted, probability = details.get("predicted", ("another class", math.nan))  # older files do not say it
    classes = {predicted: probability, row["target"]: row["probability"]}
    shares = torch.tensor([list(classes.values())])
    explanation = Explanation(
        scores[0] if is_text else scores,
        target=torch.tensor([list(classes).index(row["target"])]),
        logits=shares.log(),
        probabilities=shares,
        method=label(row["method"], row["options"]),
        signed=row["signed"],
        class_specific=not is_control(row["method"]) and get_method(row["method"]).class_specific,
        modality="text" if is_text else "image",
        size=None if picture is None else (picture.height, picture.width),
        class_names=list(classes),
        pictures=None if picture is None else [picture],
    )
    if is_text:
        explanation.tokens = [details["tokens"]]
        explanation.words = None if details["words"] is None else [details["words"]]
        explanation.real = torch.ones_like(explanation.scores, dtype=torch.bool)
        explanation.scored = torch.tensor([details["scored"]])
        explanation.lengths = [details["length"]] if details.get("length") else None
    return explanation


def _token_details(subject: Any, n: int) -> dict[str, Any]:
    prepared, batch = subject.prepared, subject.batch
    real = batch.real[n].cpu()
    names = [str(i) for i in range(int(real.sum()))] if prepared.tokens is None else prepared.tokens[n]
    scored = real[real] if batch.special is None else ~batch.special[n].cpu()[real]
    words = None if prepared.words is None else prepared.words[n]
    length = None if prepared.lengths is None else prepared.lengths[n]
    return {"tokens": list(names), "words": words, "scored": scored.tolist(), "length": length}


def _jpeg(picture: Any) -> bytes:
    """A small copy of a photo, or of a normalised tensor (C, H, W)."""
    from mhex.viz.heatmap import picture_pixels

    small = Image.fromarray(picture_pixels(picture))
    small.thumbnail((_SIDE, _SIDE))
    file = io.BytesIO()
    small.save(file, "JPEG", quality=85)
    return file.getvalue()
