"""The whole recipe on made-up photos, and the files that it shipped."""

import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file

import mhex.train.recipes.pets as recipe
from mhex.data import load_pets
from mhex.errors import ArgumentError
from mhex.train.card import measure
from mhex.train.checkpoint import save_half, save_weights, transfer
from mhex.train.recipes.stages import SHIPPED, STAGES, VIT
from mhex.train.view import View

WEIGHTS = Path(recipe.__file__).parents[2] / "zoo" / "weights"
LARGEST = {"pets-vit": 9_000_000, "pets-resnet10t": 12_000_000}
LEAST = {"pets-vit": 0.84, "pets-resnet10t": 0.91}


def png(value, side):
    buffer = io.BytesIO()
    Image.fromarray(np.full((side, side, 3), value, dtype=np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture
def made_up(tmp_path, monkeypatch):
    """A data folder with 37 plain breeds and ten plain things."""
    folder = tmp_path / "data"
    folder.mkdir()
    monkeypatch.setenv("MHEX_DATA", str(folder))
    pets = [
        {
            "name": f"kind_{chr(97 + b % 26)}{b // 26}_{n}",
            "image": png(6 * b, 20),
            "breed": b,
            "species": b % 2,
            "split": s,
        }
        for b in range(37)
        for n, s in enumerate(("trainval", "test"))
    ]
    things = [{"image": png(25 * c, 8), "label": c, "split": "train"} for c in range(10)]
    pq.write_table(pa.Table.from_pylist(pets), folder / "pets.parquet")
    pq.write_table(pa.Table.from_pylist(things), folder / "cifar10.parquet")
    return tmp_path / "out"


@pytest.fixture
def tiny_stages(monkeypatch):
    """The stages with timm's test networks in place of the real ones."""

    def tiny(stage):
        if stage.architecture.startswith("vit"):
            side = 32 if stage.data == "cifar10" else 48
            return replace(stage, architecture="test_vit", arguments={"img_size": side}, view=View(side))
        return replace(stage, architecture="test_resnet", view=View(32))

    stages = tuple(tiny(stage) for stage in STAGES)
    monkeypatch.setattr(recipe, "STAGES", stages)
    return {stage.name: stage for stage in stages}


def test_recipe_from_data_to_cards(made_up, tiny_stages, capsys):
    assert recipe.main(["--out", str(made_up), "--smoke"]) == 0
    for name in SHIPPED:
        card = json.loads((made_up / "shipped" / f"{name}.json").read_text())
        state = load_file(made_up / "shipped" / f"{name}.safetensors")
        assert {value.dtype for value in state.values() if value.is_floating_point()} == {torch.float16}
        model = timm.create_model(card["architecture"], pretrained=False, **card["arguments"])
        model.load_state_dict(state, strict=True)
        assert card["accuracy"]["images"] == recipe.SMOKE_PHOTOS
        assert card["accuracy"]["split"] == "test"
        assert card["parameters"] == sum(p.numel() for p in model.parameters())
        assert len(card["classes"]) == 37
        assert card["recipe"]["torch"] == torch.__version__.split("+")[0]
    # A second run finds everything done.
    capsys.readouterr()
    recipe.main(["--out", str(made_up), "--smoke", "--stages", "pets-vit"])
    assert capsys.readouterr().out == "pets-vit: already there\n"


def test_holdout_judges_by_photos_that_were_left_out(made_up, tiny_stages, monkeypatch, capsys):
    seen = []
    real = recipe.fit
    monkeypatch.setattr(
        recipe, "fit", lambda model, images, *rest, **named: seen.append(images) or real(model, images, *rest, **named)
    )
    recipe.main(["--out", str(made_up), "--smoke", "--holdout", "4", "--stages", "teacher-a-cifar10", "teacher-a"])
    assert [len(images) for images in seen] == [10, 12]
    assert "held out, breed" in capsys.readouterr().out
    assert not (made_up / "shipped").exists()


def test_unknown_stage_offers_near_names(made_up):
    with pytest.raises(ArgumentError, match="'pets-vit'"):
        recipe.main(["--out", str(made_up), "--stages", "pets-vt"])


def test_card_is_refused_when_the_weights_tell_otherwise(made_up, tiny_stages):
    made_up.mkdir()
    model = recipe.make(tiny_stages["pets-vit"], training=False)
    save_weights(model, made_up / "pets-vit.safetensors", {"epochs": "3", "seed": "42"})
    with pytest.raises(ArgumentError, match="come from 3 epochs"):
        recipe.ship("pets-vit", tiny_stages, made_up, load_pets("test"), "command")


def test_every_stage_comes_after_what_it_needs():
    done = set()
    for stage in STAGES:
        assert {*stage.teachers, *([stage.start] if stage.start else [])} <= done
        done.add(stage.name)
    assert recipe.lineage({s.name: s for s in STAGES}["pets-vit"], {s.name: s for s in STAGES})[-1] == "pets-vit"


def test_transfer_resamples_positions_and_leaves_the_head(tmp_path):
    old = timm.create_model("vit_tiny_patch16_224", img_size=64, num_classes=10, **{**VIT, "depth": 1})
    new = timm.create_model("vit_tiny_patch16_224", img_size=96, num_classes=37, **{**VIT, "depth": 1})
    head = new.head.weight.clone()
    save_weights(old, tmp_path / "old.safetensors", {})
    transfer(new, tmp_path / "old.safetensors")
    assert torch.equal(new.blocks[0].mlp.fc1.weight, old.blocks[0].mlp.fc1.weight)
    assert torch.equal(new.pos_embed[:, 0], old.pos_embed[:, 0])
    assert new.pos_embed.shape == (1, 145, 192)
    assert torch.equal(new.head.weight, head)
    with pytest.raises(ArgumentError, match="same architecture"):
        transfer(timm.create_model("test_resnet", num_classes=2), tmp_path / "old.safetensors")


def test_half_precision_refuses_what_does_not_fit(tmp_path):
    with pytest.raises(ArgumentError, match=r"float16.*'w'"):
        save_half({"w": torch.tensor([1e5]), "n": torch.tensor(7)}, tmp_path / "x.safetensors", {})


@pytest.mark.parametrize("name", list(SHIPPED))
def test_shipped_files_agree_with_their_card(name):
    card = json.loads((WEIGHTS / f"{name}.json").read_text(encoding="utf-8"))
    weights = WEIGHTS / f"{name}.safetensors"
    assert weights.stat().st_size <= LARGEST[name]
    model = timm.create_model(card["architecture"], pretrained=False, **card["arguments"])
    model.load_state_dict(load_file(weights), strict=True)
    assert card["parameters"] == sum(p.numel() for p in model.parameters())
    assert sorted(card["groups"]["cat"] + card["groups"]["dog"]) == sorted(card["classes"])
    assert (len(card["groups"]["cat"]), len(card["groups"]["dog"])) == (12, 25)
    assert card["accuracy"]["cat_dog"] >= LEAST[name]
    assert card["accuracy"]["images"] == 2454
    stage = {stage.name: stage for stage in STAGES}[name]
    assert card["preprocess"] == stage.view.as_card()
    assert card["arguments"] == {"num_classes": 37, **stage.arguments}
    assert card["recipe"]["epochs"][name] == stage.schedule.epochs


@pytest.mark.slow
@pytest.mark.parametrize("name", list(SHIPPED))
def test_shipped_accuracy_is_what_the_card_says(name):
    try:
        photos = load_pets("test")
    except FileNotFoundError as error:
        pytest.skip(str(error))
    card = json.loads((WEIGHTS / f"{name}.json").read_text(encoding="utf-8"))
    measured = measure(WEIGHTS, name, photos)
    assert measured["breed"] == pytest.approx(card["accuracy"]["breed"], abs=0.002)
    assert measured["cat_dog"] == pytest.approx(card["accuracy"]["cat_dog"], abs=0.002)
