"""Archives of strangers: nothing gets outside the folder, and what is no archive is refused in a sentence."""

import io
import tarfile
import zipfile

import pytest

from mhex.lab.datasets import DataFormatError
from mhex.lab.datasets.archives import unpack


@pytest.fixture
def inside(tmp_path):
    (tmp_path / "inside").mkdir()
    return tmp_path / "inside"


def tar_of(path, *members):
    with tarfile.open(path, "w:gz") as archive:
        for name, kind, target in members:
            member = tarfile.TarInfo(name)
            member.type, member.linkname, member.size = kind, target, 5 if kind == tarfile.REGTYPE else 0
            archive.addfile(member, io.BytesIO(b"bytes"))
    return path


@pytest.mark.parametrize("name", ["../out.txt", "/tmp/out.txt", "a/../../out.txt", "..\\out.txt", "C:\\out.txt"])
def test_names_that_lead_out_are_refused(tmp_path, inside, name):
    with pytest.raises(DataFormatError, match="leads out of its folder"):
        unpack(tar_of(tmp_path / "a.tar.gz", (name, tarfile.REGTYPE, "")), inside)
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr(name, b"bytes")
    with pytest.raises(DataFormatError, match="leads out of its folder"):
        unpack(tmp_path / "a.zip", inside)
    assert list(inside.iterdir()) == []
    assert not (tmp_path / "out.txt").exists()


def test_links_and_devices_are_not_made(tmp_path, inside):
    path = tar_of(
        tmp_path / "a.tar.gz",
        ("link", tarfile.SYMTYPE, "/etc"),
        ("hard", tarfile.LNKTYPE, "/etc/passwd"),
        ("pipe", tarfile.FIFOTYPE, ""),
        ("file", tarfile.REGTYPE, ""),
    )
    unpack(path, inside)
    assert [(entry.name, entry.read_bytes()) for entry in inside.iterdir()] == [("file", b"bytes")]


def test_archives_of_too_much_are_refused(tmp_path, inside, monkeypatch):
    path = tar_of(tmp_path / "a.tar.gz", *((f"{number}", tarfile.REGTYPE, "") for number in range(4)))
    monkeypatch.setattr("mhex.lab.datasets.archives.MOST_BYTES", 12)
    with pytest.raises(DataFormatError, match="claims more than"):
        unpack(path, inside)
    assert len(list(inside.iterdir())) == 2
    monkeypatch.setattr("mhex.lab.datasets.archives.MOST_BYTES", 1000)
    monkeypatch.setattr("mhex.lab.datasets.archives.MOST_FILES", 3)
    with pytest.raises(DataFormatError, match="3 files"):
        unpack(path, inside)


def test_damaged_files_and_other_files_are_refused(tmp_path, inside):
    whole = tar_of(tmp_path / "a.tar.gz", *((f"{number}", tarfile.REGTYPE, "") for number in range(50))).read_bytes()
    (tmp_path / "cut.tar.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataFormatError, match=r"cut\.tar\.gz cannot be unpacked"):
        unpack(tmp_path / "cut.tar.gz", inside)
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("a", b"bytes" * 100)
    content = bytearray((tmp_path / "a.zip").read_bytes())
    content[60] ^= 255
    (tmp_path / "a.zip").write_bytes(content)
    with pytest.raises(DataFormatError, match=r"a\.zip cannot be unpacked"):
        unpack(tmp_path / "a.zip", inside)
    (tmp_path / "page.html").write_text("Not found")
    with pytest.raises(DataFormatError, match=r"page\.html is neither a tar nor a zip archive"):
        unpack(tmp_path / "page.html", inside)
