"""Closed-form heads on frozen models."""

import math

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import mhex
from mhex.errors import ArgumentError, ArgumentTypeError, CaptureError, MhexWarning
from mhex.heads.fit.logistic import Options, row_weights
from support.learnable_heads import features, pictures, probe

METHODS = ("ridge", "logistic")


def matrices(scaffold):
    return {name: scaffold.equivalent_matrix(name) for name in scaffold.names}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("training", [True, False])
def test_no_prediction_changes(method, training):
    scaffold = probe(dtype=torch.float32)
    model = scaffold.model
    x, y = pictures(60, dtype=torch.float32)
    before, state = model(x), {k: v.clone() for k, v in scaffold.host_state_dict().items()}
    model.train(training)
    model.first.eval()
    model.stem.weight.requires_grad_(False)
    modes = {name: module.training for name, module in model.named_modules()}
    wanted = {name: p.requires_grad for name, p in model.named_parameters()}
    random = torch.random.get_rng_state()
    scaffold.fit((x, y), method)
    assert modes == {name: module.training for name, module in model.named_modules()}
    assert wanted == {name: p.requires_grad for name, p in model.named_parameters()}
    assert torch.equal(random, torch.random.get_rng_state())
    assert all(p.grad is None for p in model.parameters())
    after = scaffold.host_state_dict()
    assert all(torch.equal(value, after[key]) for key, value in state.items())
    assert torch.equal(model.eval()(x), before)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("intercept", [True, False])
def test_heads_find_the_classes_of_new_data(method, intercept):
    scaffold = probe()
    report = scaffold.fit(DataLoader(TensorDataset(*pictures(90)), batch_size=16), method, intercept=intercept)
    found = scaffold.head_accuracy(pictures(60, seed=9))
    assert list(found) == ["first", "second", "classifier"]
    assert min(found["first"], found["second"]) > 0.9 > found["classifier"]
    assert report.rows == 90
    assert report.held_out == 18
    assert all(block.accuracy > 0.8 and block.chosen for block in report.blocks)
    assert all((scaffold.heads[name].intercept is not None) == intercept for name in scaffold.names)


@pytest.mark.parametrize("method", METHODS)
def test_batches_do_not_matter(method):
    found = []
    for size in (7, 64):
        scaffold = probe()
        scaffold.fit(pictures(80), method, intercept=True, batch_size=size)
        found.append({**matrices(scaffold), **{n: scaffold.heads[n].intercept for n in ("first", "second")}})
    for name in found[0]:
        torch.testing.assert_close(found[0][name], found[1][name], rtol=1e-9, atol=1e-9)


def test_twice_the_same():
    scaffold = probe()
    scaffold.fit(pictures(50))
    once = matrices(scaffold)
    scaffold.fit(pictures(50))
    assert all(torch.equal(once[name], again) for name, again in matrices(scaffold).items())


@pytest.mark.parametrize("coupling", ["shared", "separate", "head_only"])
@pytest.mark.parametrize("relu", ["post", "pre"])
def test_class_scores_are_those_of_the_matrix_and_the_intercept(coupling, relu):
    scaffold = probe(coupling=coupling, relu=relu)
    x, y = pictures(60)
    report = scaffold.fit((x, y), intercept=True)
    for (name, h), block in zip(features(scaffold, x).items(), report.blocks, strict=True):
        said = h @ scaffold.equivalent_matrix(name).T + scaffold.heads[name].intercept
        scaffold.model(x)
        torch.testing.assert_close(scaffold.head_logits[name], said)
        assert block.rank == torch.linalg.matrix_rank(scaffold.equivalent_matrix(name), rtol=1e-9) == 2
        if coupling == "shared":
            w1, w2 = scaffold.heads[name].w1.weight, scaffold.heads[name].w2.weight
            assert not w1[2:].any()
            assert not w2[:, 2:].any()
            torch.testing.assert_close(w1.norm(), w2.norm())


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("intercept", [True, False])
def test_dead_channels_have_no_weight(method, intercept):
    scaffold = probe()
    with torch.no_grad():
        for unit in (scaffold.model.first, scaffold.model.second):
            unit.norm.weight[4], unit.norm.bias[4] = 0, -1e3  # never above 0
        scaffold.model.stem.weight[5], scaffold.model.first.norm.weight[5] = 0, 0
        scaffold.model.stem.bias[5] = 0.7  # always the same, and not 0
    x, y = pictures(60)
    report = scaffold.fit((x, y), method, intercept=intercept)
    assert float(features(scaffold, x)["first"][:, 5].min()) > 0
    weight = scaffold.equivalent_matrix("first")
    assert not weight[:, [4, 5]].any()
    assert weight[:, [0, 1, 2, 3]].any()
    assert report.blocks[0].dead >= 2
    assert scaffold.head_accuracy((x, y))["first"] > 0.9


@pytest.mark.parametrize("method", METHODS)
def test_a_model_that_says_nothing_gives_empty_heads(method):
    scaffold = probe()
    with torch.no_grad():
        scaffold.model.stem.weight.zero_()
    report = scaffold.fit(pictures(30), method, intercept=True)
    assert all(block.rank == 0 and block.dead == 12 for block in report.blocks)
    assert all(torch.isfinite(scaffold.heads[name].intercept).all() for name in scaffold.names)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("intercept", [True, False])
