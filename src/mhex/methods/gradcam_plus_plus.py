"""Grad-CAM++: feature maps weighted by their positive gradients, each place with a weight of its own."""

from torch import Tensor

from mhex.capture import Trace
from mhex.methods.gradcam import CAM
from mhex.registry import register

_STABILISER = 1e-6  # the denominator may vanish


@register(
    "gradcam++",
    title="Feature maps weighted by their positive class gradients, each place with a weight of its own.",
    paper="Chattopadhyay et al., WACV 2018, arXiv:1710.11063",
    **CAM,
    use="On CNNs where an image shows the class several times, or in part only: each place counts for itself.",
    avoid="On Vision Transformers: the weights are derived for maps that are nowhere negative. Where gradcam and it "
    "differ much, measure before you trust either.",
)
def gradcam_plus_plus(trace: Trace, y: Tensor) -> Tensor:
    r"""`S = (sum_k a_k A_k)^+`, `a_k = sum_ij G_kij^+ G_kij^2 / (2 G_kij^2 + G_kij^3 sum A_k + 1e-6)`, `G = dy/dA`."""
    (gradient,) = trace.gradient(y, trace.features)
    maps, g = trace.as_maps(trace.features), trace.as_maps(gradient)
    total = maps.sum((2, 3), keepdim=True)
    share = g.square() / (2 * g.square() + g.pow(3) * total + _STABILISER)
    # Places with a negative gradient, where the denominator may be zero, count for nothing.
    weight = (share.masked_fill(g <= 0, 0.0) * g.clamp_min(0)).sum((2, 3), keepdim=True)
    return (weight * maps).sum(1).clamp_min(0)
