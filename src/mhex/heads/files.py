"""Heads on disk: safetensors with the settings in the header."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Json, ValidationError
from torch import Tensor

from mhex._files import read_tensors, write_tensors, writing
from mhex._settings import check_that
from mhex.errors import ArgumentError
from mhex.heads.heads import Heads, Settings, Source

_FORMAT = "mhex heads 1"
_LARGEST = 2**20  # number of classes or channels


class _Extras(BaseModel, extra="forbid", strict=True, allow_inf_nan=False):
    """What training chose, and calls showed; see `Heads`."""

    decay: float = 0.8
    mode: Literal["pretrain", "finetune"] = "finetune"
    joined: bool = True
    source: Source | None = None
    order: tuple[str, ...] = ()


class _FileHeader(BaseModel, extra="forbid", strict=True):
    """The header of a file."""

    format: str
    settings: Json[Settings]
    extras: Json[_Extras]


def save_heads(heads: Heads, path: Path) -> None:
    """Write heads and everything needed to attach them again."""
    extras = {name: getattr(heads, name) for name in _Extras.model_fields}
    header = {"format": _FORMAT, "settings": json.dumps(asdict(heads.settings)), "extras": json.dumps(extras)}
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_tensors(heads.state_dict(), path, header)


def read_heads(path: Path) -> tuple[Settings, dict[str, Any], dict[str, Tensor]]:
    """Settings, choices of training, and weights of a file written by `save_heads`."""
    state, metadata = read_tensors(path, "scaffold.save")
    if metadata.get("format") != _FORMAT:
        words = f"Expected a file of heads written by scaffold.save, but {path} says {metadata.get('format')!r}"
        raise ArgumentError(f"{words}; weights of a whole model are loaded with load_state_dict.")
    try:
        header = _FileHeader.model_validate({name: metadata.get(name, "") for name in _FileHeader.model_fields})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise ArgumentError(
            f"Expected the header of heads in {path}, but {place} is {first['input']!r:.100} ({first['msg']}); save "
            "the heads again, or update mhex if a newer version wrote them."
        ) from error
    settings, extras = header.settings, header.extras.model_dump(exclude_unset=True)
    widths, junctions = settings.channels, settings.junctions
    paired = len(widths) == len(junctions) == len(set(junctions))
    check_that(paired, f"a width for each junction in {path}", f"{widths} for {junctions}")
    rows = {tensor.shape[:1] for name, tensor in state.items() if name.endswith(".w2.weight")}
    sides = (settings.num_classes, *widths)  # matrices are made of these
    fits = all(1 <= side <= _LARGEST for side in sides) and rows <= {(settings.num_classes,)}
    check_that(fits, f"weights for {sides} classes and channels in {path}", "others", "; save the heads again")
    misplaced = set(extras.get("order", ())) - set(junctions)
    check_that(not misplaced, f"an order of its own blocks in {path}", sorted(misplaced))
    return settings, extras, state
