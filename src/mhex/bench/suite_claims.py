"""What papers say of methods, put to the test on our rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mhex.bench.report import Report
from mhex.bench.suite_beside import without_seed
from mhex.bench.suite_papers import ClaimPart
from mhex.bench.tables import Cell
from mhex.metrics.comparison import Paired
from mhex.metrics.statistics import holm

_LEVEL = 0.05


@dataclass(frozen=True)
class Checked:
    """A pair of methods that a claim speaks of, tested.

    Attributes:
        claim: The claim.
        first, second: The method that is said to be better, and the other.
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
        """What is shown of the first method."""
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
    named = {without_seed(cell.column, seed): cell for cell in cells}
    found: list[tuple[ClaimPart, str, str, Paired, bool]] = []
    for claim in claims:
        cell = named.get(claim.column)
        if cell is None or cell.higher is None:
            continue
        output = report.metric(cell.metric).outputs.index(cell.output)
        for first in claim.better:
            for second in claim.than:
                if first in report.methods and second in report.methods:
                    pairs = report.compare(cell.metric, [first, second], output=output)
                    found.append((claim, first, second, pairs[first, second], cell.higher))
    adjusted = holm([pair.p for _, _, _, pair, _ in found])
    return [
        Checked(claim, first, second, pair, p, higher)
        for (claim, first, second, pair, higher), p in zip(found, adjusted, strict=True)
    ]


def claims_table(tested: Sequence[Checked]) -> str:
    """The tests in Markdown; empty without any."""
    if not tested:
        return ""
    lines = ["| claim | by | pair | difference | p | the first is |", "|---|---|---|---|---|---|"]
    for one in tested:
        lines.append(
            f"| {one.claim.words} | {one.claim.column} {'↑' if one.higher else '↓'} | {one.first} minus {one.second} | "
            f"{one.pair.difference:.3g} ({one.pair.low:.3g} to {one.pair.high:.3g}) | {_p(one.adjusted)} | "
            f"{one.result} |"
        )
    note = (
        "Pairs on the same samples, with 95 % bootstrap intervals; p of two-sided flips of signs, corrected (Holm) for "
        "all pairs of this table."
    )
    return "\n".join(["### Claims, tested", "", *lines, "", note])


def _p(value: float) -> str:
    return f"{value:.2g}" if value >= 0.001 else "< 0.001"
