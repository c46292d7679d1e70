"""Grad-CAM: feature maps weighted by their mean gradient."""

from typing import Any

from torch import Tensor

from mhex.capture import Needs, Trace
from mhex.registry import register

# What methods of feature maps and their gradients register with.
CAM: dict[str, Any] = {
    "modalities": ("image",),
    "needs": Needs(keep={"features": "last"}, graph="features"),
    "signed": False,
    "passes": "F + gradient of the layers above",
    "budget": (1.15, "F"),
}


@register(
    "gradcam",
    title="Feature maps weighted by their mean class gradient.",
    paper="Selvaraju et al., ICCV 2017, arXiv:1610.02391",
    **CAM,
    use="The first choice on CNNs: cheap, and robust to how it is computed.",
    avoid="For fine detail, since the map has the grid of the last layer, and on ViTs, where attention methods "
    "localise better.",
)
def gradcam(trace: Trace, y: Tensor) -> Tensor:
    r"""`S = (sum_k a_k A_k)^+`, `a_k = mean_ij dy/dA_kij`; on a ViT, `A` is what enters the last attention."""
    (gradient,) = trace.gradient(y, trace.features)
    weight = trace.as_maps(gradient).mean((2, 3), keepdim=True)
    return (weight * trace.as_maps(trace.features)).sum(1).clamp_min(0)
