"""Evaluations as one HTML page that needs nothing else: tables, curves, boxes, pictures, costs, and how it was made."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from torch import Tensor

from mhex._printable import escaped
from mhex.errors import ArgumentError
from mhex.explanation import Explanation
from mhex.judge.controls import PREFIX, is_control
from mhex.judge.report import Evaluation, evaluations
from mhex.metrics._base import PerImage
from mhex.metrics._curve import CurveMetric
from mhex.recommend.answer import PAGE, is_recommendation
from mhex.stats.intervals import bootstrap
from mhex.viz.plots import Boxed, Line, Look, bar_plot, box_plot, key, line_plot, looks


def facts(one: Evaluation) -> str:
    """Model, target, task, seed, counts, versions and commands as a table, in HTML."""
    rows = [("model", str(one.run.get("model", "")))]
    rows += [
        (name, str(one.run[name])) for name in ("evaluator", "relabelled") if one.run.get(name) not in (None, "none")
    ]
    rows += [(name, str(one.run.get(name, ""))) for name in ("target", "task", "seed")]
    rows += [("samples", str(one.images)), ("skipped", _skipped(one))]
    if not one.calls:
        rows.append(("versions", "not written down: the rows are of an earlier version"))
    for number, call in enumerate(one.calls, 1):
        rows += _call(call, f" of call {number}" if len(one.calls) > 1 else "")
    body = "".join(f"<tr><td>{escaped(name)}</td><td>{escaped(said)}</td></tr>" for name, said in rows)
    return f"<table>{body}</table>"


def _call(call: Mapping[str, Any], which: str) -> Iterable[tuple[str, str]]:
    for name in ("model", "command", "methods", "metrics", "budget", "batch_size", "versions"):
        said = call.get(name)
        if not said:
            continue
        if isinstance(said, Mapping):
            said = ", ".join(f"{key} {value}" for key, value in said.items())
        elif isinstance(said, list):
            said = ", ".join(map(str, said))
        title = "loaded as" if name == "model" else name.replace("_", " ")
        yield f"{title}{which}", said if isinstance(said, str) else json.dumps(said)


def _skipped(one: Evaluation) -> str:
    """Images that do not count, by method and metric."""
    told = [
        f"{count} of {one.images} for {method} by {metric}"
        for method, by_metric in one.report.skipped().items()
        for metric, count in by_metric.items()
        if count
    ]
    return "; ".join(told) or "none"


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


_SIDE = 256


def pictures(one: Evaluation, images: Sequence[int] | None) -> str:
    """The kept samples, each with its maps, as HTML; empty if none was kept.

    Args:
        one: The evaluation.
        images: Numbers of the samples; None for all that were kept.
    """
    chosen = [image for image in one.drawn if images is None or image in images]
    drawn = (dict(sorted(one.drawn[image].items(), key=lambda pair: is_control(pair[0]))) for image in chosen)
    return "".join(sample(image, maps) for image, maps in zip(chosen, drawn, strict=True))


def sample(image: int, drawn: Mapping[str, Explanation], said: Mapping[str, str] | None = None) -> str:
    """A sample with its maps side by side, or below each other for a text, as HTML.

    Args:
        image: Its number.
        drawn: Explanations by method, in the order in which they are shown; one at least.
        said: What is written below the names of methods, by method.
    """
    from mhex.viz import to_html

    first, words = next(iter(drawn.values())), said or {}
    about = f"{first.target_names(0)[0]} ({100 * (first.target_probabilities(0)[0] or 0.0):.3g} %)"
    kind = "Text" if first.modality == "text" else "Image"
    if (predicted := first.prediction(0)) is not None:
        same = predicted[0] == first.target_names(0)[0]
        about += ", the predicted class" if same else f"; predicted: {predicted[0]} ({100 * predicted[1]:.3g} %)"
    heading = f"<p><strong>{kind} {image}</strong>, explained for {escaped(about)}</p>"
    if first.modality == "text":
        return heading + to_html(list(drawn.values()))
    maps = "".join(_map(name, one, words.get(name, "")) for name, one in drawn.items())
    return f'{heading}<div class="maps">{_photo(first)}{maps}</div>'


def _photo(explanation: Explanation) -> str:
    from mhex.viz.overlay import photo_pixels

    pixels = photo_pixels(explanation, 0)
    return "" if pixels is None else _figure(pixels, "photo", "")


def _map(name: str, explanation: Explanation, said: str) -> str:
    from mhex.viz import overlay
    from mhex.viz.overlay import describe

    return _figure(overlay(explanation), name, describe(explanation, 0, 0), is_control(name), said)


def _figure(pixels: Any, name: str, alt: str, control: bool = False, words: str = "") -> str:
    from PIL import Image

    small = Image.fromarray(pixels)
    small.thumbnail((_SIDE, _SIDE))
    file = io.BytesIO()
    small.save(file, "JPEG", quality=82)
    data = base64.b64encode(file.getvalue()).decode("ascii")
    mark = ' class="control"' if control else ""
    shown = f"{name.removeprefix(PREFIX)} (control)" if control else name
    said = escaped(f"{name}: {alt}" if alt else name)
    below = f"<br><small>{escaped(words)}</small>" if words else ""
    return (
        f'<figure{mark}><img src="data:image/jpeg;base64,{data}" alt="{said}">'
        f"<figcaption>{escaped(shown)}{below}</figcaption></figure>"
    )


_ARROWS = "An arrow beside a metric says whether higher (\u2191) or lower (\u2193) is better."
_CONTROLS = "Controls, in grey, know nothing of the model; a method that is not above them has shown nothing."
_ANSWER = f"These are the rows of a recommendation: which method to use is said in {PAGE}, beside this page."
_CURVES = (
    "Means over samples; bands are 95 % bootstrap intervals of the mean, point by point, over samples. MIF removes the "
    "most important units first, so that a good map falls early; LIF the least important, so that it falls late. "
    "Insertion puts the most important ones in first."
)
_BOXES = (
    "One value per sample. Boxes are the middle half, lines medians, diamonds means; whiskers reach to the last sample "
    "within 1.5 box lengths, dots are samples beyond. A metric with two orders shows the difference that methods are "
    "ranked by."
)
_COST = (
    "Median over samples of the time that a map took, in batches, on the machine of the evaluation. The axis counts in "
    "powers of ten."
)


def page_of(folder: str | PathLike[str], title: str = "", images: Sequence[int] | None = None) -> str:
    """A page on all evaluations of a folder.

    Args:
        folder: That `mhex.evaluate` was given as `out=`, or one that holds several of them.
        title: Of the page; by default the name of the folder.
        images: Numbers of the samples whose maps are shown, among those that `pictures=` kept; None for all of them.
    """
    from mhex.viz import Section, page

    found = evaluations(Path(folder))
    _check_images(found, images)
    title = title or f"Evaluation: {Path(folder).resolve().name}"
    if len(found) == 1:
        sections = [Section(name, inside, note) for name, inside, note in _parts(found[0], images)]
    else:
        sections = [Section(one.name, _chapter(one, images)) for one in found]
    answer = f"\n\n{_ANSWER}" if is_recommendation(Path(folder)) else ""
    remarks = "".join(f"{sentence}\n\n" for sentence in _missing(Path(folder)))
    return page(title, f"{remarks}{_intro(found)}\n\n{_CONTROLS} {_ARROWS}{answer}", sections)


def _missing(folder: Path) -> list[str]:
    """A sentence on models of a suite that are not judged yet."""
    from mhex.lab.suites.run import TOLD, missing_models, told_in

    return missing_models(told_in(folder)) if (folder / TOLD).is_file() else []


def _intro(found: Sequence[Evaluation]) -> str:
    lines = []
    for one in found:
        name = f"{one.name}: " if len(found) > 1 else ""
        counted = (
            _count(len(one.methods), "method"),
            _count(len(one.controls), "control"),
            _count(one.images, "sample"),
        )
        said = " ".join([f"{counted[0]} and {counted[1]}, judged on {counted[2]}.", *one.report.remarks])
        lines.append(f"{name}{said}")
    return "\n\n".join(lines)


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _parts(one: Evaluation, images: Sequence[int] | None) -> Iterator[tuple[str, str, str]]:
    """Titles, pieces of HTML and notes."""
    yield "Table", _table(one), ""
    if drawn := curves(one):
        yield "Curves", drawn, _CURVES
    if drawn := boxes(one):
        yield "Values per sample", drawn, _BOXES
    if drawn := pictures(one, images):
        yield "Maps side by side", drawn, "Each map is scaled on its own. Controls have dashed frames."
    yield "Cost per explanation", cost(one), _COST
    yield "How it was made", facts(one), ""


def _chapter(one: Evaluation, images: Sequence[int] | None) -> str:
    parts = []
    for title, inside, note in _parts(one, images):
        parts.append(f"<h3>{escaped(title)}</h3>{inside}")
        parts.append(f'<p class="note">{escaped(note)}</p>' if note else "")
    return "\n".join(parts)


def _table(one: Evaluation) -> str:
    """The table of the report, which scrolls sideways where it must; with all outputs below if there are more."""
    first = _scrolling(one.report.table("html"))
    if all(len(one.report.metric(name).outputs) == 1 for name in one.report.metrics):
        return first
    whole = _scrolling(one.report.to_html())
    return f"{first}<details><summary>All outputs of all metrics</summary>{whole}</details>"


def _scrolling(table: str) -> str:
    return table.replace("<table>", '<div class="scroll"><table>').replace("</table>", "</table></div>")


def _check_images(found: Sequence[Evaluation], images: Sequence[int] | None) -> None:
    known = sorted({image for one in found for image in one.drawn})
    for image in images or ():
        if image not in known:
            listed = f"those of {', '.join(map(str, known))}" if known else "none"
            raise ArgumentError(
                f"Expected images whose maps were kept, but got {image}; the folder has {listed}. Evaluate with "
                "pictures=N to keep the first N."
            )
