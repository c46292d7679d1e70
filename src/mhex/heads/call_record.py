"""What the heads saw in one call of their host, and the class scores that are read from it."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import Tensor

from mhex.capture import read_logits
from mhex.capture.outputs import Ending, is_skipped
from mhex.errors import ArgumentError, CaptureError, UnsupportedModelError, some_of
from mhex.heads.losses import running_sum

if TYPE_CHECKING:
    from mhex.heads.explainer_block import BlockOutput
    from mhex.heads.heads import Heads, Source


@dataclass
class Call:
    """One call of the host."""

    heads: Heads | None  # those that serve it while it runs; of a replica, those of the replica
    graph: bool  # whether gradients were on when it began
    special: Tensor | None = None  # bool (B, T), True at tokens that are not pooled
    rows: frozenset[int] = frozenset()  # first sizes of the inputs; empty if blocks may run again on copies
    masks: Mapping[str, Any] = field(default_factory=dict)  # of padding, that the host was called with, by name
    recorded: bool = False  # whether everything that the blocks compute is stored, beside the logits
    nudged: bool = False  # whether zeros (B, C), to which gradients can be taken, are added to every `u`
    ran: list[str] = field(default_factory=list)  # junctions whose block ran, in order of execution
    logits: dict[str, Tensor] = field(default_factory=dict)  # class scores by junction, in order of execution
    blocks: dict[str, BlockOutput] = field(default_factory=dict)  # what the blocks computed, if recorded
    outputs: dict[str, Tensor] = field(default_factory=dict)  # what the units returned, if recorded
    versions: dict[str, dict[str, int]] = field(default_factory=dict)  # of the recorded tensors when they were seen
    nudges: dict[str, Tensor] = field(default_factory=dict)  # the zeros that were added
    output: Any = None  # what the host returned
    skipped: bool = False  # whether the activation that makes probabilities was skipped

    def mark(self, name: str, **tensors: Tensor) -> None:
        """Note the state of tensors of a junction, so that `check` can tell whether they were written into later."""
        versions = {role: tensor._version for role, tensor in tensors.items() if not tensor.is_inference()}
        self.versions.setdefault(name, {}).update(versions)

    def check(self, name: str, **tensors: Tensor) -> None:
        """Raise a CaptureError if the host wrote into a marked tensor after the block saw it."""
        marks = self.versions.get(name, {})
        for role, tensor in tensors.items():
            if role in marks and tensor._version != marks[role]:
                words = f"The model writes in place into the {role} of {name!r} after its head has read it"
                raise CaptureError(f"{words}; write it out of place, or leave the unit out with blocks=[...].")


class _ThreadCalls(threading.local):
    """The calls of one thread."""

    def __init__(self) -> None:
        self.open: WeakKeyDictionary[CallRecord, Call] = WeakKeyDictionary()
        self.last: WeakKeyDictionary[CallRecord, Call] = WeakKeyDictionary()
        self.nudges: WeakKeyDictionary[CallRecord, bool] = WeakKeyDictionary()  # of those that record
        self.aside: WeakSet[CallRecord] = WeakSet()


# Four dictionaries of what there is at the moment: entries that stay would break compiled hosts, which guard them all.
_CALLS = _ThreadCalls()


class CallRecord:
    """The calls that one set of heads has seen. Replicas share it; a deep copy of the model gets another.

    The calls themselves are kept per thread. What they have shown of the host is kept here, because explaining must
    not write on a module.
    """

    width: int | None = None  # how many class scores the host returned when somebody asked; None if nobody did
    ending: Ending | Literal["unseen"] | None = "unseen"  # how the host makes probabilities of its logits
    ran: tuple[str, ...] = ()  # names of the blocks in the order of the last call, see `note`
    evaluated = False  # whether that call was in evaluation mode
    masked_above: tuple[str, ...] = ()  # names of blocks that read a mask of the host's call: their unit has none

    def note(self, ran: Sequence[str], evaluated: bool) -> None:
        """Take in which blocks ran in a call, in order; evaluation comes first, as training may skip units."""
        # Written only where something changes: a compiled host is compiled again for every value that is new to it.
        if (evaluated or not self.evaluated) and (tuple(ran) != self.ran or evaluated != self.evaluated):
            self.ran, self.evaluated = tuple(ran), evaluated

    def begin(self, call: Call) -> None:
        """A call of the host begins in this thread."""
        _CALLS.last.pop(self, None)  # frees the graph of the one before
        call.recorded, call.nudged = self in _CALLS.nudges, _CALLS.nudges.get(self, False)
        if self in _CALLS.aside:  # a method may replay a block on several copies of the batch
            call.rows = frozenset()
        _CALLS.open[self] = call

    def current(self) -> Call | None:
        """The call that is running in this thread; None where a unit is called by itself or recomputed."""
        return _CALLS.open.get(self)

    def finish(self, output: Any, training: bool) -> None:
        """The call is over; `output` is None after an error, and then nothing is kept."""
        call = _CALLS.open.pop(self, None)
        if call is not None and output is not None:
            self.note(call.ran, not training)
            call.output, call.skipped = output, is_skipped()
            call.heads = None  # they own the key under which the call is kept, and would never be freed
            _CALLS.last[self] = call

    def last(self) -> Call | None:
        """The last finished call of this thread; None if there was none, or if it was forgotten."""
        return _CALLS.last.get(self)

    def required_last(self) -> Call:
        """The last finished call of this thread, or a CaptureError."""
        if (call := self.last()) is None:
            raise CaptureError("The heads have seen no forward pass in this thread yet: call the model first.")
        return call

    def forget(self) -> None:
        """Let go of the last call of this thread."""
        _CALLS.last.pop(self, None)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Put this thread's last call aside; on leaving it is back, and calls made meanwhile are forgotten."""
        before, nested = _CALLS.last.pop(self, None), self in _CALLS.aside
        _CALLS.aside.add(self)
        try:
            yield
        finally:
            if not nested:
                _CALLS.aside.discard(self)
            _CALLS.last.pop(self, None)
            if before is not None:
                _CALLS.last[self] = before

    @contextmanager
    def recording(self, nudge: bool) -> Iterator[None]:
        """Record the calls that this thread makes meanwhile, with zeros added to every `u` if `nudge`."""
        before = _CALLS.nudges.get(self)
        _CALLS.nudges[self] = nudge
        try:
            yield
        finally:
            del _CALLS.nudges[self]
            if before is not None:
                _CALLS.nudges[self] = before


