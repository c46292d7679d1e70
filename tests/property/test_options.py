"""Whatever an option of a method is given, the scores are finite or a sentence is said, and soon."""

from __future__ import annotations

import functools
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
import torch
from hypothesis import strategies as st
from torch import nn

from support.argument_values import COUNTS, answer, anything, search
from support.cases import METHODS, explain
from support.models import FAMILIES

SECONDS = 20  # for a call that takes a fraction of a second otherwise
ELSEWHERE = {"guided-backprop": "plain_cnn", "mhex": "timm_vit_heads"}  # what the small Vision Transformer lacks
# Numbers that say how much work there is: those between are work, and no fault.
MANY = {"n", "steps", "max_evals", "grid"}
OPTIONS = [(name, option) for name, method in METHODS.items() for option in method.options]
TEXTS = [(name, option) for name, option in OPTIONS if "fill" in METHODS[name].options]
EDGES = (-1, 0, 1, 2, 0.5, -0.5, 1e-300, 1e300, float("nan"), float("inf"), float("-inf"), 10**9, 10**30, "x", "", None)
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@contextmanager
def soon(what: str) -> Iterator[None]:
    """Stop what hangs."""

    def stop(*_: Any) -> None:
        raise TimeoutError(f"{what} took more than {SECONDS} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@functools.cache
def model_of(name: str) -> nn.Module:
    return FAMILIES[name].model(torch.float32)


def known_values(method: str, option: str) -> list[Any]:
    """The default, and names that stand in the annotation, which are right or beside the others' values."""
    hint = get_type_hints(METHODS[method].function).get(option)
    names = [name for kind in (hint, *get_args(hint)) if get_origin(kind) is Literal for name in get_args(kind)]
    return [METHODS[method].options[option], *names]


def values_for(method: str, option: str) -> st.SearchStrategy[Any]:
    strategy = st.one_of(st.sampled_from([*EDGES, *known_values(method, option)]), anything)
    return strategy.filter(lambda value: not (option in MANY and work(value)))


def work(value: Any) -> bool:
    try:
        return 8 < int(value) <= 10**6
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return False


def check(method: str, option: str, family: str, value: Any, **more: Any) -> None:
    model, inputs = model_of(family), FAMILIES[family].inputs(1, torch.float32)
    with soon(f"{method} with {option}={value!r}"):
        found = answer(explain, model, inputs, method, **{**more, option: value})
    assert found is None or bool(torch.isfinite(found.scores).all())


@COUNTS
@pytest.mark.parametrize(("method", "option"), OPTIONS, ids=["-".join(pair) for pair in OPTIONS])
def test_any_value_of_an_option_is_used_or_refused(method: str, option: str, factor: int) -> None:
    family = ELSEWHERE.get(method, "timm_vit")
    search(lambda value: check(method, option, family, value), values_for(method, option), 6 * factor)


@COUNTS
@pytest.mark.parametrize(("method", "option"), TEXTS, ids=["-".join(pair) for pair in TEXTS])
def test_options_of_texts(method: str, option: str, factor: int) -> None:
    search(lambda value: check(method, option, "hf_bert", value), values_for(method, option), 4 * factor)
