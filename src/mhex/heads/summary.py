"""What the heads add to a model: a table of their parameters and gates."""

from dataclasses import asdict, dataclass
from io import StringIO
from typing import Any

from torch import nn

from mhex._printable import printable
from mhex.heads.explainer_block import GateState
from mhex.heads.heads import Heads
from mhex.heads.wiring.residual import kind_of, unit_of

_GATE_WORDS: dict[GateState, str] = {
    "none": "no gate",
    "off": "1 (lambda = 0)",
    "one": "1 (W1 = 0)",
    "constant": "constant (W1 = 0)",
    "active": "active",
    "unknown": "unknown (no weights)",
}


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

    def __rich__(self) -> Any:
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
        return as_text(self, 120)


def as_text(table: Any, width: int) -> str:
    """What rich prints of a table, on a page of so many signs."""
    from rich.console import Console

    page = StringIO()
    Console(file=page, width=width, color_system=None).print(table)
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
