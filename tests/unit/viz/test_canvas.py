"""Pictures of pixels: the blend against a second formula, sizes, letters, and files of each sample."""

import colorsys
import io
import subprocess
import sys
from contextlib import nullcontext

import matplotlib
import numpy as np
import pytest
import torch
from PIL import Image

from mhex import _progress
from mhex.errors import ArgumentError
from mhex.viz import Canvas, comparison, figure, figures, letters, save_figure, to_html
from mhex.viz.canvas import render
from mhex.viz.colour import blend


def mixed(pixel, score, signed):
    """The blend of one pixel, in plain numbers: a paler photo below, the colour map above."""
    name, low, high = ("RdBu_r", 0.06, 0.94) if signed else ("inferno", 0.25, 0.92)
    colour = matplotlib.colormaps[name](low + (high - low) * ((score + 1) / 2 if signed else score))
    light = 0.2126 * pixel[0] + 0.7152 * pixel[1] + 0.0722 * pixel[2]
    opacity = 0.82 * abs(score) ** 0.8
    below = [(0.35 * value + 0.65 * light) * (1 if signed else 0.78) for value in pixel]
    return [(1 - opacity) * value + opacity * 255 * paint for value, paint in zip(below, colour, strict=False)]


@pytest.mark.parametrize("signed", [False, True])
def test_the_blend_is_that_of_a_second_formula(signed):
    scores = np.array([[-1, -0.6, -0.2, 0, 0.3, 0.7, 1] if signed else [0, 0.1, 0.3, 0.5, 0.7, 0.9, 1]], np.float32)
    photo = np.random.default_rng(0).integers(0, 256, (1, 7, 3), np.uint8)
    wanted = [mixed(photo[0, n].tolist(), float(scores[0, n]), signed) for n in range(7)]
    np.testing.assert_allclose(blend(photo, scores, signed)[0], wanted, atol=0.51)


def test_the_ends_of_the_colour_maps_on_black():
    black, ends = np.zeros((1, 2, 3), np.uint8), np.array([[-1, 1]], np.float32)
    against, support = (pixel / 255 for pixel in blend(black, ends, signed=True)[0].astype(float))
    assert colorsys.rgb_to_hsv(*against)[0] == pytest.approx(0.59, abs=0.03), "blue"
    assert colorsys.rgb_to_hsv(*support)[0] == pytest.approx(0.97, abs=0.03), "red"
    assert np.array_equal(blend(black, 3 * ends, signed=True), blend(black, ends, signed=True)), "clipped"


@pytest.mark.parametrize("signed", [False, True])
def test_a_canvas_shows_what_the_figure_shows(image, signed):
    """The same size, and nearly the same pixels, as matplotlib draws; letters are hinted otherwise."""
    torch.manual_seed(0)
    explanation = image(torch.randn(2, 3, 5, 5), signed=signed)
    canvas, drawn = figure(explanation, paper=Canvas), figure(explanation)
    ours, theirs = (np.asarray(Image.open(io.BytesIO(render(d, "png"))).convert("RGB")) for d in (canvas, drawn))
    assert ours.shape == theirs.shape
    assert np.abs(ours.astype(int) - theirs).mean() < 2
    blank = np.abs(255 - theirs.astype(int)).mean()
    assert blank > 20, "white paper would not pass"


@pytest.mark.parametrize("side", [28, 1500])
def test_a_picture_has_one_size_whatever_the_photo(image, corner, tmp_path, side):
    explanation = image(corner, pictures=[Image.new("L", (side, side), 90)])
    with Image.open(save_figure(explanation, tmp_path / "map.png")) as saved:
        assert (saved.size, saved.mode) == ((1136, 852), "RGB")
        # Below the map: the grey photo, as it is, two inches below its title.
        assert saved.getpixel((300, 400)) == (90, 90, 90)


