"""Protocols: how a number was measured, as frozen data that is printed beside it."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, fields
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

import torch

from mhex.errors import ArgumentError, ArgumentTypeError
from mhex.perturb import PerturbationSweep, area
from mhex.perturb.references import PIXELS, WORDS

_SCORED = ("explained", "predicted", "label")
_SEEDS = ("seed", "bootstrap_seed")
_MOST = 10**6  # passes, draws, pixels
_LARGEST = 1e30  # of numbers with a fraction


@dataclass(frozen=True)
class Protocol:
    """Base of all protocols.

    A part that changes nothing beside the others is refused unless it has its usual value, so that nobody takes a
    number for what it is not. Seeds are the exception: a run has one for all of its metrics, whether they draw or not.
    """

    def __post_init__(self) -> None:
        usual = {f.name: f.default for f in fields(self)}
        own: Any = type(self)
        for name, hint in _hints(own).items():
            if isinstance(getattr(self, name), list):  # a protocol is looked up by its parts
                object.__setattr__(self, name, tuple(getattr(self, name)))
            check_kind(name, getattr(self, name), hint)
        for name, why in self.idle.items():
            if getattr(self, name) != usual[name]:
                raise ArgumentError(
                    f"{name}={getattr(self, name)!r} would change nothing: {why}. Leave it at {usual[name]!r}."
                )
        scored = getattr(self, "scored", None)
        if "scored" in usual and scored not in _SCORED:
            raise ArgumentError(f"Expected scored to be one of {', '.join(_SCORED)}, but got {scored!r}.")
        share = getattr(self, "share", 0.0)
        if not 0 <= share <= 1:
            raise ArgumentError(f"Expected share to be from 0 to 1, but got {share!r}.")
        if not isinstance(self.passes, tuple):  # making them refuses what they cannot do
            raise ArgumentTypeError(f"Expected passes to be a tuple of runners, but got {self.passes!r}.")

    def __str__(self) -> str:
        parts = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in self.idle}
        if parts.get("granularity") == "word":  # also where there is no choice
            parts = {**parts, "words": PerturbationSweep.words, "pooling": PerturbationSweep.pooling} | parts
        return ", ".join(f"{name}={_short(value)}" for name, value in parts.items())

    @property
    def idle(self) -> dict[str, str]:
        """Parts that change nothing beside the others, and why; they are not printed."""
        return {}

    @property
    def passes(self) -> tuple[Any, ...]:
        """Runners of `mhex.perturb` that make what is measured."""
        return ()


@dataclass(frozen=True)
class SweepProtocol(Protocol):
    """Of metrics that read a sweep: the passes alone.

    Attributes:
        reference: What removed means; see `PerturbationSweep`.
        steps: T.
        granularity: What is ranked: `"pixel"`, `"patch"`, `"token"` or `"word"`.
        tie: How equal scores are ranked.
        seed: Of ties.
        sigma: Of the blur.
        radius: Of its kernel, 2 radius + 1 pixels wide; None for three times sigma.
    """

    reference: str = "blur"
    steps: int = 20
    granularity: str = "pixel"
    tie: str = "random"
    seed: int = 0
    sigma: float | None = None
    radius: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_units(self.reference, self.granularity)

    @property
    def idle(self) -> dict[str, str]:
        return blur_only(self.reference, "sigma", "radius")

    @property
    def sweep(self) -> PerturbationSweep:
        """The passes that it needs, in both orders; a metric may read one of them alone."""
        return PerturbationSweep(
            reference=self.reference,
            granularity=self.granularity,
            steps=self.steps,
            tie=self.tie,  # type: ignore[arg-type]
            seed=self.seed,
            sigma=self.sigma,
            radius=self.radius,
        )

    @property
    def passes(self) -> tuple[Any, ...]:
        return (self.sweep,)


@dataclass(frozen=True)
class ScoredProtocol(SweepProtocol):
    """Of metrics that read one class along a sweep.

    Attributes:
        scored: Whose output is read: that of the `"explained"` class, of the `"predicted"` one or of the `"label"`.
    """

    scored: str = "explained"


@dataclass(frozen=True)
class AreaProtocol(SweepProtocol):
    """Of metrics of areas along a sweep that need not be told whose output is read.

    Attributes:
        area: How the area under a curve is taken; see `mhex.perturb.area`.
    """

    area: str = "unit"

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_area(self.area, self.steps)


@dataclass(frozen=True)
class CurveProtocol(AreaProtocol, ScoredProtocol):
    """Of metrics of the area under a curve of one class."""


def blur_only(reference: str, *names: str) -> dict[str, str]:
    """Parts that are the blur's, as parts that change nothing where the reference is another."""
    if reference == "blur":
        return {}
    return dict.fromkeys(names, f"it is the blur's, and the reference is {reference!r}")


def check_units(reference: str, granularity: str) -> None:
    """Refuse tokens in images, and pixels in texts; patches can be dropped as tokens can."""
    if reference in PIXELS and granularity in ("token", "word"):
        raise ArgumentError(
            f"{reference!r} is a reference of images, and granularity {granularity!r} is of texts; those of texts are "
            f"{', '.join(map(repr, WORDS))}."
        )
    known: tuple[str, ...] = ("token", "word") if reference in WORDS else ("pixel", "patch")
    known = (*known, "patch") if reference == "drop" else known
    if reference in (*PIXELS, *WORDS) and granularity not in known:
        listed = ", ".join(map(repr, known[:-1]))
        raise ArgumentError(
            f"Expected granularity {listed} or {known[-1]!r} with the reference {reference!r}, but got {granularity!r}."
        )


@functools.cache
def _hints(protocol: Any) -> dict[str, tuple[Any, ...]]:
    """What each part of a protocol may be."""
    hints = get_type_hints(protocol)
    return {
        f.name: get_args(hint) if get_origin(hint := hints[f.name]) is UnionType else (hint,) for f in fields(protocol)
    }


def check_kind(name: str, value: Any, kinds: tuple[Any, ...]) -> None:
    """Refuse a part of another kind than it is annotated with, and numbers beyond all reason."""
    words = []
    most = math.inf if name in _SEEDS else _MOST
    for kind in kinds:
        if kind is int:
            right, word = _is_small(value, Integral, most), f"a whole number up to {_MOST}"
        elif kind is float:
            right, word = _is_small(value, Real, _LARGEST), "a finite number"
        elif get_origin(kind) is tuple:
            right = isinstance(value, tuple) and all(_is_small(part, Integral, most) for part in value)
            word = f"a list of whole numbers up to {_MOST}"
        elif kind is NoneType or kind is bool:
            right, word = isinstance(value, kind), "None" if kind is NoneType else "True or False"
        else:
            right, word = isinstance(value, str), "a name"
        if right:
            return
        words.append(word)
    raise ArgumentTypeError(f"Expected {name} to be {' or '.join(words)}, but got {value!r}.")


def _is_small(value: Any, kind: Any, most: float) -> bool:
    """Whether a value is a number of this kind, from -most to most; True and False are none."""
    return isinstance(value, kind) and not isinstance(value, bool) and bool(abs(value) <= most)


def _check_area(rule: str, steps: int) -> None:
    """Refuse rules that are not known, or that such a grid has no points for, before any pass is made."""
    area(torch.zeros(1, steps + 1), rule)


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
