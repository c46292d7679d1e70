"""Metrics of known evidence: closed-form values, and worth measured on models whose worth is known."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import mhex
from mhex.bundle import Bundle
from mhex.errors import ArgumentError
from mhex.inputs.parts import InputParts
from mhex.inputs.preprocess import Preprocess
from mhex.metrics.truth import PartScores, TruthProtocol
from mhex.metrics.truth_auroc import truth_auroc
from mhex.metrics.truth_first import truth_first
from mhex.metrics.truth_mass import truth_mass
from mhex.metrics.truth_point import truth_point
from mhex.metrics.truth_rank import truth_rank
from mhex.metrics.truth_sign import truth_sign

SIDE, CELL = 8, 4
QUARTERS = torch.zeros(4, SIDE, SIDE, dtype=torch.bool)
for _number in range(4):
    _row, _column = divmod(_number, 2)
    QUARTERS[_number, _row * CELL : (_row + 1) * CELL, _column * CELL : (_column + 1) * CELL] = True


def part_scores(scores: list[float], parts: list[list[int]], worth: list[float]) -> PartScores:
    """One sample with scores of its units, the units of its parts, and their worth."""
    members = torch.zeros(len(parts), len(scores), dtype=torch.bool)
    for number, units in enumerate(parts):
        members[number, units] = True
    return PartScores((0,), [torch.tensor(scores).double()], [members], [torch.tensor(worth).double()])


# Six units: two parts of two units, and two units outside of all parts.
MAP, PARTS = [3.0, 1.0, 2.0, 4.0, 0.0, -2.0], [[0, 1], [2, 3]]


def test_the_part_with_the_highest_mean_is_first() -> None:
    assert truth_first(part_scores(MAP, PARTS, [1.0, 5.0])).item() == 1
    assert truth_first(part_scores(MAP, PARTS, [5.0, 1.0])).item() == 0
    assert truth_first(part_scores([1.0, 1.0, 1.0, 1.0], PARTS, [5.0, 1.0])).item() == 0.5  # equal maxima share


def test_a_part_of_half_the_largest_worth_is_evidence() -> None:
    assert truth_first(part_scores(MAP, PARTS, [4.0, 2.0])).item() == 1
    assert truth_first(part_scores(MAP, PARTS, [4.0, 1.9])).item() == 0
    assert truth_first(part_scores(MAP, PARTS, [4.0, 1.9]), least=0.4).item() == 1


def test_the_highest_score_of_the_map_is_at_the_evidence() -> None:
    assert truth_point(part_scores(MAP, PARTS, [0.0, 5.0])).item() == 1
    assert truth_point(part_scores(MAP, PARTS, [5.0, 0.0])).item() == 0
    assert truth_point(part_scores([4.0, 0, 4.0, 0, 4.0, 0], PARTS, [5.0, 0.0])).item() == pytest.approx(1 / 3)


def test_auroc_counts_pairs_of_units() -> None:
    # Of the eight pairs of units 0 and 1 with 2, 3, 4 and 5, five are in order: 3 > 2, 0, -2 and 1 > 0, -2.
    assert truth_auroc(part_scores(MAP, PARTS, [5.0, 0.0])).item() == pytest.approx(5 / 8)
    assert truth_auroc(part_scores([1.0] * 6, PARTS, [5.0, 0.0])).item() == 0.5
    assert truth_auroc(part_scores([2.0, 2.0, 1.0, 1.0], PARTS, [5.0, 0.0])).item() == 1
    assert math.isnan(truth_auroc(part_scores([2.0, 2.0, 1.0, 1.0], PARTS, [5.0, 4.0])).item())  # nothing is outside


def test_mass_is_the_share_of_absolute_scores() -> None:
    assert truth_mass(part_scores(MAP, PARTS, [0.0, 5.0])).item() == pytest.approx(6 / 12)
    assert truth_mass(part_scores([0.0] * 6, PARTS, [0.0, 5.0])).item() == 0


def test_rank_counts_pairs_of_clearly_different_worth() -> None:
    parts = [[0], [1], [2]]
    assert truth_rank(part_scores([3.0, 2.0, 1.0], parts, [9.0, 5.0, 1.0])).item() == 1
    assert truth_rank(part_scores([1.0, 2.0, 3.0], parts, [9.0, 5.0, 1.0])).item() == -1
    assert truth_rank(part_scores([3.0, 1.0, 2.0], parts, [9.0, 5.0, 1.0])).item() == pytest.approx(1 / 3)
    # The last two differ by less than a tenth of the largest, and equal scores count nothing.
    assert truth_rank(part_scores([3.0, 1.0, 3.0], parts, [9.0, 1.0, 1.5])).item() == pytest.approx(1 / 2)


def test_sign_wants_both_signs_right() -> None:
    parts = [[0], [1], [2]]
    assert truth_sign(part_scores([1.0, -1.0, 0.0], parts, [9.0, -4.0, 0.0])).item() == 1
    assert truth_sign(part_scores([1.0, 1.0, 1.0], parts, [9.0, -4.0, 0.0])).item() == 0.5
    assert truth_sign(part_scores([-1.0, 1.0, 1.0], parts, [9.0, -4.0, 0.0])).item() == 0
    assert math.isnan(truth_sign(part_scores([1.0, -1.0, 0.0], parts, [9.0, -0.5, 0.0])).item())  # nothing is against


@pytest.mark.parametrize("formula", [truth_first, truth_point, truth_auroc, truth_rank, truth_mass])
def test_a_sample_without_worth_does_not_count(formula: Any) -> None:
    for worth in ([math.nan, math.nan], [0.0, -1.0]):
        assert math.isnan(formula(part_scores(MAP, PARTS, worth)).item())


class Quarters(nn.Module):
    """Logits of images of four quarters: of class 0, `2 a + b + min(c, d)` of their means; of class 1 nothing."""

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, 2) of images (B, 3, 8, 8)."""
        means = torch.stack([images[:, :, quarter].mean((1, 2)) for quarter in QUARTERS], 1)
        total = 2 * means[:, 0] + means[:, 1] + torch.minimum(means[:, 2], means[:, 3])
        return torch.stack([total, torch.zeros_like(total)], 1)


