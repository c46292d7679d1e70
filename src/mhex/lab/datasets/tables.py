"""Reading columns of a parquet file and decoding columns of encoded images."""

from __future__ import annotations

import io
import os
import struct
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
import torch
from numpy.lib import format as npy
from PIL import Image
from torch import Tensor

from mhex.errors import ArgumentError, MhexError, require
from mhex.inputs.photos import BROKEN, claims_too_much, plain_rgb

Array = np.ndarray[Any, Any]
# What zipfile and numpy raise: also for passwords and kinds of compression that they do not know.
_BROKEN = (zipfile.BadZipFile, OSError, EOFError, ValueError, RuntimeError, zlib.error, struct.error)


def array_shapes(path: Path, names: Sequence[str]) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
    """Shape and type of some arrays of an archive, without reading them.

    Raises:
        DataFormatError: The file is no archive, is damaged, or lacks one of the arrays.
    """
    with _opened(path) as archive:
        present = [name.removesuffix(".npy") for name in archive.namelist()]
        missing = [name for name in names if name not in present]
        if missing:
            raise DataFormatError(
                f"{path.name} should have the arrays {list(names)}, and lacks {missing} (it has {present}): place the "
                "right file in the data folder."
            )
        found = {}
        for name in names:
            with archive.open(f"{name}.npy") as stream:
                shape, _, kind = _header(stream)
                found[name] = (shape, kind)
        return found


def array_rows(path: Path, name: str, rows: Sequence[int]) -> Array:
    """Some rows of an array; of the others nothing stays in memory. Pickled objects are never opened.

    Args:
        path: The archive.
        name: Of the array.
        rows: Numbers, rising.

    Raises:
        DataFormatError: The archive is damaged.
    """
    with _opened(path) as archive, archive.open(f"{name}.npy") as stream:
        shape, by_columns, kind = _header(stream)
        if by_columns or len(shape) < 2:
            plain = np.frombuffer(stream.read(), dtype=kind)
            return plain.reshape(shape, order="F" if by_columns else "C")[list(rows)]
        size = int(np.prod(shape[1:])) * kind.itemsize
        found = np.empty((len(rows), *shape[1:]), dtype=kind)
        wanted = {row: place for place, row in enumerate(rows)}
        for row in range(max(rows, default=-1) + 1):
            read = stream.read(size)
            if len(read) != size:
                raise ValueError(f"{name} ends at row {row} of {shape[0]}")
            if row in wanted:
                found[wanted[row]] = np.frombuffer(read, dtype=kind).reshape(shape[1:])
        return found


def _header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = npy.read_magic(stream)
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, by_columns, kind = read(stream)
    if kind.hasobject:
        raise ValueError("it holds pickled objects, which are never opened")
    return shape, by_columns, kind


@contextmanager
def _opened(path: Path) -> Iterator[zipfile.ZipFile]:
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except _BROKEN as error:
        if isinstance(error, DataFormatError):
            raise
        raise DataFormatError(f"{path.name} is not a numpy archive, or damaged ({error}): place it anew.") from error


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
