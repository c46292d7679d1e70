"""Reading class scores off a call: of the heads, of the host's own classifier, of their running sum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mhex.capture import read_logits
from mhex.errors import ArgumentError, CaptureError, UnsupportedModelError, some_of
from mhex.heads.calls import in_order
from mhex.heads.losses import running_sum

if TYPE_CHECKING:
    from mhex.heads.calls import Call
    from mhex.heads.heads import Heads
    from mhex.heads.settings import Source


@dataclass(frozen=True)
class Reading:
    """Class scores of one call.

    Attributes:
        call: What was seen.
        heads: The heads that were attached, with the choices of training.
    """

    call: Call
    heads: Heads

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all blocks, in the order in which they ran in this call."""
        return in_order(self.call.ran, self.heads.names)

    @property
    def heads_only(self) -> list[Tensor]:
        """Class scores (B, n) of the heads, first to last."""
        return list(self.call.logits.values())

    @property
    def classifier(self) -> Tensor | None:
        """Class scores (B, n) of the host's own classifier; None if it returns something else."""
        scores = self._host_scores()
        return scores if scores is not None and scores.shape[1] == self.heads.settings.num_classes else None

    @property
    def width(self) -> int:
        """How many class scores the host returned; 0 for none."""
        scores = self._host_scores()
        return 0 if scores is None else scores.shape[1]

    @property
    def sum(self) -> Tensor:
        """The running sum (B, n) of all heads, and of the classifier where it joins the loss."""
        kept = self.classifier if self.heads.joined else None
        return running_sum([*self._all_heads(), *([] if kept is None else [kept])], self.heads.decay)

    @property
    def source(self) -> Source:
        """What predicts."""
        if not torch.compiler.is_compiling():
            self.heads.token.width = self.width  # the call itself may be let go
        if (source := self.heads.settled_source()) is not None:
            return source
        return self.heads.head_source() if self.classifier is None else "classifier"

    @property
    def logits(self) -> Tensor:
        """Class scores (B, n) of what predicts."""
        return self.scores(self.source)

    def scores(self, source: Source) -> Tensor:
        """Class scores (B, n) of the classifier, of the last head or of the running sum."""
        if source == "classifier":
            return self._required_classifier(
                "predict: set scaffold.predict_from to 'last_head' or 'sum' (None chooses), or give the model a "
                "classifier of that size."
            )
        return self._last_head() if source == "last_head" else self.sum

    @property
    def predictions(self) -> Tensor:
        """Classes (B,) of what predicts, or bool (B, n) for several labels."""
        return decided(self.logits, self.heads.settings.multi_label)

    @property
    def multi_label(self) -> bool:
        """Whether a sample may have several classes."""
        return self.heads.settings.multi_label

    def trained_terms(self, classifier: bool) -> list[Tensor]:
        """The terms of a loss: all heads, and the host's own classifier if it joins in."""
        self._check_graph()
        terms = self._all_heads()
        if not classifier:
            return terms
        own = self._required_classifier(
            "join in the loss: pass classifier=False to train the heads alone, or give the model a classifier of that "
            "size."
        )
        return [*terms, own]

    @property
    def spoken(self) -> dict[str, Tensor]:
        """Class scores (B, n) of the heads by name, first to last.

        Raises:
            CaptureError: All heads were stripped.
        """
        if not self.call.logits and all(block.w2 is None for block in self.heads.named_blocks().values()):
            raise CaptureError(
                "The heads were stripped, so they say nothing; attach heads again, or bring back those that were saved "
                "before."
            )
        return dict(self.call.logits)

    def _all_heads(self) -> list[Tensor]:
        gone = [name for name, block in self.heads.named_blocks().items() if block.w2 is None]
        if gone:
            raise CaptureError(
                f"{len(gone)} of {len(self.heads.blocks)} heads were stripped, so there is no sum of them and no loss; "
                "attach heads again, or bring back those that were saved before."
            )
        return self.heads_only

    def _last_head(self) -> Tensor:
        if not self.call.logits:
            raise CaptureError("The heads were stripped, so the last one cannot predict; attach them again.")
        return self.heads_only[-1]

    def _host_scores(self) -> Tensor | None:
        try:
            scores = read_logits(self.call.output)
        except UnsupportedModelError:
            return None
        ending = None if self.call.skipped else self.heads.ending_of(scores)
        return scores if ending is None else ending.logits(scores)

    def _required_classifier(self, purpose: str) -> Tensor:
        if (scores := self.classifier) is not None:
            return scores
        output = self.call.output
        shape = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise ArgumentError(
            f"The heads have {self.heads.settings.num_classes} classes, but the model returns {shape}, so its "
            f"classifier cannot {purpose}"
        )

    def _check_graph(self) -> None:
        """A head that trains must be in the graph; reentrant checkpointing runs its unit without one."""
        if not (torch.is_grad_enabled() and self.call.graph):
            return
        blocks = self.heads.named_blocks()
        cut = [
            name
            for name, scores in self.call.logits.items()
            if not scores.requires_grad and any(p.requires_grad for p in blocks[name].parameters())
        ]
        if cut:
            raise CaptureError(
                f"No gradient reaches the heads {some_of(cut, 3)}: reentrant activation checkpointing cuts them "
                "off; use use_reentrant=False."
            )


def decided(logits: Tensor, multi_label: bool) -> Tensor:
    """Classes (B,) with the highest score; bool (B, n) for several labels or a single score.

    Args:
        logits: (B, n).
        multi_label: Whether a sample may have several classes.
    """
    return logits > 0 if multi_label or logits.shape[1] == 1 else logits.argmax(1)
