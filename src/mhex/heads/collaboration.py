"""Do the gate and the head of a block pull their shared matrix the same way?

In a block, `u = W1 h` feeds both. The loss of its own head pulls `W1` by `delta_DS h^T`; the loss of the next head,
which `W1` reaches only through the gate, by `delta_AG h^T`. The cosine of these matrices is that of the two vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import RandomSampler

from mhex.capture import full
from mhex.errors import ArgumentError, ArgumentTypeError, CaptureError, check_count, warn
from mhex.heads.call_record import Call, HeadReading
from mhex.heads.heads import Heads, required_heads
from mhex.heads.predictors import watched
from mhex.inputs.data import labelled_pieces
from mhex.stats.correlation import Correlation, Values, correlate

CONFIDENCE = "p_orig"


@dataclass(frozen=True, eq=False)
class Collaboration:
    """How gates and heads of N samples pulled.

    Attributes:
        cosine: From -1 (against each other) to 1 (the same way), (N, L - 1): the last block has no successor. 0 where
            one of the two does not pull at all: the gate is fixed, the next head is untrained, or no channel is active.
        blocks: Names of the L - 1 blocks, in the order in which they run.
        heads: Names of all L heads.
        labels: The labels: class numbers (N,) or targets (N, n).
        p_orig: Probability of the true class, from what the scaffold predicts from, (N,). For several labels, the mean
            probability of the right answer over the classes.
        losses: Loss of each head, (N, L).
    """

    cosine: Tensor
    blocks: tuple[str, ...]
    heads: tuple[str, ...]
    labels: Tensor
    p_orig: Tensor
    losses: Tensor

    def __len__(self) -> int:
        return int(self.cosine.shape[0])

    def __repr__(self) -> str:
        return f"Collaboration({len(self)} samples, {len(self.blocks)} blocks)"

    def show(self) -> Any:
        """Draw the cosines of each block as a matplotlib figure; notebooks display it."""
        from mhex.viz import cosine_figure

        return cosine_figure(self.cosine, self.blocks)

    def save(self, path: str | PathLike[str]) -> Path:
        """Draw into a file; its suffix (`.png`, `.jpg`, `.pdf`, `.svg`, `.webp`) says how. Folders are made."""
        return save_drawing(self.show, path)


@dataclass(frozen=True, eq=False)
class Study:
    """Correlations over a data set.

    Attributes:
        rows: Correlations of each block's cosine with each variable, then of each variable with `p_orig`.
        collaboration: The cosines.
    """

    rows: tuple[Correlation, ...]
    collaboration: Collaboration

    def __repr__(self) -> str:
        return f"Study({len(self.rows)} correlations of {len(self.collaboration)} samples)"

    def table(self) -> str:
        """The rows as a Markdown table."""
        percent = f"{100 * self.rows[0].level:g} %"
        lines = [f"| of | with | r | {percent} interval | r² | p-value | N |", "|---|---|---|---|---|---|---|"]
        for row in self.rows:
            chance = "< 0.0001" if row.p_value < 1e-4 else f"{row.p_value:.4f}"
            interval = f"{row.low:.3f} to {row.high:.3f}"
            cells = (row.first, row.second, f"{row.coefficient:.3f}", interval, f"{row.squared:.3f}", chance, row.count)
            lines.append(f"| {' | '.join(map(str, cells))} |")
        return "\n".join(lines)

    def show(self) -> Any:
        """Draw each block's coefficients with their intervals as a matplotlib figure; notebooks display it."""
        from mhex.viz import forest_figure

        rows = [row for row in self.rows if row.first in self.collaboration.blocks]
        note = (
            f"Pearson's r over {rows[0].count} samples with {100 * rows[0].level:g} % intervals (Fisher's z), not "
            f"corrected for their number, {len(rows)}."
        )
        return forest_figure([(r.first, r.second, r.coefficient, r.low, r.high) for r in rows], note)

    def save(self, path: str | PathLike[str]) -> Path:
        """Draw into a file; its suffix (`.png`, `.jpg`, `.pdf`, `.svg`, `.webp`) says how. Folders are made."""
        return save_drawing(self.show, path)


def save_drawing(draw: Callable[[], Any], path: str | PathLike[str]) -> Path:
    """Write the matplotlib figure that `draw` gives, in a folder that is made where there is none."""
    from mhex.viz import save_figure

    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArgumentError(
            f"Expected a path in a folder that can be made, but {path.parent} cannot: {error.strerror or error}; "
            "choose another path."
        ) from error
    return save_figure(draw(), path)


