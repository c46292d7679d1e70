"""The data folder, and how its files are read: tables in parquet and CSV, numpy archives, images, photos and masks."""

import csv
import io
import math
import os
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import IO, Any, Literal, Protocol, TypeVar

import numpy as np
import torch
from numpy.lib import format as npy
from PIL import Image
from torch import Tensor

from mhex.errors import ArgumentError, MhexError, require
from mhex.inputs.photos import BROKEN, UnknownWindowError, Window, check_window, claims_too_much, plain_rgb, upright_rgb

DATA_VARIABLE = "MHEX_DATA"
PHOTO_SUFFIXES = (".jpeg", ".jpg", ".png", ".bmp", ".webp", ".tif", ".tiff")
RIGHT, PUBLISHED = "place the right file in the data folder", "place the published file"  # advice on wrong files
Fit = Literal["crop", "squash"]
Array = np.ndarray[Any, Any]
Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Item = TypeVar("Item")
# Errors of zipfile and numpy; they also come from passwords and from unknown kinds of compression.
DENSEST = 1032  # bytes that deflate makes of a byte, at most
_BROKEN_ARCHIVE = (
    *(zipfile.BadZipFile, zlib.error, struct.error, tokenize.TokenError, OSError, EOFError, ValueError, RuntimeError),
    *(SyntaxError, MemoryError),
)
# A column has the same type in all data sets.
_TYPES: dict[str, tuple[type, str]] = {
    **dict.fromkeys(("name", "split", "text", "title"), (str, "texts")),
    **dict.fromkeys(("image", "mask", "trimap"), (bytes, "encoded images")),
    **dict.fromkeys(("label", "breed", "species"), (int, "whole numbers")),
}


class DataMissingError(MhexError, FileNotFoundError):
    """A data file or the data folder is missing; the message says what to place where."""


class DataFormatError(MhexError, ValueError):
    """A data file does not hold what it should."""


def wrong_file(problem: str, advice: str = "the file is damaged or of another data set") -> DataFormatError:
    """Build the error for a file that does not hold what it should."""
    return DataFormatError(f"{problem}: {advice}.")


@contextmanager
def refuse_damage(problem: str, advice: str, *kinds: type[Exception]) -> Iterator[None]:
    """Turn errors of some kinds into a `DataFormatError` with the problem, the reason and, if there is any, advice."""
    try:
        yield
    except MhexError:
        raise
    except kinds as error:
        raise DataFormatError(f"{problem} ({error}){advice and f': {advice}'}.") from error


def data_folder() -> Path:
    """The folder that ``MHEX_DATA`` names; a `DataMissingError` says how to name one."""
    name = os.environ.get(DATA_VARIABLE, "").strip()
    if not name:
        raise DataMissingError(
            f"No data folder is known: set the environment variable {DATA_VARIABLE} to the folder that holds the data "
            f"files, for example: export {DATA_VARIABLE}=~/mhex-data"
        )
    folder = Path(name).expanduser()
    if not folder.is_dir():
        raise DataMissingError(
            f"{DATA_VARIABLE} names {str(folder)!r}, which is not a folder: create it and place the data files in it, "
            f"or set {DATA_VARIABLE} to the folder that holds them."
        )
    return folder


def data_file(name: str, description: str) -> Path:
    """The path of a file in the data folder; the description is for the message where it is missing."""
    if not os.environ.get(DATA_VARIABLE, "").strip():
        raise DataMissingError(
            f"{name} ({description}) is needed, and no data folder is known: place the file in a folder of your "
            f"choice and set the environment variable {DATA_VARIABLE} to that folder."
        )
    path = data_folder() / name
    if not path.is_file():
        raise DataMissingError(
            f"{name} ({description}) is not in the data folder {str(path.parent)!r}: place it there, or set the "
            f"environment variable {DATA_VARIABLE} to the folder that holds it."
        )
    return path


def check_listed(paths: Sequence[Path], source: str) -> Sequence[Path]:
    """The paths that a file lists; a path that does not exist is refused."""
    for path in paths:
        with refuse_damage(f"{source} names {path.name!r:.40}, which no file can be called", "", OSError):
            present = path.is_file()
        if not present:
            raise DataMissingError(f"{source} names {str(path)!r}, which is not there: place it there.")
    return paths


def split_parts(splits: Sequence[str], split: str) -> Sequence[str]:
    """The splits that a name stands for: itself, or all of them; an unknown name is refused."""
    names = sorted(set(splits))
    if split != "all" and split not in names:
        raise ArgumentError(f"split should be one of {[*names, 'all']}, not {split!r}.")
    return splits if split == "all" else (split,)


