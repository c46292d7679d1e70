"""Folding with fixed gates: approximate, and therefore measured."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor, nn

from mhex.capture import read_logits
from mhex.errors import ArgumentError
from mhex.heads.batches import unlabelled
from mhex.heads.fold import fold
from mhex.heads.heads import Heads
from mhex.heads.passes import call_model, watched
from mhex.heads.reading import Reading, decided
from mhex.heads.settings import Source


@dataclass(frozen=True)
class Change:
    """How far class scores moved on some data.

    Attributes:
        samples: How many were compared.
        max_change: Largest change of a class score.
        mean_change: Mean change of a class score, without its sign.
        top1_agreement: Part of the samples whose predicted class stayed; for several labels, of the decisions.
    """

    samples: int
    max_change: float
    mean_change: float
    top1_agreement: float


@dataclass(frozen=True)
class StaticFoldReport:
    """What fixed gates changed.

    Attributes:
        calibration: On the data that the gates were averaged over.
        test: On other data, if there was any; the honest number.
        spread: Largest standard deviation over the samples of a gate's channel, by name of the block: what was
            thrown away.
    """

    calibration: Change
    test: Change | None
    spread: dict[str, float]

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values."""
        return asdict(self)

    def __str__(self) -> str:
        lines = [
            f"{name}: class scores of {c.samples} samples moved by at most {c.max_change:.3g}, by "
            f"{c.mean_change:.3g} on average; {c.top1_agreement:.1%} of the predictions stayed."
            for name, c in (("Calibration data", self.calibration), ("Other data", self.test))
            if c is not None
        ]
        return "\n".join(lines)


def fold_static(
    model: nn.Module, heads: Heads, source: Source, data: Any, test: Any = None
) -> tuple[nn.Module, StaticFoldReport]:
    """Fold with every gate fixed at its mean over some data.

    Args:
        model: The host.
        heads: Its heads.
        source: What predicts.
        data: A batch or a loader to average over; it is gone through twice.
        test: Other data on which to measure what changed.
    """
    means, spread = _gate_means(model, data)
    folded = fold(model, heads, source, means)
    calibration = _change(model, heads, source, folded, data)
    return folded, StaticFoldReport(
        calibration, None if test is None else _change(model, heads, source, folded, test), spread
    )


def _gate_means(model: nn.Module, data: Any) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Mean over samples of every gate, (C,), and the largest deviation from it, by name of the block."""
    count = 0
    sums: dict[str, Tensor] = {}
    squares: dict[str, Tensor] = {}
    with watched(model) as run:
        for inputs in unlabelled(data):
            gates = {name: block.gate.double() for name, block in run(inputs).blocks.items()}
            count += next(iter(gates.values())).shape[0]
            for name, gate in gates.items():
                sums[name] = sums.get(name, 0) + gate.sum(0)
                squares[name] = squares.get(name, 0) + gate.square().sum(0)
    if not count:
        raise ArgumentError("Expected some data to average the gates over, but the loader was empty (or used up).")
    means = {name: total / count for name, total in sums.items()}
    spread = {
        name: float((squares[name] / count - mean.square()).clamp_min(0).sqrt().max()) for name, mean in means.items()
    }
    return {name: mean.float() for name, mean in means.items()}, spread


def _change(model: nn.Module, heads: Heads, source: Source, folded: nn.Module, data: Any) -> Change:
    samples, largest, total, scores, same, decisions = 0, 0.0, 0.0, 0, 0, 0
    with watched(model) as run:
        for inputs in unlabelled(data):
            before = Reading(run(inputs), heads).scores(source).double()
            after = read_logits(call_model(folded, inputs))
            if source == "classifier" and heads.ending is not None:
                after = heads.ending.logits(after)
            after = after.double()
            moved = (after - before).abs()
            kept = decided(after, heads.settings.multi_label) == decided(before, heads.settings.multi_label)
            samples += before.shape[0]
            largest = max(largest, float(moved.max()))
            total, scores = total + float(moved.sum()), scores + moved.numel()
            same, decisions = same + int(kept.sum()), decisions + kept.numel()
    if not samples:
        raise ArgumentError("Expected a loader that can be gone through again, but it gave nothing this time.")
    return Change(samples, largest, total / scores, same / decisions)
