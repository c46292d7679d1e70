"""Token F1, comprehensiveness and sufficiency: closed-form values, calls by hand, and shared passes."""

import math
import warnings

import pytest
import torch

from mhex.errors import ArgumentError
from mhex.metrics.case import Case
from mhex.metrics.compactness import Compactness, compactness
from mhex.metrics.comprehensiveness import Comprehensiveness, comprehensiveness
from mhex.metrics.sufficiency import Sufficiency, sufficiency
from mhex.metrics.token_f1 import TokenF1, WordScores, recall_bound, token_f1
from mhex.perturb import PerturbationSweep, SharePasses, Subject, counts
from support.fixtures_metrics import bin4, fix10
from support.tiny_text import TEXTS, ask, bert, scores_of, tokenizer


def near(value, wanted, tolerance=1e-6):
    assert torch.allclose(torch.as_tensor(value).double(), torch.tensor(wanted).double(), atol=tolerance, rtol=0)


def words(scores, rationale, counted=None, ids=None):
    scores = torch.as_tensor(scores).double()
    counted = torch.ones_like(scores, dtype=torch.bool) if counted is None else torch.as_tensor(counted)
    return WordScores(tuple(range(len(scores)) if ids is None else ids), scores, counted, rationale)


# --- token F1 --------------------------------------------------------------------------------------------------------


def test_one_hit_of_two_words_against_three():
    near(token_f1(words([[5.0, 4, 3, 2, 1]], [[0, 2, 3]]), k=(2,)), [[0.4]])


def test_the_right_order():
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
    with pytest.raises(ArgumentError, match="words that people marked"):
        TokenF1().of(case)


# --- comprehensiveness and sufficiency -------------------------------------------------------------------------------


def test_comprehensiveness_and_sufficiency():
    model, x, saliency = bin4()
    result = SharePasses(PerturbationSweep("zero", "pixel", 100), (25, 50))(model, x, saliency)
    near(comprehensiveness(result), [[0.014409, 0.110136]])
    near(sufficiency(result), [[0.057848, 0.006776]])


def test_at_least_one_unit_goes_and_one_is_kept():
    model, x, saliency = bin4()
    few = SharePasses(PerturbationSweep("zero", "pixel", 100), (1, 25))(model, x, saliency)
    for values in (comprehensiveness(few), sufficiency(few)):
        assert values[0, 0] == values[0, 1]


@pytest.mark.parametrize("fixture", [bin4, fix10])
def test_images_read_off_a_sweep(fixture):
    model, x, saliency = fixture()
    passes = SharePasses(PerturbationSweep("zero", "pixel", 100), (1, 5, 10, 20, 50, 80))
    made, read = passes(model, x, saliency), passes.read(passes.sweep(model, x, saliency))
    for name in ("before", "without", "alone"):
        assert torch.allclose(getattr(made, name), getattr(read, name), equal_nan=True)


@pytest.mark.parametrize("units", [*range(1, 130), 196, 785, 1001])
def test_a_sweep_has_every_point(units):
    grid, number = counts(torch.tensor([units]), 100), torch.tensor([units])
    gone, kept = SharePasses(percent=tuple(range(1, 100)))._numbers(grid, number)
    assert all(int(one) in grid[0].tolist() for one in gone[0])
    assert all(units - int(one) in grid[0].tolist() for one in kept[0])
    assert (gone >= 1).all()
    assert (kept >= 1).all()
    assert (gone[0, :49] == kept[0, :49]).all()  # at a half an odd unit is kept, and does not go


