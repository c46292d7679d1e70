"""Pointing games: closed-form values, and masks that do not count or are refused."""

import math

import pytest
import torch

from mhex.errors import ArgumentError
from mhex.metrics.case import Case
from mhex.metrics.compactness import Compactness
from mhex.metrics.energy_pointing_game import EnergyPointingGame, energy_pointing_game
from mhex.metrics.pointing_game import PointingGame, pointing_game
from mhex.metrics.segmentation import Segmentation
from support.maps_and_masks import LEFT, MAP, OBJECT, computed, near, one_of, random_case


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
