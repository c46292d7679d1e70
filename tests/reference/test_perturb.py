"""Ranks, counts, references and areas: what every sweep stands on."""

import math

import pytest
import torch
from scipy.ndimage import gaussian_filter

from mhex.errors import ArgumentError
from mhex.metrics.case import Case
from mhex.metrics.insertion import Insertion
from mhex.metrics.registry import get_metric
from mhex.perturb import PerturbationSweep, Subject, area, counts, gaussian_blur, ranks, reference
from support.additive_models import Additive, bin4
from support.tiny_bert import TEXTS, ask, bert, scores_of, tokenizer


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# --- ranks -----------------------------------------------------------------------------------------------------------


def test_ranks_of_different_scores():
    assert ranks(torch.tensor([[1.0, 4.0, 2.0, 3.0]]), [0]).tolist() == [[3, 0, 2, 1]]


@pytest.mark.parametrize("tie", ["random", "stable"])
def test_no_unit_of_a_one_hot_map_is_among_the_first_and_the_last(tie):
    scores = torch.zeros(1, 16)
    scores[0, 5] = 1
    rank = ranks(scores, [3], tie=tie)[0]
    assert sorted(rank.tolist()) == list(range(16))
    assert rank[5] == 0
    assert len({*(rank < 4).nonzero()[:, 0].tolist(), *(rank >= 12).nonzero()[:, 0].tolist()}) == 8


def test_ties_are_in_the_order_given_or_random():
    equal = torch.zeros(1, 16)
    assert ranks(equal, [0], tie="stable").tolist() == [list(range(16))]
    drawn = [tuple(ranks(equal, [i], seed=seed)[0].tolist()) for i in range(4) for seed in range(4)]
    assert len(set(drawn)) == 16
    assert tuple(ranks(equal, [0])[0].tolist()) == drawn[0]


def test_ranks_do_not_depend_on_the_batch():
    scores = randn(5, 12).round()
    together = ranks(scores, [7, 3, 9, 1, 0], seed=2)
    for row, number in enumerate([7, 3, 9, 1, 0]):
        assert torch.equal(ranks(scores[row : row + 1], [number], seed=2)[0], together[row])


def test_ties_do_not_depend_on_padding():
    short, long = torch.zeros(1, 4), torch.zeros(1, 9)
    counted, padded = torch.tensor([[False, True, True, True]]), torch.tensor([[False, True, True, True] + [False] * 5])
    for number in range(10):
        assert torch.equal(
            ranks(short, [number], counted=counted)[:, 1:4], ranks(long, [number], counted=padded)[:, 1:4]
        )


def test_units_that_do_not_count_come_last():
    counted = torch.tensor([[False, True, True, False]])
    rank = ranks(torch.tensor([[9.0, 1.0, 2.0, 8.0]]), [0], counted=counted)[0]
    assert rank[1:3].tolist() == [1, 0]
    assert set(rank[[0, 3]].tolist()) == {2, 3}


def test_ranks_refuse():
    with pytest.raises(ArgumentError, match="tie to be 'random' or 'stable'"):
        ranks(torch.zeros(1, 4), [0], tie="first")
    with pytest.raises(ArgumentError, match="a number for each sample"):
        ranks(torch.zeros(2, 4), [0])


# --- counts ----------------------------------------------------------------------------------------------------------


def test_counts_are_whole_numbers_that_floating_point_would_miss():
    grid = counts(torch.tensor(100), 100)
    assert grid.tolist() == list(range(101))
    assert grid[29] == 29
    assert math.floor(0.29 * 100) == 28


@pytest.mark.parametrize("units", [1, 2, 7, 10, 196, 785, 50176])
@pytest.mark.parametrize("steps", [7, 10, 20, 100])
def test_counts_are_symmetric_and_near_the_published(units, steps):
    grid = counts(torch.tensor(units), steps)
    assert grid[0] == 0
    assert grid[-1] == units
    assert (grid.diff() >= 0).all()
    if units % 2 == 0 or steps % 2:
        assert torch.equal(grid, units - grid.flip(0))
    published = torch.tensor([int(units * (k / steps)) for k in range(steps + 1)])
    assert (grid - published).abs().max() <= 1


@pytest.mark.parametrize("units", [7, 196, 785])
def test_tenths_are_among_twentieths(units):
    assert torch.equal(counts(torch.tensor(units), 10), counts(torch.tensor(units), 20)[::2])


def test_counts_by_hand():
    assert counts(torch.tensor([7, 4]), 4).tolist() == [[0, 1, 3, 6, 7], [0, 1, 2, 3, 4]]


# --- references ------------------------------------------------------------------------------------------------------

SCALE = (torch.tensor([0.5, 0.4, 0.3]).double(), torch.tensor([0.2, 0.25, 0.3]).double())


