"""Heads on disk: safetensors with the settings in the header."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from mhex._files import write_tensors, writing
from mhex._json import read_json
from mhex.errors import ArgumentError
from mhex.heads.heads import Heads
from mhex.heads.settings import Settings

_FORMAT = "mhex heads 1"
_EXTRAS = ("decay", "mode", "joined", "source", "order")  # what training chose, and calls showed


def save_heads(heads: Heads, path: Path) -> None:
    """Write heads and everything needed to attach them again."""
    header = {
        "format": _FORMAT,
        "settings": json.dumps(asdict(heads.settings)),
        "extras": json.dumps({name: getattr(heads, name) for name in _EXTRAS}),
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
    except SafetensorError as error:
        raise ArgumentError(f"Expected safetensors in {path}, but it cannot be read ({error}).") from error
    if header.get("format") != _FORMAT:
        raise ArgumentError(
            f"Expected a file of heads written by scaffold.save, but {path} says {header.get('format')!r}; "
            "weights of a whole model are loaded with load_state_dict."
        )
    try:
        settings, extras = read_json(header["settings"]), read_json(header["extras"])
    except (KeyError, ValueError) as error:
        raise ArgumentError(f"The file of heads {path} is damaged: {error}.") from error
    known = {field.name for field in fields(Settings)}
    if unknown := set(settings) - known:
        raise ArgumentError(f"{path} has settings that this version does not know: {sorted(unknown)}; update mhex.")
    if unknown := set(extras) - set(_EXTRAS):
        raise ArgumentError(f"{path} has entries that this version does not know: {sorted(unknown)}; update mhex.")
    lists = {name: tuple(value) for name, value in settings.items() if isinstance(value, list)}
    if strange := set(extras.get("order", ())) - set(lists["junctions"]):
        raise ArgumentError(f"{path} gives an order to blocks that it does not have: {sorted(strange)}.")
    return Settings(**{**settings, **lists}), extras, state