def by_hand(name, text, scores, share, alone):
    """Probabilities of a text without the highest words, or with them alone, by editing its ids."""
    encoded = tokenizer()(text)
    ids, places = encoded["input_ids"], encoded.word_ids()
    best = {}
    for n, word in enumerate(places):
        if word is not None:
            best[word] = max(best.get(word, -math.inf), float(scores[n]))
    order = sorted(best, key=lambda word: -best[word])
    number = max(1, len(order) * share // 100)
    top = set(order[:number])
    gone = set(order) - top if alone else top
    if name == "mask_token":
        return ask([tokenizer().mask_token_id if w in gone else i for i, w in zip(ids, places, strict=True)]).softmax(0)
    if name == "pad":
        return ask(ids, [int(w not in gone) for w in places]).softmax(0)
    return ask([i for i, w in zip(ids, places, strict=True) if w not in gone]).softmax(0)


def different(granularity, percent):
    """Passes of all texts, none of them twice: as they are, and with the most or the least important units gone."""
    total = 0
    for text in TEXTS:
        words = [word for word in tokenizer()(text).word_ids() if word is not None]
        units = len(set(words)) if granularity == "word" else len(words)
        kept = {max(1, units * q // 100 if q <= 50 else units - units * (100 - q) // 100) for q in percent}
        total += 1 + len({("first", n) for n in kept} | {("last", units - n) for n in kept if n < units})
    return total


@pytest.mark.parametrize("name", ["drop", "mask_token", "pad"])
def test_shares_of_words_are_what_calls_by_hand_give(name):
    scores = scores_of(TEXTS)
    subject = Subject(bert(), TEXTS, tokenizer=tokenizer())
    comp, suff = Comprehensiveness(reference=name), Sufficiency(reference=name)
    case = Case(subject, scores)
    found = comp.score(*comp.of(case)), suff.score(*suff.of(case))
    assert subject.passes == different("word", (1, 5, 10, 20, 50))
    for n, text in enumerate(TEXTS):
        before = ask(tokenizer()(text)["input_ids"]).softmax(0)
        top = int(before.argmax())
        for values, alone in zip(found, (False, True), strict=True):
            drops = [before[top] - by_hand(name, text, scores[n], q, alone)[top] for q in (1, 5, 10, 20, 50)]
            assert float(values[n]) == pytest.approx(float(torch.stack(drops).mean()), abs=1e-9)


@pytest.mark.parametrize("granularity", ["word", "token"])
def test_a_sweep_that_is_there_costs_no_pass(granularity):
    options = {"granularity": granularity, "percent": (1, 5, 10, 20, 50, 77)}
    metrics = [Comprehensiveness(**options), Sufficiency(**options)]
    plain, swept = (Case(Subject(bert(), TEXTS, tokenizer=tokenizer()), scores_of(TEXTS).round()) for _ in range(2))
    swept.sweep(PerturbationSweep("drop", granularity, 200))
    passes = swept.subject.passes
    for metric in metrics:
        assert torch.allclose(metric.score(*metric.of(plain)), metric.score(*metric.of(swept)), atol=1e-9)
    assert swept.subject.passes == passes
    assert plain.subject.passes == different(granularity, options["percent"])
    Comprehensiveness("mask_token").of(swept)
    assert swept.subject.passes == passes + different("word", (1, 5, 10, 20, 50)) - 3  # the clean one is there


def test_shares_do_not_depend_on_batch_or_chunk():
    tied = scores_of(TEXTS).round()
    for metric in (Comprehensiveness(), Sufficiency()):
        together, chunked = (
            metric.score(*metric.of(Case(Subject(bert(), TEXTS, tokenizer=tokenizer(), batch_size=size), tied)))
            for size in (None, 2)
        )
        assert torch.allclose(together, chunked, atol=1e-9)
        for n, text in enumerate(TEXTS):
            subject = Subject(bert(), [text], ids=[n], tokenizer=tokenizer())
            alone = metric.score(*metric.of(Case(subject, tied[n : n + 1, : subject.main.shape[1]])))
            assert torch.allclose(alone[0], together[n], atol=1e-9)


def test_texts_without_a_word_do_not_count():
    ids = {
        "input_ids": torch.tensor([[2, 16, 17, 3], [2, 3, 0, 0]]),
        "attention_mask": torch.tensor([[1] * 4, [1, 1, 0, 0]]),
    }
    for metric in (Comprehensiveness(granularity="token"), Sufficiency(granularity="token")):
        subject = Subject(bert(), ids, tokenizer=tokenizer())
        metric.update(*metric.of(Case(subject, torch.randn(2, 4).double())))
        found = metric.compute()
        assert (found["n"], found["n_skipped"]) == (1, 1)
        assert math.isfinite(found["value"])
        swept = Case(subject, torch.randn(2, 4).double())
        swept.sweep(PerturbationSweep("drop", "token", 100))
        assert metric.score(*metric.of(swept)).isnan().tolist() == [False, True]


def test_scored_by_the_label():
    subject = Subject(bert(), TEXTS, label=[0, 1, 2], tokenizer=tokenizer())
    metric = Comprehensiveness(scored="label", percent=(50,))
    found = metric.score(*metric.of(Case(subject, scores_of(TEXTS))))
    before, after = ask(tokenizer()(TEXTS[0])["input_ids"]), by_hand("drop", TEXTS[0], scores_of(TEXTS)[0], 50, False)
    near(found[0], float(before.softmax(0)[0] - after[0]))
    with pytest.raises(ArgumentError, match="give label="):
        metric.score(*metric.of(Case(Subject(bert(), TEXTS, tokenizer=tokenizer()), scores_of(TEXTS))))


def test_shares_refuse():
    with pytest.raises(ArgumentError, match="whole numbers from 1 to 99"):
        SharePasses(percent=(0, 5))
    with pytest.raises(ArgumentError, match="a sweep of 100 steps"):
        SharePasses(PerturbationSweep("drop", "word", 20))
    with pytest.raises(ArgumentError, match="reference to be one of"):
        Comprehensiveness(reference="delete").of(Case(Subject(bert(), TEXTS, tokenizer=tokenizer()), scores_of(TEXTS)))


def test_directions():
    assert Comprehensiveness().higher_is_better is True
    assert Sufficiency().higher_is_better is False


def test_compactness_of_texts_leaves_special_tokens_out():
    scores = scores_of(TEXTS)
    metric = Compactness()
    found = metric.score(*metric.of(Case(Subject(bert(), TEXTS, tokenizer=tokenizer()), scores)))
    for n, text in enumerate(TEXTS):
        length = len(tokenizer()(text)["input_ids"])
        near(found[n, 0], float(compactness(scores[n : n + 1, 1 : length - 1])))
