"""Losses against formulas written out by hand."""

import math

import pytest
import torch

from mhex.errors import ArgumentError
from mhex.lab.train.objective import Objective, distillation, smoothed_targets


def test_distillation_by_hand():
    student, teacher, temperature = torch.tensor([[1.0, -1.0], [0.5, 2.0]]), torch.tensor([[3.0, 1.0], [0.0, 0.0]]), 2.0
    expected = 0.0
    for s, t in zip(student.tolist(), teacher.tolist(), strict=True):
        soft_s = [math.exp(v / temperature) / sum(math.exp(w / temperature) for w in s) for v in s]
        soft_t = [math.exp(v / temperature) / sum(math.exp(w / temperature) for w in t) for v in t]
        expected += sum(q * math.log(q / p) for q, p in zip(soft_t, soft_s, strict=True))
    expected *= temperature**2 / 2
    assert distillation(student, teacher, temperature).item() == pytest.approx(expected, rel=1e-5)
    assert expected > 0.1


def test_distillation_is_zero_for_equal_answers_up_to_a_shift():
    logits = torch.randn(4, 5)
    assert abs(distillation(logits, logits + 3, 1.0).item()) < 1e-6
    with pytest.raises(ArgumentError, match="positive"):
        distillation(logits, logits, 0.0)


def test_the_loss_of_smoothed_labels_is_the_usual_one():
    logits, labels = torch.randn(6, 4), torch.tensor([0, 1, 2, 3, 1, 1])
    usual = torch.nn.functional.cross_entropy(logits, labels, label_smoothing=0.2)
    loss = Objective(torch.nn.Identity())(logits, smoothed_targets(4, 0.2)[labels])
    torch.testing.assert_close(loss, usual)


def test_smoothing_within_groups():
    table = smoothed_targets(4, 0.3, [0, 1, 0, 1])
    torch.testing.assert_close(table.sum(dim=1), torch.ones(4))
    torch.testing.assert_close(table[0], torch.tensor([0.85, 0.0, 0.15, 0.0]))
    with pytest.raises(ArgumentError, match="each of the 4 classes"):
        smoothed_targets(4, 0.3, [0, 1])
    with pytest.raises(ArgumentError, match=r"\[0, 1\)"):
        smoothed_targets(4, 1.0)