def measure_collaboration(
    model: nn.Module, inputs: Any, labels: Tensor | None = None, chunk: int = 32, progress: bool = False
) -> Collaboration:
    """The cosines of `Scaffold.collaboration`."""
    heads = checked_heads(model)
    check_count("chunk", chunk)
    with watched(model, nudge=True, graph=True) as run:
        batches = labelled_pieces(inputs, labels, heads.settings.check_labels, chunk, progress)
        parts = [measure(run, heads, batch, truth) for batch, truth in batches]
    if not parts:
        raise ArgumentError("Expected at least one sample, but the loader gave no batch.")
    names = ("cosine", "labels", "p_orig", "losses")
    columns: dict[str, Any] = {name: torch.cat([getattr(part, name) for part in parts]) for name in names}
    return replace(parts[0], **columns)


def checked_heads(model: nn.Module) -> Heads:
    """The heads of a model, or an ArgumentError if no gate and head share a matrix, or there are no two blocks."""
    heads = required_heads(model)
    settings = heads.settings
    if settings.coupling != "shared":
        why = "has no gate" if settings.coupling == "head_only" else "gives gate and head a matrix each"
        raise ArgumentError(
            f"Expected gates and heads that share a matrix, but coupling={settings.coupling!r} {why}, so they cannot "
            "pull it together or apart; attach with coupling='shared'."
        )
    if len(settings.junctions) < 2:
        raise ArgumentError(
            f"Expected at least two blocks, but there is only {settings.junctions[0]}: a gate is judged by the head "
            "after it; attach to more connections, for instance where='all'."
        )
    if any(block.w2 is None for block in heads.named_blocks().values()):
        raise CaptureError("The heads were stripped, so they have no loss; attach them again.")
    return heads


def measure(run: Callable[[Any], Call], heads: Heads, inputs: Any, labels: Tensor) -> Collaboration:
    """Cosines of one batch: one forward pass, and one pass backwards in pieces, each from a head to the gate before.

    Args:
        run: From `watched(model, nudge=True, graph=True)`.
        heads: The heads of that model.
        inputs: What the model takes.
        labels: From `check_labels`.
    """
    call = run(inputs)
    names = tuple(call.logits)
    binary = heads.settings.multi_label or heads.settings.num_classes == 1
    scores = {name: full(y.detach()) for name, y in call.logits.items()}
    labels = labels.to(scores[names[0]].device)
    errors = {name: _error_direction(y, labels, binary) for name, y in scores.items()}
    columns = []
    for name, successor in pairwise(names):
        w2 = cast(nn.Linear, heads[name].w2)  # stripped heads were refused
        supervision = errors[name] @ full(w2.weight.detach()).to(errors[name])  # delta_DS up to a factor, (B, C)
        gate = _gate_pull(call, name, successor, errors[successor])  # delta_AG, likewise
        active = call.blocks[name].features.detach().any(1)
        columns.append(torch.where(active, _cosine(gate, supervision), 0.0))
    return Collaboration(
        cosine=torch.stack(columns, 1),
        blocks=names[:-1],
        heads=names,
        labels=labels,
        p_orig=_true_probability(full(HeadReading(call, heads).logits.detach()), labels, binary),
        losses=torch.stack([_loss(y, labels, binary) for y in scores.values()], 1),
    )


def _error_direction(logits: Tensor, labels: Tensor, binary: bool) -> Tensor:
    """Gradient of each sample's cross-entropy by its class scores, times a positive factor for each sample, (B, n).

    With class numbers it is not zero even where the head is so certain that its loss is.
    """
    target = labels.to(logits.dtype)
    if binary:
        return (1 - target) * logits.sigmoid() - target * (-logits).sigmoid()
    if labels.dim() == 2:
        return logits.softmax(1) * target.sum(1, keepdim=True) - target
    # softmax - one_hot is (1 - p) times this; computed as such, it would lose its digits as p comes near 1.
    rivals = logits.scatter(1, labels[:, None], -torch.inf).softmax(1)
    return rivals.scatter(1, labels[:, None], -1.0)


def _true_probability(logits: Tensor, labels: Tensor, binary: bool) -> Tensor:
    """Probability of the true class, (B,); of several labels the mean probability of the right answer."""
    target = labels.to(logits.dtype)
    if binary:
        return (target * logits.sigmoid() + (1 - target) * (-logits).sigmoid()).mean(1)
    if labels.dim() == 2:
        return (logits.softmax(1) * target).sum(1)
    return logits.softmax(1).gather(1, labels[:, None])[:, 0]


