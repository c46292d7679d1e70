"""Layer-wise relevance propagation, with a fixed rule for every operation, down to pixels or word embeddings."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from mhex.capture import AlphaBeta, Anatomy, Box, Composite, Epsilon, Gamma, Separate, Trace, relevance_rules
from mhex.errors import ArgumentError, MhexWarning
from mhex.methods._relevance import INPUT, check_choice, check_number, read_relevance
from mhex.registry import register

_MUCH = 2.0  # of the relevance, lost to constants


def _rules(options: Mapping[str, Any], anatomy: Anatomy) -> Composite:
    rule, epsilon = options["rule"], options["epsilon"]
    check_choice("rule", rule, ("epsilon", "alphabeta", "gamma"))
    check_choice("residual", options["residual"], ("renormalised", "ratio"))
    check_choice("input_rule", options["input_rule"], ("box", "same"))
    check_choice("compat", options["compat"], (None, "chefer-lrp"))
    check_number("epsilon", epsilon)
    check_number("gamma", options["gamma"])
    check_number("alpha", options["alpha"], 1.0)
    for name, of, usual in (("gamma", "gamma", 0.25), ("alpha", "alphabeta", 1.0)):
        if options[name] != usual and rule != of:
            raise ArgumentError(f"Expected rule={of!r} where {name}= is given, but got rule={rule!r}.")
    boxed = options["input_rule"] == "box" and anatomy.modality == "image"
    if options["compat"] is not None:
        return relevance_rules(Separate(), "ratio", Box(1e-9) if boxed else None, 1e-9)
    shares = {
        "epsilon": Epsilon(epsilon),
        "alphabeta": AlphaBeta(options["alpha"], epsilon),
        "gamma": Gamma(options["gamma"], epsilon),
    }
    return relevance_rules(shares[rule], options["residual"], Box(epsilon) if boxed else None, epsilon)


@register(
    "lrp",
    title="Relevance handed down layer by layer, from the class score to pixels or word embeddings.",
    paper="Bach et al., PLoS ONE 2015, doi:10.1371/journal.pone.0130140",
    modalities=("image", "text"),
    needs=INPUT,
    signed=True,
    class_specific=True,
    passes="F + B",
    budget=(2.0, "F+B"),
    rules=_rules,
    use="CNNs such as VGG and ResNet, where it is well understood; `rule='gamma'` or `'alphabeta'` give quiet maps. "
    "Batch norms are folded into the layer before them without touching the model.",
    avoid="On Transformers: relevance is divided by attention logits and sums near 0, so that a few patches or words "
    "may take most of it, and rounding in float32 shows; `conservative-lrp` and `attnlrp` are made for them. With "
    "`rule='epsilon'`, CNNs are noisy.",
)
def lrp(
    trace: Trace,
    y: Tensor,
    *,
    rule: str = "epsilon",
    epsilon: float = 1e-6,
    alpha: float = 1.0,
    gamma: float = 0.25,
    residual: str = "renormalised",
    input_rule: str = "box",
    compat: str | None = None,
    strict: bool = False,
    max_gap: float = 0.05,
) -> Tensor:
    r"""`R_i = sum_j z_ij / stab(y_j) R_j`, `z_ij = x_i w_ij`, from `R = 1` at the class score, or -1 if it is negative.

    So scores above 0 speak for the class; the alpha-beta rule, which follows positive contributions, starts with 1.
    Linear layers and convolutions follow the rule chosen. Matrix products give half to each factor, element by element
    `R_U = U (R / Y) V^T / 2`; activations, softmax and LayerNorm pass relevance on; sums give each term its share,
    scaled within each sample so that no relevance is made. The first layer of an image model follows the box rule,
    between the least and the largest value of each image. Relevance of class tokens and position embeddings stays
    there. Published code for Transformers divides by separate sums, so that a layer may hand down twice what it was
    given, and sums over the batch; `compat="chefer-lrp"` repeats the former.

    Args:
        trace: The observed pass.
        y: Target score, (B,).
        rule: `"epsilon"`, `"alphabeta"` (positive and negative contributions over sums of their own, biases ignored)
            or `"gamma"`.
        epsilon: Stabiliser added to what is divided by, with its sign.
        alpha: Of the alpha-beta rule, from 1 on; beta is alpha - 1.
        gamma: Of the gamma rule.
        residual: `"renormalised"` sums, or `"ratio"` for shares place by place, as for CNNs in other packages.
        input_rule: `"box"`, or `"same"` for the rule of the other layers.
        compat: `"chefer-lrp"` for the published baseline of Transformers, which does not conserve relevance; then
            the other options of rules do not matter.
        strict: Raise an error if more relevance than `max_gap` is lost or made besides what biases took.
        max_gap: As a share of the relevance at the class score.
    """
    # Positive contributions speak for the class whatever the sign of its score.
    found = read_relevance(trace, y, strict, max_gap, signed=rule != "alphabeta" and compat is None)
    taken = float((trace.diagnostics["lost_to_biases"] / trace.diagnostics["relevance_in"]).abs().max())
    if taken > _MUCH and compat is None:
        warnings.warn(
            f"For some sample biases and other constants of the model took {taken:.3g} times the relevance that there "
            "was, and what is left cancels: its map says little. conservative-lrp and attnlrp hold up better.",
            MhexWarning,
            stacklevel=2,
        )
    return found
