"""Concept maps on pictures of a cat and a dog: does the map of a concept lie on the half that shows it?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from PIL import Image
from torch import Tensor

import mhex
from mhex.errors import ArgumentError
from mhex.lab.datasets import Pets, load_pets
from mhex.lab.datasets.pets import SPECIES
from mhex.lab.datasets.sets import two_class_items
from study_page import Interval, interval_of

EXAMPLES = 30  # per concept, as in the paper
VARIANTS = ("cdam", "cdam-smooth", "cdam-integrated")
BATCH = 50


@dataclass(frozen=True)
class Pairs:
    """Pictures of a cat and a dog side by side.

    Attributes:
        photos: The pictures.
        rows: Numbers of the photos that the left and the right half are of, (N, 2).
        breeds: Breeds of both, (N, 2).
        species: Species of both, (N, 2), places in `SPECIES`.
    """

    photos: list[Image.Image]
    rows: Tensor
    breeds: Tensor
    species: Tensor


def side_by_side(pets: Pets, limit: int, seed: int) -> Pairs:
    """Pictures of the test split, and what each half shows."""
    photos = two_class_items(pets, "side-by-side", limit=limit, seed=seed)
    # Who comes together, and where, depends on labels and seed alone: pictures made of numbered tiles tell it.
    number = torch.arange(len(pets))
    colours = torch.stack([number // 256, number % 256, 0 * number], 1).to(torch.uint8)
    tiles = colours[:, :, None, None].expand(-1, -1, 2, 2).contiguous()
    twins = two_class_items(replace(pets, images=tiles, trimaps=None), "side-by-side", limit=limit, seed=seed)
    pixels = torch.tensor([[twin["image"].getpixel((place, 0)) for place in (0, 1)] for twin in twins])
    rows = 256 * pixels[..., 0] + pixels[..., 1]
    breeds = pets.labels[rows]
    return Pairs([item["image"] for item in photos], rows, breeds, torch.tensor(pets.class_species)[breeds])


def concept(bundle: mhex.Bundle, pets: Pets, rows: Tensor, name: str, seed: int) -> mhex.Concept:
    """The mean latent vector of 30 photos, drawn from some rows of a split."""
    drawn = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))[:EXAMPLES]]
    items = pets.items()
    return mhex.Concept.from_examples(bundle, [items[row]["image"] for row in drawn.tolist()], name=name)


def energy_on(scores: Tensor, right: Tensor) -> Tensor:
    """Share of the positive part of maps (B, h, w) on the right half, or on the left, (B,); NaN without one.

    Args:
        scores: Maps on a grid with an even number of columns.
        right: Which half, bool (B,): True for the right one.
    """
    half = scores.shape[-1] // 2
    if scores.shape[-1] != 2 * half:
        raise ArgumentError(f"Expected an even number of columns, but got {scores.shape[-1]}: one lies on both halves.")
    positive = scores.double().clamp_min(0)
    shares = positive[..., half:].sum((1, 2)) / positive.sum((1, 2))
    return torch.where(right.to(shares.device), shares, 1 - shares)


Target = Callable[[slice], Any]


def shares(
    bundle: mhex.Bundle, pairs: Pairs, method: str, targets: Mapping[int, Target], seed: int
) -> dict[int, Tensor]:
    """Shares of energy on the half that shows the target, for each species, (N,).

    Args:
        bundle: The model.
        pairs: The pictures.
        method: Of the maps.
        targets: For each species, from a part of the pictures to what is explained.
        seed: Of the method.
    """
    found: dict[int, list[Tensor]] = {species: [] for species in targets}
    for start in range(0, len(pairs.photos), BATCH):
        part = slice(start, start + BATCH)
        for species, target in targets.items():
            e = mhex.explain(bundle, pairs.photos[part], method=method, target=target(part), seed=seed)
            found[species].append(energy_on(e.scores.cpu(), pairs.species[part, 1] == species))
    return {species: torch.cat(parts) for species, parts in found.items()}


def animals_of(bundle: mhex.Bundle, train: Pets, seed: int) -> list[mhex.Concept]:
    """Concepts by number of the species: cat and dog."""
    return [
        concept(bundle, train, (train.species == number).nonzero()[:, 0], name, seed)
        for number, name in enumerate(SPECIES)
    ]


def contrast(own: mhex.Concept, other: mhex.Concept) -> mhex.Concept:
    """What one concept has and the other has not: scores are by the difference of their latent vectors."""
    return replace(own, latent=own.latent - other.latent, name=f"{own.name} less {other.name}")


def energy_table(bundle: mhex.Bundle, train: Pets, pairs: Pairs, seed: int) -> list[tuple[str, str, list[Interval]]]:
    """Rows: target, method, and shares on cats, on dogs, and on both, with intervals over pictures."""
    cat, dog = animals_of(bundle, train, seed)
    device = next(bundle.model.parameters()).device
    right = (pairs.species[:, 1][:, None] == torch.arange(len(SPECIES))).long()  # which half shows a species, (N, 2)
    breeds = pairs.breeds.gather(1, right).to(device)
    both: dict[str, Mapping[int, Target]] = {
        f"concept of {EXAMPLES} examples": {0: lambda part: cat, 1: lambda part: dog},
        "concept less the other": {0: lambda part: contrast(cat, dog), 1: lambda part: contrast(dog, cat)},
        "breed, by the classifier": {0: lambda part: breeds[part, 0], 1: lambda part: breeds[part, 1]},
    }
    rows = [
        (words, method, _intervals(shares(bundle, pairs, method, targets, seed), seed))
        for words, targets in both.items()
        for method in VARIANTS
    ]
    agnostic = shares(bundle, pairs, "attention", {number: lambda part: None for number in range(2)}, seed)
    return [*rows, ("none", "attention", _intervals(agnostic, seed))]


def _intervals(found: Mapping[int, Tensor], seed: int) -> list[Interval]:
    mean = torch.stack(list(found.values())).mean(0)  # both maps of a picture; 1/2 for any map of no class
    return [interval_of(one, seed) for one in (*found.values(), mean)]


def concept_maps(bundle: mhex.Bundle, train: Pets, photos: Sequence[Image.Image], seed: int) -> list[mhex.Explanation]:
    """Maps of both concepts and of their difference by the three variants."""
    cat, dog = animals_of(bundle, train, seed)
    targets = [cat, dog, contrast(cat, dog)]
    return [mhex.explain(bundle, list(photos), method=method, target=targets, seed=seed) for method in VARIANTS]


def load_both(limit: int, seed: int) -> tuple[Pets, Pets, Pairs]:
    """Training photos, test photos, and pictures made of the latter."""
    test = load_pets("test")
    return load_pets("trainval"), test, side_by_side(test, limit, seed)
