"""Every reader of files, given damaged ones: what it reads is right, or it says in a sentence that the file is not."""

from __future__ import annotations

import io
import json
import re
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from mutations import (
    Damage,
    damaged_bytes,
    damaged_json,
    damaged_lines,
    damaged_safetensors,
    damaged_value,
    damaged_yaml,
)
from PIL import Image, features
from safetensors.torch import save_file
from torch import Tensor, nn

import mhex
from mhex._schema import build
from mhex.cli._parse import open_photo
from mhex.errors import MhexError
from mhex.heads.files import read_heads
from mhex.heads.heads import Heads
from mhex.judge import Report
from mhex.judge import report as about
from mhex.judge.cases import MapCache
from mhex.judge.plan import MethodRun
from mhex.judge.report import evaluations
from mhex.lab.config.recipe import TrainingRecipe, read_recipe
from mhex.lab.config.suite import read_suite
from mhex.lab.datasets import (
    load_ag_news_full,
    load_camvid,
    load_cifar10,
    load_cifar10_binary,
    load_csv,
    load_imagenet_segmentation,
    load_medmnist,
    load_movies,
    load_photos,
)
from mhex.lab.datasets.files import MaskFiles, PhotoFiles, object_mask
from mhex.lab.datasets.imagenet import _annotations
from mhex.lab.suites.stored import read_record
from mhex.lab.train.checkpoint import (
    Progress,
    latest_checkpoint,
    load_checkpoint,
    read_facts,
    save_checkpoint,
    write_tensors,
)
from mhex.lab.train.report import read_finished
from mhex.zoo import list_models
from mhex.zoo.files import fill, pack, read_weights
from mhex.zoo.shipped import load_zoo_model
from support.collaboration import Net
from support.suites import suite_dict, write_models
from support.tiny_models import pictures, tiny
from support.training import recipe_dict
from support.zoo_models import write_bert, write_hf_vit, write_resident

FEW, MANY = 100, 10_000
# Of readers that take more than two milliseconds, since they check recipes or tables, and of those that take more than
# ten, since they build networks or draw maps: all together take six minutes.
FEWER, FEWEST = 5_000, 1_000
LONGEST, MOST_MEMORY = 2.0, 300  # seconds of one file, megabytes


@dataclass(frozen=True)
class Reader:
    """A reader of files.

    Attributes:
        write: Writes whole files into a folder.
        load: Reads them.
        damages: How files are damaged, by patterns of their names.
        many: Number of damaged files of the slow run.
        variable: Of the environment, that names the folder.
    """

    write: Callable[[Path], Any]
    load: Callable[[Path], Any]
    damages: Mapping[str, Damage] = field(default_factory=lambda: {"*": damaged_bytes})
    many: int = MANY
    variable: str = "MHEX_DATA"


READERS: dict[str, Reader] = {}
# --- photos ----------------------------------------------------------------------------------------------------------

SUFFIXES = {"PNG": "png", "JPEG": "jpg", "TIFF": "tif", "WEBP": "webp", "BMP": "bmp", "GIF": "gif", "PPM": "ppm"}
if features.check("jpg_2000"):
    SUFFIXES["JPEG2000"] = "jp2"
if features.check("avif"):
    SUFFIXES["AVIF"] = "avif"


def photo(mode: str = "RGB", side: int = 12) -> Image.Image:
    noise = np.random.default_rng(1).integers(0, 256, (side, side, 3), dtype=np.uint8)
    if mode == "I;16":  # all of its bits in use, so that its range is known
        return Image.fromarray(noise[..., 0].astype(np.uint16) * 257)
    return Image.fromarray(noise).convert(mode)


def encoded(kind: str, mode: str = "RGB", **options: Any) -> bytes:
    buffer = io.BytesIO()
    photo(mode).save(buffer, kind, **options)
    return buffer.getvalue()


def _exif() -> Image.Exif:
    exif = Image.Exif()
    exif[274] = 6  # turned
    return exif


def write_photos(folder: Path, kind: str) -> None:
    suffix = SUFFIXES[kind]
    (folder / f"plain.{suffix}").write_bytes(encoded(kind))
    if kind in ("PNG", "JPEG", "TIFF", "WEBP"):
        (folder / f"turned.{suffix}").write_bytes(encoded(kind, exif=_exif()))
    if kind in ("PNG", "TIFF"):
        for mode in ("1", "L", "P", "LA", "RGBA", "I;16"):
            (folder / f"{mode}.{suffix}").write_bytes(encoded(kind, mode))
    if kind == "TIFF":
        for packing in ("tiff_lzw", "tiff_adobe_deflate", "jpeg", "packbits"):
            (folder / f"{packing}.{suffix}").write_bytes(encoded(kind, compression=packing))


