"""SHAP: Owen values of pixels or tokens, by the partition explainer of the shap package.

`Explanation.diagnostics["completeness_gap"]` says how far the scores are from adding up to `f(x) - f(hidden x)`.
"""

import functools
import random
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mhex._settings import check_count, check_that
from mhex.capture import Trace
from mhex.errors import ArgumentError, require
from mhex.methods._hiding import Hide, box_blur, hidden_pixels, hidden_tokens, words_kept
from mhex.registry import register
from mhex.targets import ResolvedTarget

_AT_A_TIME = 32  # masks that shap chooses at once: what it looks at depends on it, so it is no option
_ONE_AT_A_TIME = threading.Lock()  # shap breaks ties by numpy's global generator


@register(
    "shap",
    title="Owen values of pixels or tokens: their mean share in the class probability, over orders of hiding them.",
    paper="Lundberg & Lee, NeurIPS 2017, arXiv:1705.07874; partition explainer of the package shap",
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
    runs = range(batch.size * target.count * max_evals)
    most = 0
    with _quiet_chance(), closing(trace.track(runs, "SHAP")) as steps:  # type: ignore[type-var]
        package = require("shap", extra="shap")
        for n in range(batch.size):
            if not bool(free[n].any()):
                continue
            scores: dict[bytes, Tensor] = {}
            places = _Places(*free[n].shape) if free[n].dim() == 2 else _Places(1, int(free[n].sum()))
            for k in range(target.count):
                np.random.seed(trace.seed % 2**32)  # so that the values depend on no other sample or target
                ask = functools.partial(_ask, trace, target, hide, n, k, free[n], batch_size, steps, scores)
                explainer = package.PartitionExplainer(ask, places)
                result = explainer(np.zeros(places.shape), max_evals=max_evals, batch_size=_AT_A_TIME, silent=True)
                values[n, k, free[n]] = torch.as_tensor(result.values[0, :, 0]).to(values)
                base[n, k] = float(result.base_values[0, 0])
            most = max(most, len(scores))
    trace.cost["forwards"] += most
    trace.diagnostics["completeness_gap"] = values.flatten(2).sum(-1) - (clean.double() - base)
    return values.to(clean.dtype)


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
    rows: Any,
) -> Any:
    """Scores (M, 1) of sample `n` and target `k`, given rows that say which of its free places are seen, bool (M, F).

    `scores` has those (K,) of all targets for rows that were asked before, and gets those that are new.
    """
    keys = [np.packbits(row).tobytes() for row in rows]
    new = list({key: row for row, key in enumerate(keys) if key not in scores}.values())
    hidden = torch.zeros(len(new), *free.shape, dtype=torch.bool, device=free.device)
    hidden[:, free] = ~torch.as_tensor(rows[new], device=free.device)
    sample = torch.full((len(new),), n, device=free.device)

    def run(start: int, stop: int) -> Tensor:
        samples = sample[start:stop]
        return target.shares(trace.rerun(hide(hidden[start:stop], samples), samples), samples).detach().double()

    parts = [part for _, _, part in trace.chunks(len(new), run, size=batch_size)]
    scores.update(zip((keys[row] for row in new), torch.cat(parts).cpu() if parts else (), strict=True))
    for _ in range(len(rows)):
        next(steps, None)
    return torch.stack([scores[key][k] for key in keys])[:, None].numpy()


class _Places:
    """What shap calls a masker: the places that can be hidden, and the tree of their halves; masks pass as they are."""

    immutable_outputs = True

    def __init__(self, rows: int, columns: int) -> None:
        self.shape = (1, rows * columns)
        self.clustering = _halves(rows, columns)

    def __call__(self, mask: Any, x: Any) -> Any:
        return (mask[None],)


@functools.lru_cache(maxsize=4)
def _halves(rows: int, columns: int) -> Any:
    """A grid cut in two again and again, across its longer side, as a tree in the format of scipy's linkage."""
    merges: list[tuple[int, int, int, int]] = []

    def join(down: range, across: range) -> int:
        height, width = len(down), len(across)
        if height == width == 1:
            return down[0] * columns + across[0]
        if height >= width:
            first, second = join(down[: height // 2], across), join(down[height // 2 :], across)
        else:
            first, second = join(down, across[: width // 2]), join(down, across[width // 2 :])
        merges.append((first, second, 0, height * width))
        return rows * columns + len(merges) - 1

    join(range(rows), range(columns))
    return np.array(merges, dtype=float).reshape(-1, 4)


@contextmanager
def _quiet_chance() -> Iterator[None]:
    """The generators of numpy and Python as they were, afterwards."""
    with _ONE_AT_A_TIME:
        plain, state = random.getstate(), np.random.get_state()
        try:
            yield
        finally:
            np.random.set_state(state)
            random.setstate(plain)
