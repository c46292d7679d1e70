"""A prepared explainer gives what `mhex.explain` gives, and notices when its model is another."""

from __future__ import annotations

import gc
import importlib
import pickle
import pkgutil
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, nn

import mhex
from mhex.capture import find_anatomy
from mhex.capture.adapters import generic
from mhex.capture.cuda_graph import has_hooks, tensors_of, with_tensors
from mhex.capture.hooks import FunctionTap
from mhex.capture.inventory import Inventory, inventory_of
from mhex.errors import ArgumentError, UnsupportedModelError
from mhex.inputs import prepare
from support.models import FAMILIES
from support.snapshot import Snapshot

PAIRS = (("timm_vit", "gae"), ("timm_vit", "attnlrp"), ("timm_resnet", "gradcam"), ("hf_bert", "conservative-lrp"))


class Net(nn.Module):
    """A small convolutional network of no known family."""

    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 4, 3, padding=1), nn.Linear(4, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.conv(x).relu().mean((2, 3)) * 9)


def images(size: int = 2) -> Tensor:
    return torch.randn(size, 3, 8, 8, generator=torch.Generator().manual_seed(size))


@pytest.mark.parametrize(("name", "method"), PAIRS)
def test_batch_after_batch_is_explained_as_by_explain(name: str, method: str) -> None:
    family = FAMILIES[name]
    model = family.model()
    explainer = mhex.Explainer(model, method)
    for size, target in ((2, None), (3, 1), (1, [0, 2]), (2, "top2")):
        inputs = family.inputs(size)
        wanted, got = mhex.explain(model, inputs, method, target), explainer(inputs, target)
        assert torch.equal(got.scores, wanted.scores)
        assert torch.equal(got.target, wanted.target)
        assert got.options == wanted.options


def test_the_model_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model, looks = FAMILIES["timm_vit"].fresh(), []
    look = generic.known_anatomy
    monkeypatch.setattr(generic, "known_anatomy", lambda model: (looks.append(1), look(model))[1])
    explainer = mhex.Explainer(model, "gae")
    for size in (1, 2, 3):
        explainer(FAMILIES["timm_vit"].inputs(size))
    mhex.explain(model, FAMILIES["timm_vit"].inputs(1), "cdam")
    assert len(looks) == 1


def test_an_unknown_model_is_watched_once_for_each_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    model, looks = Net().eval(), []
    look = generic.generic_anatomy
    monkeypatch.setattr(generic, "generic_anatomy", lambda *args: (looks.append(1), look(*args))[1])
    explainer = mhex.Explainer(model, "gradcam")
    for _ in range(3):
        explainer(images())
    assert len(looks) == 1
    explainer(torch.randn(1, 3, 16, 16))
    assert len(looks) == 2


def test_a_replaced_classifier_is_noticed() -> None:
    model = Net().eval()
    explainer = mhex.Explainer(model, "gradcam")
    assert explainer(images()).logits.shape == (2, 3)
    model.fc = nn.Linear(4, 7)
    assert explainer(images()).logits.shape == (2, 7)
    assert torch.equal(explainer(images()).scores, mhex.explain(model, images(), "gradcam").scores)


def test_another_layer_dtype_and_class_are_noticed() -> None:
    model = Net().eval()
    explainer = mhex.Explainer(model, "gradcam")
    assert explainer(images()).options["layer"] == "conv"
    model.conv = nn.Sequential(model.conv, nn.Conv2d(4, 4, 3, padding=1))
    assert explainer(images()).options["layer"] == "conv"
    assert explainer(images()).scores.dtype == torch.float32
    before = inventory_of(model)
    model.double()  # the parameters are the same objects, and their values lie elsewhere
    assert inventory_of(model) is not before
    assert explainer(images().double()).scores.dtype == torch.float64
    before = inventory_of(model)
    model.__class__ = type("Other", (Net,), {})
    assert inventory_of(model) is not before


def test_a_plain_attribute_of_the_model_is_noticed() -> None:
    """It decides, for instance, how a model of timm reads its tokens."""
    model, batch = FAMILIES["timm_vit"].fresh(), prepare(FAMILIES["timm_vit"].model(), FAMILIES["timm_vit"].inputs(1))
    assert find_anatomy(model, batch.batch).readout == "class"
    model.global_pool = "avg"
    assert find_anatomy(model, batch.batch).readout == "mean"


@pytest.mark.parametrize(
    "change",
    [
        lambda model: setattr(model, "fc", nn.Linear(4, 3)),
        lambda model: setattr(model.fc, "weight", nn.Parameter(model.fc.weight.detach())),
        lambda model: model.fc.register_buffer("scale", torch.ones(1)),  # where there was none
        lambda model: model.conv.add_module("part", nn.ReLU()),
        lambda model: setattr(model, "training", True),
    ],
)
def test_what_stands_in_another_place_is_noticed(change: Callable[[nn.Module], None]) -> None:
    model = Net().eval()
    before = inventory_of(model)
    change(model)
    assert (inventory_of(model) is before) == model.training


