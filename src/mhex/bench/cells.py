"""What follows from the numbers of one metric: values of images, what is compared, and cells of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from mhex.bench.controls import is_control
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
    name: str,
    made: PerImage,
    numbers: Numbers,
    there: Mapping[str, Tensor],
    resamples: int,
    confidence: float,
    seed: int,
    outputs: int,
) -> list[Cell]:
    """A cell for each of the first outputs of a metric and each method.

    Args:
        name: Of the metric in the report.
        made: The metric.
        numbers: Of the methods.
        there: Whether each method was judged on each image, bool (n,).
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
    apart = not _on_the_same_images(there)
    for k, verdict in enumerate(_verdicts(made, numbers, outputs)):
        if verdict is not None and apart:
            verdict = replace(verdict, best=frozenset(), apart=True)
        for method, rows in numbers.items():
            n = int(rows.isfinite().all(1).sum())
            value, low, high, sizes = *found[method][:, k].tolist(), (n, int(there[method].sum()) - n)
            of, up, skips = made.outputs[k], made.better[k], made.skips
            cells.append(Cell(method, name, of, value, low, high, *sizes, up, verdict, skips, made.hits))
    return cells


def _on_the_same_images(there: Mapping[str, Tensor]) -> bool:
    """Whether all methods were judged on the same images; control maps may have others."""
    judged = [images for name, images in there.items() if not is_control(name)]
    return all(torch.equal(images, judged[0]) for images in judged)


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
