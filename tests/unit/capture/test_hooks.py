"""Hooks that only look, and those that set torch right."""

from contextlib import ExitStack

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import mhex
from mhex.capture.hooks import see_each
from support.models import enliven


class Giving(nn.Module):
    """Returns what it is given, wrapped up."""

    def __init__(self, wrap):
        super().__init__()
        self.wrap = wrap

    def forward(self, x):
        return self.wrap(x)


def test_only_tensors_are_seen():
    x, seen = torch.randn(2, 3), []
    modules = [Giving(wrap) for wrap in (lambda x: x, lambda x: (x + 1, "more"), lambda x: {"logits": x}, lambda _: ())]
    with ExitStack() as stack:
        see_each(stack, modules, seen.append)
        returned = [module(x) for module in modules]
    assert [tuple(tensor.flatten().tolist()) for tensor in seen] == [
        tuple(x.flatten().tolist()),
        tuple((x + 1).flatten().tolist()),
    ]
    assert returned[0] is x
    assert returned[2]["logits"] is x
    modules[0](x)
    assert len(seen) == 2  # the hooks are gone


class NormedPatches(nn.Module):
    """Maps become tokens after a batch norm, or were tokens before it."""

    def __init__(self, before):
        super().__init__()
        self.before = before
        self.patches, self.norm, self.head = nn.Conv2d(3, 5, 4, 4), nn.BatchNorm2d(5), nn.Linear(5, 3)

    def forward(self, x):
        x = self.patches(x)
        if self.before:
            tokens = F.layer_norm(x.flatten(2).mT, (5,))
            return self.head(self.norm(tokens.mT.unflatten(2, (4, 4))).tanh().flatten(2)[..., 0])
        return self.head(F.layer_norm(self.norm(x).flatten(2).mT, (5,))).mean(1)


@pytest.mark.parametrize("before", [True, False])
def test_gradients_of_one_sample_through_a_batch_norm(before):
    """torch's own are wrong on a CPU for one sample, and right for several."""
    torch.manual_seed(0)
    model = enliven(NormedPatches(before)).double().eval()
    x = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    for method in ("input-x-gradient", "smoothgrad", "integrated-gradients"):
        options = {} if method == "input-x-gradient" else {"n": 2} if method == "smoothgrad" else {"steps": 3}
        both = mhex.explain(model, x, method, target=1, **options).scores
        alone = mhex.explain(model, x[:1], method, target=1, **options).scores
        torch.testing.assert_close(alone, both[:1])
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
