"""Raw attention: what the read-out attends to in the last block, or in another."""

from torch import Tensor

from mhex.capture import Needs, Trace
from mhex.errors import ArgumentError
from mhex.methods._shared import at_block
from mhex.registry import register

_NEEDS = Needs(keep={"attention": "last"})


@register(
    "attention",
    title="What the read-out token attends to in the last block.",
    paper="Bahdanau et al., ICLR 2015; as a ViT baseline: Caron et al., ICCV 2021, arXiv:2104.14294",
    needs=_NEEDS,
    signed=False,
    class_specific=False,
    passes="F",
    budget=(1.35, "F"),
    adapt=at_block(_NEEDS),
    use="As a first look at where the read-out looks, at the price of a forward pass.",
    avoid="As an explanation of a class: it is the same for all classes, and what is attended to need not matter.",
)
def attention(trace: Trace, *, head: int | None = None, block: int | None = None) -> Tensor:
    r"""`S_j = 1/H sum_h sum_i w_i A_hij` of the last block; not renormalised after prefix tokens are dropped.

    Args:
        head: Only this head, counted from 0 (heads of self-supervised models often mark distinct parts); None for
            their mean.
        block: Number of the block, from 1; None for the last.
    """
    rows = trace.block.through(trace.readout)  # (B, H, N)
    if head is None:
        return rows.mean(1)
    if not isinstance(head, int) or not 0 <= head < rows.shape[1]:
        raise ArgumentError(f"Expected head from 0 to {rows.shape[1] - 1}, but got {head!r}.")
    return rows[:, head]
