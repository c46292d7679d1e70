"""How often each head is right."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from mhex._progress import track
from mhex.errors import ArgumentError
from mhex.heads.batches import labelled, loader_of
from mhex.heads.fitting.linear import Options
from mhex.heads.fitting.rows import label_rows
from mhex.heads.fitting.scoring import right_answers
from mhex.heads.heads import Heads
from mhex.heads.passes import watched
from mhex.heads.reading import Reading


def head_accuracy(
    model: nn.Module, heads: Heads, data: Any, batch_size: int = 64, progress: bool = False
) -> dict[str, float]:
    """Share of right predictions of every head, by name, and last of what predicts, under the name of that source.

    Args:
        model: The host.
        heads: Its heads.
        data: A loader, or `(inputs, labels)`.
        batch_size: Where `data` is a pair of tensors.
        progress: Whether to draw a progress bar.
    """
    settings = heads.settings
    options = Options(binary=settings.multi_label or settings.num_classes == 1)
    right: dict[str, int] = {}
    answers = 0
    with watched(model) as run:
        for inputs, labels in labelled(track(loader_of(data, batch_size), "Reading data", progress)):
            if not len(labels):
                continue
            reading = Reading(run(inputs), heads)
            scores: dict[str, Tensor] = {**reading.call.logits, reading.source: reading.logits}
            y = label_rows(labels, len(reading.logits), settings.num_classes, settings.multi_label)
            for name, said in scores.items():
                right[name] = right.get(name, 0) + int(right_answers(said, y.to(said.device), options).sum())
            answers += y.numel() if options.binary else len(y)
    if not answers:
        raise ArgumentError("Expected at least one sample to judge the heads on, but the loader gave none.")
    return {name: count / answers for name, count in right.items()}
