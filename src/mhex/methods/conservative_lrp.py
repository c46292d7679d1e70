"""Conservative LRP: attention weights and the scales of LayerNorm are constants, so that relevance is conserved."""

from typing import Literal

from torch import Tensor

from mhex.capture import Trace
from mhex.methods._relevance import ONE_BACKWARD, read_relevance, where_read
from mhex.registry import register
from mhex.relevance import gradient_rules


@register(
    "conservative-lrp",
    title="Gradient times token, with attention weights and LayerNorm scales held constant.",
    paper="Ali et al., XAI for Transformers: Better Explanations through Conservative Propagation, ICML 2022, "
    "arXiv:2202.07304",
    **ONE_BACKWARD,
    adapt=where_read,
    rules=lambda options, anatomy: gradient_rules(activation=options["act"]),
    use="The first choice among the LRP methods for Transformers: one backward pass, signed, and the scores of all "
    "tokens sum to the class score up to what biases took, which is reported.",
    avoid="It says nothing of where the model looks: attention is held constant, so evidence that acts by moving "
    "attention is not seen. On CNNs it is LRP-0, which is noisy; `lrp` with `rule='gamma'` is better there.",
)
def conservative_lrp(
    trace: Trace,
    y: Tensor,
    *,
    level: Literal["auto", "tokens", "input"] = "auto",
    act: Literal["identity", "gradient"] = "identity",
    strict: bool = False,
    max_gap: float = 0.05,
) -> Tensor:
    r"""`S_i = sum_d X_id dy~/dX_id` at the input of the first block.

    `y~` has the same value as `y`, but the gradient treats attention probabilities and the sigma of LayerNorm as
    constants (centring is kept), and the slope of an activation is replaced by `phi(x) / x`. The class score minus
    `sum_i S_i` is what biases, position embeddings and the like absorbed: `diagnostics["lost_to_biases"]`. The paper
    speaks of attention and LayerNorm alone and leaves activations their slope: `act="gradient"` is its form, in which
    activations such as GELU make and lose relevance.

    Args:
        level: `"tokens"` reads what enters the first block, `"input"` pixels or word embeddings; `"auto"` is tokens
            where the model has blocks.
        act: `"identity"` for activations that pass relevance on, or `"gradient"` for their plain slope, as in the
            paper.
        strict: Raise an error if more relevance than `max_gap` is lost or made besides what biases took.
        max_gap: As a share of the class score.
    """
    return read_relevance(trace, y, strict, max_gap)