def test_rare_classes_are_found(method, intercept):
    """95 : 5, classes that overlap: by frequency the rare one is seldom said, in balance as often as the other."""
    generator = torch.Generator().manual_seed(3)
    y = (torch.arange(400) % 20 == 0).long()
    x = torch.randn(400, 3, 6, 6, generator=generator, dtype=torch.float64)
    x += 0.25 * y[:, None, None, None]
    recalls, norms = {}, {}
    for balance in (True, False):
        scaffold = probe(2)
        report = scaffold.fit((x, y), method, balance=balance, intercept=intercept)
        scaffold.model(x)
        said = scaffold.head_predictions["first"]
        recalls[balance] = [float((said[y == c] == c).double().mean()) for c in (0, 1)]
        norms[balance] = report.blocks[0].balanced_accuracy
    assert min(recalls[True]) > 0.75
    assert recalls[False][1] < 0.5
    assert norms[True] > 0.7


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("rows", [3, 4, 7])
def test_few_samples(method, rows):
    scaffold = probe()
    x, y = pictures(rows)
    report = scaffold.fit((x, y), method)
    assert scaffold.head_accuracy((x, y))["second"] == 1
    assert report.held_out == (0 if rows == 3 else min(rows - 3, 3))
    if rows == 3:
        assert math.isnan(report.blocks[0].accuracy)
        assert not report.blocks[0].chosen
        assert "-" in str(report)
        assert report.to_dict()["blocks"][0]["accuracy"] is None


@pytest.mark.parametrize("method", METHODS)
def test_a_class_with_one_sample_trains_and_one_without_is_named(method):
    scaffold = probe(5)
    x, y = pictures(60, 3)
    y[-1] = 3
    x[-1] += 20
    with pytest.warns(MhexWarning, match=r"1 of 5 classes have no samples to learn from \(4\)"):
        scaffold.fit((x, y), method, intercept=True)
    scaffold.model(x)
    said = scaffold.head_predictions["first"]
    assert int(said[-1]) == 3
    assert not (said == 4).any()
    assert not scaffold.equivalent_matrix("first")[4].any()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("intercept", [True, False])
def test_several_labels(method, intercept):
    generator = torch.Generator().manual_seed(0)
    y = torch.rand(200, 3, generator=generator) < torch.tensor([0.5, 0.3, 0.1])
    x = torch.randn(200, 3, 6, 6, generator=generator, dtype=torch.float64) + 2 * y.double()[:, :, None, None]
    scaffold = probe(3, multi_label=True)
    report = scaffold.fit((x, y), method, intercept=intercept)
    assert all(block.average_precision > 0.9 for block in report.blocks)
    assert "mAP" in str(report)
    assert scaffold.head_accuracy((x, y))["first"] > 0.85


@pytest.mark.parametrize("method", METHODS)
def test_rare_labels_are_found_among_several(method):
    generator = torch.Generator().manual_seed(0)
    y = torch.rand(300, 3, generator=generator) < torch.tensor([0.5, 0.3, 0.05])
    x = torch.randn(300, 3, 6, 6, generator=generator, dtype=torch.float64) + 0.3 * y.double()[:, :, None, None]
    found = {}
    for balance in (True, False):
        scaffold = probe(3, multi_label=True)
        scaffold.fit((x, y), method, balance=balance)
        scaffold.model(x)
        found[balance] = (scaffold.head_predictions["first"] & y).sum(0) / y.sum(0)
    assert found[True].min() > 0.65
    assert found[False][2] < 0.5


@pytest.mark.parametrize("method", METHODS)
def test_one_class_score(method):
    x, y = pictures(60, 2)
    scaffold = probe(1)
    report = scaffold.fit((x, y), method)
    assert report.blocks[0].average_precision is None
    assert scaffold.head_accuracy((x, y[:, None]))["first"] > 0.95
    assert scaffold.equivalent_matrix("first").shape == (1, 12)


def test_class_probabilities_are_fractions_of_samples():
    x, y = pictures(60)
    hard, soft = probe(), probe()
    hard.fit((x, y), strength=0.1)
    soft.fit((x, nn.functional.one_hot(y, 3).double()), strength=0.1)
    torch.testing.assert_close(hard.equivalent_matrix("first"), soft.equivalent_matrix("first"))


def test_scores_are_probabilities():
    scaffold = probe()
    x, y = pictures(500)
    y = torch.where(torch.arange(500) % 7 == 0, (y + 1) % 3, y)  # one label in seven is wrong
    scaffold.fit((x[:400], y[:400]))
    scaffold.model(x[400:])
    scores = scaffold.head_logits["second"].detach()
    losses = [float(nn.functional.cross_entropy(scores * factor, y[400:])) for factor in (0.4, 1, 2.5)]
    assert min(losses) == losses[1]


