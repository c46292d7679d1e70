"""Photos of every depth: which values are black and white is known, said, or asked for."""

import io
import re
import struct
import warnings
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import mhex
from mhex.errors import ArgumentError, ArgumentTypeError, MhexWarning
from mhex.inputs.photos import check_window, plain_rgb, upright_rgb
from mhex.inputs.preprocess import Preprocess
from support.models import FAMILIES

TWELVE = np.array([[0, 1001], [2048, 4095]], np.uint16)  # right-aligned, as cameras and CT write it
AS_EIGHT = np.rint(TWELVE / 4095 * 255).astype(int).tolist()


def opened(values, kind, **options):
    """An image that was written to a file and is not decoded yet."""
    file = io.BytesIO()
    Image.fromarray(values).save(file, kind, **options)
    return Image.open(io.BytesIO(file.getvalue()))


def png(values, significant=None, colour=0):
    """A PNG of 16 bits (h, w) or (h, w, c) with the chunk sBIT."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    height, width = values.shape[:2]
    said = b"" if significant is None else chunk(b"sBIT", bytes(significant))
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 16, colour, 0, 0, 0))
    body = chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return Image.open(io.BytesIO(b"\x89PNG\r\n\x1a\n" + head + said + body))


def tiff(data, bits, **tags):
    """A TIFF, two pixels wide, with further tags by number as t281=4095."""
    known = {256: 2, 257: 2, 258: bits, 259: 1, 262: 1, 273: 400, 277: 1, 278: 2, 279: len(data)}
    known |= {int(name[1:]): value for name, value in tags.items()}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in sorted(known.items()))
    head = b"II*\0" + struct.pack("<IH", 8, len(known)) + entries + b"\0\0\0\0"
    return Image.open(io.BytesIO(head.ljust(400, b"\0") + data))


def grey(photo):
    pixels = np.asarray(photo)
    assert pixels.dtype == np.uint8
    assert pixels.shape[2] == 3
    assert (pixels == pixels[..., :1]).all()
    return pixels[..., 0].tolist()


@pytest.mark.parametrize(
    "photo",
    [
        pytest.param(lambda: opened(TWELVE, "PNG"), id="PNG"),
        pytest.param(lambda: opened(TWELVE, "TIFF"), id="TIFF"),
        pytest.param(lambda: Image.fromarray(TWELVE), id="I;16"),
        pytest.param(lambda: Image.fromarray(TWELVE.astype(">u2")), id="I;16B"),
        pytest.param(lambda: Image.fromarray(TWELVE.astype(np.int32)), id="I"),
        pytest.param(lambda: Image.fromarray(TWELVE.astype(np.float32)), id="F"),
    ],
)
def test_values_of_unknown_range_are_refused_until_a_range_says_it(photo):
    with pytest.raises(ArgumentError, match=r"from 0 to 4095.*for 12 bits say window=\(0, 4095\).*--window=0,4095"):
        upright_rgb(photo())
    assert grey(upright_rgb(photo(), (0, 4095))) == AS_EIGHT
    assert grey(plain_rgb(photo(), (0, 4095))) == AS_EIGHT


def test_hounsfield_units_need_a_range_which_clips():
    slice_ = Image.fromarray(np.array([[-1024, -160], [40, 2000]], np.int32))
    with pytest.raises(ArgumentError, match=r"from -1024 to 2000.*window=\(-1024, 2000\)"):
        upright_rgb(slice_)
    assert grey(upright_rgb(slice_, (-160, 240))) == [[0, 0], [128, 255]]


def test_a_range_scales_all_images_alike():
    dark, bright = (Image.fromarray(np.full((2, 2), value, np.uint16)) for value in (500, 1000))
    assert grey(upright_rgb(dark, (0, 2000)))[0][0] * 2 == grey(upright_rgb(bright, (0, 2000)))[0][0] == 128


def test_sixteen_bits_whose_top_bit_is_used_are_the_whole_range():
    assert grey(upright_rgb(Image.fromarray(np.array([[0, 257 * 128]], np.uint16)))) == [[0, 128]]
    with pytest.raises(ArgumentError, match=r"for 16 bits say window=\(0, 65535\)"):
        upright_rgb(Image.fromarray(np.array([[0, 257 * 127]], np.uint16)))


def test_floats_from_0_to_1_are_known_and_others_are_not():
    assert grey(upright_rgb(Image.fromarray(np.array([[0, 0.2, 1]], np.float32)))) == [[0, 51, 255]]
    for values, said in (([[0, 1.5]], "(0, 2)"), ([[-0.5, 1]], "(-1, 1)"), ([[0, 255.0]], "(0, 255)")):
        with pytest.raises(ArgumentError, match=re.escape(f"window={said}")):
            upright_rgb(Image.fromarray(np.array(values, np.float32)))


def test_png_says_how_many_bits_are_significant():
    assert grey(upright_rgb(png(TWELVE, [12]))) == AS_EIGHT
    # The standard wants them scaled to 16 bits, by shifting, by repeating the upper bits, or by rounding.
    dark = TWELVE // 20  # below 4096 even when it is scaled
    for scaled in (dark << 4, (dark << 4) | (dark >> 8), np.rint(dark.astype(float) * 65535 / 4095).astype(np.uint16)):
        assert grey(upright_rgb(png(scaled, [12]))) == np.rint(dark / 4095 * 255).astype(int).tolist()
    assert grey(upright_rgb(png(TWELVE << 4, [12]))) == AS_EIGHT
    assert grey(upright_rgb(png(TWELVE, [16]))) == np.rint(TWELVE / 257).astype(int).tolist()
    with pytest.raises(ArgumentError, match="window="):
        upright_rgb(png(TWELVE, [99]))


def test_tiff_says_its_depth_or_its_largest_value():
    assert grey(upright_rgb(tiff(TWELVE.tobytes(), 16, t281=4095))) == AS_EIGHT
    assert grey(upright_rgb(tiff(TWELVE.tobytes(), 16, t280=0, t281=4095))) == AS_EIGHT
    # The largest value of this very picture is no range: the next picture would be scaled by another one.
    for tags in ({"t281": 4000}, {"t281": 1023}, {"t281": 65535}, {"t280": 7, "t281": 4095}):
        with pytest.raises(ArgumentError, match="window="):
            upright_rgb(tiff(np.minimum(TWELVE, 4000).tobytes(), 16, **tags))
    near_white = np.array([[0, 1001], [2048, 4087]], np.uint16)  # 4087 is 254.502 of 255 where 4095 is white
    for values, light in ((TWELVE, AS_EIGHT), (near_white, [[0, 62], [128, 255]])):
        pairs = [(a >> 4, (a & 15) << 4 | b >> 8, b & 255) for a, b in values.tolist()]
        packed = tiff(bytes(byte for pair in pairs for byte in pair), 12)
        assert packed.mode == "I;16"
        assert grey(upright_rgb(packed)) == light


def test_tiff_whose_white_is_zero_is_inverted():
    full = np.array([[0, 65535], [0, 0]], np.uint16)
    assert grey(upright_rgb(tiff(full.tobytes(), 16, t262=0))) == [[255, 0], [255, 255]]
    assert grey(upright_rgb(tiff((full // 257).astype(np.uint8).tobytes(), 8, t262=0))) == [[255, 0], [255, 255]]
    assert grey(upright_rgb(tiff(TWELVE.tobytes(), 16, t262=0), (0, 4095))) == (255 - np.array(AS_EIGHT)).tolist()
    light = np.array([[0, 1], [0, 0]], np.float32)
    assert grey(upright_rgb(tiff(light.tobytes(), 32, t262=0, t339=3))) == [[255, 0], [255, 255]]


def test_pgm_says_its_largest_value():
    head = b"P5\n2 2\n%d\n"
    assert grey(upright_rgb(Image.open(io.BytesIO(head % 4095 + TWELVE.astype(">u2").tobytes())))) == AS_EIGHT
    with pytest.raises(ArgumentError, match="window="):
        upright_rgb(Image.open(io.BytesIO(head % 65535 + TWELVE.astype(">u2").tobytes())))


def test_colours_of_sixteen_bits_are_taken_where_the_upper_eight_are_used():
    full = np.array([[[65535, 0, 257 * 7]]], np.uint16)
    assert np.asarray(upright_rgb(png(full, colour=2))).tolist() == [[[255, 0, 7]]]
    assert np.asarray(upright_rgb(png(full // 4, colour=2), (0, 65535))).tolist() == [[[63, 0, 1]]]
    for photo, window in ((png(full // 16, colour=2), None), (png(full, colour=2), (0, 4095))):
        with pytest.raises(ArgumentError, match=r"colours of 16 bits.*8 bits for each colour"):
            upright_rgb(photo, window)
    clear = np.array([[[65535, 65535], [0, 65535]]], np.uint16)  # grey and how opaque it is
    assert np.asarray(upright_rgb(png(clear, colour=4)))[..., 0].tolist() == [[255, 0]]


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "HSV"])
def test_eight_bits_are_known(mode):
    photo = Image.new("RGB", (2, 2), (102, 102, 102)).convert(mode)
    pixels = np.asarray(upright_rgb(photo))
    assert pixels.shape == (2, 2, 3)
    if mode != "1":
        assert abs(int(pixels[0, 0, 0]) - 102) <= 2


def test_a_range_for_eight_bits_must_lie_within_them():
    photo = Image.fromarray(np.array([[50, 100, 150]], np.uint8))
    assert grey(upright_rgb(photo, (50, 150))) == [[0, 128, 255]]
    for low, high in ((0, 4095), (-50, 150)):
        with pytest.raises(ArgumentError, match=rf"8 bits.*window=\({low}, {high}\) goes beyond"):
            upright_rgb(photo, (low, high))


@pytest.mark.parametrize("window", [4095, (0,), (0, 1, 2), (5, 5), (5, 1), (0, float("nan")), ("0", "9")])
def test_ranges_that_are_none_are_refused(window):
    with pytest.raises(ArgumentError, match="two numbers"):
        check_window(window)


def bundle(seen=None):
    """A model whose preprocessing is that of mhex, and notes the mean of what the model is given."""
    model = FAMILIES["plain_cnn"].model(torch.float32)
    if seen is not None:
        model.register_forward_pre_hook(lambda _, inputs: seen.append(float(inputs[0].mean())))
    return mhex.Bundle("tiny", model, Preprocess(32, 48, (0.0,) * 3, (1.0,) * 3))


def test_explain_refuses_deep_photos_by_their_number_and_takes_a_range():
    plain, deep = Image.new("L", (8, 8), 128), Image.fromarray(np.full((8, 8), 2048, np.uint16))
    with pytest.raises(ArgumentError, match=r"Photo 1 holds grey values from 2048 to 2048.*window=\(0, 4095\)"):
        mhex.explain(bundle(), [plain, deep], "gradcam")
    e = mhex.explain(bundle(), deep, "gradcam", window=(0, 4095))
    torch.testing.assert_close(e.scores, mhex.explain(bundle(), plain, "gradcam").scores)
    assert e.pictures[0].getpixel((0, 0)) == (128, 128, 128)


def test_a_users_preprocess_is_given_the_photo_as_it_is_unless_there_is_a_range():
    deep, modes = Image.fromarray(np.full((8, 8), 2048, np.uint16)), []

    def preprocess(photo):
        modes.append((photo.mode, photo.getpixel((0, 0))))
        return torch.rand(3, 32, 48)

    model = FAMILIES["plain_cnn"].model(torch.float32)
    with pytest.warns(MhexWarning, match=r"more than 8 bits are given to your preprocess= as they are.*window="):
        mhex.explain(model, deep, "gradcam", preprocess=preprocess)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mhex.explain(model, deep, "gradcam", preprocess=preprocess, window=(0, 4095))
        mhex.explain(model, Image.new("L", (8, 8)), "gradcam", preprocess=lambda photo: torch.rand(3, 32, 48))
    assert modes == [("I;16", 2048), ("RGB", (128, 128, 128))]


@pytest.mark.parametrize("dtype", [torch.int16, torch.int32, torch.uint16])
def test_tensors_of_whole_numbers_take_a_range_and_the_normalisation(dtype):
    ramp = torch.arange(3 * 32 * 48).view(1, 3, 32, 48) % 4096
    squash = Preprocess(32, 48, (0.1, 0.2, 0.3), (0.5, 0.6, 0.7))
    model = FAMILIES["plain_cnn"].model(torch.float32)
    mean, std = torch.tensor(squash.mean).view(3, 1, 1), torch.tensor(squash.std).view(3, 1, 1)
    wanted = mhex.explain(model, ((ramp / 4095) - mean) / std, "gradcam")
    got = mhex.explain(model, ramp.to(dtype), "gradcam", preprocess=squash, window=(0, 4095))
    torch.testing.assert_close(got.scores, wanted.scores)
    by_name = mhex.explain(model, {"pixel_values": ramp.to(dtype)}, "gradcam", preprocess=squash, window=(0, 4095))
    torch.testing.assert_close(by_name.scores, wanted.scores)
    with pytest.raises(ArgumentTypeError, match=r"from 0 to 4095; convert.*window=\(0, 4095\)"):
        mhex.explain(model, ramp.to(dtype), "gradcam", preprocess=squash)
    with pytest.raises(ArgumentTypeError, match=r"convert them.*a preprocess= that has the mean and std"):
        mhex.explain(model, ramp.to(dtype), "gradcam", window=(0, 4095))


def test_a_range_is_refused_where_nothing_can_be_scaled():
    with pytest.raises(ArgumentError, match="floating-point tensor"):
        mhex.explain(bundle(), torch.rand(1, 3, 32, 48), "gradcam", window=(0, 4095))
    with pytest.raises(ArgumentError, match="texts"):
        mhex.explain(bundle(), ["a text"], "gradcam", window=(0, 4095))
    with pytest.raises(ArgumentError, match="two numbers"):
        mhex.explain(bundle(), Image.new("L", (8, 8)), "gradcam", window=4095)


@pytest.mark.parametrize("own", [False, True])
def test_a_cut_off_photo_in_a_list_is_named(own):
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)).save(file, "JPEG")
    cut = Image.open(io.BytesIO(file.getvalue()[:-900]))
    options = {"preprocess": lambda photo: torch.rand(3, 32, 48)} if own else {}
    with pytest.raises(ArgumentError, match="Photo 2 cannot be read: it is damaged or cut off"):
        mhex.explain(bundle(), [Image.new("L", (8, 8)), Image.new("L", (8, 8)), cut], "gradcam", **options)


def test_evaluate_and_recommend_take_a_range():
    deep, seen = [Image.fromarray(np.full((8, 8), 4095, np.uint16))] * 3, []
    with pytest.raises(ArgumentError, match=r"Photo 0 holds grey values.*window=\(0, 4095\)"):
        mhex.evaluate(bundle(), deep, ["gradcam"], ["deletion"], controls=False)
    report = mhex.evaluate(bundle(seen), deep, ["gradcam"], ["deletion"], controls=False, window=(0, 4095))
    assert report.rows.num_rows == 3
    assert max(seen) == 1
    with pytest.raises(ArgumentError, match=r"Photo 0 holds grey values"):
        mhex.recommend(bundle(), deep, 1, methods=["gradcam"], score="deletion")
    # The models of the race are seen to be given white before any method runs.
    seen.clear()
    with pytest.raises(ArgumentError, match="Expected methods"):
        mhex.recommend(bundle(seen), deep, 1, methods=["control:random"], score="deletion", window=(0, 4095))
    assert set(seen) == {1.0}


def test_evaluate_takes_whole_numbers_with_a_range():
    ramp = torch.arange(2 * 3 * 32 * 48).view(2, 3, 32, 48) % 4096
    by = {"methods": ["gradcam"], "metrics": ["deletion", "max-sensitivity"], "controls": False}
    wanted = mhex.evaluate(bundle(), (ramp / 4095).float(), preprocess=bundle().preprocess, **by)
    got = mhex.evaluate(bundle(), ramp.to(torch.int32), window=(0, 4095), **by)
    assert got.rows["value"].to_pylist() == pytest.approx(wanted.rows["value"].to_pylist(), rel=1e-4)


def test_evaluate_names_a_sample_by_its_number_in_the_data():
    photos = [Image.new("L", (8, 8), 90)] * 3 + [Image.fromarray(np.full((8, 8), 2048, np.uint16))]
    with pytest.raises(ArgumentError, match="Photo 3 holds"):
        mhex.evaluate(bundle(), photos, ["gradcam"], ["deletion"], batch_size=2, controls=False)
    with pytest.raises(ArgumentError, match="Photo 3 holds"):
        mhex.Concept.from_examples(bundle(), photos, batch_size=2)


def test_a_window_with_nothing_of_the_photo_is_refused() -> None:
    deep = Image.fromarray((np.arange(64, dtype=np.uint16) * 40).reshape(8, 8))  # from 0 to 2520
    for window in ((5000, 9000), (-10, -1)):
        with pytest.raises(ArgumentError, match="outside of window"):
            upright_rgb(deep, window)
    with pytest.warns(MhexWarning, match="of its pixels are within window"):
        upright_rgb(deep, (0, 90))


def test_a_window_far_wider_than_the_photo_is_warned_of() -> None:
    light = Image.fromarray(np.linspace(0, 1, 64, dtype=np.float32).reshape(8, 8))
    with pytest.warns(
        MhexWarning, match=r"from 0 to 1, which are less than 1/64 of window=\(0, 4095\): all of its pixels"
    ):
        upright_rgb(light, (0, 4095))
    dark = Image.fromarray(np.full((8, 8), 2, np.uint16) * np.arange(8, dtype=np.uint16))
    with pytest.warns(MhexWarning, match=r"from 0 to 14, which are less than 1/64 of"):
        upright_rgb(dark, (0, 4095))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        upright_rgb(light, (0, 10))
        upright_rgb(Image.fromarray(np.full((8, 8), 2048, np.uint16)), (0, 4095))


@pytest.mark.parametrize(
    ("top", "window", "message"),
    [
        (3, (0, 255), r"from 0 to 3, which are less than 1/64 of window=\(0, 255\): all of its pixels"),
        (200, (0, 4), r"from 0 to 200, and only .* of its pixels are within window=\(0, 4\)"),
        (200, (0, 250), None),
    ],
)
def test_windows_of_eight_bits_and_of_tensors_follow_the_rule_of_deep_photos(
    top: int, window: tuple[float, float], message: str | None
) -> None:
    values = np.linspace(0, top, 32 * 48).round().reshape(32, 48)
    tensor = torch.from_numpy(values.astype(np.int16)).expand(1, 3, 32, 48)
    readers: dict[str, Callable[[], Any]] = {
        "8 bits": lambda: upright_rgb(Image.fromarray(values.astype(np.uint8)), window),
        "colours": lambda: upright_rgb(Image.fromarray(values.astype(np.uint8)).convert("RGB"), window),
        "16 bits": lambda: upright_rgb(Image.fromarray(values.astype(np.uint16)), window),
        "tensor": lambda: mhex.explain(bundle(), tensor, "gradcam", window=window),
    }
    for read in readers.values():
        if message is None:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                read()
        else:
            with pytest.warns(MhexWarning, match=message):
                read()
    with pytest.raises(ArgumentError, match=r"Image 0 holds values from 0 to .*outside of window=\(900, 999\)"):
        mhex.explain(bundle(), tensor, "gradcam", window=(900, 999))
    with pytest.raises(ArgumentError, match=r"outside of window=\(240, 255\)"):
        upright_rgb(Image.fromarray(values.astype(np.uint8)), (240, 255))


def test_tiff_of_signed_bytes_is_refused_and_large_unsigned_numbers_are_read() -> None:
    with pytest.raises(ArgumentError, match="The photo has signed values of 8 bits"):
        upright_rgb(tiff(bytes([0, 127, 128, 255]), 8, t339=2))
    assert grey(upright_rgb(tiff(bytes([0, 127, 128, 255]), 8, t339=1))) == [[0, 127], [128, 255]]
    large = np.array([[0, 2**31 - 1], [2**31, 2**32 - 1]], np.uint32)
    with pytest.raises(ArgumentError, match=r"from 0 to 4\.29497e"):
        upright_rgb(tiff(large.tobytes(), 32))
    assert grey(upright_rgb(tiff(large.tobytes(), 32), (0, 2**32 - 1))) == [[0, 127], [128, 255]]
    signed = np.array([[-1, 0], [1, 2]], np.int32)
    assert grey(upright_rgb(tiff(signed.tobytes(), 32, t339=2), (-1, 2))) == [[0, 85], [170, 255]]
