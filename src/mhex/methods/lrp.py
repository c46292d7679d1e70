"""Layer-wise relevance propagation, with a fixed rule for every operation, down to pixels or word embeddings."""

from collections.abc import Mapping
from typing import Any, Literal

from torch import Tensor

from mhex._settings import check_number
from mhex.capture import Anatomy, Needs, Trace
from mhex.errors import ArgumentError, warn
from mhex.methods._relevance import FLOOR, INPUT, ONE_BACKWARD, TOKENS, published_baseline, read_relevance
from mhex.registry import register
from mhex.relevance import AlphaBeta, Box, Composite, Epsilon, Gamma, relevance_rules

_MUCH = 2.0  # of the relevance, lost to constants


def _rules(options: Mapping[str, Any], anatomy: Anatomy) -> Composite:
    rule, epsilon = options["rule"], options["epsilon"]
    check_number("epsilon", epsilon)
    check_number("floor", options["floor"])
    check_number("gamma", options["gamma"])
    check_number("alpha", options["alpha"], 1.0)
    for name, of, usual in (("gamma", "gamma", 0.25), ("alpha", "alphabeta", 1.0)):
        if options[name] != usual and rule != of:
            raise ArgumentError(f"Expected rule={of!r} where {name}= is given, but got rule={rule!r}.")
    boxed = options["input_rule"] == "box" and anatomy.modality == "image"
    if options["compat"] is not None:
        return published_baseline(boxed)
    shares = {
        "epsilon": Epsilon(epsilon),
        "alphabeta": AlphaBeta(options["alpha"], epsilon),
        "gamma": Gamma(options["gamma"], epsilon),
    }
    entrance = Box(epsilon) if boxed else None
    return relevance_rules(shares[rule], options["residual"], entrance, epsilon, options["floor"])


def _where_read(options: Mapping[str, Any], anatomy: Anatomy) -> Needs:
    """The published code stops where texts enter the first block; everything else is read at the input."""
    published = options["compat"] is not None and anatomy.modality == "text" and anatomy.blocks
    return TOKENS if published else INPUT


@register(
    "lrp",
    title="Relevance handed down layer by layer, from the class score to pixels or word embeddings.",
    paper="Bach et al., PLoS ONE 2015, doi:10.1371/journal.pone.0130140",
    **ONE_BACKWARD,
    adapt=_where_read,
    rules=_rules,
    use="CNNs such as VGG and ResNet, where it is well understood; `rule='gamma'` or `'alphabeta'` give quiet maps. "
    "Batch norms are folded into the layer before them without touching the model.",
    avoid="On Transformers with `rule='epsilon'`: relevance of both signs grows from block to block and cancels; "
    "`conservative-lrp` and `attnlrp` are made for them. CNNs are noisy with it too.",
)
def lrp(
    trace: Trace,
    y: Tensor,
    *,
    rule: Literal["epsilon", "alphabeta", "gamma"] = "epsilon",
    epsilon: float = 1e-6,
    alpha: float = 1.0,
    gamma: float = 0.25,
    residual: Literal["ratio", "renormalised"] = "ratio",
    floor: float = FLOOR,
    input_rule: Literal["box", "same"] = "box",
    compat: Literal["chefer-lrp"] | None = None,
    strict: bool = False,
    max_gap: float = 0.05,
) -> Tensor:
    r"""`R_i = sum_j z_ij / stab(y_j) R_j`, `z_ij = x_i w_ij`, from `R = 1` at the class score, or -1 if it is negative.

    So scores above 0 speak for the class; the alpha-beta rule, which follows positive contributions, starts with 1.
    Linear layers and convolutions follow the rule chosen. Matrix products give half to each factor, element by element
    `R_U = U (R / Y) V^T / 2`; activations, softmax and LayerNorm pass relevance on; sums give each term its share. The
    first layer of an image model follows the box rule, between the least and the largest value of each image. Relevance
    of class tokens and position embeddings stays there.

    What LayerNorm and softmax pass on is not in proportion to the sums below them, and of these some are close to 0:
    divided by them as they are, relevance would go to the few places where they are closest, and depend on `epsilon`
    and on rounding. In networks with such norms or softmax, what sums and products are divided by has a size of `floor`
    times that of its terms at least, `|a + b| >= floor (|a| + |b|)`; what this takes counts in `conservation_gap`.
    Networks with batch norms and ReLU, such as ResNets, are left as they are.

    Published code for Transformers divides by separate sums, so that a layer may hand down twice what it was given,
    and has no floor; `compat="chefer-lrp"` repeats it.

    Args:
        rule: `"epsilon"`, `"alphabeta"` (positive and negative contributions over sums of their own, biases ignored)
            or `"gamma"`.
        epsilon: Stabiliser added to what is divided by, with its sign.
        alpha: Of the alpha-beta rule, from 1 on; beta is alpha - 1.
        gamma: Of the gamma rule.
        residual: `"ratio"` for each term's share in a sum, place by place, as in other packages; `"renormalised"` for
            the rule of Chefer et al. (CVPR 2021), which scales the terms within each sample so that no relevance is
            made, and by this changes the sign of a term whose relevance sums below 0.
        floor: Least size of what sums and products are divided by, as a share of the sizes of their terms, in networks
            with LayerNorm, RMSNorm, GroupNorm or softmax; 0 for none.
        input_rule: `"box"`, or `"same"` for the rule of the other layers.
        compat: `"chefer-lrp"` for the published baseline of Transformers, which does not conserve relevance and reads
            texts where they enter the first block; then the other options of rules do not matter.
        strict: Raise an error if more relevance than `max_gap` is lost or made besides what biases took.
        max_gap: As a share of the relevance at the class score.
    """
    # Positive contributions speak for the class whatever the sign of its score.
    scores = read_relevance(trace, y, strict, max_gap, signed=rule != "alphabeta" and compat is None)
    share = (trace.diagnostics["lost_to_biases"] / trace.diagnostics["relevance_in"]).abs().max()
    if compat is None:
        trace.check_later(share > _MUCH, lambda: _tell_of_biases(float(share)))
    return scores


def _tell_of_biases(share: float) -> None:
    warn(
        f"For some sample biases and other constants of the model took {share:.3g} times the relevance that there "
        "was, and what is left cancels: its map says little. conservative-lrp and attnlrp hold up better."
    )
