"""Checkpoints: everything a run needs to go on, in a folder that appears whole or not at all."""

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mhex import _files
from mhex._files import folder_aside, misfit, read_json, sync, write_text
from mhex._schema import build
from mhex._settings import check_that
from mhex.errors import ArgumentError
from mhex.lab.config.recipe import TrainingRecipe
from mhex.lab.config.schema import Natural
from mhex.lab.train.optimiser import HEADS, PROJECTOR, Average
from mhex.zoo.files import unpack

FOLDER = "checkpoint"
GROUP = "group."  # prefix of what an optimiser keeps for a group of parameters
_NAME = re.compile(r"step-\d{9}")
_PLAIN = bool | int | float | str | None
# The class matrix of a head, and the intercept of one that was fitted; equal shapes do not make equal classes.
_READ_OUT = re.compile(r"\.(w2\.weight|intercept)$")


def write_tensors(state: Mapping[str, Tensor], path: Path, facts: Mapping[str, str] | None = None) -> None:
    """Write copies of tensors, since the format knows no shared memory, and texts for the header; whole or not."""
    copies = {name: value.detach().cpu().clone() for name, value in state.items()}
    _files.write_tensors(copies, path, facts, durable=True)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file; packed weights are unpacked."""
    return unpack(_read(path)[0])


def read_facts(path: Path) -> dict[str, str]:
    """Read the text entries in the header of a weights file."""
    return _read(path)[1]


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    return _files.load_tensors(path, lambda error: f"The weights {path} cannot be read ({error}): make them anew.")


def halved(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Halve weights for shipping: floating point as float16, counters as they are."""
    half = {name: value.half() if value.is_floating_point() else value for name, value in state.items()}
    broken = [name for name, value in half.items() if not value.isfinite().all()]
    check_that(not broken, "weights that fit into float16 (at most 65504)", broken, ": retrain or rescale")
    return half


def load_weights(model: nn.Module, path: Path, *, over: bool = False) -> None:
    """Load a weights file of the same network; with `over`, it may hold a part of the weights alone."""
    state = read_tensors(path)
    model.load_state_dict({**model.state_dict(), **state} if over else state, strict=True)


def transfer(model: nn.Module, path: Path, classifier: Sequence[str], *, same_data: bool) -> None:
    """Start a network, in place, from weights of the same architecture with another classifier, heads or input size.

    Weights that were learned on the same data bring their classifier, which is given by prefixes of its parameters, and
    the read-outs of heads. On other data these begin anew, and gates go along. The position embeddings of timm
    transformers are resampled.
    """
    state = read_tensors(path)
    target = model.state_dict()
    free = (HEADS, PROJECTOR, *classifier)
    if not same_data:
        # Classes belong to the classifier, and to what an explainer head reads out.
        bound = [n for n in state if n.startswith((*classifier,)) or (n.startswith(HEADS) and _READ_OUT.search(n))]
        state = {name: value for name, value in state.items() if name not in bound}
    if "pos_embed" in state and hasattr(model, "patch_embed"):
        from timm.layers import resample_abs_pos_embed

        network: Any = model
        size, prefix = list(network.patch_embed.grid_size), network.num_prefix_tokens
        state["pos_embed"] = resample_abs_pos_embed(state["pos_embed"], new_size=size, num_prefix_tokens=prefix)
    fits = {name: value for name, value in state.items() if name in target and target[name].shape == value.shape}
    missing = [name for name in target if name not in fits and not name.startswith(free)]
    surplus = [name for name in state if name not in fits and not name.startswith(free)]
    if missing or surplus:
        raise ArgumentError(f"{path} should hold weights of the same architecture: {misfit(missing, surplus)}.")
    model.load_state_dict(fits, strict=False)


@dataclass
class Progress:
    """How far a run has come, tensors aside."""

    step: Natural = 0  # steps that are done
    loss_sum: float = 0.0  # of this epoch's steps
    history: list[dict[str, Any]] = field(default_factory=list)  # a row for each epoch that is done
    best: float | None = None  # best validation so far; None before the first
    best_epoch: Natural | None = None  # its epoch, counted from 1
    waited: Natural = 0  # epochs since
    seconds: float = 0.0  # time spent so far
    scaler: dict[str, Any] = field(default_factory=dict)  # state of the loss scaling in fp16


