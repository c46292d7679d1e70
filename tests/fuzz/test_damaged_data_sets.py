"""Data sets, from damaged Parquet, CSV, JSON, numpy, binary and MATLAB files."""

from __future__ import annotations

import functools
import io
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from containers import damaged_archive, damaged_parquet
from mutations import damaged_bytes, damaged_csv, damaged_json, damaged_lines

from mhex.lab.datasets import (
    load_ag_news_full,
    load_camvid,
    load_cifar10,
    load_cifar10_binary,
    load_csv,
    load_imagenet_segmentation,
    load_medmnist,
    load_movies,
    load_pets,
    load_photos,
    load_voc,
)
from mhex.lab.datasets.cifar import load_cifar100
from mhex.lab.datasets.imagenet import _annotations
from mhex.lab.datasets.lidc import load_lidc_biomarkers
from support.damaged_files import Reader, changed, fuzz_test
from support.small_photos import encoded, grey


def parquet(rows: list[dict[str, Any]]) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), buffer)
    return buffer.getvalue()


def write_tables(folder: Path) -> None:
    image = encoded("PNG")
    things = [{"image": image, "label": k, "split": split} for k in range(2) for split in ("train", "test")]
    (folder / "cifar10.parquet").write_bytes(parquet(things))
    photos = [{"name": name, "image": encoded("JPEG")} for name in ("n01443537_goldfish", "n01440764_tench")]
    (folder / "photos.parquet").write_bytes(parquet(photos))
    frames = [{"name": "a", "image": image, "mask": grey(3), "split": "test"}]
    (folder / "camvid.parquet").write_bytes(parquet(frames))
    news = [{"label": 1, "title": "a", "text": "fine film", "split": split} for split in ("train", "test")]
    (folder / "ag_news_full.parquet").write_bytes(parquet(news))
    reviews = [{"text": "a fine film", "label": 1, "evidence": [[0, 2]], "split": "test"}]
    (folder / "movies.parquet").write_bytes(parquet(reviews))
    pets = [
        {"name": f"{name}_1", "image": image, "trimap": grey(1), "breed": k, "species": k, "split": "test"}
        for k, name in enumerate(("bengal", "pug"))
    ]
    (folder / "pets.parquet").write_bytes(parquet(pets))


LOADERS: Mapping[str, Callable[[], Any]] = {
    "cifar10.parquet": lambda: load_cifar10("test"),
    "photos.parquet": lambda: load_photos(),
    "camvid.parquet": lambda: load_camvid("test"),
    "ag_news_full.parquet": lambda: load_ag_news_full("test"),
    "movies.parquet": lambda: load_movies("test"),
    "pets.parquet": lambda: load_pets("test", trimaps=True),
}


def load_tables(folder: Path) -> None:
    for path in changed(folder):
        data = LOADERS[path.name]()
        assert len(data) == len(data.labels if hasattr(data, "labels") else data.names)


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
    for path in changed(folder):
        if path.suffix == ".csv":
            load_ag_news_full("all")
        elif path.suffix == ".json":
            _annotations(path)
        else:
            load_movies("all").items()[0]


def write_archive(folder: Path) -> None:
    arrays = {f"{part}_images": np.zeros((3, 28, 28), np.uint8) for part in ("train", "val", "test")}
    arrays |= {f"{part}_labels": np.ones((3, 1), np.uint8) for part in ("train", "val", "test")}
    np.savez(folder / "pneumoniamnist.npz", **arrays)
    np.savez_compressed(folder / "bloodmnist.npz", **arrays)


def load_archive(folder: Path) -> None:
    for path in changed(folder):
        load_medmnist(path.stem, "test", limit=2)
        load_medmnist(path.stem, "all")


