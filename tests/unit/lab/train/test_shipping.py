"""Chains of recipes from data to cards, and the files that were shipped."""

import json
from pathlib import Path

import pytest
import timm
import torch
import yaml
from safetensors.torch import load_file

import mhex
from mhex.errors import ArgumentError
from mhex.lab.config.recipe import SMOKE_SAMPLES, RecipeShipping, packaged_recipes, read_recipe
from mhex.lab.datasets import load_blood, load_pets
from mhex.lab.train.checkpoint import halved, read_tensors, transfer, write_tensors
from mhex.lab.train.evaluate import measure
from mhex.lab.train.networks import classifier_prefixes
from mhex.lab.train.report import read_finished, ship
from mhex.lab.train.run import train, with_needs
from mhex.zoo.files import pack, read_weights, unpack
from support.training import write_news, write_pets_and_cifar
from support.zoo_models import write_bert

WEIGHTS = Path(mhex.__file__).parent / "zoo" / "weights"
LARGEST = {"pets-vit": 4_300_000, "pets-resnet10t": 5_100_000}
LEAST = {"pets-vit": 0.94, "pets-resnet10t": 0.95}
VIT = {"patch_size": 8, "depth": 1}


@pytest.fixture
def tiny(tmp_path):
    """The packaged recipes with timm's test networks in place of the real ones."""
    folder = tmp_path / "recipes"
    folder.mkdir()
    for name, path in packaged_recipes().items():
        raw = yaml.safe_load(path.read_text())
        if raw["model"]["source"] == "timm":
            vit = raw["model"]["architecture"].startswith("vit")
            side = 48 if vit and raw["data"]["name"] == "pets" else 32
            raw["data"]["side"] = side
            raw["model"] |= {
                "architecture": "test_vit" if vit else "test_resnet",
                "arguments": {"img_size": side} if vit else {},
            }
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(raw))
    return folder


def run_chain(name, tiny, out):
    last = read_recipe(tiny / f"{name}.yaml")
    for one in with_needs(last, tiny):
        train(one.smoke(), out / one.name)


def test_a_chain_from_data_to_a_card_that_the_zoo_loads(data, tiny, tmp_path):
    write_pets_and_cifar(data)
    run_chain("pets-vit", tiny, tmp_path / "runs")
    folder = tmp_path / "runs" / "pets-vit" / "shipped"
    card = json.loads((folder / "pets-vit.json").read_text())
    state = load_file(folder / "pets-vit.safetensors")
    assert {value.dtype for name, value in state.items() if name.endswith("weight") and value.dim() > 1} == {torch.int8}
    bundle = mhex.load("zoo:pets-vit", folder=folder)
    assert card["parameters"] == sum(p.numel() for p in bundle.model.parameters())
    assert card["accuracy"].keys() == {"breed", "cat_dog", "split", "images"}
    assert (card["accuracy"]["images"], card["accuracy"]["split"]) == (SMOKE_SAMPLES, "test")
    assert len(card["classes"]) == 37
    assert list(card["recipe"]["epochs"]) == [
        "cifar10-vit-simclr",
        "pets-vit-simclr",
        "teacher-a-cifar10",
        "teacher-a",
        "teacher-b-cifar10",
        "teacher-b",
        "pets-vit",
    ]
    assert "taught by teacher-a and teacher-b" in card["recipe"]["done"]
    assert "CIFAR-10" in card["data"]["pretraining"]
    assert "CC BY-SA 4.0 applies" in card["licence"]
    assert card["recipe"]["torch"] == torch.__version__.split("+")[0]


def test_a_chain_without_labels_ends_in_a_probe_that_is_shipped(data, tiny, tmp_path):
    write_pets_and_cifar(data)
    run_chain("pets-vit-simclr-probe", tiny, tmp_path / "runs")
    folder = tmp_path / "runs" / "pets-vit-simclr-probe" / "shipped"
    card = json.loads((folder / "pets-vit-simclr-probe.json").read_text())
    assert list(card["recipe"]["epochs"]) == ["cifar10-vit-simclr", "pets-vit-simclr", "pets-vit-simclr-probe"]
    assert card["recipe"]["done"].count("without labels (simclr)") == 2
    assert card["recipe"]["done"].count("a linear probe: the body is frozen") == 1
    assert card["accuracy"].keys() == {"breed", "cat_dog", "split", "images"}
    assert mhex.load("zoo:pets-vit-simclr-probe", folder=folder).model(torch.zeros(1, 3, 48, 48)).shape == (1, 37)


