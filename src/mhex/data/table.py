"""Reading columns of a parquet file and decoding columns of encoded images."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from mhex._optional import require
from mhex._photo import BROKEN, claims_too_much, plain_rgb
from mhex.errors import ArgumentError, MhexError

# What columns hold, by the names that they have in all data sets.
_KINDS: dict[str, type] = {
    **dict.fromkeys(("name", "split", "text", "title"), str),
    **dict.fromkeys(("image", "mask", "trimap"), bytes),
    **dict.fromkeys(("label", "breed", "species"), int),
}
_WORDS: dict[type | None, str] = {str: "texts", bytes: "encoded images", int: "whole numbers"}


class DataFormatError(MhexError, ValueError):
    """A data file is there and does not hold what it should."""


def read_columns(path: Path, columns: Sequence[str]) -> dict[str, list[Any]]:
    """Read some columns of a parquet file as Python lists.

    Args:
        path: The parquet file.
        columns: Names of the columns.

    Returns:
        One list per column, all of the same length, in the order of the rows.

    Raises:
        MissingExtraError: pyarrow is not installed.
        DataFormatError: The file is no parquet file, is damaged, or lacks one of the columns.
    """
    parquet = require("pyarrow.parquet")
    broken = require("pyarrow").ArrowException
    try:
        present = parquet.read_schema(path).names
    except (broken, OSError) as error:
        raise DataFormatError(f"{path.name} is not a parquet file, or damaged ({error}): place it anew.") from error
    missing = [name for name in columns if name not in present]
    if missing:
        raise DataFormatError(
            f"{path.name} should have the columns {list(columns)}, and lacks {missing} (it has {list(present)}): "
            "place the right file in the data folder."
        )
    try:
        table = parquet.read_table(path, columns=list(columns))
        return {name: _checked(table.column(name).to_pylist(), name, path.name) for name in columns}
    except (broken, OSError, UnicodeDecodeError) as error:
        raise DataFormatError(f"{path.name} is damaged ({error}): place it anew.") from error


def _checked(values: list[Any], name: str, file: str) -> list[Any]:
    kind = _KINDS.get(name)
    strange = [value for value in values if kind is not None and not isinstance(value, kind)]
    if strange:
        raise DataFormatError(
            f"The column {name!r} of {file} should hold {_WORDS[kind]} in all rows, and {strange[0]!r:.40} came: place "
            "the right file in the data folder."
        )
    return values


def pick_rows(splits: Sequence[str], split: str, limit: int | None = None) -> list[int]:
    """Row numbers of one split.

    Args:
        splits: The split of every row.
        split: The wanted split, or ``"all"`` for every row.
        limit: At most so many rows, evenly spaced over the split, since rows are often sorted by class.

    Returns:
        Row numbers in ascending order.

    Raises:
        ArgumentError: The split is unknown or the limit is not positive.
    """
    known = sorted(set(splits))
    if split != "all" and split not in known:
        raise ArgumentError(f"split should be one of {[*known, 'all']}, not {split!r}.")
    if limit is not None and limit < 1:
        raise ArgumentError(f"limit should be a positive number of rows or None, not {limit}.")
    rows = [row for row, name in enumerate(splits) if split in ("all", name)]
    if limit is None or limit >= len(rows):
        return rows
    return [rows[place * len(rows) // limit] for place in range(limit)]


def decode_images(blobs: Sequence[bytes], mode: Literal["RGB", "L"] = "RGB") -> Tensor:
    """Decode encoded images of one common size.

    Args:
        blobs: N encoded images (JPEG, PNG, ...).
        mode: ``"RGB"`` for photos, ``"L"`` for label maps.

    Returns:
        Tensor (N, 3, H, W) for ``"RGB"`` and (N, H, W) for ``"L"``, uint8.

    Raises:
        ArgumentError: There are no images.
        DataFormatError: An image cannot be decoded, or the images differ in size.
    """
    if not blobs:
        raise ArgumentError("There are no images to decode: at least one was expected.")

    def decode(blob: bytes) -> np.ndarray[Any, np.dtype[np.uint8]]:
        try:
            with Image.open(io.BytesIO(blob)) as image:
                if claims_too_much(image, len(blob)):
                    raise ValueError(f"it claims {image.width} x {image.height} pixels")
                plain = plain_rgb(image, name="An image of the file") if mode == "RGB" else image.convert(mode)
                return np.asarray(plain, dtype=np.uint8)
        except MhexError:
            raise
        except (*BROKEN, Image.DecompressionBombError) as error:
            raise DataFormatError(f"An image of the file cannot be decoded ({error}): place the file anew.") from error

    # PIL lets go of the interpreter lock while it decodes, so threads are enough.
    with ThreadPoolExecutor(max_workers=min(16, os.cpu_count() or 1)) as pool:
        arrays = list(pool.map(decode, blobs, chunksize=64))
    shapes = {array.shape for array in arrays}
    if len(shapes) != 1:
        raise DataFormatError(f"All images of a file should have one size, and these have {sorted(shapes)}.")
    stacked = torch.from_numpy(np.stack(arrays))
    return stacked.permute(0, 3, 1, 2).contiguous() if mode == "RGB" else stacked
