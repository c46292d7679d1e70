"""Generated tasks as data sets: `truth:objects` and others, any number of samples, with parts that can be removed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from mhex._settings import check_count, check_seed, check_that
from mhex.inputs.parts import InputParts
from mhex.lab.datasets import files
from mhex.lab.datasets.catalogue import register_data
from mhex.lab.datasets.sets import ImageSet, TextSet
from mhex.lab.truth.scenes import Scenes
from mhex.lab.truth.task import UNKNOWN, Task, all_tasks, draw_scenes
from mhex.perturb import generator_for

SIDE = 64
SPLITS = {"train": 20_000, "val": 1_000, "test": 1_000}  # samples where no limit is given
_PURPOSES = {"train": 71, "val": 72, "test": 73}  # of random numbers, so that no sample is in two splits


@dataclass(frozen=True, eq=False, kw_only=True)
class SceneSet(ImageSet):
    """Generated scenes; their items have `parts`, the objects."""

    scenes: Scenes = field(repr=False)
    signs: Tensor = field(repr=False)  # what construction says of each object, (N, K); see `LabelledScenes`
    second_labels: Tensor | None = None  # a second class of each scene, (N,)

    def parts(self, row: int) -> InputParts:
        """The objects of a scene."""
        scene, side = self.scenes.take([row]), self.images.shape[-1]
        places = scene.present[0].nonzero()[:, 0]
        masks = scene.masks(side)[0, places]
        signs = tuple(None if sign == UNKNOWN else sign for sign in self.signs[row, places.cpu()].tolist())
        return InputParts(masks=masks.cpu(), without=partial(_scene_without, scene, places, side), signs=signs)

    def _item(self, row: int) -> dict[str, Any]:
        item = {**super()._item(row), "parts": self.parts(row)}
        return item if self.second_labels is None else {**item, "other": int(self.second_labels[row])}


def _scene_without(scene: Scenes, places: Tensor, side: int, numbers: Sequence[int]) -> Image.Image:
    """One scene without some of its objects."""
    removed = torch.zeros_like(scene.present)
    removed[0, places[list(numbers)]] = True
    return Image.fromarray(scene.without(removed).images(side)[0].permute(1, 2, 0).contiguous().cpu().numpy())


@dataclass(frozen=True, eq=False, kw_only=True)
class SentenceSet(TextSet):
    """Generated sentences; their items have `parts`, the words."""

    signs: tuple[tuple[int | None, ...], ...] = field(repr=False)  # what construction says of each word

    def _item(self, row: int) -> dict[str, Any]:
        text = self.texts[row]
        numbers = tuple((number,) for number in range(len(text.split())))
        parts = InputParts(words=numbers, without=partial(_text_without, text), signs=self.signs[row])
        return {**super()._item(row), "parts": parts}


def _text_without(text: str, numbers: Sequence[int]) -> str:
    return " ".join(word for number, word in enumerate(text.split()) if number not in numbers)


def _rows(split: str, limit: int | None) -> list[tuple[str, int]]:
    """Split and number of each sample; a limit may be larger than what a split has by default."""
    parts = files.split_parts(tuple(SPLITS), split)
    if limit is not None:
        check_count("limit", limit)
    if split == "all":
        return files.evenly_spaced([(part, row) for part in parts for row in range(SPLITS[part])], limit)
    return [(split, row) for row in range(SPLITS[split] if limit is None else limit)]


def load_truth(
    name: str,
    split: str = "test",
    *,
    limit: int | None = None,
    side: int = SIDE,
    seed: int = 0,
    objects: int | None = None,
    device: str = "cpu",
) -> SceneSet | SentenceSet:
    """Make samples of a task.

    Args:
        name: Of the task, such as ``"objects"``.
        split: ``"train"``, ``"val"``, ``"test"`` or ``"all"``; they have no sample in common.
        limit: So many samples, also more than the default of the split; the first ones are the same for any limit.
        side: Of images, in pixels.
        seed: Another seed makes other samples.
        objects: In a scene; by default what the task has.
        device: Where scenes are drawn.
    """
    task = all_tasks()[name]
    rows, seed = _rows(split, limit), check_seed("seed", seed)
    parts = list(dict.fromkeys(part for part, _ in rows))
    names = tuple(f"{part}-{row}" for part, row in rows)
    facts: dict[str, Any] = {"classes": task.classes, "split": split}
    if task.kind == "text":
        sentences = [task.make(generator_for(seed, row, _PURPOSES[part])) for part, row in rows]
        labels = torch.tensor([sentence.label for sentence in sentences])
        texts, signs = (" ".join(sentence.words) for sentence in sentences), (sentence.signs for sentence in sentences)
        return SentenceSet(texts=tuple(texts), signs=tuple(signs), labels=labels, **facts)
    check_that(side >= 32, "a side of 32 pixels or more", side)
    options = {} if objects is None else {"objects": objects}
    if objects is not None:
        check_that(3 <= objects <= 9, "from 3 to 9 objects in a scene", objects)
    drawn = []
    for part in parts:
        numbers = [row for owner, row in rows if owner == part]
        drawn.append(draw_scenes(task, numbers, _PURPOSES[part], seed, device, **options))
    scenes = drawn[0].scenes if len(drawn) == 1 else Scenes.joined([value.scenes for value in drawn])
    others = [value.other for value in drawn if value.other is not None]
    return SceneSet(
        images=scenes.images(side).cpu(),
        names=names,
        labels=torch.cat([value.label for value in drawn]).cpu(),
        scenes=scenes,
        signs=torch.cat([value.signs for value in drawn]).cpu(),
        second_labels=torch.cat(others).cpu() if others else None,
        **facts,
    )


def _register(task: Task) -> None:
    register_data(
        f"truth:{task.name}",
        title=f"Known evidence: {task.title[0].lower()}{task.title[1:]}",
        licence="none needed: made by this library",
        citation="none",
        form=f"{SIDE} x {SIDE} pixels, made when it is loaded"
        if task.kind == "image"
        else "sentences, made when loaded",
        files="nothing",
        kind=task.kind,
        train="train" if task.learnable else None,
        judged="parts, two classes" if task.name == "two-classes" else "parts",
    )(partial(load_truth, task.name))


for _task in all_tasks().values():
    _register(_task)
