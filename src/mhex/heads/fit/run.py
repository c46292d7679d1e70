"""Fitting all heads of a frozen model in one pass over data, and what the fit found."""

import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mhex._printable import printable
from mhex._progress import track
from mhex.errors import ArgumentError, CaptureError, some_of, unknown_name, warn
from mhex.heads.call_record import HeadReading
from mhex.heads.explainer_block import ExplainerBlock
from mhex.heads.fit.logistic import Linear, LinearFit, LogisticGatherer, Options
from mhex.heads.fit.ridge import RidgeGatherer
from mhex.heads.heads import Heads, Settings
from mhex.heads.predictors import watched
from mhex.heads.summary import as_text
from mhex.inputs.data import labelled

Method = Literal["ridge", "logistic"]
_EVERY = 5  # of so many rows of a class, one is held out


@dataclass(frozen=True)
class BlockFit:
    """The fitted head of one block."""

    name: str  # of its residual connection
    channels: int  # C
    dead: int  # channels that never vary; their weights are 0
    strength: float  # of the penalty, in units of the mean variance of the features
    chosen: bool  # whether held-out rows chose the strength
    accuracy: float  # share of right predictions (of several labels, answers) on held-out rows; NaN without any
    balanced_accuracy: float  # the same as a mean over classes
    average_precision: float | None  # for several labels, the mean over classes; otherwise None
    rank: int  # of `W_eq`, and so of `W1`
    seconds: float  # time to fit it, without the forward passes


