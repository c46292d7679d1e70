"""Who is marked in a column of a table."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mhex.metrics.comparison import PairTests, pair_tests
from mhex.metrics.resampling import Summary


@dataclass(frozen=True)
class Marks:
    """Who is printed as the best of a table.

    Attributes:
        marked: Of each method: whether it has values, and no other is shown to be better (corrected p below the level).
        best: Of these, the one that is ahead of the most others; with the same images for all, the best mean. None
            without images.
        clear: Whether it is shown to be better than every other.
        adjusted: Corrected p against the best; NaN for itself, and without common images.
        images: The fewest and the most images of a test; None where no two methods have values.
        level: Of significance.
    """

    marked: tuple[bool, ...]
    best: int | None
    clear: bool
    adjusted: tuple[float, ...]
    images: tuple[int, int] | None
    level: float


def marks(
    values: Tensor,
    higher: bool = True,
    level: float = 0.05,
    seed: int = 0,
    clusters: Tensor | None = None,
    summary: Summary | None = None,
) -> Marks:
    """Who is marked in a column of a table.

    Args:
        values: Per image and method, (n, M), or (n, M, J) with a summary; NaN where an image does not count.
        higher: Whether higher is better.
        level: Of significance.
        seed: Of the tests.
        clusters: As for `mhex.metrics.comparison.all_pairs`.
        summary: As for `all_pairs`.
    """
    return marked(pair_tests(values, seed, clusters=clusters, summary=summary)[0], higher, level)


def marked(tested: PairTests, higher: bool = True, level: float = 0.05) -> Marks:
    """Who is marked, by tests that were made.

    A method is out as soon as any other is shown to be better on the images that both have. Nobody is measured by the
    mean over its own images, which may be the easy ones or the hard ones; nor by one method alone, since a method with
    a few lucky images would be ahead, nothing would be shown to be worse than it, and all would be marked. With the
    same images for all, the best mean is never out, and it is left alone where it is better than every other: of
    three methods, the last is told from the first at least as well as the less clear of the two steps between them.
    """
    methods, alive = len(tested.counts), tested.counts > 0
    gain = torch.zeros(methods, methods, dtype=torch.float64)
    adjusted = torch.full_like(gain, torch.nan)
    for side, other, sign in ((tested.first, tested.second, 1), (tested.second, tested.first, -1)):
        gain[side, other] = tested.difference.double().nan_to_num() * (sign if higher else -sign)
        adjusted[side, other] = tested.adjusted.double()
    left = alive & ~((gain < 0) & (adjusted < level)).any(1)
    if not bool(alive.any()):
        return Marks((False,) * methods, None, False, (float("nan"),) * methods, None, level)
    # In circles, each better than the next on other images, all are out.
    best = int(gain.sign().sum(1).masked_fill(~(left if bool(left.any()) else alive), -torch.inf).argmax())
    against, others = adjusted[best], alive.clone()
    others[best] = False
    clear = bool(((gain[best] > 0) & (against < level))[others].all())
    sizes = tested.n[alive[tested.first] & alive[tested.second]].tolist()
    images = (min(sizes), max(sizes)) if sizes else None
    return Marks(tuple(left.tolist()), best, clear, tuple(against.tolist()), images, level)