@pytest.mark.parametrize("name", ["agnews-mhex-bert-paper", "agnews-mhex-bert-code"])
def test_recipes_of_bert_can_be_tried(data, tmp_path, name):
    write_bert(data / "bert-base-uncased")
    write_news(data).joinpath("ag_news.parquet").rename(data / "ag_news_full.parquet")
    last = read_recipe(packaged_recipes()[name], ["data.length=8"])
    for one in with_needs(last, packaged_recipes()[name].parent):
        short = one.model_copy(update={"data": one.data.model_copy(update={"length": 8})}).smoke()
        report = train(short, tmp_path / one.name)
        # A twentieth of a few samples would be none: a trial holds out a quarter.
        assert "validation" in report["epochs"][0]
    assert len(report["test"]["heads"]) == 2


def test_a_card_with_heads_is_loaded_with_its_heads(blood, tiny, tmp_path):
    train(read_recipe(tiny / "blood-mhex-resnet18.yaml").smoke(), tmp_path / "run")
    folder = tmp_path / "run" / "shipped"
    card = json.loads((folder / "blood-mhex-resnet18.json").read_text())
    bundle = mhex.load("zoo:blood-mhex-resnet18", folder=folder)
    scaffold = mhex.Scaffold(bundle.model)
    cells = load_blood("test")
    with torch.no_grad():
        answer = bundle.model(read_recipe(tiny / "blood-mhex-resnet18.yaml").view(cells.images))
    right = (answer.argmax(dim=1) == cells.labels).double().mean().item()
    assert card["accuracy"]["cell"] == pytest.approx(right, abs=1e-4)
    assert len(card["accuracy"]["heads"]) == len(scaffold.names)
    assert card["heads"] == {"where": "all", "preset": "paper"}


def test_a_card_is_refused_when_the_weights_tell_otherwise(data, tiny, tmp_path):
    write_pets_and_cifar(data)
    out = tmp_path / "runs" / "resnet18-cifar10"
    made = read_recipe(tiny / "resnet18-cifar10.yaml").smoke()
    train(made, out)
    write_tensors(load_file(out / "weights.safetensors"), out / "weights.safetensors", {"digest": "another"})
    with pytest.raises(ArgumentError, match="made by another recipe"):
        ship(read_finished(out), RecipeShipping(), load_pets("test"), lambda path: {})


def test_teachers_teach_what_they_learned(data, tiny, tmp_path):
    write_pets_and_cifar(data)
    out = tmp_path / "runs"
    train(read_recipe(tiny / "resnet18-cifar10.yaml").smoke(), out / "resnet18-cifar10")
    wrong = read_recipe(tiny / "pets-resnet18.yaml", ["distil.teachers=[resnet18-cifar10]"]).smoke()
    with pytest.raises(ArgumentError, match=r"resnet18-cifar10 cannot teach pets-resnet18.*other data"):
        train(wrong, out / "pets-resnet18")


def test_transfer_resamples_positions_and_leaves_the_classifier(tmp_path):
    old = timm.create_model("vit_tiny_patch16_224", img_size=64, num_classes=10, **VIT)
    new = timm.create_model("vit_tiny_patch16_224", img_size=96, num_classes=37, **VIT)
    assert classifier_prefixes(new) == ("head.",)
    head, path = new.head.weight.clone(), tmp_path / "old.safetensors"
    write_tensors(old.state_dict(), path)
    transfer(new, path, ("head.",), same_data=False)
    assert torch.equal(new.blocks[0].mlp.fc1.weight, old.blocks[0].mlp.fc1.weight)
    assert torch.equal(new.pos_embed[:, 0], old.pos_embed[:, 0])
    assert new.pos_embed.shape == (1, 145, 192)
    assert torch.equal(new.head.weight, head)
    with pytest.raises(ArgumentError, match="same architecture"):
        transfer(timm.create_model("test_resnet", num_classes=2), path, ("fc.",), same_data=False)


def test_transfer_keeps_the_classifier_of_the_same_data(tmp_path):
    old, new = (timm.create_model("test_resnet", num_classes=3) for _ in range(2))
    write_tensors(old.state_dict(), tmp_path / "old.safetensors")
    fresh = new.get_classifier().weight.clone()
    prefixes = classifier_prefixes(new)
    transfer(new, tmp_path / "old.safetensors", prefixes, same_data=False)
    assert torch.equal(new.get_classifier().weight, fresh)
    transfer(new, tmp_path / "old.safetensors", prefixes, same_data=True)
    assert torch.equal(new.get_classifier().weight, old.get_classifier().weight)


