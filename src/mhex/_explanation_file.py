"""Explanations on disk: safetensors with everything that is no tensor in the header."""

from __future__ import annotations

import json
from os import PathLike
from typing import Any

from mhex._json import read_json
from mhex.errors import ArgumentError

_TENSORS = ("scores", "target", "logits", "probabilities", "values", "real", "special", "scored")
_GROUPS = ("layers", "diagnostics")  # dictionaries of tensors; in a file, their names are prefixes
_PLAIN = ("method", "options", "seed", "signed", "class_specific", "task", "named", "modality", "size")
_WORDS = ("class_names", "tokens", "words", "cost")


def write_fields(explanation: Any, path: str | PathLike[str]) -> None:
    """Write the fields of an explanation, all but the pictures."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    named = {n: t for n in _TENSORS if (t := getattr(explanation, n)) is not None}
    named |= {f"{group}.{name}": one for group in _GROUPS for name, one in getattr(explanation, group).items()}
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in named.items()}
    metadata = {name: json.dumps(getattr(explanation, name), default=str) for name in (*_PLAIN, *_WORDS)}
    try:
        save_file(tensors, path, metadata=metadata)
    except (OSError, SafetensorError) as error:
        raise ArgumentError(f"Expected a file that can be written, but {path} cannot: {error}.") from error


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
    fields["size"] = None if fields["size"] is None else tuple(fields["size"])
    for group in _GROUPS:
        inside = [name for name in tensors if name.startswith(f"{group}.")]
        fields[group] = {name.removeprefix(f"{group}."): tensors.pop(name) for name in inside}
    return {"target": None, "probabilities": None, **tensors, **fields}