def in_order(ran: Sequence[str], written: Sequence[str]) -> tuple[str, ...]:
    """All names, as `written` in the host, in the order in which they `ran`; one that did not follows its neighbour."""
    order = list(ran)
    for place, name in enumerate(written):
        if name not in order:
            order.insert(order.index(written[place - 1]) + 1 if place else 0, name)
    return tuple(order)


def decided(logits: Tensor, multi_label: bool) -> Tensor:
    """Classes (B,) with the highest of scores (B, n); bool (B, n) for several labels or a single score."""
    return logits > 0 if multi_label or logits.shape[1] == 1 else logits.argmax(1)


class HeadsOutput(NamedTuple):
    """What a model with heads says."""

    output: Any  # what the host returned
    heads: list[Tensor]  # class scores (B, n) of every head, first to last
    sum: Tensor  # their running sum, with a kept classifier as its last term, (B, n)


@dataclass(frozen=True)
class HeadReading:
    """Class scores of one call."""

    call: Call
    heads: Heads  # with the choices of training

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
        return 0 if (scores := self._host_scores()) is None else scores.shape[1]

    @property
    def sum(self) -> Tensor:
        """The running sum (B, n) of all heads, and of the classifier where it joins the loss."""
        terms = self._all_heads()
        if self.heads.joined and (classifier := self.classifier) is not None:
            terms.append(classifier)
        return running_sum(terms, self.heads.decay)

    @property
    def source(self) -> Source:
        """What predicts."""
        if not torch.compiler.is_compiling():
            self.heads.record.width = self.width  # the call itself may be let go
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
            return self._required_classifier("predict: set scaffold.predict_from to 'last_head' or 'sum'")
        if source == "sum":
            return self.sum
        if not self.call.logits:
            raise CaptureError("The heads were stripped, so the last one cannot predict; attach them again.")
        return self.heads_only[-1]

    @property
    def multi_label(self) -> bool:
        """Whether a sample may have several classes."""
        return self.heads.settings.multi_label

    def trained_terms(self, classifier: bool) -> list[Tensor]:
        """The terms of a loss: all heads, and the host's own classifier if it joins in."""
        dead = [name for name, scores in self.call.logits.items() if not scores.requires_grad]
        cut = [name for name in dead if any(p.requires_grad for p in self.heads[name].parameters())]
        if cut and torch.is_grad_enabled() and self.call.graph:  # reentrant checkpointing runs a unit without a graph
            raise CaptureError(f"No gradient reaches the heads {some_of(cut, 3)}: checkpoint with use_reentrant=False.")
        terms = self._all_heads()
        if classifier:
            terms.append(self._required_classifier("join in the loss: pass classifier=False to train the heads alone"))
        return terms

    def _all_heads(self) -> list[Tensor]:
        self.heads.check_whole("there is no sum of all heads and no loss")
        return self.heads_only

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
        output, classes = self.call.output, self.heads.settings.num_classes
        shape = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        words = f"The heads have {classes} classes, but the model returns {shape}, so its classifier cannot {purpose}"
        raise ArgumentError(f"{words}, or give the model a classifier of that size.")
