"""What was kept of one Transformer block of an observed pass: its sites, and its attention."""

from typing import TYPE_CHECKING

from torch import Tensor

from mhex.capture.anatomy import Block
from mhex.capture.attention import EVERY, AttentionRecord
from mhex.capture.batch import full
from mhex.errors import CaptureError

if TYPE_CHECKING:
    from mhex.capture.attention_kernels import FusedAttention


class BlockTrace:
    """What was kept of one Transformer block. Asking for a site that was not kept is an error."""

    def __init__(self, block: Block) -> None:
        self.block = block
        self.sites: dict[str, Tensor] = {}
        self.record: AttentionRecord | None = None
        self.targets = 1  # how many targets will ask for the same attention
        self._attention: Tensor | None = None
        self._fused: dict[int | None, FusedAttention | None] = {}  # by the end of the rows, the first ones

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
        """Attention probabilities `A` of all queries or some rows, (B, H, N, N), at least float32; do not change it."""
        # It is rebuilt from q and k. It is stored only for several targets, and only while it is small beside the graph
        # of its block, which holds some 17 d numbers per token and head where `A` holds N.
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

    def through(self, row: Tensor, z_gradient: Tensor | None = None, rows: slice = EVERY) -> Tensor:
        """`r A`, (B, H, N), of a row `r` (B, N) and all or first rows of `A`; or `r (A * dy/dA)^+`, from `dy/dz`."""
        # Of half precision on a GPU, `A` is never written to memory.
        record, row = self.attention_record, full(row[:, rows])
        z_gradient = None if z_gradient is None else z_gradient[:, :, rows].detach()
        fused = self._fused_rows(rows) if z_gradient is None or z_gradient.dtype == record.value.dtype else None
        if fused is not None:
            return fused.through(row, z_gradient, record.value.detach())
        matrices = self.attention(rows)
        if z_gradient is not None:  # A is positive, so the positive part can be taken of its gradient alone
            matrices = self.attention_gradient(z_gradient).clamp_(min=0).mul_(matrices)
        return (row[:, None, None, :] @ matrices)[:, :, 0]

    def mean_attention(self) -> Tensor:
        """`mean_h A_h`, (B, N, N), at least float32."""
        fused = self._fused_rows(EVERY)
        return self.attention().mean(1) if fused is None else fused.mean()

    def _fused_rows(self, rows: slice) -> "FusedAttention | None":
        if rows.stop not in self._fused:
            self._fused[rows.stop] = self.attention_record.fused(rows)
        return self._fused[rows.stop]