def test_plain_pictures_need_no_figure():
    """Neither matplotlib's figures nor pyplot are loaded for files of pixels, pages and comparisons."""
    code = """
import sys, tempfile, torch, mhex.viz
from mhex import Explanation
p = torch.tensor([[0.2, 0.8]])
e = Explanation(torch.rand(1, 4, 4), torch.tensor([1]), p.log(), p, "gae", size=(8, 8))
with tempfile.TemporaryDirectory() as folder:
    e.save(f"{folder}/e.png"), e.save(f"{folder}/e.html"), e.save(f"{folder}/maps/")
    mhex.viz.save_figure([e, e], f"{folder}/both.jpg")
    print([name for name in ("matplotlib.figure", "matplotlib.pyplot") if name in sys.modules])
    e.save(f"{folder}/e.svg")
    print("matplotlib.figure" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout) == (0, "[]\nTrue\n"), done.stderr


def test_a_canvas_is_no_file_of_shapes(image, corner, tmp_path):
    canvas = figure(image(corner), paper=Canvas)
    with pytest.raises(ArgumentError, match=r"pixels \(png, jpeg, webp\) of a canvas, but got pdf"):
        save_figure(canvas, tmp_path / "map.pdf")
    assert save_figure(canvas, tmp_path / "map.webp").read_bytes().startswith(b"RIFF")


def test_letters_come_from_the_font_that_has_them(monkeypatch):
    """A line of two scripts is written in pieces; measured and drawn widths agree."""
    plain, bold = next(iter(letters._files(False))), next(iter(letters._files(True)))
    files = {bold: frozenset(map(ord, "abc ")), plain: frozenset(map(ord, "abcé "))}
    monkeypatch.setattr(letters, "_files", lambda heavy: files if heavy else {plain: files[plain]})
    parts = letters.pieces("ab é c", 20, bold=True)
    assert [(text, face.path) for text, face in parts] == [("ab ", bold), ("é", plain), (" c", bold)]
    width = sum(face.getlength(text) for text, face in parts)
    assert letters.text_width.__wrapped__("ab é c", 9, bold=True) == pytest.approx(1.03 * width * 9 / 20 / 72, rel=0.01)


@pytest.mark.parametrize("text", ["great white shark", "Ägyptische Mau, 85 %", "AVAVA To We fi"])
def test_a_line_is_as_wide_as_measured(text):
    canvas = Canvas(6, 1)
    canvas.write(0.5, 0.5, text, 12)
    columns = np.flatnonzero((np.asarray(canvas.image) < 128).any((0, 2)))
    assert columns[0] == pytest.approx(100, abs=4)
    measured = letters.text_width(text, 12)
    assert 0.93 * measured < (columns[-1] + 1 - columns[0]) / 200 <= measured


def test_words_have_boxes_with_round_corners():
    canvas = Canvas(1, 1)
    canvas.box(0.25, 0.25, 0.5, 0.5, "#ff0000")
    drawn = np.asarray(canvas.image)
    assert drawn[100, 100].tolist() == [255, 0, 0]
    assert drawn[49, 100].tolist() == drawn[50, 50].tolist() == [255, 255, 255], "outside, and at the corner"
    edge = drawn[50:57, 50:57, 1]
    assert ((edge > 0) & (edge < 255)).any(), "smooth"


def test_a_batch_of_files_equals_single_saves(image, tmp_path):
    noise = np.random.default_rng(1)
    photos = [Image.fromarray(noise.integers(0, 256, (60 + n, 90, 3), np.uint8)) for n in range(12)]
    scores = torch.randn(12, 2, 5, 5)
    assert image(scores, signed=True, pictures=photos).save(f"{tmp_path}/maps/") == tmp_path / "maps"
    names = [f"{n:04d}.png" for n in range(12)]
    assert sorted(path.name for path in (tmp_path / "maps").iterdir()) == names
    for n, name in enumerate(names):
        single = image(scores[n : n + 1], signed=True, pictures=photos[n : n + 1]).save(tmp_path / "single.png")
        assert (tmp_path / "maps" / name).read_bytes() == single.read_bytes()


def test_names_with_a_sample_choose_the_format(image, text, tmp_path):
    for suffix, start in {".jpg": b"\xff\xd8", ".svg": b"<?xml"}.items():
        image(torch.rand(2, 4, 4)).save(tmp_path / f"a-{{sample}}{suffix}")
        assert (tmp_path / f"a-0001{suffix}").read_bytes().startswith(start)
    text(["good", "day"], [1.0, 0.2]).save(tmp_path)  # a folder that is there
    assert (tmp_path / "0000.png").exists()


class Damaged:
    """A photo that cannot be read."""

    def detach(self):
        raise OSError("image file is truncated")


@pytest.mark.parametrize("name", ["", "{sample}.html", "{name}.jpg", "{sample:04d}.png"])
def test_names_that_would_be_taken_by_the_letter_are_refused(image, tmp_path, name, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ArgumentError, match="alone in braces" if name else "an empty name"):
        image(torch.rand(1, 4, 4)).save(name)
    assert not list(tmp_path.iterdir())


def test_a_broken_sample_is_named_and_the_others_are_drawn(image, tmp_path):
    photos = [Image.new("RGB", (40, 40))] * 5
    photos[1] = photos[3] = Damaged()
    with pytest.raises(
        ArgumentError, match=r"2 of 5 samples could not be saved: 1, 3; .*Sample 1: image file is trunc"
    ):
        image(torch.rand(5, 4, 4), pictures=photos).save(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0000.png", "0002.png", "0004.png"]


def test_a_folder_that_cannot_be_made_is_named(image, corner, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ArgumentError, match=r"Cannot write to .*file: "):
        image(corner).save(tmp_path / "file" / "{sample}.png")


def test_ctrl_c_begins_no_further_file_and_leaves_whole_ones(image, tmp_path, monkeypatch):
    class Bar(_progress.Bar):
        def advance(self, count=1):
            raise KeyboardInterrupt

    monkeypatch.setattr(_progress, "Bar", Bar)
    with pytest.raises(KeyboardInterrupt):
        image(torch.rand(200, 4, 4)).save(f"{tmp_path}/maps/")
    saved = list((tmp_path / "maps").iterdir())
    assert 0 < len(saved) < 100
    for path in saved:
        with Image.open(path) as picture:
            picture.load()


def test_progress_counts_samples(image, tmp_path, monkeypatch):
    calls = []

    class Bar(_progress.Bar):
        def advance(self, count=1):
            calls.append(count)

    def bar(total, enabled, words="", unit=""):
        calls.append((total, enabled, unit))
        return nullcontext(Bar())

    monkeypatch.setattr(figures, "progress_bar", bar)
    image(torch.rand(3, 4, 4)).save(tmp_path, progress=True)
    assert calls == [(3, True, "samples"), 1, 1, 1]


def test_pages_hold_the_picture_at_its_width(image, corner):
    assert 'width="545"' in to_html(image(corner))  # 5.68 inches of 96 pixels


def test_comparisons_are_drawn_on_a_canvas_too(image):
    pair = [image(torch.rand(1, 2, 4, 4)), image(torch.rand(1, 2, 4, 4), method="rollout")]
    assert comparison(pair, columns=1, paper=Canvas).image.height > comparison(pair, paper=Canvas).image.height
