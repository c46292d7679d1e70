"""How the rows of a folder were made: calls, versions and commands, beside them in a file of their own."""

from __future__ import annotations

import json
import os
import platform
import shlex
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from mhex._json import read_json
from mhex.errors import ArgumentError

_NAME = "about.json"
_PACKAGES = ("mhex", "numpy", "timm", "transformers")


def note(folder: Path, told: Mapping[str, Any]) -> None:
    """Write down a call, unless the same one is there already.

    Args:
        folder: Of the rows.
        told: What is known of the call, as JSON can hold it.
    """
    known = read(folder)
    entry = json.loads(json.dumps({**told, "command": command(), "versions": versions()}, default=str))
    if entry in known:
        return
    path = folder / _NAME
    partial = path.with_name(f".{_NAME}.partial")
    partial.write_text(json.dumps([*known, entry], indent=2), encoding="utf-8")
    os.replace(partial, path)


def read(folder: Path) -> list[dict[str, Any]]:
    """The calls that made the rows of a folder, in their order; empty if none was written down."""
    path = folder / _NAME
    if not path.exists():
        return []
    try:
        found = read_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ArgumentError(f"Expected the calls of a run in {str(path)!r}, but it is no JSON; delete it.") from error
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise ArgumentError(f"Expected the calls of a run in {str(path)!r}, but it holds something else; delete it.")
    return found


def versions() -> dict[str, str]:
    """Of Python and of the packages that numbers depend on, as far as they are installed."""
    found = {"python": platform.python_version(), "torch": str(torch.__version__)}  # with its build
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def command() -> str:
    """The command line of this program, without the folder of the program; empty where there is none."""
    first = Path(sys.argv[0]).name if sys.argv else ""
    if first in ("", "-c", "-m"):
        return ""
    return shlex.join([first, *sys.argv[1:]])