def open_all(folder: Path) -> list[Any]:
    return [open_photo(path) for path in changed(folder)]


for kind in SUFFIXES:
    READERS[f"photo {kind}"] = Reader(lambda folder, kind=kind: write_photos(folder, kind), open_all)


def write_squares(folder: Path) -> None:
    for kind in ("PNG", "JPEG", "TIFF", "WEBP", "BMP"):
        write_photos(folder, kind)
    for path in folder.glob("I;16.*"):  # more than eight bits are refused
        path.unlink()


def take_squares(folder: Path) -> Tensor:
    paths = changed(folder)
    photos, masks = PhotoFiles(paths, 8, upright=True), MaskFiles(paths, 8, "crop", object_mask)
    rows = torch.arange(len(paths))
    masks[rows]
    return photos[rows]


READERS["squares of photos"] = Reader(write_squares, take_squares)

# --- safetensors -----------------------------------------------------------------------------------------------------

SAFE: Mapping[str, Damage] = {"*.safetensors": damaged_safetensors}
NET = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 3)).eval()


def write_explanation(folder: Path) -> None:
    made = mhex.explain(tiny("pre"), pictures(), "gae", target=[0, 1], class_names=[*"abcdefg"])
    made.save(folder / "map.safetensors")


def load_explanation(folder: Path) -> Any:
    made = mhex.Explanation.load(folder / "map.safetensors")
    repr(made)
    return made.map(), made.normalized(), made.target_names(0)


READERS["explanation"] = Reader(write_explanation, load_explanation, SAFE)


def write_concept(folder: Path) -> None:
    mhex.Concept(torch.rand(6), "stripes", "cosine", 3).save(folder / "stripes.safetensors")


READERS["concept"] = Reader(write_concept, lambda folder: mhex.Concept.load(folder / "stripes.safetensors").label, SAFE)


def write_heads(folder: Path) -> None:
    scaffold = mhex.attach(Net(), 3)
    scaffold.save(folder / "heads.safetensors")


def load_heads(folder: Path) -> Any:
    """As `mhex.attach` does, but for the model, whose forward pass is traced and rewritten."""
    settings, _, state = read_heads(folder / "heads.safetensors")
    heads = Heads(settings)
    heads.restore(state)
    return heads.named_blocks()


READERS["heads"] = Reader(write_heads, load_heads, SAFE)


def write_weights(folder: Path) -> None:
    save_file(NET.state_dict(), folder / "plain.safetensors")
    save_file(pack(NET.state_dict()), folder / "packed.safetensors")


def load_weights(folder: Path) -> None:
    for path in changed(folder):
        fill(NET, read_weights(path), path.name)


READERS["weights"] = Reader(write_weights, load_weights, SAFE)


def _trained() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters(), 0.1)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    return model, optimizer


RECIPE: TrainingRecipe = build(TrainingRecipe, recipe_dict(), "small.yaml")


def write_checkpoint(folder: Path) -> None:
    save_checkpoint(folder, RECIPE, Progress(3, 0.5, [{"epoch": 1}], 0.1, 1), *_trained(), None, None)


def load_last_checkpoint(folder: Path) -> Any:
    place = latest_checkpoint(folder)
    assert place is not None
    read_facts(place / "model.safetensors")
    return load_checkpoint(place, RECIPE, *_trained(), None)


READERS["checkpoint"] = Reader(write_checkpoint, load_last_checkpoint, {**SAFE, "state.json": damaged_json}, many=FEWER)

CACHE_KEY = (MethodRun("gae"), ("a", "b"), torch.tensor([0, 1]), 0)


def write_cache(folder: Path) -> None:
    MapCache(folder, "model", "classification").put(*CACHE_KEY, torch.rand(2, 3, 3))


def read_cache(folder: Path) -> None:
    scores = MapCache(folder, "model", "classification").get(*CACHE_KEY)
    assert scores is None or len(scores) == 2


READERS["cache of maps"] = Reader(write_cache, read_cache, SAFE)

# --- YAML and JSON ---------------------------------------------------------------------------------------------------


def write_yaml(folder: Path, name: str, value: Any) -> None:
    (folder / name).write_text(yaml.safe_dump(value, sort_keys=False), encoding="utf-8")


