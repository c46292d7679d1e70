"""Guided backpropagation: negative gradients stop at every ReLU."""

from torch import Tensor

from mhex.capture import Trace
from mhex.methods._relevance import INPUT
from mhex.methods._shared import detach_float32, tell_cancelled
from mhex.registry import register
from mhex.relevance import guided_rules


@register(
    "guided-backprop",
    title="Gradient of the input, with negative gradients stopped at every ReLU.",
    paper="Springenberg et al., Striving for Simplicity, 2014, arXiv:1412.6806",
    needs=INPUT,
    signed=True,
    passes="F + B",
    budget=(1.3, "F+B"),
    relu=True,
    rules=lambda options, anatomy: guided_rules(),
    use="Sharp pictures of what a ReLU network reacts to.",
    avoid="As evidence for a class: it is close to an edge detector and barely depends on the class, or even on the "
    "weights of upper layers. It is not defined for GELU networks, and refuses them; of text models, "
    "most end in a tanh and are refused too.",
)
def guided_backprop(trace: Trace, y: Tensor) -> Tensor:
    r"""`S = sum_c dy/dx_c`, where a ReLU hands down `g [x > 0] [g > 0]`; over colour channels, or the embedding."""
    (gradient,) = trace.gradient(y, trace.input)
    gradient, channels = detach_float32(gradient), 1 if trace.batch.modality == "image" else -1
    scores = gradient.sum(channels)
    tell_cancelled(trace, "guided-backprop", scores[:, None], gradient.abs().sum(channels)[:, None])
    return scores
