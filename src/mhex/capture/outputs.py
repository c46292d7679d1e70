"""What a model returns: where its class scores are, and the logits of models that return probabilities.

What goes into a last sigmoid or softmax are the logits. Passes over such a model leave that one call out, so that
targets, maps and metrics are those of the model without it. Probabilities that were made in another way are turned
back by the inverse of the activation.
"""

import math
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, MutableSet
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from mhex.capture.batch import Batch, full
from mhex.capture.operations import Function, name_of_operation
from mhex.capture.precision import user_precision
from mhex.errors import ArgumentError, CaptureError, UnsupportedModelError, warn

Outputs = Literal["logits", "probabilities"]
Kind = Literal["sigmoid", "softmax", "log_softmax"]
Call = tuple[tuple[int, ...], int]  # sizes of the argument but for the first axis; the first call like it is 1

SECTION = "'Models that are no classifiers' in docs/explain.md"
# By the number of axes of what is returned.
_EXAMPLES = {
    3: " (of a language model those of the next word, model(...).logits[:, -1]; of tokens or boxes those of one)",
    4: " (of a segmentation those of one region, model(...).mean((2, 3)) over its pixels)",
}
_FORMS: dict[Kind, tuple[Function, ...]] = {
    "sigmoid": (torch.sigmoid, torch.sigmoid_, torch.special.expit, F.sigmoid, Tensor.sigmoid, Tensor.sigmoid_),
    "softmax": (torch.softmax, torch.special.softmax, F.softmax, Tensor.softmax),
    "log_softmax": (torch.log_softmax, torch.special.log_softmax, F.log_softmax, Tensor.log_softmax),
}
_KINDS: dict[Function, Kind] = {function: kind for kind, forms in _FORMS.items() for function in forms}
# Operations that change no number: after them a probability is still the one that the activation made.
_VIEWS = {
    *("reshape", "view", "flatten", "squeeze", "unsqueeze", "permute", "transpose", "contiguous", "clone"),
    *("to", "type_as", "float", "double", "half", "bfloat16", "__getitem__", "select", "narrow"),
}
_NODES: dict[str, Kind]
_NODES = {"SigmoidBackward": "sigmoid", "SoftmaxBackward": "softmax", "LogSoftmaxBackward": "log_softmax"}
_VIEW_NODES = frozenset(
    f"{name}Backward" for name in ("View", "ReshapeAlias", "UnsafeView", "Squeeze", "Unsqueeze", "Clone", "ToCopy")
)
_AFFINE = frozenset(("linear", "convolution", "matmul", "batch_norm", "layer_norm"))  # they give no probabilities
_LINEAR = _AFFINE | {"add", "pool"}  # these may mix probabilities, which then sum to 1
_UNTOLD = frozenset(("multiply", "divide", "subtract", "negate", "concatenate", "route"))  # logits or not
_TANH, _MIXTURE = "tanh", "mixture"  # an average or another mixture of probabilities, as ensembles return
_TELLING, _WIDE = 8, 0.5  # logits are not so many, or so far apart, and yet all from 0 to 1
_SUM = 1e-4  # how far from 1 probabilities of a sample may add up, if they are not rounded more coarsely
_PASS = threading.local()  # `skipped` while a pass of the thread leaves out the activation at the end of the model
_SAY = "Give outputs='probabilities' to confirm it, or outputs='logits' to read the outputs as they are."


@dataclass(frozen=True)
class Outcome:
    """What one pass ended in, from which targets take their scores."""

    logits: Tensor  # class scores, (B, C)
    latent: Tensor | None = None  # the vector that the classifier reads, (B, D); None if it was not asked for


def as_vector(latent: Tensor) -> Tensor:
    """(B, D) of what enters a classifier: some of text are given all tokens and read the first."""
    return latent if latent.dim() == 2 else latent[:, 0] if latent.dim() == 3 else latent.flatten(1)