RECIPE_WHOLE = recipe_dict(train={"betas": [0.9, 0.99], "ema": 0.9}, augment={"scale": [0.5, 1.0], "mixup": 0.1})
READERS["recipe"] = Reader(
    lambda folder: write_yaml(folder, "small.yaml", RECIPE_WHOLE),
    lambda folder: read_recipe(folder / "small.yaml").digest(),
    {"*.yaml": damaged_yaml},
    many=FEWER,
)
SUITE = suite_dict()


def write_small_suite(folder: Path) -> None:
    write_models(folder)
    write_yaml(folder, "small.suite", SUITE)


READERS["suite"] = Reader(
    write_small_suite,
    lambda folder: read_suite(folder / "small.suite").entries(quick=True),
    {"*.suite": damaged_yaml},
    many=FEWER,
    variable="MHEX_MODELS",
)


def write_card(folder: Path) -> None:
    write_resident(folder, "pets-vit")


def load_card(folder: Path) -> Any:
    list_models(folder)
    bundle = load_zoo_model("pets-vit", folder)
    assert bundle.preprocess is not None
    bundle.preprocess(photo())
    return [name.title() for name in bundle.class_names]


READERS["card"] = Reader(
    write_card, load_card, {"*.json": damaged_json, "*.safetensors": damaged_safetensors}, many=FEWEST
)


def write_finished(folder: Path) -> None:
    write_tensors({"a": torch.zeros(1)}, folder / "weights.safetensors")
    (folder / "report.json").write_text(json.dumps({"name": "small", "recipe": RECIPE.as_dict(), "test": {"top1": 1}}))


READERS["report of a run"] = Reader(write_finished, read_finished, {"report.json": damaged_json})
CALLS = [{"model": "net", "methods": ["gae"], "metrics": ["deletion"], "versions": {"python": "3"}, "command": ""}]


def load_told(folder: Path) -> Any:
    return read_record(folder), about.read_calls(folder)


def write_told(folder: Path) -> None:
    told = {"suite": SUITE, "quick": False, "models": {"tiny": {"model": "zoo:tiny", "seconds": 1.0, "resumed": False}}}
    (folder / "suite.json").write_text(json.dumps(told))
    (folder / "about.json").write_text(json.dumps(CALLS))


READERS["what a suite says"] = Reader(write_told, load_told, {"*.json": damaged_json})

# --- rows ------------------------------------------------------------------------------------------------------------


def parquet(rows: list[dict[str, Any]]) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), buffer)
    return buffer.getvalue()


def damaged_parquet(content: bytes, random: Random) -> bytes:
    """Values and columns changed, or bytes."""
    if random.random() < 0.4:
        return damaged_bytes(content, random)
    table = pq.read_table(io.BytesIO(content))
    names = list(table.column_names)
    for _ in range(random.choice((1, 1, 2))):
        name = random.choice(names)
        column = table.column(name).to_pylist()
        changed_column = damaged_value(column, random)
        try:
            array = pa.array(changed_column, None if random.random() < 0.5 else table.schema.field(name).type)
            table = table.set_column(table.column_names.index(name), name, array)
        except (pa.ArrowException, TypeError, ValueError, OverflowError, UnicodeEncodeError, AttributeError):
            table = table.slice(0, random.randrange(3))
    buffer = io.BytesIO()
    try:
        pq.write_table(table, buffer)
    except pa.ArrowException:
        return damaged_bytes(content, random)
    return buffer.getvalue()


TABLE: Mapping[str, Damage] = {"*.parquet": damaged_parquet}


def write_evaluation(folder: Path) -> None:
    run = mhex.evaluate(
        tiny("cnn"), pictures(2), ["gradcam"], [("deletion", {"steps": 2})], controls=False, out=folder, pictures=1
    )
    assert run.rows.num_rows


def load_report(folder: Path) -> Any:
    report = Report.load(folder)
    return report.methods, report.metrics, [report.values(name) for name in report.metrics]


def load_evaluation(folder: Path) -> Any:
    return [(run.name, run.report.methods) for run in evaluations(folder)]


READERS["rows"] = Reader(write_evaluation, load_report, TABLE, many=FEWER)
READERS["evaluation"] = Reader(write_evaluation, load_evaluation, {**TABLE, "*.json": damaged_json}, many=FEWEST)

# --- data sets -------------------------------------------------------------------------------------------------------


