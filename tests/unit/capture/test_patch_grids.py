"""Where heads find the channels, whatever a unit does with its axes, and how the sum lies in memory."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import mhex
from mhex.errors import CaptureError, MhexWarning, UnsupportedModelError


class Net(nn.Module):
    def __init__(self, *units: nn.Module) -> None:
        super().__init__()
        self.stem, self.units, self.classify = nn.Conv2d(3, 8, 1), nn.ModuleList(units), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for unit in self.units:
            x = unit(x)
        return self.classify(x.mean((2, 3)))


class Squeeze(nn.Module):
    """Channel attention with linear layers, as a child."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 2), nn.ReLU(), nn.Linear(2, 8), nn.Sigmoid())

    def forward(self, x: Tensor) -> Tensor:
        return x * self.layers(x.mean((2, 3))).view(x.shape[0], 8, 1, 1)


class Spatial(nn.Module):
    """Attention of one channel."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(2, 1, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self.layer(torch.cat([x.mean(1, keepdim=True), x.amax(1, keepdim=True)], 1)))


class Unit(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.conv, self.norm, self.linear = nn.Conv2d(8, 8, 3, padding=1), nn.LayerNorm(8), nn.Linear(8, 8)
        self.attend = {"squeeze": Squeeze, "spatial": Spatial}.get(how, nn.Identity)()

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        if self.how == "inline":
            y = y * torch.sigmoid(self.linear(y.mean((2, 3))))[:, :, None, None]
        if self.how == "viewed":
            y = y * torch.sigmoid(self.linear(y.mean((2, 3)))).view(y.shape[0], 8, 1, 1)
        if self.how == "gated by its mean":
            y = y * torch.sigmoid(y.mean((2, 3)))[:, :, None, None]
        if self.how == "movedim":
            y = self.linear(self.norm(y.movedim(1, -1))).movedim(-1, 1)
        if self.how == "permute":
            y = self.linear(self.norm(y.permute(0, 2, 3, 1))).permute(0, 3, 1, 2)
        if self.how == "einsum":
            y = torch.einsum("bhwc->bchw", self.linear(y.permute(0, 2, 3, 1)))
        return F.relu(x + self.attend(y))


@pytest.mark.parametrize("how", ["squeeze", "inline", "viewed", "gated by its mean", "spatial", "movedim", "permute"])
@pytest.mark.parametrize("side", [8, 6])
def test_heads_pool_over_positions(how: str, side: int) -> None:
    model = Net(Unit(how)).eval()
    scaffold = mhex.attach(model, 4, preset="probe")
    with torch.no_grad():
        x = torch.randn(2, 3, side, side)
        stem = model.stem(x)
        model(x)
        said, unit = scaffold.head_logits["units.0"], model.units[0]
        branch = unit.attend(unit.conv(stem))
    block = scaffold.heads["units.0"]
    assert (block.channels, block.channels_last) == (8, False)
    if how in ("squeeze", "spatial"):
        wanted = F.relu((stem + branch).mean((2, 3))) @ block.equivalent_matrix().T
        torch.testing.assert_close(said, wanted)


@pytest.mark.parametrize("order", ["shortcut first", "branch first"])
def test_the_sum_lies_in_memory_as_the_hosts_own(order: str) -> None:
    class Turned(Unit):
        def forward(self, x: Tensor) -> Tensor:
            y = self.linear(self.norm(self.conv(x).permute(0, 2, 3, 1))).permute(0, 3, 1, 2)
            return x + y if order == "shortcut first" else y + x

    class Strides(Net):
        def forward(self, x: Tensor) -> Tensor:
            seen = self.units[0](self.stem(x))
            return torch.tensor([seen.stride()])

    for coupling in ("shared", "head_only"):
        model, x = Strides(Turned("plain")).eval(), torch.randn(2, 3, 6, 6)
        own = model(x)
        mhex.attach(model, 4, coupling=coupling)
        assert torch.equal(model(x), own)


def test_axes_that_are_not_followed_are_said() -> None:
    with pytest.raises(UnsupportedModelError, match="einsum and the like"):
        mhex.attach(Net(Unit("einsum")), 4)
    with pytest.warns(MhexWarning, match=r"units.0: .* moves axes"):
        scaffold = mhex.attach(Net(Unit("einsum"), Unit("squeeze")), 4)
    assert list(scaffold.names) == ["units.1"]


def test_sequences_with_attention_of_channels_are_refused() -> None:
    class Sequence(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv1d(8, 8, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            y = self.conv(x)
            return x + y * torch.sigmoid(y.mean(2))[:, :, None]

    with pytest.raises(UnsupportedModelError, match="channels on another axis"):
        mhex.attach(nn.Sequential(Sequence()), 4)


def test_an_addition_that_nothing_reads_is_said() -> None:
    class Statement(Unit):
        def forward(self, x: Tensor) -> Tensor:
            y = self.conv(x)
            y.add_(x)
            return F.relu(y)

    with pytest.warns(MhexWarning, match=r"units.0: adds in place where nothing reads the result"):
        mhex.attach(Net(Statement("plain"), Unit("squeeze")), 4)


def test_a_forward_of_the_instance_is_refused() -> None:
    model = Net(Unit("plain"), Unit("squeeze"))
    own = model.units[0].forward
    model.units[0].forward = lambda x: own(x)  # as libraries do that move layers between devices
    with pytest.warns(MhexWarning, match=r"units.0: has a forward of its own instance"):
        scaffold = mhex.attach(model, 4)
    assert list(scaffold.names) == ["units.1"]


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.classify = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, padding_mask: Tensor | None = None) -> Tensor:
        if attn_mask is not None:
            x = x * attn_mask
        if padding_mask is not None:
            x = x * 2
        return x + self.layer(x)


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.unit, self.classify = Masked(), nn.Linear(8, 4)

    def forward(self, places: Tensor, x: Tensor, **masks: Tensor) -> Tensor:
        return self.classify(self.unit(x + places, **masks).mean(1))


def test_two_masks_at_once_are_refused_and_one_is_not() -> None:
    model, x = Tokens().eval(), torch.randn(3, 5, 8)
    places, mask = torch.zeros(1, 5, 8), torch.zeros(3, 5)
    own = model(places, x, padding_mask=mask)
    mhex.attach(model, 4)
    assert torch.equal(model(places, x, padding_mask=mask), own)  # and one row of places is no other batch
    with pytest.raises(CaptureError, match=r"attn_mask and padding_mask, .* with attn_mask or padding_mask"):
        model(places, x, padding_mask=mask, attn_mask=torch.ones(3, 1, 1))


def test_units_inside_of_units_are_folded() -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before, self.inner = nn.Conv2d(8, 8, 1), Unit("squeeze")

        def forward(self, x: Tensor) -> Tensor:
            return x + self.inner(self.before(x))

    model, x = Net(Outer(), Unit("plain")).eval(), torch.randn(2, 3, 6, 6)
    scaffold = mhex.attach(model, 4, preset="paper")
    scaffold.predict_from = "sum"
    with torch.no_grad(), warnings.catch_warnings():
        model(x)
        wanted = scaffold.logits
        torch.testing.assert_close(scaffold.fold()(x), wanted)
