"""Compactness, segmentation and pointing games: closed-form values, and what does not count."""

import math

import pytest
import torch
import torch.nn.functional as F

from mhex.errors import ArgumentError
from mhex.metrics._precision import average_precision
from mhex.metrics.case import Case
from mhex.metrics.compactness import Compactness, compactness, entropy, gini
from mhex.metrics.energy_pointing_game import EnergyPointingGame, energy_pointing_game
from mhex.metrics.grid_pointing_game import GridPointingGame, grid_pointing_game
from mhex.metrics.pointing_game import PointingGame, pointing_game
from mhex.metrics.segmentation import Segmentation, segmentation
from mhex.metrics.segmentation_classes import class_agreement, class_confusion
from mhex.perturb import Subject, mosaics
from support.fixtures_metrics import Additive, bin4

MAP = torch.tensor([[[1.0, 0.2], [0.6, 0.0]]], dtype=torch.float64)
OBJECT = torch.tensor([[[1, 1], [0, 0]]])
LEFT = torch.tensor([[[1, 0], [1, 0]]])


def near(value, wanted):
    assert torch.allclose(torch.as_tensor(value).double(), torch.tensor(wanted).double(), atol=1e-6, rtol=0)


def random_case(count=6, size=8, mask=None):
    """Random maps of 4 x 4, and masks of 8 x 8 with every kind of pixel."""
    draw = torch.Generator().manual_seed(3)
    saliency = torch.randn(count, 4, 4, generator=draw).double()
    mask = torch.randint(-1, 2, (count, size, size), generator=draw) if mask is None else mask
    subject = Subject(Additive(torch.ones(2, size * size)), torch.zeros(count, 1, size, size).double())
    return Case(subject, saliency, mask=mask)


def one_of(case, n):
    subject = Subject(case.subject.model, case.subject.main[n : n + 1], ids=[case.ids[n]])
    return Case(subject, case.saliency[n : n + 1], mask=case.mask[n : n + 1])


def computed(metric, *cases):
    for case in cases:
        metric.update(*metric.of(case))
    return metric.compute()


# --- compactness -----------------------------------------------------------------------------------------------------


def test_compactness():
    s = torch.tensor([[10, 0.4, -5, 0, 1]]).double()
    near(compactness(s, mode="paper"), [0.6])
    near(compactness(s, mode="code"), [0.4])
    near(compactness(s), [0.4])
    near(compactness(torch.tensor([[10, 0.5, -0.5, 0.0]]).double()), [0.75])  # at most, not below


def test_compactness_of_zeros():
    zeros = torch.zeros(1, 4)
    near(compactness(zeros, mode="paper"), [1.0])
    near(compactness(zeros, mode="code"), [0.0])
    assert compactness(zeros).isnan().all()


def test_compactness_depends_on_resolution():
    one_hot = torch.zeros(1, 1, 14, 14).double()
    one_hot[0, 0, 6, 7] = 1
    values = [
        one_hot,
        F.interpolate(one_hot, scale_factor=16),
        F.interpolate(one_hot, scale_factor=16, mode="bilinear"),
    ]
    near([float(compactness(value)) for value in values[:2]], [195 / 196] * 2)
    assert float(compactness(values[2])) == pytest.approx(0.9835, abs=5e-5)
    assert round(195 / 196, 4) == 0.9949


def test_gini_and_entropy():
    s = torch.tensor([[1.0, 1, 1, 1], [0, 0, -3, 0], [1, 2, 3, 4], [0, 0, 0, 0]]).double()
    near(gini(s), [0.0, 0.75, 0.25, 0.0])
    p = torch.tensor([0.1, 0.2, 0.3, 0.4])
    near(entropy(s), [math.log(4), 0.0, float(-(p * p.log()).sum()), math.log(4)])


def test_only_counted_units_count():
    s = torch.tensor([[1.0, 2, 3, 4, 99]]).double()
    counted = torch.tensor([[True, True, True, True, False]])
    for of in (compactness, gini, entropy):
        near(of(s, counted=counted), of(s[:, :4]).tolist())
    beside = torch.tensor([[10.0, 1.0, 999.0]])
    for mode in ("abs", "paper", "code"):
        near(compactness(beside, mode=mode, counted=torch.tensor([[True, True, False]])), [0.0])


def test_compactness_counts_maps_of_zeros():
    case = random_case()
    case.saliency[2] = 0
    found = computed(Compactness(), case)
    assert (found["n"], found["n_skipped"]) == (5, 1)
    rest = case.saliency[[0, 1, 3, 4, 5]]
    assert found["value"] == pytest.approx(float(compactness(rest).mean()))
    assert found["all"]["gini"]["value"] == pytest.approx(float(gini(rest).mean()))
    assert computed(Compactness("cdam"), case)["n"] == 6


