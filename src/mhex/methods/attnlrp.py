"""AttnLRP: relevance flows through softmax and both factors of matrix products, by modified gradients."""

from collections.abc import Mapping
from typing import Any, Literal

from torch import Tensor

from mhex._settings import check_number
from mhex.capture import Anatomy, Trace
from mhex.methods._relevance import ONE_BACKWARD, read_relevance
from mhex.registry import register
from mhex.relevance import Composite, Epsilon, Gamma, gradient_rules


def _rules(options: Mapping[str, Any], anatomy: Anatomy) -> Composite:
    image = anatomy.modality == "image"
    attention, linear, convolution = options["attention"], options["gamma_linear"], options["gamma_conv"]
    linear = (0.05 if image else 0.0) if linear is None else linear
    convolution = (0.25 if image else 0.0) if convolution is None else convolution
    check_number("gamma_linear", linear)
    check_number("gamma_conv", convolution)
    return gradient_rules(
        linear=Gamma(linear) if linear else Epsilon(0.0),
        convolution=Gamma(convolution) if convolution else Epsilon(0.0),
        attention=("constant" if image else "shared") if attention == "auto" else attention,
        projection=Epsilon(0.0) if options["projections"] == "epsilon" else None,
    )


@register(
    "attnlrp",
    title="LRP through softmax and both factors of attention's matrix products.",
    paper="Achtibat et al., AttnLRP, ICML 2024, arXiv:2402.05602",
    **ONE_BACKWARD,
    rules=_rules,
    use="Text models, where queries and keys carry evidence that `conservative-lrp` cannot see; and ViTs at the "
    "resolution of pixels, with the gamma rule against noise.",
    avoid="On text when scores must sum to the class score: the expansion of softmax has an offset, so relevance is "
    "not conserved there, and `strict=True` mostly raises. Images, with constant attention, are conserved.",
)
def attnlrp(
    trace: Trace,
    y: Tensor,
    *,
    attention: Literal["auto", "constant", "shared"] = "auto",
    gamma_linear: float | None = None,
    gamma_conv: float | None = None,
    projections: Literal["epsilon", "gamma"] = "epsilon",
    strict: bool = False,
    max_gap: float = 0.05,
) -> Tensor:
    r"""`S = sum_c x_c dy~/dx_c`, `y~` of the same value as `y` with another gradient; pixels, or word embeddings.

    Products share relevance between both factors, which is 1/4, 1/4 and 1/2 of the gradients of q, k and v; softmax
    keeps its gradient; the sigma of LayerNorm is a constant; activations pass relevance on; linear layers and
    convolutions follow the epsilon or the gamma rule.

    Images follow the recipe that is published for ViTs (the authors' example for torchvision's): attention
    probabilities are constants; convolutions, such as the patch embedding, follow the gamma rule with 0.25; linear
    layers of the MLPs and the head follow it with 0.05; the projections of queries, keys and values and the one after
    attention follow the epsilon rule with epsilon 0. Texts have the full flow through softmax and the epsilon rule in
    all layers.

    Args:
        attention: `"shared"` for the full flow through softmax, `"constant"` for attention probabilities held
            constant; `"auto"` is constant for images and shared for text.
        gamma_linear: Gamma of linear layers, 0 for the epsilon rule; by default 0.05 for images and 0 for text. The
            authors look for the best between 0 and 1.
        gamma_conv: Gamma of convolutions; by default 0.25 for images and 0 for text.
        projections: Rule of the layers that project into attention and out of it: `"epsilon"`, or `"gamma"` for the
            rule of the other layers of their kind.
        strict: Raise an error if more relevance than `max_gap` is lost or made besides what biases took.
        max_gap: As a share of the class score.
    """
    return read_relevance(trace, y, strict, max_gap)
