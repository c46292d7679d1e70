"""Weights on disk: written aside and renamed, in full precision or in less, always safetensors."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from mhex import _files
from mhex.errors import ArgumentError, some_of
from mhex.train.parameters import HEADS, PROJECTOR
from mhex.zoo._packed import unpack

# The class matrix of a head, and the intercept of one that was fitted; equal shapes do not make equal classes.
_READ_OUT = re.compile(r"\.(w2\.weight|intercept)$")


def write_tensors(state: Mapping[str, Tensor], path: Path, facts: Mapping[str, str] | None = None) -> None:
    """Write tensors so that a broken run leaves no half file: aside, to the disk, renamed.

    Args:
        state: Tensors by name; each is copied, since the format knows no shared memory.
        path: File to write.
        facts: Text entries for the header.
    """
    copies = {name: value.detach().cpu().clone() for name, value in state.items()}
    _files.write_tensors(copies, path, facts, durable=True)


def write_text(text: str, path: Path) -> None:
    """Write a text file aside, to the disk, renamed."""
    _files.write_text(text, path, durable=True)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file.

    Raises:
        ArgumentError: There is none, or it is damaged.
    """
    try:
        return unpack(load_file(path))
    except (OSError, SafetensorError) as error:
        raise ArgumentError(f"The weights {path} cannot be read ({error}): make them anew.") from error


def read_facts(path: Path) -> dict[str, str]:
    """The text entries in the header of a weights file.

    Raises:
        ArgumentError: There is none, or it is damaged.
    """
    try:
        with safe_open(path, framework="pt") as handle:
            return dict(handle.metadata() or {})
    except (OSError, SafetensorError) as error:
        raise ArgumentError(f"The weights {path} cannot be read ({error}): make them anew.") from error


def halved(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights for shipping: floating point as float16, counters as they are.

    Raises:
        ArgumentError: A value does not fit into float16.
    """
    half = {name: value.half() if value.is_floating_point() else value for name, value in state.items()}
    broken = [name for name, value in half.items() if value.is_floating_point() and not value.isfinite().all()]
    if broken:
        raise ArgumentError(
            f"Weights should fit into float16 (at most 65504), and {broken} do not: retrain or rescale."
        )
    return half


def load_weights(model: nn.Module, path: Path, *, over: bool = False) -> None:
    """Load a weights file of the same network, half precision widened to the network's own.

    Args:
        model: The network.
        path: The file.
        over: Whether the file may hold a part of the weights alone, the rest being what the network has.
    """
    state = read_tensors(path)
    model.load_state_dict({**model.state_dict(), **state} if over else state, strict=True)


def transfer(model: nn.Module, path: Path, classifier: Sequence[str], *, same_data: bool) -> None:
    """Start a network from the weights of another one.

    The other may differ in its classifier, in explainer heads and, for a transformer, in its input size.

    Args:
        model: Changed in place; the position embeddings of timm transformers are resampled to its grid.
        path: Weights of a model of the same architecture.
        classifier: Prefixes of the classifier's parameters.
        same_data: Whether the weights were learned on the same data: then classifier and read-outs of heads are taken
            over too. Gates go along to other data, where read-outs and classifier begin anew.

    Raises:
        ArgumentError: Anything else is missing or left over.
    """
    state = read_tensors(path)
    own = model.state_dict()
    free = (HEADS, PROJECTOR, *classifier)
    if not same_data:
        state = {name: value for name, value in state.items() if not _tells_classes(name, classifier)}
    if "pos_embed" in state and hasattr(model, "patch_embed"):
        from timm.layers import resample_abs_pos_embed

        network: Any = model
        state["pos_embed"] = resample_abs_pos_embed(
            state["pos_embed"],
            new_size=list(network.patch_embed.grid_size),
            num_prefix_tokens=network.num_prefix_tokens,
        )
    fits = {name: value for name, value in state.items() if name in own and own[name].shape == value.shape}
    missing = [name for name in own if name not in fits and not name.startswith(free)]
    left = [name for name in state if name not in fits and not name.startswith(free)]
    if missing or left:
        raise ArgumentError(
            f"{path} should hold weights of the same architecture: it lacks {some_of(missing, 5) or 'nothing'} and "
            f"has {some_of(left, 5) or 'nothing'} too much (or in another shape)."
        )
    model.load_state_dict(fits, strict=False)


def _tells_classes(name: str, classifier: Sequence[str]) -> bool:
    """Whether a tensor belongs to classes: to the classifier, or to what an explainer head reads out."""
    return name.startswith(tuple(classifier)) or (name.startswith(HEADS) and bool(_READ_OUT.search(name)))
