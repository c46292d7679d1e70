"""Curves with bands, boxes and bars, drawn as SVG for pages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mhex._markup import escaped
from mhex.viz.svg import CHARACTER, WIDTH, Look, Scale, drawing, number, path, rule, scale_of, write

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
