"""Compiled models: their own forward runs where nothing is seen inside, and the bare module elsewhere."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mhex
from mhex.bundle import Bundle
from mhex.capture.wrappers import compiled_form, unwrap
from mhex.errors import UnsupportedModelError
from support.cases import assert_same
from support.models import FAMILIES
from support.snapshot import Snapshot

FORMS = ("wrapper", "in place")
# Method, options, and whether the pass that is observed is compiled too.
METHODS: dict[str, tuple[dict[str, Any], bool]] = {
    "rise": ({"n": 40}, True),
    "occlusion": ({}, True),
    "shap": ({}, True),
    "integrated-gradients": ({"steps": 5}, True),
    "smoothgrad": ({"n": 5}, True),
    "scorecam": ({}, False),
    "vit-cx": ({}, False),
}


class Backend:
    """A compiler that changes nothing, and counts what it compiles and how often that is run."""

    def __init__(self) -> None:
        self.compiles = self.calls = 0

    def __call__(self, graph: torch.fx.GraphModule, examples: list[Tensor]) -> Callable[..., Any]:
        self.compiles += 1

        def run(*args: Any) -> Any:
            self.calls += 1
            return graph.forward(*args)

        return run

    def counts(self) -> tuple[int, int]:
        """Compilations and calls since the last question."""
        counts = (self.compiles, self.calls)
        self.compiles = self.calls = 0
        return counts


@pytest.fixture(autouse=True)
def _nothing_compiled() -> Iterator[None]:
    """Code objects keep what was compiled for other tests, up to a limit."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled(form: str, model: nn.Module, backend: Any) -> nn.Module:
    """One graph: a part that cannot be compiled is an error."""
    if form == "wrapper":
        return torch.compile(model, backend=backend, fullgraph=True)
    model.compile(backend=backend, fullgraph=True)
    return model


