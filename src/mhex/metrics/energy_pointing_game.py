"""Energy-based pointing game: how much of what the map says for the class is on the object?"""

import torch
from torch import Tensor

from mhex.metrics import Protocol, register_metric
from mhex.metrics.pointing_game import LocationMetric, on_mask, skip_empty


def energy_pointing_game(saliency: Tensor, mask: Tensor) -> Tensor:
    """`sum_G max(S, 0) / sum max(S, 0)`, (B,); NaN without anything above 0, and where there is no object.

    Args:
        saliency: Maps (B, h, w); brought to the size of the masks, bilinear.
        mask: (B, H, W): 1 at the object, 0 elsewhere, -1 where the map is not looked at.
    """
    saliency, mask = on_mask(saliency, mask)
    energy = saliency.clamp_min(0).masked_fill(mask < 0, 0.0)
    total = energy.sum((1, 2))
    share = (energy * (mask == 1)).sum((1, 2)) / total
    return skip_empty(share.masked_fill(total == 0, torch.nan), mask)


@register_metric(
    "energy-pointing-game",
    function=energy_pointing_game,
    title="How much of what the map says for the class is on the object?",
    paper="Wang et al., Score-CAM, CVPRW 2020, arXiv:1910.01279",
    passes="0",
    traps="What speaks against the class is not looked at, and a map with nothing for it does not count. A map without "
    "negative values, such as attention, spreads a little everywhere and scores low for it.",
    modalities=("image",),
    data=("mask",),
    presets={"default": Protocol()},
)
class EnergyPointingGame(LocationMetric):
    """Share of the positive part of the map; higher is better."""

    skips = "no object in the mask, or a map with nothing above 0"