def without(image: Tensor, numbers: tuple[int, ...]) -> Tensor:
    """An image with some of its quarters black."""
    return image.masked_fill(QUARTERS[list(numbers)].any(0), 0.0)


def items(signs: tuple[int | None, ...] | None = None, label: int = 0) -> list[dict[str, Any]]:
    """Images of ones, and one of twos, with their quarters as parts."""
    images = [torch.ones(3, SIDE, SIDE), torch.full((3, SIDE, SIDE), 2.0)]
    parts = [InputParts(QUARTERS, None, lambda n, image=image: without(image, n), signs) for image in images]
    return [{"image": image, "label": label, "parts": part} for image, part in zip(images, parts, strict=True)]


def judged(data: Any, *metrics: Any, methods: Any = ("input-x-gradient",)) -> mhex.Report:
    return mhex.evaluate(Quarters(), data, list(methods), list(metrics), controls=False)


def test_worth_is_measured_on_the_given_model() -> None:
    """Worth by removal is 2, 1, 1 and 1 of the sum 4, and by Shapley 2, 1, 1/2 and 1/2."""
    report = judged(
        items(), "truth-first", "truth-rank", "truth-rank:shapley", "truth-mass", ("truth-mass", {"least": 0.6})
    )
    values = {name: report.per_image(name)["input-x-gradient"].tolist() for name in report.metrics}
    assert values["truth-first"] == [1, 1]
    # The gradient of the minimum goes to one of the equal quarters, or is shared: 2, 1, then 1 and 0, or 1/2 and 1/2.
    assert values["truth-rank"] == [1, 1]
    assert values["truth-rank:shapley"] == [1, 1]
    assert values["truth-mass (least=0.6)"] == pytest.approx([0.5, 0.5])
    assert values["truth-mass"] == pytest.approx([1, 1])  # all parts have half the worth of the largest


def test_inputs_whose_evidence_is_not_used_are_skipped() -> None:
    right = judged(items((1, 0, 0, 0)), "truth-first").per_image("truth-first")["input-x-gradient"]
    assert right.tolist() == [1, 1]
    for data in (items((0, 1, 0, 0)), items(label=1)):  # another part has more worth; a wrong answer
        assert judged(data, "truth-first").per_image("truth-first")["input-x-gradient"].isnan().all()


def test_a_sample_of_unknown_label_counts_as_without_labels() -> None:
    data = [*items(), {**items()[0], "label": -1}, {**items(label=1)[0]}]
    values = judged(data, "truth-first").per_image("truth-first")["input-x-gradient"]
    assert values[:3].tolist() == [1, 1, 1]
    assert values[3].isnan()  # a wrong answer


class Nearly(Quarters):
    """The same with a large constant in class 0, beside which worth is nothing but rounding, or is not."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, 2) of images (B, 3, 8, 8)."""
        return super().forward(images) * self.scale + torch.tensor([1.0, 0.0])


