"""Which method serves which kind of model: the table behind `method="auto"`, by the project's own benchmarks."""

from typing import Any, Literal

from torch import nn

from mhex.capture import Anatomy
from mhex.concept import Concept

AUTO = "auto"
Kind = Literal["answering heads", "heads", "convolutions", "blocks", "text", "other", "concept", "headless"]
_ANY = ("input-x-gradient", "occlusion")  # they ask for a gradient, or for nothing but scores

TABLE: dict[Kind, tuple[str, ...]] = {
    "answering heads": ("mhex",),  # the model's own classifier is not trained
    "heads": ("mhex", "gradcam", *_ANY),  # on a network with feature maps
    "convolutions": ("gradcam", *_ANY),
    "blocks": ("conservative-lrp", "gae", *_ANY),  # Vision Transformers
    "text": ("conservative-lrp", "gae", *_ANY),
    "other": _ANY,
    "concept": ("cdam", "gradcam", *_ANY),
    "headless": ("rollout", "eigencam"),  # no target, so the methods that look at none
}


def has_concept(target: Any) -> bool:
    """Whether a target is a concept, or a list with one."""
    return any(isinstance(item, Concept) for item in (target if isinstance(target, (list, tuple)) else [target]))


def kind_of(model: nn.Module, anatomy: Anatomy, target: Any) -> Kind:
    """The row of the table for a model and a target."""
    if has_concept(target):
        return "concept"
    if anatomy.heads == 1 and not callable(target):
        from mhex.heads.predictors import answered_by_heads, has_class_weights

        if answered_by_heads(model) is not None:
            return "answering heads"
        if anatomy.modality == "image" and not anatomy.blocks and has_class_weights(model):
            return "heads"
    if target is None and is_headless(model, anatomy):
        return "headless"
    if anatomy.modality == "text":
        return "text"
    return "blocks" if anatomy.blocks else "convolutions" if anatomy.features is not None else "other"


def is_headless(model: nn.Module, anatomy: Anatomy) -> bool:
    """True of a backbone by its make: timm's with an identity for a classifier, or a `...Model` of Hugging Face."""
    if isinstance(anatomy.head, nn.Identity):
        return True
    kind = type(model)
    return anatomy.head is None and kind.__module__.startswith("transformers.") and kind.__name__.endswith("Model")
