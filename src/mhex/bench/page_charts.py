"""Drawings of an evaluation: curves with bands, boxes of values per image, and costs."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from mhex.bench.runs import Evaluation
from mhex.metrics._base import PerImage
from mhex.metrics._curve import CurveMetric
from mhex.metrics.resampling import bootstrap
from mhex.viz.plots import Boxed, Line, bar_plot, box_plot, line_plot
from mhex.viz.svg import Look, key, looks

_MOST = 12  # methods whose curves can be told apart
_UNITS = {"mif": "share removed, most important first", "lif": "share removed, least important first"}
_INSERTED = "share put in, most important first"


def curves(one: Evaluation) -> str:
    """Mean curves of every metric that reads a sweep, as HTML; empty if none was kept."""
    found = list(curve_drawings(one))
    if not found:
        return ""
    names = {name for _, shown in found for name in shown}
    styles = {name: look for name, look in _looks(one).items() if name in names}
    left = [name for name in one.methods if name not in names]
    more = f'<p class="small">Left out here: {len(left)} methods with lower places.</p>' if left else ""
    return f'{key(styles)}<div class="charts">{"".join(svg for svg, _ in found)}</div>{more}'


def curve_drawings(one: Evaluation) -> Iterator[tuple[str, list[str]]]:
    """A drawing for every metric and order that curves were kept of, and the names of its lines."""
    for metric in one.report.metrics:
        made = one.report.metric(metric)
        if not isinstance(made, CurveMetric) or not one.report.has_curves(metric):
            continue
        shown = [*_best(one, metric), *one.controls]
        for order in made.orders:
            _, shares, by_method = one.report.curves(metric, order)
            lines = [_line(name, _looks(one)[name], by_method[name]) for name in shown if name in by_method]
            lines = [line for line in lines if line.middle]
            title = f"{metric}, {order.upper()}" if len(made.orders) > 1 else metric
            below = _INSERTED if made.inserted else _UNITS[order]
            beside = "accuracy" if made.output == "hit" else f"{made.output} ({made.scored})"
            if lines:
                yield line_plot(title, below, beside, shares.tolist(), lines), [line.name for line in lines]


def _best(one: Evaluation, metric: str) -> list[str]:
    """Methods whose curves are drawn: all, or the best by a metric where they are too many."""
    if len(one.methods) <= _MOST:
        return one.methods
    means = {name: float(values.nanmean()) for name, values in one.report.per_image(metric).items()}
    sign = -1 if one.report.metric(metric).better[0] else 1
    known = [name for name in one.methods if name in means and means[name] == means[name]]
    return sorted(known, key=lambda name: sign * means[name])[:_MOST]


def _line(name: str, look: Look, found: Tensor) -> Line:
    """The mean of curves (n, T + 1) and its bootstrap interval at each point; images without a curve do not count."""
    counted = found[found.isfinite().all(1)].double()
    if not len(counted):
        return Line(name, look, [], [], [])
    ends = bootstrap(counted, lambda rows: rows.mean(-2), resamples=1000)
    return Line(name, look, counted.mean(0).tolist(), ends.low.tolist(), ends.high.tolist())


def boxes(one: Evaluation) -> str:
    """Boxes of the values per image of every metric that reads a sweep, as HTML; empty if there is none."""
    parts = []
    for metric in one.report.metrics:
        made = one.report.metric(metric)
        if isinstance(made, CurveMetric) and made.additive:
            values = one.report.per_image(metric)
            rows = [Boxed(name, look, values[name].tolist()) for name, look in _looks(one).items() if name in values]
            parts.append(box_plot(metric, _words(made), rows))
    return f'<div class="charts">{"".join(parts)}</div>' if parts else ""


def _words(made: PerImage) -> str:
    what = "value" if made.outputs[0] == "value" else made.outputs[0]
    return f"{what}, {'higher' if made.better[0] else 'lower'} is better"


def cost(one: Evaluation) -> str:
    """A bar for each method, the cheapest on top, as HTML."""
    took = sorted(one.seconds().items(), key=lambda pair: pair[1])
    styles = _looks(one)
    rows = [(name, styles[name], max(seconds, 1e-6), _spoken(seconds)) for name, seconds in took]
    return f'<div class="charts">{bar_plot("Time per explanation", "seconds", rows)}</div>'


def _spoken(seconds: float) -> str:
    """A time in three figures at most."""
    if seconds >= 1:
        return f"{seconds:.3g} s"
    return f"{1000 * seconds:.3g} ms" if seconds >= 1e-3 else f"{1e6 * seconds:.3g} µs"


def _looks(one: Evaluation) -> dict[str, Look]:
    return looks(one.methods, one.controls)
