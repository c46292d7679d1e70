"""Does a map move with its class? Pictures of a cat and a dog, explained for both, by any methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import mhex
from cdam_concepts import BATCH, Pairs, energy_on
from mhex.stats.correlation import rank_correlation
from study_charts import stacked
from study_page import interval_of

Views = Mapping[str, tuple[str, Mapping[str, Any]]]  # what a row is called: the method and its options
Numbers = Mapping[str, Mapping[str, Tensor]]  # by row and column: (N,)
SHARE, ALIKE, INSIDE = "share on its part", "rank correlation of both maps", "share on its animal"


def view(method: str, **options: Any) -> tuple[str, Mapping[str, Any]]:
    """A method with options, for `Views`."""
    return method, options


def inside(scores: Tensor, masks: Tensor) -> Tensor:
    """Share of the positive part of maps (B, h, w) on masks (B, H, W), (B,); NaN without a positive part."""
    cells = F.adaptive_avg_pool2d(masks.double()[:, None], (scores.shape[-2], scores.shape[-1]))[:, 0]
    positive = scores.double().clamp_min(0)
    return (positive * cells).sum((1, 2)) / positive.sum((1, 2))


def animals_on(trimaps: Tensor, rows: Tensor) -> Tensor:
    """Where the animal of the left half is, and that of the right one, bool (N, 2, H, W).

    Args:
        trimaps: Of all photos, 1 on the animal, (M, H, W).
        rows: Photos of both halves, (N, 2).
    """
    width = trimaps.shape[-1]
    middle = trimaps[rows][..., width // 4 : width // 4 + width // 2] == 1
    empty = torch.zeros_like(middle[:, 0])
    return torch.stack([torch.cat([middle[:, 0], empty], -1), torch.cat([empty, middle[:, 1]], -1)], 1)


def both_maps(bundle: mhex.Bundle, pairs: Pairs, animals: Tensor, views: Views, seed: int) -> Numbers:
    """Mean shares of both maps of a picture on the half that shows the class, and on its animal; likeness of the maps.

    A map without a class has a share of 0.5 and a likeness of 1. A map without a positive part has no share: NaN.

    Args:
        bundle: The model, of breeds.
        pairs: N pictures.
        animals: Of both halves, (N, 2, H, W).
        views: Methods.
        seed: Of methods that draw.
    """
    found: dict[str, dict[str, list[Tensor]]] = {name: {SHARE: [], INSIDE: [], ALIKE: []} for name in views}
    device = next(bundle.model.parameters()).device
    for start in range(0, len(pairs.photos), BATCH):
        part = slice(start, start + BATCH)
        photos, breeds = pairs.photos[part], pairs.breeds[part].to(device)
        for name, (method, options) in views.items():
            e = mhex.explain(bundle, photos, method, breeds, seed=seed, progress=False, **options)
            maps = e.scores.cpu().unbind(1) if e.scores.dim() == 4 else [e.scores.cpu()] * 2  # one map for all classes
            sides = [torch.full((len(photos),), bool(side)) for side in (0, 1)]
            shares = [energy_on(scores, side) for scores, side in zip(maps, sides, strict=True)]
            marked = [inside(scores, mask) for scores, mask in zip(maps, animals[part].unbind(1), strict=True)]
            found[name][SHARE].append((shares[0] + shares[1]) / 2)
            found[name][INSIDE].append((marked[0] + marked[1]) / 2)
            found[name][ALIKE].append(rank_correlation(maps[0].flatten(1), maps[1].flatten(1)))
        print(f"two classes: {start + len(photos)} of {len(pairs.photos)} pictures", flush=True)
    return {name: {column: stacked(values) for column, values in row.items()} for name, row in found.items()}


def flat_row(animals: Tensor) -> list[Any]:
    """The row of a map that is the same everywhere."""
    area = animals.double().flatten(2).mean(2).mean(1)
    return ["the same everywhere", "0.5", interval_of(area), "1", len(area)]


def both_table(found: Numbers, seed: int) -> tuple[list[str], list[list[Any]]]:
    """Headings and rows of a table, the largest share first."""
    columns = list(next(iter(found.values())))
    means = {name: {column: interval_of(row[column], seed) for column in columns} for name, row in found.items()}
    order = sorted(means, key=lambda name: -means[name][SHARE].mean)
    rows = [[f"`{name}`", *means[name].values(), means[name][SHARE].count] for name in order]
    return ["map", *columns, "inputs"], rows


def ahead(found: Numbers, own: str, others: Sequence[str], seed: int, column: str = SHARE) -> str:
    """Which maps have a smaller or larger share than one of them, on the same inputs, in words."""
    gains = {name: interval_of(found[own][column] - found[name][column], seed) for name in others}
    above = [name for name, gain in gains.items() if gain.above]
    below = [name for name, gain in gains.items() if gain.below]
    same = [f"`{name}`" for name in gains if name not in (*above, *below)]
    words = []
    for kind, names in (("above", above), ("below", below)):
        if names:
            words.append(f"{kind} " + ", ".join(f"`{name}` by {gains[name]}" for name in names))
    return "; ".join(words + ([f"not told apart from {', '.join(same)}"] if same else []))
