"""Composites: tables from operations to rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import nn

from mhex.relevance import elementwise, products, sums
from mhex.relevance.affine import Epsilon, Shares, affine, folded_norm
from mhex.relevance.elementwise import written_out
from mhex.relevance.flow import Flow

Rule = Callable[..., Any]
EXACT = Epsilon(0.0)


@dataclass(frozen=True)
class Composite:
    """A variant of relevance propagation.

    Attributes:
        flow: What the backward pass carries: a modified `"gradient"`, or `"relevance"` itself.
        rules: From the name of an operation to its rule, called as `rule(flow, operation, *args, **kwargs)` in place
            of the operation.
        entrance: Rule of the first layer of the network, where it has one of its own.
        partial: True if operations without a rule are meant to keep their gradient.
    """

    flow: Literal["gradient", "relevance"]
    rules: Mapping[str, Rule] = field(default_factory=dict)
    entrance: Shares | None = None
    partial: bool = False

    def begin(self, model: nn.Module, size: int) -> Flow:
        """The state of a pass of a model over a batch of `size` samples."""
        flow = Flow(self, size)
        flow.check_precision(model)
        flow.written_out = written_out(model)
        return flow


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
    rules: dict[str, Rule] = {
        "linear": affine(linear, projection),
        "convolution": affine(convolution or linear, projection),
        "batch_norm": folded_norm(elementwise.affine_norm),
        "layer_norm": elementwise.frozen_layer_norm,
        "rms_norm": elementwise.frozen_rms_norm,
        "group_norm": elementwise.frozen_group_norm,
        "activation": elementwise.ratio_of_activation if activation == "identity" else _as_it_is,
        "gate": elementwise.cut,
        "length": elementwise.cut,
        "softmax": elementwise.cut if constant else _as_it_is,
        "attention": products.constant_attention if constant else products.shared_attention,
        "matmul": products.halved(0.0),
        "multiply": products.scaled,
        "divide": products.scaled,
        "add": sums.plain_sum,
        "subtract": sums.plain_sum,
        "concatenate": sums.joined,
    }
    return Composite("gradient", rules)


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
    split = (sums.renormalised if residual == "renormalised" else sums.by_ratio)(epsilon, floor)
    passing = ("activation", "layer_norm", "rms_norm", "group_norm", "softmax")
    rules: dict[str, Rule] = {
        **dict.fromkeys(("linear", "convolution"), affine(linear)),
        **dict.fromkeys(passing, elementwise.passed),
        **dict.fromkeys(("multiply", "divide", "negate"), products.scaled),
        **dict.fromkeys(("add", "subtract"), sums.summed(split)),
        "batch_norm": folded_norm(elementwise.passed),
        "gate": elementwise.cut,
        "length": elementwise.cut,
        "attention": products.halved_attention(epsilon, floor),
        "matmul": products.halved(epsilon, floor),
        "pool": sums.by_share(epsilon, floor),
        "concatenate": sums.joined,
    }
    return Composite("relevance", rules, entrance)


def guided_rules() -> Composite:
    """Guided backpropagation: every operation keeps its gradient but the ReLU."""
    return Composite("gradient", {"activation": elementwise.guided, "bent": elementwise.guided}, partial=True)


def _as_it_is(flow: Any, operation: Rule, *args: Any, **kwargs: Any) -> Any:
    return operation(*args, **kwargs)
