"""The page of evaluations: what it shows of their rows, curves and maps, handed to `mhex.viz`."""

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from torch import Tensor

from mhex._settings import check_that
from mhex.explanation import Explanation
from mhex.judge.controls import PREFIX, is_control
from mhex.judge.report import Evaluation, evaluations
from mhex.metrics.curve import CurveMetric
from mhex.stats.intervals import bootstrap
from mhex.viz.charts import Band, CurvePanel, bar_figure, box_figure, curve_figure, styles_of
from mhex.viz.pages import MapCard, Section, charts_html, page, part, sample_html

_MOST = 12  # methods whose curves can be told apart
_UNITS = {"mif": "share removed, most important first", "lif": "share removed, least important first"}
_INSERTED = "share put in, most important first"
_INTRO = (
    "Controls, in grey, know nothing of the model; a method that is not above them has shown nothing. An arrow beside "
    "a metric says whether higher (\u2191) or lower (\u2193) is better."
)
_TEMPLATE = "evaluation.html"


def page_of(
    folder: str | PathLike[str], title: str = "", images: Sequence[int] | None = None, remarks: Sequence[str] = ()
) -> str:
    """A page on all evaluations of a folder.

    Args:
        folder: That `mhex.evaluate` was given as `out=`, or one that holds several of them.
        title: Of the page; by default the name of the folder.
        images: Numbers of the samples whose maps are shown, among those that `pictures=` kept; None for all of them.
        remarks: Sentences on the folder, which stand first.
    """
    entries = evaluations(Path(folder))
    _check_images(entries, images)
    if len(entries) == 1:
        sections = _sections(entries[0], images)
    else:
        chapters = {entry.name: _sections(entry, images) for entry in entries}
        sections = [Section(name, part("chapter", _TEMPLATE, sections=parts)) for name, parts in chapters.items()]
    counts = [_counts(entry, f"{entry.name}: " if len(entries) > 1 else "") for entry in entries]
    title = title or f"Evaluation: {Path(folder).resolve().name}"
    return page(title, "\n\n".join([*remarks, *counts, _INTRO]), sections)


def _counts(entry: Evaluation, name: str) -> str:
    counts = {"method": len(entry.methods), "control": len(entry.controls), "sample": entry.images}
    methods, controls, samples = (f"{count} {noun}{'' if count == 1 else 's'}" for noun, count in counts.items())
    return " ".join([f"{name}{methods} and {controls}, judged on {samples}.", *entry.report.remarks])


def _check_images(entries: Sequence[Evaluation], images: Sequence[int] | None) -> None:
    numbers = sorted({image for entry in entries for image in entry.drawn})
    advice = f"; the folder has {numbers or 'none'}. Evaluate with pictures=N to keep the first N"
    for image in images or ():
        check_that(image in numbers, "images whose maps were kept", image, advice)


def _sections(entry: Evaluation, images: Sequence[int] | None) -> list[Section]:
    report = entry.report
    single = all(len(report.metric(name).outputs) == 1 for name in report.metrics)
    maps = {image: maps for image, maps in entry.drawn.items() if images is None or image in images}
    pieces = {
        "Table": part("tables", _TEMPLATE, first=report.table("html"), outputs="" if single else report.to_html()),
        "Curves": curves_html(entry),
        "Values per sample": _boxes_html(entry),
        "Maps side by side": "".join(sample_html(image, map_cards(by_method)) for image, by_method in maps.items()),
        "Cost per explanation": cost_html(entry),
        "How it was made": facts_html(entry),
    }
    return sections_of(_TEMPLATE, pieces)


def sections_of(template: str, pieces: Mapping[str, str], **values: Any) -> list[Section]:
    """Pieces of HTML by title as sections, without empty ones; the template has a note for some of the titles."""
    return [
        Section(title, html, part("note", template, title=title, **values)) for title, html in pieces.items() if html
    ]


def curves_html(entry: Evaluation) -> str:
    """Mean curves of every metric that reads a sweep, as HTML; empty if no curve was stored."""
    panels = curve_panels(entry)
    if not panels:
        return ""
    names = {name for panel in panels for name in panel.bands}
    styles = {name: style for name, style in styles_of(entry.methods, entry.controls).items() if name in names}
    missing = sum(name not in names for name in entry.methods)
    note = f"Left out here: {missing} methods with lower places." if missing else ""
    charts = {f"{panel.title}: curves of {', '.join(panel.bands)}": curve_figure([panel], styles) for panel in panels}
    return charts_html(charts, styles, note)


