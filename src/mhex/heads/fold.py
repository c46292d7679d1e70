"""Folding: from a model with heads to one that can be shipped."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from typing import Literal

from torch import Tensor, nn

from mhex.capture.graft import plant, ungraft, unsettle
from mhex.capture.junctions import Junction, closing_norm, find_junctions
from mhex.capture.masks import tells_padding
from mhex.errors import ArgumentError, CaptureError, some_of
from mhex.heads.block import GateTarget
from mhex.heads.folded import Folded, FoldedBlock
from mhex.heads.heads import PREFIX, Heads, required_heads
from mhex.heads.settings import Source
from mhex.heads.strip import gate_state, last_of


def fold(model: nn.Module, heads: Heads, source: Source, factors: Mapping[str, Tensor] | None = None) -> nn.Module:
    """A self-contained inference module; the model stays as it is.

    Args:
        model: The host.
        heads: Its heads.
        source: What predicts.
        factors: Fixed gates (C,) by name of their junction, instead of those that the heads compute.

    Returns:
        For `"classifier"` a copy of the host with gates in it, which returns what the host returned; otherwise a
        module that returns class scores (B, n).
    """
    last = last_of(heads) if source == "last_head" else None
    _check(heads, source, last)
    host = plain_copy(model)
    _check_masks(host, heads)
    joins: dict[Junction, nn.Module] = {}
    speaking: list[str] = []
    prefix = heads.prefix_tokens if heads.settings.exclude_special else 0
    for junction in find_junctions(host):
        if junction.name not in heads.places:
            continue
        block = heads[junction.name]
        gate: Literal["dynamic"] | Tensor | None = "dynamic" if factors is None else factors[junction.name]
        if gate_state(block) in ("none", "off"):
            gate = None
        if junction.name == last:  # nothing reads what flows on past the last head
            joins[junction] = FoldedBlock(block, prefix, gate, "folded", flows=False)
            speaking.append(junction.name)
        elif source == "sum":
            joins[junction] = FoldedBlock(block, prefix, gate, "exact" if factors is None else "folded")
            speaking.append(junction.name)
        elif gate is not None and not _absorb(host, junction, gate, block.gate_target):
            joins[junction] = FoldedBlock(block, prefix, gate)
    names = plant(host, joins)
    whole = host
    if speaking:
        decay = heads.decay if source == "sum" else None
        ending, parts = heads.ending, [names[name] for name in speaking]
        whole = Folded.of(host, parts, heads.settings.num_classes, decay, heads.joined, ending)
    return whole.requires_grad_(False).eval()


def plain_copy(model: nn.Module) -> nn.Module:
    """A copy of a model without its heads."""
    host = copy.deepcopy(model)
    heads = required_heads(host)
    ungraft(host)
    unsettle(host, heads)
    del host._modules[PREFIX]
    return host


def _check(heads: Heads, source: Source, last: str | None) -> None:
    if heads.settings.exclude_special and not heads.prefix_tokens:
        raise ArgumentError(
            "Heads with exclude_special=True must see the token ids, which do not reach the units of a folded text "
            "model; attach with exclude_special=False."
        )
    wanted = heads.names if source == "sum" else () if last is None else (last,)
    if gone := [name for name in wanted if heads[name].w2 is None]:
        raise CaptureError(f"The heads at {some_of(gone, 3)} were stripped, so {source!r} cannot predict.")


def _check_masks(host: nn.Module, heads: Heads) -> None:
    """A folded unit sees its own arguments alone, so it must be given the mask of padding if the host takes one."""
    for junction in find_junctions(host) if heads.mask_places else []:
        own = inspect.signature(type(host.get_submodule(junction.unit)).forward).parameters
        if junction.name in heads.places and junction.kind == "token" and not tells_padding(own):
            raise ArgumentError(
                f"The model takes {', '.join(heads.mask_places)}, but does not hand it to {junction.name}, which in a "
                "folded model sees its own arguments alone: give the unit's forward an attention_mask, or leave it "
                "out with where=[...]."
            )


def _absorb(host: nn.Module, junction: Junction, gate: Literal["dynamic"] | Tensor, target: GateTarget) -> bool:
    """Multiply fixed gates into the batch norm that ends a shortcut; False if there is nothing to multiply or none."""
    if isinstance(gate, str) or target == "sum" or (norm := closing_norm(host, junction)) is None:
        return False
    for parameter in (norm.weight, norm.bias):
        parameter.data = parameter.data * gate.to(parameter)
    return True
