"""ViT-CX: the class probability of the image seen through masks, which are clusters of patch-embedding channels."""

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from mhex._settings import check_count, check_number
from mhex.capture import Needs, Trace
from mhex.errors import require
from mhex.methods._shared import detach_float32
from mhex.registry import register
from mhex.targets import ResolvedTarget


@register(
    "vit-cx",
    title="Class probability of the image seen through masks from clustered patch-embedding channels.",
    paper="Xie, Li, Cao & Zhang, ViT-CX, IJCAI 2023, arXiv:2211.03064",
    modalities=("image",),
    needs=Needs(keep={"tokens": "last"}),
    signed=False,
    passes="(1 + 2 K) F, K masks",
    target="scores",
    use="ViTs when a map from probabilities alone, without gradients, is wanted.",
    avoid="When time matters: two passes for every mask; `max_masks` bounds them.",
    quick={"image": {"max_masks": 32}},
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

    Channels of the patch tokens are enlarged to the image and scaled to [0, 1], and clusters of them are made: complete
    linkage of the distance `1 - cos` between enlarged channels, as in the authors' code. A mask `M_k` is the sum of the
    channels of a cluster, scaled to [0, 1]. `n_k = (1 - M_k) e_k` is noise where the mask hides the image. All classes
    share the passes. Of a class, scores below 0, where noise alone raised the probability, are set to 0; other scores
    may be of either sign, and their maps too.

    Args:
        target: What is explained: the probability of a class, or the score itself where a target has no probability.
        distance: Clusters are no wider than this.
        max_masks: The most masks; more clusters are joined further. None for as many as there are.
        noise: Standard deviation of the noise, in units of the normalised image.
    """
    check_count("max_masks", max_masks, or_none=True)
    check_number("distance", distance, high=2.0)
    check_number("noise", noise, high=1e6)
    images = trace.batch.pixels
    channels = trace.on_grid(detach_float32(trace.blocks[-1].site("tokens")).mT)  # (B, D, h, w)
    plain = target.shares(trace.outcome).detach()
    size = (images.shape[-2], images.shape[-1])
    grids = [_masks(sample, size, distance, max_masks) for sample in channels]
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
    masks = _on_image(grid[start:stop], (image.shape[-2], image.shape[-1]))
    noise = torch.stack([trace.noise(m, *image.shape) for m in range(start, stop)])
    hidden = (1 - masks[:, None]) * level * noise.to(masks)
    pairs = torch.cat([image.to(masks) * masks[:, None] + hidden, image.to(masks) + hidden]).to(image.dtype)
    shares = target.shares(trace.rerun(pairs, torch.full((len(pairs),), n, device=pairs.device)), sample=n)
    return shares[: len(masks)] - shares[len(masks) :], masks


def _masks(channels: Tensor, size: tuple[int, int], distance: float, most: int | None) -> Tensor:
    """Sums of the channels of each cluster, (K, h, w), of the channels (D, h, w) of one sample on the patch grid."""
    # Clusters are those of the channels at the size of the image, where each lies between 0 and 1: interpolation
    # smooths a channel, so channels are nearer to each other there than on the patch grid.
    hierarchy = require("scipy.cluster.hierarchy")
    maps = channels[channels.amax((1, 2)) > channels.amin((1, 2))]  # a constant channel shows nothing
    # A few at a time: all channels at the size of the image would take much memory.
    maps = torch.cat([_scale(part, _enlarge(part, size)) for part in torch.split(maps, 64)])
    if len(maps) < 2:
        return maps
    # Interpolation is linear in rows and in columns, so products at the size of the image are products on the grid.
    rows, columns = (_stretch(n, many) for n, many in zip(maps.shape[1:], size, strict=True))
    grid = maps.double().cpu()
    across = (rows.mT @ rows) @ grid @ (columns.mT @ columns)
    products = across.flatten(1) @ grid.flatten(1).mT
    norms = products.diagonal().sqrt()
    apart = (1 - products / norms[:, None] / norms).clamp_min(0)
    above = torch.triu_indices(len(maps), len(maps), 1)
    tree = hierarchy.linkage(apart[above[0], above[1]].numpy(), "complete")
    labels = hierarchy.fcluster(tree, t=distance, criterion="distance")
    if most is not None and labels.max() > most:
        labels = hierarchy.fcluster(tree, t=most, criterion="maxclust")
    groups = F.one_hot(torch.as_tensor(labels, dtype=torch.long) - 1).to(maps)  # (D, K)
    return torch.einsum("dk,dhw->khw", groups, maps)


def _stretch(n: int, many: int) -> Tensor:
    """The matrix (many, n) that interpolates n values linearly to so many."""
    return F.interpolate(torch.eye(n, dtype=torch.float64)[None], size=many, mode="linear", align_corners=False)[0].mT


def _enlarge(maps: Tensor, size: tuple[int, int]) -> Tensor:
    """Maps (M, h, w) at the size of the image."""
    return F.interpolate(maps[:, None], size=size, mode="bilinear", align_corners=False)[:, 0]


def _on_image(grid: Tensor, size: tuple[int, int]) -> Tensor:
    """Maps (M, h, w) at the size of the image, each from 0 to 1."""
    large = _enlarge(grid, size)
    return _scale(large, large)


def _scale(maps: Tensor, large: Tensor) -> Tensor:
    """Maps (M, h, w), scaled so that the same maps enlarged (M, H, W) lie between 0 and 1."""
    low, high = large.amin((1, 2), keepdim=True), large.amax((1, 2), keepdim=True)
    return (maps - low) / (high - low).where(high > low, 1.0)