def save_checkpoint(
    out: Path,
    recipe: TrainingRecipe,
    progress: Progress,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    average: Average | None,
    best: Mapping[str, Tensor] | None,
) -> None:
    """Write a checkpoint into the folder of a run and remove the older ones.

    `best` are the weights of a new best validation; None takes those of the last checkpoint along.
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
        write_text(json.dumps(state, indent=1), aside / "state.json", durable=True)
        aside.rename(home / f"step-{progress.step:09d}")
        sync(home)
    if older is not None:
        shutil.rmtree(older)


def latest_checkpoint(out: Path) -> Path | None:
    """Find the newest whole checkpoint of a run; None before the first."""
    return max((path for path in (out / FOLDER).glob("step-*") if _NAME.fullmatch(path.name)), default=None)


def load_checkpoint(
    folder: Path, recipe: TrainingRecipe, model: nn.Module, optimizer: torch.optim.Optimizer, average: Average | None
) -> Progress:
    """Fill model, optimiser and average from a checkpoint of this very recipe, and give how far the run was."""
    try:
        state = read_json((folder / "state.json").read_text(encoding="utf-8"))
        # Through today's schema, so that keys which are newer than the checkpoint have their defaults in both.
        old = build(TrainingRecipe, {**state["recipe"], "title": recipe.title}, "its recipe")
    except (OSError, ValueError, LookupError, TypeError) as error:
        words = f"The checkpoint {folder} is damaged, or of another version of mhex ({error})"
        raise ArgumentError(f"{words}: begin anew with --restart.") from error
    recipe.check_same(old, folder.parent.parent)
    try:
        model.load_state_dict(read_tensors(folder / "model.safetensors"))
        restore(optimizer, read_tensors(folder / "optimizer.safetensors"), state["optimizer"])
        if average is not None:
            average.load(read_tensors(folder / "average.safetensors"))
        return build(Progress, state["progress"], "progress")
    except (RuntimeError, ValueError, TypeError, LookupError, AttributeError) as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise ArgumentError(f"The checkpoint {folder} is damaged ({reason[0]}): begin anew with --restart.") from error


def flatten(optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Give an optimiser's state as tensors and, apart, what is no tensor.

    Keys are ``"PARAMETER.NAME"`` and, for what an optimiser keeps once for a group of parameters, such as the number of
    steps in LAMB, ``"group.PLACE.NAME"``. What is neither a tensor nor a plain value is refused.
    """
    state = optimizer.state_dict()
    flat = {f"{place}.{name}": value for place, part in state["state"].items() for name, value in part.items()}
    for key, value in flat.items():
        if not isinstance(value, Tensor | _PLAIN):
            words = f"{type(optimizer).__name__} keeps {key.partition('.')[2]!r} as {type(value).__name__}"
            raise ArgumentError(f"{words}, which a checkpoint cannot hold: choose another train.optimizer.")
    for place, group in enumerate(state["param_groups"]):
        # What else is in a group, betas and lists of parameters, never changes.
        flat |= {f"{GROUP}{place}.{name}": value for name, value in group.items() if isinstance(value, Tensor | _PLAIN)}
    tensors = {name: value for name, value in flat.items() if isinstance(value, Tensor)}
    return tensors, {name: value for name, value in flat.items() if name not in tensors}


def restore(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> None:
    """Reverse `flatten`; what it does not hold of the groups stays as it is."""
    state: dict[int, dict[str, Any]] = {}
    groups = optimizer.state_dict()["param_groups"]
    for key, value in (*tensors.items(), *numbers.items()):
        place, _, name = key.removeprefix(GROUP).partition(".")
        (groups[int(place)] if key.startswith(GROUP) else state.setdefault(int(place), {}))[name] = value
    optimizer.load_state_dict({"state": state, "param_groups": groups})
