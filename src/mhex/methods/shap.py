"""SHAP: Owen values of pixels or tokens, over a tree of halves.

`Explanation.diagnostics["completeness_gap"]` says how far the scores are from adding up to `f(x) - f(hidden x)`.
"""

import heapq
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import count
from typing import NamedTuple

import torch
from torch import Tensor

from mhex._settings import check_count, check_that
from mhex.capture import Trace
from mhex.errors import ArgumentError
from mhex.methods._hiding import Hide, box_blur, hidden_pixels, hidden_tokens, words_kept
from mhex.registry import register
from mhex.targets import ResolvedTarget

_AT_A_TIME = 32  # masks that are chosen at once: what is looked at depends on it, so it is no option
Ask = Callable[[Sequence[Tensor]], list[float]]  # from masks of what is seen, bool (rows, columns), to their scores


class _Part(NamedTuple):
    """A rectangle of places, and what it adds to the score beside other places that are seen."""

    rows: range
    columns: range
    seen: Tensor  # of the other places, bool (rows, columns) of the whole grid
    without: float  # the score without the rectangle
    beside: float  # the score with it
    weight: float  # share of the orders of hiding in which exactly these places are seen before it

    @property
    def size(self) -> int:
        return len(self.rows) * len(self.columns)

    def halves(self) -> list[tuple[range, range]]:
        """The rectangle cut in two across its longer side."""
        height, width = len(self.rows), len(self.columns)
        if height >= width:
            return [(self.rows[: height // 2], self.columns), (self.rows[height // 2 :], self.columns)]
        return [(self.rows, self.columns[: width // 2]), (self.rows, self.columns[width // 2 :])]


@register(
    "shap",
    title="Owen values of pixels or tokens: their mean share in the class probability, over orders of hiding them.",
    paper="Lundberg & Lee, NeurIPS 2017, arXiv:1705.07874; as the partition explainer of the package shap",
    adapt=words_kept,
    signed=True,
    passes="F (1 + K max_evals), K targets",
    target="scores",
    use="When scores must be fair shares that add up to the probability, on any model that can be asked for one; on "
    "short texts the values are exact.",
    avoid="For fine maps of images: with 500 evaluations, pixels share their scores in large blocks. What stands for a "
    "hidden part is part of the answer.",
    quick={"image": {"max_evals": 60}, "text": {"max_evals": 100}},
)
def shap(
    trace: Trace,
    target: ResolvedTarget,
    *,
    max_evals: int = 500,
    fill: int | None = None,
    batch_size: int | None = None,
) -> Tensor:
    r"""`sum_i phi_i = f(x) - f(hidden x)`, `phi` the Owen values of a tree of halves: pixels (B, K, H, W) or tokens.

    Hidden pixels are those of the blurred image, averaged over boxes of half its side. Averaging is linear, so it does
    not matter here how colours were normalised. Special tokens are never hidden and have no score. The parts that are
    looked at more closely are those where the target changes most, so each target has evaluations of its own: several
    targets give the values of as many calls, and cost as much but for inputs that more than one of them asks for. The
    seed breaks ties between parts alone.

    Args:
        target: What is explained: the probability of a class, or the score itself where a target has no probability.
        max_evals: The most inputs that are run for one sample and target; 1000 and more for fine maps.
        fill: Texts: the id of the token that stands for hidden ones; as for `occlusion` by default.
    """
    check_count("max_evals", max_evals)
    check_that(max_evals >= 4, "max_evals to be at least 4", max_evals, ": for the whole, nothing and two halves")
    batch = trace.batch
    if batch.modality == "text":
        _, special = batch.roles
        hide, shape, free = hidden_tokens(trace, fill), special.shape[1:], ~special
    elif fill is not None:
        raise ArgumentError("Expected no fill= for images: SHAP hides pixels by a blurred image.")
    else:
        height, width = shape = batch.pixels.shape[-2:]
        hide = hidden_pixels(trace, box_blur(batch.pixels, height // 2, width // 2))
        free = torch.ones(batch.size, *shape, dtype=torch.bool, device=trace.logits.device)
    clean = target.shares(trace.outcome).detach()
    values = clean.new_zeros(batch.size, target.count, *shape, dtype=torch.float64)
    base = clean.double().clone()
    most = 0
    with closing(trace.track(range(batch.size * target.count * max_evals), "SHAP")) as steps:  # type: ignore[type-var]
        for n in range(batch.size):
            if not bool(free[n].any()):
                continue
            scores: dict[bytes, Tensor] = {}
            rows, columns = free[n].shape if free[n].dim() == 2 else (1, int(free[n].sum()))
            for k in range(target.count):
                ask = partial(_ask, trace, target, hide, n, k, free[n], batch_size, steps, scores)
                draw = torch.Generator().manual_seed(trace.seed)  # so that values depend on no other sample or target
                shares, nothing = owen_values(ask, rows, columns, max_evals, draw)
                values[n, k, free[n]] = shares.flatten().to(values)
                base[n, k] = nothing
            most = max(most, len(scores))
    trace.cost["forwards"] += most
    trace.diagnostics["completeness_gap"] = values.flatten(2).sum(-1) - (clean.double() - base)
    return values.to(clean.dtype)


def owen_values(ask: Ask, rows: int, columns: int, max_evals: int, draw: torch.Generator) -> tuple[Tensor, float]:
    """Owen values of the places of a grid, (rows, columns), and the score of nothing.

    Of each part of the tree of halves, both halves are seen with and without the other, in every context of the parts
    above. Parts that change the score most are cut first; when evaluations are used up, the places of a part share
    what it adds.

    Args:
        ask: Gives the scores of what is seen.
        rows: Of the grid.
        columns: Of the grid.
        max_evals: The most inputs whose scores are asked for.
        draw: Breaks ties between parts.
    """
    nothing = torch.zeros(rows, columns, dtype=torch.bool)
    (base,), (whole,) = ask([nothing]), ask([~nothing])
    values = torch.zeros(rows, columns, dtype=torch.float64)
    number, asked = count(), 2
    queue: list[tuple[float, float, int, _Part]] = []

    def add(part: _Part) -> None:
        tie = float(torch.rand((), generator=draw))
        heapq.heappush(queue, (-abs(part.beside - part.without) * part.weight, tie, next(number), part))

    def settle(part: _Part) -> None:
        block = values[part.rows.start : part.rows.stop, part.columns.start : part.columns.stop]
        block += (part.beside - part.without) * part.weight / part.size

    add(_Part(range(rows), range(columns), nothing, base, whole, 1.0))
    while queue and asked < max_evals:
        parts: list[_Part] = []
        while queue and 2 * len(parts) < _AT_A_TIME and asked + 2 * len(parts) < max_evals:
            part = heapq.heappop(queue)[-1]
            if part.size == 1:
                settle(part)
            else:
                parts.append(part)
        masks = []
        for part in parts:
            for half_rows, half_columns in part.halves():
                mask = part.seen.clone()
                mask[half_rows.start : half_rows.stop, half_columns.start : half_columns.stop] = True
                masks.append(mask)
        scores = ask(masks) if masks else []
        asked += len(masks)
        for place, part in enumerate(parts):
            (first, second), half = part.halves(), part.weight / 2
            alone = scores[2 * place : 2 * place + 2]
            seen = masks[2 * place : 2 * place + 2]
            add(_Part(*first, part.seen, part.without, alone[0], half))
            add(_Part(*second, part.seen, part.without, alone[1], half))
            add(_Part(*first, seen[1], alone[1], part.beside, half))
            add(_Part(*second, seen[0], alone[0], part.beside, half))
    for *_, part in queue:
        settle(part)
    return values, base


def _ask(
    trace: Trace,
    target: ResolvedTarget,
    hide: Hide,
    n: int,
    k: int,
    free: Tensor,
    batch_size: int | None,
    steps: Iterator[int],
    scores: dict[bytes, Tensor],
    masks: Sequence[Tensor],
) -> list[float]:
    """Scores of sample `n` and target `k` for masks of those of its free places that are seen, bool (rows, columns).

    `scores` has those (K,) of all targets for masks that were asked for before, and gets those that are new.
    """
    keys = [mask.numpy().tobytes() for mask in masks]
    new = {key: mask for key, mask in zip(keys, masks, strict=True) if key not in scores}
    if new:
        hidden = torch.zeros(len(new), *free.shape, dtype=torch.bool, device=free.device)
        hidden[:, free] = ~torch.stack([*new.values()]).flatten(1).to(free.device)
        sample = torch.full((len(new),), n, device=free.device)

        def run(start: int, stop: int) -> Tensor:
            samples = sample[start:stop]
            return target.shares(trace.rerun(hide(hidden[start:stop], samples), samples), samples).detach().double()

        parts = [part for _, _, part in trace.chunks(len(new), run, size=batch_size)]
        scores.update(zip(new, torch.cat(parts).cpu(), strict=True))
    for _ in masks:
        next(steps, None)
    return [float(scores[key][k]) for key in keys]
