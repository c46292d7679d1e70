"""What a method sees of one Transformer block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from mhex.capture.anatomy import Block
from mhex.capture.attention import EVERY, AttentionRecord
from mhex.capture.needs import BLOCK_SITES
from mhex.errors import CaptureError


class BlockTrace:
    """What was kept of one Transformer block. Asking for a site that was not kept is an error."""

    def __init__(self, block: Block) -> None:
        self.block = block
        self.sites: dict[str, Tensor] = {}
        self.record: AttentionRecord | None = None
        self.targets = 1  # how many targets will ask for the same attention
        self._attention: Tensor | None = None

    def site(self, name: str) -> Tensor:
        """A kept tensor by the name of its site, e.g. `"block_input"`, (B, N, D)."""
        if name not in self.sites:
            raise CaptureError(f"{name!r} was not kept; add it to the method's Needs. Kept: {sorted(self.sites)}.")
        return self.sites[name]

    def shows(self, name: str) -> bool:
        """Whether a site was kept."""
        return self.record is not None if name == "attention" else name in self.sites

    @property
    def attention_record(self) -> AttentionRecord:
        """q, k, v, mask and scale of the attention."""
        if self.record is None:
            raise CaptureError("'attention' was not kept of this block; add it to the method's Needs.")
        return self.record

    @property
    def z(self) -> Tensor:
        """Attention output before the output projection, (B, H, N, d), in the graph."""
        if self.attention_record.z is None:
            raise CaptureError("The attention was kept without a graph; set graph= in the method's Needs.")
        return self.attention_record.z

    def attention(self, rows: slice = EVERY) -> Tensor:
        """Attention probabilities `A`, (B, H, N, N), at least float32; rebuilt from q and k. Do not write into it.

        Args:
            rows: Only these queries.

        It is stored only for several targets, and only while it is small beside the graph of its block, which holds
        some 17 d numbers per token and head where `A` holds N.
        """
        if rows != EVERY:
            return self.attention_record.probabilities(rows)
        if self._attention is not None:
            return self._attention
        probabilities = self.attention_record.probabilities()
        if self.targets > 1 and probabilities.shape[-1] <= 4 * self.attention_record.query.shape[-1]:
            self._attention = probabilities
        return probabilities

    def attention_gradient(self, z_gradient: Tensor) -> Tensor:
        """`dy/dA`, (B, H, N, N), from `dy/dz`, (B, H, N, d), or some rows of both."""
        return self.attention_record.gradient(z_gradient)


def check_kept(blocks: Sequence[BlockTrace], keep: Mapping[str, str], family: str) -> None:
    """Fail loudly if a block did not show what was asked for.

    Args:
        blocks: After the pass.
        keep: Depth by site, as in `Needs`.
        family: Of the model, for the message.
    """
    inner = {site: depth for site, depth in keep.items() if site in BLOCK_SITES}
    for number, block in enumerate(blocks, start=1):
        wanted = [site for site, depth in inner.items() if depth == "all" or number == len(blocks)]
        if lost := [site for site in wanted if not block.shows(site)]:
            raise CaptureError(
                f"Block {number} of this {family} did not show its {', '.join(lost)}: "
                "it does not attend through torch's scaled_dot_product_attention or is laid out differently."
            )
