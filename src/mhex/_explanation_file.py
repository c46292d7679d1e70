"""Explanations on disk: safetensors with everything that is no tensor in the header."""

from __future__ import annotations

import json
from os import PathLike
from typing import Any

from mhex._files import write_tensors
from mhex.errors import ArgumentError

_TENSORS = ("scores", "target", "logits", "probabilities", "values", "real", "special", "scored")
_GROUPS = ("layers", "diagnostics")  # dictionaries of tensors; in a file, their names are prefixes
_PLAIN = ("method", "options", "seed", "signed", "class_specific", "task", "named", "modality", "size")
_WORDS = ("class_names", "tokens", "words", "cost")


def write_fields(explanation: Any, path: str | PathLike[str]) -> None:
    """Write the fields of an explanation, all but the pictures."""
    named = {n: t for n in _TENSORS if (t := getattr(explanation, n)) is not None}
    named |= {f"{group}.{name}": one for group in _GROUPS for name, one in getattr(explanation, group).items()}
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
    fields = {name: json.loads(text) for name, text in metadata.items()}
    fields["size"] = None if fields["size"] is None else tuple(fields["size"])
    for group in _GROUPS:
        inside = [name for name in tensors if name.startswith(f"{group}.")]
        fields[group] = {name.removeprefix(f"{group}."): tensors.pop(name) for name in inside}
    return {"target": None, "probabilities": None, **tensors, **fields}
