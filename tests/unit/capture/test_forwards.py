"""What heads do with forwards that change their way, and with more than one branch."""

import random

import numpy as np
import pytest
import timm
import torch
from torch import nn

import mhex
from mhex.errors import UnsupportedModelError
from mhex.heads.wiring.residual import survey
from support.residual_units import CLASSES, WIDTH, Net, Unit, images

pytestmark = pytest.mark.filterwarnings("ignore:The heads have:mhex.errors.MhexWarning")


# --- forwards that do not do the same every time -------------------------------------------------------------------


class Dice(Unit):
    def __init__(self, roll):
        super().__init__()
        self.roll = roll

    def forward(self, x):
        if self.training and self.roll() < 0.5:
            return x
        return x + self.body(x)


def counting():
    """Randomness that no state of a generator shows."""
    numbers = iter([0.9, 0.1] * 100)
    return lambda: next(numbers)


@pytest.mark.parametrize(
    ("roll", "said"),
    [
        (random.random, "draws random numbers"),
        (np.random.rand, "draws random numbers"),
        (lambda: torch.rand(1).item(), "draws random numbers"),
        (counting(), "same every time"),
    ],
    ids=["python", "numpy", "torch", "other"],
)
def test_random_ways_are_refused(roll, said):
    for seed in range(4):
        random.seed(seed)
        with pytest.raises(UnsupportedModelError, match=rf"units\.0 cannot be rewritten \(.*{said}"):
            mhex.attach(Net(Dice(roll)), CLASSES)


def test_attaching_draws_no_random_numbers():
    model = Net(Dice(random.random))
    random.seed(3)
    np.random.seed(3)
    states = random.getstate(), np.random.get_state()[1].copy(), torch.get_rng_state()
    with pytest.raises(UnsupportedModelError):
        mhex.attach(model, CLASSES, preset="identity", coupling="head_only")
    assert random.getstate() == states[0]
    assert np.array_equal(np.random.get_state()[1], states[1])


def test_dropped_branches_of_submodules_are_fine():
    model = timm.create_model("resnet10t", num_classes=CLASSES, drop_path_rate=0.5)
    assert len(mhex.attach(model, CLASSES).names) == 4


def test_forwards_that_keep_something_are_refused():
    class Keeping(Unit):
        kept = None

        def forward(self, x):
            self.kept = self.body(x)
            return x + self.kept

    class Making(Unit):
        def forward(self, x):
            return x + self.body(x) * torch.ones(2).sum()

    for unit, said in ((Keeping(), r"writes to self\.kept"), (Making(), "register them as buffers")):
        own = set(vars(unit))
        with pytest.raises(UnsupportedModelError, match=said):
            mhex.attach(Net(unit), CLASSES)
        assert set(vars(unit)) == own


def test_flags_are_taken_as_they_are_when_heads_are_attached():
    class Scaled(Unit):
        scale = 1.0

        def forward(self, x):
            return x + self.scale * self.body(x)

    model, x = Net(Scaled()).eval(), images()
    scaffold = mhex.attach(model, CLASSES)
    before = model(x)
    model.units[0].scale = 0.0
    assert torch.equal(model(x), before)  # documented in docs/heads.md
    scaffold.detach()
    assert not torch.allclose(model(x), before, rtol=1e-3)


# --- chains --------------------------------------------------------------------------------------------------------


class Chain(nn.Module):
    def __init__(self, add, depth):
        super().__init__()
        self.add, self.a = add, nn.Conv2d(WIDTH, WIDTH, 3, padding=1)
        self.b = nn.Sequential(*[nn.Conv2d(WIDTH, WIDTH, 1) for _ in range(depth)])

    def forward(self, x):
        return self.add(x, self.a(x), self.b(x))


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("add", [lambda x, a, b: x + a + b, lambda x, a, b: b + (a + x)], ids=["left", "right"])
def test_a_shortcut_and_two_branches_in_a_row(add, depth):
    with pytest.raises(UnsupportedModelError, match="two branches in a row"):
        mhex.attach(Net(Chain(add, depth)), CLASSES)


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("add", [lambda x, a, b: x + (a + b), lambda x, a, b: (a + b) + x], ids=["last", "first"])
def test_two_branches_that_are_added_first(add, depth):
    model, x = Net(Chain(add, depth)).eval(), images()
    (junction,) = survey(model).junctions
    assert (junction.meeting.shortcut, junction.meeting.branch) == ("x", "add")
    before = model(x)
    mhex.attach(model, CLASSES)
    assert torch.equal(model(x), before)


def test_transformer_blocks_are_no_chains():
    with torch.device("meta"):
        model = timm.create_model("vit_tiny_patch16_224", depth=1)
    assert [j.name for j in survey(model).junctions] == ["blocks.0:attention", "blocks.0"]
