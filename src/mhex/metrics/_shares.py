"""What comprehensiveness and sufficiency share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mhex._words import Pooling
from mhex.errors import ArgumentError
from mhex.metrics._base import PerImage
from mhex.metrics.case import Case
from mhex.metrics.protocols import Protocol
from mhex.perturb import PerturbationSweep, SharePasses
from mhex.perturb.references import WORDS
from mhex.perturb.splitting import Words


@dataclass(frozen=True)
class ShareProtocol(Protocol):
    """Of metrics of a few shares of the words of texts.

    Attributes:
        reference: What removed means: `"drop"`, `"mask_token"` or `"pad"`.
        percent: The shares, over which the mean is taken.
        scored: Whose probability is read: the `"explained"` class's, the `"predicted"` one's or the `"label"`'s.
        granularity: What is ranked: `"word"` or `"token"`.
        tie: How equal scores are ranked.
        seed: Of ties.
        words: Which words are ranked: those of the `"tokenizer"`, or those split at `"whitespace"`.
        pooling: Of a word: the `"max"` of the scores of its tokens, or their `"sum"`.
    """

    reference: str = "drop"
    percent: tuple[int, ...] = (1, 5, 10, 20, 50)
    scored: str = "predicted"
    granularity: str = "word"
    tie: str = "random"
    seed: int = 0
    words: Words = "tokenizer"
    pooling: Pooling = "max"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.reference not in WORDS or self.granularity not in ("token", "word"):
            raise ArgumentError(
                f"Expected a reference of texts ({', '.join(WORDS)}) and granularity 'token' or 'word', but got "
                f"{self.reference!r} and {self.granularity!r}."
            )

    @property
    def idle(self) -> dict[str, str]:
        if self.granularity == "word":
            return {}
        return dict.fromkeys(("words", "pooling"), f"it is of words, and granularity is {self.granularity!r}")

    @property
    def passes(self) -> tuple[Any, ...]:
        return (self.runner,)

    @property
    def runner(self) -> SharePasses:
        """The passes that it needs."""
        sweep = PerturbationSweep(
            reference=self.reference,
            granularity=self.granularity,
            steps=100,
            tie=self.tie,  # type: ignore[arg-type]
            seed=self.seed,
            words=self.words,
            pooling=self.pooling,
        )
        return SharePasses(sweep, self.percent)


class ShareMetric(PerImage):
    """A metric of a few shares of the units."""

    protocol: ShareProtocol

    def of(self, case: Case) -> tuple[Any, ...]:
        """Off a sweep of 1 % where one with all points is there; else two passes for each share, for both metrics."""
        runner = self.protocol.runner
        made = case.made(runner.sweep)
        found = None if made is None else runner.read(made)
        return (case.passes(runner) if found is None else found,)
