"""The zoo as it ships: cards and weights in the package itself."""

from __future__ import annotations

import pytest

import mhex
from mhex.cli import demo
from mhex.zoo import list_models
from mhex.zoo.shipped import WEIGHTS

NAMES = sorted(f"zoo:{file.stem}" for file in WEIGHTS.glob("*.safetensors"))


def test_the_demos_models_ship() -> None:
    assert {*demo.MODELS, demo.HEADED, demo.READER} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_model_is_what_its_card_says(name: str) -> None:
    bundle = mhex.load(name)
    card = bundle.card
    assert bundle.class_names is not None
    assert sum(p.numel() for p in bundle.model.parameters()) == card["parameters"]
    assert card["name"] == name.removeprefix("zoo:")
    assert card["licence"]
    if "groups" in card:
        assert sorted(bundle.class_names) == sorted(member for group in card["groups"].values() for member in group)
        assert 0.35 < card["accuracy"]["breed"] < card["accuracy"]["cat_dog"] <= 1
    if "heads" in card:
        assert len(card["accuracy"]["heads"]) == len(mhex.Scaffold(bundle.model).names)
    if "base" in card:
        base = mhex.load(f"zoo:{card['base']}").card
        assert (card["classes"], card["preprocess"]) == (base["classes"], base["preprocess"])
        assert {name: card["accuracy"][name] for name in base["accuracy"]} == base["accuracy"]
    (row,) = [row for row in list_models() if row["name"] == name]
    assert row["megabytes"] < 15  # they are part of the package


@pytest.mark.parametrize("name", demo.MODELS)
def test_a_cat_is_a_cat(name: str) -> None:
    pytest.importorskip("skimage", reason="the photo comes with scikit-image")
    seen = demo.look(mhex.load(name), demo.demo_photos()[0], ["gradcam"], lambda what: None)
    assert seen.groups["cat"] > 0.8
    (explanation,) = seen.outcome.explanations
    assert float(explanation.scores.abs().max()) > 0
