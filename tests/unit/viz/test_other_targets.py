"""Outputs of regressions, concepts and functions: values in place of probabilities, and what the colours mean."""

import pytest
import torch
from matplotlib.text import Text

from mhex.viz import comparison, figure, to_html
from mhex.viz.captions import legend, number, target_kind, target_label


def words(drawn):
    return [t.get_text() for t in drawn.findobj(Text) if t.get_text()]


def regression(make, *arguments, **changes):
    """Outputs price (3.21) and weight (-12400) of one sample."""
    fields = {
        "task": "regression",
        "probabilities": None,
        "class_names": ["price", "weight"],
        "values": torch.tensor([[3.2123, -12400.0]]),
    }
    return make(*arguments, **{**fields, **changes})


def concepts(make, *arguments, **changes):
    """Concepts fur (12.4) and sky (-0.5) of one sample."""
    fields = {"target": None, "named": ["fur", "sky"], "values": torch.tensor([[12.4321, -0.5]])}
    return make(*arguments, **{**fields, **changes})


@pytest.mark.parametrize(
    ("value", "said"),
    [(3.2123, "3.21"), (0.0, "0"), (-0.5, "-0.5"), (12432.1, "12432"), (1.2345e-5, "1.23e-05"), (2e9, "2e+09")],
)
def test_numbers_are_short(value, said):
    assert number(value) == said


def test_values_stand_where_classes_have_probabilities(image):
    outputs = regression(image, torch.rand(1, 2, 4, 4))
    assert [target_label(outputs, 0, k) for k in range(2)] == [("price", "= 3.21"), ("weight", "= -12400")]
    said = words(figure(outputs))
    assert {"price", "weight"} <= set(said)
    assert {"= 3.21", "= -12400"} <= {line.strip() for line in said}
    assert not any("%" in line for line in said)
    named = concepts(image, torch.rand(1, 2, 4, 4))
    assert [target_label(named, 0, k) for k in range(2)] == [("fur", "similarity 12.4"), ("sky", "similarity -0.5")]
    assert {"similarity 12.4", "similarity -0.5"} <= {line.strip() for line in words(figure(named))}


def test_a_function_shows_its_value_and_old_results_show_none(image, corner):
    assert target_label(image(corner, target=None, values=torch.tensor([1.5])), 0, 0) == ("custom target", "= 1.5")
    assert target_label(image(corner, target=None), 0, 0) == ("custom target", "")
    assert target_label(image(corner, values=torch.tensor([7.0])), 0, 0) == ("tabby", "83 %")


@pytest.mark.parametrize(
    ("changes", "kind", "signed", "unsigned"),
    [
        ({"target": torch.tensor([0])}, "class", ("against X", "for X"), "most evidence for X"),
        ({"task": "regression", "probabilities": None}, "output", ("lowers X", "raises X"), "raises X most"),
        ({"target": None, "named": ["X"]}, "concept", ("unlike X", "like X"), "most like X"),
        # A concept is one whatever the outputs are.
        ({"target": None, "named": ["X"], "task": "regression"}, "concept", ("unlike X", "like X"), "most like X"),
        ({"target": None}, "target", ("against the target", "for the target"), "most evidence for the target"),
    ],
)
def test_legends_say_what_the_colours_mean(image, corner, changes, kind, signed, unsigned):
    e = image(corner, **changes)
    assert target_kind(e) == kind
    assert legend(e, ["X"]).high == unsigned
    e.signed = True
    assert (legend(e, ["X"]).low, legend(e, ["X"]).high) == signed
    assert legend(e, ["X", "Y"]).high == signed[1].replace("X", f"the {kind}")
    e.class_specific = False
    assert legend(e, ["X"]).high == f"most important, for any {kind}"


def test_the_explanation_says_itself_whether_it_looks_at_the_target(image, corner):
    known = " ".join(words(figure(image(corner, method="gae", class_specific=False))))
    assert "for any class" in known
    assert "evidence" not in known


def test_descriptions_of_maps(image):
    scores = torch.zeros(1, 2, 3, 3)
    scores[0, 0, 0, 0] = scores[0, 1, 2, 1] = 1
    assert "what raises weight (= -12400), strongest at the bottom centre" in to_html(regression(image, scores))
    assert "likeness to fur (similarity 12.4), strongest at the top left" in to_html(concepts(image, scores))
    agnostic = concepts(image, scores, class_specific=False)
    assert "importance for any concept, here sky (similarity -0.5)" in to_html(agnostic)


def test_comparisons_name_concepts_and_outputs(image):
    pair = [
        concepts(image, torch.rand(1, 2, 4, 4)),
        concepts(image, torch.rand(1, 2, 4, 4), method="rollout", class_specific=False),
        concepts(image, torch.randn(1, 2, 4, 4), method="cdam", signed=True),
    ]
    said = words(comparison(pair))
    assert {"fur", "similarity 12.4", "sky", "similarity -0.5", "unlike the concept", "like the concept"} <= set(said)
    assert "rollout gives every concept the same scores." in said
    one = [regression(image, torch.randn(1, 4, 4), method="cdam", signed=True, values=torch.tensor([2.0]))]
    assert {"= 2", "lowers price", "raises price"} <= set(words(comparison(one)))


def test_long_values_stay_in_the_margin(image):
    pair = [concepts(image, torch.rand(1, 2, 4, 4), values=torch.tensor([[-1.2345e-5, 2.0]]))] * 2
    drawn = comparison(pair)
    drawn.canvas.draw()
    left = min(axes.get_window_extent().x0 for axes in drawn.axes if axes.get_label() == "panel")
    boxes = {t.get_text(): t.get_window_extent() for t in drawn.findobj(Text)}
    assert boxes["similarity"].x1 < left
    assert boxes["-1.23e-05"].x1 < left
    assert boxes["similarity 2"].x1 < left


def test_texts_name_the_value_that_is_explained(text):
    output = regression(
        text,
        ["good", "day"],
        [0.5, -0.1],
        signed=True,
        target=torch.tensor([0]),
        values=torch.tensor([4.5]),
        class_names=["<stars>", "x"],
    )
    said = words(figure(output))
    assert {"<stars>", "lowers <stars>", "raises <stars>"} <= set(said)
    assert "= 4.5" in {line.strip() for line in said}
    got = to_html(output)
    assert "gae · &lt;stars&gt;</strong> = 4.5" in got
    assert "lowers &lt;stars&gt;" in got
    several = concepts(text, ["good", "day"], [0.0, 0.0])
    several.scores = torch.tensor([[[0.5, 0.1], [0.2, 0.9]]])
    got = to_html(several)
    assert "gae · fur</strong> similarity 12.4" in got
    assert "gae · sky</strong> similarity -0.5" in got
    assert "most like the concept" in got
