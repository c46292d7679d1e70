"""Models of the zoo that are built from their recipes, and the cards of all of them."""

import functools
import json
from pathlib import Path

import pytest
import torch

import mhex
from mhex.errors import ArgumentError
from mhex.lab.config.recipe import packaged_recipes, read_recipe
from mhex.lab.datasets import DataMissingError, load_blood
from mhex.lab.train.run import build, buildable
from mhex.zoo import list_models

WEIGHTS = Path(mhex.__file__).parent / "zoo" / "weights"
CARDS = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(WEIGHTS.glob("*.json"))}
ENOUGH = {"cifar10-vit": 0.88, "blood-vit": 0.96, "blood-mhex-vit": 0.96}  # what their users are promised


@functools.cache
def recipes():
    """Every recipe of the package that can be built, read once."""
    return buildable()


@pytest.fixture
def models(tmp_path, monkeypatch):
    """An empty folder for models, and no weights in the package."""
    monkeypatch.setenv("MHEX_MODELS", str(tmp_path / "models"))
    monkeypatch.setattr("mhex.zoo.shipped.WEIGHTS", tmp_path / "package")
    return tmp_path / "models"


@pytest.mark.slow
def test_heads_are_fitted_after_the_model_that_they_belong_to(blood, models):
    card = build("blood-fitted-resnet18", smoke=True)
    assert {path.name for path in models.glob("*.json")} == {"blood-resnet18.json", "blood-fitted-resnet18.json"}
    assert card["base"] == "blood-resnet18"
    bundle = mhex.load("zoo:blood-fitted-resnet18")
    assert len(mhex.Scaffold(bundle.model).names) == 8
    cells = load_blood("test")
    x = read_recipe(packaged_recipes()["blood-resnet18"]).view(cells.images)
    with torch.no_grad():
        torch.testing.assert_close(bundle.model(x), mhex.load("zoo:blood-resnet18").model(x))
    assert all(row["megabytes"] is not None for row in list_models())


def test_what_was_built_is_not_built_again(blood, models):
    build("blood-resnet18", smoke=True)
    weights = models / "runs" / "blood-resnet18" / "weights.safetensors"
    before = weights.stat().st_mtime_ns
    build("blood-resnet18", smoke=True)
    assert weights.stat().st_mtime_ns == before


def test_unknown_models_and_missing_data_are_told(data, models):
    with pytest.raises(ArgumentError, match="Did you mean 'blood-vit'"):
        build("blood-vitt")
    with pytest.raises(ArgumentError, match="Unknown model to build"):
        build("teacher-a")  # it serves others, and has no card
    with pytest.raises(DataMissingError, match=r"blood\.parquet"):
        build("blood-resnet18")


def test_a_model_that_is_not_here_says_how_to_make_it(models, monkeypatch):
    monkeypatch.setattr("mhex.zoo.shipped.WEIGHTS", WEIGHTS)
    with pytest.raises(ArgumentError, match=r"mhex models build pets-resnet34"):
        mhex.load("zoo:pets-resnet34")


@pytest.mark.parametrize("name", list(CARDS))
def test_a_card_tells_of_its_recipe(name):
    card, recipe = CARDS[name], recipes()[name]
    assert card["recipe"]["settings"] == recipe.identity()
    assert card["accuracy"]["split"] == "test"
    share = next(value for value in card["accuracy"].values() if isinstance(value, float))
    assert share >= ENOUGH.get(name, 0.35)
    assert recipe.ship is not None


def test_every_model_that_can_be_built_has_a_card_or_needs_data_from_elsewhere():
    without = set(recipes()) - set(CARDS)
    elsewhere = {"imagenet", "pathmnist", "ag_news_full"}
    assert {name for name in without if recipes()[name].data.name not in elsewhere} <= {"pets-mhex-vit"}


def test_what_ships_is_small_and_has_a_card():
    files = sorted(WEIGHTS.glob("*.safetensors"))
    assert sum(path.stat().st_size for path in files) < 30_000_000
    assert {path.stem for path in files} >= {"pets-vit", "pets-resnet10t", "blood-vit", "cifar10-vit"}
    assert {path.stem for path in files} <= set(CARDS)