def bare_outcome(output: Any, batch: int | None, refusal: str) -> Outcome:
    """Outcome of a model without a known classifier: its latent vector (B, D), in place of scores too.

    `refusal` says why what it returned is no latent vector; it is empty if it is one.
    """
    if refusal:
        raise UnsupportedModelError(refusal)
    hidden = getattr(output, "last_hidden_state", None)
    vector = hidden[:, 0] if isinstance(hidden, Tensor) and hidden.dim() == 3 else find_scores(output)
    if vector is None or vector.dim() != 2 or (batch is not None and vector.shape[0] != batch):
        shape = "nothing of that kind" if vector is None else f"a tensor of shape {tuple(vector.shape)}"
        raise UnsupportedModelError(
            "Expected a latent vector (batch, width) from the model, alone or as the first token of "
            f"'last_hidden_state', but {type(output).__name__} holds {shape}; wrap the model to return it."
        )
    return Outcome(vector, vector)


def read_logits(output: Any, batch: int | None = None) -> Tensor:
    """Class scores (B, C) from a tensor, tuple, dictionary or Hugging Face output; `batch` is B, where it is known."""
    if getattr(output, "last_hidden_state", None) is not None and getattr(output, "logits", None) is None:
        raise UnsupportedModelError(
            f"Expected class scores, but {type(output).__name__} holds hidden states: the model has no classifier. "
            "Give a mhex.Concept as target, or a model with a classifier."
        )
    scores = find_scores(output)
    fits = scores is not None and scores.is_floating_point() and scores.dim() in (1, 2) and scores.numel() > 0
    if scores is not None and fits and (batch is None or scores.shape[0] == batch):
        return scores[:, None] if scores.dim() == 1 else scores
    if scores is not None:
        content = f"a tensor of shape {tuple(scores.shape)} ({scores.dtype})"
    else:
        items = output.items() if isinstance(output, Mapping) else ()
        tensors = [f"{name} of shape {tuple(t.shape)}" for name, t in items if isinstance(t, Tensor)]
        content = " and ".join(tensors) or "nothing of that kind"
    raise UnsupportedModelError(
        f"Expected the model to return class scores of shape (batch, classes), alone, first in a tuple, or as "
        f"'logits' in a dictionary, but {type(output).__name__} holds {content}; wrap the model in a module that "
        f"returns such scores{_EXAMPLES.get(0 if scores is None else scores.dim(), '')}, see {SECTION}."
    )


def find_scores(output: Any) -> Tensor | None:
    """The tensor that should hold the scores, in whatever a model returns; None if there is none."""
    if isinstance(output, Tensor):
        return output
    if (logits := getattr(output, "logits", None)) is not None:
        return logits if isinstance(logits, Tensor) else None
    if isinstance(output, Mapping):
        if isinstance(logits := output.get("logits", output.get("out")), Tensor):
            return logits
        # Under another name only a single table is safe: the start and the end of an answer are two, and no classes.
        tables = [t for t in output.values() if isinstance(t, Tensor) and t.dim() == 2]
        return tables[0] if len(tables) == 1 else None
    if isinstance(output, (tuple, list)):
        # A loss may stand first (a scalar), so the first two-dimensional tensor is taken.
        return next((t for t in output if isinstance(t, Tensor) and t.dim() == 2), None)
    return None


@dataclass(frozen=True)
class Ending:
    """How a model makes probabilities of its logits."""

    kind: Kind  # the activation. Several outputs of a sigmoid are classes judged one by one
    # Which call of it is the last operation of the model; None if the model was not seen to call it, and its outputs
    # are turned back instead.
    call: Call | None = None

    @contextmanager
    def skip(self) -> Iterator[None]:
        """While open, one call of the model returns what goes into the activation."""
        if self.call is None:
            yield
            return
        _PASS.skipped = True
        try:
            with _EndingMode(self) as mode:
                yield
        finally:
            _PASS.skipped = False
        if not mode.done:
            raise CaptureError(
                f"Expected the model to end in a {self.kind} each time it is called, but once it did not; give "
                "outputs='logits', or the model without it."
            )

    def logits(self, scores: Tensor) -> Tensor:
        """Logits (B, C) from what the model returned in a pass with the call left out."""
        if self.call is not None or self.kind == "log_softmax":
            return scores
        scores = full(scores)
        if self.kind == "softmax":
            return scores.clamp_min(torch.finfo(scores.dtype).tiny).log()
        return torch.logit(scores, torch.finfo(scores.dtype).eps)


