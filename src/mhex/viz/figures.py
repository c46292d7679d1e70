"""Explanations as matplotlib figures and picture files: maps over photos, highlighted texts, comparisons."""

from collections.abc import Sequence
from os import PathLike
from pathlib import Path

from matplotlib.figure import Figure
from torch import Tensor

from mhex._files import write_bytes
from mhex.errors import ArgumentError
from mhex.viz import captions
from mhex.viz.captions import SCALE_NOTE, Explained, Legend
from mhex.viz.heatmap import cells_over, clip_note, overlay, photo_pixels, picture_pixels
from mhex.viz.sheet import Panel, PanelRow, Sheet, draw_rows, render
from mhex.viz.text import draw_blocks, text_blocks

_KINDS = {".png": "png", ".jpg": "jpg", ".jpeg": "jpg", ".pdf": "pdf", ".svg": "svg", ".webp": "webp"}
_MOST_MAPS = 8  # samples, and targets of each, of one explanation
_MOST_TEXTS = 16
_MOST_ROWS = 12  # of a comparison


def figure(
    explanation: Explained, *, samples: Sequence[int] | None = None, targets: Sequence[int] | None = None
) -> Sheet:
    """Draw an explanation as a matplotlib figure: heat maps over the photos, or highlighted text.

    Images have one row per sample: the photo, then the heat map of each target. Texts stand below each other.

    Args:
        explanation: What `mhex.explain` returned.
        samples: Which samples to draw; None for the first ones, with a sentence in the figure on those left out.
        targets: Which of several targets to draw; None for the first ones.
    """
    is_text = explanation.modality == "text"
    limits = {"most": _MOST_TEXTS} if is_text else {"most": _MOST_MAPS, "most_samples": _MOST_MAPS}
    selection, columns, more = captions.choose_both(explanation, samples, targets, call="mhex.viz.figure", **limits)
    bars = [captions.legend(explanation, captions.drawn_names(explanation, selection, columns))]
    prediction = captions.prediction_note(explanation, selection)
    if is_text:
        blocks = text_blocks([explanation], [""], selection, columns)
        return draw_blocks(blocks, explanation.method, bars, [prediction, *more])
    rows = []
    for sample in selection:
        panels = _photo_panel(explanation, sample, f"sample {sample}" if len(selection) > 1 else "input")
        for target in columns:
            name, value = captions.target_label(explanation, sample, target)
            tail = ", ".join(filter(None, (value, captions.remark(explanation, sample, target))))
            panels.append(Panel(overlay(explanation, sample, target), name, tail))
        rows.append(PanelRow(panels))
    return draw_rows(rows, explanation.method, bars, [prediction, SCALE_NOTE, clip_note([explanation]), *more])