def test_half_precision_refuses_what_does_not_fit():
    assert halved({"w": torch.tensor([1.0]), "n": torch.tensor(7)})["n"].dtype == torch.int64
    with pytest.raises(ArgumentError, match=r"float16.*'w'"):
        halved({"w": torch.tensor([1e5]), "n": torch.tensor(7)})


@pytest.mark.parametrize("scales", [torch.ones(1), torch.ones(4), torch.ones(3, 2), torch.ones(())])
def test_scales_of_another_number_of_rows_are_refused(scales):
    state = pack({"w": torch.rand(3, 2)})
    assert unpack(state)["w"].shape == (3, 2)
    with pytest.raises(ArgumentError, match="'w' and its scales do not go together"):
        unpack({**state, "w.int8_scale": scales})


def test_eight_bits_are_within_half_a_step_of_each_row(tmp_path):
    torch.manual_seed(0)
    scales = torch.tensor([1e-3, 1.0, 50.0, 0.0])[:, None, None, None]
    state = {"conv": torch.randn(4, 3, 2, 2) * scales, "bias": torch.randn(4), "n": torch.tensor(7)}
    write_tensors(pack(state), tmp_path / "w.safetensors")
    assert (tmp_path / "w.safetensors").stat().st_size < 4 * state["conv"].numel() + 1000
    for read in (read_tensors, read_weights):
        found = read(tmp_path / "w.safetensors")
        assert set(found) == set(state)
        assert torch.equal(found["bias"], state["bias"])
        assert torch.equal(found["n"], state["n"])
        largest = state["conv"].flatten(1).abs().amax(1)
        error = (found["conv"] - state["conv"]).flatten(1).abs().amax(1)
        assert bool((error <= largest / 254 * 1.001).all())
        assert float(error[:3].min()) > 0  # eight bits are no more than eight bits
        assert not bool(found["conv"][3].any())


def test_the_narrow_network_with_heads_is_small():
    made = read_recipe(packaged_recipes()["blood-mhex-resnet18"])
    channels = made.model.arguments["channels"]
    model = timm.create_model(made.model.architecture, num_classes=8, **made.model.arguments)
    # Two units per stage; a head has a square matrix and a read-out of eight classes.
    heads = sum(2 * (width * width + 8 * width) for width in channels)
    halves = heads + sum(value.numel() for value in model.state_dict().values())
    assert 2 * halves < 12_000_000


@pytest.mark.parametrize("name", list(LARGEST))
def test_shipped_files_agree_with_their_card(name):
    card = json.loads((WEIGHTS / f"{name}.json").read_text(encoding="utf-8"))
    weights = WEIGHTS / f"{name}.safetensors"
    assert weights.stat().st_size <= LARGEST[name]
    model = timm.create_model(card["architecture"], pretrained=False, **card["arguments"])
    model.load_state_dict(read_weights(weights), strict=True)
    assert card["parameters"] == sum(p.numel() for p in model.parameters())
    assert sorted(card["groups"]["cat"] + card["groups"]["dog"]) == sorted(card["classes"])
    assert (len(card["groups"]["cat"]), len(card["groups"]["dog"])) == (12, 25)
    assert card["accuracy"]["cat_dog"] >= LEAST[name]
    assert card["accuracy"]["images"] == 2454
    made = read_recipe(packaged_recipes()[name])
    assert card["preprocess"] == made.view.as_card()
    assert card["architecture"] == made.model.architecture
    assert card["arguments"] == {"num_classes": 37, **made.model.arguments}
    for one in with_needs(made, packaged_recipes()[name].parent):
        assert card["recipe"]["epochs"][one.name] == one.train.epochs


@pytest.mark.slow
@pytest.mark.parametrize("name", [*LARGEST, "pets-mhex-resnet10t"])
def test_shipped_accuracy_is_what_the_card_says(name):
    try:
        photos = load_pets("test")
    except FileNotFoundError as error:
        pytest.skip(str(error))
    card = json.loads((WEIGHTS / f"{name}.json").read_text(encoding="utf-8"))
    made = read_recipe(packaged_recipes()[name])
    measured = measure(made, WEIGHTS / f"{name}.safetensors", photos, torch.device("cpu"))
    assert measured.get("heads", []) == pytest.approx(card["accuracy"].get("heads", []), abs=0.002)
    assert measured["breed"] == pytest.approx(card["accuracy"]["breed"], abs=0.002)
    assert measured["cat_dog"] == pytest.approx(card["accuracy"]["cat_dog"], abs=0.002)
