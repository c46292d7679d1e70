"""Arguments of `mhex.explain`, checked, and what the user left open settled from the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any, get_args

from torch import Tensor, nn

from mhex.capture import Anatomy, FeatureLayer, Trace, name_of
from mhex.concept import Concept
from mhex.errors import ArgumentError, ArgumentTypeError, unknown_name
from mhex.registry import Method
from mhex.targets import Task


def has_concept(target: Any) -> bool:
    return any(isinstance(one, Concept) for one in (target if isinstance(target, (list, tuple)) else [target]))


def check_target(spec: Method, target: Any) -> None:
    if spec.target == "class" and (callable(target) or has_concept(target)):
        what = "a concept" if has_concept(target) else "a function"
        raise ArgumentError(
            f"Method {spec.name!r} explains classes: expected a class number or name as target, but got {what}."
        )


def lacks_classifier(anatomy: Anatomy) -> bool:
    """True if the model ends in its latent vector; timm puts an identity in the place of a classifier left out."""
    return anatomy.head is None or isinstance(anatomy.head, nn.Identity)


def check_seed(seed: Any) -> int:
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise ArgumentTypeError(f"Expected a whole number as seed, but got {seed!r}.")
    return seed


def task_of(model: nn.Module, given: Task | None, trace: Trace) -> Task:
    """What the model's outputs are: as the user says, or a Hugging Face configuration, or heads."""
    if given is not None:
        if given not in get_args(Task):
            raise ArgumentError(f"Expected task {' or '.join(map(repr, get_args(Task)))}, but got {given!r}.")
        return given
    return usual_task(model, trace.sighting is not None and trace.sighting.multi_label)


def usual_task(model: nn.Module, several: bool) -> Task:
    """What a Hugging Face configuration says of the outputs, or heads do: whether a sample may have several classes."""
    said = getattr(getattr(model, "config", None), "problem_type", None)
    if said == "multi_label_classification" or several:
        return "multi-label"
    return "regression" if said == "regression" else "classification"


def feature_layer(model: nn.Module, layer: str | nn.Module) -> FeatureLayer:
    """The layer that the user named."""
    modules = dict(model.named_modules())
    if isinstance(layer, str) and layer not in modules:
        raise unknown_name("layer", layer, [name for name in modules if name])
    chosen = modules[layer] if isinstance(layer, str) else layer
    if not isinstance(chosen, nn.Module) or chosen not in modules.values():
        raise ArgumentTypeError(
            f"Expected layer= to be the name of a submodule or a submodule, but got {type(layer).__name__}."
        )
    return FeatureLayer(chosen, None, name_of(model, chosen))


def names_of(
    model: nn.Module, given: Sequence[str] | Mapping[int, str] | None, logits: Tensor, task: Task
) -> list[str] | None:
    """Names of classes or outputs given by the user, or those that a Hugging Face configuration carries."""
    classes = logits.shape[1] if task == "regression" else max(2, logits.shape[1])
    if isinstance(given, Mapping):  # as in Hugging Face configurations, number -> name
        keys = list(given)
        given = _in_order(given)
        if given is None:
            raise ArgumentError(f"Expected class names by number from 0 to {len(keys) - 1}, but got the keys {keys}.")
    if given is not None:
        # Sets have no order; arrays are lists if they have one axis.
        if isinstance(given, (str, bytes, Set)) or not hasattr(given, "__len__") or getattr(given, "ndim", 1) != 1:
            kind = "a single string" if isinstance(given, str) else type(given).__name__
            raise ArgumentTypeError(f"Expected a list of class names, but got {kind}.")
        if (
            len(given) == logits.shape[1] == 1 and task != "regression"
        ):  # the one output speaks for its class, and against it
            return [f"not {given[0]}", str(given[0])]
        if len(given) != classes:
            raise ArgumentError(f"Expected {classes} class names, one per output of the model, but got {len(given)}.")
        return [str(name) for name in given]
    labels = getattr(getattr(model, "config", None), "id2label", None)
    if not isinstance(labels, Mapping) or len(labels) != classes:
        return None
    return _in_order(labels)


def _in_order(names: Mapping[Any, Any]) -> list[str] | None:
    """Names by the numbers of their classes, which JSON turns into texts; None if these are not 0, 1, 2..."""
    numbers = {str(key): str(name) for key, name in names.items()}
    places = [str(place) for place in range(len(names))]
    return [numbers[place] for place in places] if numbers.keys() == set(places) else None
