"""Maps of a coarse grid over images, drawn as the cells that they are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from mhex.errors import ArgumentError
from mhex.viz._colour import Pixels, blend
from mhex.viz._labels import Legend, choose
from mhex.viz._panels import Panel, Row, draw_rows
from mhex.viz._sheet import Sheet
from mhex.viz.overlay import picture_pixels

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
