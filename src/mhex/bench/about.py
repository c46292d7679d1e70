"""How the rows of a folder were made: calls, versions and commands, beside them in a file of their own."""

from __future__ import annotations

import json
import platform
import shlex
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from mhex._files import write_text
from mhex._json import read_json
from mhex.errors import ArgumentError

_NAME = "about.json"
_PACKAGES = ("mhex", "numpy", "timm", "transformers")


def note(
    folder: Path,
    told: Mapping[str, Any],
    samples: int | None = None,
    done: int | None = None,
    lost: Mapping[int, str] | None = None,
) -> None:
    """Write down a call when it begins, and once more when it is done; the same call is written down once.

    Args:
        folder: Of the rows.
        told: What is known of the call, as JSON can hold it.
        samples: How many there are to judge; None if that is not known.
        done: At the end of the call, how many samples it went through. A call without it was broken off, or still runs.
        lost: Samples that could not be judged, and why.
    """
    known = read(folder)
    made = {**told, "command": command(), "versions": versions(), "samples": samples}
    entry = json.loads(json.dumps(made, default=str))
    place = next((k for k, call in enumerate(known) if entry.items() <= call.items()), len(known))
    if place < len(known) and done is None:
        return
    lost_ids = {str(number): reason for number, reason in sorted((lost or {}).items())}
    known[place : place + 1] = [{**entry, "done": done, "lost": lost_ids}]
    write_text(json.dumps(known, indent=2), folder / _NAME)


def read(folder: Path) -> list[dict[str, Any]]:
    """The calls that made the rows of a folder, in their order; empty if none was written down."""
    path = folder / _NAME
    if not path.exists():
        return []
    try:
        found = read_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ArgumentError(f"Expected the calls of a run in {str(path)!r}, but it is no JSON; delete it.") from error
    if not isinstance(found, list) or not all(map(_is_call, found)):
        raise ArgumentError(f"Expected the calls of a run in {str(path)!r}, but it holds something else; delete it.")
    return found


def _is_call(entry: Any) -> bool:
    """Whether an entry of the file is the description of a call that `note` writes."""
    if not isinstance(entry, dict):
        return False
    names = [entry.get(key, []) for key in ("methods", "metrics")]
    counts = [entry.get(key) for key in ("samples", "done")]
    return (
        all(isinstance(group, list) and all(isinstance(name, str) for name in group) for group in names)
        and all(count is None or type(count) is int for count in counts)
        and are_losses(entry.get("lost") or {})
    )


def are_losses(lost: Any) -> bool:
    """Whether something is numbers of samples, as JSON has them, and why they were lost."""
    return isinstance(lost, dict) and all(
        number.isdecimal() and isinstance(reason, str) for number, reason in lost.items()
    )


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