def is_skipped() -> bool:
    """Whether the pass that this thread makes leaves out the activation that the model ends in."""
    return getattr(_PASS, "skipped", False)


def has_sigmoids(ending: Ending | None, logits: Tensor) -> bool:
    """Whether each of several classes has a sigmoid of its own, by the way in which the model ends."""
    return ending is not None and ending.kind == "sigmoid" and logits.shape[1] > 1


def check_outputs(outputs: Any) -> None:
    """Refuse what says nothing of a model's outputs."""
    if outputs is not None and outputs not in get_args(Outputs):
        raise ArgumentError(f"Expected outputs 'logits' or 'probabilities', or None to recognise, but got {outputs!r}.")


def may_be_probabilities(scores: Tensor) -> bool:
    """Whether scores (B, C) may be probabilities or their logarithms; it waits for the device."""
    values, rounding = full(scores.detach()), 4 * torch.finfo(scores.dtype).eps
    low, high = torch.stack(values.aminmax()).tolist()
    shares, logs = low >= 0 and high <= 1 + rounding, high <= rounding
    return math.isnan(low) or shares or (logs and _sum_to_one(values.exp(), rounding))


def find_ending(
    model: nn.Module,
    batch: Batch,
    scores: Tensor,
    outputs: Outputs | None,
    warned: MutableSet[nn.Module] | None = None,
    cost: MutableMapping[str, int] | None = None,
) -> Ending | None:
    """How a model makes probabilities of its logits; None if its outputs are logits.

    The model is run once more only if its outputs may be probabilities, or are said to be.

    Args:
        model: The unwrapped module, in evaluation mode.
        batch: Inputs, a few of them are enough.
        scores: What it returns for these or more, (B, C).
        outputs: What the user says of the outputs, refused if it cannot be; None to recognise it, and to warn of it.
        warned: Models of which the user was warned already; None to warn always.
        cost: Passes made so far, in which the further one is counted.
    """
    if outputs == "logits":
        return None
    values, rounding = full(scores.detach()), 4 * torch.finfo(scores.dtype).eps
    low, high = torch.stack(values.aminmax()).tolist()  # one wait for the device, which most models end here
    if math.isnan(low):  # samples without an answer say nothing of the others
        values = values[~values.isnan().any(1)]
        if not len(values):
            return None
        low, high = torch.stack(values.aminmax()).tolist()
    shares = low >= 0 and high <= 1 + rounding
    logs = high <= rounding and _sum_to_one(values.exp(), rounding)
    if outputs == "probabilities" and not (shares or logs):
        raise ArgumentError(
            f"Expected outputs between 0 and 1, because outputs='probabilities' says so, but they lie between "
            f"{low:.4g} and {high:.4g}; leave outputs= out, or give the model that returns probabilities."
        )
    if not (shares or logs):
        return None

    def warn_once(words: str) -> None:
        if warned is None or model not in warned:
            warn(words)
        if warned is not None:
            warned.add(model)

    sums, copy = _sum_to_one(values, rounding), batch.copied()
    with torch.no_grad(), user_precision(), _EndingMode() as mode:
        last = mode.maker_of(model(*copy.args, **copy.kwargs))
    if cost is not None:
        cost["forwards"] += 1
    fits = {"sigmoid": shares, "softmax": shares and sums, "log_softmax": logs}
    if isinstance(last, Ending) and fits[last.kind]:
        if outputs is None:
            warn_once(f"The model ends in a {last.kind}, so what goes into it is taken for the logits. {_SAY}")
        return last
    if not shares:
        return None  # logarithms of probabilities are logits
    ending = Ending("softmax" if sums else "sigmoid")
    if outputs == "probabilities":
        return ending
    name = last.kind if isinstance(last, Ending) else last
    if sums and name not in _AFFINE:
        warn_once(
            "The model's outputs are not negative, and those of each sample sum to 1: they are taken for "
            f"probabilities, and their logarithms for the logits. {_SAY}"
        )
        return ending
    # Untrained networks have small outputs, and these of one sign if there are few classes.
    telling = values.numel() >= _TELLING and (values.shape[1] >= _TELLING or high - low > _WIDE)
    if name not in _LINEAR and (name not in _UNTOLD or telling):
        warn_once(
            "All outputs of the model for this batch lie between 0 and 1, as probabilities do, and it is not seen how "
            "they are made. They are read as logits: give outputs='probabilities' if they are probabilities, or "
            "outputs='logits' if they are not."
        )
    return None