def normalised(raw):
    mean, std = (value.view(-1, 1, 1) for value in SCALE)
    return (raw - mean) / std


def test_black_zero_and_mean():
    x = randn(2, 3, 8, 8)
    assert torch.allclose(reference("black", x, SCALE), normalised(torch.zeros_like(x)))
    assert not reference("zero", x).any()
    assert torch.allclose(reference("mean", x)[1, 2], x[1, 2].mean().expand(8, 8))
    with pytest.raises(ArgumentError, match="preprocess= with mean and std for the reference 'black'"):
        reference("black", x)
    with pytest.raises(ArgumentError, match="'black', 'zero', 'mean', 'blur'"):
        reference("grey", x)


@pytest.mark.parametrize("mode", ["mirror", "reflect"])
@pytest.mark.parametrize("truncate", [3, 4])
def test_blur_is_scipys(mode, truncate):
    raw = torch.rand(1, 3, 224, 224, generator=torch.Generator().manual_seed(1)).double()
    wanted = gaussian_filter(raw.numpy(), (0, 0, 14, 14), mode=mode, truncate=truncate)
    assert (gaussian_blur(raw, 14) - torch.from_numpy(wanted)).abs().max() < 0.005


def test_blur_is_the_same_before_and_after_normalisation():
    raw = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(1)).double()
    assert torch.allclose(normalised(reference("blur", raw)), reference("blur", normalised(raw)), atol=1e-9)
    single = reference("blur", normalised(raw).float())
    assert torch.allclose(normalised(reference("blur", raw.float())).float(), single, atol=1.5e-5)


def test_blur_grows_with_the_image_and_must_fit():
    x = randn(1, 1, 32, 48)
    assert torch.equal(reference("blur", x), gaussian_blur(x, 2.0))
    with pytest.raises(ArgumentError, match="but got radius 42"):
        reference("blur", x, sigma=14)
    with pytest.raises(ArgumentError, match="above 0"):
        gaussian_blur(x, 0.0)


def blurred_11x11(image):
    """By hand: the 11 x 11 kernel with sigma 5 of the RISE paper, at every pixel, edges reflected."""
    weights = torch.tensor([[math.exp(-(r * r + c * c) / 50) for c in range(-5, 6)] for r in range(-5, 6)]).double()
    weights = weights / weights.sum()
    height, width = image.shape
    found = torch.zeros_like(image)
    for row in range(height):
        for column in range(width):
            for r in range(-5, 6):
                for c in range(-5, 6):
                    y, x = abs(row + r), abs(column + c)
                    y, x = min(y, 2 * (height - 1) - y), min(x, 2 * (width - 1) - x)
                    found[row, column] += weights[r + 5, c + 5] * image[y, x]
    return found


def test_the_blur_of_rise_has_a_kernel_of_11_x_11():
    x = randn(2, 1, 8, 9)
    wanted = torch.stack([blurred_11x11(one[0]) for one in x])[:, None]
    assert torch.allclose(gaussian_blur(x, 5.0, 5), wanted, atol=1e-12)
    assert torch.allclose(reference("blur", x, sigma=5.0, radius=5), wanted, atol=1e-12)
    model = Additive(randn(2, 72, seed=1))
    sweep = Insertion("rise", steps=4).protocol.sweep
    result = sweep(model, x, randn(2, 8, 9, seed=2))
    assert torch.allclose(result.z[0, :, -1, 1], model(wanted).gather(1, result.classes[:, 1:2])[:, 0], atol=1e-12)
    with pytest.raises(ArgumentError, match="radius of the blur to be a whole number"):
        gaussian_blur(x, 5.0, 0)


# --- areas -----------------------------------------------------------------------------------------------------------


def test_areas_depend_on_their_rule():
    falling = torch.linspace(1, 0, 101, dtype=torch.float64)[None]
    wanted = {"unit": 0.5, "percent": 50.0, "che": 49.5, "left100": 0.505, "mean11": 0.5}
    for rule, value in wanted.items():
        assert float(area(falling, rule)) == pytest.approx(value, abs=1e-9), rule


def test_areas_refuse():
    with pytest.raises(ArgumentError, match="multiple of 10 steps"):
        area(torch.ones(1, 9), "che")
    with pytest.raises(ArgumentError, match="'unit', 'che'"):
        area(torch.ones(1, 11), "simpson")


# --- runners ---------------------------------------------------------------------------------------------------------


