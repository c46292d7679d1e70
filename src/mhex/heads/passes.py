"""Running a model with heads over data, and looking at what the heads did."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from mhex.capture import untouched
from mhex.errors import ArgumentError, ArgumentTypeError
from mhex.heads import calls
from mhex.heads.calls import Call
from mhex.heads.heads import heads_of
from mhex.heads.reading import Reading

_LABELS = ("labels", "label")


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
    heads = heads_of(model)
    if heads is None:
        raise ArgumentError("The model carries no heads; attach some with mhex.attach(model, num_classes).")
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
    if (heads := heads_of(model)) is None:
        raise ArgumentError("The model carries no heads; attach some with mhex.attach(model, num_classes).")
    scores: list[Tensor] = []
    with untouched(model), torch.no_grad():
        for inputs in batches(data):
            call_model(model, inputs)
            scores.append(Reading(calls.last(heads.token), heads).logits)
    if not scores:
        raise ArgumentError("Expected some data to predict, but the loader was empty (or used up).")
    return torch.cat(scores)


def call_model(model: nn.Module, inputs: Any) -> Any:
    """Call a model with a tensor or with a dictionary of arguments, moved to its device."""
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    if isinstance(inputs, Tensor):
        return model(inputs.to(device))
    if isinstance(inputs, Mapping):
        return model(**{k: v.to(device) if isinstance(v, Tensor) else v for k, v in inputs.items()})
    raise ArgumentTypeError(f"Expected inputs to be a tensor or a dictionary, but got {type(inputs).__name__}.")


def batches(data: Any) -> Iterator[Any]:
    """Inputs of one batch, or of each batch of a loader, without labels.

    Args:
        data: A tensor or a dictionary of arguments; or a loader of these, or of tuples that begin with them.
    """
    for batch in [data] if isinstance(data, (Tensor, Mapping)) else _iterated(data):
        inputs = batch[0] if isinstance(batch, (tuple, list)) and batch else batch
        yield {k: v for k, v in inputs.items() if k not in _LABELS} if isinstance(inputs, Mapping) else inputs


def _iterated(data: Any) -> Iterable[Any]:
    if not isinstance(data, Iterable) or isinstance(data, (str, bytes)):
        raise ArgumentTypeError(f"Expected a tensor, a dictionary or a loader, but got {type(data).__name__}.")
    return data


def labelled(loader: Iterable[Any]) -> Iterator[tuple[Any, Tensor]]:
    """Inputs and labels of each batch of a loader.

    Args:
        loader: Gives `(inputs, labels)`, or dictionaries with `labels` (or `label`) among the model's arguments.
    """
    for batch in loader:
        if isinstance(batch, (tuple, list)) and len(batch) == 2:
            inputs, labels = batch
        elif isinstance(batch, Mapping) and ("labels" in batch or "label" in batch):
            name = "labels" if "labels" in batch else "label"
            inputs, labels = {k: v for k, v in batch.items() if k != name}, batch[name]
        else:
            raise ArgumentTypeError(
                "Expected batches (inputs, labels), or dictionaries with 'labels', from the loader, but got "
                f"{type(batch).__name__}."
            )
        yield inputs, torch.as_tensor(labels)
