"""Token F1: closed-form values, and texts that are cut."""

import warnings

import pytest
import torch

from mhex.errors import ArgumentError
from mhex.metrics.case import Case
from mhex.metrics.token_f1 import TokenF1, WordScores, recall_bound, token_f1
from mhex.perturb import Subject
from support.tiny_bert import TEXTS, bert, scores_of, tokenizer


def near(value, wanted, tolerance=1e-6):
    assert torch.allclose(torch.as_tensor(value).double(), torch.tensor(wanted).double(), atol=tolerance, rtol=0)


def words(scores, rationale, counted=None, ids=None):
    scores = torch.as_tensor(scores).double()
    counted = torch.ones_like(scores, dtype=torch.bool) if counted is None else torch.as_tensor(counted)
    return WordScores(tuple(range(len(scores)) if ids is None else ids), scores, counted, rationale)


def test_one_hit_of_two_words_against_three():
    near(token_f1(words([[5.0, 4, 3, 2, 1]], [[0, 2, 3]]), k=(2,)), [[0.4]])


def test_f1_of_words_in_the_right_order():
    scores = torch.arange(200.0, 0, -1)[None]
    found = token_f1(words(scores, [list(range(60))]))
    near(found, [[0.2857, 0.5, 0.6667, 0.8, 0.9091, 1.0, 0.9231, 0.8571]], 5e-5)
    for m in (3, 25):
        wanted = [[2 * min(k, m) / (k + m) for k in (1, 3, 10, 40)]]
        near(token_f1(words(scores, [list(range(m))]), k=(1, 3, 10, 40)), wanted)


def test_no_hit_is_zero():
    near(token_f1(words([[3.0, 2, 1]], [[2]]), k=(1, 2)), [[0.0, 0.0]])


def test_more_words_than_there_are():
    near(token_f1(words([[3.0, 2, 1]], [[0, 1]]), k=(50,)), [[0.8]])  # precision 2 / 3, recall 1


def test_marked_words_that_were_cut_off_bound_the_recall():
    cut = words([[3.0, 2, 1, 0]], [[0, 1, 7, 9]], [[True, True, True, False]])
    near(token_f1(cut, k=(2,)), [[2 * 1.0 * 0.5 / 1.5]])
    near(recall_bound(cut), [0.5])
    assert recall_bound(words([[1.0]], [[]])).isnan().all()


def test_marks_are_a_set():
    near(token_f1(words([[5.0, 4, 3]], [[0, 0, 2, 2]]), k=(1,)), [[2 / 3]])


def test_clamped_scores_tie():
    scores = [[1.0, -1, -2, -3, -4, -5, -6, -7]] * 200
    found = token_f1(words(scores, [[0, 1]] * 200), k=(2,), mode="clamp")
    assert float(found.mean()) == pytest.approx(0.5 + 0.5 / 7, abs=0.05)  # the second word is any of seven
    assert found.unique().tolist() == [0.5, 1.0]
    near(token_f1(words(scores[:1], [[0, 1]]), k=(2,)), [[1.0]])
    assert TokenF1("che").protocol.mode == "clamp"


def test_token_f1_of_texts():
    subject = Subject(bert(), TEXTS, tokenizer=tokenizer())
    saliency = torch.zeros(3, subject.main.shape[1]).double()
    saliency[0, 4] = 2.0  # the second piece of `seaside`, word 2
    saliency[0, 5] = 1.0  # film
    saliency[:, 0] = 9.0  # special tokens have no say
    saliency[1] = torch.tensor([9.0, 1.0, 2.0, 9.0] + [9.0] * 18)
    metric = TokenF1(k=(1, 2), resamples=20)
    metric.update(*metric.of(Case(subject, saliency, rationale=[[2, 3], [0], []])))
    found = metric.compute()
    assert metric.outputs == ("value", "f1@1", "f1@2", "recall_bound")
    assert (found["n"], found["n_skipped"]) == (2, 1)  # nothing is marked in the third
    assert found["all"]["f1@1"]["value"] == pytest.approx((2 / 3 + 0) / 2)
    assert found["all"]["f1@2"]["value"] == pytest.approx((1 + 2 / 3) / 2)
    assert found["value"] == pytest.approx((2 / 3 + 1 + 2 / 3) / 4)


def test_texts_that_are_cut():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        subject = Subject(bert(12), TEXTS, tokenizer=tokenizer())
    metric = TokenF1(k=(3,))
    rows = metric.score(*metric.of(Case(subject, scores_of(TEXTS)[:, :12], rationale=[[1], [1], [0, 16, 17]])))
    near(rows[:, 1], [1.0, 1.0, 1 / 3])


def test_token_f1_does_not_depend_on_the_batch():
    rationale = [[1, 3], [0], [4, 5, 9]]
    flat = scores_of(TEXTS).round()
    metric = TokenF1("che", k=(1, 3))
    together = metric.score(*metric.of(Case(Subject(bert(), TEXTS, tokenizer=tokenizer()), flat, rationale=rationale)))
    for n, text in enumerate(TEXTS):
        subject = Subject(bert(), [text], ids=[n], tokenizer=tokenizer())
        alone = Case(subject, flat[n : n + 1, : subject.main.shape[1]], rationale=rationale[n : n + 1])
        assert torch.equal(metric.score(*metric.of(alone))[0], together[n])


def test_token_f1_refuses():
    with pytest.raises(ArgumentError, match="k to be numbers of words"):
        TokenF1(k=(0,))
    with pytest.raises(ArgumentError, match="'signed' or 'clamp'"):
        token_f1(words([[1.0]], [[0]]), mode="abs")
    with pytest.raises(ArgumentError, match="marked words of 1 texts, but got those of 2"):
        token_f1(words([[1.0]], [[0], [0]]))
    with pytest.raises(ArgumentError, match="from 0 on"):
        token_f1(words([[1.0]], [[-1]]))
    case = Case(Subject(bert(), TEXTS, tokenizer=tokenizer()), scores_of(TEXTS))
    with pytest.raises(ArgumentError, match="words that people marked as a rationale"):
        TokenF1().of(case)
