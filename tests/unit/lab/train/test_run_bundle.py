"""A finished run as a model to use."""

import pytest
import torch
from train_helpers import NEWS, same, weights

import mhex
from mhex.errors import ArgumentError
from mhex.lab.datasets import load_blood
from mhex.lab.train.run import train
from support.training import write_news
from support.zoo_models import write_bert


def test_a_run_with_heads_is_loaded_and_explained(blood, recipe, tmp_path):
    report = train(recipe(heads={"preset": "paper"}, train={"epochs": 2}), tmp_path / "out")
    bundle = mhex.load(f"run:{tmp_path / 'out'}")
    learned = weights(tmp_path / "out")
    assert same({name: bundle.model.state_dict()[name] for name in learned}, learned)
    test = load_blood("test")
    assert bundle.class_names == list(test.classes)
    with torch.no_grad():
        said = bundle.model(recipe().view(test.images)).argmax(1)
    assert float((said == test.labels).double().mean()) == pytest.approx(report["test"]["cell"], abs=1e-4)
    photo = test.images[0].permute(1, 2, 0).numpy()
    found = mhex.explain(bundle, _pil(photo), method="mhex", target=test.classes[3])
    assert found.scores.abs().sum() > 0
    assert bundle.card["accuracy"] == report["test"]


def test_a_run_answers_as_it_was_trained(blood, recipe, tmp_path):
    made = recipe(heads={"preset": "paper", "mode": "pretrain", "classifier": False, "decay": 0.5}, train={"epochs": 1})
    train(made, tmp_path / "out")
    heads = mhex.Scaffold(mhex.load(f"run:{tmp_path / 'out'}").model).heads
    assert (heads.mode, heads.decay, heads.joined) == ("pretrain", 0.5, False)


def test_a_run_on_texts_is_loaded(data, recipe, tmp_path):
    write_news(data)
    write_bert(data / "bert")
    train(recipe(**NEWS), tmp_path / "out")
    bundle = mhex.load(f"run:{tmp_path / 'out'}")
    assert mhex.explain(bundle, ["a fine film"], method="gae").scores.shape[0] == 1


def test_a_run_of_torchvision_is_loaded_and_a_damaged_one_refused(recipe, stored, tmp_path):
    made = recipe(model={"source": "torchvision", "architecture": "resnet18"}, data={"mean": [0.5, 0.5, 0.5]})
    network = stored(made, tmp_path / "out", ("a", "b"))
    bundle = mhex.load(f"run:{tmp_path / 'out'}")
    assert same(bundle.model.state_dict(), network.model.state_dict())
    assert not bundle.model.training
    assert (bundle.class_names, bundle.preprocess.height, bundle.preprocess.mean) == (["a", "b"], 16, (0.5,) * 3)
    report = tmp_path / "out" / "report.json"
    for damaged in ("{", "[]", '{"recipe": {}}', report.read_text().replace('"resnet18"', '"resnet81"')):
        report.write_text(damaged)
        with pytest.raises(ArgumentError, match=r"report\.json cannot be read|torchvision cannot make 'resnet81'"):
            mhex.load(f"run:{tmp_path / 'out'}")


@pytest.mark.parametrize("name", ["nowhere", "."])
def test_a_folder_without_a_run_is_refused(tmp_path, name, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ArgumentError, match=r"report.json and weights.safetensors"):
        mhex.load(f"run:{name}")


def _pil(pixels):
    from PIL import Image

    return Image.fromarray(pixels)
