"""Files: written whole or not at all, and what is read from files of strangers checked before it is used."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mhex.errors import ArgumentError, MhexError

if TYPE_CHECKING:
    from torch import Tensor, nn

_DEEPEST = 64  # levels of JSON; Python gives up at about a thousand, in whatever code comes first


@contextmanager
def writing(path: str | PathLike[str], advice: str = "make room, or choose another place") -> Iterator[None]:
    """Turn the system's refusal to write a path into an `ArgumentError` of one sentence, with advice."""
    try:
        yield
    except MhexError:  # that of missing data is an OSError, too
        raise
    except OSError as error:
        raise ArgumentError(f"Cannot write to {path}: {error.strerror or error}; {advice}.") from error


@contextmanager
def replacing(path: str | PathLike[str], durable: bool = False) -> Iterator[Path]:
    """A place to write a file to, which takes the name `path` at the end.

    The file is in a folder that exists, and links are followed. After an error, or Ctrl-C, what was there before is
    unchanged, and nothing is left of the new file. A durable file is put on the disk by the system before it takes its
    name, as checkpoints need it. Where the system refuses to write, an `ArgumentError` is raised.
    """
    final = Path(os.path.realpath(path))
    if not final.parent.is_dir():
        raise ArgumentError(f"Cannot write to {path}: there is no folder {final.parent}; make it first.")
    with writing(path):
        if final.exists() and not final.is_file():  # such as /dev/stdout, which cannot be replaced
            yield final
            return
        aside = final.with_name(f".{secrets.token_hex(6)}.partial")
        try:
            yield aside
            if durable:
                sync(aside)
            os.replace(aside, final)
            if durable:
                sync(final.parent)
        finally:
            aside.unlink(missing_ok=True)


@contextmanager
def folder_aside(aside: Path) -> Iterator[Path]:
    """A new folder, instead of one that an ended process left, for files that are put beside it; removed at the end."""
    with writing(aside.parent):
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        try:
            yield aside
        finally:
            shutil.rmtree(aside, ignore_errors=True)


def write_bytes(data: bytes, path: str | PathLike[str], durable: bool = False) -> None:
    """Write a file whole or not at all; see `replacing`."""
    with replacing(path, durable) as aside:
        aside.write_bytes(data)


def write_text(text: str, path: str | PathLike[str], durable: bool = False) -> None:
    """Write a text file in UTF-8, whole or not at all; see `replacing`."""
    write_bytes(text.encode("utf-8"), path, durable)


def write_tensors(
    tensors: Mapping[str, Tensor],
    path: str | PathLike[str],
    facts: Mapping[str, str] | None = None,
    durable: bool = False,
) -> None:
    """Write tensors by name, and facts as its header, to a safetensors file, whole or not at all; see `replacing`."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    copies = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with replacing(path, durable) as aside:
        try:
            save_file(copies, aside, metadata=dict(facts or {}))
        except SafetensorError as error:  # which is no OSError, also where the disk is full
            reason = re.search(r"I/O error: (.*?)(?: \(os error|$)", str(error))
            raise OSError(reason[1] if reason else str(error)) from error
        # The writer makes files that only their owner can read.
        aside.chmod(0o644)


def read_tensors(path: str | PathLike[str], writer: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and header of a safetensors file; errors name the function that writes such files."""
    wrong = f"Expected a safetensors file written by {writer}, but {path} is not one: "
    return load_tensors(path, lambda error: f"{wrong}{error}.", f"There is no file {path}; check the path.")


def load_tensors(
    path: str | PathLike[str], refusal: Callable[[Exception], str], missing: str = ""
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and header of a safetensors file; the words for one that cannot be read, and for one that is missing."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        absent = missing if isinstance(error, FileNotFoundError) else ""
        raise ArgumentError(absent or refusal(error)) from error


def sync(path: Path) -> None:
    """Have the system put a file, or the entries of a folder, on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_json(text: str) -> Any:
    """Plain values from JSON; text that is none, or nested too deeply, raises `JSONDecodeError`, a `ValueError`."""
    too_deep = json.JSONDecodeError(f"lists and objects are nested more than {_DEEPEST} levels deep", text[:1], 0)
    try:
        value = json.loads(text)
    except RecursionError:
        raise too_deep from None
    level, depth = [value], 0
    while level:
        if depth > _DEEPEST:
            raise too_deep
        nested = [list(part.values()) if isinstance(part, dict) else part for part in level]
        level, depth = [child for part in nested if isinstance(part, list) for child in part], depth + 1
    return value


def misfit_of(model: nn.Module, weights: Mapping[str, Tensor]) -> str:
    """What does not fit of weights for a model, in words; empty if everything does."""
    tensors = model.state_dict()
    shapes = {name: (tuple(weights[name].shape), tuple(t.shape)) for name, t in tensors.items() if name in weights}
    misshapen = [
        f"{name} is {actual} instead of {right}" for name, (actual, right) in shapes.items() if actual != right
    ]
    return misfit([n for n in tensors if n not in weights], [n for n in weights if n not in tensors], misshapen)


def misfit(missing: Iterable[str], extra: Iterable[str], misshapen: Iterable[str] = ()) -> str:
    """Which names of weights do not fit, in words; empty if all do."""
    groups = (("missing keys", list(missing)), ("unexpected keys", list(extra)), ("wrong shapes", list(misshapen)))
    return "; ".join(
        f"{len(names)} {fault} ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''})"
        for fault, names in groups
        if names
    )