def test_compactness_refuses():
    with pytest.raises(ArgumentError, match="mode to be one of abs, paper, code"):
        Compactness(mode="signed")
    with pytest.raises(ArgumentError, match="finite maps"):
        compactness(torch.tensor([[math.nan, 1.0]]))


# --- segmentation ----------------------------------------------------------------------------------------------------


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


def large(case):
    return F.interpolate(case.saliency[:, None], size=(8, 8), mode="bilinear")[:, 0]


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


# --- average precision -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["different", "tied", "left out"])
def test_average_precision_is_sklearns(kind):
    metrics = pytest.importorskip("sklearn.metrics", reason="scikit-learn is not installed")
    draw = torch.Generator().manual_seed(5)
    scores = torch.randn(8, 60, generator=draw).double()
    scores = (2 * scores).round() if kind != "different" else scores
    positive = torch.rand(8, 60, generator=draw) < 0.3
    counted = torch.rand(8, 60, generator=draw) < 0.7 if kind == "left out" else torch.ones_like(positive)
    found = average_precision(scores, positive, counted)
    for n in range(8):
        kept = counted[n]
        wanted = metrics.average_precision_score(positive[n][kept].numpy(), scores[n][kept].numpy())
        assert float(found[n]) == pytest.approx(wanted, abs=1e-12)


def test_published_precision_is_sklearns():
    metrics = pytest.importorskip("sklearn.metrics", reason="scikit-learn is not installed")
    case = random_case()
    found = segmentation(case.saliency, case.mask)
    for n, (s, g) in enumerate(zip(large(case), case.mask, strict=True)):
        s = ((s - s.min()) / (s.max() - s.min()))[g >= 0]
        g = g[g >= 0]
        both = metrics.average_precision_score(torch.cat([1 - g, g]).numpy(), torch.cat([1 - s, s]).numpy())
        near(found[n, :2], [both, metrics.average_precision_score(g.numpy(), s.numpy())])


# --- several classes -------------------------------------------------------------------------------------------------


def test_classes_by_the_highest_map():
    first = torch.tensor([[1.0, 0.6], [0.0, 0.2]])
    second = torch.tensor([[0.0, 1.0], [0.3, 0.6]])
    mask = torch.tensor([[[3, 5], [0, 255]]])
    found = class_confusion(torch.stack([first, second])[None].double(), torch.tensor([[3, 5]]), mask, 0.5)
    assert found.shape == (1, 21, 21)
    assert found.dtype == torch.int64
    assert found[0].nonzero().tolist() == [[0, 0], [3, 3], [5, 5]]
    miou, pacc = class_agreement(found.sum(0))
    assert (float(miou), float(pacc)) == (1.0, 1.0)
    high = class_confusion(torch.stack([first, second])[None].double(), torch.tensor([[3, 5]]), mask, 0.2)
    assert int(high[0, 0, 5]) == 1  # 0.3 is above: background taken for class 5
    miou, pacc = class_agreement(high.sum(0))
    near(torch.stack([miou, pacc]), [(0 + 1 + 0.5) / 3, 2 / 3])


def test_images_with_fewer_classes_are_padded():
    draw = torch.Generator().manual_seed(1)
    maps, mask = torch.randn(2, 3, 4, 4, generator=draw), torch.randint(0, 3, (2, 8, 8), generator=draw)
    padded = class_confusion(maps, torch.tensor([[1, 2, 0], [2, 1, 4]]), mask, 0.4, count=5)
    near(padded[0], class_confusion(maps[:1, :2], torch.tensor([[1, 2]]), mask[:1], 0.4, count=5)[0].tolist())
    assert padded.sum((1, 2)).tolist() == [64, 64]


def test_classes_refuse():
    maps, mask = torch.zeros(1, 1, 2, 2), torch.zeros(1, 2, 2, dtype=torch.long)
    with pytest.raises(ArgumentError, match="classes from 0 to 20"):
        class_confusion(maps, torch.tensor([[21]]), mask, 0.5)
    with pytest.raises(ArgumentError, match="maps \\(B, G, h, w\\)"):
        class_confusion(maps[0], torch.tensor([[1]]), mask, 0.5)


# --- pointing games --------------------------------------------------------------------------------------------------


def test_pointing_game():
    near(pointing_game(MAP, OBJECT), [1.0])
    near(pointing_game(-MAP, OBJECT), [0.0])


def test_of_equal_maxima_the_share_inside_counts():
    tied = torch.tensor([[[1.0, 0.0], [1.0, 1.0]]]).double()
    near(pointing_game(tied, OBJECT), [1 / 3])
    near(pointing_game(torch.zeros(1, 2, 2).double(), LEFT), [0.5])


