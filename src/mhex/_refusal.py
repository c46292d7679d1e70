"""Why a method cannot serve a model, told before the model is run on the user's inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from mhex.capture import Anatomy, Needs

if TYPE_CHECKING:
    from mhex.registry import Method


def refusal(method: Method, anatomy: Anatomy, tokens: int | None, needs: Needs) -> str:
    """Why a method cannot serve a model, in words that follow the method's name; empty if it can.

    Args:
        method: The method.
        anatomy: Of the model.
        tokens: How many there will be, if known.
        needs: What the method reads with the options given.
    """
    if anatomy.modality not in method.modalities:
        return f"it is not defined for {anatomy.modality} models"
    if "heads" in method.needs.keep and anatomy.heads != 1:
        if anatomy.heads:
            return f"it reads the heads of one model, and {anatomy.heads} parts of this one carry some"
        return "it reads heads, and the model has none: mhex.attach(model, num_classes) attaches some, to be trained"
    if anatomy.opaque and (part := _inside(method, needs, anatomy)):
        return f"it must see {part}, and {anatomy.opaque} does not show its inside"
    if method.takes_gradients and anatomy.cuts_gradient:
        return f"it takes gradients, and the {anatomy.cuts_gradient} of the model passes none on"
    if method.relu and anatomy.activation:
        return f"it is defined for ReLU networks, and this one uses {anatomy.activation}"
    if method.needs.blocks and not anatomy.blocks:
        what = "attention" if "attention" in method.needs.keep else "the blocks of a Transformer"
        return f"it reads {what}, and {anatomy.no_attention or 'the model has none'}"
    if hidden := _hidden(needs, anatomy):
        return f"it reads {hidden} of every block, which this {anatomy.family} does not show"
    if "features" in method.needs.keep and anatomy.features is None:
        return "it reads feature maps, and the model shows none; name a submodule with layer="
    if "input" in method.needs.keep and anatomy.modality == "text" and anatomy.embedding is None:
        return "it reads word embeddings (batch, tokens, width), and the model shows none"
    if method.max_tokens is not None and tokens is not None and tokens > method.max_tokens:
        return f"it serves at most {method.max_tokens} tokens, and there are {tokens}"
    return ""


def _inside(method: Method, needs: Needs, anatomy: Anatomy) -> str:
    """What it must see of the inside of parts that show none; empty if nothing."""
    if method.rules is not None:
        return "every operation"
    if needs.blocks:
        return "the blocks of a Transformer"
    hidden = anatomy.features is None or isinstance(anatomy.features.module, torch.jit.ScriptModule)
    return "feature maps" if "features" in needs.keep and hidden else ""


def _hidden(needs: Needs, anatomy: Anatomy) -> str:
    """The first thing that a method needs of every block and the model does not show; empty if there is none."""
    if "tokens" in needs.keep and any(block.unseen_norm for block in anatomy.blocks):
        return "the normalised tokens that enter the attention"
    wanted = [site for site in ("attention_output", "mlp_input", "mlp_output") if site in needs.keep]
    wanted += ["value_projection", "output_projection"] if needs.projections else []
    lost = (part for part in wanted if any(getattr(block, part) is None for block in anatomy.blocks))
    return next((f"the {part.replace('_', ' ').replace('mlp', 'MLP')}" for part in lost), "")
