"""Halves of pictures, energy on them, and attention beside scores."""

from __future__ import annotations

import math

import pytest
import torch

import mhex
from cdam_attention import Beside, correlations, tenths, zeros
from cdam_boxes import SIZES, mean_correlation
from cdam_concepts import contrast, energy_on, side_by_side
from mhex.lab.datasets import Pets

SPECIES_OF = (0, 1, 0, 1)  # of four breeds


def pets(count: int = 24, side: int = 8) -> Pets:
    """Photos whose colour is their breed: 50 times its number."""
    labels = torch.arange(count) % 4
    images = (50 * labels).to(torch.uint8)[:, None, None, None].expand(-1, 3, side, side).contiguous()
    return Pets(
        images=images,
        labels=labels,
        species=torch.tensor(SPECIES_OF)[labels],
        names=tuple(map(str, range(count))),
        classes=("a", "b", "c", "d"),
        group_of=SPECIES_OF,
        group_names=("cat", "dog"),
        split="test",
    )


def test_breeds_and_species_are_those_of_the_halves() -> None:
    pairs = side_by_side(pets(), 10, seed=3)
    assert len(pairs.photos) == 10
    for photo, breeds, species in zip(pairs.photos, pairs.breeds.tolist(), pairs.species.tolist(), strict=True):
        assert [photo.getpixel((0, 0))[0] // 50, photo.getpixel((7, 0))[0] // 50] == breeds
        assert [SPECIES_OF[breed] for breed in breeds] == species
        assert sorted(species) == [0, 1]
    assert len({tuple(one) for one in pairs.species.tolist()}) == 2  # a cat is not always on the same side


def test_energy_counts_the_positive_part_on_the_right_half() -> None:
    scores = torch.tensor([[[3.0, -5.0, 1.0, 0.0]], [[3.0, -5.0, 1.0, 0.0]], [[-1.0, -1.0, -1.0, 0.0]]])
    found = energy_on(scores, torch.tensor([False, True, True]))
    assert found[:2].tolist() == [0.75, 0.25]
    assert math.isnan(float(found[2]))


def test_a_map_that_does_not_know_the_target_has_half_on_average() -> None:
    scores = torch.rand(5, 4, 6)
    right = torch.tensor([True, False, True, True, False])
    both = (energy_on(scores, right) + energy_on(scores, ~right)) / 2
    assert torch.allclose(both, torch.full_like(both, 0.5))


def test_a_grid_whose_middle_column_lies_on_both_halves_is_refused() -> None:
    with pytest.raises(mhex.MhexError, match="both halves"):
        energy_on(torch.rand(1, 3, 3), torch.tensor([True]))


def test_contrast_scores_by_the_difference() -> None:
    cat, dog = mhex.Concept(torch.tensor([3.0, 1.0]), "cat"), mhex.Concept(torch.tensor([1.0, 1.0]), "dog")
    found = contrast(cat, dog)
    assert found.latent.tolist() == [2.0, 0.0]
    assert found.name == "cat less dog"


def explanation(scores: torch.Tensor, method: str) -> mhex.Explanation:
    return mhex.Explanation(
        scores, torch.zeros(len(scores), dtype=torch.long), torch.zeros(len(scores), 2), None, method
    )


def test_tenths_go_from_least_attention_to_most() -> None:
    order = torch.stack([torch.randperm(100) for _ in range(3)])
    attention = (order + 1).double()
    scores = torch.where(order % 2 == 0, 1, -1) * attention  # size follows attention, the sign does not
    found = Beside(explanation(attention.view(3, 10, 10), "attention"), explanation(scores.view(3, 10, 10), "cdam"))
    rows = tenths(found)
    assert rows[0][0] == pytest.approx(5.5 / 50.5)
    assert rows[0][2] == pytest.approx(0.10)
    assert rows[-1][2] == pytest.approx(1.0)
    rho = correlations(found, seed=0)
    assert rho["size of the score"].mean == pytest.approx(1)
    assert abs(rho["score"].mean) < 0.2


def test_zeros_are_told() -> None:
    attention, scores = torch.tensor([[[0.0, 0.0, 1.0, 3.0]]]), torch.tensor([[[0.0, 2.0, 1.0, 1.0]]])
    found = Beside(explanation(attention, "attention"), explanation(scores, "cdam"))
    assert zeros(found) == "2 patches have an attention of exactly 0; 1 of them have a score that is not 0."
    other = Beside(explanation(attention + 1, "attention"), explanation(scores, "cdam"))
    assert zeros(other).startswith("No patch")


def test_the_mean_correlation_of_a_constant_curve_is_the_constant() -> None:
    assert mean_correlation(torch.full((2, len(SIZES)), 0.3)).tolist() == pytest.approx([0.3, 0.3])
