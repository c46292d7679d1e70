"""Learning without labels: views, loss, votes of neighbours, and whole runs."""

import io
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from test_processes import finish, program
from train_helpers import broken_at, same, weights

import mhex
from mhex.errors import ArgumentError
from mhex.lab.datasets import load_blood
from mhex.lab.train.checkpoint import latest_checkpoint
from mhex.lab.train.evaluate import neighbour_votes
from mhex.lab.train.loop import Pace
from mhex.lab.train.objective import contrast
from mhex.lab.train.run import train
from mhex.lab.train.samples import TwoViews, make_feed
from support.training import write_recipe

SMALL = {"img_size": 12, "patch_size": 4, "depth": 2, "embed_dim": 48, "num_heads": 3}
CHANGES = {"scale": [0.5, 1.0], "rotate": 0.0, "flip": 0.0, "light": 0.4, "cast": 0.3, "cutmix": 0.0, "mixup": 0.0}
ALONE = {
    "data": {"side": 12},
    "model": {"architecture": "vit_tiny_patch16_224", "arguments": SMALL},
    "unlabelled": {"hidden": 64, "width": 16},
    "train": {"epochs": 1, "ema": 0.8},
    "augment": CHANGES,
}


def write_stripes(folder, counts):
    """Cells that differ in the direction of their stripes; colour, contrast and place of these are anything."""
    noise, rows = np.random.default_rng(0), []
    y, x = np.mgrid[:12, :12]
    for split, count in counts.items():
        for k in range(count):
            turn = k % 4 * np.pi / 4
            wave = np.sin((x * np.cos(turn) + y * np.sin(turn)) * 2 * np.pi / 5 + noise.uniform(0, 2 * np.pi))
            pixels = noise.uniform(0.2, 0.8, 3) + wave[..., None] * noise.uniform(0.15, 0.3)
            pixels += noise.normal(0, 0.05, pixels.shape)
            buffer = io.BytesIO()
            Image.fromarray((pixels.clip(0, 1) * 255).astype(np.uint8)).save(buffer, "PNG")
            rows.append({"name": f"{split}_{k}", "image": buffer.getvalue(), "label": k % 4, "split": split})
    pq.write_table(pa.Table.from_pylist(rows), folder / "blood.parquet")


def shuffle_labels(folder):
    table = pq.read_table(folder / "blood.parquet").to_pylist()
    for row in table:
        row["label"] = (row["label"] * 3 + 1) % 8
    pq.write_table(pa.Table.from_pylist(table), folder / "blood.parquet")


def test_the_loss_is_that_of_the_paper():
    torch.manual_seed(0)
    places = torch.nn.functional.normalize(torch.randn(6, 5, dtype=torch.float64), dim=1)
    losses = []
    for i in range(6):
        scores = {k: (places[i] @ places[k] / 0.3).exp() for k in range(6) if k != i}
        losses.append(-(scores[(i + 3) % 6] / sum(scores.values())).log())
    assert contrast(places, 0.3).item() == pytest.approx(torch.stack(losses).mean().item(), abs=1e-12)
    apart = torch.eye(3, dtype=torch.float64).repeat(2, 1)
    assert contrast(apart, 0.01).item() < 1e-6  # equal views of images that differ


def test_neighbours_vote_by_cosine():
    bank = torch.tensor([[1.0, 0.0], [5.0, 0.5], [0.0, 1.0], [0.1, 3.0]])
    labels = torch.tensor([2, 2, 0, 1])
    votes = neighbour_votes(bank, labels, torch.tensor([[9.0, 0.0], [0.0, 0.1]]), 3, neighbours=2)
    assert votes.sum(dim=1).tolist() == pytest.approx([1, 1])
    assert votes[0].tolist() == pytest.approx([0, 0, 1])
    near = torch.tensor([1.0, 3 / 9.01**0.5]) / 0.07
    assert votes[1].tolist() == pytest.approx([*near.softmax(0).tolist(), 0], abs=1e-5)
    assert neighbour_votes(bank, labels, bank, 3).shape == (4, 3)  # fewer than twenty
    with pytest.raises(ArgumentError, match=r"a bank of features \(M, D\)"):
        neighbour_votes(bank[:0], labels[:0], bank, 3)


def test_two_views_are_drawn_for_the_whole_batch(blood, recipe):
    made = recipe(**ALONE)
    feed = make_feed(made, load_blood("train"), None, torch.device("cpu"), vary=True)
    rows, table = torch.arange(8), torch.eye(8)
    whole = feed.varied(rows, slice(0, 8), table, 5, 3)
    one, other = whole.inputs.chunk(2)
    assert one.shape == (8, 3, 12, 12)
    assert (one - other).abs().flatten(1).amax(1).min() > 0.01
    assert whole.targets.shape == (16, 0)
    part = feed.varied(rows, slice(2, 5), table, 5, 3).inputs
    assert torch.equal(part, torch.cat([one[2:5], other[2:5]]))
    assert not torch.equal(feed.varied(rows, slice(0, 8), table, 5, 4).inputs, whole.inputs)
    with pytest.raises(ArgumentError, match="the feed changes nothing"):
        TwoViews(load_blood("train"), made.view, None, torch.device("cpu"), rows).varied(rows, slice(0, 8), table, 5, 3)


