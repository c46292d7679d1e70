"""Weights on disk: full precision between stages, half precision for shipping."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import timm
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from timm.layers import resample_abs_pos_embed
from torch import Tensor, nn

from mhex.errors import ArgumentError


def save_weights(model: nn.Module, path: Path, facts: Mapping[str, str]) -> None:
    """Write a network's weights in full precision with a few facts about their making.

    Args:
        model: The network.
        path: File to write; written aside first, so that a broken run leaves no half file.
        facts: Text entries for the header; the versions of torch and timm and the date are added.
    """
    header = {
        **facts,
        "torch": torch.__version__.split("+")[0],
        "timm": timm.__version__,
        "date": time.strftime("%Y-%m-%d"),
    }
    state = {name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()}
    aside = path.with_suffix(".part")
    save_file(state, aside, metadata=header)
    aside.replace(path)


def read_facts(path: Path) -> dict[str, str]:
    """The text entries in the header of a weights file."""
    with safe_open(path, framework="pt") as handle:
        return dict(handle.metadata() or {})


def save_half(state: Mapping[str, Tensor], path: Path, facts: Mapping[str, str]) -> None:
    """Write weights for shipping: floating point as float16, counters as they are.

    Args:
        state: A full-precision state.
        path: File to write.
        facts: Text entries for the header.

    Raises:
        ArgumentError: A value does not fit into float16.
    """
    half = {name: value.half() if value.is_floating_point() else value for name, value in state.items()}
    broken = [name for name, value in half.items() if value.is_floating_point() and not value.isfinite().all()]
    if broken:
        raise ArgumentError(
            f"Weights should fit into float16 (at most 65504), and {broken} do not: retrain or rescale."
        )
    save_file({name: value.contiguous() for name, value in half.items()}, path, metadata=dict(facts))
    # The writer makes files that only their owner can read; shipped files are for everyone.
    path.chmod(0o644)


def load_weights(model: nn.Module, path: Path) -> None:
    """Load a weights file of the same network, half precision widened to the network's own."""
    model.load_state_dict(load_file(path), strict=True)


def transfer(model: nn.Module, path: Path) -> None:
    """Start a network from the weights of one that differs in its head and, for a transformer, in its input size.

    Args:
        model: A timm model; its head stays as it is, and position embeddings are resampled to its grid.
        path: Weights of a model of the same architecture.

    Raises:
        ArgumentError: Anything but the head is missing or left over.
    """
    state = load_file(path)
    head = f"{model.default_cfg['classifier']}."  # type: ignore[index]
    state = {name: value for name, value in state.items() if not name.startswith(head)}
    if "pos_embed" in state and hasattr(model, "patch_embed"):
        network: Any = model
        state["pos_embed"] = resample_abs_pos_embed(
            state["pos_embed"],
            new_size=list(network.patch_embed.grid_size),
            num_prefix_tokens=network.num_prefix_tokens,
        )
    missing, left = model.load_state_dict(state, strict=False)
    missing = [name for name in missing if not name.startswith(head)]
    if missing or left:
        raise ArgumentError(
            f"{path.name} should hold weights of the same architecture: it lacks {missing[:5]} and has {left[:5]} too "
            "much."
        )
