"""What the heads add to a model: counting it, taking off what predictions do not need, and other classes."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from io import StringIO
from typing import TYPE_CHECKING, Any

from torch import nn

from mhex._printable import printable
from mhex.errors import ArgumentError, CaptureError, warn
from mhex.heads.block import GateState
from mhex.heads.heads import Heads, Source
from mhex.heads.predictors import last_name
from mhex.heads.wiring.residual import kind_of, unit_of

if TYPE_CHECKING:
    from rich.table import Table

_GATE_WORDS: dict[GateState, str] = {
    "none": "no gate",
    "off": "1 (lambda = 0)",
    "one": "1 (W1 = 0)",
    "constant": "constant (W1 = 0)",
    "active": "active",
    "unknown": "unknown (no weights)",
}


def strip_heads(heads: Heads, source: Source) -> int:
    """Strip the heads as `Scaffold.strip_heads` does; `source`, which predicts, is settled for good."""
    before = sum(p.numel() for p in heads.parameters())
    last = last_name(heads) if source == "last_head" else None
    if last is not None and heads[last].w2 is None:
        raise CaptureError("The last head was stripped before, so it cannot predict; attach the heads again.")
    if source == "sum":
        warn("Nothing can be stripped: predictions come from the sum of all heads, which reads every matrix.")
        return 0
    for name, block in heads.named_blocks().items():
        if name != last:
            block.w2, block.intercept = None, None
        read = block.w2 is not None and block.coupling == "shared"
        if block.gate_state() == "off" and not read:
            block.w1 = None
    heads.source = source
    heads.record.forget()
    return before - sum(p.numel() for p in heads.parameters())


def reset_classes(heads: Heads, num_classes: int) -> None:
    """Give every block a new class matrix, drawn as at the start; the gates' matrices stay."""
    for name, block in heads.named_blocks().items():
        if block.w1 is None and block.coupling != "head_only":
            raise ArgumentError(
                f"The block at {name} was stripped of its first matrix, so it cannot learn classes; attach new heads."
            )
    for block in heads.named_blocks().values():
        like = block.strength if block.w1 is None else block.w1.weight
        fresh = nn.Linear(block.channels, num_classes, bias=False)
        block.w2, block.intercept = fresh.to(like.device, like.dtype).train(block.training), None
    heads.settings = replace(heads.settings, num_classes=num_classes)
    heads.source, heads.mode, heads.decay, heads.joined = None, "finetune", 0.8, True
    heads.record.forget()


@dataclass(frozen=True)
class BlockSummary:
    """What one block adds."""

    name: str  # of the residual connection
    kind: str  # "map" or "token"
    channels: int  # C
    w1: int  # parameters of the gate's matrix
    w2: int  # parameters of the class matrix
    share: float  # all parameters of the block over those of the host
    gate: GateState  # what the gate does, see `ExplainerBlock.gate_state`
    strength: float | None  # `lambda` of the gate; None on the meta device


@dataclass(frozen=True)
class Summary:
    """What the heads of a model add to it; prints as a table."""

    rows: tuple[BlockSummary, ...]  # one per block, first to last
    host: str  # name of the model's class
    host_parameters: int  # parameters of the model without heads
    num_classes: int  # n

    @property
    def w1(self) -> int:
        """Parameters of all gates' matrices."""
        return sum(row.w1 for row in self.rows)

    @property
    def w2(self) -> int:
        """Parameters of all class matrices."""
        return sum(row.w2 for row in self.rows)

    @property
    def parameters(self) -> int:
        """Parameters of all blocks."""
        return self.w1 + self.w2

    @property
    def share(self) -> float:
        """Parameters of all blocks over those of the host."""
        return self.parameters / max(1, self.host_parameters)

    def to_dict(self) -> dict[str, Any]:
        """Rows and totals as plain values."""
        totals = {"w1": self.w1, "w2": self.w2, "parameters": self.parameters, "share": self.share}
        return {**asdict(self), "rows": [asdict(row) for row in self.rows], **totals}

    def __rich__(self) -> Table:
        from rich.table import Table
        from rich.text import Text

        table = Table(
            title=Text(printable(f"{len(self.rows)} heads on {self.host}, {self.num_classes} classes")),
            title_justify="left",
            caption=f"The host has {self.host_parameters:,} parameters, the heads {self.parameters:,} "
            f"({self.share:.1%} of that).",
            caption_justify="left",
            show_footer=True,
        )
        footers = {"channels": "", "W1": f"{self.w1:,}", "W2": f"{self.w2:,}", "of the host": f"{self.share:.1%}"}
        for name in ("unit", "kind", *footers, "gate"):
            footer = footers.get(name, "all" if name == "unit" else "")
            table.add_column(name, footer, justify="right" if name in footers else "left", overflow="fold")
        for row in self.rows:
            ramped = row.gate == "active" and row.strength != 1
            gate = f"active (lambda = {row.strength:g})" if ramped else _GATE_WORDS[row.gate]
            counts = (str(row.channels), f"{row.w1:,}", f"{row.w2:,}", f"{row.share:.1%}")
            table.add_row(*(Text(printable(cell)) for cell in (row.name, row.kind, *counts, gate)))
        return table

    def __str__(self) -> str:
        from rich.console import Console

        page = StringIO()
        Console(file=page, width=120, color_system=None).print(self)
        return page.getvalue().rstrip("\n")


def summarise(model: nn.Module, heads: Heads) -> Summary:
    """Count what the heads add to a model."""
    host = sum(p.numel() for p in model.parameters()) - sum(p.numel() for p in heads.parameters())
    rows = []
    for name, block in heads.named_blocks().items():
        w1, w2 = (0 if matrix is None else matrix.weight.numel() for matrix in (block.w1, block.w2))
        strength = None if block.strength.is_meta else float(block.strength)
        kind, share = kind_of(model.get_submodule(unit_of(name))), (w1 + w2) / max(1, host)
        rows.append(BlockSummary(name, kind, block.channels, w1, w2, share, block.gate_state(), strength))
    return Summary(tuple(rows), type(model).__name__, host, heads.settings.num_classes)
