"""Evaluations as one HTML page that needs nothing else: tables, curves, boxes, pictures, costs, and how it was made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from os import PathLike
from pathlib import Path

from mhex._markup import escaped
from mhex.bench.page_charts import boxes, cost, curves
from mhex.bench.page_facts import facts
from mhex.bench.page_pictures import pictures
from mhex.bench.runs import Evaluation, evaluations
from mhex.bench.saving import PAGE, is_recommendation
from mhex.errors import ArgumentError

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
    from mhex.bench.suite_run import TOLD, missing_models, told_in

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
