"""Comprehensiveness and sufficiency: closed-form values, calls by hand, and shared passes."""

import math

import pytest
import torch

from mhex.errors import ArgumentError
from mhex.metrics.case import Case
from mhex.metrics.comprehensiveness import Comprehensiveness, ShareProtocol, comprehensiveness
from mhex.metrics.sufficiency import Sufficiency, sufficiency
from mhex.perturb import PerturbationSweep, Subject, counts
from support.additive_models import Additive, bin4, fix10
from support.tiny_bert import TEXTS, ask, bert, scores_of, tokenizer


def near(value, wanted, tolerance=1e-6):
    assert torch.allclose(torch.as_tensor(value).double(), torch.tensor(wanted).double(), atol=tolerance, rtol=0)


class PixelShares(ShareProtocol):
    """Shares of pixels, on models whose answers are known in closed form; the metrics are of words alone."""

    def __init__(self, percent):
        for name, value in vars(ShareProtocol()).items():
            object.__setattr__(self, name, value)
        for name, value in (("reference", "zero"), ("granularity", "pixel"), ("percent", percent)):
            object.__setattr__(self, name, value)


def test_comprehensiveness_and_sufficiency():
    model, x, saliency = bin4()
    result = PixelShares((25, 50))(model, x, saliency)
    near(comprehensiveness(result), [[0.014409, 0.110136]])
    near(sufficiency(result), [[0.057848, 0.006776]])


def test_at_least_one_unit_goes_and_one_is_kept():
    model, x, saliency = bin4()
    few = PixelShares((1, 25))(model, x, saliency)
    for values in (comprehensiveness(few), sufficiency(few)):
        assert values[0, 0] == values[0, 1]


def after_a_sweep(passes, model, x, saliency):
    """The same shares of a subject whose sweep had all of their passes."""
    subject = Subject(model, x)
    passes.sweep(subject, None, saliency)
    made = subject.passes
    result = passes(subject, None, saliency)
    assert subject.passes == made
    return result


@pytest.mark.parametrize("fixture", [bin4, fix10])
def test_images_read_off_a_sweep(fixture):
    model, x, saliency = fixture()
    passes = PixelShares((1, 5, 10, 20, 50, 80))
    made, read = passes(model, x, saliency), after_a_sweep(passes, model, x, saliency)
    for name in ("before", "without", "alone"):
        assert torch.allclose(getattr(made, name), getattr(read, name), equal_nan=True)


@pytest.mark.parametrize("units", [*range(1, 130), 196, 785, 1001])
def test_a_sweep_has_every_point_but_the_half_of_an_odd_number(units):
    grid, number = counts(torch.tensor([units]), 100), torch.tensor([units])
    share = ShareProtocol(percent=tuple(range(1, 100))).numbers(grid, number)[0]
    wanted = [max(1, units * q // 100 if q <= 50 else units - units * (100 - q) // 100) for q in range(1, 100)]
    assert share.tolist() == wanted
    assert all(one in grid[0].tolist() for one in wanted)
    lacking = [q for q, one in enumerate(wanted, 1) if units - one not in grid[0].tolist()]
    assert lacking == ([50] if units > 50 and units % 2 else [])


def five():
    """Five units worth 5, 4, 3, 2 and 1; with the sum n left, the probability is 2^n / (1 + 2^n)."""
    a = torch.arange(5.0, 0, -1)[None]
    return Additive(a, math.log(2), second=True), torch.ones(1, 1, 1, 5).double(), a.view(1, 1, 5).double()


def test_the_half_of_five_units_is_two_gone_or_kept():
    passes = PixelShares((50,))
    model, x, saliency = five()
    for result in (passes(model, x, saliency), after_a_sweep(passes, model, x, saliency)):
        near(comprehensiveness(result), [[2**15 / (1 + 2**15) - 2**6 / (1 + 2**6)]])
        near(sufficiency(result), [[2**15 / (1 + 2**15) - 2**9 / (1 + 2**9)]])


def test_a_point_that_a_sweep_lacks_is_made():
    """Of 51 tokens, 25 kept alone: a sweep of 1 % goes from 25 removed to 27."""
    ids = torch.arange(53)[None] % 10 + 10
    ids[:, 0], ids[:, -1] = 2, 3
    scores = torch.randn(1, 53, generator=torch.Generator().manual_seed(0)).double()
    model = bert(60)
    subject = Subject(model, {"input_ids": ids}, tokenizer=tokenizer())
    case, metric = Case(subject, scores), Sufficiency(granularity="token", percent=(50,))
    case.sweep(metric.protocol.sweep)
    passes = subject.passes
    found = metric.score(*metric.of(case))
    assert subject.passes == passes + 1
    stay = [0, *sorted((scores[0, 1:-1].argsort(descending=True)[:25] + 1).tolist()), 52]
    before, after = (model(input_ids=one).logits[0].softmax(0) for one in (ids, ids[:, stay]))
    near(found[0], float(before.max() - after[before.argmax()]))


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
        ShareProtocol(percent=(0, 5))
    with pytest.raises(ArgumentError, match="reference to be one of"):
        Comprehensiveness(reference="delete").of(Case(Subject(bert(), TEXTS, tokenizer=tokenizer()), scores_of(TEXTS)))


def test_higher_comprehensiveness_and_lower_sufficiency_are_better():
    assert Comprehensiveness().higher_is_better is True
    assert Sufficiency().higher_is_better is False
