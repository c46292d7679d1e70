"""The real program: killed at any moment, and in two processes."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from safetensors.torch import load_file

from mhex.lab.train.checkpoint import latest_checkpoint
from support.training import write_recipe

# One thread each: sums in another order would give other bits.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}


def program(*arguments, launch=()):
    return [sys.executable, *launch, "-m", "mhex", "train", *map(str, arguments)]


def finish(command):
    done = subprocess.run(command, env={**os.environ, **ENVIRONMENT}, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done


def steps_done(out):
    found = latest_checkpoint(out)
    return int(found.name.removeprefix("step-")) if found else 0


@pytest.mark.slow
def test_killed_runs_end_with_the_same_bits(blood, tmp_path):
    changes = {
        "model": {"extra": {"drop_rate": 0.2}},
        "train": {"ema": 0.9, "epochs": 12, "smoothing": 0.1},
        "augment": {"cutmix": 0.4, "mixup": 0.3},
    }
    path = write_recipe(tmp_path / "small.yaml", **changes)
    finish(program(path, "--out", tmp_path / "whole"))
    broken = program(path, "--out", tmp_path / "broken", "--checkpoint-steps", 2)
    kills = 0
    for least, delay in ((1, 0.0), (11, 0.05), (25, 0.13)):
        process = subprocess.Popen(broken, env={**os.environ, **ENVIRONMENT}, stderr=subprocess.DEVNULL)
        while process.poll() is None and steps_done(tmp_path / "broken") < least:
            time.sleep(0.002)
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        kills += process.wait() == -signal.SIGKILL
    assert kills >= 2  # on a quick machine the last one may come too late
    finish(broken)
    for name in ("weights", "last"):
        whole = load_file(tmp_path / "whole" / f"{name}.safetensors")
        again = load_file(tmp_path / "broken" / f"{name}.safetensors")
        assert whole.keys() == again.keys()
        assert all(torch.equal(value, again[key]) for key, value in whole.items())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("accumulate", "heads"),
    # With the last ones, the classifier is in the model's answer and not in the loss.
    [(2, None), (1, {"preset": "warmup"}), (1, {"preset": "paper", "classifier": False})],
    ids=["slices", "heads", "heads alone"],
)
def test_two_processes_learn_what_one_learns(blood, tmp_path, accumulate, heads):
    # A batch is all there is, so that each epoch is a step and the epochs' losses are the whole curve.
    path = write_recipe(
        tmp_path / "small.yaml",
        model={"architecture": "test_vit", "arguments": {"img_size": 16}},
        train={"batch": 32, "epochs": 8, "accumulate": accumulate, "ema": 0.9},
        augment={"cutmix": 0.4, "mixup": 0.3},
        heads=heads,
    )
    # On GPUs `accelerate launch` starts the same launcher; on a CPU it starts one process only.
    several = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")
    finish(program(path, "--out", tmp_path / "one", launch=("-m", "accelerate.commands.launch", "--cpu")))
    finish(program(path, "--out", tmp_path / "two", launch=several))
    one, two = (json.loads((tmp_path / name / "report.json").read_text()) for name in ("one", "two"))
    assert (one["processes"], two["processes"]) == (1, 2)
    for key in ("loss", "accuracy"):
        curve = [row["validation"][key] for row in one["epochs"]]
        assert [row["validation"][key] for row in two["epochs"]] == pytest.approx(curve, abs=1e-5)
    losses = [row["loss"] for row in one["epochs"]]
    assert [row["loss"] for row in two["epochs"]] == pytest.approx(losses, abs=1e-5)
    assert losses[-1] < losses[0] - 0.1
