"""Targets: from what users write to classes per sample."""

import pytest
import torch

from mhex.capture import Outcome
from mhex.concept import Concept
from mhex.errors import ArgumentError, ArgumentTypeError
from mhex.targets import probabilities, resolve_target

LOGITS = torch.tensor([[0.0, 3.0, 1.0], [2.0, -1.0, 1.0]])
NAMES = ["Persian cat", "beagle", "pug"]


@pytest.mark.parametrize(
    ("target", "index", "several"),
    [
        (None, [[1], [0]], False),
        (2, [[2], [2]], False),
        ("pug", [[2], [2]], False),
        ("PERSIAN CAT", [[0], [0]], False),
        (torch.tensor([2, 1]), [[2], [1]], False),
        (torch.tensor(1), [[1], [1]], False),
        (torch.tensor([[2, 1], [0, 0]]), [[2, 1], [0, 0]], True),
        ([0, "beagle"], [[0, 1], [0, 1]], True),
        ((2,), [[2], [2]], True),
        ("top2", [[1, 2], [0, 2]], True),
    ],
)
def test_classes_of_each_sample(target, index, several):
    resolved = resolve_target(target, LOGITS, NAMES)
    assert resolved.index.tolist() == index
    assert resolved.several is several
    for k in range(resolved.count):
        expected = [LOGITS[n, index[n][k]].item() for n in range(2)]
        assert resolved.score(Outcome(LOGITS), k).tolist() == expected


def test_a_class_whose_name_is_top2_is_a_class():
    resolved = resolve_target("top2", LOGITS, ["dress", "top2", "hat"])
    assert resolved.index.tolist() == [[1], [1]]
    assert not resolved.several


def test_a_function_is_a_target():
    resolved = resolve_target(lambda logits: logits[:, 1] - logits[:, 0], LOGITS)
    assert resolved.score(Outcome(LOGITS), 0).tolist() == [3.0, -3.0]
    with pytest.raises(ArgumentError, match=r"one score per sample, \(2,\), but got \(2, 3\)"):
        resolve_target(lambda logits: logits, LOGITS).score(Outcome(LOGITS), 0)


def test_single_output_is_two_classes():
    logits = torch.tensor([[2.0], [-1.0]])
    assert resolve_target(None, logits).index.tolist() == [[1], [0]]
    assert resolve_target(0, logits).score(Outcome(logits), 0).tolist() == [-2.0, 1.0]
    assert resolve_target(1, logits).score(Outcome(logits), 0).tolist() == [2.0, -1.0]
    torch.testing.assert_close(probabilities(logits)[:, 1], torch.sigmoid(logits[:, 0]))
    with pytest.raises(ArgumentError, match="from 0 to 1"):
        resolve_target(2, logits)


@pytest.mark.parametrize(
    ("target", "error", "sentence"),
    [
        (3, ArgumentError, "from 0 to 2, but got target 3"),
        (-1, ArgumentError, "from 0 to 2"),
        (True, ArgumentError, "from 0 to 2"),
        ([0, 7], ArgumentError, "from 0 to 2, but got target 7"),
        ([], ArgumentError, "at least one class"),
        (torch.tensor([0, 1, 2]), ArgumentError, r"shape \(2,\)"),
        (torch.tensor([0, 5]), ArgumentError, "holds 5"),
        (torch.tensor([0.0, 1.0]), ArgumentTypeError, "whole numbers"),
        ("beegle", ArgumentError, "Did you mean 'beagle'"),
        ("top4", ArgumentError, "'top1' to 'top3'"),
        ("top0", ArgumentError, "'top1' to 'top3'"),
        (1.5, ArgumentTypeError, "class number"),
        ({"a": 1}, ArgumentTypeError, "but got dict"),
    ],
)
def test_wrong_targets_get_a_sentence(target, error, sentence):
    with pytest.raises(error, match=sentence):
        resolve_target(target, LOGITS, NAMES)


def test_names_need_names():
    with pytest.raises(ArgumentError, match="no class names"):
        resolve_target("pug", LOGITS)


def test_half_precision_scores_are_float32():
    assert resolve_target(0, LOGITS.bfloat16()).score(Outcome(LOGITS.bfloat16()), 0).dtype == torch.float32


