"""Places of the zoo's files: some travel with the package, others are made on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from mhex.errors import ArgumentError

WEIGHTS = Path(__file__).parent / "weights"
MODELS_VARIABLE = "MHEX_MODELS"


def models_folder() -> Path:
    """The folder of models that were built here: what `MHEX_MODELS` names, or a folder of the user's cache."""
    name = os.environ.get(MODELS_VARIABLE, "").strip()
    if name:
        return Path(name).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME", "").strip()
    return (Path(cache).expanduser() if cache else Path.home() / ".cache") / "mhex" / "models"


def names_in(folder: Path) -> list[str]:
    """Names of the cards in a folder."""
    return sorted(path.stem for path in folder.glob("*.json"))


def folder_of(name: str) -> Path | None:
    """The folder of the weights of a model of the zoo, the package first; None if they are nowhere."""
    for folder in (WEIGHTS, models_folder()):
        if (folder / f"{name}.safetensors").is_file() and (folder / f"{name}.json").is_file():
            return folder
    return None


def missing_of(names: Iterable[str]) -> list[str]:
    """The models of the zoo that have to be built, without their prefix, among names as `mhex.load` takes them."""
    zoo = (name.removeprefix("zoo:") for name in names if name.startswith("zoo:"))
    return [name for name in dict.fromkeys(zoo) if folder_of(name) is None]


def refuse_missing(names: Iterable[str]) -> None:
    """Refuse models of the zoo whose weights are not there, all of them in one sentence."""
    missing = missing_of(names)
    if len(missing) > 1:
        raise ArgumentError(
            f"The weights of {', '.join(f'zoo:{name}' for name in missing)} do not travel with mhex; train each once "
            f"with `mhex models build NAME`, which puts them into {models_folder()}."
        )
    for name in missing:
        home_of(name)


def home_of(name: str) -> Path:
    """The same as `folder_of`; a model whose weights are nowhere is refused with the command that makes them."""
    folder = folder_of(name)
    if folder is None:
        raise ArgumentError(
            f"The weights of zoo:{name} do not travel with mhex; train them once with `mhex models build {name}`, "
            f"which puts them into {models_folder()}."
        )
    return folder