def test_runners_take_a_model_or_a_subject():
    model, x, saliency = bin4()
    label, sweep = torch.tensor([1]), PerturbationSweep("zero", steps=4)
    alone = sweep(model, x, saliency, explained=label, label=label, ids=[7], batch_size=3)
    subject = Subject(model, x, label, [7])
    for given in (sweep(subject, None, saliency, label), sweep.ask(subject, saliency, label)):
        assert given.ids == alone.ids == (7,)
        assert torch.equal(given.classes, alone.classes)
        assert torch.equal(given.z, alone.z)
    for wrong in ({"x": x}, {"label": label}, {"ids": [7]}, {"batch_size": 3}):
        with pytest.raises(ArgumentError, match="a Subject has its own"):
            sweep(subject, saliency=saliency, **wrong)


# --- sweeps of texts -------------------------------------------------------------------------------------------------


def by_hand(reference, ids, removed):
    """Logits of a text without some units, by editing its ids; units are lists of token places."""
    gone = {place for unit in removed for place in unit}
    if reference == "mask_token":
        return ask([tokenizer().mask_token_id if n in gone else i for n, i in enumerate(ids)])
    if reference == "pad":
        return ask(ids, [int(n not in gone) for n in range(len(ids))])
    return ask([i for n, i in enumerate(ids) if n not in gone])


@pytest.mark.parametrize("granularity", ["token", "word"])
@pytest.mark.parametrize("name", ["mask_token", "drop", "pad"])
def test_text_sweeps_are_what_calls_by_hand_give(name, granularity):
    steps, saliency = 4, scores_of(TEXTS)
    subject = Subject(bert(), TEXTS, tokenizer=tokenizer())
    result = PerturbationSweep(name, granularity, steps)(subject, None, saliency)
    encoded = tokenizer()(TEXTS)
    for row in range(len(TEXTS)):
        ids, words = encoded["input_ids"][row], encoded.word_ids(row)
        places = range(1, len(ids) - 1)  # never the class and separator tokens
        units = [[n] for n in places]
        if granularity == "word":
            units = [[n for n in places if words[n] == word] for word in sorted({words[n] for n in places})]
        units.sort(key=lambda unit: -max(float(saliency[row, n]) for n in unit))
        assert int(result.units[row]) == len(units)
        label = int(ask(ids).argmax())
        for order, listed in (("mif", units), ("lif", units[::-1])):
            for k in range(steps + 1):
                number = len(units) * k // steps if 2 * k <= steps else len(units) - len(units) * (steps - k) // steps
                wanted = by_hand(name, ids, listed[:number])
                place = result.runner.orders.index(order)
                assert float(result.z[place, row, k, 0]) == pytest.approx(float(wanted[label]), abs=1e-9)
                assert int(result.top[place, row, k]) == int(wanted.argmax())


@pytest.mark.parametrize("name", ["mask_token", "drop", "pad"])
def test_text_sweeps_do_not_depend_on_batch_or_chunk(name):
    tied = scores_of(TEXTS).round()
    sweep = PerturbationSweep(name, "token", 10)
    together = sweep(bert(), TEXTS, tied, tokenizer=tokenizer())
    chunked = sweep(bert(), TEXTS, tied, tokenizer=tokenizer(), batch_size=3)
    assert torch.allclose(together.z, chunked.z, atol=1e-9)
    for row, text in enumerate(TEXTS):
        length = len(tokenizer()(text)["input_ids"])
        alone = sweep(bert(), [text], tied[row : row + 1, :length], ids=[row], tokenizer=tokenizer())
        assert torch.allclose(alone.z[:, 0], together.z[:, row], atol=1e-9)


@pytest.mark.parametrize("granularity", ["token", "word"])
def test_more_steps_than_units_cost_no_pass_twice(granularity):
    """Each number of units, from each end, once; the same curves as where every step is a pass."""
    saliency, steps = scores_of(TEXTS).round(), 40
    subject = Subject(bert(), TEXTS, tokenizer=tokenizer())
    result = PerturbationSweep("drop", granularity, steps)(subject, None, saliency)
    units = result.units.tolist()
    assert max(units) < steps
    assert len(set(units)) == len(TEXTS)  # each text has steps of its own that are equal
    assert subject.passes == sum(2 * n for n in units)  # clean, n - 1 from each end, and nothing left
    for row, (n, text) in enumerate(zip(units, TEXTS, strict=True)):
        length = len(tokenizer()(text)["input_ids"])
        sweep = PerturbationSweep("drop", granularity, n)  # a step for each unit
        single = sweep(bert(), [text], saliency[row : row + 1, :length], ids=[row], tokenizer=tokenizer())
        assert single.removed.tolist() == [list(range(n + 1))]
        assert torch.allclose(result.z[:, row], single.z[:, 0, result.removed[row]], atol=1e-9)
        assert torch.allclose(result.norm[:, row], single.norm[:, 0, result.removed[row]], atol=1e-9)
        assert torch.equal(result.top[:, row], single.top[:, 0, result.removed[row]])


