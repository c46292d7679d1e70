"""Heads on disk: safetensors with the settings in the header."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

from safetensors import SafetensorError, safe_open
from torch import Tensor

from mhex._files import read_json, write_tensors, writing
from mhex._schema import build
from mhex.errors import ArgumentError
from mhex.heads.heads import Heads, Settings, Source

_FORMAT = "mhex heads 1"
_LARGEST = 2**20  # number of classes or channels


@dataclass(frozen=True)
class _Extras:
    """What training chose, and calls showed; see `Heads`."""

    decay: float = 0.8
    mode: Literal["pretrain", "finetune"] = "finetune"
    joined: bool = True
    source: Source | None = None
    order: tuple[str, ...] = ()


def save_heads(heads: Heads, path: Path) -> None:
    """Write heads and everything needed to attach them again."""
    header = {
        "format": _FORMAT,
        "settings": json.dumps(asdict(heads.settings)),
        "extras": json.dumps({field.name: getattr(heads, field.name) for field in fields(_Extras)}),
    }
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_tensors(heads.state_dict(), path, header)


def read_heads(path: Path) -> tuple[Settings, dict[str, Any], dict[str, Tensor]]:
    """Settings, choices of training, and weights of a file written by `save_heads`."""
    if not path.is_file():
        raise ArgumentError(f"Expected a file of heads written by scaffold.save, but there is no file {path}.")
    try:
        with safe_open(path, framework="pt") as handle:
            header = dict(handle.metadata() or {})
            state = {name: handle.get_tensor(name) for name in handle.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise ArgumentError(f"Expected safetensors in {path}, but it cannot be read ({error}).") from error
    if header.get("format") != _FORMAT:
        raise ArgumentError(
            f"Expected a file of heads written by scaffold.save, but {path} says {header.get('format')!r}; "
            "weights of a whole model are loaded with load_state_dict."
        )
    raw, extras = _entries(header, "settings", path), _entries(header, "extras", path)
    known = {field.name for field in fields(Settings)}
    if unknown := set(raw) - known:
        raise ArgumentError(f"{path} has settings that this version does not know: {sorted(unknown)}; update mhex.")
    if unknown := set(extras) - {field.name for field in fields(_Extras)}:
        raise ArgumentError(f"{path} has entries that this version does not know: {sorted(unknown)}; update mhex.")
    settings = build(Settings, raw, str(path))
    if len(settings.channels) != len(settings.junctions) or len(set(settings.junctions)) != len(settings.junctions):
        raise ArgumentError(
            f"Expected a width for each junction in {path}, but got {settings.channels} for {settings.junctions}."
        )
    rows = {tensor.shape[:1] for name, tensor in state.items() if name.endswith(".w2.weight")}
    sides = (settings.num_classes, *settings.channels)  # matrices are made of these
    if not all(1 <= side <= _LARGEST for side in sides) or rows - {(settings.num_classes,)}:
        raise ArgumentError(
            f"Expected weights in {path} for the {settings.num_classes} classes and the channels {settings.channels} "
            "of its settings, but they are not so; save the heads again."
        )
    extras = {name: value for name, value in asdict(build(_Extras, extras, str(path))).items() if name in extras}
    if misplaced := set(extras.get("order", ())) - set(settings.junctions):
        raise ArgumentError(f"{path} gives an order to blocks that it does not have: {sorted(misplaced)}.")
    return settings, extras, state


def _entries(header: Mapping[str, str], name: str, path: Path) -> dict[str, Any]:
    try:
        entries = read_json(header.get(name, ""))
    except ValueError as error:
        raise ArgumentError(f"Expected JSON under {name!r} in the header of {path}, but it is damaged.") from error
    if not isinstance(entries, dict):
        raise ArgumentError(f"Expected a mapping under {name!r} in the header of {path}, but got {entries!r}.")
    return entries