class Net(nn.Module):
    """A small network that works otherwise in training."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.norm = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.drop, self.fc = nn.Dropout(0.5), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.drop(self.norm(self.conv(x)).relu().mean((2, 3))))


QUICK = (("rise", "wrapper"), ("occlusion", "in place"), ("integrated-gradients", "wrapper"))


@pytest.mark.parametrize(
    ("method", "form"),
    [
        pytest.param(method, form, marks=() if (method, form) in QUICK else pytest.mark.slow)
        for method in METHODS
        for form in FORMS
    ],
)
def test_passes_on_other_inputs_are_compiled(method: str, form: str) -> None:
    options, all_passes = METHODS[method]
    family = FAMILIES["timm_vit"]
    backend, inputs = Backend(), family.inputs(2)
    model = compiled(form, family.fresh(), backend).train()
    before = Snapshot(unwrap(model))
    first = mhex.explain(model, inputs, method, 1, **options)
    before.check()
    compiles, calls = backend.counts()
    assert 0 < compiles <= 4  # without and with a graph, for one size and for any
    assert calls > 0
    wanted = mhex.explain(family.model(), inputs, method, 1, **options)
    assert_same(first.scores, wanted.scores, method)
    assert first.cost["forwards"] == wanted.cost["forwards"]
    assert_same(mhex.explain(model, inputs, method, 1, **options).scores, wanted.scores, method)
    assert backend.counts() == (0, calls)
    mhex.explain(model, inputs, "input-x-gradient" if all_passes else "gradcam", 1)
    assert backend.counts() == (0, 0)


def test_every_pass_is_compiled_but_those_that_are_looked_into() -> None:
    """Of 40 masks on 2 images, in one pass: the observed pass and that one."""
    backend, x = Backend(), torch.randn(2, 3, 8, 8)
    mhex.explain(torch.compile(Net(), backend=backend), x, "rise", n=40)
    assert backend.counts()[1] == 2
    mhex.explain(torch.compile(Net(), backend=backend), x, "scorecam")
    assert backend.counts()[1] == 1


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("name", "method"), [("timm_resnet", "gradcam"), ("timm_vit", "gae"), ("timm_vit", "attnlrp")])
def test_methods_that_look_inside_run_the_bare_module(name: str, method: str, form: str) -> None:
    backend, family = Backend(), FAMILIES[name]
    model = compiled(form, family.fresh(), backend)
    got = mhex.explain(model, family.inputs(2), method)
    assert backend.counts() == (0, 0)
    assert_same(got.scores, mhex.explain(family.model(), family.inputs(2), method).scores, method)


def values_of(report: Any) -> list[float]:
    return report.rows.column("value").to_pylist()


@pytest.mark.parametrize("form", FORMS)
def test_sweeps_are_compiled(form: str) -> None:
    backend, bare = Backend(), Net()
    model = compiled(form, bare, backend)
    data = (torch.randn(5, 3, 8, 8), torch.arange(5) % 3)
    plan: dict[str, Any] = {"methods": ["gradcam"], "metrics": ["deletion", "infidelity"], "inner_batch": 7}
    before = Snapshot(bare)
    report = mhex.evaluate(model, data, **plan)
    before.check()
    compiles, calls = backend.counts()
    assert 0 < compiles <= 3  # for one size, for any, and for a rest of 1
    assert calls > 10
    wanted = values_of(mhex.evaluate(Net(), data, **plan))
    assert values_of(report) == pytest.approx(wanted, rel=1e-5)
    assert values_of(mhex.evaluate(model, data, **plan)) == values_of(report)
    assert backend.counts() == (0, calls)
    mhex.recommend(model, data, methods=["gradcam", "rise"], budget="5 s")
    assert backend.counts()[1] > 0


def test_an_evaluator_is_compiled_by_itself() -> None:
    judge, explained = Backend(), Backend()
    models = [torch.compile(Net(), backend=backend) for backend in (explained, judge)]
    data = (torch.randn(5, 3, 8, 8), torch.arange(5) % 3)
    mhex.evaluate(models[0], data, methods=["gradcam"], metrics=["deletion"], target="label", evaluator=models[1])
    assert judge.counts()[1] > 5
    assert explained.counts()[1] <= 2  # what it says of the samples as they are


@pytest.mark.parametrize("form", FORMS)
def test_gradients_for_several_targets_are_not_compiled(form: str) -> None:
    """The backward pass of a compiled model may write over what it read, so that there is no second one."""
    backend, x = Backend(), torch.randn(2, 3, 8, 8)
    model = compiled(form, Net(), backend)
    several = mhex.explain(model, x, "integrated-gradients", [0, 2], steps=4)
    assert backend.counts()[1] == 2  # the observed pass, and the one at the baseline
    for k, target in enumerate((0, 2)):
        assert_same(
            several.scores[:, k], mhex.explain(model, x, "integrated-gradients", target, steps=4).scores, "targets"
        )
        assert backend.counts()[1] == 3


def test_the_user_trains_and_evaluates_the_compiled_model_as_before() -> None:
    model, calm, x = Net(), Net(), torch.randn(4, 3, 8, 8)
    model.drop.p = calm.drop.p = 0.0
    form = torch.compile(model, backend="eager")
    for explained in ("occlusion", "integrated-gradients"):
        mhex.explain(form, x, explained)
        form(x).sum().backward()
        calm(x).sum().backward()
        for parameter, other in zip(model.parameters(), calm.parameters(), strict=True):
            assert torch.equal(parameter.grad, other.grad)
        assert torch.equal(model.norm.running_mean, calm.norm.running_mean)
    assert torch.equal(form.eval()(x), calm.eval()(x))


def test_bundles_and_parallel_wrappers_keep_the_compiled_model() -> None:
    backend, x = Backend(), torch.randn(2, 3, 8, 8)
    model = torch.compile(Net(), backend=backend)
    for given in (Bundle("net", model), nn.DataParallel(model)):
        mhex.explain(given, x, "occlusion")
        assert backend.counts()[1] > 0
    mhex.explain(unwrap(model), x, "occlusion")
    assert backend.counts() == (0, 0)
    # The wrapper inside would share the work among devices.
    assert compiled_form(torch.compile(nn.DataParallel(Net()), backend=backend)) is None


def test_pickled_explainers_run_the_bare_module() -> None:
    backend, x = Backend(), torch.randn(2, 3, 8, 8)
    explainer = mhex.Explainer(torch.compile(Net(), backend=backend), "occlusion")
    wanted = explainer(x).scores
    assert backend.counts()[1] > 0
    again = pickle.loads(pickle.dumps(explainer))
    assert torch.equal(again(x).scores, wanted)
    assert backend.counts() == (0, 0)
    assert torch.equal(explainer(x).scores, wanted)
    assert backend.counts()[1] > 0


def test_heads_run_as_they_are() -> None:
    family, backend = FAMILIES["tv_resnet_heads"], Backend()
    model = torch.compile(family.fresh(), backend=backend)
    got = mhex.explain(model, family.inputs(2), "rise", n=3)
    assert backend.counts() == (0, 0)
    assert_same(got.scores, mhex.explain(family.model(), family.inputs(2), "rise", n=3).scores, "rise")


def test_words_that_stand_in_are_seen_inside() -> None:
    """Embeddings are exchanged by a hook, which no compiled model would call."""
    family, backend = FAMILIES["hf_bert"], Backend()
    model = torch.compile(family.fresh(), backend=backend)
    got = mhex.explain(model, family.inputs(2), "integrated-gradients", steps=4)
    assert backend.counts() == (0, 0)
    wanted = mhex.explain(family.model(), family.inputs(2), "integrated-gradients", steps=4)
    assert_same(got.scores, wanted.scores, "integrated-gradients")


def test_probabilities_are_read_inside() -> None:
    backend, x = Backend(), torch.randn(2, 3, 8, 8)
    bare = nn.Sequential(Net(), nn.Softmax(1))
    got = mhex.explain(torch.compile(bare, backend=backend), x, "occlusion", 0, outputs="probabilities")
    assert backend.counts()[1] == 1  # the pass that showed the end
    assert_same(got.scores, mhex.explain(copy.deepcopy(bare), x, "occlusion", 0, outputs="probabilities").scores, "end")


def test_single_samples_have_the_right_gradient() -> None:
    """Torch's own gradient of a batch norm is not always right for one sample, and is corrected by hooks."""
    backend, x = Backend(), torch.randn(1, 3, 8, 8)
    model = torch.compile(Net(), backend=backend)
    mhex.explain(model, x, "integrated-gradients", steps=4, batch_size=1)
    assert backend.counts()[1] == 2
    mhex.explain(model, x, "integrated-gradients", steps=4)
    assert backend.counts()[1] == 3


