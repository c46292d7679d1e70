"""Seeing function calls: attention and the operations that rules stand for.

Fused attention, residual additions and functional activations are no modules, so hooks miss them. A torch function
mode sees every one of them, on this thread only, and needs no patching.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any

import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from mhex.capture.multihead import multi_head_attention
from mhex.capture.rules import Flow

SDPA = F.scaled_dot_product_attention


class FunctionTap(TorchFunctionMode):
    """Routes attention calls to `on_attention` and other operations to their rules.

    Args:
        on_attention: Called as `on_attention(attend, *args, **kwargs)` for every scaled-dot-product attention;
            `attend` is the fused kernel, or the rule that stands for it.
        flow: Hands operations to their relevance rules; None for none.
    """

    def __init__(self, on_attention: Callable[..., Any], flow: Flow | None = None) -> None:
        super().__init__()
        self.on_attention = on_attention
        self.flow = flow

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.multi_head_attention_forward:
            # The mode is off while it handles a call; entering it again shows the calls inside.
            with self, self.flow.straight() if self.flow is not None else nullcontext():
                return multi_head_attention(*args, **kwargs)
        if func is SDPA:
            attend = SDPA if self.flow is None else lambda *a, **k: self.flow(SDPA, a, k)
            return self.on_attention(attend, *args, **kwargs)
        return func(*args, **kwargs) if self.flow is None else self.flow(func, args, kwargs)
