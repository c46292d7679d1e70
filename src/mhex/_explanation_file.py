"""Explanations on disk: safetensors with everything that is no tensor in the header."""

from __future__ import annotations

import json
from os import PathLike
from typing import TYPE_CHECKING, Any

from mhex._files import write_tensors
from mhex._json import read_json
from mhex.errors import ArgumentError

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor

_TENSORS = ("scores", "target", "logits", "probabilities", "values", "real", "special", "scored")
_GROUPS = ("layers", "diagnostics")  # dictionaries of tensors; in a file, their names are prefixes
_PLAIN = ("method", "auto", "options", "seed", "signed", "class_specific", "task", "named", "modality", "size")
_WORDS = ("class_names", "tokens", "words", "lengths", "cost")
_PICTURES = "pictures"  # (H, W, 3) each, uint8, since they differ in size


def write_fields(explanation: Any, path: str | PathLike[str]) -> None:
    """Write the fields of an explanation, pictures as they are drawn."""
    named = {n: t for n in _TENSORS if (t := getattr(explanation, n)) is not None}
    named |= {f"{group}.{name}": one for group in _GROUPS for name, one in getattr(explanation, group).items()}
    named |= {f"{_PICTURES}.{n}": _pixels(picture) for n, picture in enumerate(_listed(explanation.pictures))}
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
    except SafetensorError as error:
        raise ArgumentError(
            f"Expected a safetensors file written by Explanation.save, but {path} is not one: {error}."
        ) from error
    if "scores" not in tensors or "method" not in metadata:
        raise ArgumentError(f"Expected a file written by Explanation.save, but {path} holds {sorted(tensors)}.")
    try:
        fields = {name: read_json(text) for name, text in metadata.items()}
    except ValueError as error:
        raise ArgumentError(f"Expected a file written by Explanation.save, but {path} is damaged: {error}.") from error
    fields["size"] = None if fields.get("size") is None else tuple(fields["size"])
    for group in (*_GROUPS, _PICTURES):
        inside = [name for name in tensors if name.startswith(f"{group}.")]
        fields[group] = {name.removeprefix(f"{group}."): tensors.pop(name) for name in inside}
    fields[_PICTURES] = _read_pictures(fields[_PICTURES], len(tensors["scores"]), path)
    strange = ({*tensors} - {*_TENSORS}) | ({*fields} - {*_PLAIN, *_WORDS, *_GROUPS, _PICTURES})
    if strange:
        raise ArgumentError(
            f"Expected a file written by Explanation.save of this version, but {path} also holds {sorted(strange)}; "
            "it may be of a newer one."
        )
    return {"target": None, "probabilities": None, **tensors, **fields}


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
