"""Protocols: how a number was measured, as frozen data that is printed beside it."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from types import UnionType
from typing import Any, ClassVar, Literal, get_args, get_origin, get_type_hints

from mhex._settings import check_choice, check_kind, check_seed, check_that
from mhex.errors import ArgumentError
from mhex.perturb import WORDS, PerturbationSweep, Runner

Scored = Literal["explained", "predicted", "label"]  # the class whose output is read
READ_PARTS = ("orders", "scored", "sign")  # parts that say what is read of a result, whatever passes it was made by


@dataclass(frozen=True)
class Protocol:
    """Base of all protocols. A protocol of a metric with passes of its own is also their `Runner`.

    A part that changes nothing beside the others is refused unless it has its usual value, so that nobody takes a
    number for what it is not. Seeds are the exception: a run has one for all of its metrics, whether they draw or not.
    """

    blur_parts: ClassVar[tuple[str, ...]] = ()  # parts of the blur, which change nothing with another reference
    absent: ClassVar[Mapping[str, str]] = {}  # parts that others like it have, and why this one has not

    def __post_init__(self) -> None:
        usual = {f.name: f.default for f in fields(self)}
        protocol: Any = type(self)
        for name, kinds in _kinds(protocol).items():
            value = getattr(self, name)
            value = tuple(value) if isinstance(value, list) else value  # a protocol is looked up by its parts
            value = check_seed(name, value) if name == "seed" else check_kind(name, value, kinds)
            if float in kinds and int not in kinds and isinstance(value, int):
                value = float(value)  # torch takes no whole number of any size
            object.__setattr__(self, name, value)
            if get_origin(kinds[0]) is Literal:
                check_choice(name, getattr(self, name), get_args(kinds[0]))
        for name, why in self.idle.items():
            if (value := getattr(self, name)) != usual[name]:
                raise ArgumentError(f"{name}={value!r} would change nothing: {why}. Leave it at {usual[name]!r}.")
        _ = self.passes  # making runners refuses what they cannot do

    def __str__(self) -> str:
        parts = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in self.idle}
        if parts.get("granularity") == "word":  # also where there is no choice
            parts = {**parts, "words": PerturbationSweep.words, "pooling": PerturbationSweep.pooling} | parts
        texts = {name: f"{value:g}" if isinstance(value, float) else value for name, value in parts.items()}
        return ", ".join(f"{name}={text}" for name, text in texts.items())

    @property
    def idle(self) -> dict[str, str]:
        """Parts that change nothing beside the others, and why; they are not printed."""
        reference = getattr(self, "reference", "blur")
        why = f"it is the blur's, and the reference is {reference!r}"
        return {} if reference == "blur" else dict.fromkeys(self.blur_parts, why)

    def implied(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Other parts that go with some changes, unless they are changed too."""
        return {}

    @property
    def passes(self) -> tuple[Any, ...]:
        """Runners that make what is measured; parts that change no pass have their usual value, so as to be shared."""
        if not isinstance(self, Runner):
            return ()
        usual = {f.name: f.default for f in fields(self) if f.name in READ_PARTS}
        changes = {name: value for name, value in usual.items() if getattr(self, name) != value}
        return (replace(self, **changes) if changes else self,)


def check_units(reference: str, granularity: str) -> None:
    """Refuse tokens in images, and pixels in texts; patches can be dropped as tokens can."""
    choices: tuple[str, ...] = ("token", "word") if reference in WORDS else ("pixel", "cell", "patch")
    choices = (*choices, "patch") if reference == "drop" else choices
    listed = f"{', '.join(map(repr, choices[:-1]))} or {choices[-1]!r}"
    expectation, advice = f"granularity {listed} with the reference {reference!r}", f"; {', '.join(WORDS)} are of texts"
    check_that(granularity in choices, expectation, repr(granularity), advice)


@functools.cache
def _kinds(protocol: Any) -> dict[str, tuple[Any, ...]]:
    """Types that each part of a protocol may have."""
    hints = get_type_hints(protocol)
    parts = {f.name: hints[f.name] for f in fields(protocol)}
    return {name: get_args(hint) if get_origin(hint) is UnionType else (hint,) for name, hint in parts.items()}
