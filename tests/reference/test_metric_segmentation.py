"""Segmentation: closed-form values, sums over the data, and thresholds that are searched."""

import pytest
import torch

from mhex.metrics.case import Case
from mhex.metrics.segmentation import Segmentation, segmentation
from mhex.perturb import Subject
from support.additive_models import bin4
from support.maps_and_masks import MAP, OBJECT, computed, large, near, random_case


def test_segmentation_at_the_mean():
    metric = Segmentation("che")
    metric.update(*metric.of(case_2x2()))
    found = metric.compute()["all"]
    assert found["pacc"]["value"] == pytest.approx(0.5)
    assert found["miou"]["value"] == pytest.approx(1 / 3, abs=1e-6)
    assert found["ap2"]["value"] == pytest.approx(0.816667, abs=1e-6)
    assert found["foreground_ap"]["value"] == pytest.approx(0.833333, abs=1e-6)


def case_2x2(saliency=MAP, mask=OBJECT):
    return Case(Subject(bin4()[0], torch.ones(1, 1, 2, 2).double()), saliency, mask=mask)


def test_segmentation_at_the_best():
    found = computed(Segmentation("gt"), case_2x2())
    assert found["value"] == pytest.approx(0.583333, abs=1e-6)
    assert found["all"]["pacc"]["value"] == pytest.approx(0.75)
    assert found["all"]["best_threshold"]["value"] == 0.0


def test_precision_over_both_classes_is_not_of_ranks_alone():
    near(segmentation(MAP.square(), OBJECT)[:, :2], [[0.854167, 0.833333]])


def test_counts_are_pixels():
    rows = segmentation(MAP, OBJECT)[0]
    assert rows[2:4].tolist() == [2, 2]
    assert rows[4:6].tolist() == [1, 1]  # above the mean 0.45
    assert rows[6:8].tolist() == [2, 1]  # above 0
    assert rows[18:20].tolist() == [1, 0]  # above 0.6, strictly


def brute(saliency, mask, threshold):
    """Mean IoU and accuracy of a data set, pixel by pixel in Python."""
    scaled = saliency - saliency.amin((1, 2), keepdim=True)
    scaled = scaled / scaled.amax((1, 2), keepdim=True)
    inter, union, correct, labelled = {0: 0, 1: 0}, {0: 0, 1: 0}, 0, 0
    for s, g in zip(scaled, mask, strict=True):
        t = float(s.mean()) if threshold == "mean" else threshold
        for value, truth in zip(s.flatten().tolist(), g.flatten().tolist(), strict=True):
            if truth < 0:
                continue
            said = int(value > t)
            labelled, correct = labelled + 1, correct + (said == truth)
            for k in (0, 1):
                inter[k] += said == truth == k
                union[k] += k in (said, truth)
    return (inter[0] / union[0] + inter[1] / union[1]) / 2, correct / labelled


def test_segmentation_is_of_sums_over_the_data():
    case = random_case()
    found = computed(Segmentation(resamples=50), case)["all"]
    miou, pacc = brute(large(case), case.mask, "mean")
    assert found["miou"]["value"] == pytest.approx(miou)
    assert found["pacc"]["value"] == pytest.approx(pacc)
    best = max((brute(large(case), case.mask, k / 10) for k in range(10)), key=lambda pair: pair[0])
    searched = computed(Segmentation("gt", resamples=50), case)["all"]
    assert (searched["miou"]["value"], searched["best_pacc"]["value"]) == pytest.approx(best)


def test_the_best_threshold_is_chosen_on_other_images():
    metric = Segmentation(resamples=20)
    rows = metric.score(*metric.of(random_case(40)))
    half = rows[:, 4].bool()
    assert 5 < int(half.sum()) < 35
    chosen = []
    for part in (half, ~half):
        every = metric.summary(rows[part])  # has one half only: nothing to choose on
        assert every[4:].isnan().all()
        assert every[:4].isfinite().all()
        chosen.append(float(Segmentation("gt").summary(rows[part])[6]))
    found = metric.summary(rows)
    assert float(found[6]) == pytest.approx(sum(chosen) / 2)
    on_all = Segmentation("gt").summary(rows)
    assert float(found[4]) <= float(on_all[4])
    case = random_case(40)
    swapped = [brute_counts(large(case)[p], case.mask[p], t) for p, t in ((half, chosen[1]), (~half, chosen[0]))]
    tp, fp, fg, bg = (sum(one) for one in zip(*swapped, strict=True))
    wanted = (tp / (fg + fp) + (bg - fp) / (bg + fg - tp)) / 2
    assert float(found[4]) == pytest.approx(wanted)


def brute_counts(saliency, mask, threshold):
    scaled = saliency - saliency.amin((1, 2), keepdim=True)
    above = scaled / scaled.amax((1, 2), keepdim=True) > threshold
    sums = ((above & (mask == 1)), (above & (mask == 0)), mask == 1, mask == 0)
    return tuple(int(one.sum()) for one in sums)


def test_summaries_take_resamples():
    metric = Segmentation()
    rows = metric.score(*metric.of(random_case(12)))
    picked = torch.randint(12, (5, 3, 12), generator=torch.Generator().manual_seed(0))
    for preset in ("default", "gt"):
        together = Segmentation(preset).summary(rows[picked])
        assert together.shape == (5, 3, 7)
        alone = torch.stack([Segmentation(preset).summary(rows[one]) for one in picked.flatten(0, 1)])
        assert torch.allclose(together.flatten(0, 1), alone, equal_nan=True)


def test_objects_that_fill_the_image():
    full = torch.ones(1, 2, 2, dtype=torch.long)
    found = computed(Segmentation("gt"), case_2x2(torch.ones(1, 2, 2).double() * 2, full))["all"]
    assert found["miou"]["value"] == 0.0  # a constant map has nothing above any threshold
    assert found["ap2"]["value"] == pytest.approx(0.5)
    near(Segmentation("gt").summary(torch.tensor([[1.0, 1, 4, 0, 0] + [4.0, 0.0] * 11]).double())[:2], [1.0, 1.0])


def test_counts_are_exact_for_large_data():
    rows = torch.zeros(3, 27).double()
    rows[:, 2:4] = 2**24 + 1
    assert float(rows[:, 2].sum()) == 3 * (2**24 + 1)
    assert segmentation(MAP, OBJECT).dtype == torch.float64
