"""absLRP: positive contributions over the absolute output of neurons, contrasted with all other classes."""

import torch
from torch import Tensor

from mhex.capture import Trace, full
from mhex.methods._relevance import INPUT
from mhex.registry import register
from mhex.relevance import absolute_rules
from mhex.targets import ResolvedTarget


@register(
    "abslrp",
    title="Relevance of positive contributions for the class, minus that for all other classes.",
    paper="Vukadin et al., Relative Absolute Magnitude LRP, ACM TIST 2024, doi:10.1145/3649458",
    needs=INPUT,
    signed=True,
    passes="F + 2 B",
    budget=(4.0, "F+B"),
    target="scores",
    rules=lambda options, anatomy: absolute_rules(),
    use="To see what tells a class from the others, at the resolution of pixels, on CNNs and ViTs alike.",
    avoid="When sizes of scores matter: every operation scales relevance to mass 1, so branches of different strength "
    "count alike, and nothing is conserved.",
)
def abslrp(trace: Trace, target: ResolvedTarget) -> Tensor:
    r"""`S = R^+ - R^-`, each by `R_i = 2 sum_j z_ij^+ / |y_j| R_j`, divided by `sum_i |R_i|` at every operation.

    `R^+` starts with 1 at the class, `R^-` with the same share at each of the other classes; concepts, functions and
    outputs of a regression have no others, and `S = R^+`; the two classes of a single logit are each other's opposite.
    Summed over colour channels or the embedding, divided by the largest absolute value of the map. What a mask hides
    from attention has no relevance and no part in sums, whether the mask is minus infinity or a large negative number.

    Published code serves VGGs, ResNets and ViTs of timm; of the ViTs, those with one class token and a square grid. It
    differs from this in three places. Batch norms are operations of their own there, here they are folded into the
    layer before them. Dropout is an operation too, which takes the relevance of negative values away, here it passes
    relevance on. The packed projection of q, k and v has its signed weights where all other layers have the absolute
    ones, here it has these too.
    """
    maps = []
    for k in range(target.count):
        y = target.score(trace.outcome, k)
        mass = _mass(trace, y, plain=not target.names)  # concepts have names
        logits = full(trace.logits)
        if target.probable and logits.shape[1] > 1:
            mass = mass - _mass(trace, (logits.sum(1) - y) / (logits.shape[1] - 1), plain=True)
        largest = mass.flatten(1).abs().amax(1).clamp_min(torch.finfo(mass.dtype).tiny)
        maps.append(mass / largest.reshape(-1, *[1] * (mass.dim() - 1)))
    return torch.stack(maps, 1)


def _mass(trace: Trace, y: Tensor, plain: bool) -> Tensor:
    """Relevance of the input for a score (B,), summed over channels: (B, H, W), or (B, T) of words."""
    # Plain: logits start with their slope, 1 for a class; else with their share in the score.
    (relevance,) = trace.gradient(y, trace.input) if plain else trace.relevance(y, trace.input)
    trace.diagnostics.clear()  # nothing is conserved by intent
    return full(relevance).sum(1 if trace.batch.modality == "image" else -1)
