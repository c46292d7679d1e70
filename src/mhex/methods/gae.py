"""Generic attention explainability (GAE), also called relevance propagation."""

from torch import Tensor

from mhex.capture import Needs, Trace
from mhex.capture.attention import EVERY
from mhex.methods._shared import beyond_skips
from mhex.registry import register


@register(
    "gae",
    title="Rollout of attention weighted by its positive class gradient.",
    paper="Chefer, Gur & Wolf, ICCV 2021, arXiv:2103.15679",
    needs=Needs(keep={"attention": "all"}, graph="attention"),
    signed=False,
    passes="F + B",
    budget=(1.3, "F+B"),
    use="Transformers, image or text, where relevance rules do not serve the model or a map without a sign is wanted: "
    "cheap, class-specific, well tested. By our benchmarks `conservative-lrp` is the better first choice.",
    avoid="For evidence against a class: it is unsigned, and negative gradients are dropped at every block.",
)
def gae(trace: Trace, y: Tensor, *, start_block: int = 1) -> Tensor:
    r"""`S = w^T R`, `R = prod_{b=L}^{s} (I + mean_h (dy/dA(b) * A(b))^+)`, multiplied as a row vector from the top.

    Where the head reads one word alone, as of a decoder, what this word keeps by skip connections alone is left out of
    the map, `S = w^T (R - I)`: it is 1 whatever the word says, and would be most of the map.

    Args:
        start_block: First block `s` of the product, counted from 1.
    """
    blocks = trace.blocks_from(start_block)
    z_gradients = trace.gradient(y, *(block.z for block in blocks))
    row, rows = trace.readout, trace.read_rows  # other rows of the last attention are not read
    for block, z_gradient in zip(reversed(blocks), reversed(z_gradients), strict=True):
        row, rows = row + block.through(row, z_gradient, rows).mean(1), EVERY
    return beyond_skips(trace, row, trace.readout)
