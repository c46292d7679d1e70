"""Whole runs on made-up data: learning, repeating, breaking off and going on."""

import json
from contextlib import contextmanager

import pytest
import torch
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import mhex
from mhex.data import DataMissingError, load_blood
from mhex.errors import ArgumentError, MissingExtraError
from mhex.train import resume, run
from mhex.train.checkpoint import read_facts, transfer
from mhex.train.loop import DivergedError, Loop
from mhex.train.machine import Pace
from mhex.train.run import train
from support.training import write_news

# Everything that carries a state from step to step: batch norm, dropout, averages, mixing, slices, validation.
FULL = {
    "model": {"extra": {"drop_rate": 0.2}},
    "train": {"ema": 0.8, "accumulate": 2, "smoothing": 0.1, "epochs": 3},
    "augment": {"cutmix": 0.4, "mixup": 0.3},
}


class Killed(BaseException):
    """Stands for the end of the process: nothing catches it."""


def weights(out, name="weights"):
    return load_file(out / f"{name}.safetensors")


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def break_at(monkeypatch, step):
    """Let the run end without a word before a step."""
    real = Loop.step

    def breaking(self, now, *rest):
        if now == step:
            raise Killed
        return real(self, now, *rest)

    monkeypatch.setattr(Loop, "step", breaking)


@contextmanager
def broken_at(monkeypatch, step):
    with monkeypatch.context() as patch:
        break_at(patch, step)
        with pytest.raises(Killed):
            yield


def test_a_run_learns_and_tells(blood, recipe, tmp_path):
    lines = []
    made = recipe(train={"epochs": 12, "rate": 0.01, "early_stopping": {"patience": 12, "watch": "accuracy"}})
    report = train(made, tmp_path / "out", pace=Pace(say=lines.append))
    assert report["test"]["cell"] > 0.5
    assert report["test"]["images"] == 16
    assert len(report["epochs"]) == 12
    assert report["epochs"][-1]["loss"] < 0.8 * report["epochs"][0]["loss"]
    best = max(row["validation"]["accuracy"] for row in report["epochs"])
    assert report["epochs"][report["best_epoch"] - 1]["validation"]["accuracy"] == best
    assert report["recipe"] == made.as_dict()
    assert lines[0] == "small: 12 epochs of 32 samples, 48 steps"
    assert report == json.loads((tmp_path / "out" / "report.json").read_text())
    assert read_facts(tmp_path / "out" / "weights.safetensors")["epoch"] == str(report["best_epoch"])
    assert not (tmp_path / "out" / "checkpoint").exists()


def test_a_seed_repeats_a_run_and_another_does_not(blood, recipe, tmp_path):
    runs = {}
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        torch.manual_seed(len(runs))  # what happened before in the process does not matter
        train(recipe(seed=seed, **FULL), tmp_path / name)
        runs[name] = weights(tmp_path / name, "last")
    assert same(runs["a"], runs["b"])
    assert not same(runs["a"], runs["c"])


@pytest.mark.parametrize("steps", [[1], [5], [4, 8], [11]])
def test_a_broken_run_goes_on_to_the_same_bits(blood, recipe, tmp_path, monkeypatch, steps):
    made, pace = recipe(**FULL), Pace(steps=3)
    whole = train(made, tmp_path / "whole")
    for step in steps:
        with broken_at(monkeypatch, step):
            train(made, tmp_path / "broken", pace=pace)
    report = train(made, tmp_path / "broken", pace=pace)
    for name in ("weights", "last"):
        assert same(weights(tmp_path / "whole", name), weights(tmp_path / "broken", name))
    strip = [{key: value for key, value in row.items() if key != "seconds"} for row in report["epochs"]]
    assert strip == [{k: v for k, v in row.items() if k != "seconds"} for row in whole["epochs"]]


def test_a_run_broken_while_it_writes_goes_on_to_the_same_bits(blood, recipe, tmp_path, monkeypatch):
    made, pace = recipe(**FULL), Pace(steps=2)
    train(made, tmp_path / "whole")
    written = []
    real = resume.write_text

    def breaking(text, path):
        written.append(path)
        if len(written) == 3:  # the third checkpoint has its tensors and no state
            raise Killed
        real(text, path)

    monkeypatch.setattr(resume, "write_text", breaking)
    with pytest.raises(Killed):
        train(made, tmp_path / "broken", pace=pace)
    monkeypatch.setattr(resume, "write_text", real)
    assert resume.latest_checkpoint(tmp_path / "broken").name == "step-000000004"
    train(made, tmp_path / "broken", pace=pace)
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "broken"))


def test_a_run_broken_after_the_last_step_is_finished(blood, recipe, tmp_path, monkeypatch):
    real = run.finish
    monkeypatch.setattr(run, "finish", lambda *rest: (_ for _ in ()).throw(Killed))
    with pytest.raises(Killed):
        train(recipe(), tmp_path / "out")
    monkeypatch.setattr(run, "finish", real)
    break_at(monkeypatch, 0)
    assert len(train(recipe(), tmp_path / "out")["epochs"]) == 3