def _grey(value: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("L", (12, 12), value).save(buffer, "PNG")
    return buffer.getvalue()


MASK = _grey(3)


def write_tables(folder: Path) -> None:
    image = encoded("PNG")
    things = [{"image": image, "label": k, "split": split} for k in range(2) for split in ("train", "test")]
    (folder / "cifar10.parquet").write_bytes(parquet(things))
    photos = [{"name": name, "image": encoded("JPEG")} for name in ("n01443537_goldfish", "n01440764_tench")]
    (folder / "photos.parquet").write_bytes(parquet(photos))
    frames = [{"name": "a", "image": image, "mask": MASK, "split": "test"}]
    (folder / "camvid.parquet").write_bytes(parquet(frames))
    news = [{"label": 1, "title": "a", "text": "fine film", "split": split} for split in ("train", "test")]
    (folder / "ag_news_full.parquet").write_bytes(parquet(news))
    reviews = [{"text": "a fine film", "label": 1, "evidence": [[0, 2]], "split": "test"}]
    (folder / "movies.parquet").write_bytes(parquet(reviews))


LOADERS: Mapping[str, Callable[[], Any]] = {
    "cifar10.parquet": lambda: load_cifar10("test"),
    "photos.parquet": lambda: load_photos(),
    "camvid.parquet": lambda: load_camvid("test"),
    "ag_news_full.parquet": lambda: load_ag_news_full("test"),
    "movies.parquet": lambda: load_movies("test"),
}


def load_tables(folder: Path) -> None:
    for path in changed(folder):
        data = LOADERS[path.name]()
        assert len(data) == len(data.labels if hasattr(data, "labels") else data.names)


READERS["tables of data sets"] = Reader(write_tables, load_tables, TABLE, many=FEWER)


def write_texts(folder: Path) -> None:
    (folder / "ag_news").mkdir()
    for part in ("train", "test"):
        (folder / "ag_news" / f"{part}.csv").write_text('"1","A title","A text"\n"4","Another","one"\n')
    (folder / "movies" / "docs").mkdir(parents=True)
    (folder / "movies" / "docs" / "neg.txt").write_text("a dull film\nof a kind")
    spans = [[{"start_token": 1, "end_token": 2, "docid": "neg.txt"}]]
    row = json.dumps({"annotation_id": "neg.txt", "classification": "NEG", "evidences": spans})
    for part in ("train", "val", "test"):
        (folder / "movies" / f"{part}.jsonl").write_text(f"{row}\n")
    (folder / "multi.json").write_text(json.dumps({"ILSVRC2012_val_00000001.JPEG": [1, 5], "b": ["n01443537"]}))


def load_texts(folder: Path) -> None:
    load_ag_news_full("all")
    load_movies("all").items()[0]
    _annotations(folder / "multi.json")


READERS["texts"] = Reader(
    write_texts, load_texts, {"*.csv": damaged_bytes, "*.jsonl": damaged_lines, "*.json": damaged_json}
)


def write_archive(folder: Path) -> None:
    arrays = {f"{part}_images": np.zeros((3, 28, 28), np.uint8) for part in ("train", "val", "test")}
    arrays |= {f"{part}_labels": np.ones((3, 1), np.uint8) for part in ("train", "val", "test")}
    np.savez(folder / "pneumoniamnist.npz", **arrays)
    np.savez_compressed(folder / "bloodmnist.npz", **arrays)


def load_archive(folder: Path) -> None:
    for path in changed(folder):
        load_medmnist(path.stem, "test", limit=2)
        load_medmnist(path.stem, "all")


READERS["numpy archives"] = Reader(write_archive, load_archive)


def write_binary(folder: Path) -> None:
    (folder / "cifar-10-batches-bin").mkdir()
    for name in (*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"):
        (folder / "cifar-10-batches-bin" / f"{name}.bin").write_bytes(bytes(3073))


READERS["binary records"] = Reader(write_binary, lambda folder: load_cifar10_binary("all"))


def write_csv(folder: Path) -> None:
    (folder / "a.png").write_bytes(encoded("PNG"))
    (folder / "photos.csv").write_text("image,label,mask,split\na.png,cat,a.png,train\na.png,dog,a.png,test\n")
    (folder / "texts.csv").write_text('text,label\n"a ""fine"" film",1\ndull,0\n')


def load_csvs(folder: Path) -> None:
    for path in (folder / "photos.csv", folder / "texts.csv"):
        for item in load_csv(path, side=4).items():
            assert item


READERS["tables in CSV"] = Reader(write_csv, load_csvs, {"*.csv": damaged_bytes})


def write_matlab(folder: Path) -> None:
    import h5py

    with h5py.File(folder / "gtsegs_ijcv.mat", "w") as file:
        parts = {
            "img": np.zeros((3, 6, 6), np.uint8),
            "gt": np.eye(6, dtype=np.uint8),
            "target": np.array([[ord(sign)] for sign in "n01443537"], np.uint16),
        }
        for name, value in parts.items():
            file.create_dataset(f"#refs#/{name}", data=value)
            column = file.create_dataset(f"value/{name}", (1, 1), dtype=h5py.ref_dtype)
            column[0, 0] = file[f"#refs#/{name}"].ref


def load_matlab(folder: Path) -> None:
    photos = load_imagenet_segmentation(side=4)
    rows = torch.arange(len(photos))
    photos.images[rows]
    photos.maps[rows]


READERS["MATLAB file"] = Reader(write_matlab, load_matlab)

# --- Hugging Face folders --------------------------------------------------------------------------------------------

FOLDERS: Mapping[str, Damage] = {"*.json": damaged_json, "*.safetensors": damaged_safetensors}


def load_bert(folder: Path) -> Any:
    return mhex.load(f"hf:{folder / 'bert'}").tokenizer(["a fine film"])


def load_vit(folder: Path) -> Any:
    return mhex.load(f"hf:{folder / 'vit'}").preprocess(photo())


READERS["text model"] = Reader(lambda folder: write_bert(folder / "bert"), load_bert, FOLDERS, many=FEWEST)
READERS["image model"] = Reader(lambda folder: write_hf_vit(folder / "vit"), load_vit, FOLDERS, many=FEWEST)

# --- the search ------------------------------------------------------------------------------------------------------

_CHANGED: dict[Path, list[Path]] = {}


def changed(folder: Path) -> list[Path]:
    """The file of a folder that is damaged at the moment; all of them while none is."""
    return _CHANGED.get(folder) or sorted(path for path in folder.iterdir() if path.is_file())


def tree(folder: Path) -> dict[str, bytes | None]:
    """Names and contents of all that a folder holds."""
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def peak_memory() -> float:
    """Most memory of this process since `forget_peak`, in megabytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def victims(folder: Path, damages: Iterable[str]) -> list[tuple[Path, str]]:
    return [(path, pattern) for pattern in damages for path in sorted(folder.rglob(pattern)) if path.is_file()]


def check_reader(name: str, reader: Reader, count: int, place: Path) -> None:
    room, beside = place / "room", place / "beside"
    room.mkdir()
    beside.mkdir()
    (beside / "trap").write_text("never read, never written")
    reader.write(room)
    reader.load(room)  # whole files, and everything that is imported on the way
    untouched, random = tree(beside), Random(name)
    targets = victims(room, reader.damages)
    assert targets
    whole = {path: path.read_bytes() for path, _ in targets}
    before = tree(room)
    forget_peak()
    start = peak_memory()
    for number in range(count):
        path, pattern = random.choice(targets)
        if random.random() < 0.01:
            path.unlink()
            path.symlink_to(beside / "trap")
        else:
            path.write_bytes(reader.damages[pattern](whole[path], random))
        _CHANGED[room] = [path]
        began, refusal = time.perf_counter(), "."
        try:
            reader.load(room)
        except MhexError as error:
            refusal = str(error)
        except Exception as error:
            raise AssertionError(f"{number} ({path.name}): {type(error).__name__}: {error}") from error
        took = time.perf_counter() - began
        assert re.search(r"[.?]$", refusal), f"{number} ({path.name}): a sentence, please: {refusal!r}"
        assert took < LONGEST, f"{number} ({path.name}): took {took:.1f} seconds"
        grown = peak_memory() - start if number % 50 == 0 or number == count - 1 else 0.0
        assert grown < MOST_MEMORY, f"{number} ({path.name}): took {grown:.0f} megabytes"
        if path.is_symlink():
            path.unlink()
        path.write_bytes(whole[path])
    del _CHANGED[room]
    assert tree(beside) == untouched
    assert {path.name for path in place.iterdir()} == {"room", "beside"}
    assert tree(room) == before


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the most memory of a process is asked of Linux")
@pytest.mark.parametrize("slow", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["few", "many"])
@pytest.mark.parametrize("name", READERS)
def test_damaged_files(name: str, slow: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = READERS[name]
    monkeypatch.setenv(reader.variable, str(tmp_path / "room"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_reader(name, reader, reader.many if slow else FEW, tmp_path)
