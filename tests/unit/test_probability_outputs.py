"""Models that return probabilities: recognised by how they end, and explained by their logits."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mhex
from mhex.capture import Batch, Needs, Outputs, find_anatomy, observe
from mhex.errors import ArgumentError, MhexError, MhexWarning
from mhex.perturb import Subject
from support.models import FAMILIES, enliven

X = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
METHODS = ("gradcam", "input-x-gradient", "lrp", "occlusion", "integrated-gradients")
End = Callable[[Tensor], Tensor]


def by_hand(z: Tensor) -> Tensor:
    return 1 / (1 + torch.exp(-z))


class Small(nn.Module):
    """A little CNN whose scores go through `end`."""

    def __init__(self, classes: int, end: End | nn.Module, bias: float = 0.0) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 8, 3), nn.ReLU())
        self.fc = nn.Linear(8, classes)
        self.ends = [end]  # no submodule, whatever it is
        enliven(self)
        with torch.no_grad():
            self.fc.bias.fill_(bias)
            self.fc.weight.mul_(0.1)
        self.double().eval()

    def forward(self, x: Tensor) -> Any:
        return self.ends[0](self.fc(self.body(x).mean((2, 3))))


class Ended(nn.Module):
    """A model whose scores go through `end`."""

    def __init__(self, model: nn.Module, end: End) -> None:
        super().__init__()
        self.model, self.ends = model, [end]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        output = self.model(*args, **kwargs)
        return self.ends[0](output if isinstance(output, Tensor) else output.logits)


def same(z: Tensor) -> Tensor:
    return z


SIGMOIDS: dict[str, End] = {
    "torch": torch.sigmoid,
    "functional": nn.functional.sigmoid,
    "method": Tensor.sigmoid,
    "in place": Tensor.sigmoid_,
    "expit": torch.special.expit,
    "module": nn.Sigmoid(),
    "squeezed": lambda z: z.sigmoid().squeeze(1),
    "squeezed before": lambda z: z.squeeze(1).sigmoid(),
    "in a tuple": lambda z: (z.sigmoid(), z),  # type: ignore[dict-item, return-value]
    "twice": lambda z: (z * z.sigmoid()).sigmoid(),
}


@pytest.mark.parametrize("name", SIGMOIDS)
def test_a_sigmoid_of_one_output_is_the_probability_of_class_1(name: str) -> None:
    model = Small(1, SIGMOIDS[name], bias=-3.0)
    with torch.no_grad():
        output = model(X)
        p = (output[0] if isinstance(output, tuple) else output).flatten()
    assert float(p.max()) < 0.5
    with pytest.warns(MhexWarning, match="ends in a sigmoid") as caught:
        e = mhex.explain(model, X, "gradcam")
    assert len(caught) == 1
    assert e.target is not None
    assert e.target.tolist() == [0] * 4
    assert e.probabilities is not None
    torch.testing.assert_close(e.probabilities[:, 1], p)
    torch.testing.assert_close(e.probabilities.sum(1), torch.ones_like(p))
    assert e.options["outputs"] == "probabilities"
    assert e.task == "classification"


@pytest.mark.parametrize("method", METHODS)
def test_maps_are_those_of_the_model_without_its_sigmoid(method: str) -> None:
    plain = mhex.explain(Small(1, same, -3.0), X, method, 1)
    ended = mhex.explain(Small(1, torch.sigmoid, -3.0), X, method, 1, outputs="probabilities")
    torch.testing.assert_close(ended.scores, plain.scores, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(ended.values, plain.values)


ENDS: dict[str, End] = {
    "softmax": lambda z: z.softmax(1),
    "log_softmax": lambda z: nn.functional.log_softmax(z, dim=-1),
    "sigmoid": torch.sigmoid,
    "softmax of maps": lambda z: torch.softmax(z[:, :, None, None], 1).flatten(1),
    "half a softmax": lambda z: z.softmax(1, dtype=torch.float32),
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("family", ["timm_vit", "timm_resnet", "hf_bert", "plain_cnn"])
def test_wrapped_models_give_the_maps_of_their_logits(family: str, end: str) -> None:
    kind = FAMILIES[family]
    x = kind.inputs(2)
    for method in ("gae", "attnlrp") if kind.blocks else ("gradcam", "input-x-gradient", "lrp"):
        plain = mhex.explain(Ended(kind.model(), lambda z: z), x, method, [1, 2])
        with pytest.warns(MhexWarning, match="The model ends in a") as caught:
            e = mhex.explain(Ended(kind.model(), ENDS[end]), x, method, [1, 2])
        assert len([w for w in caught if "ends in" in str(w.message)]) == 1
        torch.testing.assert_close(e.scores, plain.scores, rtol=1e-6, atol=1e-9)
        torch.testing.assert_close(e.logits, plain.logits)
        several = e.logits.sigmoid() if end == "sigmoid" else e.logits.softmax(1)
        torch.testing.assert_close(e.probabilities, several)
        assert e.task == ("multi-label" if end == "sigmoid" else "classification")


def test_a_known_family_that_ends_otherwise() -> None:
    """A subclass keeps the anatomy of its family; here scores are in an object of Hugging Face."""
    family = FAMILIES["hf_bert"]
    model = family.fresh()
    forward = type(model).forward

    class Shares(type(model)):  # type: ignore[misc]
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            output = forward(self, *args, **kwargs)
            output.logits = output.logits.softmax(-1)
            return output

    plain = mhex.explain(model, family.inputs(2), "gae", 3)
    model.__class__ = Shares
    e = mhex.explain(model, family.inputs(2), "gae", 3, outputs="probabilities")
    torch.testing.assert_close(e.scores, plain.scores, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(e.probabilities, plain.probabilities)


def test_what_the_user_says_counts() -> None:
    model = Small(3, torch.sigmoid)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        e = mhex.explain(model, X, "gradcam", outputs="probabilities", task="classification")
        assert e.task == "classification"
        torch.testing.assert_close(e.probabilities, e.logits.softmax(1))
        raw = mhex.explain(model, X, "gradcam", outputs="logits")
        torch.testing.assert_close(raw.logits, model(X).detach())
        assert "outputs" not in raw.options
        value = mhex.explain(Small(1, torch.sigmoid), X, "gradcam", task="regression")
        torch.testing.assert_close(value.logits, Small(1, torch.sigmoid)(X).detach())
        assert value.probabilities is None
    with pytest.raises(ArgumentError, match="outputs 'logits' or 'probabilities'"):
        mhex.explain(model, X, "gradcam", outputs="softmax")  # type: ignore[arg-type]
    for wrong in (Small(3, same, bias=2.0), Small(3, lambda z: -z.abs() - 2.0)):  # also scores that are all below 0
        with pytest.raises(ArgumentError, match="Expected outputs between 0 and 1"):
            mhex.explain(wrong, X, "gradcam", outputs="probabilities")
    with pytest.raises(ArgumentError, match="outputs of a regression are values"):
        mhex.explain(model, X, "gradcam", task="regression", outputs="probabilities")


@pytest.mark.parametrize("end", [by_hand, lambda z: z.sigmoid().clamp(1e-6, 1 - 1e-6)])
def test_probabilities_made_in_other_ways_are_told_of_and_turned_back(end: End) -> None:
    model, plain = Small(1, end, -3.0), Small(1, same, -3.0)
    with pytest.warns(MhexWarning, match="lie between 0 and 1, as probabilities do"):
        e = mhex.explain(model, X, "gradcam")
    torch.testing.assert_close(e.logits, model(X).detach())  # read as they are
    for method in ("gradcam", "input-x-gradient", "occlusion"):
        e = mhex.explain(model, X, method, 1, outputs="probabilities")
        torch.testing.assert_close(e.scores, mhex.explain(plain, X, method, 1).scores, rtol=1e-6, atol=1e-9)
        assert e.probabilities is not None
        torch.testing.assert_close(e.probabilities[:, 1:], model(X).detach())


@pytest.mark.parametrize(
    "end",
    [
        lambda z: torch.cat([1 - z[:, :1].sigmoid(), z[:, :1].sigmoid()], 1),
        lambda z: (z.softmax(1) + (2 * z).softmax(1)) / 2,
        lambda z: torch.stack([z.softmax(1), (2 * z).softmax(1)]).mean(0),
        lambda z: z.exp() / z.exp().sum(1, keepdim=True),
    ],
)
def test_outputs_that_sum_to_1_are_probabilities_whatever_made_them(end: End) -> None:
    model = Small(3, end)
    with pytest.warns(MhexWarning, match="sum to 1"):
        e = mhex.explain(model, X, "input-x-gradient", 1)
    assert e.probabilities is not None
    torch.testing.assert_close(e.probabilities, model(X).detach())
    torch.testing.assert_close(e.logits, model(X).detach().log())


def test_relevance_of_probabilities_that_sum_to_1_starts_at_the_class() -> None:
    """The logarithm of a probability is negative, yet a class is spoken for by positive relevance."""
    model = Small(3, lambda z: torch.stack([z.softmax(1), (2 * z).softmax(1)]).mean(0))
    e = mhex.explain(model, X, "lrp", 1, outputs="probabilities")
    assert bool((e.diagnostics["relevance_in"] == 1).all())


MIXTURES: dict[str, End] = {
    "mean": lambda z: torch.stack([z.sigmoid(), (z - 1).sigmoid()]).mean(0),
    "weighted sum": lambda z: 0.3 * z.sigmoid() + 0.7 * (z + 1).sigmoid(),
    "complement": lambda z: 1 - z.sigmoid(),
    "tanh": lambda z: (torch.tanh(z) + 1) / 2,
}


@pytest.mark.parametrize("classes", [1, 5])
@pytest.mark.parametrize("name", MIXTURES)
def test_mixtures_of_probabilities_are_told_of(name: str, classes: int) -> None:
    model = Small(classes, MIXTURES[name], bias=-3.0)
    with pytest.warns(MhexWarning, match="lie between 0 and 1"):
        mhex.explain(model, X, "occlusion", patch=16)
    with torch.no_grad():
        wanted = model(X)
    e = mhex.explain(model, X, "occlusion", patch=16, outputs="probabilities")
    assert float((e.probabilities[:, -classes:] - wanted).abs().max()) <= 1e-9


def test_a_scripted_model_that_may_return_probabilities_is_told_of() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 1), nn.Sigmoid()).double().eval()
    with torch.no_grad():
        model[1].bias.fill_(-3.0)
    scripted = torch.jit.trace(model, X)
    with pytest.warns(MhexWarning, match="lie between 0 and 1"):
        mhex.explain(scripted, X, "occlusion", patch=16)


def test_honest_logits_between_0_and_1_are_left_alone() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for end in (lambda z: z, lambda z: z.squeeze(), lambda z: z + 0.01, lambda z: z / 4):
            model = Small(3, end, bias=0.5)
            with torch.no_grad():
                model.fc.weight.mul_(1e-3)
            e = mhex.explain(model, X, "gradcam")
            assert 0 < float(e.logits.min()) < float(e.logits.max()) < 1
            torch.testing.assert_close(e.logits, model(X).detach())


def test_a_concept_of_a_classifier_that_ends_in_a_softmax() -> None:
    """What its last linear layer reads is the latent vector, as without the softmax."""
    plain, ended = Small(3, lambda z: z), Small(3, lambda z: z.softmax(1))
    concept = mhex.Concept.from_examples(ended, X)
    torch.testing.assert_close(concept.latent, mhex.Concept.from_examples(plain, X).latent)
    e = mhex.explain(ended, X, "gradcam", concept, outputs="probabilities")
    torch.testing.assert_close(e.scores, mhex.explain(plain, X, "gradcam", concept).scores)
    assert e.probabilities is not None
    torch.testing.assert_close(e.probabilities, ended(X).detach())


def test_a_model_that_ends_otherwise_in_a_later_pass_is_told() -> None:
    calls = iter(range(99))
    model = Small(1, lambda z: z.sigmoid() if next(calls) < 3 else by_hand(z))
    with pytest.raises(MhexError, match="once it did not"):
        mhex.explain(model, X, "occlusion", outputs="probabilities")


# --- metrics ------------------------------------------------------------------------------------------------------

PARTS = {"steps": 3, "reference": "zero"}


@pytest.mark.parametrize(("classes", "end"), [(1, torch.sigmoid), (3, torch.sigmoid), (3, ENDS["softmax"])])
def test_evaluate_reads_outputs_as_explain_does(classes: int, end: End) -> None:
    """Every number is that of the model without its last operation."""
    plain, ended = Small(classes, same, -0.2), Small(classes, end, -0.2)
    asked: Any = (["gradcam", "input-x-gradient"], [("deletion", PARTS), ("insertion", PARTS), "average-drop"])
    task = "multi-label" if classes > 1 and end is torch.sigmoid else None
    with pytest.warns(MhexWarning, match="The model ends in a") as caught:
        report = mhex.evaluate(ended, X, *asked, batch_size=2)
    assert len([w for w in caught if "ends in" in str(w.message)]) == 1
    expected = mhex.evaluate(plain, X, *asked, batch_size=2, task=task)
    for metric in ("deletion", "insertion", "average-drop"):
        for name, values in expected.values(metric)[1].items():
            torch.testing.assert_close(report.values(metric)[1][name], values, rtol=1e-6, atol=1e-9, equal_nan=True)


def test_an_evaluator_may_end_in_a_softmax_too() -> None:
    model, evaluator = Small(3, same), Small(3, ENDS["softmax"])
    asked: Any = (["gradcam"], [("deletion", PARTS)])
    with pytest.warns(MhexWarning, match="ends in a softmax"):
        report = mhex.evaluate(model, X, *asked, evaluator=evaluator)
    expected = mhex.evaluate(model, X, *asked, evaluator=Small(3, same))
    torch.testing.assert_close(report.values("deletion")[1]["gradcam"], expected.values("deletion")[1]["gradcam"])


def test_a_subject_reads_sigmoids_one_by_one() -> None:
    subject = Subject(Small(3, torch.sigmoid), X)
    with pytest.warns(MhexWarning, match="ends in a sigmoid"):
        assert subject.predicted.shape == (4,)
    assert subject.multi_label
    p = subject.probabilities(subject.logits, torch.arange(3).expand(4, 3))
    torch.testing.assert_close(p, Small(3, torch.sigmoid)(X).detach())


def test_recommend_reads_outputs_as_explain_does() -> None:
    clock = iter(float(n) / 100 for n in range(10**6))
    asked: Any = {"methods": ["gradcam", "input-x-gradient"], "images": 4, "clock": lambda: next(clock)}
    found = mhex.recommend(Small(3, ENDS["softmax"]), X, 600, outputs="probabilities", **asked)
    plain = mhex.recommend(Small(3, same), X, 600, **asked)
    assert found.method == plain.method


@pytest.mark.parametrize("end", [same, torch.sigmoid, by_hand, lambda z: z.sigmoid() * 0.5])
@pytest.mark.parametrize("outputs", ["logits", "probabilities", None])
def test_every_pass_that_looks_for_the_ending_is_counted(end: End, outputs: Outputs | None) -> None:
    outputs = None if end is same and outputs == "probabilities" else outputs  # these are refused
    model, passes = Small(3, end, bias=-2.0), []
    batch = Batch("image", (X,), size=len(X))
    anatomy = find_anatomy(model, batch)
    model.register_forward_hook(lambda *_: passes.append("a pass"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MhexWarning)
        with observe(model, anatomy, batch, Needs(), outputs=outputs) as trace:
            assert trace.cost["forwards"] == len(passes)
    assert len(passes) == 1 if outputs == "logits" or end is same else len(passes) > 1