def test_logs_tell_each_step_once(blood, recipe, tmp_path, monkeypatch):
    made = recipe()
    for step in (5, 7):
        with broken_at(monkeypatch, step):
            train(made, tmp_path / "out", pace=Pace(steps=3))
    train(made, tmp_path / "out")
    logs = EventAccumulator(str(tmp_path / "out" / "tensorboard"))
    logs.Reload()
    assert {"loss", "rate", "validation/accuracy", "validation/loss"} <= set(logs.Tags()["scalars"])
    assert [event.step for event in logs.Scalars("loss")] == list(range(1, 13))
    assert [event.step for event in logs.Scalars("validation/accuracy")] == [4, 8, 12]


def test_without_tensorboard_a_sentence_comes_before_the_first_step(blood, recipe, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "tensorboard", None)
    break_at(monkeypatch, 0)
    with pytest.raises(MissingExtraError, match=r"mhex\[train\]"):
        train(recipe(), tmp_path / "out")


def test_work_of_another_recipe_is_refused_until_restart(blood, recipe, tmp_path, monkeypatch):
    out = tmp_path / "out"
    with broken_at(monkeypatch, 5):
        train(recipe(), out)
    with pytest.raises(ArgumentError, match=r"differs in train\.rate \(0\.003 there, 0\.1 here\).*--restart"):
        train(recipe(train={"rate": 0.1}), out)
    train(recipe(), out)
    with pytest.raises(ArgumentError, match=r"differs in seed"):
        train(recipe(seed=6), out)
    (out / "mine.txt").write_text("kept")
    assert train(recipe(seed=6), out, restart=True)["recipe"]["seed"] == 6
    assert (out / "mine.txt").read_text() == "kept"


def test_a_finished_run_is_left_as_it_is(blood, recipe, tmp_path, monkeypatch):
    first = train(recipe(), tmp_path / "out")
    break_at(monkeypatch, 0)
    lines = []
    assert train(recipe(), tmp_path / "out", pace=Pace(say=lines.append)) == first
    assert lines == ["small: already there"]


def test_slices_of_a_batch_change_nothing_but_memory(blood, recipe, tmp_path):
    # Without batch norm, whose statistics are those of a slice.
    plain = {"model": {"architecture": "test_vit", "arguments": {"img_size": 16}}, "augment": {}}
    curves = [
        [
            row["loss"]
            for row in train(recipe(**plain, train={"accumulate": pieces, "clip": 1.0}), tmp_path / str(pieces))[
                "epochs"
            ]
        ]
        for pieces in (1, 4)
    ]
    assert curves[0] == pytest.approx(curves[1], abs=1e-5)


def test_early_stopping_leaves_and_keeps_the_best(blood, recipe, tmp_path):
    # A rate so high that the validation loss jumps about, so patience runs out.
    made = recipe(train={"epochs": 40, "rate": 0.3, "early_stopping": {"patience": 2}})
    report = train(made, tmp_path / "out")
    losses = [row["validation"]["loss"] for row in report["epochs"]]
    assert len(losses) < 40
    assert losses.index(min(losses)) == len(losses) - 3 == report["best_epoch"] - 1
    assert not same(weights(tmp_path / "out"), weights(tmp_path / "out", "last"))


def test_keep_last(blood, recipe, tmp_path):
    report = train(recipe(train={"keep": "last"}), tmp_path / "out")
    assert report["best_epoch"] is None
    assert read_facts(tmp_path / "out" / "weights.safetensors")["epoch"] == "3"
    assert not (tmp_path / "out" / "last.safetensors").exists()


def test_a_share_is_held_out_for_validation(blood, recipe, tmp_path):
    lines = []
    report = train(recipe(data={"validation": 0.25}), tmp_path / "out", pace=Pace(say=lines.append))
    assert "24 samples, 9 steps" in lines[0]
    assert "validation" in report["epochs"][0]
    with pytest.raises(ArgumentError, match=r"data\.validation: a share of 0\.01"):
        train(recipe(data={"validation": 0.01}), tmp_path / "other")
    assert "validation" not in train(recipe(data={"validation": 0}), tmp_path / "none")["epochs"][0]


def test_a_loss_that_is_no_number_is_told(blood, recipe, tmp_path):
    with pytest.raises(DivergedError, match=r"small is nan at step .*train\.rate"):
        train(recipe(train={"rate": 1e30, "clip": None, "optimizer": "sgd", "warmup": 0}), tmp_path / "out")