@dataclass(frozen=True)
class FitReport:
    """The result of `Scaffold.fit`; `print` shows it as a table."""

    method: str  # "ridge" or "logistic"
    rows: int  # number of samples
    held_out: int  # how many of them chose the strength and gave the accuracies
    blocks: tuple[BlockFit, ...]  # one entry per head, first to last
    seconds: float  # time of everything, forward passes included

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain numbers and words; what is not known is None."""
        blocks = [
            {name: None if isinstance(value, float) and math.isnan(value) else value for name, value in entry.items()}
            for entry in map(asdict, self.blocks)
        ]
        return {**asdict(self), "blocks": blocks}

    def __str__(self) -> str:
        return as_text(self, 110).rstrip()

    def __rich__(self) -> Any:
        from rich.table import Table
        from rich.text import Text

        several = any(block.average_precision is not None for block in self.blocks)
        title = (
            f"{len(self.blocks)} heads by {self.method}, {self.rows} samples ({self.held_out} held out), "
            f"{self.seconds:.1f} s"
        )
        note = "Accuracies are of held-out samples; they flatter the heads if the model itself was trained on them."
        table = Table(title=title, title_justify="left", caption=note, caption_justify="left")
        table.add_column("head")
        for column in ("channels", "dead", "rank", "strength", "accuracy", "balanced", *["mAP"] * several, "seconds"):
            table.add_column(column, justify="right")
        for block in self.blocks:
            shares = [block.accuracy, block.balanced_accuracy, *[block.average_precision or math.nan] * several]
            cells = [str(block.channels), str(block.dead), str(block.rank)]
            cells += [f"{block.strength:.1e}" + ("" if block.chosen else " fixed")]
            cells += ["-" if math.isnan(share) else f"{100 * share:.1f} %" for share in shares]
            table.add_row(Text(printable(block.name)), *cells, f"{block.seconds:.2f}")
        return table


def fit_heads(
    model: nn.Module, heads: Heads, loader: Any, method: Method, options: Options, memory_gb: float, progress: bool
) -> FitReport:
    """Fit every head as `Scaffold.fit` says. Weights are written only when all heads are fitted."""
    began = time.perf_counter()
    if method not in get_args(Method):
        raise unknown_name("method of fitting", str(method), get_args(Method))
    strength = options.strength
    if strength is not None and not (isinstance(strength, (int, float)) and 0 < strength < float("inf")):
        raise ArgumentError(f"Expected strength to be a number above 0, or None to choose it, but got {strength!r}.")
    _check_gates(heads)
    gatherer, class_counts, rows, held_out = _gather(model, heads, loader, method, memory_gb, progress)
    _check_classes(class_counts, rows, options)
    fits: dict[str, tuple[LinearFit, float]] = {}
    for name in track(heads.names, "Fitting heads", progress):
        start = time.perf_counter()
        fits[name] = gatherer.fit(name, options), time.perf_counter() - start
    blocks = []
    for name, (fit, seconds) in fits.items():
        rank = _install(heads[name], fit.head, options.intercept)
        scores, y, width = fit.trial.cpu(), gatherer.held_labels(), fit.head.weight.shape[1]
        precision = mean_average_precision(scores, y) if options.binary and y.shape[1] > 1 else None
        shares = accuracy(scores, y, options), balanced_accuracy(scores, y, options), precision
        blocks.append(
            BlockFit(name, width, width - fit.alive, fit.strength, fit.chosen, *shares, rank=rank, seconds=seconds)
        )
    return FitReport(method, rows, held_out, tuple(blocks), time.perf_counter() - began)


def head_accuracy(model: nn.Module, heads: Heads, loader: Any, progress: bool) -> dict[str, float]:
    """The shares of `Scaffold.head_accuracy`."""
    options = Options(heads.settings.binary)
    right: dict[str, int] = {}
    answers = 0
    with watched(model) as run:
        for inputs, labels in labelled(track(loader, "Reading data", progress)):
            if not len(labels):
                continue
            reading = HeadReading(run(inputs), heads)
            scores: dict[str, Tensor] = {**reading.call.logits, reading.source: reading.logits}
            y = label_rows(labels, len(reading.logits), heads.settings)
            for name, logits in scores.items():
                right[name] = right.get(name, 0) + int(right_answers(logits, y.to(logits.device), options).sum())
            answers += y.numel() if options.binary else len(y)
    if not answers:
        raise ArgumentError("Expected at least one sample to judge the heads on, but the loader gave none.")
    return {name: count / answers for name, count in right.items()}


def _install(block: ExplainerBlock, head: Linear, intercept: bool) -> int:
    """Write a head into a block whose gate is 1 whatever `W1` is, and give the rank of its matrix.

    With shared matrices the product `W2 W1` becomes the head's; where gate and head have their own, `W2` does. The
    factors are equally large, and all but the first rows of `W1` and columns of `W2`, as many as the rank, are 0.
    """
    u, s, vh = torch.linalg.svd(head.weight, full_matrices=False)
    rank = int((s > 1e-12 * s.amax()).sum())  # the rest is rounding: scores of classes that sum to 0, say
    root = s[:rank].sqrt()
    w2 = cast(nn.Linear, block.w2).weight  # stripped heads are refused before data is read
    with torch.no_grad():
        if block.coupling == "shared" and block.w1 is not None:
            block.w1.weight.zero_()[:rank] = (root[:, None] * vh[:rank]).to(w2)
            w2.zero_()[:, :rank] = (u[:, :rank] * root).to(w2)
        else:
            w2.copy_(head.weight)
        block.intercept = head.bias.to(w2.device, w2.dtype) if intercept else None
    return rank


def _check_gates(heads: Heads) -> None:
    heads.check_whole("they cannot be fitted")
    for name, block in heads.named_blocks().items():
        # Gates of preset "identity" are 1 as long as W1 is 0, and with matrices of its own the head leaves W1 alone.
        idle = block.coupling == "separate" and block.kappa == 2 and block.gate_state() != "active"
        if block.gate_state() not in ("none", "off") and not idle:
            raise ArgumentError(
                f"The gate of {name} follows W1 with the strength {float(block.strength):g}, so fitting the heads "
                "would change predictions: attach new ones with preset='probe' (or coupling='head_only')."
            )


def _gather(
    model: nn.Module, heads: Heads, loader: Any, method: Method, memory_gb: float, progress: bool
) -> tuple[RidgeGatherer | LogisticGatherer, Tensor, int, int]:
    """Run the model over the data once; what was gathered, the sum of the labels (n,), rows, held-out rows."""
    settings = heads.settings
    widths = dict(zip(settings.junctions, settings.channels, strict=True))
    gatherer: RidgeGatherer | LogisticGatherer | None = None
    split, rows, held_count = Split(), 0, 0
    class_counts = torch.zeros(settings.num_classes, dtype=torch.float64)
    with watched(model) as run:
        for inputs, labels in labelled(track(loader, "Reading data", progress)):
            if not len(labels):
                continue
            features = {name: block.features.detach() for name, block in run(inputs).blocks.items()}
            _check_features(features, widths)
            first = features[settings.junctions[0]]
            y = label_rows(labels, len(first), settings).cpu()
            held_out = split(y)
            if gatherer is None and method == "ridge":
                gatherer = RidgeGatherer(widths, settings.num_classes, first.device)
            elif gatherer is None:
                expected = len(loader) * len(y) if hasattr(loader, "__len__") and len(loader) > 1 else None
                gatherer = LogisticGatherer(widths, first.device, memory_gb, expected)
            gatherer.add(features, y, held_out)
            class_counts += y.sum(0)
            rows, held_count = rows + len(y), held_count + int(held_out.sum())
    if gatherer is None:
        raise ArgumentError("Expected at least one sample to fit the heads on, but the loader gave none.")
    return gatherer, class_counts, rows, held_count


def _check_features(features: Mapping[str, Tensor], names: Iterable[str]) -> None:
    if missing := [name for name in names if name not in features]:
        raise CaptureError(f"The forward pass did not run {missing[0]}, so its head cannot be fitted.")
    finite = torch.stack([torch.isfinite(features[name]).all() for name in names]).tolist()
    if broken := [name for name, is_finite in zip(names, finite, strict=True) if not is_finite]:
        words = f"The features at {broken[0]} are NaN or infinite"
        raise CaptureError(f"{words}: check the inputs for NaN, and run a half-precision model in float32.")


def _check_classes(counts: Tensor, rows: int, options: Options) -> None:
    present = (counts > 0) & (counts < rows) if options.binary else counts > 0
    if int(present.sum()) < (1 if options.binary else 2):
        words = f"Expected several classes, but the labels of all {rows} samples are alike"
        raise ArgumentError(f"{words}; shuffle the data if the loader gives one class at a time.")
    if missing := (~present).nonzero()[:, 0].tolist():
        words = f"{len(missing)} of {len(counts)} classes have no samples to learn from ({some_of(missing, 10)})"
        warn(f"{words}; their weights are 0.")


class Split:
    """Decides row by row, from the labels alone: independent of batches, the same in every run.

    Of every class the second of each five rows is held out, so the first row of a class always trains and two rows
    per class are enough to hold something out. A row with several labels belongs to the one that was rarest so far.
    """

    def __init__(self) -> None:
        self.seen: Counter[int] = Counter()

    def __call__(self, y: Tensor) -> Tensor:
        """Which rows are held out, bool (B,), of labels from 0 to 1 or class probabilities `y`, (B, n)."""
        classes: list[list[int]] = [[] for _ in range(len(y))]
        for row, column in (y > 0.5).nonzero().tolist():
            classes[row].append(column)
        held_out = []
        for labels in classes:
            labels = labels or [-1]
            rarest = min(labels, key=lambda c: (self.seen[c], c))
            held_out.append(self.seen[rarest] % _EVERY == 1)
            self.seen.update(labels)
        return torch.tensor(held_out, dtype=torch.bool, device=y.device)


def label_rows(labels: Tensor, batch: int, settings: Settings) -> Tensor:
    """Labels as `Scaffold.loss` takes them, as numbers from 0 to 1, (B, n), float64."""
    labels = settings.check_labels(labels, batch)  # which refuses NaN too
    if labels.dim() == 1:
        return F.one_hot(labels.long(), settings.num_classes).double()
    y = labels.double()
    if not settings.binary and bool(((y.sum(1) - 1).abs() > 1e-3).any()):
        raise ArgumentError("Expected rows of labels that sum to 1; for several classes attach with multi_label=True.")
    return y


def accuracy(scores: Tensor, y: Tensor, options: Options) -> float:
    """Share of right predictions; of yes-or-no classes, share of right answers. NaN without rows."""
    return float(right_answers(scores, y, options).double().mean())


def balanced_accuracy(scores: Tensor, y: Tensor, options: Options) -> float:
    """Mean over the classes that occur of the share of their rows that is found; of yes-or-no classes, over both."""
    right = right_answers(scores, y, options).double()
    if options.binary:
        truth = (y > 0.5).double()
        hits, refusals = (right * truth).sum(0) / truth.sum(0), (right * (1 - truth)).sum(0) / (1 - truth).sum(0)
        return float(torch.stack([hits, refusals]).nanmean())
    truth = F.one_hot(y.argmax(1), y.shape[1]).double()
    return float(((truth.T @ right) / truth.sum(0)).nanmean())


def mean_average_precision(scores: Tensor, y: Tensor) -> float:
    """Mean over the classes that occur of the average precision of their scores. NaN if none occurs."""
    from torchmetrics.functional.classification import binary_average_precision

    truth = (y > 0.5).long()
    present = truth.sum(0).nonzero()[:, 0].tolist()
    return float(torch.tensor([float(binary_average_precision(scores[:, k], truth[:, k])) for k in present]).mean())


def right_answers(scores: Tensor, y: Tensor, options: Options) -> Tensor:
    """Which predictions from scores (N, n) are right for labels (N, n): bool (N,), or (N, n) of yes-or-no classes."""
    return (scores > 0) == (y > 0.5) if options.binary else scores.argmax(1) == y.argmax(1)