def curve_panels(entry: Evaluation) -> list[CurvePanel]:
    """Mean curves for every metric and order that curves were stored of."""
    panels = []
    for name in entry.report.metrics:
        metric = entry.report.metric(name)
        if not isinstance(metric, CurveMetric) or not entry.report.has_curves(name):
            continue
        methods = [*_best(entry, name), *entry.controls]
        for order in metric.orders:
            _, shares, curves = entry.report.curves(name, order)
            bands = {method: _band(curves[method]) for method in methods if method in curves}
            bands = {method: band for method, band in bands.items() if band[0]}
            title = f"{name}, {order.upper()}" if len(metric.orders) > 1 else name
            below = _INSERTED if metric.inserted else _UNITS[order]
            beside = "accuracy" if metric.output == "hit" else f"{metric.output} ({metric.scored})"
            if bands:
                panels.append(CurvePanel(title, below, beside, shares.tolist(), bands))
    return panels


def _best(entry: Evaluation, metric: str) -> list[str]:
    """Methods whose curves are drawn: all, or the best by a metric where they are too many."""
    if len(entry.methods) <= _MOST:
        return entry.methods
    means = {name: float(values.nanmean()) for name, values in entry.report.per_image(metric).items()}
    sign = -1 if entry.report.metric(metric).better[0] else 1
    finite = [name for name in entry.methods if name in means and means[name] == means[name]]
    return sorted(finite, key=lambda name: sign * means[name])[:_MOST]


def _band(curves: Tensor) -> Band:
    """The mean of curves (n, T + 1) and its bootstrap interval at each point; images without a curve do not count."""
    finite = curves[curves.isfinite().all(1)].double()
    if not len(finite):
        return [], [], []
    ends = bootstrap(finite, lambda rows: rows.mean(-2), resamples=1000)
    return finite.mean(0).tolist(), ends.low.tolist(), ends.high.tolist()


def _boxes_html(entry: Evaluation) -> str:
    """Boxes of the values per image of every metric that reads a sweep; empty if there is none."""
    charts, styles = {}, styles_of(entry.methods, entry.controls)
    for name in entry.report.metrics:
        metric = entry.report.metric(name)
        if isinstance(metric, CurveMetric) and metric.additive:
            values = entry.report.per_image(name)
            rows = {method: values[method].tolist() for method in styles if method in values}
            below = f"{metric.outputs[0]}, {'higher' if metric.better[0] else 'lower'} is better"
            charts[f"{name}: boxes of {', '.join(rows)}"] = box_figure(name, below, rows, styles)
    return charts_html(charts) if charts else ""


def cost_html(entry: Evaluation) -> str:
    """A bar for each method, the cheapest on top, as HTML."""
    seconds = sorted(entry.seconds().items(), key=lambda pair: pair[1])
    rows = {name: (max(value, 1e-6), _duration(value)) for name, value in seconds}
    alt = "Time per explanation: " + ", ".join(f"{name} {text}" for name, (_, text) in rows.items())
    chart = bar_figure("Time per explanation", "seconds", rows, styles_of(entry.methods, entry.controls))
    return charts_html({alt: chart})


def _duration(seconds: float) -> str:
    """A time in three figures at most."""
    if seconds >= 1:
        return f"{seconds:.3g} s"
    return f"{1000 * seconds:.3g} ms" if seconds >= 1e-3 else f"{1e6 * seconds:.3g} µs"


def map_cards(maps: Mapping[str, Explanation], remarks: Mapping[str, str] | None = None) -> list[MapCard]:
    """Cards of explanations by method, controls last, with a few words below the names of some."""
    cards = []
    for name in sorted(maps, key=is_control):
        caption = f"{name.removeprefix(PREFIX)} (control)" if is_control(name) else name
        cards.append(MapCard(maps[name], caption, is_control(name), (remarks or {}).get(name, "")))
    return cards


def facts_html(entry: Evaluation) -> str:
    """Model, target, task, seed, counts, versions and commands as a table, in HTML."""
    skipped = [
        f"{count} of {entry.images} for {method} by {metric}"
        for method, counts in entry.report.skipped().items()
        for metric, count in counts.items()
        if count
    ]
    return part("facts", _TEMPLATE, entry=entry, skipped=skipped)