def write_binary(folder: Path) -> None:
    (folder / "cifar-10-batches-bin").mkdir()
    for name in (*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"):
        (folder / "cifar-10-batches-bin" / f"{name}.bin").write_bytes(bytes(3073))
    (folder / "cifar-100-binary").mkdir()
    for name in ("train", "test"):
        (folder / "cifar-100-binary" / f"{name}.bin").write_bytes(bytes(3074) + b"\0\1" + bytes(3072))
    (folder / "cifar-100-binary" / "fine_label_names.txt").write_text("ant\nbee\n")
    (folder / "cifar-100-binary" / "coarse_label_names.txt").write_text("insect\n")


def load_binary(folder: Path) -> None:
    load_cifar10_binary("all")
    load_cifar100("all")


def write_lists(folder: Path) -> None:
    root = folder / "VOCdevkit" / "VOC2012"
    for name in ("JPEGImages", "SegmentationClass", "ImageSets/Segmentation"):
        (root / name).mkdir(parents=True)
    (root / "JPEGImages" / "a.jpg").write_bytes(encoded("JPEG"))
    (root / "SegmentationClass" / "a.png").write_bytes(grey(1))
    (root / "ImageSets" / "Segmentation" / "val.txt").write_text("a\n")
    (folder / "lidc" / "crops").mkdir(parents=True)
    (folder / "lidc" / "crops" / "1.png").write_bytes(encoded("PNG"))
    (folder / "lidc" / "nodules.csv").write_text("image,malignancy,spiculation,split\ncrops/1.png,4,2.5,test\n")


def load_lists(folder: Path) -> None:
    for path in changed(folder):
        photos = load_lidc_biomarkers("test", side=4) if path.suffix == ".csv" else load_voc("val", side=4)
        if len(photos):
            photos.images[torch.arange(len(photos))]


def write_csv(folder: Path) -> None:
    (folder / "a.png").write_bytes(encoded("PNG"))
    (folder / "photos.csv").write_text("image,label,mask,split\na.png,cat,a.png,train\na.png,dog,a.png,test\n")
    (folder / "texts.csv").write_text('text,label\n"a ""fine"" film",1\ndull,0\n')


def load_csvs(folder: Path) -> None:
    for path in changed(folder):
        if path.suffix == ".csv":
            for item in load_csv(path, side=4).items():
                assert item


# --- MATLAB ----------------------------------------------------------------------------------------------------------

ODD_PARTS: Mapping[str, Any] = {
    "": np.zeros(0, np.uint8),
    "flat": np.zeros(6, np.uint8),
    "deep": np.zeros((1, 3, 6, 6), np.uint8),
    "floats": np.full((3, 6, 6), np.nan),
    "other size": np.zeros((3, 5, 7), np.uint8),
    "none": np.zeros((3, 0, 6), np.uint8),
    "texts": np.array([[b"n01443537"]]),
    "signs": np.array([[2**31]], np.int64),
    "below zero": np.array([[-1]], np.int32),
    "half a pair": np.array([[0xD800]], np.uint16),
    "records": np.zeros((6, 6), [("a", "u1")]),
    "complex": np.zeros((3, 6, 6), np.complex64),
    "huge": None,  # far more values than the file has bytes
    "itself": None,  # a cell that leads to itself
    "nowhere": None,  # a reference to nothing
}


def matlab(field: str = "", odd: str = "") -> bytes:
    """An archive of one photo; a field of it may be odd."""
    import h5py

    buffer = io.BytesIO()
    with h5py.File(buffer, "w") as file:
        parts = {
            "img": np.zeros((3, 6, 6), np.uint8),
            "gt": np.eye(6, dtype=np.uint8),
            "target": np.array([[ord(sign)] for sign in "n01443537"], np.uint16),
        }
        for name, value in parts.items():
            place = f"#refs#/{name}"
            kind = odd if name == field else "sound"
            if kind == "huge":
                file.create_dataset(place, (3, 2**15, 2**15), dtype=np.uint8, chunks=(3, 64, 64))
            elif kind == "itself":
                cell = file.create_dataset(place, (1, 1), dtype=h5py.ref_dtype)
                cell[0, 0] = cell.ref
            else:
                file.create_dataset(place, data=value if kind in ("sound", "nowhere") else ODD_PARTS[kind])
            column = file.create_dataset(f"value/{name}", (1, 1), dtype=h5py.ref_dtype)
            if kind != "nowhere":
                column[0, 0] = file[place].ref
    return buffer.getvalue()


@functools.cache
def odd_matlab_files() -> tuple[bytes, ...]:
    return tuple(matlab(field, odd) for field in ("img", "gt", "target") for odd in ODD_PARTS)


def damaged_matlab(content: bytes, random: Random) -> bytes:
    """Fields of other kinds, or bytes changed, most of them in a file that is sound else."""
    if random.random() < 0.2:
        return random.choice(odd_matlab_files())
    return damaged_bytes(content if random.random() < 0.8 else random.choice(odd_matlab_files()), random)


def load_matlab(folder: Path) -> None:
    photos = load_imagenet_segmentation(side=4)
    rows = torch.arange(len(photos))
    photos.images[rows]
    photos.maps[rows]


READERS = {
    "tables of data sets": Reader(write_tables, load_tables, {"*.parquet": damaged_parquet}),
    "texts": Reader(write_texts, load_texts, {"*.csv": damaged_csv, "*.jsonl": damaged_lines, "*.json": damaged_json}),
    "numpy archives": Reader(write_archive, load_archive, {"*.npz": damaged_archive}),
    "binary records": Reader(write_binary, load_binary, {"*.bin": damaged_bytes, "*.txt": damaged_bytes}),
    "lists of photos": Reader(write_lists, load_lists, {"*.csv": damaged_csv, "*.txt": damaged_bytes}),
    "tables in CSV": Reader(write_csv, load_csvs, {"*.csv": damaged_csv}),
    "MATLAB file": Reader(
        lambda folder: (folder / "gtsegs_ijcv.mat").write_bytes(matlab()), load_matlab, {"*.mat": damaged_matlab}
    ),
}
test_damaged_data_sets = fuzz_test(READERS)
