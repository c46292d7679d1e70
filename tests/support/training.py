"""Made-up data in the layout of the real files, and small recipes to learn it."""

from __future__ import annotations

import io
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from PIL import Image

RECIPE: dict[str, Any] = {
    "name": "small",
    "title": "A small network for made-up cells",
    "seed": 5,
    "data": {"name": "blood", "side": 16},
    "model": {"source": "timm", "architecture": "test_resnet"},
    "train": {"epochs": 3, "batch": 8, "rate": 3e-3, "precision": "no"},
}


def picture(value: int, side: int, noise: np.random.Generator | None = None) -> bytes:
    pixels = np.full((side, side, 3), value, dtype=np.uint8)
    if noise is not None:
        pixels = np.clip(pixels + noise.integers(-12, 12, pixels.shape), 0, 255).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def write_blood(folder: Path, train: int = 32, side: int = 16) -> Path:
    """Cells of eight classes; a class is a brightness."""
    noise = np.random.default_rng(0)
    counts = {"train": train, "val": 16, "test": 16}
    rows = [
        {"name": f"{split}_{k}", "image": picture(30 * (k % 8) + 15, side, noise), "label": k % 8, "split": split}
        for split, count in counts.items()
        for k in range(count)
    ]
    pq.write_table(pa.Table.from_pylist(rows), folder / "blood.parquet")
    return folder


def write_news(folder: Path) -> Path:
    """News in the ten words of the stand-in tokenizer; a topic is a word."""
    words = ("a", "fine", "dull", "film")
    rows = [
        {"label": k % 4, "title": words[k % 4], "text": " ".join([words[k % 4]] * (1 + k % 3)), "split": split}
        for split, count in {"train": 24, "val": 8, "test": 8}.items()
        for k in range(count)
    ]
    pq.write_table(pa.Table.from_pylist(rows), folder / "ag_news.parquet")
    return folder


def write_pets_and_cifar(folder: Path) -> Path:
    """37 plain breeds and ten plain things."""
    pets = [
        {
            "name": f"kind_{chr(97 + b % 26)}{b // 26}_{n}",
            "image": picture(6 * b, 20),
            "breed": b,
            "species": b % 2,
            "split": split,
        }
        for b in range(37)
        for n, split in enumerate(("trainval", "test"))
    ]
    things = [{"image": picture(25 * c, 8), "label": c, "split": s} for c in range(10) for s in ("train", "test")]
    pq.write_table(pa.Table.from_pylist(pets), folder / "pets.parquet")
    pq.write_table(pa.Table.from_pylist(things), folder / "cifar10.parquet")
    return folder


def recipe_dict(**changes: Any) -> dict[str, Any]:
    """`RECIPE` with sections updated; None takes a key out."""
    made = deepcopy(RECIPE)
    for key, value in changes.items():
        if isinstance(value, dict) and isinstance(made.get(key), dict):
            made[key] |= value
        else:
            made[key] = value
    return {key: value for key, value in made.items() if value is not None}


def write_recipe(path: Path, **changes: Any) -> Path:
    path.write_text(yaml.safe_dump(recipe_dict(**changes)), encoding="utf-8")
    return path
