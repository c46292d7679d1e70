"""What a fit found, block by block."""

from __future__ import annotations

import io
import math
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor, nn

from mhex._printable import printable
from mhex._progress import track
from mhex.errors import ArgumentError
from mhex.heads.call_record import Reading
from mhex.heads.fit.linear import Options, right_answers
from mhex.heads.fit.rows import label_rows
from mhex.heads.heads import Heads
from mhex.heads.predictors import watched
from mhex.inputs.data import labelled, loader_of


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


@dataclass(frozen=True)
class BlockFit:
    """The fitted head of one block.

    Attributes:
        name: Of its residual connection.
        channels: C.
        dead: Channels that never vary; their weights are 0.
        strength: Of the penalty, in units of the mean variance of the features.
        chosen: Whether held-out rows chose the strength.
        accuracy: Share of right predictions on held-out rows, by a head that has not seen them; of several labels,
            share of right answers. NaN if nothing was held out.
        balanced_accuracy: The same as a mean over classes.
        average_precision: For several labels, the mean over classes of the average precision; otherwise None.
        rank: Of `W_eq`, and so of `W1`.
        seconds: Time to fit it, without the forward passes.
    """

    name: str
    channels: int
    dead: int
    strength: float
    chosen: bool
    accuracy: float
    balanced_accuracy: float
    average_precision: float | None
    rank: int
    seconds: float


@dataclass(frozen=True)
class FitReport:
    """What `Scaffold.fit` found; `print` shows it as a table.

    Attributes:
        method: `"ridge"` or `"logistic"`.
        rows: Number of samples.
        held_out: How many of them chose the strength and gave the accuracies.
        blocks: One entry per head, first to last.
        seconds: Of everything, forward passes included.
    """

    method: str
    rows: int
    held_out: int
    blocks: tuple[BlockFit, ...]
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain numbers and words; what is not known is None."""
        return {name: _plain(value) for name, value in asdict(self).items()}

    def __str__(self) -> str:
        from rich.console import Console

        out = io.StringIO()
        Console(file=out, width=110).print(self._table())
        return out.getvalue().rstrip()

    def __rich__(self) -> Any:
        return self._table()

    def _table(self) -> Any:
        from rich.table import Table
        from rich.text import Text

        several = any(block.average_precision is not None for block in self.blocks)
        title = (
            f"{len(self.blocks)} heads by {self.method}, {self.rows} samples ({self.held_out} held out), "
            f"{self.seconds:.1f} s"
        )
        note = "Accuracies are of held-out samples; they flatter the heads if the model itself was trained on them."
        table = Table(title=title, title_justify="left", caption=note, caption_justify="left")
        columns = ["channels", "dead", "rank", "strength", "accuracy", "balanced"] + ["mAP"] * several + ["seconds"]
        table.add_column("head")
        for column in columns:
            table.add_column(column, justify="right")
        for block in self.blocks:
            cells = [str(block.channels), str(block.dead), str(block.rank)]
            cells += [f"{block.strength:.1e}" + ("" if block.chosen else " fixed")]
            cells += [_percent(block.accuracy), _percent(block.balanced_accuracy)]
            cells += [_percent(block.average_precision or math.nan)] * several + [f"{block.seconds:.2f}"]
            table.add_row(Text(printable(block.name)), *cells)
        return table


def _percent(share: float) -> str:
    return "-" if math.isnan(share) else f"{100 * share:.1f} %"


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and math.isnan(value) else value
