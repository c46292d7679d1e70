"""Models whose outputs are values: explained as they are, by number or name, without probabilities."""

import dataclasses

import pytest
import torch
from torch import nn

import mhex
from mhex import Concept, Explanation
from mhex.errors import ArgumentError
from support.cases import METHODS, SHARES, assert_same, cases, explain
from support.models import FAMILIES, Family, call

READERS = {"timm_vit": ("head", 32), "hf_bert": ("classifier", 32), "plain_cnn": ("head", 12)}


def regression(name: str, outputs: int) -> nn.Module:
    """A model with another last layer, whose outputs have both signs."""
    model = FAMILIES[name].fresh()
    reader, width = READERS[name]
    torch.manual_seed(5)
    model.set_submodule(reader, nn.Linear(width, outputs).double())
    return model


@cases(
    READERS,
    where=lambda method, family: method.class_specific and method.target != "class",
    cover=True,
    slow_others=True,
)
def test_a_single_output_is_explained_as_it_is(method: str, family: Family) -> None:
    model, inputs = regression(family.name, 1), family.inputs(5)
    with torch.no_grad():
        outputs = call(model, inputs)[:, 0]
        layer = model.get_submodule(READERS[family.name][0])
        layer.bias -= outputs.median()  # outputs of both signs, and one that is 0
        outputs = call(model, inputs)[:, 0]
    assert bool((outputs < 0).any())
    e = explain(model, inputs, method, task="regression")
    assert e.task == "regression"
    assert e.probabilities is None
    assert not e.several
    assert e.target.tolist() == [0] * 5
    torch.testing.assert_close(e.values, outputs)
    by_function = explain(model, inputs, method, target=lambda values: values[:, 0])
    assert_same(e.scores, by_function.scores, method)
    if method not in SHARES:  # of a class these explain the probability
        raised = explain(model, inputs, method, target=1)
        assert_same(e.scores, raised.scores, method)
        lowered = explain(model, inputs, method, target=0)
        if method == "partial-lrp":  # follows positive contributions whatever the sign of the score
            return
        assert not torch.allclose(e.scores, lowered.scores)
        # A classifier's prediction is class 0 where the output is negative: another map.
        below = outputs < 0
        predicted = explain(model, inputs, method)
        assert_same(predicted.scores[below], lowered.scores[below], method)


@pytest.mark.parametrize(
    ("target", "index", "several"),
    [
        (None, [0, 1, 2], True),
        (2, [2], False),
        ("weight", [1], False),
        ("Price", [0], False),
        (["age", 0], [2, 0], True),
        (torch.tensor([1, 1]), [1], False),
    ],
)
def test_outputs_by_name_and_number(target, index, several):
    model, x = regression("timm_vit", 3), FAMILIES["timm_vit"].inputs(2)
    e = mhex.explain(model, x, "cdam", target, task="regression", class_names=["price", "weight", "age"])
    assert e.several is several
    assert e.target.reshape(2, -1).tolist() == [index, index]
    assert e.target_names(1) == [["price", "weight", "age"][i] for i in index]
    assert e.target_probabilities(0) == [None] * len(index)
    outputs = call(model, x).detach()
    assert e.target_values(1) == pytest.approx(outputs[1, index].tolist())
    for k, i in enumerate(index):
        wanted = mhex.explain(model, x, "cdam", lambda values, i=i: values[:, i]).scores
        assert_same(e.scores[:, k] if several else e.scores, wanted, "cdam")


def test_outputs_without_names_have_numbers():
    e = mhex.explain(regression("timm_vit", 3), FAMILIES["timm_vit"].inputs(1), "cdam", task="regression")
    assert e.target_names(0) == ["output 0", "output 1", "output 2"]


def test_sixteen_outputs_are_explained_unasked_and_no_more():
    x = FAMILIES["plain_cnn"].inputs(1)
    e = mhex.explain(regression("plain_cnn", 16), x, "gradcam", task="regression")
    assert e.scores.shape[:2] == (1, 16)
    model = regression("plain_cnn", 17)
    with pytest.raises(ArgumentError, match=r"Expected a target, because the model has 17 outputs"):
        mhex.explain(model, x, "gradcam", task="regression")
    assert mhex.explain(model, x, "gradcam", 16, task="regression").target.tolist() == [16]


