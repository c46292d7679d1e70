"""Explanations as pictures, in figures of matplotlib and in files: maps over photos, highlighted texts, comparisons."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from os import PathLike
from pathlib import Path

from torch import Tensor

from mhex._files import write_bytes, writing
from mhex._progress import is_watched, progress_bar
from mhex._settings import check_that
from mhex.errors import ArgumentError, some_of
from mhex.viz import captions
from mhex.viz.canvas import PIXELS, Canvas, Paper, PaperMaker, render
from mhex.viz.captions import SCALE_NOTE, Drawable, Legend
from mhex.viz.heatmap import cells_over, clip_note, overlay, photo_pixels, picture_pixels
from mhex.viz.layout import Panel, PanelRow, draw_rows
from mhex.viz.text import draw_blocks, text_blocks

_KINDS = {".png": "png", ".jpg": "jpeg", ".jpeg": "jpeg", ".pdf": "pdf", ".svg": "svg", ".webp": "webp"}
_MOST_MAPS = 8  # samples, and targets of each, of one explanation
_MOST_TEXTS = 16
_MOST_ROWS = 12  # of a comparison
_MOST_THREADS = 8  # that draw at the same time; each may have helpers of its own inside torch


def figure(
    explanation: Drawable,
    *,
    samples: Sequence[int] | None = None,
    targets: Sequence[int] | None = None,
    paper: PaperMaker | None = None,
) -> Paper:
    """Draw an explanation as a matplotlib figure: heat maps over the photos, or highlighted text.

    Images have one row per sample: the photo, then the heat map of each target. Texts stand below each other.

    Args:
        explanation: What `mhex.explain` returned.
        samples: Which samples to draw; None for the first ones, with a sentence in the figure on those left out.
        targets: Which of several targets to draw; None for the first ones.
        paper: What to draw on instead of a figure: `mhex.viz.Canvas` for pixels.
    """
    is_text = explanation.modality == "text"
    limits = {"most": _MOST_TEXTS} if is_text else {"most": _MOST_MAPS, "most_samples": _MOST_MAPS}
    selection, columns, more = captions.choose_both(explanation, samples, targets, call="mhex.viz.figure", **limits)
    bars = [captions.legend(explanation, captions.drawn_names(explanation, selection, columns))]
    prediction = captions.prediction_note(explanation, selection)
    if is_text:
        blocks = text_blocks([explanation], [""], selection, columns)
        return draw_blocks(blocks, explanation.method, bars, [prediction, *more], paper)
    rows = []
    for sample in selection:
        panels = _photo_panel(explanation, sample, f"sample {sample}" if len(selection) > 1 else "input")
        for target in columns:
            name, value = captions.target_label(explanation, sample, target)
            tail = ", ".join(filter(None, (value, captions.remark(explanation, sample, target))))
            panels.append(Panel(overlay(explanation, sample, target), name, tail))
        rows.append(PanelRow(panels))
    notes = [prediction, SCALE_NOTE, clip_note([explanation]), *more]
    return draw_rows(rows, explanation.method, bars, notes, paper=paper)


def comparison(
    explanations: Sequence[Drawable],
    *,
    samples: Sequence[int] | None = None,
    targets: Sequence[int] | None = None,
    labels: Sequence[str] | None = None,
    title: str = "",
    columns: int = 8,
    paper: PaperMaker | None = None,
) -> Paper:
    """Draw explanations of the same input by several methods: one row per class, one column per method.

    Texts are drawn below each other, grouped by class.

    Args:
        explanations: Of the same batch and the same targets.
        samples: Which samples to draw; None for as many as twelve rows hold, with a sentence on the others.
        targets: Which of several targets to draw; None for all, up to twelve.
        labels: Names of the columns; None for the names of the methods, with the options that tell equal ones apart.
        title: A heading.
        columns: The most methods side by side; more continue in further rows.
        paper: As for `figure`.
    """
    captions.check_same_input(explanations, labels)
    first = explanations[0]
    names = captions.column_labels(explanations) if labels is None else list(labels)
    rows_of, targets_of, more = captions.choose_both(first, samples, targets, _MOST_ROWS, "mhex.viz.comparison")
    bars = captions.legends(explanations, captions.drawn_names(first, rows_of, targets_of))
    prediction, agnostic = captions.prediction_note(first, rows_of), captions.agnostic_note(explanations)
    if first.modality == "text":
        blocks = text_blocks(explanations, names, rows_of, targets_of)
        return draw_blocks(blocks, title, bars, [prediction, *more, agnostic], paper)
    check_that(columns >= 1, "at least one column", f"columns={columns}")
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
    return draw_rows(rows, title, bars, notes, broken=True, paper=paper)


def _photo_panel(explanation: Drawable, sample: int, title: str) -> list[Panel]:
    photo = photo_pixels(explanation, sample)
    return [] if photo is None else [Panel(photo, title)]


def confidence_figure(maps: Tensor, raw: Tensor, images: Tensor, mode: str) -> Paper:
    """Draw maps of gates and heads that agree, beside their images: brighter cells bring them together more.

    Args:
        maps: (B, grid, grid) in [0, 1].
        raw: The sums of cosines behind them, in the same shape.
        images: (B, C, H, W).
        mode: `"keep"` or `"occlude"`, for the words.
    """
    right = maps.dim() == 3 and maps.shape == raw.shape and len(images) == len(maps)
    expectation = f"maps and raw values (B, grid, grid) of {len(images)} images"
    check_that(right, expectation, f"{tuple(maps.shape)} and {tuple(raw.shape)}")
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


def save_figure(drawing: Drawable | Sequence[Drawable] | Paper, path: str | PathLike[str]) -> Path:
    """Draw into a file; its suffix (`.png`, `.jpg`, `.pdf`, `.svg`, `.webp`) says how.

    Args:
        drawing: An explanation, several of the same input to be compared, a figure, or a canvas.
        path: Where to write; the folder must exist.

    Raises:
        ArgumentError: If the suffix is unknown or the file cannot be written.
    """
    path = Path(path)
    kind = _KINDS.get(path.suffix.lower())
    if kind is None:
        raise ArgumentError(f"Expected a picture ending in {', '.join(_KINDS)}, but got {path.name!r}.")
    paper = Canvas if kind in PIXELS else None
    if isinstance(drawing, Sequence):
        drawing = comparison(drawing, paper=paper)
    elif isinstance(drawing, Drawable):
        drawing = figure(drawing, paper=paper)
    write_bytes(render(drawing, kind), path)
    return path


def save_samples(explanation: Drawable, path: Path, progress: bool | None = None) -> None:
    """Draw each sample of a batch into a file of its own, several at the same time.

    Where one cannot be drawn, the others are, and the error at the end names it. Files are whole, also after Ctrl-C.

    Args:
        explanation: What `mhex.explain` returned.
        path: As for `save_figure`, with `{sample}` in its name for the number; its folder is made if it is missing.
        progress: Whether to draw a progress bar; None for one in a terminal or a notebook.
    """
    count = len(explanation.scores)
    pixels = path.suffix.lower() not in (".pdf", ".svg")
    threads = min(_MOST_THREADS, os.cpu_count() or 1) if pixels else 1  # matplotlib's settings are of the process

    def save(sample: int) -> None:
        file = path.with_name(path.name.replace("{sample}", f"{sample:04d}"))
        save_figure(figure(explanation, samples=[sample], paper=Canvas if pixels else None), file)

    with writing(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    with progress_bar(count, is_watched(progress), "drawing", "samples") as bar, ThreadPoolExecutor(threads) as pool:
        jobs = [pool.submit(save, sample) for sample in range(count)]
        try:
            for _ in as_completed(jobs):
                bar.advance()
        finally:
            pool.shutdown(cancel_futures=True)  # after Ctrl-C, no further file is begun
    errors = {sample: error for sample, job in enumerate(jobs) if (error := job.exception())}
    if errors:
        sample, error = next(iter(errors.items()))
        failed = f"{len(errors)} of {count} samples could not be saved: {some_of(list(errors))}"
        raise ArgumentError(f"{failed}; the others are in {path.parent}. Sample {sample}: {error}") from error