def test_pointing_tolerance_is_a_distance():
    saliency, mask = torch.zeros(1, 9, 9).double(), torch.zeros(1, 9, 9, dtype=torch.long)
    saliency[0, 4, 4], mask[0, 1, 0] = 1, 1  # 3 and 4 away: 5 pixels
    assert pointing_game(saliency, mask, 5).item() == 1
    assert pointing_game(saliency, mask, 4).item() == 0
    assert PointingGame("zhang").protocol.tolerance == 15
    with pytest.raises(ArgumentError, match="tolerance of 0 pixels"):
        pointing_game(saliency, mask, -1)


def test_ignored_pixels_are_not_looked_at():
    mask = torch.tensor([[[-1, 1], [0, 0]]])
    near(pointing_game(MAP, mask), [0.0])  # the highest that is seen is 0.6
    near(energy_pointing_game(MAP, mask), [0.25])


def test_energy_pointing_game():
    s = torch.tensor([[[3.0, 1.0], [-2.0, 0.0]]]).double()
    near(energy_pointing_game(s, LEFT), [0.75])
    assert energy_pointing_game(-s.abs(), LEFT).isnan().all()


METRICS = (Segmentation, PointingGame, EnergyPointingGame)


@pytest.mark.parametrize("metric", METRICS)
def test_masks_without_an_object_do_not_count(metric):
    case = random_case()
    case.mask[1] = 0
    case.mask[4] = -1
    found = computed(metric(resamples=20), case)
    assert (found["n"], found["n_skipped"]) == (4, 2)
    rest = [one_of(case, n) for n in (0, 2, 3, 5)]
    assert found["value"] == pytest.approx(computed(metric(resamples=20), *rest)["value"])
    assert math.isfinite(found["value"])


def test_maps_that_say_nothing_are_counted():
    case = random_case()
    case.saliency[0] = -1
    found = computed(EnergyPointingGame(), case)
    assert (found["n"], found["n_skipped"]) == (5, 1)


@pytest.mark.parametrize("metric", [*METRICS, Compactness])
def test_a_batch_is_its_singles(metric):
    case = random_case()
    rows = metric().score(*metric().of(case))
    for n in range(6):
        assert torch.allclose(metric().score(*metric().of(one_of(case, n)))[0], rows[n])


@pytest.mark.parametrize("metric", METRICS)
def test_bad_masks_are_refused(metric):
    case = random_case()
    with pytest.raises(ArgumentError, match="a mask for each image"):
        metric().of(Case(case.subject, case.saliency))
    case.mask[0, 0, 0] = 255
    with pytest.raises(ArgumentError, match="but got the value 255"):
        metric().update(*metric().of(case))
    with pytest.raises(ArgumentError, match="as many masks"):
        metric().update(*metric().of(random_case(mask=case.mask[:2])))


# --- mosaics ---------------------------------------------------------------------------------------------------------


def test_mass_in_the_right_cell_alone_is_one():
    saliency = torch.zeros(3, 4, 4).double()
    saliency[:, :2, 2:] = torch.rand(3, 2, 2).double()
    cells = torch.zeros(3, 4, dtype=torch.bool)
    cells[0, 1] = cells[1, 2] = cells[2, 1] = cells[2, 3] = True
    saliency[:, 3, 0] = -5  # what speaks against the class is not looked at
    near(grid_pointing_game(saliency, cells), [1.0, 0.0, 1.0])


def test_an_even_map_is_at_chance_also_where_a_border_cuts_units():
    cells = torch.eye(9, dtype=torch.bool)
    near(grid_pointing_game(torch.ones(9, 7, 5).double(), cells), [1 / 9] * 9)
    middle = torch.zeros(4, 3, 3).double()
    middle[:, 1, 0] = 1
    near(grid_pointing_game(middle, torch.eye(4, dtype=torch.bool)), [0.5, 0.0, 0.5, 0.0])


class Colour(torch.nn.Module):
    """Sure of the class whose channel is the brightest."""

    def forward(self, x):
        return 20 * x.mean((2, 3))


def coloured(labels, size=8):
    return F.one_hot(torch.as_tensor(labels), 6).float()[:, :, None, None].expand(-1, -1, size, size).clone()


