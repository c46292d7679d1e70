"""Runs with explainer heads."""

import pytest
import torch
from safetensors.torch import load_file
from train_helpers import NEWS, same, weights

import mhex
from mhex.lab.config.recipe import RecipeModel
from mhex.lab.datasets import load_blood
from mhex.lab.train import run
from mhex.lab.train.run import begin, train
from support.training import write_news

START = RecipeModel(source="timm", architecture="test_resnet", start="first")


@pytest.fixture
def ramps(monkeypatch):
    """Steps that the scaffold was told of."""
    told, real = [], mhex.Scaffold.ramp

    def ramp(self, step, steps):
        told.append((step, steps))
        real(self, step, steps)

    monkeypatch.setattr(mhex.Scaffold, "ramp", ramp)
    return told


def test_heads_learn_with_their_host(blood, recipe, tmp_path, ramps):
    report = train(recipe(heads={"preset": "warmup"}, train={"ema": 0.8}, augment={}), tmp_path / "out")
    assert ramps == [(0, 12), *((step, 12) for step in range(12))]  # the first one on trial
    gates = [value for name, value in weights(tmp_path / "out", "last").items() if name.endswith("strength")]
    assert len(report["test"]["heads"]) == len(gates) > 0
    # The average of the weights has the gates of the end, not an average of gates.
    assert all(gate == 1 for gate in gates)


@pytest.mark.parametrize(("mode", "pick"), [("finetune", "last"), ("pretrain", "sum")])
def test_heads_answer_where_the_classifier_does_not_learn(blood, recipe, tmp_path, mode, pick):
    made = recipe(heads={"preset": "paper", "mode": mode, "classifier": False}, train={"epochs": 2, "rate": 0.01})
    report = train(made, tmp_path / "out")
    network, objective = run.make_objective(made, load_blood("test").classes, training=False)
    network.model.load_state_dict(weights(tmp_path / "out"))
    network.model.eval()
    inputs = made.view(load_blood("test").images)
    with torch.no_grad():
        answer = objective.predict(inputs)
        said = objective.head_answers()
    expected = said[-1] if pick == "last" else sum(0.8**place * one for place, one in enumerate(reversed(said)))
    torch.testing.assert_close(answer, expected)
    right = (answer.argmax(dim=1) == load_blood("test").labels).double().mean().item()
    assert report["test"]["cell"] == pytest.approx(right, abs=1e-4)
    if pick == "last":
        assert report["test"]["heads"][-1] == report["test"]["cell"]


def test_frozen_hosts_stay_as_they_began(blood, recipe, tmp_path):
    train(recipe(name="plain", train={"epochs": 1}), tmp_path / "plain")
    made = recipe(heads={"preset": "probe"}, model={"start": "plain"}, train={"freeze": "host", "head_rate": 3.0})
    report = train(made, tmp_path / "frozen")
    before, after = weights(tmp_path / "plain"), weights(tmp_path / "frozen", "last")
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    assert any(name.startswith("mhex.") for name in after)
    assert report["epochs"][-1]["loss"] < report["epochs"][0]["loss"]


@pytest.mark.parametrize("classes", [("yes", "no"), tuple("abcdefgh")], ids=["two", "eight"])
def test_gates_go_along_to_other_data_and_classifiers_do_not(blood, recipe, stored, tmp_path, classes):
    made = recipe(heads={"preset": "paper"})
    old = stored(made, tmp_path / "first", load_blood("test").classes).model.state_dict()
    network, _ = run.make_objective(made, classes, training=False)
    fresh = {name: value.clone() for name, value in network.model.state_dict().items()}
    # Where other data happen to have as many classes, shapes do not tell.
    cifar10 = made.data.model_copy(update={"name": "cifar10"})
    begin(made.model_copy(update={"data": cifar10, "model": START}), network, tmp_path / "second")
    new = network.model.state_dict()
    anew = [name for name in new if name.endswith("w2.weight") or name.startswith("fc.")]
    assert len(anew) == 4 + 2
    assert all(torch.equal(new[name], fresh[name]) for name in anew)
    assert all(torch.equal(new[name], old[name]) for name in new if name not in anew)
    if len(classes) == 8:  # the same data: everything comes along
        begin(made.model_copy(update={"model": START}), network, tmp_path / "second")
        assert same(network.model.state_dict(), old)


def test_a_resident_answers_as_it_did_in_training(blood, recipe, tmp_path):
    made = recipe(
        heads={"preset": "paper", "mode": "pretrain", "decay": 0.5, "classifier": False},
        train={"epochs": 2, "rate": 0.01},
        ship={"bits": 32},
    )
    report = train(made, tmp_path / "small")
    bundle, cells = mhex.load("zoo:small", folder=tmp_path / "small" / "shipped"), load_blood("test")
    assert bundle.card["accuracy"] == report["test"]
    scaffold = mhex.Scaffold(bundle.model)
    with torch.no_grad():
        bundle.model(made.view(cells.images))
    answer = scaffold.logits
    assert scaffold.predict_from == "sum"
    assert (scaffold.heads.mode, scaffold.heads.decay, scaffold.heads.joined) == ("pretrain", 0.5, False)
    right = (answer.argmax(dim=1) == cells.labels).double().mean().item()
    assert bundle.card["accuracy"]["cell"] == pytest.approx(right, abs=1e-4)


def test_a_frozen_bert_learns_classifier_pooler_and_heads(data, recipe, tmp_path):
    from support.zoo_models import write_bert

    write_news(data)
    write_bert(data / "bert")
    made = recipe(
        **NEWS,
        heads={"preset": "probe", "exclude_special": True},
        train={"epochs": 1, "rate": 0.02, "freeze": "body"},
    )
    train(made, tmp_path / "out")
    learned, stored = weights(tmp_path / "out"), load_file(data / "bert" / "model.safetensors")
    changed = {
        name
        for name, value in stored.items()
        if learned[name].shape != value.shape or not torch.equal(learned[name], value.float())
    }
    assert changed == {name for name in stored if name.startswith(("classifier.", "bert.pooler."))}