class Ending(nn.Module):
    """A part whose attribute decides what the model returns."""

    def __init__(self) -> None:
        super().__init__()
        self.shares = False

    def forward(self, x: Tensor) -> Tensor:
        return x.softmax(1) if self.shares else x


def test_a_plain_attribute_of_a_part_is_noticed() -> None:
    model = nn.Sequential(Net(), Ending()).eval()
    explainer = mhex.Explainer(model, "gradcam")
    wanted = explainer(images()).logits
    model[1].shares = True
    with pytest.warns(mhex.errors.MhexWarning, match="ends in a softmax"):
        assert torch.equal(explainer(images()).logits, wanted)


@pytest.mark.filterwarnings("ignore:The model ends in a softmax")
def test_what_heads_return_says_nothing_of_their_host() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(FAMILIES["timm_resnet"].fresh().float(), nn.Softmax(1)).eval()
    inputs = FAMILIES["timm_resnet"].inputs(2).float()
    scaffold = mhex.attach(model[0], model(inputs).shape[1])
    for parameter in scaffold.head_parameters():
        nn.init.normal_(parameter)
    wanted = mhex.explain(model, inputs, "gradcam", 0).logits
    mhex.explain(model, inputs, "mhex", 0)
    assert torch.equal(mhex.explain(model, inputs, "gradcam", 0).logits, wanted)


def test_functions_and_concepts_are_prepared_for_apart() -> None:
    family = FAMILIES["timm_resnet"]
    model, inputs = family.model(), family.inputs(2)
    concept = mhex.Concept.from_examples(model, inputs, name="these")
    explainer = mhex.Explainer(model, "gradcam")
    explainer(inputs, lambda logits: logits[:, 0])
    assert torch.equal(explainer(inputs, concept).scores, mhex.explain(model, inputs, "gradcam", concept).scores)


