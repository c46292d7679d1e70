"""Optimisers: what they keep from step to step, and the settings that must reach them."""

import json

import pytest
import torch
from timm.optim import list_optimizers
from torch import nn

from mhex.errors import ArgumentError
from mhex.lab.config.recipe import RecipeTraining
from mhex.lab.train.checkpoint import flatten, read_tensors, restore, write_tensors
from mhex.lab.train.optimiser import make_optimizer

CANNOT = ("adahessian", "fused", "kron", "bnb")  # need a second gradient, a GPU, or keep lists


def made(name, **settings):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    part = RecipeTraining(epochs=1, batch=1, rate=0.01, optimizer=name, decay=0.01, **settings)
    return model, make_optimizer(model, part)


def steps(model, optimizer, places):
    for place in places:
        generator = torch.Generator().manual_seed(place)
        inputs, labels = torch.randn(6, 4, generator=generator), torch.randint(0, 3, (6,), generator=generator)
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        optimizer.zero_grad()


def stored(optimizer, folder):
    """State of an optimiser after a way through files."""
    tensors, numbers = flatten(optimizer)
    write_tensors(tensors, folder / "optimizer.safetensors")
    return read_tensors(folder / "optimizer.safetensors"), json.loads(json.dumps(numbers))


def goes_on_the_same(name, folder):
    whole, optimizer = made(name)
    steps(whole, optimizer, range(6))
    first, optimizer = made(name)
    steps(first, optimizer, range(3))
    kept = stored(optimizer, folder)
    second, optimizer = made(name)
    second.load_state_dict(first.state_dict())
    restore(optimizer, *kept)
    steps(second, optimizer, range(3, 6))
    return all(torch.equal(a, b) for a, b in zip(whole.parameters(), second.parameters(), strict=True))


# Of lamb and adan, the number of steps belongs to a group of parameters and not to any of them.
@pytest.mark.parametrize("name", ["adamw", "lamb", "adan", "momentum", "radam", "madgrad"])
def test_an_optimizer_goes_on_from_its_stored_state(name, tmp_path):
    assert goes_on_the_same(name, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in list_optimizers() if not name.startswith(CANNOT)])
def test_every_optimizer_goes_on_from_its_stored_state(name, tmp_path):
    assert goes_on_the_same(name, tmp_path)


def test_what_a_checkpoint_cannot_hold_is_refused():
    model, optimizer = made("adamw")
    steps(model, optimizer, [0])
    next(iter(optimizer.state.values()))["factors"] = [torch.ones(1)]
    with pytest.raises(ArgumentError, match=r"AdamW keeps 'factors' as list.*choose another train\.optimizer"):
        flatten(optimizer)


def test_momentum_and_betas_reach_the_optimizer():
    assert {group["momentum"] for group in made("sgd", momentum=0.3)[1].param_groups} == {0.3}
    assert {group["betas"] for group in made("adamw", betas=(0.8, 0.99))[1].param_groups} == {(0.8, 0.99)}
    with pytest.raises(ArgumentError, match=r"'sgd' takes no betas"):
        made("sgd", betas=(0.9, 0.99))
