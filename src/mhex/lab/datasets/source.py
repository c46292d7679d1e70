"""Where data sets come from: archives as published become the files that loaders read, with the project's own splits.

The file of a data set says by a `Source` which archives it needs, and has the function that makes its file of them.
"""

import io
import lzma
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, TypeVar

from PIL import Image

from mhex._files import folder_aside
from mhex._progress import progress_bar, track, watched
from mhex.errors import ArgumentError, require
from mhex.inputs.photos import plain_rgb
from mhex.lab.datasets import files
from mhex.lab.datasets.archives import PLAIN, Archive, fetch, unpack

if TYPE_CHECKING:
    from mhex.lab.datasets.catalogue import DataEntry

SPLITS_FOLDER = Path(__file__).parent / "splits"
Entry = TypeVar("Entry")


@dataclass(frozen=True)
class Source:
    """How to get a data set."""

    page: str  # where it is published
    target: str  # the file or folder in the data folder
    archives: tuple[Archive, ...] = ()
    # From the originals and the path of the target to a remark for the user; None where people place files themselves.
    make: Callable[["Originals", Path], str] | None = None
    differs: str = ""  # how the result differs from the file that the project's numbers were measured on
    others: tuple[str, ...] = ()  # other places where loaders look

    @property
    def fetchable(self) -> bool:
        """Whether all archives can be fetched by a command."""
        return bool(self.archives) and all(archive.url for archive in self.archives)

    @property
    def advice(self) -> str:
        """What to download, in words."""
        return f"download {' and '.join(archive.name for archive in self.archives)} from {self.page}"

    def place(self, folder: Path) -> Path | None:
        """Where the data set lies in a folder; None if it does not."""
        return next((folder / name for name in (self.target, *self.others) if (folder / name).exists()), None)


class Originals:
    """The published files of a data set, at whatever depth of some folders."""

    def __init__(self, title: str, source: Source, roots: Sequence[Path]) -> None:
        self.title, self.source, self.roots = title, source, tuple(roots)

    def has(self, member: str) -> bool:
        """Whether there is a file or folder, by its relative path."""
        return any(True for root in self.roots for _ in root.rglob(member))

    def folder(self, *members: str) -> Path:
        """The folder that holds all members, which are relative paths of files or folders."""
        above = len(PurePosixPath(members[0]).parts) - 1
        for root in self.roots:
            for path in sorted(root.rglob(members[0])):
                if all((path.parents[above] / member).exists() for member in members):
                    return path.parents[above]
        names = f"{', '.join(members[:3])}{' and others' if len(members) > 3 else ''}"
        raise files.DataMissingError(
            f"{self.title} should come with {names}, which these files lack: {self.source.advice}."
        )

    def photos(self, wanted: Callable[[Path], bool] = lambda path: True) -> dict[str, Path]:
        """Photos by their names without suffixes."""
        paths = sorted(path for root in self.roots for path in root.rglob("*"))
        return {path.stem: path for path in paths if path.suffix.lower() in files.PHOTO_SUFFIXES and wanted(path)}

    def by_list(self, name: str, entries: Mapping[str, Entry]) -> list[tuple[str, str, Entry]]:
        """Name, split and entry of each sample of a split list; files that lack some of them are refused."""
        rows = split_list(name)
        if missing := [key for key, _ in rows if key not in entries]:
            raise files.DataMissingError(
                f"{len(missing)} of {len(rows)} samples of {self.title} are not in these files, such as "
                f"{missing[0]!r}: they are incomplete, or of another data set; {self.source.advice}."
            )
        return [(key, split, entries[key]) for key, split in rows]


def split_list(name: str) -> list[tuple[str, str]]:
    """Name and split of each sample of the project's own file, in its order.

    Samples without a name are listed by a checksum: texts by the first 8 digits of SHA-256, pixels by CRC-32.
    """
    lines = lzma.decompress((SPLITS_FOLDER / f"{name}.txt.xz").read_bytes()).decode("utf-8").splitlines()
    return [(key, split) for key, split in (line.split(" ") for line in lines)]


def copy(*members: str) -> Callable[[Originals, Path], str]:
    """A function that places published files and folders as they are."""

    def make(originals: Originals, target: Path) -> str:
        folder = originals.folder(*members)
        for member in track(members, f"Copying {originals.title}", watched()):
            (target / member).parent.mkdir(parents=True, exist_ok=True)
            (shutil.copytree if (folder / member).is_dir() else shutil.copyfile)(folder / member, target / member)
        return ""

    return make


def write_rows(path: Path, rows: Sequence[Entry], make: Callable[[Entry], dict[str, Any]]) -> None:
    """Write a parquet file; its rows are made in threads, with a progress bar."""
    table = []
    with files.decoding_pool() as pool, progress_bar(len(rows), watched(), f"Making {path.name}", "rows") as bar:
        for row in pool.map(make, rows):
            table.append(row)
            bar.advance()
    require("pyarrow.parquet").write_table(require("pyarrow").Table.from_pylist(table), path)


def read_photo(path: Path) -> Image.Image:
    """A published photo in RGB."""
    with files.opened_image(path, path.name) as photo:
        return plain_rgb(photo, name=path.name)


def encode(image: Image.Image, quality: int | None = None) -> bytes:
    """An image as JPEG of some quality, or as PNG."""
    buffer = io.BytesIO()
    if quality is None:
        image.save(buffer, "PNG")
    else:
        image.save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


def get_data(entry: "DataEntry", paths: Sequence[Path], folder: Path) -> tuple[Path, str]:
    """Make the file of a data set of its archives.

    Args:
        entry: The data set.
        paths: Archives, or folders with them or with their content; without any, archives are fetched.
        folder: The data folder.

    Returns:
        The file or folder that was made, and a remark, which may be empty.
    """
    title, source = entry.title, entry.source
    if source is None:
        raise ArgumentError(f"There is nothing to get of {title}: no archives of it are published.")
    if source.make is None:
        raise ArgumentError(
            f"{title} is not made by a command: get it from {source.page}, and place it in the data folder as "
            f"{entry.files.replace('`', '')}."
        )
    if present := source.place(folder):
        raise ArgumentError(f"{present} is there already: remove it to make it anew, or name another folder by --out.")
    if not paths and not source.fetchable:
        raise ArgumentError(f"{title} cannot be fetched by a command: {source.advice}, and give it by --from.")
    if missing := [path for path in paths if not path.exists()]:
        raise ArgumentError(f"There is no file or folder {str(missing[0])!r}: check what --from names.")
    folders = [path for path in paths if path.is_dir()]
    inside = [place / archive.name for place in folders for archive in source.archives]
    archives = [path for path in paths if path.is_file()]
    archives += [path for path in inside if path.is_file() and path.suffix not in PLAIN]
    with folder_aside(folder / f".{Path(source.target).name}.partial") as aside:
        content, downloads = aside / "originals", aside / "fetched"
        content.mkdir()
        downloads.mkdir()
        if not paths:
            advice = f"{source.advice}, and give it by --from"
            archives = [fetch(archive, downloads, advice) for archive in source.archives]
        for path in archives:
            unpack(path, content)
        target, result = folder / source.target, aside / Path(source.target).name
        remark = source.make(Originals(title, source, [content, *folders]), result)
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(result, target)
    return target, remark
