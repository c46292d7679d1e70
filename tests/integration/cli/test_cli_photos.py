from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from cli_helpers import Run, one_sentence
from PIL import Image

from mhex.cli._parse import open_photo
from mhex.cli.recommend import items_of
from mhex.errors import ArgumentError


def _png_header(width: int, height: int) -> bytes:
    """A PNG that claims a size and holds no pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def _two_colours() -> Image.Image:
    """Red on the left, blue on the right, 40 x 20."""
    picture = Image.new("RGB", (40, 20), (255, 0, 0))
    picture.paste((0, 0, 255), (20, 0, 40, 20))
    return picture


@pytest.mark.parametrize("suffix", ["png", "jpg", "webp", "bmp", "gif", "tif", "ppm"])
def test_photos_of_every_format_are_opened(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.{suffix}"
    _two_colours().save(path)
    photo = open_photo(path)
    assert photo.mode == "RGB"
    assert photo.size == (40, 20)
    red = photo.getpixel((3, 10))
    assert isinstance(red, tuple)
    assert red[0] > 240
    assert max(red[1:]) < 15


def test_the_orientation_of_the_camera_is_undone(tmp_path: Path) -> None:
    path = tmp_path / "turned.jpg"
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: show rotated by 90 degrees clockwise
    _two_colours().save(path, exif=exif, quality=95)
    photo = open_photo(path)
    assert photo.size == (20, 40)
    top, bottom = photo.getpixel((10, 3)), photo.getpixel((10, 36))
    assert isinstance(top, tuple)
    assert isinstance(bottom, tuple)
    assert top[0] > 200 > 50 > top[2]
    assert bottom[2] > 200 > 50 > bottom[0]


@pytest.mark.parametrize("mode", ["L", "LA", "RGBA", "P", "1", "CMYK"])
def test_modes_become_rgb(tmp_path: Path, mode: str) -> None:
    path = tmp_path / ("a.tif" if mode == "CMYK" else "a.png")
    Image.new("RGB", (8, 8), "white").convert(mode).save(path)
    photo = open_photo(path)
    assert photo.mode == "RGB"
    assert photo.getpixel((4, 4)) == (255, 255, 255)


def test_transparency_is_white(tmp_path: Path) -> None:
    Image.new("RGBA", (8, 8), (255, 0, 0, 0)).save(tmp_path / "a.png")
    assert open_photo(tmp_path / "a.png").getpixel((1, 1)) == (255, 255, 255)


def test_sixteen_bits_are_scaled_not_cut_off(tmp_path: Path) -> None:
    values = np.array([[0, 257 * 100], [257 * 200, 65535]], np.uint16)
    Image.fromarray(values).save(tmp_path / "deep.png")
    photo = np.asarray(open_photo(tmp_path / "deep.png"))
    assert photo[..., 0].tolist() == [[0, 100], [200, 255]]
    assert (photo[..., 0] == photo[..., 2]).all()


def test_floats_are_scaled_and_must_be_numbers(tmp_path: Path) -> None:
    Image.fromarray(np.array([[0.0, 1.0]], np.float32)).save(tmp_path / "a.tif")
    assert np.asarray(open_photo(tmp_path / "a.tif"))[0, :, 0].tolist() == [0, 255]
    Image.fromarray(np.array([[0.0, np.nan]], np.float32)).save(tmp_path / "a.tif")
    with pytest.raises(ArgumentError, match="not finite"):
        open_photo(tmp_path / "a.tif")


def test_missing_folder_and_empty(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="is no file; check the path"):
        open_photo(tmp_path / "none.png")
    with pytest.raises(ArgumentError, match="is a folder"):
        open_photo(tmp_path)
    (tmp_path / "empty.png").touch()
    with pytest.raises(ArgumentError, match="0 bytes"):
        open_photo(tmp_path / "empty.png")


def test_photos_without_permission_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    path = tmp_path / "a.png"
    _two_colours().save(path)
    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(ArgumentError, match=r"cannot be read: Permission denied\."):
        open_photo(path)


def test_no_picture_whatever_its_name(tmp_path: Path) -> None:
    for name, content in (("a.png", b"hello, I am text"), ("b.jpg", b"%PDF-1.4 ..."), ("c.png", b"\x00" * 100)):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ArgumentError, match=r"Expected a photo .* is none of these"):
            open_photo(tmp_path / name)


def test_postscript_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "a.eps").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n")
    with pytest.raises(ArgumentError, match=r"Expected a photo .* is none of these"):
        open_photo(tmp_path / "a.eps")


@pytest.mark.parametrize("suffix", ["png", "jpg", "webp", "gif", "tif"])
def test_photos_that_are_cut_off_are_refused(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.{suffix}"
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ArgumentError, match=r"damaged or cut off|not a picture"):
        open_photo(path)


def test_a_bomb_is_not_unpacked(tmp_path: Path) -> None:
    (tmp_path / "bomb.png").write_bytes(_png_header(60_000, 60_000))
    with pytest.raises(ArgumentError, match="million pixels"):
        open_photo(tmp_path / "bomb.png")


def test_the_limit_is_ours_even_if_pils_is_lifted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    (tmp_path / "bomb.png").write_bytes(_png_header(60_000, 60_000))
    with pytest.raises(ArgumentError, match="million pixels"):
        open_photo(tmp_path / "bomb.png")


def test_a_large_photo_is_no_bomb(
    tmp_path: Path, recwarn: pytest.WarningsRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Between one and two times its limit PIL only warns; modern cameras make such photos.
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 600)
    _two_colours().save(tmp_path / "large.png")
    assert open_photo(tmp_path / "large.png").size == (40, 20)
    assert not recwarn.list


def _deep(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.array([[0, 1001], [2048, 4095]], np.uint16)).save(path)
    return path


def test_a_range_is_asked_for_and_taken(run: Run, zoo: Path, tmp_path: Path) -> None:
    deep, out = _deep(tmp_path / "deep.png"), tmp_path / "o"
    assert "for 12 bits say window=(0, 4095) (in a command, --window=0,4095)" in one_sentence(
        run("explain", deep, "--out", out)
    )
    assert run("explain", deep, "--out", out, "--window=0,4095").exit_code == 0
    assert open_photo(deep, (0, 4095)).getpixel((1, 0)) == (62, 62, 62)
    for window in ("12", "0,1,2", "a,b", "5,1"):
        assert "two numbers" in one_sentence(run("explain", deep, "--out", out, f"--window={window}"))
    assert "beside photos" in one_sentence(run("explain", "--text", "a", "--window=0,1"))


def _slice(path: Path, low: int, high: int) -> Path:
    """A slice in Hounsfield units, as a TIFF of 32 bits."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.array([[low, 0], [40, high]], np.int32)).save(path)
    return path