def test_missing_data_and_weights_are_told_before_anything_is_written(data, recipe, tmp_path):
    with pytest.raises(DataMissingError, match=r"blood\.parquet.*place it there"):
        train(recipe(), tmp_path / "out")
    with pytest.raises(ArgumentError, match=r"needs the weights of other.*--with-needs"):
        train(recipe(model={"start": "other"}), tmp_path / "out")
    with (
        pytest.raises(ArgumentError, match="fp16 needs a GPU")
        if not torch.cuda.is_available()
        else pytest.raises(DataMissingError)
    ):
        train(recipe(train={"precision": "fp16"}), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_texts_learn_too(data, recipe, tmp_path):
    from support.zoo_standins import write_bert

    write_news(data)
    write_bert(data / "bert")
    made = recipe(
        data={"name": "ag_news", "side": None, "length": 8},
        model={"source": "hf-folder", "architecture": "bert"},
        train={"epochs": 20, "rate": 0.02},
    )
    report = train(made, tmp_path / "out")
    assert report["test"]["topic"] > 0.7
    assert report["test"]["texts"] == 8
    bundle = mhex.load(f"hf:{tmp_path / 'out' / 'model'}")
    assert bundle.class_names == ["World", "Sports", "Business", "Sci/Tech"]


def test_a_frozen_bert_learns_classifier_pooler_and_heads(data, recipe, tmp_path):
    from support.zoo_standins import write_bert

    write_news(data)
    write_bert(data / "bert")
    made = recipe(
        data={"name": "ag_news", "side": None, "length": 8},
        model={"source": "hf-folder", "architecture": "bert"},
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


def test_a_start_on_the_same_data_keeps_the_classifier(blood, recipe, tmp_path, monkeypatch):
    train(recipe(name="first"), tmp_path / "runs" / "first")
    seen = {}
    monkeypatch.setattr(Loop, "run", lambda self, pace: seen.update(self.model.state_dict()) or self.progress)
    monkeypatch.setattr(run, "finish", lambda *rest: None)
    with pytest.raises(ArgumentError, match="should hold"):
        train(recipe(model={"start": "first"}), tmp_path / "runs" / "second")
    assert same(seen, weights(tmp_path / "runs" / "first"))


def test_half_precision_computes_and_keeps_full_weights(blood, recipe, tmp_path, monkeypatch):
    # Some virtual machines announce matrix units that they do not have, and die of them.
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    report = train(recipe(train={"precision": "bf16", "epochs": 1}), tmp_path / "out")
    assert report["precision"] == "bf16"
    assert {value.dtype for value in weights(tmp_path / "out").values() if value.is_floating_point()} == {torch.float32}
    assert train(recipe(), tmp_path / "next")["precision"] == "no"


def test_processes_that_do_not_know_of_each_other_are_refused(blood, recipe, tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ArgumentError, match=r"2 processes were started.*ACCELERATE_USE_CPU"):
        train(recipe(), tmp_path / "out")


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
    assert ramps == [(step, 12) for step in range(12)]
    gates = [value for name, value in weights(tmp_path / "out", "last").items() if name.endswith("strength")]
    assert len(report["test"]["heads"]) == len(gates) > 0
    # The average of the weights has the gates of the end, not an average of gates.
    assert all(gate == 1 for gate in gates)


@pytest.mark.parametrize(("mode", "pick"), [("finetune", "last"), ("pretrain", "sum")])
def test_heads_answer_where_the_classifier_does_not_learn(blood, recipe, tmp_path, mode, pick):
    made = recipe(heads={"preset": "paper", "mode": mode, "classifier": False}, train={"epochs": 8, "rate": 0.01})
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
    train(recipe(name="plain"), tmp_path / "plain")
    made = recipe(heads={"preset": "probe"}, model={"start": "plain"}, train={"freeze": "host", "head_rate": 3.0})
    report = train(made, tmp_path / "frozen")
    before, after = weights(tmp_path / "plain"), weights(tmp_path / "frozen", "last")
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    assert any(name.startswith("mhex.") for name in after)
    assert report["epochs"][-1]["loss"] < report["epochs"][0]["loss"]


def test_gates_go_along_to_other_data_and_classifiers_do_not(blood, recipe, tmp_path):
    made = recipe(heads={"preset": "paper"})
    train(made, tmp_path / "first")
    network, _ = run.make_objective(made, ("yes", "no"), training=False)
    fresh = {name: value.clone() for name, value in network.model.state_dict().items()}
    transfer(network.model, tmp_path / "first" / "weights.safetensors", network.classifier, same_data=False)
    old, new = weights(tmp_path / "first"), network.model.state_dict()
    heads = [name for name in new if name.startswith("mhex.")]
    assert all(torch.equal(new[name], old[name]) for name in heads if new[name].shape == old[name].shape)
    readouts = [name for name in heads if new[name].shape != old[name].shape]
    assert readouts
    assert all(torch.equal(new[name], fresh[name]) for name in (*readouts, *(n for n in new if n.startswith("fc."))))
