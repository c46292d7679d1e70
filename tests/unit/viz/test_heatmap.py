"""Overlays: what the pixels and the words of a figure say."""

import io
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image

from mhex.errors import ArgumentError
from mhex.viz import comparison, figure, overlay, save_figure, to_html
from mhex.viz.captions import percent
from mhex.viz.colour import blend, colour_bar, contrast, text_colours


def words(drawn: Figure) -> list[str]:
    return [t.get_text() for t in drawn.findobj(Text) if t.get_text()]


def panels(drawn: Figure, label: str = "panel") -> int:
    return sum(axes.get_label() == label for axes in drawn.axes)


def first_panel(drawn: Figure) -> np.ndarray:
    axes = next(axes for axes in drawn.axes if axes.get_label() == "panel")
    return np.asarray(axes.images[0].get_array())


def pixels(drawn: Figure) -> np.ndarray:
    buffer = io.BytesIO()
    drawn.savefig(buffer, format="png", dpi=100)
    return np.asarray(Image.open(buffer).convert("RGB")).astype(int)


def test_the_hot_corner_is_warmer_than_the_cold_one(image, corner):
    drawn = overlay(image(corner)).astype(int)
    assert drawn.shape[0] / drawn.shape[1] == pytest.approx(80 / 120, abs=0.01)
    hot, cold = drawn[10, 10], drawn[-10, -10]
    assert hot[0] - hot[2] > 80
    assert abs(cold[0] - cold[2]) < 5
    assert hot.sum() > cold.sum()


def test_the_hot_corner_is_where_it_belongs_in_the_file(image, corner, tmp_path):
    path = save_figure(image(corner), tmp_path / "map.png")
    drawn = figure(image(corner))
    box = next(a for a in reversed(drawn.axes) if a.get_label() == "panel").get_position()
    got = np.asarray(Image.open(path).convert("RGB")).astype(int)
    height, width = got.shape[:2]

    def at(x: float, y: float) -> np.ndarray:
        return got[int(height * (1 - box.y1 + y * box.height)), int(width * (box.x0 + x * box.width))]

    hot, cold = at(0.1, 0.1), at(0.9, 0.9)
    assert hot[0] - hot[2] > cold[0] - cold[2] + 80


