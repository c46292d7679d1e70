"""Folded heads against a small residual network written out in plain tensor operations, float64."""

import pytest
import torch
from torch import nn

import mhex

CLASSES = 4


class Unit(nn.Module):
    def __init__(self, before, after):
        super().__init__()
        self.first = nn.Conv2d(before, after, 1)
        self.conv = nn.Conv2d(after, after, 3, padding=1)
        self.down = None
        if before != after:
            self.down = nn.Sequential(nn.Conv2d(before, after, 1, bias=False), nn.BatchNorm2d(after))

    def forward(self, x):
        shortcut = x if self.down is None else self.down(x)
        return torch.relu(shortcut + self.conv(self.first(x)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.units = nn.Sequential(Unit(6, 6), Unit(6, 6), Unit(6, 9))
        self.head = nn.Linear(9, CLASSES)

    def forward(self, x):
        return self.head(self.units(x).mean((2, 3)))


def by_hand(net, w1, w2, x, kappa, decay, fixed=None):
    """Class scores of classifier, last head and running sum, and the gates; `fixed` are gates to use instead."""
    scores, gates = [], []
    for number, unit in enumerate(net.units):
        r = torch.einsum("oi,bihw->bohw", unit.first.weight[:, :, 0, 0], x) + unit.first.bias[:, None, None]
        r = nn.functional.conv2d(r, unit.conv.weight, unit.conv.bias, padding=1)
        if unit.down is not None:
            norm = unit.down[1]
            x = torch.einsum("oi,bihw->bohw", unit.down[0].weight[:, :, 0, 0], x)
            scale = norm.weight / (norm.running_var + norm.eps).sqrt()
            x = x * scale[:, None, None] + (norm.bias - scale * norm.running_mean)[:, None, None]
        h = (x + r).mean((2, 3)).clamp(min=0)
        u = h @ w1[number].T
        scores.append(u @ w2[number].T)
        gate = kappa / (1 + (-u).exp()) if fixed is None else fixed[number].expand_as(u)
        gates.append(gate)
        x = (gate[:, :, None, None] * x + r).clamp(min=0)
    own = x.mean((2, 3)) @ net.head.weight.T + net.head.bias
    total = torch.zeros_like(own)
    for entry in [*scores, own]:
        total = entry + decay * total
    return {"classifier": own, "last_head": scores[-1], "sum": total}, gates


@pytest.mark.parametrize(("preset", "kappa"), [("paper", 1), ("identity", 2)])
@pytest.mark.parametrize("source", ["classifier", "last_head", "sum"])
@pytest.mark.filterwarnings("ignore::mhex.errors.MhexWarning")
@torch.no_grad()
def test_fold_and_fixed_gates(source, preset, kappa):
    net = Net().double().eval()
    norm = net.units[2].down[1]
    for term in (norm.weight, norm.bias, norm.running_mean):
        term.normal_()
    norm.running_var.uniform_(0.5, 2)
    scaffold = mhex.attach(net, CLASSES, preset=preset)
    for block in scaffold.heads.blocks:
        block.w1.weight.normal_()
    w1, w2 = ([getattr(b, w).weight.clone() for b in scaffold.heads.blocks] for w in ("w1", "w2"))
    scaffold.heads.decay = 0.7
    x = torch.randn(5, 6, 7, 8, dtype=torch.float64)

    expected, gates = by_hand(net, w1, w2, x, kappa, 0.7)
    net(x)  # shows which head is the last
    torch.testing.assert_close(scaffold.fold(source)(x), expected[source], rtol=1e-10, atol=1e-12)

    means = [gate.mean(0) for gate in gates]
    fixed, _ = by_hand(net, w1, w2, x, kappa, 0.7, means)
    folded, report = scaffold.fold_static(x, predict_from=source)
    torch.testing.assert_close(folded(x), fixed[source], rtol=1e-6, atol=1e-6)  # gates are kept in float32
    moved = (fixed[source] - expected[source]).abs()
    assert report.calibration.max_change == pytest.approx(moved.max().item(), rel=1e-4)
    assert report.calibration.mean_change == pytest.approx(moved.mean().item(), rel=1e-4)