def _gate_pull(call: Call, name: str, successor: str, error: Tensor) -> Tensor:
    """Gradient of the successor's loss by `u` of a block, (B, C), each sample's times a positive factor."""
    scores = call.logits[successor]
    (gradient,) = torch.autograd.grad(
        scores, call.nudges[name], _unit(error).to(scores.dtype), retain_graph=True, allow_unused=True
    )
    if gradient is None:
        raise CaptureError(
            f"The head of {successor} does not see the gate of {name}, which runs just before it: they lie on parallel "
            "paths. Attach to connections that follow each other, with where=[...]."
        )
    return gradient


def _cosine(a: Tensor, b: Tensor) -> Tensor:
    """Cosine of each row, (B,); 0 where one of them is zero."""
    a, b = _unit(a), _unit(b)
    lengths = a.norm(dim=1) * b.norm(dim=1)
    return torch.where(lengths == 0, 0.0, (a * b).sum(1) / lengths).clamp(-1, 1)


def _unit(rows: Tensor) -> Tensor:
    """Rows divided by their largest entry, so that no square of theirs is lost; zero rows stay."""
    largest = rows.abs().amax(1, keepdim=True)
    return torch.where(largest == 0, rows, rows / largest)


def _loss(logits: Tensor, labels: Tensor, binary: bool) -> Tensor:
    """Loss of each sample, (B,)."""
    if binary:
        return F.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype), reduction="none").mean(1)
    target = labels if labels.dim() == 1 else labels.to(logits.dtype)
    return F.cross_entropy(logits, target, reduction="none")


def pearson(x: Values, y: Values, level: float = 0.95, names: tuple[str, str] = ("x", "y")) -> Correlation:
    """Pearson's correlation with its p-value and confidence interval.

    For fewer than three values, or where one variable does not vary, there is none: NaN, and a warning.

    Args:
        x: One value per sample, (N,).
        y: Another, (N,).
        level: Confidence of the interval, between 0 and 1.
        names: What the two are called.

    Example:
        >>> from mhex.heads import pearson
        >>> round(pearson([1.0, 2.0, 3.0, 4.0], [1.0, 3.0, 2.0, 4.0]).coefficient, 3)
        0.8
    """
    row, why = correlate(x, y, level, names)
    if why is not None:
        warn(f"There is no correlation of {names[0]} and {names[1]}: {why}.")
    return row


def study(seen: Collaboration, against: Mapping[str, Values] | None = None, level: float = 0.95) -> Study:
    """Correlations of each block's cosine with the confidence of the model and with values of the user's.

    Args:
        seen: From `Scaffold.collaboration`.
        against: Values (N,) by name, in the order of the samples: how much an explanation drops, for instance.
        level: Confidence of the intervals.
    """
    if against is not None and not isinstance(against, Mapping):
        raise ArgumentTypeError(
            f"Expected against= to give values (N,) a name, for instance {{'SAD': drops}}, but got "
            f"{type(against).__name__}."
        )
    variables = dict(against or {})
    if reserved := {CONFIDENCE, *seen.blocks} & variables.keys():
        raise ArgumentError(f"Expected other names in against= than {', '.join(sorted(reserved))}, which are taken.")
    cosines = dict(zip(seen.blocks, seen.cosine.unbind(1), strict=True))
    pairs: list[tuple[str, Values, str, Values]] = [
        (block, cosine, name, values)
        for name, values in {CONFIDENCE: seen.p_orig, **variables}.items()
        for block, cosine in cosines.items()
    ]
    pairs += [(name, values, CONFIDENCE, seen.p_orig) for name, values in variables.items()]
    results = [correlate(x, y, level, (first, second)) for first, x, second, y in pairs]
    reasons = [why for _, why in results if why is not None]
    if reasons:
        warn(
            f"{len(reasons)} of {len(results)} correlations do not exist and are NaN: "
            f"{'; '.join(dict.fromkeys(reasons))}."
        )
    return Study(tuple(row for row, _ in results), seen)


def collaboration_study(
    model: nn.Module,
    loader: Any,
    against: Mapping[str, Values] | None = None,
    level: float = 0.95,
    chunk: int = 32,
    progress: bool = False,
) -> Study:
    """The correlations of `Scaffold.collaboration_study`."""
    if against and isinstance(getattr(loader, "sampler", None), RandomSampler):
        raise ArgumentError(
            "The loader shuffles, so the values in against= would meet other samples than their own; use shuffle=False."
        )
    return study(measure_collaboration(model, loader, None, chunk, progress), against, level)