def comparison(
    explanations: Sequence[Explained],
    *,
    samples: Sequence[int] | None = None,
    targets: Sequence[int] | None = None,
    labels: Sequence[str] | None = None,
    title: str = "",
    columns: int = 8,
) -> Sheet:
    """Draw explanations of the same input by several methods: one row per class, one column per method.

    Texts are drawn below each other, grouped by class.

    Args:
        explanations: Of the same batch and the same targets.
        samples: Which samples to draw; None for as many as twelve rows hold, with a sentence on the others.
        targets: Which of several targets to draw; None for all, up to twelve.
        labels: Names of the columns; None for the names of the methods, with the options that tell equal ones apart.
        title: A heading.
        columns: The most methods side by side; more continue in further rows.
    """
    captions.check_same_input(explanations, labels)
    first = explanations[0]
    names = captions.column_labels(explanations) if labels is None else list(labels)
    rows_of, targets_of, more = captions.choose_both(first, samples, targets, _MOST_ROWS, "mhex.viz.comparison")
    bars = captions.legends(explanations, captions.drawn_names(first, rows_of, targets_of))
    prediction, agnostic = captions.prediction_note(first, rows_of), captions.agnostic_note(explanations)
    if first.modality == "text":
        blocks = text_blocks(explanations, names, rows_of, targets_of)
        return draw_blocks(blocks, title, bars, [prediction, *more, agnostic])
    if columns < 1:
        raise ArgumentError(f"Expected at least one column, but got columns={columns}.")
    bands = -(-len(explanations) // columns)
    width = -(-len(explanations) // bands)  # bands of about the same width
    source = next((entry for entry in explanations if entry.pictures is not None), first)
    rows = []
    for sample in rows_of:
        heading = f"sample {sample}" if len(rows_of) > 1 else "input"
        for start in range(0, len(explanations), width):
            for place, target in enumerate(targets_of):
                top = place == 0  # the first row of a band carries the names of its methods
                panels = _photo_panel(source, sample, heading if top else "")
                for entry, name in list(zip(explanations, names, strict=True))[start : start + width]:
                    pixels = overlay(entry, sample, target)
                    panels.append(Panel(pixels, name if top else "", captions.remark(entry, sample, target)))
                rows.append(PanelRow(panels, *captions.target_label(source, sample, target)))
    notes = [prediction, SCALE_NOTE, clip_note(explanations), agnostic, *more]
    return draw_rows(rows, title, bars, notes, broken=True)


def _photo_panel(explanation: Explained, sample: int, title: str) -> list[Panel]:
    photo = photo_pixels(explanation, sample)
    return [] if photo is None else [Panel(photo, title)]


def confidence_figure(maps: Tensor, raw: Tensor, images: Tensor, mode: str) -> Sheet:
    """Draw maps of gates and heads that agree, beside their images: brighter cells bring them together more.

    Args:
        maps: (B, grid, grid) in [0, 1].
        raw: The sums of cosines behind them, in the same shape.
        images: (B, C, H, W).
        mode: `"keep"` or `"occlude"`, for the words.
    """
    if maps.dim() != 3 or maps.shape != raw.shape or len(images) != len(maps):
        raise ArgumentError(
            f"Expected maps and raw values (B, grid, grid) of {len(images)} images, but got {tuple(maps.shape)} and "
            f"{tuple(raw.shape)}."
        )
    title, meaning = "sum of cosines", "the sum of cosines of gate and head while only this cell is visible"
    if mode == "occlude":
        title = "fall of the sum of cosines"
        meaning = "by how much the sum of cosines of gate and head falls while this cell is hidden"
    selection, more = captions.choose(None, len(maps), _MOST_MAPS, "samples")
    rows = []
    for sample in selection:
        photo = picture_pixels(images[sample])
        low, high = float(raw[sample].min()), float(raw[sample].max())
        tail = f"{low:.2f} to {high:.2f}".replace("-", "\N{MINUS SIGN}") if high > low else "constant"
        cells = Panel(cells_over(photo, maps[sample], images.shape[2:]), title, tail)
        rows.append(PanelRow([Panel(photo, f"sample {sample}" if len(selection) > 1 else "input"), cells]))
    notes = [f"Each cell: {meaning}.", SCALE_NOTE, more]
    return draw_rows(rows, "Where gate and head agree", [Legend(False, "least", "most")], notes)


def save_figure(drawing: Explained | Sequence[Explained] | Figure, path: str | PathLike[str]) -> Path:
    """Draw into a file; its suffix (`.png`, `.jpg`, `.pdf`, `.svg`, `.webp`) says how.

    Args:
        drawing: An explanation, several of the same input to be compared, or a figure.
        path: Where to write; the folder must exist.

    Raises:
        ArgumentError: If the suffix is unknown or the file cannot be written.
    """
    path = Path(path)
    kind = _KINDS.get(path.suffix.lower())
    if kind is None:
        raise ArgumentError(f"Expected a picture ending in {', '.join(_KINDS)}, but got {path.name!r}.")
    check_folder(path)
    if isinstance(drawing, Sequence):
        drawing = comparison(drawing)
    elif not isinstance(drawing, Figure):
        drawing = figure(drawing)
    write_bytes(render(drawing, kind), path)
    return path


def check_folder(path: Path) -> None:
    """Refuse a missing folder before the work of drawing."""
    if not path.parent.is_dir():
        raise ArgumentError(f"Expected a file in an existing folder, but there is no folder {path.parent}; create it.")
