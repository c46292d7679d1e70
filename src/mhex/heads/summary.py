"""What the heads of a model add to it, as a table."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from io import StringIO
from typing import TYPE_CHECKING, Any

from torch import nn

from mhex._printable import printable
from mhex.heads.heads import Heads
from mhex.heads.strip import GateState, gate_state
from mhex.heads.wiring.residual import kind_of, unit_of

if TYPE_CHECKING:
    from rich.table import Table

_SAID: dict[GateState, str] = {
    "none": "no gate",
    "off": "1 (lambda = 0)",
    "one": "1 (W1 = 0)",
    "constant": "constant (W1 = 0)",
    "active": "active",
    "unknown": "unknown (no weights)",
}


@dataclass(frozen=True)
class Row:
    """One block.

    Attributes:
        name: Of the residual connection.
        kind: `"map"` or `"token"`.
        channels: C.
        w1: Parameters of the gate's matrix.
        w2: Parameters of the class matrix.
        share: All parameters of the block over those of the host.
        gate: What the gate does: `"none"` or `"off"` (exactly 1), `"one"` (exactly 1 until trained), `"constant"`,
            `"active"`, `"unknown"` (on the meta device).
        strength: `lambda` of the gate; None on the meta device.
    """

    name: str
    kind: str
    channels: int
    w1: int
    w2: int
    share: float
    gate: GateState
    strength: float | None


@dataclass(frozen=True)
class Summary:
    """What the heads of a model add to it; prints as a table.

    Attributes:
        rows: One per block, first to last.
        host: Name of the model's class.
        host_parameters: Parameters of the model without heads.
        num_classes: n.
    """

    rows: tuple[Row, ...]
    host: str
    host_parameters: int
    num_classes: int

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
        right: dict[str, str] = {"channels": "", "W1": f"{self.w1:,}", "W2": f"{self.w2:,}"}
        right["of the host"] = f"{self.share:.1%}"
        for name in ("unit", "kind", *right, "gate"):
            footer = right.get(name, "all" if name == "unit" else "")
            table.add_column(name, footer, justify="right" if name in right else "left", overflow="fold")
        for r in self.rows:
            cells = (r.name, r.kind, str(r.channels), f"{r.w1:,}", f"{r.w2:,}", f"{r.share:.1%}", said(r))
            table.add_row(*(Text(printable(cell)) for cell in cells))
        return table

    def __str__(self) -> str:
        from rich.console import Console

        page = StringIO()
        Console(file=page, width=120, color_system=None).print(self)
        return page.getvalue().rstrip("\n")


def said(row: Row) -> str:
    """The state of a gate in words."""
    ramped = row.gate == "active" and row.strength != 1
    return f"active (lambda = {row.strength:g})" if ramped else _SAID[row.gate]


def summarise(model: nn.Module, heads: Heads) -> Summary:
    """Count what the heads add to a model.

    Args:
        model: The host.
        heads: Its heads.
    """
    host = sum(p.numel() for p in model.parameters()) - sum(p.numel() for p in heads.parameters())
    rows = []
    for name, block in heads.named_blocks().items():
        w1, w2 = (0 if matrix is None else matrix.weight.numel() for matrix in (block.w1, block.w2))
        strength = None if block.strength.is_meta else float(block.strength)
        kind = kind_of(model.get_submodule(unit_of(name)))
        rows.append(Row(name, kind, block.channels, w1, w2, (w1 + w2) / max(1, host), gate_state(block), strength))
    return Summary(tuple(rows), type(model).__name__, host, heads.settings.num_classes)
