"""Maps of a coarse grid over images, drawn as the cells that they are."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from torch import Tensor

from mhex.errors import ArgumentError, ArgumentTypeError
from mhex.explanation import Explanation
from mhex.viz.colour import Pixels, blend
from mhex.viz.overlay import clip_note, overlay, photo_pixels, picture_pixels
from mhex.viz.panels import Panel, Row, draw_rows
from mhex.viz.sheet import (
    SCALE_NOTE,
    Legend,
    Sheet,
    choose,
    legend,
    prediction_note,
    remark,
    target_count,
    target_kind,
    target_label,
)
from mhex.viz.text import Block, draw_blocks, explanation_block

_MOST_ROWS = 12


def comparison(
    explanations: Sequence[Explanation],
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

    Raises:
        ArgumentError: If the explanations are not of the same input and targets.
    """
    check_same_input(explanations, labels)
    first = explanations[0]
    names = column_labels(explanations) if labels is None else list(labels)
    chosen, more_targets = choose(targets, target_count(first), _MOST_ROWS, "targets", "mhex.viz.comparison")
    most = max(1, _MOST_ROWS // len(chosen))
    shown, more_samples = choose(samples, first.scores.shape[0], most, "samples", "mhex.viz.comparison")
    if first.modality == "text":
        return _texts(explanations, names, shown, chosen, title, [more_samples, more_targets])
    if columns < 1:
        raise ArgumentError(f"Expected at least one column, but got columns={columns}.")
    bands = -(-len(explanations) // columns)
    width = -(-len(explanations) // bands)  # bands of about the same width
    rows = []
    for sample in shown:
        for start in range(0, len(explanations), width):
            part = slice(start, start + width)
            heading = f"sample {sample}" if len(shown) > 1 else "input"
            rows += _band(explanations[part], names[part], sample, chosen, _photo_source(explanations), heading)
    notes = [
        prediction_note(first, shown),
        SCALE_NOTE,
        clip_note(explanations),
        agnostic_note(explanations),
        more_samples,
        more_targets,
    ]
    drawn = {target_label(first, sample, target)[0] for sample in shown for target in chosen}
    return draw_rows(rows, title, legends(explanations, drawn), notes, broken=True)


def column_labels(explanations: Sequence[Explanation]) -> list[str]:
    """Names of the methods; where one occurs twice, with the options in which its explanations differ."""
    labels = []
    for explanation in explanations:
        twins = [other.options for other in explanations if other.method == explanation.method]
        differing = [
            f"{name}={value}"
            for name, value in explanation.options.items()
            if any(other.get(name) != value for other in twins)
        ]
        labels.append(" ".join([explanation.method, *differing]))
    return labels


def check_same_input(explanations: Sequence[Explanation], labels: Sequence[str] | None = None) -> None:
    """Refuse a list whose explanations cannot stand side by side."""
    if not explanations:
        raise ArgumentError("Expected at least one explanation to compare, but got an empty list.")
    for other in explanations:
        if not isinstance(other, Explanation):
            raise ArgumentTypeError(f"Expected a list of explanations, but it holds {type(other).__name__}.")
    if labels is not None and len(labels) != len(explanations):
        raise ArgumentError(f"Expected {len(explanations)} labels, one per explanation, but got {len(labels)}.")
    first = explanations[0]
    for other in explanations[1:]:
        same = other.modality == first.modality and len(other.scores) == len(first.scores)
        if not same or other.tokens != first.tokens:
            raise ArgumentError(
                f"Expected explanations of the same input, but {other.method!r} explains another one than "
                f"{first.method!r}; pass the same batch to mhex.explain."
            )
        if any(other.target_names(i) != first.target_names(i) for i in range(len(first.scores))):
            raise ArgumentError(
                f"Expected explanations of the same targets, but {other.method!r} and {first.method!r} explain "
                "different ones; pass the same target= to mhex.explain."
            )


def _photo_source(explanations: Sequence[Explanation]) -> Explanation:
    return next((e for e in explanations if e.pictures is not None), explanations[0])


def _band(
    explanations: Sequence[Explanation],
    names: Sequence[str],
    sample: int,
    targets: Sequence[int],
    source: Explanation,
    heading: str,
) -> list[Row]:
    """Rows of one sample, one per target, for the methods that fit side by side; the first row carries their names."""
    photo = photo_pixels(source, sample)
    rows = []
    for number, target in enumerate(targets):
        panels = [] if photo is None else [Panel(photo, heading if number == 0 else "")]
        for explanation, name in zip(explanations, names, strict=True):
            said = remark(explanation, sample, target)
            panels.append(Panel(overlay(explanation, sample, target), name if number == 0 else "", said))
        rows.append(Row(panels, *target_label(source, sample, target)))
    return rows


def legends(explanations: Sequence[Explanation], names: Collection[str] = ()) -> list[Legend]:
    """One legend for unsigned and one for signed maps, as far as there are some; a single name of targets is named."""
    bars = []
    for signed in (False, True):
        group = [e for e in explanations if e.signed == signed]
        # A class-agnostic method does not speak for the target; where one of the group does, the note names the others.
        if group:
            bars.append(legend(next((e for e in group if e.class_specific), group[0]), names))
    return bars


def agnostic_note(explanations: Sequence[Explanation]) -> str:
    """A sentence on the methods of a mixed list that do not look at the target."""
    names = list(dict.fromkeys(e.method for e in explanations if not e.class_specific))
    if not names or not any(e.class_specific for e in explanations):
        return ""
    listed = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
    return f"{listed} {'gives' if len(names) == 1 else 'give'} every {target_kind(explanations[0])} the same scores."


def _texts(
    explanations: Sequence[Explanation],
    names: Sequence[str],
    samples: Sequence[int],
    targets: Sequence[int],
    title: str,
    notes: Sequence[str],
) -> Sheet:
    blocks: list[Block] = []
    drawn = {target_label(explanations[0], sample, target)[0] for sample in samples for target in targets}
    for sample in samples:
        for target in targets:
            for explanation, name in zip(explanations, names, strict=True):
                prefix = f"{name} · sample {sample}" if len(samples) > 1 else name
                blocks.append(explanation_block(explanation, sample, target, prefix))
    said = [prediction_note(explanations[0], samples), *notes, agnostic_note(explanations)]
    return draw_blocks(blocks, title, legends(explanations, drawn), said)


_MOST = 8


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
    shown, more = choose(None, len(maps), _MOST, "samples")
    words = {"keep": "sum of cosines", "occlude": "fall of the sum of cosines"}
    rows = []
    for sample in shown:
        photo = picture_pixels(images[sample])
        low, high = float(raw[sample].min()), float(raw[sample].max())
        tail = f"{low:.2f} to {high:.2f}".replace("-", "\N{MINUS SIGN}") if high > low else "constant"
        title = f"sample {sample}" if len(shown) > 1 else "input"
        rows.append(Row([Panel(photo, title), Panel(_over(photo, maps[sample], images.shape[2:]), words[mode], tail)]))
    means = {
        "keep": "Each cell: the sum of cosines of gate and head while only this cell is visible.",
        "occlude": "Each cell: by how much the sum of cosines of gate and head falls while this cell is hidden.",
    }
    bar = Legend(False, "least", "most")
    notes = [means[mode], "Each map is scaled on its own, so colours compare within a map.", more]
    return draw_rows(rows, "Where gate and head agree", [bar], notes)


def _over(photo: Pixels, cells: Tensor, size: Sequence[int]) -> Pixels:
    """Cells (grid, grid) over a photo of an image of height and width `size`, with the edges of the masks."""
    scores = cells.detach().float().cpu().numpy()
    rows, columns = (_cell_of(drawn, own, len(scores)) for drawn, own in zip(photo.shape[:2], size, strict=True))
    return blend(photo, np.asarray(scores[rows][:, columns], np.float32), signed=False)


def _cell_of(drawn: int, size: int, grid: int) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    """The cell of each drawn pixel: the image itself was cut at `floor(i * size / grid)`."""
    edges = np.arange(1, grid + 1) * size // grid
    return np.searchsorted(edges, np.arange(drawn) * size // drawn, side="right")