def test_mosaics_are_of_sure_images_of_different_classes():
    labels = torch.tensor([0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5, 0, 0])
    x = coloured(labels)
    x[1] *= 0.1  # not sure
    x[2] = x[3]  # wrong
    subject = Subject(Colour(), x, label=labels, ids=range(100, 114))
    found = mosaics(subject)
    assert len(found) == 2  # of twelve images, four of one class
    assert found.pixels.shape == (len(found), 6, 8, 8)
    used = found.members.flatten().tolist()
    assert len(set(used)) == len(used)
    assert not {101, 102} & set(used)
    for pixels, tiles, members in zip(found.pixels, found.tiles, found.members, strict=True):
        assert len(set(tiles.tolist())) == 4
        assert tiles.tolist() == labels[members - 100].tolist()
        for cell, label in enumerate(tiles.tolist()):
            row, column = 4 * (cell // 2), 4 * (cell % 2)
            assert torch.allclose(pixels[:, row : row + 4, column : column + 4], coloured([label], 4)[0])


def test_mosaics_do_not_depend_on_the_order_of_images():
    labels = torch.arange(24) % 6
    first = mosaics(Subject(Colour(), coloured(labels), label=labels), seed=3)
    turned = torch.arange(23, -1, -1)
    second = mosaics(Subject(Colour(), coloured(labels[turned]), label=labels[turned], ids=turned.tolist()), seed=3)
    assert torch.equal(first.members, second.members)
    assert len(first) == 6
    other = mosaics(Subject(Colour(), coloured(labels), label=labels), seed=4)
    assert not torch.equal(first.members, other.members)


def test_mosaics_as_they_are_and_with_two_of_a_class():
    labels = torch.arange(24) % 6
    subject = Subject(Colour(), coloured(labels), label=labels)
    assert mosaics(subject, shrink=False).pixels.shape[-2:] == (16, 16)
    for tiles in mosaics(subject, each=2).tiles.tolist():
        assert sorted(map(tiles.count, tiles)) == [2, 2, 2, 2]


def test_mosaics_refuse():
    labels = torch.arange(6)
    subject = Subject(Colour(), coloured(labels), label=labels)
    with pytest.raises(ArgumentError, match="at least 9 classes"):
        mosaics(Subject(Colour(), coloured(labels, 9), label=labels), 3)
    with pytest.raises(ArgumentError, match="multiples of 3"):
        mosaics(subject, 3)
    with pytest.raises(ArgumentError, match="n of at least 2"):
        mosaics(subject, 1)
    with pytest.raises(ArgumentError, match="give label="):
        mosaics(Subject(Colour(), coloured(labels)))


def of_class(pixels, classes):
    """The right map: where the channel of the class is bright, on a grid of half the size."""
    maps = pixels[torch.arange(len(pixels)), classes]
    return F.avg_pool2d(maps[:, None], 2)[:, 0]


def mosaic_case(again=of_class):
    labels = torch.arange(24) % 6
    found = mosaics(Subject(Colour(), coloured(labels), label=labels))
    subject = Subject(Colour(), found.pixels, ids=range(len(found)))
    explained = found.tiles[:, 0]
    return Case(subject, again(found.pixels, explained), explained, tiles=found.tiles, again=again)


@pytest.mark.parametrize(("each", "chance"), [(1, 0.25), (2, 0.5)])
def test_grid_pointing_game(each, chance):
    case = mosaic_case()
    if each == 2:
        case.tiles = torch.stack([case.tiles[:, 0], case.tiles[:, 0], case.tiles[:, 3], case.tiles[:, 3]], 1)
    flat = mosaic_case(lambda pixels, classes: torch.ones(len(pixels), 4, 4).double())
    flat.tiles = case.tiles
    if each == 1:
        found = computed(GridPointingGame(), case)
        assert (found["value"], found["n"]) == (1.0, 6)
    assert computed(GridPointingGame(), flat)["value"] == pytest.approx(chance)


def test_cells_that_say_nothing_are_left_out():
    def shy(pixels, classes):
        return of_class(pixels, classes) * (classes > 0).view(-1, 1, 1)

    case = mosaic_case(shy)
    found = computed(GridPointingGame(), case)
    assert found["value"] == 1.0
    wanted = (case.tiles == 0).double().mean()
    assert found["all"]["silent"]["value"] == pytest.approx(float(wanted))
    case.tiles = torch.zeros_like(case.tiles)
    assert computed(GridPointingGame(), case)["n_skipped"] == 6


def test_the_map_that_is_there_is_not_made_again():
    asked = []

    def again(pixels, classes):
        asked.append(classes)
        return of_class(pixels, classes)

    case = mosaic_case(again)
    asked.clear()
    GridPointingGame().of(case)
    assert len(asked) == 3


def test_grids_refuse():
    case = mosaic_case()
    with pytest.raises(ArgumentError, match="mosaics with the class of each cell"):
        GridPointingGame().of(Case(case.subject, case.saliency))
    with pytest.raises(ArgumentError, match="a way to explain other classes"):
        GridPointingGame().of(Case(case.subject, case.saliency, tiles=case.tiles))
    with pytest.raises(ArgumentError, match="cells \\(B, n \\* n\\)"):
        grid_pointing_game(torch.ones(1, 4, 4), torch.ones(1, 3, dtype=torch.bool))
