"""Reading numpy archives row by row: some are larger, unpacked, than memory."""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy

from mhex.data.table import DataFormatError

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
