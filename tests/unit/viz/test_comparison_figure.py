"""The comparison of methods."""

import pytest
import torch
from matplotlib.text import Text

from mhex.errors import ArgumentError, ArgumentTypeError
from mhex.viz import comparison, save_figure
from mhex.viz.captions import legend, legends


def words(drawn):
    return [t.get_text() for t in drawn.findobj(Text) if t.get_text()]


def count(drawn, label):
    return sum(axes.get_label() == label for axes in drawn.axes)


@pytest.fixture
def three(image):
    return [
        image(torch.rand(1, 2, 4, 4)),
        image(torch.rand(1, 2, 4, 4), method="rollout", class_specific=False),
        image(torch.randn(1, 2, 4, 4), method="input-x-gradient", signed=True),
    ]


def test_a_row_per_class_and_a_column_per_method(three):
    drawn = comparison(three, title="Three methods")
    assert count(drawn, "panel") == 2 * (1 + 3)
    assert count(drawn, "legend") == 2
    said = words(drawn)
    assert {"Three methods", "input", "gae", "rollout", "input-x-gradient", "tabby", "83 %", "Egyptian cat"} <= set(
        said
    )
    assert "rollout gives every class the same scores." in said


def test_the_legend_is_that_of_a_method_that_looks_at_the_class(three):
    # Here the first map does not look at it, and would speak of any class.
    (bar,) = legends([three[1], three[0]], ["tabby"])
    assert bar == legend(three[0], ["tabby"]) != legend(three[1], ["tabby"])


def test_one_legend_if_all_are_unsigned(three):
    assert count(comparison(three[:2]), "legend") == 1


def test_several_samples(image):
    pair = [image(torch.rand(3, 4, 4)), image(torch.rand(3, 4, 4), method="rollout")]
    assert count(comparison(pair), "panel") == 3 * 3
    assert {"sample 0", "sample 2"} <= set(words(comparison(pair)))
    assert count(comparison(pair, samples=[1]), "panel") == 3


def test_many_methods_continue_below(image):
    many = [image(torch.rand(1, 2, 4, 4), options={"start_block": n}) for n in range(10)]
    drawn = comparison(many)
    assert count(drawn, "panel") == 2 * 2 * (1 + 5)
    assert "gae start_block=9" in words(drawn)


def test_one_band_of_many_methods_with_names_that_can_be_read(image):
    names = "agcam attention attention-flow attention-gradcam cdam cdam-integrated cdam-smooth gradtoken " * 2
    methods = [*names.split(), "input-x-gradient", "vit-cx"]
    many = [image(torch.rand(1, 2, 4, 4), method=f"{name}{n}") for n, name in enumerate(methods)]
    many[5] = image(torch.zeros(1, 2, 4, 4), method="cdam-integrated5")  # with a remark
    drawn = comparison(many, columns=20)
    panels = [axes.get_position() for axes in drawn.axes if axes.get_label() == "panel"]
    assert len(panels) == 2 * (1 + 18)
    assert len({round(box.y0, 4) for box in panels}) == 2, "one row per class"
    drawn.canvas.draw()
    boxes = [(t.get_text(), t.get_window_extent()) for t in drawn.findobj(Text) if t.get_text()]
    said = [text for text, _ in boxes]
    assert {"input", "attention-", "integrated5", "gradcam3"} <= set(said)
    assert not any("…" in line for line in said)
    for n, (text, box) in enumerate(boxes):
        for other, beside in boxes[n + 1 :]:
            assert not box.padded(-1).overlaps(beside.padded(-1)), (text, other)
    width = drawn.get_figwidth()
    assert min(box.width for box in panels) * width > 1, "inches"
    assert width < 26


def test_columns_wrap_if_asked(image):
    many = [image(torch.rand(1, 4, 4), method=f"m{n}") for n in range(5)]
    assert count(comparison(many, columns=2), "panel") == 5 + 3
    # Bands are about equally wide: five methods in up to four columns are three and two, each beside the photo.
    boxes = [axes.get_position() for axes in comparison(many, columns=4).axes if axes.get_label() == "panel"]
    heights = [round(box.y0, 4) for box in boxes]
    assert sorted(heights.count(height) for height in set(heights)) == [3, 4]
    with pytest.raises(ArgumentError, match="columns=0"):
        comparison(many, columns=0)


def test_large_batches_say_what_they_leave_out(image):
    pair = [image(torch.rand(20, 4, 4)), image(torch.rand(20, 4, 4), method="rollout")]
    assert any("first 12 of 20 samples" in line for line in words(comparison(pair)))


def test_the_map_without_information_is_marked(image, three):
    zero = image(torch.zeros(1, 2, 4, 4), method="layercam")
    assert any("all zero" in line for line in words(comparison([*three, zero])))


def test_other_targets_of_a_later_sample_are_refused(image):
    first = image(torch.rand(2, 4, 4), target=torch.tensor([0, 1]))
    other = image(torch.rand(2, 4, 4), target=torch.tensor([0, 2]), method="rollout")
    with pytest.raises(ArgumentError, match="same targets"):
        comparison([first, other])


def test_other_targets_are_refused(image, three):
    other = image(torch.rand(1, 2, 4, 4), target=torch.tensor([[2, 3]]), method="layercam")
    with pytest.raises(ArgumentError, match=r"same targets.*target="):
        comparison([three[0], other])


def test_other_inputs_are_refused(image, text, three):
    for other in (image(torch.rand(2, 2, 4, 4)), text(["a"], [1.0])):
        with pytest.raises(ArgumentError, match="same input"):
            comparison([three[0], other])


def test_wrong_arguments_are_refused(three):
    with pytest.raises(ArgumentError, match="at least one"):
        comparison([])
    with pytest.raises(ArgumentTypeError, match="holds str"):
        comparison([*three, "gae"])
    with pytest.raises(ArgumentError, match="3 labels"):
        comparison(three, labels=["a"])


def test_texts_are_compared_too(text, tmp_path):
    pair = [text(["good", "day"], [1.0, 0.2]), text(["good", "day"], [0.1, -1.0], method="lrp", signed=True)]
    drawn = comparison(pair, labels=["first", "second"])
    assert {"first · positive", "second · positive", "good"} <= set(words(drawn))
    assert count(drawn, "legend") == 2
    assert save_figure(pair, tmp_path / "pair.png").stat().st_size > 1000