@pytest.mark.parametrize("form", FORMS)
def test_what_cannot_be_compiled_is_told(form: str) -> None:
    def refuse(graph: torch.fx.GraphModule, examples: list[Tensor]) -> Callable[..., Any]:
        raise NotImplementedError("no such operation")

    bare, x = Net(), torch.randn(2, 3, 8, 8)
    model = compiled(form, bare, refuse)
    before = Snapshot(bare)
    message = (
        r"Net runs by itself, but torch\.compile fails .*images of shape \(2, 3, 8, 8\) \(NotImplementedError: no "
    )
    with pytest.raises(UnsupportedModelError, match=message):
        mhex.explain(model, x, "occlusion")
    with pytest.raises(UnsupportedModelError, match=message):
        mhex.evaluate(model, (x, torch.zeros(2).long()), methods=["gradcam"], metrics=["deletion"])
    before.check()
    assert mhex.explain(model, x, "gradcam").scores.isfinite().all()


class Single(Net):
    def forward(self, x: Tensor) -> Tensor:
        if len(x) > 1:
            raise ValueError("one at a time")
        return super().forward(x)


def test_a_model_that_fails_without_a_compiler_too() -> None:
    model = torch.compile(Single(), backend="eager", fullgraph=True)
    with pytest.raises(UnsupportedModelError, match=r"Single itself fails .*ValueError: one at a time"):
        mhex.explain(model, torch.randn(2, 3, 8, 8), "occlusion")


@pytest.mark.slow  # compiles in earnest, with a C++ compiler
def test_the_usual_compiler() -> None:
    model, x = Net().double(), torch.randn(2, 3, 8, 8).double()  # scores of occlusion are small differences
    form = torch.compile(model)
    torch._dynamo.utils.counters.clear()
    for method, options in (("occlusion", {}), ("integrated-gradients", {"steps": 5}), ("input-x-gradient", {})):
        for target in (1, [0, 2]):
            got = mhex.explain(form, x, method, target, **options).scores
            wanted = mhex.explain(model, x, method, target, **options).scores
            assert torch.allclose(got, wanted, rtol=1e-9, atol=1e-9 * float(wanted.abs().max()))
    assert 0 < torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 4
