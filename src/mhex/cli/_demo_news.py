"""The demo's part on text: short news, explained word by word."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mhex.cli._console import Step
from mhex.cli._demo_heads import Opinion, head_opinions
from mhex.cli._run import Outcome, explain_by
from mhex.errors import ArgumentError

if TYPE_CHECKING:
    from mhex.bundle import Bundle

READER = "zoo:agnews-mhex-minilm"
# Made up, so that nobody's text is used; each could stand under two headings.
TEXTS = (
    "The software company Lumenfold bought the football club Harrow Vale, and its engineers now count every pass "
    "with cameras.",
    "Ministers of both countries met the oil companies on Tuesday, and prices fell before the talks had ended.",
)
# Methods of many passes, with fewer of them.
QUICK_TEXTS: dict[str, dict[str, Any]] = {"rise": {"n": 100}, "shap": {"max_evals": 100}, "smoothgrad": {"n": 10}}


@dataclass(frozen=True)
class Reading:
    """What a model makes of one text.

    Attributes:
        bundle: The model.
        text: The text.
        opinions: Of each head, first to last, and of the classifier.
        outcome: The scores of the words, and the methods left out.
    """

    bundle: Bundle
    text: str
    opinions: list[Opinion]
    outcome: Outcome

    @property
    def sentence(self) -> str:
        """The model's opinion in one sentence."""
        shares = ", ".join(f"{100 * share:.0f} % {name}" for name, share in self.opinions[-1].favourites.items())
        return f'{self.bundle.name} on "{" ".join(self.text.split()[:4])} ...": {shares}'


def read_news(bundle: Bundle, text: str, methods: list[str], step: Step) -> Reading:
    """Explain a text for its two most probable classes, by every method that serves the model.

    Args:
        bundle: A text classifier with heads.
        text: The text.
        methods: Names of all methods.
        step: Told each method as it begins.
    """
    if bundle.tokenizer is None:
        raise ArgumentError(f"Expected a model that reads texts, but {bundle.name} does not.")
    outcome = explain_by(
        bundle, text, methods, "top2", lambda what: step(f"news, {bundle.name}: {what}"), options=QUICK_TEXTS, pass_over=True
    )
    opinions = head_opinions(bundle, bundle.tokenizer(text, return_tensors="pt"))
    return Reading(bundle, text, opinions, outcome)
