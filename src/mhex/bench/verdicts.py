"""What a column of a table shows: the best methods, and methods that random maps are not told from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mhex.bench.controls import RANDOM, is_control
from mhex.metrics.comparison import PairTests, least_p
from mhex.metrics.marking import marked

_LEVEL = 0.05


@dataclass(frozen=True)
class Verdict:
    """Of one number.

    Attributes:
        best: Methods that no other is shown to be better than. Control maps are no methods, and are left out.
        doubtful: Methods that are not shown to be better than the random control.
        tested: The fewest and the most images on which two of all were compared; None where there were no two.
        few: Images that can show nothing, so that nothing is marked; None where they can.
        apart: Whether methods were judged on different images, so that no best is marked.
    """

    best: frozenset[str]
    doubtful: frozenset[str]
    tested: tuple[int, int] | None
    few: int | None = None
    apart: bool = False


def verdicts(names: Sequence[str], tested: PairTests, higher: bool) -> Verdict:
    """What tests of all pairs show.

    Pairs of methods are corrected (Holm) for these pairs alone, and those with the random control for these: a control
    that happens to do well by chance, and pairs of controls, would otherwise take from what can be shown of methods.

    Args:
        names: Methods and controls as they are called in tables.
        tested: Of them.
        higher: Whether higher is better.
    """
    methods = [m for m, name in enumerate(names) if not is_control(name) and bool(tested.counts[m])]
    spans = tested.n[tested.n > 0].tolist()
    images = (min(spans), max(spans)) if spans else None
    if not methods or images is None:
        return Verdict(frozenset(), frozenset(), images)
    own, doubtful = tested.among(methods), frozenset[str]()
    comparisons = max(len(own.n), len(methods) if RANDOM in names else 0)
    if comparisons * least_p(images[1]) >= _LEVEL:
        return Verdict(frozenset(), frozenset(), images, images[1])
    if RANDOM in names and bool(tested.counts[list(names).index(RANDOM)]):
        gain, p = tested.against(list(names).index(RANDOM), methods)
        above = ((gain > 0) if higher else (gain < 0)) & (p < _LEVEL)
        doubtful = frozenset(names[m] for m, fine in zip(methods, above.tolist(), strict=True) if not fine)
    best = marked(own, higher, _LEVEL).marked if len(methods) > 1 else (True,)
    return Verdict(frozenset(names[m] for m, one in zip(methods, best, strict=True) if one), doubtful, images)
