"""Do the gate and the head of a block pull their shared matrix the same way?

Of a block, `u = W1 h` feeds both. The loss of its own head pulls `W1` by `delta_DS h^T`; the loss of the next head,
which `W1` reaches only through the gate, by `delta_AG h^T`. The cosine of these matrices is that of the two vectors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mhex.errors import ArgumentError, CaptureError
from mhex.heads.batches import in_chunks
from mhex.heads.block import widened
from mhex.heads.calls import Call
from mhex.heads.drawing import save_drawing
from mhex.heads.heads import Heads, required_heads
from mhex.heads.passes import watched
from mhex.heads.reading import Reading

Run = Callable[[Any], Call]


@dataclass(frozen=True, eq=False)
class Collaboration:
    """How gates and heads of N samples pulled.

    Attributes:
        cosine: From -1 (against each other) to 1 (the same way), (N, L - 1): the last block has no successor. 0 where
            one of the two does not pull at all: the gate is fixed, the next head is untrained, or no channel is active.
        blocks: Names of the L - 1 blocks, in the order in which they run.
        heads: Names of all L heads.
        labels: As given: class numbers (N,) or targets (N, n).
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


def collaboration(
    model: nn.Module, inputs: Any, labels: Tensor | None = None, chunk: int = 32, progress: bool = False
) -> Collaboration:
    """See `Scaffold.collaboration`."""
    heads = checked_heads(model)
    parts = []
    with watched(model, nudge=True, graph=True) as run:
        for batch, truth in in_chunks(heads.settings, inputs, labels, chunk, progress):
            parts.append(measure(run, heads, batch, truth))
    if not parts:
        raise ArgumentError("Expected at least one sample, but the loader gave no batch.")
    return Collaboration(
        torch.cat([part.cosine for part in parts]),
        parts[0].blocks,
        parts[0].heads,
        torch.cat([part.labels for part in parts]),
        torch.cat([part.p_orig for part in parts]),
        torch.cat([part.losses for part in parts]),
    )


def checked_heads(model: nn.Module) -> Heads:
    """The heads of a model, if gate and head share a matrix and there are two of them.

    Raises:
        ArgumentError: If there is nothing to compare; the message says why.
    """
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


def measure(run: Run, heads: Heads, inputs: Any, labels: Tensor) -> Collaboration:
    """Cosines of one batch: one forward pass, and one pass backwards in pieces, each from a head to the gate before.

    Args:
        run: From `watched(model, nudge=True, graph=True)`.
        heads: Of that model.
        inputs: What the model takes.
        labels: From `check_labels`.
    """
    call = run(inputs)
    names = tuple(call.logits)
    binary = heads.settings.multi_label or heads.settings.num_classes == 1
    scores = {name: widened(y.detach()) for name, y in call.logits.items()}
    labels = labels.to(scores[names[0]].device)
    errors = {name: error_direction(y, labels, binary) for name, y in scores.items()}
    columns = []
    for name, successor in pairwise(names):
        w2 = heads[name].w2
        assert w2 is not None  # of a stripped block, which was refused
        supervision = errors[name] @ widened(w2.weight.detach()).to(
            errors[name].dtype
        )  # delta_DS up to a factor, (B, C)
        gate = _gate_pull(call, name, successor, errors[successor])  # delta_AG, likewise
        active = call.blocks[name].features.detach().any(1)
        columns.append(torch.where(active, _cosine(gate, supervision), 0.0))
    return Collaboration(
        cosine=torch.stack(columns, 1),
        blocks=names[:-1],
        heads=names,
        labels=labels,
        p_orig=true_probability(widened(Reading(call, heads).logits.detach()), labels, binary),
        losses=torch.stack([_loss(y, labels, binary) for y in scores.values()], 1),
    )


def error_direction(logits: Tensor, labels: Tensor, binary: bool) -> Tensor:
    """Gradient of each sample's cross-entropy by its class scores, times a positive factor for each sample, (B, n).

    With class numbers it is not zero even where the head is so certain that its loss is.

    Args:
        logits: (B, n), at least float32.
        labels: From `check_labels`.
        binary: Whether each class has a loss of its own; their sum is differentiated.
    """
    if binary:
        target = labels.to(logits.dtype)
        return (1 - target) * logits.sigmoid() - target * (-logits).sigmoid()
    if labels.dim() == 2:
        target = labels.to(logits.dtype)
        return logits.softmax(1) * target.sum(1, keepdim=True) - target
    # softmax - one_hot is (1 - p) times this; computed as such, it would lose its digits as p comes near 1.
    others = logits.scatter(1, labels[:, None], -torch.inf).softmax(1)
    return others.scatter(1, labels[:, None], -1.0)


def true_probability(logits: Tensor, labels: Tensor, binary: bool) -> Tensor:
    """Probability of the true class, (B,); of several labels the mean probability of the right answer."""
    if binary:
        target = labels.to(logits.dtype)
        return (target * logits.sigmoid() + (1 - target) * (-logits).sigmoid()).mean(1)
    chance = logits.softmax(1)
    if labels.dim() == 2:
        return (chance * labels.to(logits.dtype)).sum(1)
    return chance.gather(1, labels[:, None])[:, 0]


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
