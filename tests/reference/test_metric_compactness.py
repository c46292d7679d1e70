"""Compactness: closed-form values, and units and maps that do not count."""

import math

import pytest
import torch
import torch.nn.functional as F

from mhex.errors import ArgumentError
from mhex.metrics.case import Case
from mhex.metrics.compactness import Compactness, compactness, entropy, gini
from mhex.perturb import Subject
from support.maps_and_masks import computed, near, random_case
from support.tiny_bert import TEXTS, bert, scores_of, tokenizer


def test_compactness():
    s = torch.tensor([[10, 0.4, -5, 0, 1]]).double()
    near(compactness(s, mode="paper"), [0.6])
    near(compactness(s, mode="code"), [0.4])
    near(compactness(s), [0.4])
    near(compactness(torch.tensor([[10, 0.5, -0.5, 0.0]]).double()), [0.75])  # at most, not below


def test_compactness_of_zeros():
    zeros = torch.zeros(1, 4)
    near(compactness(zeros, mode="paper"), [1.0])
    near(compactness(zeros, mode="code"), [0.0])
    assert compactness(zeros).isnan().all()


def test_compactness_depends_on_resolution():
    one_hot = torch.zeros(1, 1, 14, 14).double()
    one_hot[0, 0, 6, 7] = 1
    values = [
        one_hot,
        F.interpolate(one_hot, scale_factor=16),
        F.interpolate(one_hot, scale_factor=16, mode="bilinear"),
    ]
    near([float(compactness(value)) for value in values[:2]], [195 / 196] * 2)
    assert float(compactness(values[2])) == pytest.approx(0.9835, abs=5e-5)
    assert round(195 / 196, 4) == 0.9949


def test_gini_and_entropy():
    s = torch.tensor([[1.0, 1, 1, 1], [0, 0, -3, 0], [1, 2, 3, 4], [0, 0, 0, 0]]).double()
    near(gini(s), [0.0, 0.75, 0.25, 0.0])
    p = torch.tensor([0.1, 0.2, 0.3, 0.4])
    near(entropy(s), [1.0, 0.0, float(-(p * p.log()).sum()) / math.log(4), 1.0])


def test_entropy_is_a_share_of_the_most_that_a_grid_allows():
    for side in (2, 7, 14):
        near(entropy(torch.ones(1, side, side)), [1.0])
        near(entropy(torch.eye(side * side)[:1].view(1, side, side)), [0.0])
    half = torch.tensor([[3.0, 3, 0, 0, 5, 0]])
    near(entropy(half, counted=torch.tensor([[True] * 4 + [False] * 2])), [0.5])  # log 2 / log 4
    near(entropy(torch.tensor([[2.0]])), [1.0])


def test_only_counted_units_count():
    s = torch.tensor([[1.0, 2, 3, 4, 99]]).double()
    counted = torch.tensor([[True, True, True, True, False]])
    for of in (compactness, gini, entropy):
        near(of(s, counted=counted), of(s[:, :4]).tolist())
    beside = torch.tensor([[10.0, 1.0, 999.0]])
    for mode in ("abs", "paper", "code"):
        near(compactness(beside, mode=mode, counted=torch.tensor([[True, True, False]])), [0.0])


def test_compactness_counts_maps_of_zeros():
    case = random_case()
    case.saliency[2] = 0
    found = computed(Compactness(), case)
    assert (found["n"], found["n_skipped"]) == (5, 1)
    rest = case.saliency[[0, 1, 3, 4, 5]]
    assert found["value"] == pytest.approx(float(compactness(rest).mean()))
    assert found["all"]["gini"]["value"] == pytest.approx(float(gini(rest).mean()))
    assert computed(Compactness("cdam"), case)["n"] == 6


def test_compactness_refuses():
    with pytest.raises(ArgumentError, match="mode to be one of 'abs', 'paper', 'code'"):
        Compactness(mode="signed")
    with pytest.raises(ArgumentError, match="finite maps"):
        compactness(torch.tensor([[math.nan, 1.0]]))


def test_compactness_of_texts_leaves_special_tokens_out():
    scores = scores_of(TEXTS)
    metric = Compactness()
    found = metric.score(*metric.of(Case(Subject(bert(), TEXTS, tokenizer=tokenizer()), scores)))
    for n, text in enumerate(TEXTS):
        length = len(tokenizer()(text)["input_ids"])
        near(found[n, 0], float(compactness(scores[n : n + 1, 1 : length - 1])))
