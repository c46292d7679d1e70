"""Recipe files: packaged ones by name, your own by path, with small changes from the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from mhex._schema import build
from mhex.errors import ArgumentError
from mhex.lab.config.recipe import Recipe
from mhex.lab.config.schema import SUFFIXES, NamedFiles, Shallow, read_yaml

_RECIPES = NamedFiles("recipe", "mhex.lab", "recipes", "mhex train --list")


def packaged_recipes() -> dict[str, Path]:
    """The recipes that come with mhex: a file for each name."""
    return _RECIPES.packaged()


def find_recipe(wanted: str) -> Path:
    """The file of a recipe, by its path or the name of a packaged one.

    Raises:
        ArgumentError: There is no such file or name.
    """
    return _RECIPES.find(wanted)


def find_named(wanted: str, beside: Path) -> Path:
    """The file of the recipe that another one needs, whatever the file is called.

    Args:
        wanted: Name of the recipe, which is what its folder is called.
        beside: Folder whose recipes come before the packaged ones of the same name.

    Raises:
        ArgumentError: No recipe has this name.
    """
    files = [path for path in sorted(beside.iterdir()) if path.suffix in SUFFIXES]
    for likely in (path for path in files if path.stem == wanted):
        if _name_in(likely) == wanted:
            return likely
    found = [path for path in files if _name_in(path) == wanted]
    if len(found) > 1:
        raise ArgumentError(f"{found[0].name} and {found[1].name} both hold a recipe {wanted!r}: rename one of them.")
    if found:
        return found[0]
    return _RECIPES.named(wanted)


def _name_in(path: Path) -> Any:
    """The name that a recipe file gives its recipe; None where the file is something else."""
    try:
        raw = yaml.load(path.read_text(encoding="utf-8"), Shallow)  # its other mistakes are told when it is read
    except (yaml.YAMLError, OSError, ValueError):
        return None
    return raw.get("name") if isinstance(raw, dict) else None


def read_recipe(path: Path, changes: Sequence[str] = ()) -> Recipe:
    """Read and check a recipe file.

    Args:
        path: The file.
        changes: ``section.key=value`` each, put over what the file says.

    Raises:
        ArgumentError: One sentence that names the file and the key.
    """
    raw = _RECIPES.read(path)
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
        section[parts[-1]] = read_yaml(text)
    except yaml.YAMLError as error:
        raise ArgumentError(f"--set {keys}: the value is not valid YAML: {' '.join(str(error).split())}.") from error


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