def test_signed_colours_are_centred_at_zero(image):
    scores = torch.zeros(1, 3, 3)
    scores[0, 0, 0], scores[0, 2, 2] = 0.5, -1.0
    drawn = overlay(image(scores, signed=True)).astype(int)
    red, neutral, blue = drawn[5, 5], drawn[drawn.shape[0] // 2, drawn.shape[1] // 2], drawn[-5, -5]
    assert red[0] > red[2] + 30
    assert blue[2] > blue[0] + 60
    assert np.ptp(neutral) <= 3
    assert neutral[0] == pytest.approx(128, abs=3)


def test_photo_shows_through_where_the_score_is_zero():
    photo = np.random.default_rng(0).integers(0, 255, (6, 6, 1), np.uint8).repeat(3, 2)
    scores = np.zeros((6, 6), np.float32)
    assert np.array_equal(blend(photo, scores, signed=True), photo)
    dimmed = blend(photo, scores, signed=False)
    assert np.corrcoef(dimmed.ravel(), photo.ravel())[0, 1] > 0.999


def test_bars_span_the_colours():
    for text in (False, True):
        signed, unsigned = (colour_bar(s, text)[0].astype(int) for s in (True, False))
        assert signed[0, 2] > signed[0, 0] + 50
        assert signed[-1, 0] > signed[-1, 2] + 50
        assert np.ptp(signed[63]) < 12
        assert np.ptp(unsigned[0]) < 25
        assert unsigned[-1, 0] > unsigned[-1, 2] + 80


@pytest.mark.parametrize("signed", [False, True])
def test_ink_can_be_read_on_every_background(signed):
    for step in range(-20 if signed else 0, 21):
        assert contrast(*text_colours(step / 20, signed)) > 4.5


@pytest.mark.parametrize(
    ("colour", "ratio"), [("#000000", 21.0), ("#ffffff", 1.0), ("#767676", 4.54), ("#ff0000", 3.998), ("#0000ff", 8.59)]
)
def test_contrast_with_white_is_that_of_the_wcag(colour, ratio):
    """Ratios that public checkers give."""
    assert contrast(colour, "#ffffff") == contrast("#ffffff", colour) == pytest.approx(ratio, abs=0.006)


@pytest.mark.parametrize(
    ("share", "words"),
    [
        (0.0, "0 %"),
        (1e-6, "<0.1 %"),
        (0.004, "0.4 %"),
        (0.83, "83 %"),
        (0.996, "99.6 %"),
        (0.9996, ">99.9 %"),
        (1, "100 %"),
    ],
)
def test_percentages_never_round_to_impossible_or_certain(share, words):
    assert percent(share) == words


def test_titles_name_class_probability_and_method(image, corner):
    said = words(figure(image(corner)))
    assert "tabby" in said
    assert any("83 %" in line for line in said)
    assert "gae" in said
    assert any("evidence for tabby" in line for line in said)


def test_signed_legend_names_both_ends(image, corner):
    said = words(figure(image(corner, signed=True)))
    assert {"against tabby", "for tabby"} <= set(said)


def test_class_agnostic_methods_promise_no_evidence_for_a_class(image, corner):
    said = " ".join(words(figure(image(corner, method="my-own", class_specific=False))))
    assert "for any class" in said
    assert "evidence" not in said


def test_function_target_has_no_probability(image, corner):
    said = words(figure(image(corner, target=None)))
    assert "custom target" in said
    assert [line for line in said if "%" in line] == ["Predicted: tabby 83 %."]


def test_the_prediction_is_said_whatever_the_target(image):
    explanation = image(torch.rand(2, 2, 8, 8), class_names=["tabby", "b", "c", "zebra"])
    explanation.target = torch.tensor([[2, 3], [3, 1]])
    explanation.probabilities[1] = torch.tensor([0.1, 0.05, 0.05, 0.8])
    assert "Predicted: sample 0 tabby 83 %; sample 1 zebra 80 %." in words(figure(explanation))
    assert "Predicted: zebra 80 %." in words(figure(explanation, samples=[1]))
    assert "Predicted: sample 0 tabby 83 %; sample 1 zebra 80 %." in " ".join(words(comparison([explanation] * 2)))
    assert "Predicted: sample 0 tabby 83 %; sample 1 zebra 80 %." in to_html(explanation)
    explanation.class_names[3] = "great white shark, white shark, man-eater"
    assert "sample 1 great white shark, white sh… 80 %." in to_html(explanation)
    explanation.class_names[3] = "zebra"
    explanation.task = "multi-label"
    assert "Most probable: zebra 80 %." in words(figure(explanation, samples=[1]))
    explanation.probabilities = None
    assert not any("Predicted" in line for line in words(figure(explanation)))


@pytest.mark.parametrize(
    ("scores", "remark"),
    [
        (torch.zeros(1, 4, 4), "all zero"),
        (torch.full((1, 4, 4), 0.3), "constant"),
        (torch.full((1, 4, 4), float("nan")), "not finite"),
        (torch.tensor([[[0.0, 1.0], [float("inf"), 0.0]]]), "not finite"),
    ],
)
@pytest.mark.parametrize("signed", [False, True])
def test_maps_without_information_are_drawn_and_marked(image, scores, remark, signed):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drawn = figure(image(scores, signed=signed))
        pixels(drawn)
    assert any(remark in line for line in words(drawn))


def test_grid_has_a_row_per_sample_and_a_column_per_target(image):
    drawn = figure(image(torch.rand(3, 2, 4, 4)))
    assert panels(drawn) == 3 * (1 + 2)
    assert panels(drawn, "legend") == 1
    assert {"sample 0", "sample 2", "Egyptian cat"} <= set(words(drawn))


def test_large_batches_say_what_they_leave_out(image):
    explanation = image(torch.rand(11, 4, 4))
    drawn = figure(explanation)
    assert panels(drawn) == 8 * 2
    assert any("first 8 of 11 samples" in line for line in words(drawn))
    rest = figure(explanation, samples=range(8, 11))
    assert panels(rest) == 3 * 2
    assert "sample 10" in words(rest)


@pytest.mark.parametrize("wanted", [[], [2], [-1]])
def test_samples_that_do_not_exist_are_refused(image, corner, wanted):
    with pytest.raises(ArgumentError, match="samples between 0 and 0"):
        figure(image(corner), samples=wanted)


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tensor_pictures_are_stretched_to_the_full_range(image, corner, channels, dtype):
    x = torch.linspace(-2, 3, 16 * 16).reshape(1, 1, 16, 16).repeat(1, channels, 1, 1)
    drawn = figure(image(corner.to(dtype), pictures=x.to(dtype)))
    photo = first_panel(drawn)
    assert photo.shape == (256, 256, 3)
    assert photo.min() == 0
    assert photo.max() == 255


def test_constant_tensor_picture_is_grey(image, corner):
    photo = first_panel(figure(image(corner, pictures=torch.ones(1, 3, 8, 8))))
    assert photo.min() == photo.max() == 128


def test_without_pictures_the_map_is_drawn_alone(image, corner, tmp_path):
    path = tmp_path / "e.safetensors"
    explanation = image(corner, pictures=None)
    explanation.save(path)
    drawn = figure(type(explanation).load(path))
    assert panels(drawn) == 1
    shown = first_panel(drawn).astype(int)
    assert shown[5, 5, 0] - shown[5, 5, 2] > shown[-5, -5, 0] - shown[-5, -5, 2] + 80


def test_long_names_are_shortened_before_the_probability(image):
    drawn = figure(image(torch.rand(1, 3, 4, 4)))
    said = words(drawn)
    assert any(line.startswith("great white") and line.endswith("…") for line in said)
    assert any("0.1 %" in line for line in said)


def test_nothing_is_written_outside_the_paper(image):
    drawn = figure(image(torch.rand(1, 3, 4, 4), signed=True))
    pixels(drawn)
    width, height = drawn.canvas.get_width_height()
    for line in drawn.findobj(Text):
        if line.get_text():
            box = line.get_window_extent()
            assert box.x0 >= 0
            assert box.y0 >= 0
            assert box.x1 <= width
            assert box.y1 <= height, line.get_text()


def test_dollar_signs_are_no_formulas(image, corner):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drawn = figure(image(corner, class_names=["$x_{", "b", "c", "d"]))
        pixels(drawn)
    assert any("$x_{" in line.replace("\\", "") for line in words(drawn))


def test_letters_without_a_font_are_boxes_and_said(image, corner):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drawn = figure(image(corner, class_names=["\U000f1234", "b", "c", "d"]))
        pixels(drawn)
    assert any("installed fonts lack" in line for line in words(drawn))


@pytest.mark.parametrize("acting", ["\x1b[31m", "\x07", "\u202e", "\u2066", "\x9b", "\ud800"])
def test_characters_that_act_are_never_drawn(image, corner, acting):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drawn = figure(image(corner, class_names=[f"cat{acting}gpj", "b", "c", "d"]))
        pixels(drawn)
    said = words(drawn)
    assert not any(acting[0] in line for line in said)
    assert any(line.startswith(("cat\\", "cat?")) for line in said)
    assert not any("installed fonts lack" in line for line in said)


def test_notebooks_can_show_it(image, corner):
    assert image(corner).show()._repr_png_().startswith(b"\x89PNG")


@pytest.mark.parametrize("suffix", ["png", "jpg", "jpeg", "webp", "svg", "pdf"])
def test_every_format_is_written(image, corner, tmp_path, suffix):
    path = save_figure(image(corner), tmp_path / f"map.{suffix}")
    start = {"png": b"\x89PNG", "webp": b"RIFF", "pdf": b"%PDF", "svg": b"<?xml"}.get(suffix, b"\xff\xd8")
    assert path.read_bytes().startswith(start)


def test_a_missing_folder_is_named(image, corner, tmp_path):
    with pytest.raises(ArgumentError, match=r"no folder .*nowhere"):
        save_figure(image(corner), tmp_path / "nowhere" / "map.png")


def test_a_path_that_cannot_be_written_is_named(image, corner, tmp_path):
    (tmp_path / "map.png").mkdir()
    with pytest.raises(ArgumentError, match=r"Cannot write to .*map\.png: "):
        save_figure(image(corner), tmp_path / "map.png")


def test_an_unknown_suffix_lists_the_known_ones(image, corner, tmp_path):
    with pytest.raises(ArgumentError, match=r"\.png, .*but got 'map\.bmp'"):
        save_figure(image(corner), Path(tmp_path) / "map.bmp")


def test_one_extreme_pixel_does_not_blank_the_others(image):
    """Pixel maps are clipped for drawing, and the figure says so."""
    scores = torch.zeros(1, 64, 64)
    scores[0, :, :32] = 1.0
    scores[0, 5, 60] = 1000.0
    drawn = image(scores, signed=True, size=(64, 64), method="input-x-gradient")
    pixels = overlay(drawn).astype(int)
    left, right = pixels[:, : pixels.shape[1] // 3].mean((0, 1)), pixels[-40:, -40:].mean((0, 1))
    assert left[0] - left[2] > 50 + right[0] - right[2], "the left half is red"
    assert any(
        "The strongest 1 % of the scores have the same colour in maps of input-x-gradient" in line
        for line in words(figure(drawn))
    )
    assert not any("The strongest" in line for line in words(figure(image(torch.rand(1, 4, 4)))))
