"""The loop, the views and the measures."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from mhex.errors import ArgumentError
from mhex.train.augment import Augment
from mhex.train.evaluate import accuracy, predict
from mhex.train.loop import Ensemble, Schedule, batches, fit, learning_rate
from mhex.train.view import View, squash

CALM = Augment(canvas=8, scale=(0.8, 1), cutmix=0.2, mixup=0.0, light=0.1, cast=0.0, grey=0.0, colour=0.1)


def easy_photos(count=64):
    """Dark photos are class 0, bright ones class 1."""
    labels = torch.arange(count) % 2
    images = torch.randint(0, 60, (count, 3, 8, 8)) + labels.view(-1, 1, 1, 1) * 150
    return images.to(torch.uint8), labels


def small_net():
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)
    )


def run(seed=0, **kwargs):
    torch.manual_seed(5)
    images, labels = easy_photos()
    schedule = Schedule(epochs=12, batch=16, optimizer="adamw", rate=0.03, decay=0.0, ema=0.9)
    model = fit(small_net(), images, labels, 2, schedule, CALM, View(8), seed=seed, **kwargs)
    return model, accuracy(predict(model, images, View(8)), labels, [0, 1])


def test_loop_learns_and_reports():
    lines = []
    model, shares = run(report=lines.append)
    assert shares["class"] > 0.95
    assert not model.training
    assert lines[0].startswith("step 1 of 48")
    assert lines[-1].startswith("step 48 of 48")


def test_loop_repeats_with_its_seed():
    first, again, other = (run(seed)[0].state_dict()["5.weight"] for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_teacher_decides_against_the_labels():
    class Contrary(nn.Module):
        def forward(self, pixels):
            bright = pixels.mean(dim=(1, 2, 3)) - 0.4
            return torch.stack([bright, -bright], dim=1) * 50

    _, alone = run()
    images, labels = easy_photos()
    torch.manual_seed(5)
    schedule = Schedule(epochs=12, batch=16, optimizer="adamw", rate=0.03, decay=0.0, ema=0.9, distil=0.95)
    taught = fit(small_net(), images, labels, 2, schedule, CALM, View(8), seed=0, teacher=Contrary())
    assert accuracy(predict(taught, images, View(8)), labels, [0, 1])["class"] < 0.05 < alone["class"]


def test_loop_refuses_photos_without_labels():
    images, labels = easy_photos()
    with pytest.raises(ArgumentError, match="64 photos with 3 labels"):
        fit(small_net(), images, labels[:3], 2, Schedule(1, 8, "sgd", 0.1, 0), CALM, View(8), seed=0)


def test_rate_rises_and_falls():
    rates = [learning_rate(step, 100, 0.1) for step in range(100)]
    assert rates[0] == pytest.approx(0.1)
    assert rates[9] == pytest.approx(1.0)
    assert rates[55] == pytest.approx(0.5)
    assert 0 <= rates[99] < 0.001


def test_batches_pass_over_all_photos():
    rows = torch.cat(list(batches(10, 4, 5, torch.Generator().manual_seed(0))))
    assert sorted(rows[:10].tolist()) == sorted(rows[10:].tolist()) == list(range(10))
    assert rows[:10].tolist() != rows[10:].tolist()


def test_small_collections_fill_a_larger_batch():
    assert [len(rows) for rows in batches(3, 8, 2, torch.Generator().manual_seed(0))] == [8, 8]


def test_ensemble_averages_logits_through_own_views():
    class Sides(nn.Module):
        def forward(self, inputs):
            return torch.full((len(inputs), 2), float(inputs.shape[-1]))

    answer = Ensemble([Sides(), Sides()], [View(8), View(12)])(torch.rand(3, 3, 16, 16))
    assert torch.equal(answer, torch.full((3, 2), 10.0))
    with pytest.raises(ArgumentError, match="needs a view"):
        Ensemble([Sides()], [])


def test_view_agrees_with_pil():
    photo = Image.fromarray((np.random.default_rng(0).random((40, 40, 3)) * 255).astype(np.uint8))
    ours = squash(torch.from_numpy(np.asarray(photo).copy()).permute(2, 0, 1)[None] / 255, 24)[0]
    theirs = (
        torch.from_numpy(np.asarray(photo.resize((24, 24), Image.Resampling.BICUBIC)).copy()).permute(2, 0, 1) / 255
    )
    assert (ours - theirs).abs().max() < 1.5 / 255


def test_view_normalises_bytes_and_shares_alike():
    view = View(4, mean=(0.5, 0.25, 0.0), std=(0.5, 1.0, 2.0))
    white = torch.full((1, 3, 4, 4), 255, dtype=torch.uint8)
    torch.testing.assert_close(view(white)[0, :, 0, 0], torch.tensor([1.0, 0.75, 0.5]))
    torch.testing.assert_close(view(white), view(torch.ones(1, 3, 4, 4)))


def test_group_accuracy_sums_probabilities():
    # Class 0 alone is the likeliest, yet classes 1 and 2 of the other group outweigh it together.
    probabilities = torch.tensor([[0.4, 0.3, 0.3], [0.4, 0.3, 0.3]])
    assert accuracy(probabilities, torch.tensor([1, 0]), [0, 1, 1]) == {"class": 0.5, "group": 0.5}
    assert accuracy(probabilities, torch.tensor([1, 2]), [0, 1, 1]) == {"class": 0.0, "group": 1.0}
    with pytest.raises(ArgumentError, match="shape"):
        accuracy(probabilities, torch.tensor([1]), [0, 1, 1])
