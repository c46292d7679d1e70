"""In which precision a guarded model computes: as in the user's own call, while all other arithmetic is in float32."""

import math
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

import torch
from torch import Tensor

_KINDS = ("cpu", "cuda", "mps", "xpu")  # of devices that have an autocast


Autocasts = tuple[tuple[str, torch.dtype], ...]  # kinds of devices on which autocast is on, each with its dtype


class _Ambient(threading.local):
    """Autocasts of the user's call on this thread; None while no model is guarded."""

    autocasts: Autocasts | None = None


_AMBIENT = _Ambient()


def ambient_precision() -> Autocasts:
    """The autocasts that are on."""
    return tuple((kind, torch.get_autocast_dtype(kind)) for kind in _KINDS if torch.is_autocast_enabled(kind))


@contextmanager
def precision(autocasts: Autocasts) -> Iterator[None]:
    """While open, these autocasts are on."""
    with ExitStack() as stack:
        for kind, dtype in autocasts:
            # What autocast has cast is not kept beyond a call, and a recorded call must cast by itself.
            recorded = kind == "cuda" and torch.cuda.is_current_stream_capturing()
            stack.enter_context(torch.autocast(kind, dtype, cache_enabled=not recorded))
        yield


def user_precision() -> AbstractContextManager[None]:
    """While open, a guarded model computes as in the user's own call: under autocast if that was made under it."""
    return precision(_AMBIENT.autocasts or ())


@contextmanager
def float32_arithmetic(of_model: bool = False) -> Iterator[None]:
    """While open, autocast is off; `user_precision` turns it on again for calls of the model, unless `of_model`."""
    before, autocasts = _AMBIENT.autocasts, ambient_precision()
    with ExitStack() as stack:
        if before is None or autocasts or of_model:
            _AMBIENT.autocasts = () if of_model else autocasts
        for kind, _ in autocasts:
            stack.enter_context(torch.autocast(kind, enabled=False))
        try:
            yield
        finally:
            _AMBIENT.autocasts = before


def wide_matmul(a: Tensor, b: Tensor, factor: float = 1.0) -> Tensor:
    """`factor a b^T` of tensors (B, H, N, d) and (B, H, M, d), without a graph, summed up in at least float32.

    A GPU multiplies numbers of half precision as they are, on its tensor cores; other devices convert them first.
    """
    a, b = a.detach(), b.detach()
    if a.is_cuda and a.dtype == b.dtype and a.dtype in (torch.bfloat16, torch.float16):
        rows, exact = a.flatten(0, 1), math.frexp(factor)[0] == 0.5  # a power of two rounds nothing
        rows = rows * factor if exact and factor != 1 else rows
        product: Tensor = torch.bmm(rows, b.flatten(0, 1).mT, out_dtype=torch.float32)
        return (product if exact else product.mul_(factor)).view(*a.shape[:2], *product.shape[1:])
    dtype = torch.promote_types(torch.promote_types(a.dtype, b.dtype), torch.float32)
    return (a.to(dtype) if factor == 1 else a.to(dtype) * factor) @ b.to(dtype).mT
