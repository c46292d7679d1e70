"""Compactness: how small a part of the map carries its weight."""

from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from mhex._settings import check_choice, check_that
from mhex.metrics import Case, JudgedMaps, PerImage, Protocol, register_metric
from mhex.perturb import check_map, text_units

Mode = Literal["abs", "paper", "code"]


@dataclass(frozen=True)
class CompactnessProtocol(Protocol):
    """Protocol of compactness; its parts are as for the function."""

    mode: Mode = "abs"
    share: float = 0.05

    def __post_init__(self) -> None:
        super().__post_init__()
        check_that(0 <= self.share <= 1, "share to be from 0 to 1", self.share)


def compactness(saliency: Tensor, share: float = 0.05, mode: str = "abs", counted: Tensor | None = None) -> Tensor:
    """Share of units whose score is at most a small part of the highest, (B,).

    Args:
        saliency: Maps (B, ...) at their own resolution: bilinear enlargement changes the number.
        share: That part.
        mode: `"abs"`: `|s| <= share max|s|`, NaN for a map of zeros. `"paper"`: `s <= share max s`, signed. `"code"`:
            `|s| < share max s`, as the public code has it.
        counted: Bool of the shape of the maps, False at units that do not count, such as special tokens.
    """
    check_choice("mode", mode, get_args(Mode))
    scores, counted = _flat(saliency, counted)
    high = scores.masked_fill(~counted, -torch.inf).amax(1, keepdim=True)
    if mode == "abs":
        size = scores.abs()
        high = size.amax(1, keepdim=True)
        small = (size <= share * high).double().masked_fill(high == 0, torch.nan)
    elif mode == "paper":
        small = (scores <= share * high).double()
    else:
        small = (scores.abs() < share * high).double()
    return small.masked_fill(~counted, 0.0).sum(1) / counted.sum(1)


def gini(saliency: Tensor, counted: Tensor | None = None) -> Tensor:
    """Gini index of `|s|`, (B,): 0 if all units are equal, towards 1 if one has everything. A map of zeros is equal."""
    scores, counted = _flat(saliency, counted)
    size = scores.abs().masked_fill(~counted, -1.0).sort(1).values  # those that do not count come first
    number = counted.sum(1, keepdim=True)
    place = torch.arange(1, size.shape[1] + 1, device=size.device) - (size.shape[1] - number)
    size = size.clamp_min(0)
    total = size.sum(1)
    weighted = ((2 * place - number - 1) * size).sum(1)
    return weighted / (number[:, 0] * total.masked_fill(total == 0, 1.0))


def entropy(saliency: Tensor, counted: Tensor | None = None) -> Tensor:
    """Entropy of `|s|` as shares of its sum, (B,): 0 if one unit has everything, 1 if all are equal.

    It is divided by the most that so many units can have, `log N`, because maps come on grids of different sizes. A map
    of zeros is even, and so is one of a single unit.
    """
    scores, counted = _flat(saliency, counted)
    size = scores.abs()
    zero = size.sum(1, keepdim=True) == 0
    size = torch.where(zero, counted.double(), size)
    nats = torch.special.entr(size / size.sum(1, keepdim=True)).sum(1)
    most = counted.sum(1).double().log()
    return torch.where(most == 0, 1.0, nats / most)


def _flat(saliency: Tensor, counted: Tensor | None) -> tuple[Tensor, Tensor]:
    """Scores (B, N) in float64, 0 where they do not count, and where they do."""
    scores = saliency.double().flatten(1)
    check_that(bool(scores.isfinite().all()), "finite maps", "NaN or infinity")
    if counted is None:
        return scores, torch.ones_like(scores, dtype=torch.bool)
    shapes = tuple(saliency.shape), tuple(counted.shape)
    check_that(shapes[0] == shapes[1], f"counted of shape {shapes[0]}", shapes[1])
    counted = counted.to(scores.device).flatten(1)
    return scores.masked_fill(~counted, 0.0), counted


@register_metric(
    "compactness",
    function=compactness,
    title="How large is the part of the map that carries no weight?",
    paper="Brocki, Binda & Chung, CDAM, 2023, arXiv:2312.02364",
    passes="0",
    traps="High for any spiky noise: never judge by it alone. Enlarging a map changes it, so it is taken at the map's "
    "own resolution, and methods with other grids cannot be compared. `entropy` is a share of the most that the grid "
    "allows, from 0 to 1; a blot has a lower share on a coarse grid all the same. By default a map of zeros does not "
    "count; presets `cdam` and `cdam_code` give it 1 and 0, as their formulas do.",
    presets={
        "default": CompactnessProtocol(),
        "cdam": CompactnessProtocol("paper"),
        "cdam_code": CompactnessProtocol("code"),
    },
)
class Compactness(PerImage):
    """Share of units without weight (higher is more compact), Gini index (higher) and entropy over log N (lower)."""

    columns = ("value", "gini", "entropy")
    better = (True, True, False)
    protocol: CompactnessProtocol

    def of(self, case: Case) -> tuple[Any, ...]:
        if case.subject.batch.modality == "image":
            return (JudgedMaps(tuple(case.ids), check_map(case.subject, case.saliency).flatten(1)),)
        units = text_units(case.subject, case.saliency, "token")
        return (JudgedMaps(tuple(case.ids), units.scores, units.counted),)

    def score(self, maps: JudgedMaps) -> Tensor:
        part = self.protocol
        value = compactness(maps.saliency, part.share, part.mode, maps.truth)
        return torch.stack([value, gini(maps.saliency, maps.truth), entropy(maps.saliency, maps.truth)], 1)
