"""Running only the last block and the head again, on other tokens."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from torch import nn


def skip_lower_blocks(
    stack: ExitStack, modules: list[nn.Module], is_last: Callable[[], bool], stand_in: Callable[[], Any]
) -> None:
    """Let every block but the last return `stand_in()` at once, for the time of `stack`.

    The stand-in is what a lower block returned in the observed pass, so it has the structure that the model
    expects; its values do not matter, because the last block's input is substituted.

    Args:
        stack: Undoes the change.
        modules: The blocks, in order of execution.
        is_last: True while the last block is the one running (a module may stand for several blocks).
        stand_in: What the others return.
    """
    for module in dict.fromkeys(modules):
        own = module.__dict__.get("forward")
        stack.callback(_restore, module, own)
        module.forward = _Skipping(module.forward, is_last, stand_in)


class _Skipping:
    def __init__(self, forward: Callable[..., Any], is_last: Callable[[], bool], stand_in: Callable[[], Any]) -> None:
        self.forward, self.is_last, self.stand_in = forward, is_last, stand_in

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.forward(*args, **kwargs) if self.is_last() else self.stand_in()


def _restore(module: nn.Module, own: Callable[..., Any] | None) -> None:
    if own is None:
        del module.forward
    else:
        module.forward = own
