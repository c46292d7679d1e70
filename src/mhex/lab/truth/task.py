"""The list of generated tasks. One decorator adds one; data sets, recipes and benches read it from here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from mhex.lab.truth.scenes import SceneRandom, Scenes
from mhex.registry import Registry, import_modules

UNKNOWN = 2  # sign of a part of which construction says nothing


class LabelledScenes(NamedTuple):
    """Scenes of a task with their labels."""

    scenes: Scenes
    label: Tensor  # (N,), int64
    # What construction says of each object, (N, K): 1 for the label, -1 against it, 0 nothing, `UNKNOWN`.
    signs: Tensor
    other: Tensor | None = None  # a second class that is in each scene, (N,)


class Sentence(NamedTuple):
    """A sentence of a task with its label."""

    words: tuple[str, ...]
    label: int
    signs: tuple[int | None, ...]  # what construction says of each word


@dataclass(frozen=True)
class Task:
    """A registered task."""

    name: str  # what users type behind `truth:`
    make: Callable[..., Any]  # from `SceneRandom` to `LabelledScenes`; of texts from a generator to a `Sentence`
    title: str
    classes: tuple[str, ...]
    family: str  # tasks of one family share what decides
    kind: Literal["image", "text"] = "image"
    learnable: bool = True  # False where it is judged with a network of another task
    network: str = ""  # the task whose networks it is judged with, if not its own


TASKS: Registry[Task] = Registry("task")


def register_task(name: str, **facts: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the decorated function as task `name` with the fields of `Task`; its family is called so by default."""

    def decorate(make: Callable[..., Any]) -> Callable[..., Any]:
        TASKS.add(name, Task(name, make, **{"family": name, **facts}))
        return make

    return decorate


def all_tasks() -> dict[str, Task]:
    """Every task by name; the files of `mhex.lab.truth.tasks` are imported on first use."""
    from mhex.lab.truth import tasks

    import_modules(tasks.__name__)
    return TASKS.sorted()


def draw_scenes(
    task: Task, rows: Sequence[int], purpose: int, seed: int = 0, device: Any = "cpu", **options: Any
) -> LabelledScenes:
    """Scenes of a task; a scene depends on its row, purpose and the seed alone."""
    with torch.device(device):
        scenes: LabelledScenes = task.make(SceneRandom(rows, seed, purpose, device), **options)
    return scenes
