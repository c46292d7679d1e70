"""RISE: the class probability of the input seen through random masks."""

import math
from collections.abc import Callable
from statistics import NormalDist

import torch
import torch.nn.functional as F
from torch import Tensor

from mhex._settings import check_count
from mhex.capture import Trace
from mhex.errors import ArgumentError
from mhex.methods._hiding import hidden_tokens, run_hidden, scored_variants, words_kept
from mhex.registry import register
from mhex.targets import ResolvedTarget

_GRID = 7


@register(
    "rise",
    title="Class probability of the input seen through random masks.",
    paper="Petsiuk, Das & Saenko, BMVC 2018, arXiv:1806.07421",
    adapt=words_kept,
    signed=False,
    passes="F (1 + n), n masks",
    budget=(1.15, "passes"),
    target="scores",
    use="On models that can only be asked for probabilities: neither gradients nor layers are needed.",
    avoid="When time is short: a thousand passes are the least for a smooth map. Small things and sharp edges are lost "
    "in the grid of the masks; a map always has a floor, so only differences within it mean something.",
    quick={"image": {"n": 60}, "text": {"n": 100}},
)
def rise(
    trace: Trace,
    target: ResolvedTarget,
    *,
    n: int = 1000,
    p: float = 0.5,
    grid: int = _GRID,
    fill: int | None = None,
    batch_size: int | None = None,
) -> Tensor:
    r"""`S(u) = sum_k p(x M_k) M_k(u) / sum_k M_k(u)`, random masks `M_k` from 0 to 1.

    A mask of images is a grid of zeros and ones, brought to the size of the image bilinearly, at a random shift; hidden
    is zero in the normalised image, the mean colour of the data. A mask of texts hides tokens. Masks are the same for
    every sample and repeat with the seed.

    Args:
        target: What is explained: the probability of a class, or the score itself where a target has no probability.
        n: Number of masks; 4000 to 8000 were published.
        p: Share of cells, or tokens, that are shown.
        grid: Images: rows and columns of a mask before it is brought to size.
        fill: Texts: the id of the token that stands for hidden ones; as for `occlusion` by default.
    """
    check_count("n", n)
    longest = 0 if trace.batch.modality == "text" else max(trace.batch.pixels.shape[-2:])
    check_count("grid", grid, most=max(_GRID, longest))
    if isinstance(p, bool) or not isinstance(p, float) or not 0 < p < 1:
        raise ArgumentError(f"Expected p to be a number between 0 and 1, but got {p!r}.")
    kind, special = torch.promote_types(trace.logits.dtype, torch.float32), trace.batch.special
    if special is not None:
        if grid != _GRID:
            raise ArgumentError("Expected no grid= for texts, which are hidden token by token.")
        make, hide_tokens, seen_always = _words(trace, p), hidden_tokens(trace, fill), special

        def hide(masks: Tensor, samples: Tensor) -> Tensor:
            return hide_tokens(~(masks | seen_always[samples]), samples)

    elif fill is not None:
        raise ArgumentError("Expected no fill= for images: RISE multiplies them by its masks, and hides by zeros.")
    else:
        make, pixels = _grids(trace, p, grid, kind), trace.batch.pixels

        def hide(masks: Tensor, samples: Tensor) -> Tensor:
            return (pixels[samples] * masks[:, None]).to(pixels.dtype)

    parts = scored_variants(trace, target, n, make, run_hidden(trace, hide), "RISE", batch_size, shares=True)
    weighted, cover, count = torch.zeros((), dtype=kind, device=trace.logits.device), torch.zeros(()), 0
    for first, masks, table in parts:
        visible = (masks if special is None else masks[:, None] | special).to(kind)  # special tokens are never hidden
        letters = "v" if special is None else "vb"
        weighted = weighted + torch.einsum(f"vbk,{letters}...->bk...", table.to(kind), visible)
        cover = cover.to(visible) + visible[max(0, count - first) :].sum(0)  # each mask once
        count = first + len(masks)
    trace.signed = not target.probable
    result: Tensor = weighted / (cover if special is None else cover[:, None]).clamp_min(torch.finfo(kind).tiny)
    return result


def _grids(trace: Trace, p: float, grid: int, kind: torch.dtype) -> Callable[[int, int], Tensor]:
    """From numbers of masks to these, (V, H, W), from 0 to 1."""
    sides = trace.batch.pixels.shape[-2:]
    cells = [math.ceil(side / grid) for side in sides]

    def make(first: int, last: int) -> Tensor:
        numbers = torch.stack([trace.noise(k, grid * grid + 2) for k in range(first, last)])
        visible = (numbers[:, :-2] < NormalDist().inv_cdf(p)).to(kind).view(-1, 1, grid, grid)
        large = [(grid + 1) * cell for cell in cells]
        masks = F.interpolate(visible, size=large, mode="bilinear", align_corners=False)[:, 0]
        shifts = (torch.special.ndtr(numbers[:, -2:]) * numbers.new_tensor(cells)).long().tolist()
        tops = [(min(y, cells[0] - 1), min(x, cells[1] - 1)) for y, x in shifts]
        return torch.stack([m[y : y + sides[0], x : x + sides[1]] for m, (y, x) in zip(masks, tops, strict=True)])

    return make


def _words(trace: Trace, p: float) -> Callable[[int, int], Tensor]:
    """From numbers of masks to these, bool (V, T), True at words that are shown."""
    tokens, level = trace.batch.roles[0].shape[1], NormalDist().inv_cdf(p)
    return lambda first, last: torch.stack([trace.noise(k, tokens) for k in range(first, last)]) < level
