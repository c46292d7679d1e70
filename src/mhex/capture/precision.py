"""In which precision a guarded model computes: as in the user's own call, while all other arithmetic is in float32."""

import math
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext

import torch
from torch import Tensor

_KINDS = ("cpu", "cuda", "mps", "xpu")  # of devices that have an autocast
HALF = (torch.bfloat16, torch.float16)
Autocasts = tuple[tuple[str, torch.dtype], ...]  # kinds of devices on which autocast is on, each with its dtype
_AMBIENT = threading.local()  # `autocasts` of the user's call on a thread; None, or nothing, while no model is guarded


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
    autocasts: Autocasts = getattr(_AMBIENT, "autocasts", None) or ()
    return precision(autocasts) if autocasts else nullcontext()


def halves_on(kind: str) -> bool:
    """Whether the user's own call was made under an autocast to half precision on devices of this kind."""
    autocasts: Autocasts = getattr(_AMBIENT, "autocasts", None) or ()
    return any(device == kind and dtype in HALF for device, dtype in autocasts)


@contextmanager
def float32_arithmetic() -> Iterator[None]:
    """While open, autocast is off; `user_precision` turns it on again for calls of the model."""
    before, autocasts = getattr(_AMBIENT, "autocasts", None), ambient_precision()
    with ExitStack() as stack:
        if before is None or autocasts:
            _AMBIENT.autocasts = autocasts
        for kind, _ in autocasts:
            stack.enter_context(torch.autocast(kind, enabled=False))
        try:
            yield
        finally:
            _AMBIENT.autocasts = before


def wide_matmul(a: Tensor, b: Tensor, factor: float = 1.0) -> Tensor:
    """`factor a b^T` of tensors (B, H, N, d) and (B, H, M, d), without a graph, summed up in at least float32."""
    # A GPU multiplies numbers of half precision as they are, on its tensor cores; other devices convert them first.
    a, b = a.detach(), b.detach()
    if a.is_cuda and a.dtype == b.dtype and a.dtype in HALF:
        rows, exact = a.flatten(0, 1), math.frexp(factor)[0] == 0.5  # a power of two rounds nothing
        rows = rows * factor if exact and factor != 1 else rows
        product: Tensor = torch.bmm(rows, b.flatten(0, 1).mT, out_dtype=torch.float32)
        return (product if exact else product.mul_(factor)).view(*a.shape[:2], *product.shape[1:])
    dtype = torch.promote_types(torch.promote_types(a.dtype, b.dtype), torch.float32)
    return (a.to(dtype) if factor == 1 else a.to(dtype) * factor) @ b.to(dtype).mT


def rows_product(rows: Tensor, matrices: Tensor) -> Tensor:
    """`r M`, (B, K, N), of rows (B, K, C) and matrices (B, C, N), in at least float32."""
    # On a GPU, matrices of half precision are read as they are, and each row is the sum of two of that precision.
    wide = torch.promote_types(torch.promote_types(rows.dtype, matrices.dtype), torch.float32)
    if not (matrices.is_cuda and matrices.dtype in HALF and wide == torch.float32):
        return rows.to(wide) @ matrices.to(wide)
    size = rows.abs().amax(-1, keepdim=True).clamp_min(torch.finfo(wide).tiny)  # or float16 would lose small numbers
    rows = rows / size
    high = rows.to(matrices.dtype)
    parts = torch.cat([high, (rows - high).to(matrices.dtype)], 1)
    product: Tensor = torch.bmm(parts, matrices, out_dtype=torch.float32)
    return (product[:, : rows.shape[1]] + product[:, rows.shape[1] :]) * size


def split_product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`x W^T + b`, (..., O), of float32 `x` (..., K) and `W` (O, K), on a GPU's tensor cores for half precision."""
    # Each number is the sum of two of bfloat16, and of the four products that of the two lower parts is left out: it is
    # some 2**-16 of the first. They are one product of three times the columns.
    rows = x.reshape(-1, x.shape[-1])
    (high, low), (heavy, light) = _halves(rows), _halves(weight)
    left, right = torch.cat([high, low, high], 1), torch.cat([heavy, heavy, light], 1)
    if x.is_cuda:
        product: Tensor = torch.mm(left, right.mT, out_dtype=torch.float32)
    else:
        product = left.float() @ right.float().mT
    return (product if bias is None else product.add_(bias)).view(*x.shape[:-1], len(weight))


def _halves(x: Tensor) -> tuple[Tensor, Tensor]:
    """Two tensors of bfloat16 whose sum is `x`, to some 2**-17 of it."""
    high = x.bfloat16()
    return high, (x - high).bfloat16()
