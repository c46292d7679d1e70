"""Curves with bands, boxes and bars, drawn as SVG for pages."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mhex._printable import escaped

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


_LEFT, _RIGHT, _TOP, _BOTTOM = 44.0, 10.0, 8.0, 36.0
_HEIGHT = 250.0
_ROW, _BOX = 20.0, 11.0
_APART = 10.0  # between methods and controls
_NAMES = 132.0  # the most that names of lines may take


@dataclass(frozen=True)
class Line:
    """A curve and the band around it; all of the same length."""

    name: str
    look: Look
    middle: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]


def line_plot(title: str, below: str, beside: str, x: Sequence[float], lines: Sequence[Line]) -> str:
    """Curves over a common axis, controls behind the others.

    Args:
        title: Heading.
        below: What the horizontal axis shows.
        beside: What the vertical axis shows.
        x: Places of the points.
        lines: Curves; their order is that of the drawing, later ones in front.
    """
    across = scale_of(x, _LEFT, WIDTH - _RIGHT)
    up = scale_of([value for one in lines for value in (*one.low, *one.high)], _HEIGHT - _BOTTOM, _TOP)
    parts = []
    for tick in up.ticks:
        parts.append(rule(_LEFT, up(tick), WIDTH - _RIGHT, up(tick)))
        parts.append(write(_LEFT - 5, up(tick) + 3.5, number(tick), "end"))
    for tick in across.ticks:
        parts.append(write(across(tick), _HEIGHT - _BOTTOM + 15, number(tick), "middle"))
    parts.append(rule(_LEFT, _HEIGHT - _BOTTOM, WIDTH - _RIGHT, _HEIGHT - _BOTTOM, "axis"))
    parts.append(write((_LEFT + WIDTH - _RIGHT) / 2, _HEIGHT - 5, below, "middle", "soft"))
    middle = (_TOP + _HEIGHT - _BOTTOM) / 2
    parts.append(f'<g transform="rotate(-90 10 {middle:g})">{write(10, middle, beside, "middle", "soft")}</g>')
    places = [across(one) for one in x]
    pale = max(0.05, min(0.2, 0.6 / max(1, len(lines))))  # many bands on each other would hide the lines
    ordered = sorted(lines, key=lambda one: not one.look.control)
    for one in ordered:
        edge = path([*places, *reversed(places)], [up(value) for value in (*one.high, *reversed(one.low))])
        parts.append(f'<path class="band" d="{edge}Z" fill="{one.look.colour}" opacity="{pale:.2f}"/>')
    for one in ordered:
        drawn = path(places, [up(value) for value in one.middle])
        told = f"<title>{escaped(one.name)}</title>"
        parts.append(
            f'<path d="{drawn}" stroke-width="{1.5 if one.look.control else 2}" {one.look.stroke}>{told}</path>'
        )
    return drawing(title, _HEIGHT, parts)


@dataclass(frozen=True)
class Boxed:
    """Values of a method, one for each image."""

    name: str
    look: Look
    values: Sequence[float]


def box_plot(title: str, below: str, rows: Sequence[Boxed]) -> str:
    """A box for each method, controls below a rule: quartiles, whiskers to 1.5 box lengths, and all beyond as dots.

    Args:
        title: Heading.
        below: What the axis shows.
        rows: From top to bottom; values that are not finite are left out.
    """
    known = [np.array([value for value in one.values if math.isfinite(value)]) for one in rows]
    left, places, bottom = _laid([one.name for one in rows], [one.look for one in rows])
    across = scale_of((value for values in known for value in values.tolist()), left, WIDTH - _RIGHT)
    parts = _frame(across, bottom, below)
    for one, values, (y, apart) in zip(rows, known, places, strict=True):
        parts += _named(one.name, one.look, left, y, apart)
        if values.size:
            parts.append(_box(values, across, y, one.look))
    return drawing(title, bottom + _BOTTOM, parts)


def bar_plot(title: str, below: str, rows: Sequence[tuple[str, Look, float, str]]) -> str:
    """A bar for each method on an axis of powers of ten, with its value in words.

    Args:
        title: Heading.
        below: What the axis shows.
        rows: Name, look, value above 0 and what is written beside the bar, from top to bottom.
    """
    room = CHARACTER * max((len(said) for *_, said in rows), default=0) + 6
    left, places, bottom = _laid([name for name, *_ in rows], [look for _, look, *_ in rows])
    across = scale_of((value for _, _, value, _ in rows), left, WIDTH - _RIGHT - room, log=True)
    parts = _frame(across, bottom, below)
    for (name, look, value, said), (y, apart) in zip(rows, places, strict=True):
        parts += _named(name, look, left, y, apart)
        width = max(1.0, across(value) - left)
        parts.append(f'<rect x="{left:.1f}" y="{y - 6:.1f}" width="{width:.1f}" height="12" fill="{look.colour}"/>')
        parts.append(write(left + width + 5, y + 3.5, said))
    return drawing(title, bottom + _BOTTOM, parts)


def _laid(names: Sequence[str], drawn: Sequence[Look]) -> tuple[float, list[tuple[float, bool]], float]:
    """Where rows begin, the middle of each and whether it is set apart from the one above, and where they end."""
    left = min(_NAMES, CHARACTER * max(map(len, names), default=0)) + 8
    y, places = _TOP, []
    for k, look in enumerate(drawn):
        apart = k > 0 and look.control and not drawn[k - 1].control
        y += _APART if apart else 0.0
        places.append((y + _ROW / 2, apart))
        y += _ROW
    return left, places, y


def _frame(across: Scale, bottom: float, below: str) -> list[str]:
    parts = []
    for tick in across.ticks:
        parts.append(rule(across(tick), _TOP, across(tick), bottom))
        parts.append(write(across(tick), bottom + 13, number(tick), "middle"))
    parts.append(write((across.start + across.stop) / 2, bottom + 29, below, "middle", "soft"))
    return parts


def _named(name: str, look: Look, left: float, y: float, apart: bool) -> list[str]:
    above = [rule(0, y - (_ROW + _APART) / 2, WIDTH, y - (_ROW + _APART) / 2, "axis")] if apart else []
    return [*above, write(left - 6, y + 3.5, name, "end", "soft" if look.control else "", room=_NAMES)]


def _box(values: NDArray[np.float64], across: Scale, y: float, look: Look) -> str:
    first, median, third = (float(one) for one in np.quantile(values, [0.25, 0.5, 0.75]))
    reach = 1.5 * (third - first)
    inside = values[(values >= first - reach) & (values <= third + reach)]
    low, high, top = float(inside.min()), float(inside.max()), y - _BOX / 2
    dots = "".join(
        f'<circle cx="{across(value):.1f}" cy="{y:.1f}" r="1.8" fill="{look.colour}"/>'
        for value in values.tolist()
        if not low <= value <= high
    )
    mean = across(float(values.mean()))
    return (
        f'<g stroke="{look.colour}" stroke-width="1.5"><path d="M{across(low):.1f} {y:.1f}L{across(first):.1f} {y:.1f}'
        f'M{across(third):.1f} {y:.1f}L{across(high):.1f} {y:.1f}" fill="none"/>'
        f'<rect x="{across(first):.1f}" y="{top:.1f}" width="{max(0.5, across(third) - across(first)):.1f}" '
        f'height="{_BOX:g}" fill="{look.colour}" fill-opacity=".2"/>'
        f'<path d="M{across(median):.1f} {top:.1f}v{_BOX:g}" stroke-width="2.5"/></g>{dots}'
        f'<path class="mean" d="M{mean - 3.5:.1f} {y:.1f}l3.5 -3.5l3.5 3.5l-3.5 3.5z"/>'
    )
