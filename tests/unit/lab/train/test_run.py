"""Whole runs on made-up data: what they write, tell and refuse."""

import json

import pytest
import torch
from train_helpers import FULL, NEWS, same, weights

import mhex
from mhex.errors import ArgumentError
from mhex.lab.datasets import DataMissingError
from mhex.lab.train import run
from mhex.lab.train.checkpoint import read_facts
from mhex.lab.train.loop import DivergedError, Loop, Pace, make_accelerator
from mhex.lab.train.run import train
from mhex.lab.train.samples import load_samples
from support.training import write_news


def test_a_run_learns_and_tells(blood, recipe, tmp_path):
    lines = []
    made = recipe(train={"epochs": 8, "rate": 0.01, "early_stopping": {"patience": 8, "watch": "accuracy"}})
    report = train(made, tmp_path / "out", pace=Pace(say=lines.append))
    assert report["test"]["cell"] > 0.5
    assert (report["test"]["split"], report["test"]["images"]) == ("test", 16)
    assert len(report["epochs"]) == 8
    assert report["epochs"][-1]["loss"] < 0.8 * report["epochs"][0]["loss"]
    best = max(row["validation"]["accuracy"] for row in report["epochs"])
    assert report["epochs"][report["best_epoch"] - 1]["validation"]["accuracy"] == best
    assert report["recipe"] == made.as_dict()
    assert lines[0] == "small: 8 epochs of 32 samples, 32 steps"
    assert report == json.loads((tmp_path / "out" / "report.json").read_text())
    assert read_facts(tmp_path / "out" / "weights.safetensors")["epoch"] == str(report["best_epoch"])
    assert not (tmp_path / "out" / "checkpoint").exists()


def test_a_seed_repeats_a_run_and_another_does_not(blood, recipe, tmp_path):
    runs = {}
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        torch.manual_seed(len(runs))  # what happened before in the process does not matter
        train(recipe("train.epochs=1", seed=seed, **FULL), tmp_path / name)
        runs[name] = weights(tmp_path / name, "last")
    assert same(runs["a"], runs["b"])
    assert not same(runs["a"], runs["c"])


def test_slices_of_a_batch_change_nothing_but_memory(blood, recipe, tmp_path):
    # Without batch norm, whose statistics are those of a slice.
    plain = {"model": {"architecture": "test_vit", "arguments": {"img_size": 16}}, "augment": {}}
    curves = [
        [
            row["loss"]
            for row in train(
                recipe(**plain, train={"epochs": 2, "accumulate": pieces, "clip": 1.0}), tmp_path / str(pieces)
            )["epochs"]
        ]
        for pieces in (1, 4)
    ]
    assert curves[0] == pytest.approx(curves[1], abs=1e-5)


def test_early_stopping_leaves_and_keeps_the_best(blood, recipe, tmp_path):
    # A rate so high that the validation loss jumps about, so patience runs out.
    made = recipe(train={"epochs": 40, "rate": 0.3, "early_stopping": {"patience": 1}})
    report = train(made, tmp_path / "out")
    losses = [row["validation"]["loss"] for row in report["epochs"]]
    assert len(losses) < 40
    assert losses.index(min(losses)) == len(losses) - 2 == report["best_epoch"] - 1
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
    samples = load_samples(recipe(data={"validation": 0.25}))
    assert sorted([*samples.rows.tolist(), *samples.validation_rows.tolist()]) == list(range(32))
    assert len(samples.validation_rows) == 8
    assert samples.validation is samples.train
    # Another run on the same data, which may start from this one, holds out the same.
    assert (
        samples.validation_rows.tolist()
        == load_samples(recipe(data={"validation": 0.25}, seed=6)).validation_rows.tolist()
    )
    with pytest.raises(ArgumentError, match=r"data\.validation: 0\.01 of"):
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
    from support.zoo_models import write_bert

    write_news(data)
    write_bert(data / "bert")
    made = recipe(**NEWS, train={"epochs": 16, "rate": 0.02})
    report = train(made, tmp_path / "out")
    assert report["test"]["topic"] > 0.7
    assert report["test"]["texts"] == 8
    bundle = mhex.load(f"hf:{tmp_path / 'out' / 'model'}")
    assert bundle.class_names == ["World", "Sports", "Business", "Sci/Tech"]


def test_a_start_on_the_same_data_keeps_the_classifier(blood, recipe, tmp_path, monkeypatch):
    train(recipe(name="first"), tmp_path / "runs" / "first")
    seen = {}
    monkeypatch.setattr(Loop, "run", lambda self, pace: seen.update(self.model.state_dict()) or self.progress)
    monkeypatch.setattr(run, "write_outcome", lambda *rest: None)
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


def test_nothing_but_the_recipe_decides(monkeypatch):
    monkeypatch.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "4")
    monkeypatch.setenv("ACCELERATE_DYNAMO_BACKEND", "INDUCTOR")
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    accelerator = make_accelerator("no")
    assert accelerator.gradient_accumulation_steps == 1
    assert accelerator.mixed_precision == "no"
    assert accelerator.state.dynamo_plugin.backend.value == "NO"
    weight = torch.ones(1, requires_grad=True)
    accelerator.backward(3 * weight.sum())
    assert weight.grad.item() == 3
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with pytest.raises(ArgumentError, match=r"ACCELERATE_USE_FSDP is set.*leave it out"):
        make_accelerator("no")


def test_processes_that_do_not_know_of_each_other_are_refused(blood, recipe, tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ArgumentError, match=r"2 processes were started.*ACCELERATE_USE_CPU"):
        train(recipe(), tmp_path / "out")
