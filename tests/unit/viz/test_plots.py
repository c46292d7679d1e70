"""Drawings in SVG: scales, looks and what they do with numbers that are none."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import pytest
from mhex.viz.plots import Boxed, Line, Look, bar_plot, box_plot, key, line_plot, looks, scale_of

from mhex.viz.colour import contrast


def parsed(drawing: str) -> ElementTree.Element:
    return ElementTree.fromstring(drawing)


@pytest.mark.parametrize("values", [[0.0, 1.0], [-3.2, 7.9], [1e-7, 3e-7], [5.0], [], [2.0, math.nan], [1e6, 1e6 + 1]])
def test_scales_hold_their_values(values: list[float]) -> None:
    scale = scale_of(values, 10, 110)
    assert len(scale.ticks) in range(2, 9)
    for value in (*values, *scale.ticks):
        assert math.isnan(value) or 10 - 1e-6 <= scale(value) <= 110 + 1e-6
    assert scale(scale.low) == pytest.approx(10)
    assert scale(scale.high) == pytest.approx(110)


@pytest.mark.parametrize("values", [[0.001], [0.02, 3.0], [1.0], [1e-6, 500.0]])
def test_scales_of_factors(values: list[float]) -> None:
    scale = scale_of(values, 0, 100, log=True)
    assert all(-1e-9 <= scale(value) <= 100 + 1e-9 for value in values)
    assert scale.ticks[0] == pytest.approx(scale.low)
    assert scale.ticks[-1] == pytest.approx(scale.high)


def test_every_method_has_a_look_of_its_own() -> None:
    methods, controls = [f"m{k}" for k in range(30)], ["a", "b", "c"]
    found = looks(methods, controls)
    assert len(set(found.values())) == 33
    assert all(found[name].control and found[name].dash for name in controls)
    assert all(contrast(look.colour, paper) > 2.5 for look in found.values() for paper in ("#ffffff", "#1f2123"))


def test_boxes_are_quartiles_and_all_else_is_seen() -> None:
    values = [0.0, 1.0, 2.0, 3.0, 4.0, 50.0, math.nan]
    rows = [Boxed("m", Look("#0072b2"), values), Boxed("none <left>", Look("#777777", control=True), [math.nan])]
    found = parsed(box_plot("<t>", "value", rows))
    text = ElementTree.tostring(found, encoding="unicode")
    assert len(re.findall("<circle", text)) == 1
    assert len(re.findall("<rect", text)) == 1
    (box,) = found.iter("rect")
    scale = scale_of(values, 0, 1)
    left, width = float(box.get("x", "")), float(box.get("width", ""))
    whisker = re.search(r"M([\d.]+) [\d.]+L([\d.]+)", text)
    assert whisker is not None
    unit = (left - float(whisker[1])) / 1.25  # from 0 to the first quartile of six values
    assert width == pytest.approx(2.5 * unit, abs=0.2)
    assert scale.high >= 50


def test_drawings_escape_and_parse() -> None:
    line = Line("<i>&", Look("#0072b2"), [1.0, 0.5], [0.9, 0.4], [1.1, 0.6])
    drawings = [
        line_plot("<t> & co", "x<", "y>", [0.0, 1.0], [line]),
        bar_plot("t", "seconds", [("a" * 80 + "<", Look("#0072b2"), 0.5, "500 ms")]),
        key({"<b>": Look("#0072b2")}),
    ]
    for drawing in drawings:
        parsed(drawing)
        assert "<i>" not in drawing
    assert f"{'a' * 80}&lt;</title>" in drawings[1]  # shortened, and whole for the pointer
