"""Composites: tables from operations to rules, for each variant of relevance propagation."""

from typing import Any, Literal

from mhex.relevance import operation_rules
from mhex.relevance.flow import Composite, Rule
from mhex.relevance.linear_rules import Epsilon, Shares, affine, folded_norm

EXACT = Epsilon(0.0)


def gradient_rules(
    linear: Shares = EXACT,
    convolution: Shares | None = None,
    attention: Literal["constant", "shared"] = "constant",
    activation: Literal["identity", "gradient"] = "identity",
    projection: Shares | None = None,
) -> Composite:
    """Rules as modified gradients: relevance is the activation times what the backward pass carries.

    Args:
        linear: Rule of linear layers.
        convolution: Rule of convolutions; that of linear layers if None.
        attention: Whether attention probabilities are constants, or relevance is shared by both factors of products.
        activation: Whether activations pass relevance on, or keep their slope.
        projection: Rule of layers that project into attention or out of it; that of the others if None.
    """
    constant = attention == "constant"
    table: dict[str, Rule] = {
        "linear": affine(linear, projection),
        "convolution": affine(convolution or linear, projection),
        "batch_norm": folded_norm(operation_rules.affine_norm),
        "layer_norm": operation_rules.frozen_layer_norm,
        "rms_norm": operation_rules.frozen_rms_norm,
        "group_norm": operation_rules.frozen_group_norm,
        "activation": operation_rules.ratio_of_activation if activation == "identity" else _unchanged,
        "softmax": operation_rules.cut if constant else _unchanged,
        "attention": operation_rules.constant_attention if constant else operation_rules.shared_attention,
        "matmul": operation_rules.halved(0.0),
        "concatenate": operation_rules.joined,
        **dict.fromkeys(("gate", "length"), operation_rules.cut),
        **dict.fromkeys(("multiply", "divide"), operation_rules.scaled),
        **dict.fromkeys(("add", "subtract"), operation_rules.plain_sum),
    }
    return Composite("gradient", table)


def relevance_rules(
    linear: Shares,
    residual: Literal["ratio", "renormalised"] = "ratio",
    entrance: Shares | None = None,
    epsilon: float = 1e-6,
    floor: float = 0.0,
) -> Composite:
    """Rules that hand down relevance itself: norms, activations and softmax pass it on, products share it alike.

    Args:
        linear: Rule of linear layers and convolutions.
        residual: Rule of sums.
        entrance: Rule of the first layer; that of the others if None.
        epsilon: Stabiliser of sums and products.
        floor: Least size of what sums and products are divided by, as a share of the sizes of their terms, in networks
            whose norms or softmax pass relevance on.
    """
    split = (operation_rules.renormalised if residual == "renormalised" else operation_rules.by_ratio)(epsilon, floor)
    passing = ("activation", "layer_norm", "rms_norm", "group_norm", "softmax")
    table: dict[str, Rule] = {
        **dict.fromkeys(("linear", "convolution"), affine(linear, entrance=entrance)),
        **dict.fromkeys(passing, operation_rules.passed),
        **dict.fromkeys(("multiply", "divide", "negate"), operation_rules.scaled),
        **dict.fromkeys(("add", "subtract"), operation_rules.summed(split)),
        **dict.fromkeys(("gate", "length"), operation_rules.cut),
        "batch_norm": folded_norm(operation_rules.passed),
        "attention": operation_rules.halved_attention(epsilon, floor),
        **dict.fromkeys(("matmul", "pool"), operation_rules.halved(epsilon, floor)),
        "concatenate": operation_rules.joined,
    }
    return Composite("relevance", table)


def guided_rules() -> Composite:
    """Guided backpropagation: every operation keeps its gradient but the ReLU."""
    return Composite("gradient", {"activation": operation_rules.guided, "bent": operation_rules.guided}, partial=True)


def _unchanged(flow: Any, operation: Rule, *args: Any, **kwargs: Any) -> Any:
    return operation(*args, **kwargs)
