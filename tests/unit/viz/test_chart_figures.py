"""Charts of pages: styles, curves with bands, boxes and bars, and what they do with numbers that are not finite."""

from __future__ import annotations

import math
from xml.etree import ElementTree

import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from mhex.viz.canvas import render
from mhex.viz.charts import CurvePanel, Style, bar_figure, box_figure, curve_figure, styles_of
from mhex.viz.colour import contrast
from mhex.viz.pages import charts_html

BLUE, GREY = Style("#0072b2"), Style("#777777", (5, 4), control=True)


def words(drawn: Figure) -> list[str]:
    return [text.get_text() for text in drawn.findobj(Text) if text.get_text()]


def test_every_method_has_a_style_of_its_own() -> None:
    methods, controls = [f"m{k}" for k in range(30)], ["a", "b", "c"]
    styles = styles_of(methods, controls)
    assert len(set(styles.values())) == 33
    assert all(styles[name].control and styles[name].dashes for name in controls)
    assert all(contrast(style.colour, paper) > 2.5 for style in styles.values() for paper in ("#ffffff", "#1f2123"))


def test_boxes_are_quartiles_and_all_else_is_seen() -> None:
    values = [0.0, 1.0, 2.0, 3.0, 4.0, 50.0, math.nan]
    rows = {"m": values, "empty": [math.nan], "control:x": [1.0, 2.0]}
    chart = box_figure("title", "value", rows, {"m": BLUE, "empty": BLUE, "control:x": GREY})
    (axes,) = chart.axes
    boxes = [patch.get_bbox() for patch in axes.patches]
    assert len(boxes) == 2, "a row without a finite value has no box"
    assert (boxes[0].x0, boxes[0].x1) == pytest.approx((1.25, 3.75))
    beyond = [list(line.get_xdata()) for line in axes.lines if line.get_marker() == "o"]
    assert beyond == [[50.0], []]
    means = [float(line.get_xdata()[0]) for line in axes.lines if line.get_marker() == "D"]
    assert means == pytest.approx([10.0, 1.5])
    medians = [line.get_xdata()[0] for line in axes.lines if line.get_linewidth() == 1.9]
    assert medians == pytest.approx([2.5, 1.5])
    whiskers = [list(line.get_xdata()) for line in axes.lines if line.get_linewidth() == 1.1]
    assert whiskers[:2] == [[0.0, 1.25], [3.75, 4.0]]
    assert axes.get_xlim()[1] > 50
    assert {"title", "value", "m", "empty", "control:x"} <= set(words(chart))
    assert boxes[1].y0 - boxes[0].y1 > 1.5, "controls are set apart"
    (rule,) = [line for line in axes.lines if line.get_linewidth() == 0.8 and line.get_marker() == "None"]
    assert 1 < rule.get_ydata()[0] < boxes[1].y0


def test_bars_are_on_an_axis_of_powers_of_ten() -> None:
    long = "a" * 80
    rows = {"fast": (0.02, "20 ms"), long: (3.0, "3 s")}
    chart = bar_figure("Time", "seconds", rows, {"fast": BLUE, long: BLUE})
    (axes,) = chart.axes
    assert axes.get_xscale() == "log"
    assert [bar.get_width() for bar in axes.patches] == [0.02, 3.0]
    assert axes.get_xlim()[0] == pytest.approx(0.01)
    assert {"20 ms", "3 s"} <= set(words(chart))
    assert any(text.startswith("aaa") and text.endswith("…") for text in words(chart))
    chart.canvas.draw()
    width = chart.canvas.get_width_height()[0]
    assert all(t.get_window_extent().x0 >= 0 and t.get_window_extent().x1 <= width for t in chart.findobj(Text)
               if t.get_text() in ("20 ms", "3 s", "fast"))  # fmt: skip


@pytest.mark.parametrize("seconds", [0.001, 1.0, 1e-6, 500.0])
def test_a_single_bar_is_seen(seconds: float) -> None:
    low, high = bar_figure("t", "seconds", {"m": (seconds, "x")}, {"m": BLUE}).axes[0].get_xlim()
    assert low <= seconds <= high
    assert high > low


def test_curves_are_drawn_with_their_bands() -> None:
    bands = {"m": ([1.0, 0.5], [0.9, 0.4], [1.1, 0.6]), "c": ([0.8, 0.8], [0.7, 0.7], [0.9, 0.9])}
    panel = CurvePanel("deletion", "share", "probability", [0.0, 1.0], bands)
    chart = curve_figure([panel, panel, panel], {"m": BLUE, "c": GREY, "absent": BLUE}, key=True)
    assert len(chart.axes) == 3
    for axes in chart.axes:
        lines = {line.get_label(): line for line in axes.lines}
        assert lines["m"].get_ydata().tolist() == [1.0, 0.5]
        assert lines["m"].get_color() == "#0072b2"
        assert lines["c"].get_linestyle() == "--"
        assert lines["c"].get_zorder() < lines["m"].get_zorder(), "controls are behind"
        assert len(axes.collections) == 2
    (key,) = chart.legends
    assert [text.get_text() for text in key.get_texts()] == ["m", "c"]


def test_files_are_the_same_each_time_and_pages_escape() -> None:
    charts = [box_figure("<t> & $co$", "x<", {"<i>&": [1.0, 2.0]}, {"<i>&": BLUE}) for _ in range(2)]
    first, second = (render(chart, "svg") for chart in charts)
    assert first == second
    assert b"<dc:date>" not in first
    inside = render(charts[0], "svg", in_page=True)
    texts = [node.text for node in ElementTree.fromstring(inside).iter("{http://www.w3.org/2000/svg}text")]
    assert "<t> & $co$" in texts
    html = charts_html({"<t> & co": charts[0]}, {"<b>": BLUE, "c": GREY}, "A <note>.")
    assert "<b>" not in html
    assert "&lt;b&gt;" in html
    assert 'alt="&lt;t&gt; &amp; co"' in html
    assert html.count("data:image/svg+xml;base64,") == 1
