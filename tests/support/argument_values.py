"""Values of any kind for an argument, and what may come of them: a right answer, or an error that is a sentence."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from mhex.errors import MhexError

COUNTS = pytest.mark.parametrize("factor", [1, pytest.param(25, marks=pytest.mark.slow)], ids=["few", "many"])
DTYPES = sorted({value for value in vars(torch).values() if isinstance(value, torch.dtype)}, key=str)
HUGE = (10**9, 10**30, -(10**30), 2**63)


class Odd:
    """An object that is nothing in particular."""


def tensor_of(dtype: torch.dtype, shape: tuple[int, ...], value: int, device: str) -> Tensor:
    """A tensor of one value; of zeros where the kind of numbers cannot be converted to, on the CPU where it must."""
    try:
        return torch.full(shape, value).to(dtype).to(device)
    except (RuntimeError, TypeError, NotImplementedError):
        return torch.zeros(shape, device=device)


shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)
tensors = st.builds(
    tensor_of, st.sampled_from(DTYPES), shapes, st.integers(-2, 9), st.sampled_from(["cpu", "cpu", "cpu", "meta"])
)
arrays = st.builds(
    lambda shape, value, kind: np.full(shape, value).astype(kind),
    shapes,
    st.integers(0, 9),
    st.sampled_from(["int64", "uint8", "float32", "bool", "object", "U3", "complex64"]),
)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 12),
    st.sampled_from(HUGE),
    st.floats(),
    st.sampled_from([np.int64(1), np.uint8(2), np.int32(-1), np.float32(0.5), np.float64("nan"), np.bool_(True)]),
    st.text(max_size=6),
    st.sampled_from(["auto", "top3", "x" * 100_000, "top" + "9" * 5000, "é", "\ud800", "\x00"]),
    st.sampled_from([b"ab", 1j, object(), Odd(), Odd, range(3), torch.float32, Ellipsis, frozenset({1})]),
)
anything = st.recursive(
    st.one_of(scalars, tensors, arrays),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.one_of(st.integers(0, 3), st.text(max_size=2)), inner, max_size=3),
    ),
    max_leaves=6,
)


def search(body: Callable[[Any], None], strategy: st.SearchStrategy[Any], examples: int) -> None:
    """Call `body` with so many examples, the same in every run."""
    usual = settings(
        max_examples=examples, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck)
    )
    usual(given(strategy)(body))()


def answer(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """What a call returns; None if it is refused, which takes a sentence of some words."""
    try:
        return function(*arguments, **options)
    except MhexError as error:
        message = str(error)
        assert re.match(r"\S.*[.?]$", message, re.DOTALL), message
        assert len(message.split()) > 3, message
        return None
