"""Layer-CAM: feature maps weighted element by element with their positive gradient."""

from torch import Tensor

from mhex.capture import Trace
from mhex.methods.gradcam import CAM
from mhex.registry import register


@register(
    "layercam",
    title="Feature maps weighted element by element with their positive class gradient.",
    paper="Jiang et al., IEEE TIP 2021, doi:10.1109/TIP.2021.3089943",
    **CAM,
    use="CNNs at earlier layers (`layer=`), where maps are finer than Grad-CAM's.",
    avoid="At layers of ViTs with features of both signs, where it marks few patches.",
)
def layercam(trace: Trace, y: Tensor) -> Tensor:
    r"""`S = (sum_k (dy/dA_k)^+ * A_k)^+`, element by element."""
    (gradient,) = trace.gradient(y, trace.features)
    return (trace.as_maps(gradient).clamp_min(0) * trace.as_maps(trace.features)).sum(1).clamp_min(0)