def test_slices_without_a_range_share_one_sentence(run: Run, zoo: Path, cat: Path, tmp_path: Path) -> None:
    slices = [_slice(tmp_path / f"{n}.tif", -1000 - n, 300 + 100 * n) for n in range(3)]
    sentence = one_sentence(run("explain", *slices, "--out", tmp_path / "o"))
    assert "0.tif and 2 more hold grey values from -1002 to 500" in sentence
    assert "--window=-1002,500" in sentence
    result = run("explain", *slices[:2], cat, "--out", tmp_path / "o")
    assert result.exit_code == 3
    hints = [line for line in result.stderr.splitlines() if "window" in line]
    assert len(hints) == 1
    assert "0.tif and 1 more hold grey values from -1001 to 400" in hints[0]
    assert run("explain", *slices, "--window=-1002,500", "--out", tmp_path / "o").exit_code == 0


def test_a_folder_of_slices_gives_the_range_over_all(tmp_path: Path) -> None:
    from mhex.inputs.samples import losses_in_words

    for n in range(4):
        _slice(tmp_path / "own" / "cat" / f"{n}.tif", -1000 - n, 300 + 100 * n)
    (tmp_path / "own" / "cat" / "damaged.tif").write_bytes(b"II*")
    items = items_of(str(tmp_path / "own"))
    reasons = {}
    for number in range(3):
        with pytest.raises(ArgumentError, match=r"^0\.tif and 3 more hold grey values from -1003 to 600 ") as refusal:
            items[number]
        reasons[number] = str(refusal.value)
    assert losses_in_words(reasons) == f"samples 0, 1, 2: {reasons[0]}"


def test_recommend_reads_folders_through_the_range(tmp_path: Path) -> None:
    _deep(tmp_path / "own" / "cat" / "a.png")
    table = tmp_path / "own" / "own.csv"
    table.write_text("image,label\ncat/a.png,cat\n", encoding="utf-8")
    for name in (str(tmp_path / "own"), f"folder:{tmp_path / 'own'}", f"csv:{table}"):
        assert np.asarray(items_of(name, None, (0, 4095))[0]["image"]).max() == 255
        with pytest.raises(ArgumentError, match="window"):
            items_of(name)[0]
    with pytest.raises(ArgumentError, match="beside --window, but got pets"):
        items_of("pets", None, (0, 4095))


def test_the_blank_text_is_named(run: Run) -> None:
    assert "a blank one as number 3" in one_sentence(run("explain", "--text", "a", "--text", "b", "--text", " "))
