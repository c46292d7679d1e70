"""Runs that are broken off, and go on."""

import json

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.summary.writer import event_file_writer
from train_helpers import FULL, Killed, break_at, broken_at, kill, same, weights

import mhex
from mhex.errors import ArgumentError, MissingExtraError
from mhex.lab.train import checkpoint as resume
from mhex.lab.train import report as shipping
from mhex.lab.train import run
from mhex.lab.train import run as finish
from mhex.lab.train.loop import Pace
from mhex.lab.train.run import train


def test_a_broken_run_goes_on_to_the_same_bits(blood, recipe, tmp_path, monkeypatch):
    made, pace = recipe(**FULL), Pace(steps=3)
    whole = train(made, tmp_path / "whole")
    for step in (1, 5, 8, 11):  # before the first checkpoint, within an epoch, between two, before the last step
        with broken_at(monkeypatch, step):
            train(made, tmp_path / "broken", pace=pace)
    report = train(made, tmp_path / "broken", pace=pace)
    for name in ("weights", "last"):
        assert same(weights(tmp_path / "whole", name), weights(tmp_path / "broken", name))
    strip = [{key: value for key, value in row.items() if key != "seconds"} for row in report["epochs"]]
    assert strip == [{k: v for k, v in row.items() if k != "seconds"} for row in whole["epochs"]]


def test_a_run_broken_while_it_writes_goes_on_to_the_same_bits(blood, recipe, tmp_path, monkeypatch):
    made, pace = recipe("train.epochs=2", **FULL), Pace(steps=2)
    train(made, tmp_path / "whole")
    written = []
    real = resume.write_text

    def breaking(text, path, durable):
        written.append(path)
        if len(written) == 3:  # the third checkpoint has its tensors and no state
            raise Killed
        real(text, path, durable)

    monkeypatch.setattr(resume, "write_text", breaking)
    with pytest.raises(Killed):
        train(made, tmp_path / "broken", pace=pace)
    monkeypatch.setattr(resume, "write_text", real)
    assert resume.latest_checkpoint(tmp_path / "broken").name == "step-000000004"
    train(made, tmp_path / "broken", pace=pace)
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "broken"))


def test_a_full_disk_leaves_the_checkpoint_of_before(blood, recipe, tmp_path, monkeypatch):
    made, pace, written = recipe("train.epochs=2", **FULL), Pace(steps=2), []
    real = resume.write_tensors

    def full(state, path):
        written.append(path)
        if path.name == "optimizer.safetensors" and len(written) > 6:
            path.write_bytes(b"half")
            raise OSError(28, "No space left on device")
        real(state, path)

    monkeypatch.setattr(resume, "write_tensors", full)
    with pytest.raises(ArgumentError, match=r"Cannot write to .*: No space left on device"):
        train(made, tmp_path / "out", pace=pace)
    (left,) = (tmp_path / "out" / "checkpoint").iterdir()
    assert left == resume.latest_checkpoint(tmp_path / "out")
    monkeypatch.setattr(resume, "write_tensors", real)
    assert len(train(made, tmp_path / "out", pace=pace)["epochs"]) == 2


def test_a_run_broken_after_the_last_step_is_finished(blood, recipe, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(run, "write_outcome", kill)
        with pytest.raises(Killed):
            train(recipe(), tmp_path / "out")
    break_at(monkeypatch, 0)
    assert len(train(recipe(), tmp_path / "out")["epochs"]) == 3


@pytest.mark.parametrize("place", ["measure", "write_tensors", "write_text"])
def test_a_run_broken_while_it_ships_is_shipped(blood, recipe, tmp_path, monkeypatch, place):
    made, out = recipe(ship={}, train={"epochs": 1}), tmp_path / "small"
    real = shipping.write_text

    def kill_at_card(text, path, durable):
        if path.parent.name == "shipped":
            raise Killed
        real(text, path, durable)

    with monkeypatch.context() as patch:
        if place == "measure":
            patch.setattr(finish, "ship", kill)
        else:
            patch.setattr(shipping, place, kill_at_card if place == "write_text" else kill)
        with pytest.raises(Killed):
            train(made, out)
    assert (out / "report.json").is_file()
    break_at(monkeypatch, 0)
    train(made, out)
    told = json.loads((out / "shipped" / "small.json").read_text())
    assert told["accuracy"] == mhex.load("zoo:small", folder=out / "shipped").card["accuracy"]
    assert not (out / "checkpoint").exists()
    before = (out / "shipped" / "small.json").stat().st_mtime_ns
    train(made, out)  # once is enough
    assert (out / "shipped" / "small.json").stat().st_mtime_ns == before


def test_a_finished_run_is_shipped_and_judged_as_asked_later(blood, recipe, tmp_path, monkeypatch):
    first, out = train(recipe(data={"validation": 0}, train={"epochs": 1}), tmp_path / "small"), tmp_path / "small"
    assert first["test"]["split"] == "test"
    break_at(monkeypatch, 0)
    later = recipe(data={"validation": 0, "test": "val"}, train={"epochs": 1}, ship={"bits": 32})
    report = train(later, out)
    assert report["test"]["split"] == "val"
    assert {key: report[key] for key in ("epochs", "date", "digest")} == {
        key: first[key] for key in ("epochs", "date", "digest")
    }
    path = out / "shipped" / "small.json"
    assert json.loads(path.read_text())["accuracy"] == report["test"]
    assert {value.dtype for value in weights(out / "shipped", "small").values()} >= {torch.float32}
    # The card follows what is asked for, in each point.
    back = {"data": {"validation": 0}, "train": {"epochs": 1}}
    train(recipe(**back, ship={"bits": 32}), out)
    assert json.loads(path.read_text())["accuracy"]["split"] == "test"
    train(recipe(**back, ship={"bits": 16}), out)
    assert torch.float16 in {value.dtype for value in weights(out / "shipped", "small").values()}


def test_a_wrong_test_split_is_told_before_the_first_step(blood, recipe, tmp_path, monkeypatch):
    break_at(monkeypatch, 0)
    with pytest.raises(ArgumentError, match=r"split should be one of .*, not 'tset'"):
        train(recipe(data={"test": "tset"}), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_work_of_an_older_version_goes_on(blood, recipe, tmp_path, monkeypatch):
    out = tmp_path / "out"
    train(recipe(train={"epochs": 1}), out)
    report = json.loads((out / "report.json").read_text())
    report["digest"] = "made otherwise"
    del report["recipe"]["train"]["compile"]  # a key that did not exist then
    (out / "report.json").write_text(json.dumps(report))
    break_at(monkeypatch, 0)
    assert train(recipe(train={"epochs": 1}), out) == report


def test_a_checkpoint_of_a_newer_version_is_refused(blood, recipe, tmp_path, monkeypatch):
    with broken_at(monkeypatch, 5):
        train(recipe(), tmp_path / "out")
    path = resume.latest_checkpoint(tmp_path / "out") / "state.json"
    state = json.loads(path.read_text())
    state["recipe"]["train"]["sparkle"] = 1
    path.write_text(json.dumps(state))
    with pytest.raises(ArgumentError, match=r"of another version of mhex.*'sparkle'.*: begin anew with --restart"):
        train(recipe(), tmp_path / "out")


def test_logs_tell_each_step_once(blood, recipe, tmp_path, monkeypatch):
    # Files of one second are read in the order of a number that a process counts up; 10 would come before 9.
    monkeypatch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(0))
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
