"""Recipes that fit heads to a model of the zoo."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file
from train_helpers import Killed, kill

import mhex
from mhex._schema import build
from mhex.errors import ArgumentError
from mhex.lab.config.recipe import TrainingRecipe, packaged_recipes, read_recipe
from mhex.lab.datasets import load_pets
from mhex.lab.train.dry_run import check_recipe
from mhex.lab.train.run import train
from support.training import picture, recipe_dict, write_blood
from support.zoo_models import CLASSES, write_zoo

PACKAGED = packaged_recipes()["pets-mhex-resnet10t"]
FIT = {
    "model": {"source": "zoo", "architecture": "pets-resnet10t"},
    "heads": {"preset": "probe"},
    "data": {"name": "pets", "side": 128},
    "fit": {},
}


def made(**changes):
    plain = recipe_dict()
    del plain["train"]
    return build(TrainingRecipe, {**plain, **FIT, **changes}, "x.yaml")


@pytest.fixture
def zoo(data, tmp_path, monkeypatch):
    """A stand-in zoo, and photos of its six classes."""
    rows = [
        {
            "name": f"{breed.replace(' ', '_')}_{n}",
            "image": picture(40 * b + 2 * n, 20),
            "breed": b,
            "species": b // 3,
            "split": "test" if n > 4 else "trainval",
        }
        for b, breed in enumerate(CLASSES)
        for n in range(7)
    ]
    pq.write_table(pa.Table.from_pylist(rows), data / "pets.parquet")
    monkeypatch.setattr("mhex.zoo.shipped.WEIGHTS", tmp_path / "zoo")
    return write_zoo(tmp_path / "zoo")


def test_heads_are_fitted_measured_and_shipped_alone(zoo, tmp_path):
    recipe = read_recipe(PACKAGED, ["data.side=32"])
    report = train(recipe, tmp_path / "run")
    assert report["fit"]["method"] == "ridge"
    assert report["fit"]["rows"] == 30
    assert len(report["fit"]["blocks"]) == len(report["test"]["heads"]) == 4
    folder = tmp_path / "run" / "shipped"
    state = load_file(folder / "pets-mhex-resnet10t.safetensors")
    assert all(name.startswith("mhex.") for name in state)
    card = json.loads((folder / "pets-mhex-resnet10t.json").read_text())
    assert card["base"] == "pets-resnet10t"
    assert card["heads"] == {"where": "all", "preset": "probe", "coupling": "head_only", "relu": "pre"}
    assert "without training" in card["recipe"]["done"]
    # The folder holds no weights of the network itself: they are those of the zoo, and answer as before.
    bundle, plain = mhex.load("zoo:pets-mhex-resnet10t", folder=folder), mhex.load("zoo:pets-resnet10t")
    photos = recipe.view(load_pets("test").images)
    assert torch.equal(bundle.model(photos), plain.model(photos))
    run = mhex.load(f"run:{tmp_path / 'run'}")
    assert torch.equal(run.model(photos), plain.model(photos))
    assert mhex.Scaffold(run.model).names == mhex.Scaffold(bundle.model).names
    assert card["parameters"] == sum(p.numel() for p in bundle.model.parameters())
    assert (card["architecture"], card["licence"]) == (plain.card["architecture"], plain.card["licence"])
    # The card's numbers are those of the loaded heads.
    right = mhex.Scaffold(bundle.model).head_accuracy((photos, load_pets("test").labels))
    assert list(right.values())[:4] == pytest.approx(card["accuracy"]["heads"], abs=1e-4)
    assert max(card["accuracy"]["heads"]) > 0.5
    assert train(recipe, tmp_path / "run") == report


def test_a_side_that_the_model_cannot_take_is_told(zoo, tmp_path):
    recipe = made(model={"source": "zoo", "architecture": "pets-vit"}, data={"name": "pets", "side": 40})
    with pytest.raises(ArgumentError, match=r"small: pets-vit cannot take 1 sample at 40 px\..*Check data\.side"):
        train(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_heads_broken_off_while_shipping_are_shipped(zoo, tmp_path, monkeypatch):
    recipe, out = read_recipe(PACKAGED, ["data.side=32"]), tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr("mhex.lab.train.run.ship", kill)
        with pytest.raises(Killed):
            train(recipe, out)
    monkeypatch.setattr("mhex.lab.train.run.fit", kill)
    train(recipe, out)
    assert mhex.load("zoo:pets-mhex-resnet10t", folder=out / "shipped").card["base"] == "pets-resnet10t"


def test_a_base_with_a_base_is_refused(zoo, tmp_path):
    train(read_recipe(PACKAGED, ["data.side=32"]), tmp_path / "run")
    folder = tmp_path / "run" / "shipped"
    path = folder / "pets-mhex-resnet10t.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "base": "pets-mhex-resnet10t"}))
    with pytest.raises(ArgumentError, match="a model with weights of its own"):
        mhex.load("zoo:pets-mhex-resnet10t", folder=folder)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": {"source": "timm", "architecture": "resnet10t"}}, "model.source should be zoo, not timm"),
        ({"model": {"source": "zoo", "architecture": "pets-resnet10"}}, "Did you mean 'pets-resnet10t'"),
        ({"model": {**FIT["model"], "start": "other"}}, "model.start does not go with fit"),
        ({"heads": None}, "add the section heads"),
        ({"heads": {"preset": "paper"}}, "heads.preset should be probe"),
        ({"heads": {"preset": "probe", "classifier": False}}, "heads.classifier"),
        ({"augment": {}}, "augment does not go with fit"),
    ],
)
def test_what_cannot_be_fitted_is_refused(changes, words):
    with pytest.raises(ArgumentError) as told:
        check_recipe(made(**changes), "x.yaml")
    assert str(told.value).startswith("x.yaml: ")
    assert words in str(told.value)


def test_a_recipe_trains_or_fits():
    check_recipe(made(), "x.yaml")
    with pytest.raises(ArgumentError, match=r"^x\.yaml: expected one of the sections train and fit, but got both"):
        made(train={"epochs": 1, "batch": 8, "rate": 0.1})
    with pytest.raises(ArgumentError, match="but got neither"):
        made(fit=None)
    with pytest.raises(ArgumentError, match="fit heads to it"):
        check_recipe(made(fit=None, train={"epochs": 1, "batch": 8, "rate": 0.1}), "x.yaml")


def test_other_classes_than_the_models_are_refused(data, tmp_path):
    write_blood(data)
    with pytest.raises(ArgumentError, match="37 classes in their order, and 8 others came"):
        train(made(data={"name": "blood", "side": 16}), tmp_path / "run")


def test_digests_of_recipes_that_train_do_not_know_of_fitting():
    assert "fit" not in build(TrainingRecipe, recipe_dict(), "x").as_dict()
    assert build(TrainingRecipe, made().as_dict(), "x") == made()
