"""Explanations on disk: safetensors with everything that is no tensor in the header."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal

from mhex._files import write_tensors
from mhex._json import read_json
from mhex._schema import build, setting
from mhex.errors import ArgumentError

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor

_TENSORS = ("scores", "target", "logits", "probabilities", "values", "real", "special", "scored")
_GROUPS = ("layers", "diagnostics")  # dictionaries of tensors; in a file, their names are prefixes
_PLAIN = ("method", "auto", "options", "seed", "signed", "class_specific", "task", "named", "modality", "size")
_WORDS = ("class_names", "tokens", "words", "lengths", "cost")
_PICTURE_NAMES = "pictures"  # (H, W, 3) each, uint8, since they differ in size


@dataclass(frozen=True)
class _Header:
    """Fields of an explanation that are no tensors, as JSON has them."""

    method: str
    options: Mapping[str, Any]
    seed: int
    signed: bool
    class_specific: bool
    task: Literal["classification", "multi-label", "regression"]
    named: tuple[str, ...] | None
    modality: Literal["image", "text"]
    cost: Mapping[str, Any]
    auto: bool = False
    size: tuple[int, int] | None = setting(None, low=1, high=2**16)
    class_names: tuple[str, ...] | None = None
    tokens: tuple[tuple[str, ...], ...] | None = None
    words: tuple[tuple[Any, ...], ...] | None = None
    lengths: tuple[int, ...] | None = None


def write_fields(explanation: Any, path: str | PathLike[str]) -> None:
    """Write the fields of an explanation, pictures as they are drawn."""
    named = {n: t for n in _TENSORS if (t := getattr(explanation, n)) is not None}
    named |= {f"{group}.{name}": one for group in _GROUPS for name, one in getattr(explanation, group).items()}
    named |= {f"{_PICTURE_NAMES}.{n}": _pixels(picture) for n, picture in enumerate(_listed(explanation.pictures))}
    metadata = {name: json.dumps(getattr(explanation, name), default=str) for name in (*_PLAIN, *_WORDS)}
    write_tensors(named, path, metadata)


def read_fields(path: str | PathLike[str]) -> dict[str, Any]:
    """The fields of an explanation, as `write_fields` wrote them."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dictionary)
            metadata = file.metadata() or {}
    except FileNotFoundError as error:
        raise ArgumentError(f"There is no file {path}; check the path.") from error
    except (OSError, SafetensorError) as error:
        raise ArgumentError(
            f"Expected a safetensors file written by Explanation.save, but {path} is not one: {error}."
        ) from error
    if "scores" not in tensors or "method" not in metadata:
        raise ArgumentError(f"Expected a file written by Explanation.save, but {path} holds {sorted(tensors)}.")
    fields = _plain(metadata, path)
    for group in (*_GROUPS, _PICTURE_NAMES):
        inside = [name for name in tensors if name.startswith(f"{group}.")]
        fields[group] = {name.removeprefix(f"{group}."): tensors.pop(name) for name in inside}
    _check_tensors(tensors, fields, path)
    fields[_PICTURE_NAMES] = _read_pictures(fields[_PICTURE_NAMES], len(tensors["scores"]), path)
    return {"target": None, "probabilities": None, **tensors, **fields}


def _plain(metadata: Mapping[str, str], path: str | PathLike[str]) -> dict[str, Any]:
    try:
        raw = {name: read_json(text) for name, text in metadata.items()}
    except ValueError as error:
        raise ArgumentError(f"Expected JSON in the header of {path}, but it is damaged: {error}.") from error
    if strange := {*raw} - {*_PLAIN, *_WORDS}:
        raise ArgumentError(
            f"Expected a file written by Explanation.save of this version, but {path} also holds {sorted(strange)}; "
            "it may be of a newer one."
        )
    header = build(_Header, raw, str(path))
    words = [word for row in header.words or () for word in row]
    if any(word is not None and (isinstance(word, bool) or not isinstance(word, int)) for word in words):
        raise ArgumentError(f"{path}: words should be whole numbers and null, and others came.")
    fields = {name: _as_list(value) for name, value in asdict(header).items()}
    return {**fields, "size": header.size}


def _as_list(value: Any) -> Any:
    return [_as_list(item) for item in value] if isinstance(value, tuple) else value


def _check_tensors(tensors: Mapping[str, Tensor], fields: Mapping[str, Any], path: str | PathLike[str]) -> None:
    scores, axes = tensors["scores"], 2 if fields["modality"] == "text" else 3
    wrong = sorted(name for name in tensors if name not in _TENSORS)
    wrong += [name for name in ("scores", "logits") if name not in tensors or not tensors[name].is_floating_point()]
    wrong += [name for name, tensor in tensors.items() if tensor.shape[:1] != scores.shape[:1] or not tensor.numel()]
    if wrong or scores.dim() not in (axes, axes + 1) or tensors["logits"].dim() != 2:
        shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        raise ArgumentError(
            f"Expected the tensors of an explanation in {path}, with as many samples, but got {shapes}."
        )


def _listed(pictures: Any) -> list[Any]:
    return [] if pictures is None else list(pictures)


def _pixels(picture: Any) -> Tensor:
    """A picture as it is drawn, (H, W, 3), uint8."""
    import numpy as np
    import torch

    from mhex._photo import drawn_photo

    return torch.from_numpy(np.array(drawn_photo(picture)))


def _read_pictures(pixels: dict[str, Tensor], count: int, path: str | PathLike[str]) -> list[Image] | None:
    """One PIL image for each sample; None from files without them."""
    import torch
    from PIL import Image

    from mhex._photo import LARGEST

    if not pixels:
        return None
    numbers = [str(number) for number in range(count)]
    for name in numbers:
        shape = tuple(pixels[name].shape) if name in pixels and pixels[name].dtype == torch.uint8 else ()
        if len(pixels) != count or len(shape) != 3 or shape[2] != 3 or not all(1 <= side <= LARGEST for side in shape):
            raise ArgumentError(
                f"Expected a picture (height, width, 3) of at most {LARGEST} pixels, uint8, for each of {count} "
                f"samples, but {path} holds {len(pixels)}, and {shape or 'none'} for sample {name}."
            )
    return [Image.fromarray(pixels[name].numpy()) for name in numbers]
