"""What predicts in a model with heads: its classifier, its last head or the sum of all; and running the model."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, get_args

import torch
from torch import Tensor, nn

from mhex.capture import untouched
from mhex.capture.outputs import ending_seen
from mhex.errors import ArgumentError, ArgumentTypeError, CaptureError, UnsupportedModelError, unknown_name
from mhex.heads.call_record import Call, HeadReading
from mhex.heads.explainer_block import ExplainerBlock
from mhex.heads.heads import PREFIX, Heads, Source, heads_of, required_heads

_CLASSIFIERS = ("fc", "classifier", "head", "heads")  # of torchvision, timm and Hugging Face


def predicting_source(heads: Heads, choice: Source | None = None, model: nn.Module | None = None) -> Source:
    """What predicts: the user's choice, what is set, what calls have shown, or a guess from the last layer of `model`.

    Without `model` there is no guess: a CaptureError if nothing shows yet what the host returns.
    """
    check_source(choice)
    if (source := choice or heads.settled_source()) is not None:
        return source
    width = shown_width(heads)
    if width is None and (model is None or (width := _last_layer(model)) is None):
        raise CaptureError("It is not known yet what predicts: call the model once, or set scaffold.predict_from.")
    return "classifier" if width == heads.settings.num_classes else heads.head_source()


def check_source(source: Source | None, heads: Heads | None = None) -> None:
    """Refuse an unknown source, and with `heads` a classifier that calls have shown to have other classes."""
    if source is not None and source not in get_args(Source):
        raise unknown_name("source of predictions", str(source), get_args(Source))
    classes = None if heads is None or source != "classifier" else heads.settings.num_classes
    if heads is not None and classes and shown_width(heads) not in (None, classes):
        words = f"the heads have {classes} classes, and the model returns {shown_width(heads) or 'no'} class scores"
        raise ArgumentError(f"Expected predict_from to be 'last_head' or 'sum' (None chooses): {words}.")


def shown_width(heads: Heads) -> int | None:
    """How many class scores the model returned in calls so far; 0 for none, None before any call."""
    call = heads.record.last()
    return heads.record.width if call is None else HeadReading(call, heads).width


def answered_by_heads(model: nn.Module) -> Source | None:
    """What answers in place of the classifier of a model, which was left out of the loss of its heads; None if nothing.

    The heads may be those of a model that this one wraps.
    """
    sources = (m.settled_source() for m in model.modules() if isinstance(m, Heads) and not m.joined)
    return next((source for source in sources if source != "classifier"), None)


def has_class_weights(model: nn.Module) -> bool:
    """Whether heads of the model, or of one that it wraps, have class weights that are not 0."""
    blocks = (m for m in model.modules() if isinstance(m, ExplainerBlock) and m.w2 is not None)
    return any(bool(block.equivalent_matrix().any()) for block in blocks)


def check_answering(model: nn.Module, purpose: str, instead: str = "") -> None:
    """Refuse to read a model by its own classifier where that was left out of the loss and its heads answer.

    The message says for what `purpose` the classifier would be read, and what to do `instead`: a sentence and a space.
    """
    if (source := answered_by_heads(model)) is None:
        return
    reason = "the model's own classifier was left out of the loss of its heads, which answer in its place"
    raise UnsupportedModelError(
        f"Expected a model whose own classifier answers, because {purpose}, but {reason} (scaffold.predict_from is "
        f"{source!r}). {instead}Give scaffold.fold(), a plain model that returns what the heads answer, or train with "
        "loss(..., classifier=True). If the classifier is trained all the same, set scaffold.predict_from = "
        "'classifier'.",
        reason,
    )


def _last_layer(model: nn.Module) -> int | None:
    """Outputs of the last layer, where it is a classifier by its name; None where that cannot be told."""
    names = [name for name, _ in model.named_parameters(remove_duplicate=False) if not name.startswith(f"{PREFIX}.")]
    if not names or names[-1].split(".")[0] not in _CLASSIFIERS:
        return None
    layer = model.get_submodule(names[-1].rpartition(".")[0])
    return layer.out_features if isinstance(layer, nn.Linear) else None


@contextmanager
def watched(model: nn.Module, *, nudge: bool = False, graph: bool = False) -> Iterator[Callable[[Any], Call]]:
    """Run a model with heads in evaluation mode and see everything its blocks compute; the model is left as it was.

    Yields a function from inputs (a tensor, or a dictionary of arguments) to the `Call`. With `nudge`, zeros are added
    to every `u`; with `graph`, calls build an autograd graph from these zeros on, because parameters are frozen.
    """
    heads = required_heads(model)
    with ExitStack() as stack:
        stack.enter_context(untouched(model))
        stack.enter_context(torch.set_grad_enabled(graph))
        stack.enter_context(heads.recording(model, nudge))
        stack.callback(heads.record.forget)

        def run(inputs: Any) -> Call:
            call_model(model, inputs)
            return heads.record.required_last()

        yield run


def call_model(model: nn.Module, inputs: Any) -> Any:
    """Call a model with a tensor or with a dictionary of arguments, moved to its device."""
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    if not isinstance(inputs, (Tensor, Mapping)):
        raise ArgumentTypeError(f"Expected inputs to be a tensor or a dictionary, but got {type(inputs).__name__}.")
    args = (inputs.to(device),) if isinstance(inputs, Tensor) else ()
    keywords = {} if isinstance(inputs, Tensor) else inputs
    kwargs = {name: value.to(device) if isinstance(value, Tensor) else value for name, value in keywords.items()}
    heads = heads_of(model)
    if heads is None or heads.settings.outputs is not None or heads.record.ending != "unseen":
        return model(*args, **kwargs)
    with ending_seen() as ending_of:
        output = model(*args, **kwargs)
    heads.note_ending(ending_of(output))
    return output
