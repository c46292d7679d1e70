"""Activations that models write out in small operations, seen as one.

`x / 2 (1 + tanh(...))` is a GELU, and its rule is that of an activation; operation by operation, half of the relevance
would go into the tanh.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial

from torch import nn

from mhex.capture.hooks import replace_forward
from mhex.capture.rules.flow import Flow

_MODULES = ("transformers.activations", "timm.layers.activations")


def written_out(model: nn.Module) -> list[nn.Module]:
    """The GELU modules of a model that may be made of small operations."""
    return [m for m in model.modules() if type(m).__module__ in _MODULES and "GELU" in type(m).__name__]


def see_whole(stack: ExitStack, modules: list[nn.Module], flow: Flow) -> None:
    """Let each activation be one operation of the pass, for the time of `stack`."""
    for module in modules:
        replace_forward(stack, module, partial(flow.as_activation, module.forward))
