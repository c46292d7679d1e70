"""What mhex raises. Everything derives from `MhexError`, so one `except` catches the library and nothing else.

Mistakes in arguments are also `ValueError` or `TypeError`, as Python users expect.
"""

import difflib
import importlib
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from types import FrameType, ModuleType
from typing import Any

_SHOWN = 40  # names in a message
# Where all names of a kind can be seen.
_LISTS = {
    "method": "mhex.list_methods()",
    "metric": "mhex.list_metrics()",
    "score": "mhex.list_metrics()",
    "zoo model": "`mhex models`",
    "timm model": "timm.list_models()",
    "layer": "model.named_modules()",
    "residual connection": "model.named_modules()",
    "class": "the model's class names",
}


class MhexError(Exception):
    """Base class of every error the library raises on purpose."""


class MhexWarning(UserWarning):
    """Something the user should know about a result."""


class ArgumentError(MhexError, ValueError):
    """An argument has the right type and a value that cannot be used."""


class ArgumentTypeError(MhexError, TypeError):
    """An argument has a type that cannot be used."""


class UnsupportedModelError(MhexError):
    """The model lacks what the method must see; the message names methods that can serve it.

    Attributes:
        reason: Why, in a few words without the method's name; the whole message if there is no shorter one.
    """

    def __init__(self, message: str, reason: str | None = None) -> None:
        super().__init__(message)
        self.reason = reason or message


class CaptureError(MhexError):
    """The forward pass did not show what the model's family promises."""


class StaleError(CaptureError):
    """What was kept from an earlier call no longer holds: the call is made again, and users do not see this."""


class ModelInUseError(CaptureError):
    """Another thread runs or changes the model while it is to be explained."""


class NotFiniteError(CaptureError):
    """A method gave scores that are NaN or infinite, for some samples at least.

    Attributes:
        scores: All of them, as a tensor with a row for each sample, so that those of other samples are not lost.
    """

    def __init__(self, message: str, scores: Any) -> None:
        super().__init__(message)
        self.scores = scores

    def __reduce__(self) -> tuple[Any, ...]:
        """What it is made of again: workers hand errors on by pickling them."""
        return type(self), (self.args[0], self.scores)


class NotFiniteOutputError(UnsupportedModelError):
    """The model's own scores are NaN or infinite for some samples, so that these cannot be explained.

    Attributes:
        samples: Their places in the batch, from 0 on.
        count: How many samples the batch has.
    """

    def __init__(self, samples: Sequence[int], count: int) -> None:
        self.samples, self.count = tuple(samples), count
        single = len(self.samples) == 1
        places = f"{'sample' if single else 'samples'} {', '.join(map(str, self.samples))} of this batch"
        advice = f"; leave {'it' if single else 'them'} out" if len(self.samples) < count else ""
        super().__init__(
            f"The model's scores are not finite for {places if count > 1 else 'this input'}, so there is nothing to "
            f"explain{advice}.",
            "the model's scores are not finite",
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """What it is made of again: workers hand errors on by pickling them."""
        return type(self), (self.samples, self.count)


class MissingExtraError(MhexError, ImportError):
    """An optional package is needed; the message names the extra that installs it."""


def unknown_name(kind: str, name: str, names: Iterable[str]) -> ArgumentError:
    """The error for a name of a kind, such as `"method"`, that is not among the names; it offers near ones."""
    names = list(names)
    lowered = {candidate.lower(): candidate for candidate in reversed(names)}
    near = [lowered[hit] for hit in difflib.get_close_matches(name.lower(), lowered, n=3, cutoff=0.6)]
    if near:
        hint = f"Did you mean {' or '.join(map(repr, near))}?"
    else:
        see = f"; see {_LISTS[kind]}" if kind in _LISTS and len(names) > _SHOWN else ""
        hint = f"Known: {some_of(names, _SHOWN) or 'none'}{see}."
    return ArgumentError(f"Unknown {kind} {name!r}. {hint}")


def some_of(names: Sequence[Any], most: int = 20, between: str = ", ") -> str:
    """The first of many names, and how many more there are."""
    more = len(names) - most
    return between.join(map(str, names[:most])) + (f" and {more} more" if more > 0 else "")


def require(module: str, extra: str | None = None) -> ModuleType:
    """Import a module by its dotted name, or say how to install it: by the extra of mhex that brings it, if any."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = f"mhex[{extra}]" if extra else module.split(".")[0]
        raise MissingExtraError(
            f"This needs the package {module.split('.')[0]!r}, which is not installed: pip install '{package}'."
        ) from error


def by_reason(left_out: Mapping[str, str]) -> dict[str, list[str]]:
    """The names that were left out for each reason."""
    groups: dict[str, list[str]] = {}
    for name, reason in left_out.items():
        groups.setdefault(reason, []).append(name)
    return groups


def warn(message: str) -> None:
    """Raise a `MhexWarning` that points at the line of the user's code which called mhex."""
    level, outermost = 1, 1
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        level += 1
        if frame.f_globals.get("__name__", "").partition(".")[0] == "mhex":
            outermost = level  # torch and contextlib may stand between two functions of mhex
        frame = frame.f_back
    warnings.warn(message, MhexWarning, stacklevel=outermost + 1)