def test_few_patches_cost_no_pass_twice():
    model, x, saliency = bin4()
    subject = Subject(model, x)
    result = PerturbationSweep("zero", "patch", 12)(subject, None, saliency)
    assert subject.passes == 8
    few = PerturbationSweep("zero", "patch", 4)(model, x, saliency)
    assert torch.equal(result.z, few.z[:, :, result.removed[0]])
    every = Subject(model, x)
    PerturbationSweep("zero", "patch", 3)(every, None, saliency)
    assert every.passes == 6  # nothing to be shared but the ends


def test_texts_without_a_unit_cost_the_clean_pass():
    ids = {"input_ids": torch.tensor([[2, 3]]), "attention_mask": torch.ones(1, 2).long()}
    subject = Subject(bert(), ids, tokenizer=tokenizer())
    result = PerturbationSweep("drop", "token", 5)(subject, None, torch.zeros(1, 2))
    assert subject.passes == 1
    assert torch.equal(result.z, result.z[:, :, :1].expand(-1, -1, 6, -1))


@pytest.mark.parametrize(
    "name",
    [
        *("deletion", "insertion", "aopc", "log-odds", "fidelity", "perturbation-auc", "average-drop", "saco"),
        *("average-drop:mhex_text", "comprehensiveness", "sufficiency"),
    ],
)
def test_texts_without_a_unit_do_not_count(name):
    """Nothing can be removed from them, so that they say nothing of a map."""
    ids = {
        "input_ids": torch.tensor([[2, 16, 17, 3], [2, 3, 0, 0]]),
        "attention_mask": torch.tensor([[1] * 4, [1, 1, 0, 0]]),
    }
    spec, _, preset = name.partition(":")
    usual = "default" if spec in ("comprehensiveness", "sufficiency") else "text"
    part = {} if spec == "average-drop" else {"granularity": "token"}
    metric = get_metric(spec).metric(preset or usual, resamples=2, **part)
    subject = Subject(bert(), ids, label=[0, 1], tokenizer=tokenizer())
    metric.update(*metric.of(Case(subject, scores_of(TEXTS)[:2, :4])))
    found = metric.compute()
    assert (found["n"], found["n_skipped"]) == (1, 1)
    assert math.isfinite(found["value"])


def test_text_sweeps_refuse():
    subject = Subject(bert(), TEXTS, tokenizer=tokenizer())
    with pytest.raises(ArgumentError, match="reference of texts"):
        PerturbationSweep("black")(subject, None, scores_of(TEXTS))
    with pytest.raises(ArgumentError, match="Expected maps of shape"):
        PerturbationSweep("drop", "token")(subject, None, scores_of(TEXTS)[:, :-1])
    for granularity in ("pixel", "patch"):
        with pytest.raises(ArgumentError, match=f"texts to be 'token' or 'word', but got '{granularity}'"):
            PerturbationSweep("drop", granularity)(subject, None, scores_of(TEXTS))
    ids = dict(tokenizer()(TEXTS, padding=True, return_tensors="pt").items())
    with pytest.raises(ArgumentError, match="a fast tokenizer for granularity"):
        PerturbationSweep("drop", "word")(Subject(bert(), ids), None, scores_of(TEXTS))
    with pytest.raises(ArgumentError, match="a mask token"):
        PerturbationSweep("mask_token", "token")(Subject(bert(), ids), None, scores_of(TEXTS))


def test_image_sweeps_refuse():
    model, x, saliency = bin4()
    with pytest.raises(ArgumentError, match="of images"):
        PerturbationSweep("drop")(model, x, saliency)
    with pytest.raises(ArgumentError, match="steps to be a whole number"):
        PerturbationSweep(steps=0)
    with pytest.raises(ArgumentError, match="finite maps"):
        PerturbationSweep("zero")(model, x, saliency * torch.nan)


@pytest.mark.parametrize("name", ["blur", "impute", "mean"])
def test_the_callers_autocast_changes_nothing_that_is_hidden(name):
    """It is for the model: what the model is given, and what is kept of its answers, has full precision."""
    x, saliency = randn(2, 3, 16, 16).float(), randn(2, 16, 16, seed=1).float()
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(768, 3)).eval()
    seen = []

    def asked():
        handle = model.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        result = PerturbationSweep(name, steps=4)(Subject(model, x, outputs="logits"), None, saliency)
        handle.remove()
        return result, torch.cat([seen.pop() for _ in range(len(seen))])

    (_, wanted), under = asked(), torch.autocast("cpu", dtype=torch.bfloat16)
    with under:
        result, found = asked()
    assert found.dtype == torch.float32
    assert torch.equal(found, wanted)
    assert result.z.dtype == result.norm.dtype == torch.float64