def test_labels_do_not_matter_and_the_projector_stays_behind(blood, recipe, tmp_path):
    made = recipe(**ALONE)
    report = train(made, tmp_path / "true")
    body = weights(tmp_path / "true")
    assert not any(name.startswith(("projector", "head")) for name in body)
    assert report["parameters"] == sum(value.numel() for value in body.values())
    # Without a classifier there is no accuracy of one.
    assert report["test"].keys() == {"knn_cell", "neighbours", "bank", "split", "images"}
    assert (report["test"]["bank"], report["test"]["images"]) == (32, 16)
    assert report["best_epoch"] is None
    assert "validation" not in report["epochs"][0]
    shuffle_labels(blood)
    train(made, tmp_path / "false")
    assert same(body, weights(tmp_path / "false"))
    assert not same(body, {**body, "cls_token": body["cls_token"] + 1})


def test_a_broken_run_goes_on_with_its_projector(blood, recipe, tmp_path, monkeypatch):
    made = recipe("train.epochs=2", "train.optimizer=lamb", "model.extra={drop_path_rate: 0.2}", **ALONE)
    train(made, tmp_path / "whole")
    with broken_at(monkeypatch, 3):
        train(made, tmp_path / "broken", pace=Pace(steps=1))
    assert "projector.0.weight" in weights(latest_checkpoint(tmp_path / "broken"), "model")
    train(made, tmp_path / "broken")
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "broken"))


def test_a_linear_probe_on_a_frozen_body(data, recipe, tmp_path):
    write_stripes(data, {"train": 256, "val": 16, "test": 64})
    settings = {"epochs": 15, "batch": 64, "rate": 4e-3, "ema": 0.9, "decay": 0.05, "clip": 1.0, "warmup": 0.1}
    made = recipe("unlabelled.width=64", name="body", **{**ALONE, "train": settings})
    still = recipe("unlabelled.width=64", **{**ALONE, "train": {**settings, "epochs": 1, "rate": 1e-12}})
    report, random = train(made, tmp_path / "body"), train(still, tmp_path / "random")
    assert report["epochs"][-1]["loss"] < report["epochs"][0]["loss"] - 0.5
    assert random["test"]["knn_cell"] < 0.6
    assert report["test"]["knn_cell"] > random["test"]["knn_cell"] + 0.2

    model = {**ALONE["model"], "start": "body"}
    settings = {"epochs": 10, "batch": 64, "rate": 0.03, "freeze": "body", "ema": 0.9}
    probe = train(recipe(name="probe", data=ALONE["data"], model=model, train=settings), tmp_path / "probe")
    assert probe["test"]["cell"] > 0.7
    body, learned = weights(tmp_path / "body"), weights(tmp_path / "probe")
    assert learned.keys() - body.keys() == {"head.weight", "head.bias"}
    assert same(body, {name: learned[name] for name in body})
    with pytest.raises(ArgumentError, match=r"body cannot teach probe.*learned without labels"):
        train(recipe(name="probe", distil={"teachers": ["body"]}), tmp_path / "pupil")


def test_a_run_without_labels_is_loaded_as_features(blood, recipe, tmp_path):
    report = train(recipe(**ALONE), tmp_path / "out")
    bundle = mhex.load(f"run:{tmp_path / 'out'}")
    assert bundle.class_names is None
    assert bundle.card["accuracy"] == report["test"]
    assert bundle.model(torch.zeros(2, 3, 12, 12)).shape == (2, 48)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"augment": None}, "add the section augment"),
        ({"augment": {}}, "cutmix and augment.mixup should be 0"),
        ({"heads": {}}, "heads does not go with unlabelled"),
        ({"distil": {"teachers": ["other"]}}, "distil does not go with unlabelled"),
        ({"ship": {}}, "ship a probe"),
        ({"model": {"source": "torchvision", "architecture": "resnet18"}}, "a network of timm"),
        ({"train": {"freeze": "body"}}, "train.freeze: body does not go"),
        ({"train": {"smoothing": 0.1}}, "train.smoothing does not go with unlabelled"),
        ({"train": {"accumulate": 2}}, "train.accumulate should be 1"),
        ({"train": {"batch": 1}}, "train.batch at least 2"),
        ({"train": {"early_stopping": {"patience": 1}}}, "train.early_stopping does not go with unlabelled"),
        ({"unlabelled": {"method": "dyno"}}, "unlabelled.method should be one of simclr"),
        ({"unlabelled": {"temperature": 0}}, "unlabelled.temperature should be a number above 0"),
        ({"data": {"name": "ag_news", "side": None, "length": 8}}, "unlabelled is for images"),
    ],
)
def test_what_does_not_go_together_is_told(blood, recipe, tmp_path, changes, words):
    with pytest.raises(ArgumentError, match=words):
        train(recipe(**{**ALONE, **changes}), tmp_path / "out")


@pytest.mark.slow
def test_two_processes_compare_all_views_of_a_batch(blood, tmp_path):
    settings = {"batch": 32, "epochs": 8, "ema": 0.9}
    path = write_recipe(tmp_path / "small.yaml", **{**ALONE, "train": settings})
    several = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")
    finish(program(path, "--out", tmp_path / "one", launch=("-m", "accelerate.commands.launch", "--cpu")))
    finish(program(path, "--out", tmp_path / "two", launch=several))
    one, two = (json.loads((tmp_path / name / "report.json").read_text()) for name in ("one", "two"))
    assert (one["processes"], two["processes"]) == (1, 2)
    losses = [row["loss"] for row in one["epochs"]]
    assert [row["loss"] for row in two["epochs"]] == pytest.approx(losses, abs=1e-4)
    assert max(losses) - min(losses) > 0.01  # the curve of something that learns
