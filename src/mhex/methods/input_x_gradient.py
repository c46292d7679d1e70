"""Input x gradient, on pixels or word embeddings."""

from torch import Tensor

from mhex.capture import Needs, Trace
from mhex.methods._shared import detach_float32, tell_cancelled
from mhex.registry import register


@register(
    "input-x-gradient",
    title="Each input value times its gradient.",
    paper="Shrikumar et al., 2016, arXiv:1605.01713",
    needs=Needs(keep={"input": "last"}, graph="input"),
    signed=True,
    passes="F + B",
    budget=(1.3, "F+B"),
    use="As a baseline that every differentiable model allows.",
    avoid="As the only explanation: it is noisy, and complete only for piecewise linear models. Where word embeddings "
    "enter a layer norm directly, as in DeBERTa, scores are 0 up to rounding, and a warning says so.",
)
def input_x_gradient(trace: Trace, y: Tensor) -> Tensor:
    r"""`S = sum_c x_c dy/dx_c`: over colour channels for images, (B, H, W), over the embedding for text, (B, T)."""
    (gradient,) = trace.gradient(y, trace.input)
    products = detach_float32(trace.input) * detach_float32(gradient)
    channels = 1 if trace.batch.modality == "image" else -1
    scores = products.sum(channels)
    tell_cancelled(trace, "input-x-gradient", scores[:, None], products.abs().sum(channels)[:, None])
    return scores