@pytest.mark.parametrize(
    ("target", "words"),
    [("top2", "regressions rank no classes"), (3, "from 0 to 2"), ("size", "no class names"), ([0, 7], "from 0 to 2")],
)
def test_wrong_outputs(target, words):
    with pytest.raises(ArgumentError, match=words):
        mhex.explain(regression("plain_cnn", 3), FAMILIES["plain_cnn"].inputs(1), "gradcam", target, task="regression")


def test_a_single_output_has_one_name_and_no_opposite():
    model, x = regression("plain_cnn", 1), FAMILIES["plain_cnn"].inputs(1)
    e = mhex.explain(model, x, "gradcam", "price", task="regression", class_names=["price"])
    assert e.class_names == ["price"]
    assert e.target_names(0) == ["price"]
    with pytest.raises(ArgumentError, match="from 0 to 0"):
        mhex.explain(model, x, "gradcam", 1, task="regression")


@pytest.mark.parametrize("count", [1, 3])
def test_hugging_face_configurations_say_it(count):
    model, inputs = regression("hf_bert", count), FAMILIES["hf_bert"].inputs(2)
    model.config.num_labels = count
    assert mhex.explain(model, inputs, "cdam").task == "classification"
    model.config.problem_type = "regression"
    e = mhex.explain(model, inputs, "cdam")
    assert e.task == "regression"
    assert e.probabilities is None
    assert e.scores.shape[:-1] == ((2,) if count == 1 else (2, 3))
    assert e.target_names(0) == [f"LABEL_{i}" for i in range(count)]
    asked = mhex.explain(model, inputs, "cdam", task="classification")
    assert asked.probabilities is not None


def test_the_task_decides_probabilities_and_unknown_tasks_are_refused():
    family = FAMILIES["plain_cnn"]
    e = mhex.explain(family.model(), family.inputs(2), "gradcam", task="multi-label")
    torch.testing.assert_close(e.probabilities, e.logits.sigmoid())
    with pytest.raises(ArgumentError, match="'classification' or 'multi-label' or 'regression', but got 'ranking'"):
        mhex.explain(family.model(), family.inputs(1), "gradcam", task="ranking")


def test_concepts_do_not_care_what_the_outputs_are():
    model, x = regression("timm_vit", 20), FAMILIES["timm_vit"].inputs(2)
    concept = Concept.from_examples(model, x)
    e = mhex.explain(model, x, "cdam", concept, task="regression")
    assert_same(e.scores, mhex.explain(model, x, "cdam", concept).scores, "cdam")


def fields_of(e: Explanation) -> dict[str, object]:
    return {field.name: getattr(e, field.name) for field in dataclasses.fields(e) if field.name != "pictures"}


@pytest.mark.parametrize("kind", ["regression", "concepts", "classes", "text", "function", "layers", "backbone"])
def test_every_field_is_saved_and_loaded(kind, tmp_path):
    family = FAMILIES["hf_bert" if kind == "text" else "hf_vit" if kind == "backbone" else "timm_vit"]
    model, inputs = family.model(), family.inputs(2)
    both = [Concept(torch.randn(32, dtype=torch.float64), name) for name in ("fur", "sky")]
    e = {
        "regression": lambda: mhex.explain(
            regression("timm_vit", 2), inputs, "cdam-integrated", task="regression", class_names=["a", "b"], steps=3
        ),
        "concepts": lambda: mhex.explain(model, inputs, "cdam-integrated", both, steps=2),
        "classes": lambda: mhex.explain(model, inputs, "rollout", "top2", seed=3),
        "text": lambda: mhex.explain(model, inputs, "cdam-integrated", both[0], steps=2),
        "function": lambda: mhex.explain(model, inputs, "cdam", lambda logits: logits[:, 0] - logits[:, 1]),
        "layers": lambda: mhex.explain(model, inputs, "gradtoken", [0, 1], per_head=True),
        "backbone": lambda: mhex.explain(model.vit, inputs, "cdam", both),
    }[kind]()
    before, after = fields_of(e), fields_of(Explanation.load(e.save(tmp_path / "e.safetensors")))
    assert before.keys() == after.keys()
    for name, value in before.items():
        got = after[name]
        if isinstance(value, torch.Tensor):
            assert isinstance(got, torch.Tensor), name
            assert got.equal(value), name
            assert got.dtype == value.dtype, name
        elif name in ("layers", "diagnostics"):
            assert set(got) == set(value), name
            assert all(got[key].equal(value[key]) for key in value), name
        else:
            assert got == value, name
    assert bool(e.diagnostics) == (e.method == "cdam-integrated")
    assert bool(e.layers) == (kind == "layers")
    assert METHODS[e.method].class_specific == e.class_specific
