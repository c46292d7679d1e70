"""Checkpoints: everything a run needs to go on, in a folder that appears whole or not at all."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mhex._files import folder_aside, sync
from mhex._json import read_json
from mhex.errors import ArgumentError
from mhex.train.average import Average
from mhex.train.checkpoint import read_tensors, write_tensors, write_text
from mhex.train.recipe import Recipe
from mhex.train.recipe_files import differences, restore_recipe

FOLDER = "checkpoint"
GROUP = "group."  # prefix of what an optimiser keeps for a group of parameters
_NAME = re.compile(r"step-\d{9}")
_PLAIN = bool | int | float | str | None


@dataclass
class Progress:
    """How far a run has come, tensors aside.

    Attributes:
        step: Steps that are done.
        loss_sum: Sum of the losses of this epoch's steps.
        history: A row for each epoch that is done.
        best: Best validation so far; None before the first.
        best_epoch: Epoch of the best validation, counted from 1.
        waited: Epochs since.
        seconds: Time spent so far.
        scaler: State of the loss scaling in fp16.
    """

    step: int = 0
    loss_sum: float = 0.0
    history: list[dict[str, Any]] = field(default_factory=list)
    best: float | None = None
    best_epoch: int | None = None
    waited: int = 0
    seconds: float = 0.0
    scaler: dict[str, Any] = field(default_factory=dict)


def save_checkpoint(
    out: Path,
    recipe: Recipe,
    progress: Progress,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    average: Average | None,
    best: Mapping[str, Tensor] | None,
) -> None:
    """Write a checkpoint and remove the older ones.

    Args:
        out: Folder of the run.
        recipe: Whose identity the checkpoint carries.
        progress: How far the run is; a step has one checkpoint.
        model: The network.
        optimizer: Its optimiser.
        average: The running average, if there is one.
        best: Weights of a new best validation; None takes those of the last checkpoint along.
    """
    home = out / FOLDER
    older = latest_checkpoint(out)
    with folder_aside(home / "part") as aside:
        write_tensors(model.state_dict(), aside / "model.safetensors")
        tensors, numbers = flatten(optimizer)
        write_tensors(tensors, aside / "optimizer.safetensors")
        if average is not None:
            write_tensors(average.state, aside / "average.safetensors")
        if best is not None:
            write_tensors(best, aside / "best.safetensors")
        elif older is not None and (older / "best.safetensors").is_file():
            shutil.copyfile(older / "best.safetensors", aside / "best.safetensors")
            sync(aside / "best.safetensors")
        state = {"progress": asdict(progress), "optimizer": numbers, "recipe": recipe.identity()}
        write_text(json.dumps(state, indent=1), aside / "state.json")
        aside.rename(home / f"step-{progress.step:09d}")
        sync(home)
    if older is not None:
        shutil.rmtree(older)


def latest_checkpoint(out: Path) -> Path | None:
    """The newest whole checkpoint of a run; None before the first."""
    home = out / FOLDER
    found = sorted(path for path in home.glob("step-*") if _NAME.fullmatch(path.name)) if home.is_dir() else []
    return found[-1] if found else None


def load_checkpoint(
    folder: Path, recipe: Recipe, model: nn.Module, optimizer: torch.optim.Optimizer, average: Average | None
) -> Progress:
    """Take over a checkpoint.

    Args:
        folder: As `latest_checkpoint` gave it.
        recipe: The recipe that is run now.
        model: Filled in place.
        optimizer: Filled in place.
        average: Filled in place.

    Returns:
        How far the run was.

    Raises:
        ArgumentError: The checkpoint is of another recipe; the message names the keys that differ.
    """
    try:
        state = read_json((folder / "state.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ArgumentError(f"The checkpoint {folder} cannot be read ({error}): begin anew with --restart.") from error
    # Through today's schema, so that keys which are newer than the checkpoint have their defaults in both.
    refuse_other_recipe(folder.parent.parent, _recipe_of(state, recipe.title, folder), recipe)
    try:
        model.load_state_dict(read_tensors(folder / "model.safetensors"))
        restore(optimizer, read_tensors(folder / "optimizer.safetensors"), state["optimizer"])
        if average is not None:
            average.load(read_tensors(folder / "average.safetensors"))
        return _progress(state["progress"])
    except ArgumentError:
        raise
    except (RuntimeError, ValueError, TypeError, LookupError, AttributeError) as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise ArgumentError(f"The checkpoint {folder} is damaged ({reason[0]}): begin anew with --restart.") from error


def _progress(entries: Mapping[str, Any]) -> Progress:
    progress = Progress(**entries)
    counts = (progress.step, progress.waited, progress.best_epoch or 0)
    numbers = (progress.loss_sum, progress.seconds, progress.best or 0.0)
    rows = isinstance(progress.history, list) and all(isinstance(row, dict) for row in progress.history)
    if (
        not all(isinstance(count, int) and not isinstance(count, bool) and count >= 0 for count in counts)
        or not all(isinstance(number, int | float) for number in numbers)
        or not rows
        or not isinstance(progress.scaler, dict)
    ):
        raise ValueError("its progress should be numbers and rows of a history")
    return progress


def _recipe_of(state: Mapping[str, Any], title: str, folder: Path) -> Recipe:
    """The recipe of a checkpoint, with a title for the one that its identity lacks."""
    if not isinstance(state, Mapping) or not isinstance(state.get("recipe"), Mapping):
        raise ArgumentError(f"The checkpoint {folder} names no recipe, so it is damaged: begin anew with --restart.")
    try:
        return restore_recipe({**state["recipe"], "title": title}, f"the checkpoint {folder}")
    except ArgumentError as error:
        raise ArgumentError(f"{error} Another version of mhex wrote it: begin anew with --restart.") from error


def refuse_other_recipe(out: Path, old: Recipe, recipe: Recipe) -> None:
    """Refuse to go on with the work of another recipe in a folder.

    Raises:
        ArgumentError: The recipes differ in what decides the weights; the message names the keys.
    """
    if wrong := differences(old.identity(), recipe.identity()):
        raise ArgumentError(
            f"{out} holds the work of another recipe, which differs in {', '.join(wrong[:4])}"
            f"{', ...' if len(wrong) > 4 else ''}: begin anew with --restart, or choose another folder with --out."
        )


def flatten(optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """An optimiser's state as tensors and, apart, what is no tensor.

    Keys are ``"PARAMETER.NAME"`` and, for what an optimiser keeps once for a group of parameters, such as the number of
    steps in LAMB, ``"group.PLACE.NAME"``.

    Raises:
        ArgumentError: The optimiser keeps something that is neither a tensor nor a plain value.
    """
    stored = optimizer.state_dict()
    kept: dict[str, Any] = {}
    for place, entries in stored["state"].items():
        for name, value in entries.items():
            if not isinstance(value, Tensor | _PLAIN):
                raise ArgumentError(
                    f"{type(optimizer).__name__} keeps {name!r} as {type(value).__name__}, which a checkpoint cannot "
                    "hold: choose another train.optimizer."
                )
            kept[f"{place}.{name}"] = value
    for place, group in enumerate(stored["param_groups"]):
        # What else is in a group, betas and lists of parameters, never changes.
        kept |= {f"{GROUP}{place}.{name}": value for name, value in group.items() if isinstance(value, Tensor | _PLAIN)}
    tensors = {name: value for name, value in kept.items() if isinstance(value, Tensor)}
    return tensors, {name: value for name, value in kept.items() if name not in tensors}


def restore(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> None:
    """The reverse of `flatten`; what it does not hold of the groups stays as it is."""
    state: dict[int, dict[str, Any]] = {}
    groups = optimizer.state_dict()["param_groups"]
    for key, value in (*tensors.items(), *numbers.items()):
        place, _, name = key.removeprefix(GROUP).partition(".")
        (groups[int(place)] if key.startswith(GROUP) else state.setdefault(int(place), {}))[name] = value
    optimizer.load_state_dict({"state": state, "param_groups": groups})
