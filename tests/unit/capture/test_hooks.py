"""Hooks that only look."""

from contextlib import ExitStack

import torch
from torch import nn

from mhex.capture.hooks import see_each


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
