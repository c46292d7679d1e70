"""Generated tasks: what construction says holds of pixels and words, and no sample depends on how it is taken."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from mhex.errors import ArgumentError
from mhex.lab.config.recipe import find_recipe, packaged_recipes, read_recipe
from mhex.lab.datasets import data_entry
from mhex.lab.datasets.truth import SceneSet, SentenceSet, load_truth
from mhex.lab.truth.scenes import COLOURS, SceneRandom
from mhex.lab.truth.task import all_tasks

IMAGE_TASKS = [name for name, task in all_tasks().items() if task.kind == "image"]
TEXT_TASKS = [name for name, task in all_tasks().items() if task.kind == "text"]


def scenes(name: str, **options: Any) -> SceneSet:
    drawn = load_truth(name, **options)
    assert isinstance(drawn, SceneSet)
    return drawn


def sentences(name: str, **options: Any) -> SentenceSet:
    drawn = load_truth(name, **options)
    assert isinstance(drawn, SentenceSet)
    return drawn


@pytest.mark.parametrize("name", IMAGE_TASKS)
def test_a_scene_depends_on_its_number_alone(name: str) -> None:
    many, few = scenes(name, limit=6), scenes(name, limit=3)
    assert torch.equal(many.images[:3], few.images)
    assert many.labels[:3].tolist() == few.labels.tolist()
    assert not torch.equal(few.images, scenes(name, limit=3, seed=1).images)
    assert not torch.equal(few.images, scenes(name, split="train", limit=3).images)


def test_random_numbers_are_drawn_on_the_cpu_whatever_the_default_device() -> None:
    expected = SceneRandom([0, 5]).uniform(3)
    with torch.device("meta"):
        drawn = SceneRandom([0, 5]).uniform(3)
    assert torch.equal(drawn, expected)


@pytest.mark.parametrize("name", IMAGE_TASKS)
def test_without_a_part_nothing_else_changes(name: str) -> None:
    drawn = scenes(name, limit=4)
    for row in range(len(drawn)):
        parts, image = drawn.parts(row), drawn.images[row]
        masks = parts.masks
        assert masks is not None
        assert bool(masks.flatten(1).any(1).all())
        assert int(masks.sum(0).max()) == 1  # parts do not overlap
        for number in range(len(parts)):
            photo = _pixels(parts.remove([number]))
            changed = (photo != image).any(0)
            assert bool(changed.any())
            assert not bool((changed & ~masks[number]).any())
        nothing = _pixels(parts.remove(range(len(parts))))
        assert not bool(((nothing != image).any(0) & ~masks.any(0)).any())


def _pixels(photo: Any) -> torch.Tensor:
    return torch.from_numpy(np.array(photo)).permute(2, 0, 1)


@pytest.mark.parametrize("name", IMAGE_TASKS)
def test_all_classes_occur_and_some_part_decides(name: str) -> None:
    drawn = scenes(name, limit=120)
    assert set(drawn.labels.tolist()) == set(range(len(drawn.classes)))
    assert bool((drawn.signs == 1).any(1).all())


def test_the_label_follows_from_what_is_drawn() -> None:
    """The one red, blue, green or yellow object of a scene has the colour of its label."""
    drawn = scenes("colour", limit=20)
    for row, label in enumerate(drawn.labels.tolist()):
        paint = torch.tensor(COLOURS[drawn.classes[label]], dtype=torch.float64)
        equal = (drawn.scenes.colour[row] == paint).all(1)
        assert equal.tolist() == (drawn.signs[row] == 1).tolist()


def test_more_objects_speak_for_the_label_than_against_it() -> None:
    signs = scenes("count", limit=50).signs
    assert bool(((signs == 1).sum(1) > (signs == -1).sum(1)).all())


def test_the_second_class_of_a_scene_is_another_one() -> None:
    drawn = scenes("two-classes", limit=20)
    assert drawn.second_labels is not None
    assert bool((drawn.second_labels != drawn.labels).all())
    assert drawn.items()[3]["other"] == int(drawn.second_labels[3])


@pytest.mark.parametrize("name", TEXT_TASKS)
def test_a_word_is_a_part(name: str) -> None:
    drawn = sentences(name, limit=8)
    assert drawn.texts == sentences(name, limit=12).texts[:8]
    item = drawn.items()[0]
    words = item["text"].split()
    assert item["parts"].remove([1]).split() == [words[0], *words[2:]]
    assert len(item["parts"]) == len(words) == len(drawn.signs[0])
    assert 1 in drawn.signs[0]


def test_not_turns_a_word_round() -> None:
    drawn = sentences("negation", limit=200)
    pairs = {
        ("not" in text.split(), bool({"good", "great"} & set(text.split())), label) for text, label in _short(drawn)
    }
    assert pairs >= {(False, True, 1), (True, True, 0)}
    assert not pairs & {(False, True, 0), (True, True, 1)}


def _short(drawn: SentenceSet) -> list[tuple[str, int]]:
    return list(zip(drawn.texts, drawn.labels.tolist(), strict=True))


@pytest.mark.parametrize("change", [{"side": 16}, {"objects": 12}, {"limit": 0}])
def test_wrong_options_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError):
        load_truth("objects", **{"limit": 2, **change})


def test_tasks_are_data_sets_by_name() -> None:
    entry = data_entry("truth:mark")
    assert entry.learnable
    assert "parts" in entry.judged
    assert not data_entry("truth:two-classes").learnable
    item = entry.items(limit=2, side=32, objects=3)[0]
    assert item["image"].size == (32, 32)
    assert len(item["parts"]) == 3


def test_every_network_of_known_evidence_has_a_task() -> None:
    recipes = [read_recipe(find_recipe(name)) for name in packaged_recipes() if name.startswith("truth-")]
    assert len(recipes) >= 15
    for recipe in recipes:
        task = all_tasks()[recipe.data.name.removeprefix("truth:")]
        assert task.learnable
        if task.kind == "text":  # the network knows every word of its task
            known = set(str(recipe.model.arguments["words"]).split())
            assert not set(" ".join(sentences(task.name, limit=300).texts).split()) - known
