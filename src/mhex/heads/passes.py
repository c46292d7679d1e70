"""Running a model with heads over data, and looking at what the heads did."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from mhex.capture import untouched
from mhex.capture.ending import ending_seen
from mhex.errors import ArgumentError, ArgumentTypeError
from mhex.heads import calls
from mhex.heads.batches import unlabelled
from mhex.heads.calls import Call
from mhex.heads.heads import heads_of, required_heads


@contextmanager
def watched(model: nn.Module, *, nudge: bool = False, graph: bool = False) -> Iterator[Callable[[Any], Call]]:
    """Run a model with heads in evaluation mode and see everything its blocks compute; the model is left as it was.

    Args:
        model: Carries heads.
        nudge: Whether to add zeros to every `u`, to which gradients can be taken.
        graph: Whether to build an autograd graph; parameters are frozen meanwhile, so it starts at the nudges.

    Yields:
        A function from inputs (a tensor, or a dictionary of arguments) to the `Call`.
    """
    heads = required_heads(model)
    with ExitStack() as stack:
        stack.enter_context(untouched(model))
        stack.enter_context(torch.set_grad_enabled(graph))
        stack.enter_context(heads.recording(model, nudge))
        stack.callback(calls.forget, heads.token)

        def run(inputs: Any) -> Call:
            call_model(model, inputs)
            return calls.last(heads.token)

        yield run


def predict(model: nn.Module, data: Any) -> Tensor:
    """Class scores (N, n) of what predicts, in evaluation mode and without a graph.

    Args:
        model: Carries heads; left as it was.
        data: A batch or a loader.
    """
    heads = required_heads(model)
    scores: list[Tensor] = []
    with untouched(model), torch.no_grad():
        for inputs in unlabelled(data):
            call_model(model, inputs)
            scores.append(heads.sighting().logits)
    if not scores:
        raise ArgumentError("Expected some data to predict, but the loader was empty (or used up).")
    return torch.cat(scores)


def call_model(model: nn.Module, inputs: Any) -> Any:
    """Call a model with a tensor or with a dictionary of arguments, moved to its device."""
    heads = heads_of(model)
    if heads is not None and heads.settings.outputs is None and heads.token.ending == "unseen":
        with ending_seen() as ending_of:
            output = _called(model, inputs)
        heads.note_ending(ending_of(output))
        return output
    return _called(model, inputs)


def _called(model: nn.Module, inputs: Any) -> Any:
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    if isinstance(inputs, Tensor):
        return model(inputs.to(device))
    if isinstance(inputs, Mapping):
        return model(**{k: v.to(device) if isinstance(v, Tensor) else v for k, v in inputs.items()})
    raise ArgumentTypeError(f"Expected inputs to be a tensor or a dictionary, but got {type(inputs).__name__}.")
