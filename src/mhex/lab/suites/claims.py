"""What a suite claims of its methods, tested on the rows of a run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from mhex.judge.report import Report
from mhex.judge.tables import Cell
from mhex.lab.config.suite import ClaimPart
from mhex.stats.comparison import Paired
from mhex.stats.paired_tests import holm

_LEVEL = 0.05
_NOTE = (
    "Pairs on the same samples, with 95 % bootstrap intervals; p of two-sided flips of signs, corrected (Holm) for "
    "all pairs of this table."
)


@dataclass(frozen=True)
class Checked:
    """A pair of methods that a claim speaks of, tested.

    Attributes:
        claim: The claim.
        first, second: The method that should be better, and the one that should be worse.
        pair: Of first less second.
        adjusted: P corrected (Holm) for all pairs of the claims on one model.
        higher: Whether higher is better.
    """

    claim: ClaimPart
    first: str
    second: str
    pair: Paired
    adjusted: float
    higher: bool

    @property
    def result(self) -> str:
        """How the first method compares with the second."""
        if not self.adjusted < _LEVEL:
            return "not told apart"
        return "better" if (self.pair.difference > 0) is self.higher else "worse"


def check_claims(claims: Sequence[ClaimPart], report: Report, cells: Sequence[Cell], seed: int) -> list[Checked]:
    """Test each pair of the claims by flips of signs; pairs of methods that were not judged are passed over.

    Args:
        claims: Those for the model.
        report: Of the model.
        cells: Of its summary.
        seed: Of the suite, which names of columns hold where it is not 0.
    """
    by_column = {without_seed(cell.column, seed): cell for cell in cells}
    checks = []
    for claim in claims:
        cell = by_column.get(claim.column)
        if cell is None or cell.higher is None:
            continue
        output = report.metric(cell.metric).outputs.index(cell.output)
        for first in claim.better:
            for second in claim.than:
                if first in report.methods and second in report.methods:
                    pair = report.compare(cell.metric, [first, second], output=output)[first, second]
                    checks.append(Checked(claim, first, second, pair, math.nan, cell.higher))
    adjusted = holm([check.pair.p for check in checks])
    return [replace(check, adjusted=p) for check, p in zip(checks, adjusted, strict=True)]


def without_seed(column: str, seed: int) -> str:
    """A column as it is called where the seed is 0, which names it for all seeds."""
    return column.replace(f"(seed={seed}, ", "(").replace(f" (seed={seed})", "")


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [f"| {' | '.join(cells)} |" for cells in (head, *rows)]
    return "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:]])


def claims_table(checks: Sequence[Checked]) -> str:
    """The tests in Markdown; empty without any."""
    if not checks:
        return ""
    rows = [
        (
            check.claim.words,
            f"{check.claim.column} {'↑' if check.higher else '↓'}",
            f"{check.first} minus {check.second}",
            f"{check.pair.difference:.3g} ({check.pair.low:.3g} to {check.pair.high:.3g})",
            f"{check.adjusted:.2g}" if check.adjusted >= 0.001 else "< 0.001",
            check.result,
        )
        for check in checks
    ]
    table = markdown_table(("claim", "by", "pair", "difference", "p", "the first is"), rows)
    return f"### Claims, tested\n\n{table}\n\n{_NOTE}"
