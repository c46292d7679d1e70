"""Photos, and squares of photos and masks, from damaged files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from containers import damaged_png
from mutations import damaged_bytes
from PIL import features
from torch import Tensor

from mhex.cli._parse import open_photo
from mhex.lab.datasets.files import MaskFiles, PhotoFiles, object_mask
from support.damaged_files import Reader, changed, fuzz_test
from support.small_photos import encoded, turned

SUFFIXES = {"PNG": "png", "JPEG": "jpg", "TIFF": "tif", "WEBP": "webp", "BMP": "bmp", "GIF": "gif", "PPM": "ppm"}
if features.check("jpg_2000"):
    SUFFIXES["JPEG2000"] = "jp2"
if features.check("avif"):
    SUFFIXES["AVIF"] = "avif"
FILES = {"*.png": damaged_png, "*.[!p]*": damaged_bytes, "*.ppm": damaged_bytes}


def write_photos(folder: Path, kind: str) -> None:
    suffix = SUFFIXES[kind]
    (folder / f"plain.{suffix}").write_bytes(encoded(kind))
    if kind in ("PNG", "JPEG", "TIFF", "WEBP"):
        (folder / f"turned.{suffix}").write_bytes(encoded(kind, exif=turned()))
    if kind in ("PNG", "TIFF"):
        for mode in ("1", "L", "P", "LA", "RGBA", "I;16"):
            (folder / f"{mode}.{suffix}").write_bytes(encoded(kind, mode))
    if kind == "TIFF":
        for packing in ("tiff_lzw", "tiff_adobe_deflate", "jpeg", "packbits"):
            (folder / f"{packing}.{suffix}").write_bytes(encoded(kind, compression=packing))


def open_all(folder: Path) -> list[Any]:
    return [open_photo(path) for path in changed(folder)]


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


READERS = {
    f"photo {kind}": Reader(lambda folder, kind=kind: write_photos(folder, kind), open_all, FILES) for kind in SUFFIXES
}
READERS["squares of photos"] = Reader(write_squares, take_squares, FILES)
test_damaged_photos = fuzz_test(READERS)
