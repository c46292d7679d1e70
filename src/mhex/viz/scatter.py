"""Two methods against each other, patch by patch or word by word."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mhex.errors import ArgumentError
from mhex.explanation import Explanation
from mhex.viz._colour import INK, MUTED
from mhex.viz._sheet import MARGIN, Sheet, drawable, font, wrap
from mhex.viz.grid import check_same_input

_SIDE = 4.2
_MARK = "#c4662b"
_MOST = 20_000  # dots; more only make the file larger


def scatter(first: Explanation, second: Explanation, *, title: str = "") -> Sheet:
    """Draw the scores of one explanation against those of another of the same input: a dot per patch or word.

    With `attention` along and `cdam` up this is the picture of the CDAM paper: where no head attends, nothing is said
    about the class.

    Args:
        first: Along.
        second: Up; of the same batch, on the same grid and for the same targets.
        title: A heading.

    Raises:
        ArgumentError: If their scores do not belong together.
    """
    check_same_input([first, second])
    if first.scores.shape != second.scores.shape:
        raise ArgumentError(
            f"Expected two explanations of the same input on the same grid, but {first.method!r} has scores "
            f"{tuple(first.scores.shape)} and {second.method!r} {tuple(second.scores.shape)}."
        )
    along, up = _values(first), _values(second)
    total = len(along)
    varies = bool(along.std() > 0 and up.std() > 0)
    r = float(np.mean((along - along.mean()) * (up - up.mean())) / (along.std() * up.std())) if varies else 0.0
    shown = np.linspace(0, total - 1, min(total, _MOST)).astype(int)
    unit = "patches" if first.modality == "image" else "tokens"
    said = f"Pearson r = {r:.2f} over " if varies else "No correlation: one of the two does not vary over "
    note = f"{said}{total} {unit}." + (f" {_MOST} of them are drawn." if total > _MOST else "")
    heading = wrap(title or f"{second.method} against {first.method}", _SIDE + 0.6, 12, most=2, bold=True)
    top = MARGIN + 0.3 + 0.22 * (len(heading) - 1)
    lines = wrap(note, _SIDE + 0.6, 7.5, most=2)
    sheet = Sheet(_SIDE + 1.1, top + _SIDE + 0.75 + 0.18 * len(lines))
    for number, line in enumerate(heading):
        sheet.write(MARGIN, MARGIN + 0.14 + 0.22 * number, line, 12, bold=True)
    width, height = sheet.get_size_inches()
    axes = sheet.add_axes((0.85 / width, 1 - (top + _SIDE) / height, _SIDE / width, _SIDE / height), label="scatter")
    axes.scatter(along[shown], up[shown], s=7, color=_MARK, alpha=0.3, linewidths=0, zorder=2)
    axes.axhline(0, color=MUTED, linewidth=0.8, zorder=1)
    axes.axvline(0, color=MUTED, linewidth=0.8, zorder=1)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.locator_params(nbins=6)
    axes.set_xlabel(drawable(first.method), fontproperties=font(9), color=INK, parse_math=False)
    axes.set_ylabel(drawable(second.method), fontproperties=font(9), color=INK, parse_math=False)
    for label in (*axes.get_xticklabels(), *axes.get_yticklabels()):
        label.set_fontproperties(font(8))
    for number, line in enumerate(lines):
        sheet.write(MARGIN, top + _SIDE + 0.62 + 0.18 * number, line, 7.5, MUTED)
    return sheet


def _values(explanation: Explanation) -> NDArray[np.float64]:
    """All scores of patches or words, (N,)."""
    scores = explanation.scores.detach().double().cpu()
    if explanation.scored is not None:
        mask = explanation.scored.cpu()
        scores = scores[(mask[:, None] if explanation.several else mask).expand_as(scores)]
    return np.asarray(scores.reshape(-1).numpy())
