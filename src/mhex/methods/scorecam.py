"""Score-CAM: feature maps weighted by the score of the image seen through them."""

import torch
import torch.nn.functional as F
from torch import Tensor

from mhex._settings import check_count
from mhex.capture import Needs, Trace
from mhex.methods._hiding import all_scores, run_hidden
from mhex.registry import register
from mhex.targets import ResolvedTarget

_STABILISER = 1e-8  # for channels that do not vary


@register(
    "scorecam",
    title="Feature maps weighted by the score of the image seen through them.",
    paper="Wang et al., CVPR Workshops 2020, arXiv:1910.01279",
    modalities=("image",),
    needs=Needs(keep={"features": "last"}),
    signed=False,
    passes="F (1 + K), K channels",
    budget=(1.15, "passes"),
    target="scores",
    use="On CNNs when gradients cannot be had, or are not to be trusted.",
    avoid="When time matters: one pass for every channel, 2048 on a ResNet-50; max_channels= bounds them. The softmax "
    "over logits lets a few channels decide, so maps of confident models can hang on one channel.",
    quick={"image": {"max_channels": 24}},
)
def scorecam(
    trace: Trace, target: ResolvedTarget, *, max_channels: int | None = None, batch_size: int | None = None
) -> Tensor:
    r"""`S = (sum_k a_k A_k)^+`, `a = softmax_k y(x M_k)`, `M_k` the map `A_k` at image size, from 0 to 1.

    Args:
        max_channels: The most channels of a sample that are used: those that vary most over the image (largest sum of
            squares about their mean). None for all.
    """
    check_count("max_channels", max_channels, or_none=True)
    images, maps = trace.batch.pixels, trace.as_maps(trace.features)
    if max_channels is not None and max_channels < maps.shape[1]:
        energy = maps.var((2, 3), correction=0)
        strongest = energy.argsort(dim=1, descending=True, stable=True)[:, :max_channels].sort(1).values
        maps = maps.gather(1, strongest[..., None, None].expand(-1, -1, *maps.shape[2:]))

    def through(grids: Tensor, samples: Tensor) -> Tensor:
        maps = grids[torch.arange(len(samples), device=samples.device), samples]  # every sample has its own
        masks = F.interpolate(maps[:, None], size=images.shape[-2:], mode="bilinear", align_corners=False)
        low, high = masks.amin((2, 3), keepdim=True), masks.amax((2, 3), keepdim=True)
        masks = (masks - low) / (high - low + _STABILISER)
        return (images[samples] * masks).to(images.dtype)

    channels = maps.transpose(0, 1)  # (K, B, h, w)
    scores = all_scores(trace, target, channels, run_hidden(trace, through), "Score-CAM", batch_size)
    return torch.einsum("vbk,vbhw->bkhw", scores.softmax(0).to(maps), channels).clamp_min(0)
