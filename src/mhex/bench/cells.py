"""What follows from the numbers of one metric: values of images, what is compared, and cells of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from mhex.bench.tables import Cell
from mhex.bench.verdicts import Verdict, verdicts
from mhex.metrics._base import PerImage
from mhex.metrics.comparison import pair_tests
from mhex.metrics.resampling import Summary, interval_of

Numbers = Mapping[str, Tensor]  # of each method, (n, J), NaN where an image has none


def per_image(made: PerImage, numbers: Numbers, output: int) -> dict[str, Tensor]:
    """The value of each image by itself, (n,), for each method; NaN where there is none."""
    # An image counts with all of its numbers or not at all, as in the table.
    counts = {name: rows.isfinite().all(1, keepdim=True) for name, rows in numbers.items()}
    whole = {name: rows.where(counts[name], torch.nan) for name, rows in numbers.items()}
    return {name: made.summary(rows[:, None, :])[..., output] for name, rows in whole.items()}


def compared(made: PerImage, numbers: Numbers, names: Sequence[str], output: int) -> tuple[Tensor, Summary | None]:
    """What is compared of M methods, (n, M) or (n, M, J), and how a value of the data set is made of it."""
    if made.additive:
        values = per_image(made, numbers, output)
        return torch.stack([values[name] for name in names], 1), None
    # Such as the ratio of sums over all images.
    table = torch.stack([numbers[name] for name in names], 1)
    return table, lambda rows: made.summary(rows)[..., output : output + 1]


def cells_of(
    name: str, made: PerImage, numbers: Numbers, resamples: int, confidence: float, seed: int, outputs: int
) -> list[Cell]:
    """A cell for each of the first outputs of a metric and each method.

    Args:
        name: Of the metric in the report.
        made: The metric.
        numbers: Of the methods.
        resamples: Of the bootstrap.
        confidence: Of the intervals.
        seed: Of the bootstrap.
        outputs: How many.
    """
    cells, found = [], {}
    for method, rows in numbers.items():
        counted = rows[rows.isfinite().all(1)]
        found[method] = torch.full((3, len(made.outputs)), torch.nan, dtype=torch.float64)
        if len(counted):
            ends = interval_of(counted, made.summary, resamples, confidence, seed, hits=made.hits)
            found[method] = torch.stack([made.summary(counted), ends.low, ends.high])
    for k, verdict in enumerate(_verdicts(made, numbers, outputs)):
        for method, rows in numbers.items():
            n = int(rows.isfinite().all(1).sum())
            value, low, high, sizes = *found[method][:, k].tolist(), (n, len(rows) - n)
            cells.append(
                Cell(method, name, made.outputs[k], value, low, high, *sizes, made.better[k], verdict, made.skips)
            )
    return cells


def _verdicts(made: PerImage, numbers: Numbers, outputs: int) -> list[Verdict | None]:
    """What is shown by each of the first outputs; None where neither side is better."""
    names = list(numbers)
    if made.additive:
        tested = [pair_tests(compared(made, numbers, names, k)[0])[0] for k in range(outputs)]
    else:  # all of them are computed at once
        tested = pair_tests(
            torch.stack(list(numbers.values()), 1), summary=lambda rows: made.summary(rows)[..., :outputs]
        )
    return [None if up is None else verdicts(names, one, up) for one, up in zip(tested, made.better, strict=False)]