@pytest.mark.parametrize(("scale", "counts"), [(1e-7, False), (1e-4, True)])
def test_worth_within_rounding_is_no_evidence(scale: float, counts: bool) -> None:
    report = mhex.evaluate(Nearly(scale), items(), ["input-x-gradient"], ["truth-first"], controls=False)
    assert report.per_image("truth-first")["input-x-gradient"].isfinite().tolist() == [counts, counts]


@pytest.mark.parametrize(("hidden", "counts"), [(0, False), (1, True)])
def test_a_sample_whose_largest_worth_is_not_seen_does_not_count(hidden: int, counts: bool) -> None:
    """Quarter 0 is worth most; no map can find a mask whose pixel falls between those that the model sees."""
    photo = torch.full((2 * SIDE, 2 * SIDE, 3), 255, dtype=torch.uint8)
    masks = QUARTERS.repeat_interleave(2, 1).repeat_interleave(2, 2)
    changed = [Image.fromarray(photo.masked_fill(mask[..., None], 0).numpy()) for mask in masks]
    masks[hidden] = False
    masks[hidden, 0, 0] = True
    entry = {"image": Image.fromarray(photo.numpy()), "label": 0, "parts": {"masks": masks, "without": changed}}
    bundle = Bundle("quarters", Quarters(), Preprocess(SIDE, SIDE, (0.0,), (1.0,)))
    report = mhex.evaluate(bundle, [entry], ["input-x-gradient"], ["truth-first"], controls=False)
    assert report.per_image("truth-first")["input-x-gradient"].isfinite().tolist() == [counts]


def test_parts_that_do_not_fit_their_image_are_refused() -> None:
    (entry, _) = items()
    image, half = entry["image"], QUARTERS[:, : SIDE // 2]
    for masks, small, words in (
        (half, False, "masks of the parts of sample 0 at the size"),
        (QUARTERS & (torch.arange(4) > 0)[:, None, None], False, r"none in those of parts \[0\]"),
        (QUARTERS, True, r"the image without parts \[0\] at the size of the image"),
    ):
        without_each = [image[:, ::2, ::2] if small else image] * 4
        data = [{"image": image, "label": 0, "parts": {"masks": masks, "without": without_each}}]
        with pytest.raises(ArgumentError, match=words):
            judged(data, "truth-first")


def test_the_sentence_of_skipped_inputs_names_all_reasons() -> None:
    text = str(judged([*items(), *items(label=1)], "truth-first"))
    for words in ("no parts", "a wrong answer", "should decide", "no part with worth", "does not see"):
        assert words in " ".join(text.split())


def test_samples_without_parts_do_not_count_and_others_do() -> None:
    data = [*items(), {"image": torch.ones(3, SIDE, SIDE), "label": 0, "parts": None}]
    values = judged(data, "truth-first").per_image("truth-first")["input-x-gradient"]
    assert values[:2].tolist() == [1, 1]
    assert values[2].isnan()


def test_a_list_of_inputs_without_each_part_is_enough_for_removal() -> None:
    image = torch.ones(3, SIDE, SIDE)
    parts = {"masks": QUARTERS, "without": [without(image, (n,)) for n in range(4)]}
    data = [{"image": image, "label": 0, "parts": parts}]
    assert judged(data, "truth-first").per_image("truth-first")["input-x-gradient"].tolist() == [1]
    with pytest.raises(ArgumentError, match="only inputs without one part were given"):
        judged(data, "truth-first:shapley")


def test_batches_and_passes_are_shared_over_methods() -> None:
    data = items()
    single = judged(data, "truth-rank", "truth-first").cost["passes"]
    several = judged(data, "truth-rank", "truth-first", methods=("input-x-gradient", "occlusion")).cost["passes"]
    assert single == several == 8  # four parts of two images, once for all methods


def test_too_many_parts_for_shapley_values_are_refused() -> None:
    many = InputParts(QUARTERS[[0] * 11], None, lambda numbers: torch.ones(3, SIDE, SIDE))
    data = [{"image": torch.ones(3, SIDE, SIDE), "label": 0, "parts": many}]
    with pytest.raises(ArgumentError, match="at most 10 parts"):
        judged(data, "truth-first:shapley")


@pytest.mark.parametrize("least", [0.0, 1.5])
def test_a_share_of_the_largest_worth_is_a_share(least: float) -> None:
    with pytest.raises(ArgumentError, match="share of the largest worth"):
        TruthProtocol(least=least)