class Writing(nn.Module):
    """A network that writes into what it has computed, in several ways."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.conv(x).relu().mean((2, 3)).bfloat16()
        hidden.mul_(3.0)
        gate = torch.ones(8, dtype=torch.bfloat16)
        gate.fill_(0.5)
        gate[:4] = 2.0
        return self.fc(hidden * gate) * 9


def test_what_a_model_of_half_precision_writes_into_is_seen() -> None:
    torch.manual_seed(0)
    model = Writing().eval().bfloat16()
    x = images().bfloat16()
    for method in ("lrp", "abslrp"):
        wanted, got = mhex.explain(model, x, "gradcam"), mhex.explain(model, x, method)
        assert torch.allclose(got.logits.float(), wanted.logits.float(), rtol=0.05, atol=0.05)


def test_heads_that_are_attached_are_noticed() -> None:
    family = FAMILIES["timm_resnet"]
    model, inputs = family.fresh(), family.inputs(2)
    explainer = mhex.Explainer(model)
    assert explainer(inputs).method == "gradcam"
    scaffold = mhex.attach(model, 3)
    for parameter in scaffold.head_parameters():
        nn.init.normal_(parameter)
    assert explainer(inputs).method == "mhex"
    scaffold.detach()
    assert explainer(inputs).method == "gradcam"


def test_an_error_leaves_explainer_and_model_as_they_were() -> None:
    model = FAMILIES["timm_vit"].fresh()
    explainer, before = mhex.Explainer(model, "gae"), Snapshot(model)
    inputs = FAMILIES["timm_vit"].inputs(2)
    wanted = explainer(inputs).scores
    with pytest.raises(ArgumentError):
        explainer(inputs, 10_000)
    with pytest.raises(ArgumentError):
        explainer(inputs[:, :1])
    with pytest.raises(ArgumentError, match="Expected finite images"):
        explainer(inputs * torch.inf)
    before.check()
    assert torch.equal(explainer(inputs).scores, wanted)


class Narrow(Net):
    """A network that takes no large numbers."""

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        if x.amax() > 100:
            raise ValueError("too large")
        return y


def test_an_error_of_the_model_leaves_explainer_and_model_as_they_were() -> None:
    model = Narrow()  # in training mode
    explainer, before = mhex.Explainer(model, "gradcam"), Snapshot(model)
    wanted = explainer(images()).scores
    with pytest.raises(UnsupportedModelError, match="too large"):
        explainer(images() + 1000)
    before.check()
    assert torch.equal(explainer(images()).scores, wanted)


CALLS = (("timm_vit", "gae"), ("timm_vit", "lrp"), ("timm_resnet", "gradcam"), ("hf_bert", "occlusion"))


@pytest.mark.parametrize(("name", "method"), CALLS)
def test_nothing_is_imported_listed_or_walked_per_call(name: str, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    family, calls = FAMILIES[name], []
    model, inputs = family.model(), family.inputs(1)
    explainer = mhex.Explainer(model, method)
    explainer(inputs)
    for owner, function in ((nn.Module, "modules"), (pkgutil, "iter_modules"), (importlib, "import_module")):
        monkeypatch.setattr(owner, function, lambda *args, _name=function: calls.append(_name))
    explainer(inputs)
    mhex.explain(model, inputs, method)
    assert not calls


def test_options_are_checked_when_it_is_made() -> None:
    with pytest.raises(ArgumentError, match="no option 'steps'"):
        mhex.Explainer(Net(), "gradcam", steps=3)
    with pytest.raises(ArgumentError, match="Expected task"):
        mhex.Explainer(Net(), "gradcam", task="guess")  # type: ignore[arg-type]
    with pytest.raises(UnsupportedModelError):
        mhex.Explainer(Net().eval(), "gae")(images())


def test_it_can_be_pickled_and_shared_by_threads() -> None:
    explainer = mhex.Explainer(Net().eval(), "gradcam")
    wanted = [explainer(images(size)).scores for size in (1, 2, 3)]
    copy = pickle.loads(pickle.dumps(explainer))
    assert torch.equal(copy(images(2)).scores, wanted[1])
    sizes = (1, 2, 3) * 4
    with ThreadPoolExecutor(3) as pool:
        for size, scores in zip(sizes, pool.map(lambda n: explainer(images(n)).scores, sizes), strict=True):
            assert torch.equal(scores, wanted[size - 1])


@pytest.mark.parametrize("model", [Net, lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 3))])
def test_what_is_known_of_a_model_dies_with_it(model: type[nn.Module]) -> None:
    network = model().eval()
    mhex.explain(network, images(), "gradcam")
    explainer = mhex.Explainer(network, "gradcam")
    explainer(images())
    dead = weakref.ref(network)
    del network, explainer
    gc.collect()
    assert dead() is None


def test_many_calls_keep_nothing() -> None:
    explainer, x = mhex.Explainer(Net().eval(), "gradcam"), images()

    def tensors() -> int:
        gc.collect()
        return sum(isinstance(item, Tensor) for item in gc.get_objects())

    for _ in range(5):
        explainer(x)
    before = tensors()
    for _ in range(1000):
        explainer(x)
    assert tensors() <= before


def test_the_tap_is_open_inside_of_attention_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    model, calls = FAMILIES["timm_vit"].model(), []
    see = FunctionTap.__torch_function__
    monkeypatch.setattr(
        FunctionTap, "__torch_function__", lambda self, func, *args: (calls.append(func), see(self, func, *args))[1]
    )
    mhex.explain(model, FAMILIES["timm_vit"].inputs(1), "attention")
    inside = len(calls)
    mhex.explain(model, FAMILIES["timm_vit"].inputs(1), "rollout")
    assert 0 < inside < 20
    assert len(calls) - inside == inside * len(model.blocks)
    calls.clear()
    mhex.explain(model, FAMILIES["timm_vit"].inputs(1), "cdam")
    assert not calls


def test_tensors_of_a_batch_can_be_exchanged() -> None:
    family = FAMILIES["hf_bert"]
    first, second = (prepare(family.model(), family.inputs(size)).batch for size in (2, 2))
    other = {name: tensor.clone().zero_() for name, tensor in tensors_of(second).items()}
    changed = with_tensors(first, other)
    assert set(tensors_of(changed)) == set(tensors_of(first)) == set(other)
    assert all(tensors_of(changed)[name] is other[name] for name in other)
    assert changed.size == first.size


def test_hooks_of_the_user_are_seen() -> None:
    model = FAMILIES["timm_resnet"].fresh()
    assert not has_hooks(model, inventory_of(model))
    for module in (model, model.layer1):
        handle = module.register_forward_hook(lambda *_: None)
        assert has_hooks(model, inventory_of(model))
        handle.remove()
    mhex.attach(model, 3)
    assert not has_hooks(model, inventory_of(model))  # those of heads


def test_facts_are_found_once_and_forgotten_when_there_are_many() -> None:
    inventory, asked = Inventory(Net()), []

    def find() -> int:
        asked.append(1)
        return len(asked)

    assert [inventory.fact("a", find), inventory.fact("a", find)] == [1, 1]
    assert inventory.fact("b", find, lambda _: False) == 2
    assert not inventory.knows("b")
    for key in range(100):
        inventory.note(key)
    assert inventory.fact("a", find) == 3


def test_a_target_belongs_to_the_call() -> None:
    with pytest.raises(ArgumentError, match=r"target= in the call of the explainer, explainer\(inputs, target\)"):
        mhex.Explainer(torch.nn.Linear(2, 2), "gradcam", target=3)


def test_numbers_whose_sum_overflows_are_finite() -> None:
    model = Net().eval()
    with torch.no_grad():
        model.fc.weight.zero_()
        model.fc.bias.fill_(3e38)
    explanation = mhex.explain(model, images(), "occlusion", 0, outputs="logits", patch=4)
    assert explanation.logits.isfinite().all()
    assert not explanation.logits.sum().isfinite()