@contextmanager
def ending_seen() -> Iterator[Callable[[Any], Ending | None]]:
    """While open, a call of a model is watched; the function says in which activation what it returned was made."""
    with _EndingMode() as mode:

        def ending_of(output: Any) -> Ending | None:
            last = mode.maker_of(output)
            return Ending(last.kind) if isinstance(last, Ending) else None

        yield ending_of


def ending_in_graph(scores: Tensor) -> Ending | None:
    """The activation in which scores were made, by their autograd graph; None if there is none, or no graph."""
    node = scores.grad_fn
    while node is not None:
        name = node.name().rstrip("0123456789")
        if name in _NODES:
            return Ending(_NODES[name])
        node = node.next_functions[0][0] if name in _VIEW_NODES else None
    return None


def _sum_to_one(values: Tensor, rounding: float) -> bool:
    """Whether every row of several values sums to 1."""
    return values.shape[1] > 1 and bool(((values.sum(1) - 1).abs() < max(_SUM, rounding)).all())


class _EndingMode(TorchFunctionMode):
    """Notes what made each tensor of a pass (views of it were made by the same), or leaves out one activation."""

    # The argument of the call that is left out stands for what it returns. Calls of activations are counted apart by
    # the sizes of their argument.

    def __init__(self, left_out: Ending | None = None) -> None:
        super().__init__()
        self.left_out, self.done = left_out, False
        self.calls: Counter[Ending] = Counter()
        self.makers: MutableMapping[Tensor, Ending | str] = WeakIdKeyDictionary()

    def maker_of(self, output: Any) -> Ending | str | None:
        """What made the scores that a model returned: an activation, another operation by name, None if unseen."""
        scores = find_scores(output)
        return None if scores is None else self.makers.get(scores)

    def __torch_function__(
        self, func: Function, types: Iterable[type], args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        maker: Ending | str | None = None
        kind, x = _KINDS.get(func), args[0] if args else kwargs.get("input")
        if kind is not None and isinstance(x, Tensor):
            place = Ending(kind, (tuple(x.shape[1:]), 0))
            self.calls[place] += 1
            maker = Ending(kind, (tuple(x.shape[1:]), self.calls[place]))
        if maker is not None and maker == self.left_out:
            self.done = True
            return x
        result = func(*args, **kwargs)
        if self.left_out is not None:
            return result
        name = getattr(func, "__name__", "")
        if maker is None and name in _VIEWS and args and isinstance(args[0], Tensor):
            maker = self.makers.get(args[0], "route")
        destination = args[0] if name == "__setitem__" else result
        if isinstance(destination, Tensor):
            self.makers[destination] = maker or self._operation(func, name, args)
        return result

    def _operation(self, func: Function, name: str, args: Any) -> str:
        """The name of an operation; mixtures of what sigmoids, softmaxes and tanh gave have one of their own."""
        operation = name_of_operation(func) or name
        if operation in _AFFINE:
            return operation
        flat = [x for arg in args for x in (arg if isinstance(arg, (list, tuple)) else (arg,)) if isinstance(x, Tensor)]
        bounded = (self.makers.get(x) for x in flat)
        mixes = any(isinstance(maker, Ending) or maker in (_MIXTURE, _TANH) for maker in bounded)
        return _MIXTURE if mixes else _TANH if name in ("tanh", "tanh_") else operation
