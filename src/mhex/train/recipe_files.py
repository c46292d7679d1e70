"""Recipe files: packaged ones by name, your own by path, with small changes from the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from mhex.errors import ArgumentError, unknown_name
from mhex.train.recipe import Recipe
from mhex.train.schema import build

_SUFFIXES = (".yaml", ".yml")


def packaged_recipes() -> dict[str, Path]:
    """The recipes that come with mhex: a file for each name."""
    folder = Path(str(resources.files("mhex.train") / "recipes"))
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def find_recipe(wanted: str, beside: Path | None = None) -> Path:
    """The file of a recipe.

    Args:
        wanted: A path, or a name.
        beside: A folder whose recipes come before the packaged ones of the same name.

    Raises:
        ArgumentError: There is no such file or name.
    """
    path = Path(wanted).expanduser()
    if path.is_file():
        return path
    if path.suffix in _SUFFIXES or len(path.parts) > 1:
        raise ArgumentError(f"There is no recipe file {wanted}; check the path, or see `mhex train --list`.")
    if beside is not None and (beside / f"{wanted}.yaml").is_file():
        return beside / f"{wanted}.yaml"
    packaged = packaged_recipes()
    if wanted not in packaged:
        raise unknown_name("recipe", wanted, packaged)
    return packaged[wanted]


def read_recipe(path: Path, changes: Sequence[str] = ()) -> Recipe:
    """Read and check a recipe file.

    Args:
        path: The file.
        changes: ``section.key=value`` each, put over what the file says.

    Raises:
        ArgumentError: One sentence that names the file and the key.
    """
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ArgumentError(f"{path.name} is not valid YAML: {' '.join(str(error).split())}.") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ArgumentError(f"The recipe {path} cannot be read: {error}.") from error
    if not isinstance(raw, dict):
        raise ArgumentError(f"{path.name}: a recipe should be a mapping of keys to values, not {type(raw).__name__}.")
    for change in changes:
        _override(raw, change)
    return build(Recipe, raw, path.name)


def restore_recipe(plain: Mapping[str, Any], source: str) -> Recipe:
    """A recipe from the plain values that a report holds."""
    return build(Recipe, plain, source)


def _override(raw: dict[str, Any], change: str) -> None:
    """Put ``section.key=value`` into what a file said; the keys are checked with the file's own."""
    keys, equals, text = change.partition("=")
    parts = keys.strip().split(".")
    if not equals or not all(parts):
        raise ArgumentError(f"Expected --set section.key=value, e.g. --set train.epochs=2, but got {change!r}.")
    section: Any = raw
    for part in parts[:-1]:
        if section.get(part) is None:
            section[part] = {}
        section = section[part]
        if not isinstance(section, dict):
            raise ArgumentError(f"--set {change}: {part} is not a section of keys, so {parts[-1]} cannot be set in it.")
    try:
        section[parts[-1]] = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ArgumentError(f"--set {change}: the value is not valid YAML.") from error


def differences(old: Mapping[str, Any], new: Mapping[str, Any], place: str = "") -> list[str]:
    """Keys in which two recipes differ, with both values: ``train.epochs (3 there, 5 here)``."""
    found: list[str] = []
    for key in dict.fromkeys((*old, *new)):
        there, here, name = old.get(key), new.get(key), f"{place}{key}"
        if isinstance(there, Mapping) and isinstance(here, Mapping):
            found += differences(there, here, f"{name}.")
        elif there != here:
            found.append(f"{name} ({there!r} there, {here!r} here)")
    return found
