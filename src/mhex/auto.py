"""The method that explains a model unless the user names one: a table, by what the benchmarks of this project show.

docs/explain.md has the evidence for each row. The first method of a row that serves the model is taken, so that a
call without `method=` explains any model that can be explained at all.
"""

from __future__ import annotations

from typing import Any, Literal

from torch import nn

from mhex._settle import has_concept, is_headless
from mhex.capture import Anatomy
from mhex.registry import Method, get_method

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


def kind_of(model: nn.Module, anatomy: Anatomy, target: Any) -> Kind:
    """The row of the table for a model and a target."""
    if has_concept(target):
        return "concept"
    if anatomy.heads == 1 and not callable(target):
        from mhex.heads.sources import answered_by_heads, say_something

        if answered_by_heads(model) is not None:
            return "answering heads"
        if anatomy.modality == "image" and not anatomy.blocks and say_something(model):
            return "heads"
    if target is None and is_headless(model, anatomy):
        return "headless"
    if anatomy.modality == "text":
        return "text"
    return "blocks" if anatomy.blocks else "convolutions" if anatomy.features is not None else "other"


def methods_for(model: nn.Module, anatomy: Anatomy, target: Any) -> list[Method]:
    """Methods in the order in which they are tried.

    Args:
        model: The unwrapped module.
        anatomy: Of the model, with its attention.
        target: As the user gave it.
    """
    return [get_method(name) for name in TABLE[kind_of(model, anatomy, target)]]
