"""Archives of data sets: fetched with their checksums compared, and unpacked safely."""

import gzip
import hashlib
import http.client
import lzma
import shutil
import tarfile
import urllib.request
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath
from typing import TypeVar

from mhex._progress import progress_bar, watched
from mhex.lab.datasets import files

PLAIN = (".npz", ".csv")  # published without an archive around them, though the first is a zip archive itself
MOST_BYTES, MOST_FILES = 8 << 30, 200_000  # of an archive, unpacked; those of the known data sets have 2 GB at most
_MEGABYTE = 1 << 20
_SECONDS = 60.0  # without an answer
_BROKEN = (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError)
Entry = TypeVar("Entry", zipfile.ZipInfo, tarfile.TarInfo)


@dataclass(frozen=True)
class Archive:
    """A file as its authors publish it."""

    name: str
    url: str = ""  # where it is fetched; empty where people have to download it
    md5: str = ""


def fetch(archive: Archive, folder: Path, advice: str) -> Path:
    """Fetch an archive into a folder, with a progress bar; its checksum is compared."""
    path, digest, size = folder / archive.name, hashlib.md5(usedforsecurity=False), 0
    try:
        request = urllib.request.Request(archive.url, headers={"User-Agent": "mhex"})
        with urllib.request.urlopen(request, timeout=_SECONDS) as answer, path.open("wb") as file:
            length = answer.headers.get("Content-Length")
            total = int(length) // _MEGABYTE if length else None
            with progress_bar(total, watched(), f"Fetching {archive.name}", "MB") as bar:
                while (chunk := answer.read(_MEGABYTE)) and size <= MOST_BYTES:
                    file.write(chunk)
                    digest.update(chunk)
                    size += len(chunk)
                    bar.reach(size // _MEGABYTE)
    except (OSError, http.client.HTTPException) as error:
        raise files.DataMissingError(f"{archive.name} was not fetched ({error}): {advice}.") from error
    if digest.hexdigest() != archive.md5:
        words = f"{archive.name} should have the MD5 {archive.md5}, and has {digest.hexdigest()}"
        raise files.wrong_file(words, advice)
    return path


def unpack(path: Path, folder: Path) -> None:
    """Unpack the plain files of a tar or zip archive; nothing gets outside the folder, and no links are made."""
    if path.suffix in PLAIN:
        shutil.copyfile(path, folder / path.name)
        return
    words = f"Unpacking {path.name}"
    with files.refuse_damage(f"{path.name} cannot be unpacked", "get it anew", *_BROKEN):
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive, progress_bar(len(archive.infolist()), watched(), words) as bar:
                for entry in _checked(archive.infolist(), path.name):
                    archive.extract(entry, folder)
                    bar.advance()
        elif tarfile.is_tarfile(path):
            with tarfile.open(path) as tar, progress_bar(None, watched(), words) as bar:
                for member in _checked(tar, path.name):
                    if member.isfile():
                        tar.extract(member, folder, filter="data")
                    bar.advance()
        else:
            raise files.wrong_file(f"{path.name} is neither a tar nor a zip archive", "give the archive as published")


def _checked(entries: Iterable[Entry], archive: str) -> Iterator[Entry]:
    """The entries of an archive; names that lead elsewhere, and too much content, are refused."""
    size = 0
    for count, entry in enumerate(entries):
        name = entry.filename if isinstance(entry, zipfile.ZipInfo) else entry.name
        path = PureWindowsPath(name)  # which knows both kinds of slashes
        if path.anchor or ".." in path.parts:
            raise files.wrong_file(f"{archive} has an entry {name!r:.80}, which leads out of its folder")
        size += entry.file_size if isinstance(entry, zipfile.ZipInfo) else entry.size
        if size > MOST_BYTES or count >= MOST_FILES:
            words = f"{archive} claims more than {MOST_BYTES >> 30} GB or {MOST_FILES} files"
            raise files.wrong_file(words, "unpack it yourself, and give the folder by --from")
        yield entry