def test_saved_heads_come_back(tmp_path):
    scaffold = probe(dtype=torch.float32)
    x, y = pictures(60, dtype=torch.float32)
    scaffold.fit((x, y), intercept=True)
    scaffold.model(x)
    said = scaffold.head_logits
    scaffold.save(tmp_path / "heads.safetensors")
    again = mhex.attach(scaffold.detach(), weights=tmp_path / "heads.safetensors")
    again.model(x)
    assert all(torch.equal(again.head_logits[name], said[name]) for name in said)
    assert again.heads["first"].intercept is not None


def test_intercepts_come_and_go_with_the_state_of_the_model():
    scaffold, other = probe(), probe(seed=1)
    plain = other.host_state_dict()
    x, y = pictures(30)
    bare = {k: v.clone() for k, v in other.model.state_dict().items()}
    scaffold.fit((x, y), intercept=True)
    scaffold.model(x)
    other.model.load_state_dict(scaffold.model.state_dict())
    other.model(x)
    assert torch.equal(other.head_logits["second"], scaffold.head_logits["second"])
    other.model.load_state_dict(plain)
    assert other.heads["first"].intercept is not None
    other.model.load_state_dict(bare)
    assert other.heads["first"].intercept is None


def test_a_fit_without_intercept_takes_the_old_one_away():
    scaffold = probe()
    scaffold.fit(pictures(30), intercept=True)
    scaffold.fit(pictures(30))
    assert scaffold.heads["first"].intercept is None


@pytest.mark.parametrize(("classes", "options"), [(1, {}), (2, {"multi_label": True}), (2, {})])
def test_yes_or_no_heads_have_a_threshold(classes, options):
    scaffold = probe(classes, **options)
    x, y = pictures(30, 2)
    scaffold.fit((x, torch.nn.functional.one_hot(y, 2).double() if options else y))
    assert (scaffold.heads["first"].intercept is not None) == (classes == 1 or bool(options))


@pytest.mark.parametrize("options", [{"preset": "identity"}, {"preset": "paper"}])
def test_gates_that_would_move_are_refused(options):
    scaffold = probe(**options)
    with pytest.raises(ArgumentError, match="preset='probe'"):
        scaffold.fit(pictures(30))


@pytest.mark.parametrize("options", [{"preset": "warmup"}, {"preset": "identity", "coupling": "separate"}])
def test_gates_that_stay_are_not_refused(options):
    scaffold = probe(**options)
    x, y = pictures(30)
    before = scaffold.model(x)
    scaffold.fit((x, y))
    assert torch.equal(scaffold.model(x), before)


def test_bad_data_is_refused_and_nothing_written():
    scaffold = probe()
    x, y = pictures(30)
    before = {k: v.clone() for k, v in scaffold.heads.state_dict().items()}
    broken = x.clone()
    broken[3] = torch.nan
    cases = [
        ([], ArgumentError, "gave none"),
        ((x, torch.zeros_like(y)), ArgumentError, "labels of all 30 samples are alike"),
        ((broken, y), CaptureError, "features at first are NaN"),
        ((x, y + 1), ArgumentError, "from 0 to 2"),
        ((x, y[:-1]), ArgumentError, "as many labels"),
        ((x, torch.ones(30, 3)), ArgumentError, "multi_label=True"),
        (5, ArgumentTypeError, "loader"),
        ([x], ArgumentTypeError, "batches"),
    ]
    for data, error, words in cases:
        with pytest.raises(error, match=words):
            scaffold.fit(data)
    for options, words in [({"method": "svm"}, "svm"), ({"strength": 0}, "above 0"), ({"strength": -1.0}, "above 0")]:
        with pytest.raises(ArgumentError, match=words):
            scaffold.fit((x, y), **options)
    with pytest.raises(ArgumentError, match="alike"):
        probe(1).fit((x, torch.ones(30, 1)))
    with pytest.raises(ArgumentError, match="gave none"):
        scaffold.head_accuracy([])
    assert all(torch.equal(v, before[k]) for k, v in scaffold.heads.state_dict().items())


@pytest.mark.parametrize("known", [True, False])
def test_logistic_says_how_much_memory_it_needs(known):
    x, y = pictures(30)
    data = (x, y) if known else ((x[i : i + 1], y[i : i + 1]) for i in range(30))
    read = 0

    def counted():
        nonlocal read
        for batch in data:
            read += 1
            yield batch

    with pytest.raises(ArgumentError, match="method='ridge'"):
        probe().fit(data if known else counted(), "logistic", memory_gb=1e-6, batch_size=2)
    assert read < 30


def test_report_is_readable_and_plain():
    report = probe().fit(pictures(30), progress=False)
    text = str(report)
    assert "2 heads by ridge, 30 samples (6 held out)" in text
    assert "first" in text
    assert "100.0 %" in text
    plain = report.to_dict()
    assert plain["method"] == "ridge"
    assert plain["blocks"][1]["name"] == "second"


def test_rows_of_a_class_that_does_not_occur_take_no_weight():
    labels = torch.eye(3, dtype=torch.float64)[[0, 0, 1]]
    weights = row_weights(labels, Options(binary=False))
    torch.testing.assert_close(weights, torch.tensor([0.25, 0.25, 0.5], dtype=torch.float64))
