"""Fitting all heads of a frozen model in one pass over data."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor, nn

from mhex._progress import track
from mhex.errors import ArgumentError, CaptureError, MhexWarning, some_of, unknown_name
from mhex.heads.block import Block
from mhex.heads.fit.linear import Linear, Options, Outcome, accuracy, balanced_accuracy, factors, mean_average_precision
from mhex.heads.fit.report import BlockFit, FitReport
from mhex.heads.fit.rows import Gatherer, LogisticGatherer, RidgeGatherer, Split, label_rows
from mhex.heads.heads import Heads
from mhex.heads.predictors import watched
from mhex.inputs.data import labelled, loader_of

Method = Literal["ridge", "logistic"]


def fit_heads(
    model: nn.Module,
    heads: Heads,
    data: Any,
    method: Method = "ridge",
    *,
    intercept: bool | None = None,
    balance: bool = True,
    strength: float | None = None,
    batch_size: int = 64,
    memory_gb: float = 4.0,
    progress: bool = False,
) -> FitReport:
    """Fit every head; `Scaffold.fit` says how. Weights are written only when all heads are fitted.

    Args:
        model: The host.
        heads: Its heads.
        data: A loader, or `(inputs, labels)`.
        method: `"ridge"` or `"logistic"`.
        intercept: Whether heads have one; None: if they answer yes or no.
        balance: Whether every class counts the same.
        strength: Of the penalty; None to choose.
        batch_size: Where `data` is a pair of tensors.
        memory_gb: How much `"logistic"` may store.
        progress: Whether to draw progress bars.
    """
    began = time.perf_counter()
    if method not in get_args(Method):
        raise unknown_name("method of fitting", str(method), get_args(Method))
    if strength is not None and not (isinstance(strength, (int, float)) and 0 < strength < float("inf")):
        raise ArgumentError(f"Expected strength to be a number above 0, or None to choose it, but got {strength!r}.")
    _check_gates(heads)
    settings = heads.settings
    binary = settings.multi_label or settings.num_classes == 1
    options = Options(binary, binary if intercept is None else intercept, balance, strength)
    gatherer, seen, rows, held_out = _gather(model, heads, loader_of(data, batch_size), method, memory_gb, progress)
    _check_classes(seen, rows, options)
    fitted: dict[str, tuple[Outcome, float]] = {}
    for name in track(heads.names, "Fitting heads", progress):
        start = time.perf_counter()
        fitted[name] = gatherer.fit(name, options), time.perf_counter() - start
    blocks = []
    for name, (outcome, seconds) in fitted.items():
        rank = install(heads[name], outcome.head, options.intercept)
        blocks.append(_entry(name, outcome, gatherer.held_labels(), options, rank, seconds))
    return FitReport(method, rows, held_out, tuple(blocks), time.perf_counter() - began)


def install(block: Block, head: Linear, intercept: bool) -> int:
    """Write a head into a block; gives the rank of its matrix.

    With shared matrices the product `W2 W1` becomes the head's; where gate and head have their own, `W2` does.

    Args:
        block: Of a network whose gates are 1 whatever `W1` is.
        head: The class scores.
        intercept: Whether to keep the head's intercept beside it.
    """
    matrix = block.w2
    assert matrix is not None  # stripped heads are refused before data is read
    w2, w1, rank = factors(head.weight)
    with torch.no_grad():
        if block.coupling == "shared" and block.w1 is not None:
            block.w1.weight.copy_(w1)
            matrix.weight.copy_(w2)
        else:
            matrix.weight.copy_(head.weight)
        block.intercept = head.bias.to(matrix.weight.device, matrix.weight.dtype) if intercept else None
    return rank


def _check_gates(heads: Heads) -> None:
    for name, block in heads.named_blocks().items():
        if block.w2 is None:
            raise ArgumentError("The heads were stripped, so there is nothing to fit; attach them again.")
        free = block.w1 is None or not float(block.strength)
        # Gates of preset "identity" are 1 as long as W1 is 0, and with matrices of its own the head leaves W1 alone.
        idle = block.coupling == "separate" and block.kappa == 2 and block.w1 is not None
        if not free and not (idle and not bool(cast(nn.Linear, block.w1).weight.any())):
            way = (
                f"its strength was set to {float(block.strength):g}, which preset='probe' never does; attach new heads."
                if block.fixed
                else "attach them with preset='probe' (or coupling='head_only')."
            )
            raise ArgumentError(
                f"The gate of {name} follows W1, so fitting the heads would change the model's predictions: {way}"
            )


def _gather(
    model: nn.Module, heads: Heads, loader: Any, method: Method, memory_gb: float, progress: bool
) -> tuple[Gatherer, Tensor, int, int]:
    """Run the model over the data once; what was gathered, the sum of the labels (n,), rows, held-out rows."""
    settings = heads.settings
    widths = dict(zip(settings.junctions, settings.channels, strict=True))
    split, gatherer, rows, held_out = Split(), None, 0, 0
    seen = torch.zeros(settings.num_classes, dtype=torch.float64)
    with watched(model) as run:
        for inputs, labels in labelled(track(loader, "Reading data", progress)):
            if not len(labels):
                continue
            call = run(inputs)
            features = {name: block.features.detach() for name, block in call.blocks.items()}
            _check_features(features, settings.junctions)
            y = label_rows(labels, len(features[settings.junctions[0]]), settings.num_classes, settings.multi_label)
            y = y.cpu()
            held = split(y)
            if gatherer is None:
                device = features[settings.junctions[0]].device
                expected = len(loader) * len(y) if hasattr(loader, "__len__") and len(loader) > 1 else None
                gatherer = _gatherer(method, widths, settings.num_classes, device, memory_gb, expected)
            gatherer.add(features, y, held)
            seen += y.sum(0)
            rows, held_out = rows + len(y), held_out + int(held.sum())
    if gatherer is None:
        raise ArgumentError("Expected at least one sample to fit the heads on, but the loader gave none.")
    return gatherer, seen, rows, held_out


def _gatherer(
    method: Method, widths: dict[str, int], classes: int, device: torch.device, memory_gb: float, expected: int | None
) -> Gatherer:
    if method == "ridge":
        return RidgeGatherer(widths, classes, device)
    return LogisticGatherer(widths, device, memory_gb, expected)


def _check_features(features: dict[str, Tensor], names: Sequence[str]) -> None:
    if missing := [name for name in names if name not in features]:
        raise CaptureError(f"The forward pass did not run {missing[0]}, so its head cannot be fitted.")
    finite = torch.stack([torch.isfinite(features[name]).all() for name in names]).tolist()
    if not all(finite):
        raise CaptureError(
            f"The features at {names[finite.index(False)]} are NaN or infinite: check the inputs for NaN, and run a "
            "half-precision model in float32."
        )


def _check_classes(seen: Tensor, rows: int, options: Options) -> None:
    some = seen > 0
    if options.binary:
        some &= seen < rows
        if not bool(some.any()):
            raise ArgumentError(
                f"Expected samples with and without some class, but the labels of all {rows} samples are alike; "
                "nothing can be learnt from them."
            )
    elif int(some.sum()) < 2:
        raise ArgumentError(
            f"Expected samples of at least two classes, but all {rows} are of class {int(seen.argmax())}; shuffle the "
            "data if the loader gives one class at a time."
        )
    if missing := (~some).nonzero()[:, 0].tolist():
        warnings.warn(
            f"{len(missing)} of {len(seen)} classes have no samples to learn from ({some_of(missing, 10)}); their "
            "weights are 0.",
            MhexWarning,
            stacklevel=4,
        )


def _entry(name: str, outcome: Outcome, y: Tensor, options: Options, rank: int, seconds: float) -> BlockFit:
    scores = outcome.trial.cpu()
    precision = mean_average_precision(scores, y) if options.binary and y.shape[1] > 1 else None
    return BlockFit(
        name,
        outcome.head.weight.shape[1],
        outcome.head.weight.shape[1] - outcome.alive,
        outcome.strength,
        outcome.chosen,
        accuracy(scores, y, options),
        balanced_accuracy(scores, y, options),
        precision,
        rank,
        seconds,
    )
