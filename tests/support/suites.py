"""Small suites on a stand-in model and made-up pets."""

from __future__ import annotations

import hashlib
import io
import json
import re
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from PIL import Image

from mhex.lab.config.suite import Suite, read_suite
from support.zoo_models import write_resident

ZERO = {"reference": "zero", "steps": 4}
SUITE: dict[str, Any] = {
    "name": "small",
    "title": "A small suite",
    "seed": 3,
    "data": {"name": "pets", "split": "test", "limit": 6},
    "models": ["zoo:tiny-vit"],
    "methods": ["gae", {"name": "rollout", "options": {"start_block": 2}}],
    "metrics": [{"name": "deletion", "changes": ZERO}, "segmentation"],
    "batch_size": 2,
    "quick": {"limit": 2, "methods": ["rollout"], "metrics": ["segmentation"]},
}


def write_models(folder: Path) -> Path:
    """A tiny Vision Transformer and a tiny residual network, with names that nothing shipped has."""
    for name, called in (("pets-vit", "tiny-vit"), ("pets-resnet10t", "tiny-resnet")):
        write_resident(folder, name)
        for suffix in (".json", ".safetensors"):
            (folder / f"{name}{suffix}").rename(folder / f"{called}{suffix}")
    return folder


def write_pets(folder: Path, each: int = 4, side: int = 24) -> Path:
    """Six breeds, cats and dogs in turn; a breed is a colour, with noise; the animal is the middle."""
    noise = np.random.default_rng(0)
    trimap = np.full((side, side), 2, dtype=np.uint8)
    trimap[6:18, 6:18] = 1
    rows = []
    for breed in range(6):
        for number in range(each):
            pixels = np.clip(40 * breed + noise.integers(0, 40, (side, side, 3)), 0, 255).astype(np.uint8)
            named = f"kind_{chr(97 + breed)}_{number}"
            shared = {"name": named, "breed": breed, "species": breed % 2, "split": "test"}
            rows.append({**shared, "image": _png(pixels), "trimap": _png(trimap)})
    pq.write_table(pa.Table.from_pylist(rows), folder / "pets.parquet")
    return folder


def suite_dict(**changes: Any) -> dict[str, Any]:
    """`SUITE` with keys changed; None takes a key out."""
    made = {**deepcopy(SUITE), **changes}
    return {key: value for key, value in made.items() if value is not None}


def write_suite(path: Path, **changes: Any) -> Path:
    path.write_text(yaml.safe_dump(suite_dict(**changes), sort_keys=False), encoding="utf-8")
    return path


def suite_of(folder: Path, **changes: Any) -> Suite:
    """The suite of `suite_dict`, read from a file in the folder."""
    return read_suite(write_suite(folder / "mine.yaml", **changes))


def numbers_of(page: str) -> str:
    """The fingerprint of the numbers of a page, read from its tables."""
    numbers: list[list[str]] = []
    for chapter in page.split("\n## ")[1:]:
        label, _, text = chapter.partition("\n")
        for table in re.findall(r"(?:^\|.*\n)+", text.partition("\n### ")[0] + "\n", re.MULTILINE):
            head, _, *rows = ([cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines())
            for row in rows:
                for column, cell in zip(head[1:], row[1:], strict=True):
                    if column[-1:] in ("\u2191", "\u2193"):
                        numbers.append([label, row[0], column[:-2], cell.strip("*").removesuffix("\u2020")])
    return hashlib.sha256(json.dumps(sorted(numbers)).encode()).hexdigest()[:16]


def _png(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()