def evenly_spaced(items: Sequence[Item], limit: int | None) -> list[Item]:
    """At most ``limit`` items, evenly spaced, since items are often sorted by class."""
    if limit is not None and limit < 1:
        raise ArgumentError(f"limit should be a positive number of rows or None, not {limit}.")
    if limit is None or limit >= len(items):
        return list(items)
    return [items[place * len(items) // limit] for place in range(limit)]


def pick_rows(splits: Sequence[str], split: str, limit: int | None = None) -> list[int]:
    """Row numbers of one split, or of ``"all"``, in ascending order; at most ``limit``, evenly spaced."""
    split_parts(splits, split)
    return evenly_spaced([row for row, name in enumerate(splits) if split in ("all", name)], limit)


def read_split(
    name: str, title: str, columns: Sequence[str], split: str, limit: int | None
) -> tuple[dict[str, list[Any]], list[int]]:
    """The columns of one split of a parquet file in the data folder as lists, and the numbers of its rows."""
    path = data_file(name, f"{title} with the columns {', '.join(columns)} and split")
    table = read_columns(path, [*columns, "split"])
    rows = pick_rows(table["split"], split, limit)
    return {column: [values[row] for row in rows] for column, values in table.items()}, rows


def read_columns(path: Path, columns: Sequence[str]) -> dict[str, list[Any]]:
    """Some columns of a parquet file as lists, in the order of the rows."""
    parquet, broken = require("pyarrow.parquet"), require("pyarrow").ArrowException
    problem, kinds = f"{path.name} is not a parquet file, or damaged", (broken, OSError, UnicodeDecodeError)
    with refuse_damage(problem, "place it anew", *kinds), parquet.ParquetFile(path) as file:
        present = file.schema_arrow.names
        if wrong := [name for name in columns if present.count(name) != 1]:
            fault = f"has {wrong} twice" if wrong[0] in present else f"lacks {wrong}"
            words = f"should have the columns {list(columns)}, and {fault} (it has {list(present)})"
            raise wrong_file(f"{path.name} {words}", RIGHT)
        table = file.read(columns=list(columns))
        values = {name: table.column(name).to_pylist() for name in columns}
    for name in columns:
        kind, words = _TYPES.get(name, (object, ""))
        for value in values[name]:
            if not isinstance(value, kind):
                column = f"The column {name!r} of {path.name}"
                raise wrong_file(f"{column} should hold {words} in all rows, and {value!r:.40} came", RIGHT)
    return values


def checked_labels(values: Sequence[int], classes: Sequence[str], title: str) -> Tensor:
    """Labels (N,), int64, each a place in ``classes``; others are refused in the name of the data set."""
    problem = f"Labels of {title} should be whole numbers, and others came"
    with refuse_damage(problem, "", TypeError, ValueError, RuntimeError):
        labels = torch.tensor(values, dtype=torch.int64)
    if len(labels) and (int(labels.min()) < 0 or int(labels.max()) >= len(classes)):
        span = f"{int(labels.min())}..{int(labels.max())}"
        raise wrong_file(f"Labels of {title} should lie in 0..{len(classes) - 1}, and {span} came")
    return labels


def csv_lines(path: Path, advice: str) -> list[list[str]]:
    """The lines of a CSV file in UTF-8, empty ones aside."""
    with (
        refuse_damage(f"{path.name} is not a CSV file in UTF-8", advice, UnicodeDecodeError, csv.Error),
        path.open(encoding="utf-8-sig", newline="") as stream,
    ):
        return [line for line in csv.reader(stream) if line]


def read_csv(path: Path) -> dict[str, list[str]]:
    """The columns of a CSV file in UTF-8 with a heading."""
    heading, *lines = csv_lines(path, "save it so") or [[]]
    wrong = next((number for number, line in enumerate(lines, 2) if len(line) != len(heading)), None)
    if not lines or wrong is not None or len(set(heading)) != len(heading):
        rows = (
            f"row {wrong} has other than {len(heading)} entries" if wrong else f"{len(lines)} rows and {heading} came"
        )
        raise DataFormatError(f"{path.name} should have a heading of different names and rows below, and {rows}.")
    return {name.strip(): [line[place].strip() for line in lines] for place, name in enumerate(heading)}


def csv_column(table: dict[str, list[str]], name: str, file: str) -> list[str]:
    """A column of a CSV file; a missing column is refused with the names of the present ones."""
    if name not in table:
        raise wrong_file(f"{file} should have the column {name!r}, and has {list(table)}", "add it, or name another")
    return table[name]


def csv_numbers(table: dict[str, list[str]], name: str, file: str) -> list[float]:
    """A column of a CSV file as numbers."""
    with refuse_damage(f"The column {name!r} of {file} should hold numbers in all rows", "", ValueError):
        numbers = [float(value) for value in csv_column(table, name, file)]
        if strange := [number for number in numbers if not math.isfinite(number)]:
            raise ValueError(f"{strange[0]} came")
    return numbers


def array_shapes(path: Path, names: Sequence[str]) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
    """Shapes and types of some arrays of a numpy archive, without reading the arrays."""
    shapes = {}
    with _opened(path) as archive:
        present = [name.removesuffix(".npy") for name in archive.namelist()]
        if missing := [name for name in names if name not in present]:
            words = f"should have the arrays {list(names)}, and lacks {missing} (it has {present})"
            raise wrong_file(f"{path.name} {words}", RIGHT)
        for name in names:
            with archive.open(f"{name}.npy") as stream:
                shape, _, kind = _header(stream)
            size = math.prod(shape) * kind.itemsize
            if size > min(archive.getinfo(f"{name}.npy").file_size, DENSEST * path.stat().st_size):
                raise ValueError(f"{name} claims {size} bytes, which the file has not got")
            shapes[name] = (shape, kind)
    return shapes


def array_rows(path: Path, name: str, rows: Sequence[int]) -> Array:
    """Some rows, in rising order, of an array of a numpy archive; the array is never in memory as a whole."""
    with _opened(path) as archive, archive.open(f"{name}.npy") as stream:
        shape, by_columns, kind = _header(stream)
        if by_columns or len(shape) < 2:
            plain = np.frombuffer(stream.read(), dtype=kind)
            return plain.reshape(shape, order="F" if by_columns else "C")[list(rows)]
        size = int(np.prod(shape[1:])) * kind.itemsize
        array = np.empty((len(rows), *shape[1:]), dtype=kind)
        places = {row: place for place, row in enumerate(rows)}
        for row in range(max(rows, default=-1) + 1):
            content = stream.read(size)
            if len(content) != size:
                raise ValueError(f"{name} ends at row {row} of {shape[0]}")
            if row in places:
                array[places[row]] = np.frombuffer(content, dtype=kind).reshape(shape[1:])
        return array


def _header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, order and type of the array in a stream."""
    read = npy.read_array_header_1_0 if npy.read_magic(stream) == (1, 0) else npy.read_array_header_2_0
    shape, by_columns, kind = read(stream)
    if kind.hasobject:
        raise ValueError("it holds pickled objects, which are never opened")
    return shape, by_columns, kind


@contextmanager
def _opened(path: Path) -> Iterator[zipfile.ZipFile]:
    problem = f"{path.name} is not a numpy archive, or damaged"
    with refuse_damage(problem, "place it anew", *_BROKEN_ARCHIVE), zipfile.ZipFile(path) as archive:
        yield archive


@contextmanager
def opened_image(source: Path | bytes, name: str) -> Iterator[Image.Image]:
    """An encoded image, not decoded yet; a damaged one is refused, also while it is decoded."""
    stream = io.BytesIO(source) if isinstance(source, bytes) else source
    kinds = (*BROKEN, Image.DecompressionBombError)
    with refuse_damage(f"{name} cannot be decoded", "place the file anew", *kinds), Image.open(stream) as image:
        size = len(source) if isinstance(source, bytes) else source.stat().st_size
        if claims_too_much(image, size):
            raise DataFormatError(f"{name} claims {image.width} x {image.height} pixels: shrink it first.")
        yield image


def decode_images(blobs: Sequence[bytes], mode: Literal["RGB", "L"] = "RGB") -> Tensor:
    """Decode encoded images of one size: (N, 3, H, W) for ``"RGB"`` and (N, H, W) for ``"L"``, uint8."""
    if not blobs:
        raise ArgumentError("There are no images to decode: at least one was expected.")
    name = "An image of the file"

    def decode(blob: bytes) -> Array:
        with opened_image(blob, name) as image:
            return np.asarray(plain_rgb(image, name=name) if mode == "RGB" else image.convert(mode), dtype=np.uint8)

    with decoding_pool() as pool:
        arrays = list(pool.map(decode, blobs, chunksize=64))
    shapes = {array.shape for array in arrays}
    if len(shapes) != 1:
        raise DataFormatError(f"All images of a file should have one size, and these have {sorted(shapes)}.")
    stacked = torch.from_numpy(np.stack(arrays))
    return stacked.permute(0, 3, 1, 2).contiguous() if mode == "RGB" else stacked


def decoding_pool() -> ThreadPoolExecutor:
    """Threads that decode images; they are enough, since PIL releases the interpreter lock while it decodes."""
    return ThreadPoolExecutor(max_workers=min(16, os.cpu_count() or 1))


class PhotoRows(Protocol):
    """An object whose rows are taken like those of a tensor."""

    def __len__(self) -> int:
        """Number of rows."""

    def __getitem__(self, rows: Tensor) -> Tensor:
        """The rows with some numbers (B,), stacked."""


def class_photos(root: Path, classes: Sequence[str]) -> list[tuple[Path, int]]:
    """The photos in ``root/CLASS/`` with the places of their classes, in the order of classes and names."""
    # torchvision's ImageFolder also enters folders inside the folder of a class, such as those of thumbnails.
    return [
        (path, place)
        for place, name in enumerate(classes)
        for path in sorted((root / name).glob("*"))
        if path.suffix.lower() in PHOTO_SUFFIXES
    ]


def fitted(photo: Image.Image, side: int, fit: Fit, *, nearest: bool = False) -> Image.Image:
    """A photo or mask as a square: cut out of the middle, or both sides scaled; ``nearest`` is for masks."""
    resample = Image.Resampling.NEAREST if nearest else Image.Resampling.BICUBIC
    if fit == "squash":
        return photo.resize((side, side), resample)
    scale = side / min(photo.size)
    width, height = (max(side, round(length * scale)) for length in photo.size)
    x, y = (width - side) // 2, (height - side) // 2
    return photo.resize((width, height), resample).crop((x, y, x + side, y + side))


class _Files:
    """Files that become squares, several at a time; `_square` makes the square of an opened file."""

    _square: Callable[[Image.Image, Path], Array]

    def __init__(self, paths: Sequence[Path], side: int, fit: Fit) -> None:
        if fit not in ("crop", "squash"):
            raise ArgumentError(f"fit should be 'crop' or 'squash', not {fit!r}.")
        if side < 1:
            raise ArgumentError(f"side should be a positive number of pixels, not {side}.")
        self.paths, self.side = tuple(paths), side
        self.fit: Fit = fit
        self._pool = decoding_pool()

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the files without their suffixes."""
        return tuple(path.stem for path in self.paths)

    def __getitem__(self, rows: Tensor) -> Tensor:
        several = len(rows) > 1  # a thread of its own takes longer than most photos
        opened = self._pool.map(self._opened, rows.tolist()) if several else map(self._opened, rows.tolist())
        return torch.from_numpy(np.stack(list(opened)))

    def _opened(self, row: int) -> Array:
        path = self.paths[row]
        with opened_image(path, path.name) as photo:
            return self._square(photo, path)


class PhotoFiles(_Files):
    """Photos in files, taken like rows of a tensor: ``files[rows]`` is (B, 3, side, side), uint8, made by `fitted`.

    With `upright`, they are turned as their camera says, with transparency over white; published collections are not.
    The window has the values that become black and white, for photos of more than 8 bits that do not say them.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        side: int,
        fit: Fit = "crop",
        *,
        upright: bool = False,
        window: Window | None = None,
    ) -> None:
        super().__init__(paths, side, fit)
        self.upright, self.window = upright, check_window(window)
        self._lock = Lock()
        self._refusal: UnknownWindowError | None = None

    def _square(self, photo: Image.Image, path: Path) -> Bytes:
        photo.draft("RGB", (self.side, self.side))  # JPEG is decoded at a smaller scale where that suffices
        try:
            plain = (upright_rgb if self.upright else plain_rgb)(photo, self.window, path.name)
        except UnknownWindowError as error:
            raise self._unknown_window(error) from error
        return np.asarray(fitted(plain, self.side, self.fit)).transpose(2, 0, 1)

    def _unknown_window(self, error: UnknownWindowError) -> UnknownWindowError:
        """One sentence for all files whose black and white are not known, with the range over all of them."""
        with self._lock:
            if self._refusal is None:
                errors = []
                for path in self.paths:
                    try:
                        with opened_image(path, path.name) as photo:
                            plain_rgb(photo, self.window, path.name)
                    except UnknownWindowError as refusal:
                        errors.append(refusal)
                    except MhexError:
                        continue  # this file is refused for another reason when it is taken
                self._refusal = UnknownWindowError.joined(errors or [error])
        return self._refusal


class MaskFiles(_Files):
    """Masks in files, grey or with a palette whose places count: ``files[rows]`` is (B, side, side).

    ``convert`` makes the mask from the values (side, side), uint8, and the name of the file.
    """

    def __init__(self, paths: Sequence[Path], side: int, fit: Fit, convert: Callable[[Bytes, str], Array]) -> None:
        super().__init__(paths, side, fit)
        self._convert = convert

    def _square(self, photo: Image.Image, path: Path) -> Array:
        plain = photo if photo.mode in ("P", "L") else photo.convert("L")
        return self._convert(np.asarray(fitted(plain, self.side, self.fit, nearest=True), dtype=np.uint8), path.name)


def object_mask(values: Bytes, name: str) -> np.ndarray[Any, np.dtype[np.int8]]:
    """A user's mask: 1 where it is not black, 0 elsewhere."""
    return (values > 0).astype(np.int8)