@pytest.mark.parametrize(
    ("target", "index", "several"),
    [(None, [0, 1, 2], True), (2, [2], False), ("pug", [2], False), ([1, "pug"], [1, 2], True)],
)
def test_outputs_of_a_regression(target, index, several):
    resolved = resolve_target(target, LOGITS, NAMES, "regression")
    assert resolved.index.tolist() == [index, index]
    assert resolved.several is several
    assert resolved.scores(Outcome(LOGITS)).equal(LOGITS[:, index])
    assert resolved.shares(Outcome(LOGITS)).equal(LOGITS[:, index]), "outputs have no probability"


def test_the_one_output_of_a_regression_keeps_its_sign():
    values = torch.tensor([[2.0], [-1.0]])
    resolved = resolve_target(None, values, task="regression")
    assert (resolved.index.tolist(), resolved.several) == ([[0], [0]], False)
    assert resolved.scores(Outcome(values)).equal(values)
    assert resolved.names == ()


@pytest.mark.parametrize(
    ("target", "outputs", "sentence"),
    [
        (None, 17, "because the model has 17 outputs"),
        ("top2", 3, "rank no classes"),
        ("top1", 1, "rank no classes"),
        (1, 1, "from 0 to 0"),
        (torch.tensor([0, 3]), 3, "holds 3"),
    ],
)
def test_wrong_outputs_get_a_sentence(target, outputs, sentence):
    with pytest.raises(ArgumentError, match=sentence):
        resolve_target(target, torch.zeros(2, outputs), task="regression")


def test_scores_of_copies_and_variants():
    """Several copies of a batch, one after the other, and variants of one sample alone."""
    resolved = resolve_target(torch.tensor([2, 1]), LOGITS)
    copies = LOGITS.repeat(3, 1)
    assert resolved.scores(Outcome(copies))[:, 0].tolist() == [1.0, -1.0] * 3
    variants = torch.arange(12.0).reshape(4, 3)
    assert resolved.scores(Outcome(variants), sample=1)[:, 0].tolist() == [1.0, 4.0, 7.0, 10.0]
    shares = resolved.shares(Outcome(variants), sample=0)
    torch.testing.assert_close(shares[:, 0], variants.softmax(1)[:, 2])


def test_concepts_are_resolved_to_their_scores():
    latent = torch.tensor([[1.0, 2.0], [0.0, 1.0]])
    fur, sky = Concept(torch.tensor([1.0, 0.0]), "fur"), Concept(torch.tensor([1.0, 1.0]), "sky")
    one, both = resolve_target(fur, LOGITS), resolve_target([fur, sky], LOGITS)
    assert (one.index, one.several, one.names, one.count) == (None, False, ("fur",), 1)
    assert (both.index, both.several, both.names, both.count) == (None, True, ("fur", "sky"), 2)
    assert both.scores(Outcome(LOGITS, latent)).tolist() == [[1.0, 3.0], [0.0, 1.0]]
    assert both.shares(Outcome(LOGITS, latent)).tolist() == [[1.0, 3.0], [0.0, 1.0]]
    for mixed in ([fur, 1], ["pug", fur]):
        with pytest.raises(ArgumentTypeError, match="concepts alone, or classes alone"):
            resolve_target(mixed, LOGITS, NAMES)


@pytest.mark.parametrize("kind", ["classes", "per sample", "one logit", "function", "concept"])
def test_rows_of_several_samples(kind):
    """Variants of any samples in one pass score as those of each sample alone."""
    logits = torch.randn(5, 1 if kind == "one logit" else 4, dtype=torch.float64)
    outcome = Outcome(logits, torch.randn(5, 3, dtype=torch.float64))
    target = {
        "classes": [3, 1],
        "per sample": torch.tensor([2, 0, 1]),
        "one logit": torch.tensor([1, 0, 1]),
        "function": lambda rows: rows[:, 0] * torch.arange(1.0, 4.0, dtype=torch.float64),
        "concept": Concept(torch.tensor([1.0, 2.0, -1.0], dtype=torch.float64)),
    }[kind]
    resolved = resolve_target(target, torch.zeros(3, logits.shape[1], dtype=torch.float64))
    samples = torch.tensor([2, 0, 0, 1, 2])
    for read in (resolved.scores, resolved.shares):
        together = read(outcome, samples)
        for row, n in enumerate(samples.tolist()):
            one = Outcome(outcome.logits[row : row + 1], outcome.latent[row : row + 1])
            assert torch.equal(together[row : row + 1], read(one, n))
