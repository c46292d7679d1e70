"""Drawings as inline SVG: scales, axes and the look of lines, without a script and without matplotlib."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mhex._markup import escaped

WIDTH = 360.0  # of every drawing: readable in one column of a phone, two or three beside each other elsewhere
CHARACTER = 5.9  # width of a letter at the size of labels

# Told apart with any kind of colour vision, and dark enough on white, light enough on black.
_PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b58900", "#3fa0d8", "#7a5bb5", "#8a5a2b")
_DASHES = ("", "9 3", "2 2.5", "9 3 2 3")
_GREYS = (("#6f6f6f", "5 4"), ("#939393", "1.5 3"), ("#818181", "9 3 1.5 3"))


@dataclass(frozen=True)
class Look:
    """How a method is drawn, the same in all drawings of a page.

    Attributes:
        colour: `#rrggbb`.
        dash: Of its line; empty for a full one.
        control: Whether it is a control, which is drawn in grey.
    """

    colour: str
    dash: str = ""
    control: bool = False

    @property
    def stroke(self) -> str:
        """Attributes of a line."""
        dashed = f' stroke-dasharray="{self.dash}"' if self.dash else ""
        return f'stroke="{self.colour}"{dashed} fill="none"'


def looks(methods: Sequence[str], controls: Sequence[str] = ()) -> dict[str, Look]:
    """A look for every name: colours for methods, with dashes once all colours are used, and greys for controls."""
    found: dict[str, Look] = {}
    for k, name in enumerate(methods):
        found[name] = Look(_PALETTE[k % len(_PALETTE)], _DASHES[k // len(_PALETTE) % len(_DASHES)])
    for k, name in enumerate(controls):
        found[name] = Look(*_GREYS[k % len(_GREYS)], control=True)
    return found


@dataclass(frozen=True)
class Scale:
    """From values to places on the sheet.

    Attributes:
        low, high: Values at the ends.
        start, stop: Places of the ends.
        log: Whether steps are factors.
    """

    low: float
    high: float
    start: float
    stop: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high, value = (math.log10(one) if self.log else one for one in (self.low, self.high, value))
        return self.start + (self.stop - self.start) * (value - low) / (high - low)

    @property
    def ticks(self) -> list[float]:
        """Round values between the ends: about five, or powers of ten."""
        if self.log:
            return [10.0**k for k in range(math.ceil(math.log10(self.low)), math.floor(math.log10(self.high)) + 1)]
        step = _step((self.high - self.low) / 5)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [k * step for k in range(first, last + 1)]


def scale_of(values: Iterable[float], start: float, stop: float, log: bool = False) -> Scale:
    """A scale that holds all values that are finite, with round ends.

    Args:
        values: To be drawn.
        start: Place of the lowest.
        stop: Place of the highest.
        log: Whether steps are factors; all values are above 0 then.
    """
    known = [value for value in values if math.isfinite(value)] or [1.0 if log else 0.0]
    low, high = min(known), max(known)
    if log:
        low, high = 10.0 ** math.floor(math.log10(low)), 10.0 ** math.ceil(math.log10(high))
        return Scale(low, high if high > low else 10 * low, start, stop, log=True)
    if high - low < 1e-9 * max(1.0, abs(high)):
        low, high = low - 0.5, high + 0.5
    step = _step((high - low) / 5)
    return Scale(step * math.floor(low / step + 1e-9), step * math.ceil(high / step - 1e-9), start, stop)


def _step(rough: float) -> float:
    """The round number next above: 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(k * power for k in (1, 2, 5, 10) if k * power >= rough * (1 - 1e-9))


def number(value: float) -> str:
    """A tick in as few signs as it needs."""
    return f"{value:.6g}".replace("-", "\u2212")


def write(x: float, y: float, said: str, anchor: str = "start", kind: str = "", room: float | None = None) -> str:
    """A line of text, shortened to its room, with the whole of it to be read by the pointer.

    Args:
        x: Place.
        y: Place of its base line.
        said: Plain text.
        anchor: Which part of it is at the place: `"start"`, `"middle"` or `"end"`.
        kind: CSS classes.
        room: The most width; None for any.
    """
    most = None if room is None else max(2, int(room / CHARACTER))
    short = said if most is None or len(said) <= most else f"{said[: most - 1]}…"
    whole = f"<title>{escaped(said)}</title>" if short != said else ""
    mark = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{mark}>{escaped(short)}{whole}</text>'


def rule(x1: float, y1: float, x2: float, y2: float, kind: str = "grid") -> str:
    """A thin line."""
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def path(xs: Iterable[float], ys: Iterable[float]) -> str:
    """Points joined by lines, as the data of a path."""
    points = zip(xs, ys, strict=True)
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def drawing(title: str, height: float, parts: Iterable[str]) -> str:
    """A drawing with a heading, for people who see it and those who do not.

    Args:
        title: Plain text.
        height: Of the sheet.
        parts: SVG.
    """
    said = escaped(title)
    return (
        f'<figure class="chart"><figcaption>{said}</figcaption><svg viewBox="0 0 {WIDTH:g} {height:g}" role="img" '
        f'aria-label="{said}">{"".join(parts)}</svg></figure>'
    )


def key(styles: dict[str, Look]) -> str:
    """What each line stands for, as HTML that breaks into lines where it must."""
    parts = []
    for name, look in styles.items():
        line = (
            f'<svg viewBox="0 0 26 10" aria-hidden="true"><path d="M1 5L25 5" stroke-width="2.6" {look.stroke}/></svg>'
        )
        mark = ' class="control"' if look.control else ""
        parts.append(f"<span{mark}>{line}{escaped(name)}</span>")
    return f'<div class="key">{"".join(parts)}</div>'
