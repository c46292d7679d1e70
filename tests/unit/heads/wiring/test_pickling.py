"""Models with heads, and folded ones, are copied and pickled whole."""

import copy
import io
import multiprocessing
import pickle

import pytest
import torch
from torch import nn

import mhex
from mhex.heads.wiring.graft import is_grafted
from support.hosts import MAIN, attached, host, inputs, run, stir

pytestmark = [
    pytest.mark.filterwarnings("ignore:The heads have:mhex.errors.MhexWarning"),
    pytest.mark.filterwarnings("ignore:The gates are active:mhex.errors.MhexWarning"),
]
NAMES = (*MAIN, "tv_vit", "plain")
SLOW = ("tv_resnet18", "timm_resnet18", "tv_bottlenecks", "timm_bottlenecks")  # loading traces every unit again


def pickled(model):
    return pickle.loads(pickle.dumps(model))


def saved(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def with_heads(name, **options):
    scaffold = stir(attached(name, preset="paper", **options))
    return scaffold.model, scaffold, inputs(name)


@pytest.mark.parametrize(
    ("name", "way"),
    [
        *(pytest.param(name, pickled, marks=[pytest.mark.slow] if name in SLOW else []) for name in NAMES),
        ("timm_vit", saved),
        ("timm_vit", copy.deepcopy),
    ],
)
def test_a_model_with_heads(name, way):
    model, scaffold, batch = with_heads(name)
    wanted, heads = run(model, batch), scaffold.head_logits
    twin = way(model)
    own = mhex.Scaffold(twin)
    assert own.names == scaffold.names
    assert torch.equal(run(twin, batch), wanted)
    assert all(torch.equal(own.head_logits[key], value) for key, value in heads.items())
    with torch.no_grad():  # nothing is shared
        for parameter in scaffold.head_parameters():
            parameter.mul_(3)
    assert torch.equal(run(twin, batch), wanted)
    kinds = [type(module) for module in host(name).modules()]
    assert [type(module) for module in own.detach().modules()] == kinds
    assert not any(is_grafted(module) for module in twin.modules())


def test_a_pickled_model_trains():
    model, _, batch = with_heads("timm_resnet18d")  # drops paths in training
    twin = pickled(model.train())
    found = []
    for one in (model, twin):
        torch.manual_seed(0)
        one(batch)
        loss = mhex.Scaffold(one).loss(torch.tensor([0, 1, 2]))
        found.append(torch.autograd.grad(loss, list(one.parameters())))
    assert all(map(torch.equal, *found))
    again = pickled(twin)
    assert [type(m).__name__ for m in again.modules()] == [type(m).__name__ for m in model.modules()]


@pytest.mark.parametrize("source", ["classifier", "last_head", "sum"])
@pytest.mark.parametrize("way", [pickled, saved, copy.deepcopy])
@pytest.mark.parametrize("name", ["timm_vit", "plain"])
@pytest.mark.slow
def test_a_folded_model(name, way, source):
    model, scaffold, batch = with_heads(name)
    run(model, batch)
    folded = scaffold.fold(source)
    twin = way(folded)
    assert torch.equal(run(twin, batch), run(folded, batch))
    assert list(twin.state_dict()) == list(folded.state_dict())
    assert torch.equal(run(way(twin), batch), run(folded, batch))


def test_a_scaffold_can_be_pickled():
    model, scaffold, batch = with_heads("timm_vit", where="attention+mlp")
    wanted = run(model, batch)
    twin = pickled(scaffold)
    assert torch.equal(run(twin.model, batch), wanted)
    assert twin.heads is twin.model.mhex


class Chain(nn.Sequential):
    """A unit that runs all its children, among which a planted gate must not be."""

    def forward(self, x):
        y = x
        for child in self:
            y = child(y)
        return x + y


def test_children_that_came_later_are_hidden_while_a_unit_is_traced():
    torch.manual_seed(0)
    model, x = nn.Sequential(Chain(nn.Conv2d(3, 3, 1)), Chain(nn.Conv2d(3, 3, 1))).eval(), torch.randn(2, 3, 4, 4)
    scaffold = mhex.attach(model, 3, preset="paper")
    model(x)
    folded = scaffold.fold("sum")
    twin = pickled(folded)  # its units are traced again, and hold their gates by then
    assert [name for name, _ in twin.named_modules()] == [name for name, _ in folded.named_modules()]
    assert "host.0.mhex_gate" in dict(twin.named_modules())
    assert torch.equal(twin(x), folded(x))


def _answer(model, batch, queue):
    torch.set_num_threads(1)
    queue.put(run(model, batch).numpy())


@pytest.mark.slow
def test_another_process():
    model, _, batch = with_heads("timm_vit")
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=_answer, args=(model, batch, queue))
    process.start()
    answer = torch.from_numpy(queue.get(timeout=120))
    process.join()
    assert torch.equal(answer, run(model, batch))
