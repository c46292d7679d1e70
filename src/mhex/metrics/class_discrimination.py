"""Class discrimination: does the map of a class explain that class better than the map of another one does?"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mhex._settings import check_that
from mhex.metrics import Case, PerImage, register_metric
from mhex.metrics.box_sensitivity import BoxProtocol, BoxResult, box_area, box_sensitivity
from mhex.metrics.curve import AreaProtocol
from mhex.metrics.fidelity import fidelity
from mhex.perturb import SweepResult


@dataclass(frozen=True)
class DiscriminationProtocol(AreaProtocol):
    """Protocol of curves and boxes of two classes; `sizes`, `count` and `grid` are as for `BoxProtocol`."""

    area: str = "percent"  # how areas under the logit are taken
    sizes: tuple[int, ...] | int = 8
    count: int = 100
    grid: int | None = None

    @property
    def boxes(self) -> BoxProtocol:
        """The passes of its boxes."""
        return BoxProtocol(self.reference, self.sizes, self.count, self.seed, self.sigma, grid=self.grid)

    @property
    def passes(self) -> tuple[Any, ...]:
        return (self.sweep, self.boxes)


def class_discrimination(
    first: SweepResult, second: SweepResult, boxes: BoxResult, maps: tuple[Tensor, Tensor], rule: str = "percent"
) -> Tensor:
    """Right less wrong map, for `A_LIF - A_MIF`, for the mean box correlation and for its area, (B, 3).

    The logit of a class `c` is read, once along its own map and once along that of the other class `c'`, and the same
    with both exchanged; the mean of the two is returned. NaN where an image has one class only.

    Args:
        first: Curves along maps of `c`, with `c'` as the other class.
        second: Curves along maps of `c'`, with `c` as the other class.
        boxes: Boxes on the same images.
        maps: Maps (B, h, w) of `c` and of `c'`.
        rule: How areas under the logit are taken.
    """
    classes, exchanged = first.classes[:, [0, 3]], second.classes[:, [3, 0]]
    single = (classes[:, 1] < 0) | (classes[:, 1] == classes[:, 0])
    matching = bool((classes == exchanged).all(1).logical_or(single).all())
    expectation = "curves and boxes of the same images, along maps of two classes that are exchanged"
    actual = f"the classes {classes.tolist()} and {second.classes[:, [0, 3]].tolist()}"
    check_that(first.ids == second.ids == boxes.ids and matching, expectation, actual)
    gains = []
    for right, wrong, scored, (right_map, wrong_map) in (
        (first, second, classes[:, 0], maps),
        (second, first, classes[:, 1], maps[::-1]),
    ):
        along = fidelity(right, "explained", rule)[:, 0] - fidelity(wrong, "other", rule)[:, 0]
        pair = [box_area(box_sensitivity(boxes, saliency, scored), boxes.sizes) for saliency in (right_map, wrong_map)]
        gains.append(torch.stack([along, pair[0][1] - pair[1][1], pair[0][0] - pair[1][0]], 1))
    return (sum(gains[1:], gains[0]) / 2).masked_fill(single[:, None], torch.nan)


@register_metric(
    "class-discrimination",
    function=class_discrimination,
    title="Does the map of a class explain that class better than the map of another class in the image does?",
    paper="Brocki, Binda & Chung, CDAM, 2023, arXiv:2312.02364",
    passes="4 T - 2 F for both classes; boxes as for box-sensitivity, with which they are shared",
    traps="Needs images with two classes; others are skipped. Classes whose names mean the same thing must be left out "
    "before. Maps that do not depend on the class score exactly 0.",
    modalities=("image",),
    data=("two classes",),
    presets={"default": DiscriminationProtocol(), "cdam": DiscriminationProtocol(sizes=tuple(range(1, 28)), grid=28)},
)
class ClassDiscrimination(PerImage):
    """Gain in fidelity, in mean box correlation and in its area; higher is better."""

    columns = ("fidelity", "box", "box_area")
    better = (True, True, True)
    skips = "one class only"
    protocol: DiscriminationProtocol

    def of(self, case: Case) -> tuple[Any, ...]:
        case.needs("other_class", "another class of each image (other_class=)")
        make = case.needs("other", "maps for the other class of each image (other=)")
        second: Case = case.once("other", make)
        sweep = self.protocol.sweep
        boxes = self.protocol.boxes.ask(case.subject, case.explained, case.other_class, self.protocol.radius)
        return case.sweep(sweep), second.sweep(sweep), boxes, (case.saliency, second.saliency)
