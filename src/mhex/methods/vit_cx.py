"""ViT-CX: the class probability of the image seen through masks, which are clusters of patch-embedding channels."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from mhex._optional import require
from mhex.capture import Needs, Trace
from mhex.errors import ArgumentError
from mhex.methods._tokens import check_count, fixed
from mhex.registry import register
from mhex.targets import ResolvedTarget


@register(
    "vit-cx",
    title="Class probability of the image seen through masks from clustered patch-embedding channels.",
    paper="Xie, Li, Cao & Zhang, ViT-CX, IJCAI 2023, arXiv:2211.03064",
    modalities=("image",),
    needs=Needs(keep={"tokens": "last"}),
    signed=False,
    class_specific=True,
    passes="(1 + 2 K) F, K masks",
    target="scores",
    use="ViTs when a map from probabilities alone, without gradients, is wanted.",
    avoid="When time matters: two passes for every mask; `max_masks` bounds them.",
)
def vit_cx(
    trace: Trace,
    target: ResolvedTarget,
    *,
    distance: float = 0.1,
    max_masks: int | None = None,
    noise: float = 0.1,
    batch_size: int | None = None,
) -> Tensor:
    r"""`S(u) = 1/K sum_k s_k M_k(u) / sum_l M_l(u)`, `s_k = p(x M_k + n_k) - p(x + n_k) + p(x)`.

    A mask `M_k` is the sum of the channels of a cluster, each scaled to [0, 1] on the patch grid, as a map of the image
    scaled to [0, 1]. `n_k = (1 - M_k) e_k` is noise where the mask hides the image. Clusters of channels: complete
    linkage of the distance `1 - cos`. All classes share the passes. Of a class, scores below 0, where noise alone
    raised the probability, are set to 0; other scores may be of either sign, and their maps too.

    Args:
        trace: The observed pass.
        target: What is explained: the probability of a class, or the score itself where a target has no probability.
        distance: Clusters are no wider than this.
        max_masks: The most masks; more clusters are joined further. None for as many as there are.
        noise: Standard deviation of the noise, in units of the normalised image.
        batch_size: The most images in one pass; None for what is good for the device. It does not change the result.
    """
    check_count("batch_size", batch_size, or_none=True)
    check_count("max_masks", max_masks, or_none=True)
    for name, value, most in (("distance", distance, 2.0), ("noise", noise, 1e6)):
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= most:
            raise ArgumentError(f"Expected {name} to be a number from 0 to {most:g}, but got {value!r}.")
    images = trace.batch.pixels
    channels = trace.on_grid(fixed(trace.blocks[-1].site("tokens")).mT)  # (B, D, h, w)
    plain = target.shares(trace.outcome).detach()
    grids = [_masks(one, distance, max_masks) for one in channels]
    weighted = images.new_zeros(len(images), target.count, *images.shape[-2:], dtype=plain.dtype)
    cover = torch.zeros_like(weighted[:, :1])
    for n, grid in enumerate(grids):
        run = partial(_effects, trace, target, n, grid, noise)
        # Each mask needs two passes, so half as many masks at a time.
        pairs = None if batch_size is None else max(1, batch_size // 2)
        for _, _, (effect, masks) in trace.chunks(len(grid), run, "ViT-CX", pairs, weight=2):
            weighted[n] += torch.einsum("mk,mhw->khw", effect + plain[n], masks)
            cover[n] += masks.sum(0)
    counts = torch.tensor([max(1, len(grid)) for grid in grids], device=images.device)
    trace.cost["forwards"] += 2 * max(map(len, grids))
    result = weighted / (counts[:, None, None, None] * cover.clamp_min(torch.finfo(cover.dtype).tiny))
    trace.signed = not target.probable
    return result.clamp_min(0) if target.probable else result


def _effects(
    trace: Trace, target: ResolvedTarget, n: int, grid: Tensor, level: float, start: int, stop: int
) -> tuple[Tensor, Tensor]:
    """`p(x M + n) - p(x + n)` for some masks and all targets, (M, K), and these masks."""
    image = trace.batch.pixels[n]
    masks = _on_image(grid[start:stop], trace.batch.pixels)
    drawn = torch.stack([trace.noise(m, *image.shape) for m in range(start, stop)])
    hidden = (1 - masks[:, None]) * level * drawn.to(masks)
    pairs = torch.cat([image.to(masks) * masks[:, None] + hidden, image.to(masks) + hidden]).to(image.dtype)
    shares = target.shares(trace.rerun(pairs, torch.full((len(pairs),), n, device=pairs.device)), sample=n)
    return shares[: len(masks)] - shares[len(masks) :], masks


def _masks(channels: Tensor, distance: float, most: int | None) -> Tensor:
    """Clusters of one sample's channels (D, h, w), as maps (K, h, w) of values from 0 to 1."""
    hierarchy = require("scipy.cluster.hierarchy")
    low, high = channels.amin((1, 2), keepdim=True), channels.amax((1, 2), keepdim=True)
    varying = (high > low)[:, 0, 0]  # a constant channel shows nothing
    maps = ((channels - low) / (high - low).where(high > low, 1.0))[varying]
    if len(maps) < 2:
        return maps
    flat = F.normalize(maps.flatten(1).double().cpu(), dim=1)
    apart = (1 - flat @ flat.mT).clamp_min(0)
    above = torch.triu_indices(len(flat), len(flat), 1)
    tree = hierarchy.linkage(apart[above[0], above[1]].numpy(), "complete")
    labels = hierarchy.fcluster(tree, t=distance, criterion="distance")
    if most is not None and labels.max() > most:
        labels = hierarchy.fcluster(tree, t=most, criterion="maxclust")
    groups = F.one_hot(torch.as_tensor(labels, dtype=torch.long) - 1).to(maps)  # (D, K)
    return torch.einsum("dk,dhw->khw", groups, maps)


def _on_image(grid: Tensor, images: Tensor) -> Tensor:
    """Maps (M, h, w) at the size of the image, each from 0 to 1."""
    masks = F.interpolate(grid[:, None], size=images.shape[-2:], mode="bilinear", align_corners=False)[:, 0]
    low, high = masks.amin((1, 2), keepdim=True), masks.amax((1, 2), keepdim=True)
    return (masks - low) / (high - low).where(high > low, 1.0)
