"""Randomisation: baselines, what is counted, and models put back as they were."""

import math

import pytest
import torch
from torch import nn

import mhex
from mhex.errors import ArgumentError
from mhex.metrics.box_sensitivity import BoxSensitivity
from mhex.metrics.case import Case
from mhex.metrics.infidelity import Infidelity
from mhex.metrics.max_sensitivity import MaxSensitivity
from mhex.metrics.randomization import (
    Randomization,
    RandomizationProtocol,
    layers_with_weights,
    randomization,
    randomize,
    restored,
)
from mhex.metrics.road import ROAD
from mhex.metrics.saco import SaCo
from mhex.perturb import Subject
from support.hosts import HOSTS
from support.nonlinear_models import Curved, images, input_x_gradient


def kept(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(model, before):
    return all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_layers_are_renewed_from_the_output_and_the_model_is_put_back():
    model, x = Curved(), images()
    model.norm.running_mean.fill_(0.3)
    before, parameters = kept(model), dict(model.named_parameters())
    seen = []

    def again(inputs, classes):
        seen.append({name for name, value in model.state_dict().items() if not torch.equal(value, before[name])})
        return input_x_gradient(model)(inputs, classes)

    state = torch.random.get_rng_state()
    maps = input_x_gradient(model)(x, torch.zeros(3).long())
    result = RandomizationProtocol()(Subject(model, x), None, maps, again, torch.zeros(3).long())
    assert result.rho.shape == (3, 4, 2)
    assert {name.split(".")[0] for name in seen[0]} == {"head"}
    assert "norm.running_mean" in seen[1]
    assert {name.split(".")[0] for name in seen[2]} == {"head", "norm", "conv"}
    assert "shift" in seen[3]
    assert same(model, before)
    assert all(parameters[name] is p for name, p in model.named_parameters())
    assert torch.equal(torch.random.get_rng_state(), state)
    again_result = RandomizationProtocol()(
        Subject(model, x), None, maps, input_x_gradient(model), torch.zeros(3).long()
    )
    assert torch.equal(result.rho, again_result.rho)  # by the seed
    other = RandomizationProtocol(seed=1)(Subject(model, x), None, maps, input_x_gradient(model), torch.zeros(3).long())
    assert not torch.equal(result.rho, other.rho)


def test_the_model_is_put_back_after_an_error():
    model, x = Curved(), images()
    before = kept(model)

    def again(inputs, classes):
        assert not same(model, before)
        raise RuntimeError("no map today")

    with pytest.raises(RuntimeError, match="no map today") as caught:
        RandomizationProtocol()(Subject(model, x), None, x.sum(1), again)
    assert same(model, before)  # while the error, with all its frames, is still held
    del caught


def test_initialisers_that_make_new_parameters_are_undone_too():
    class Fresh(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))
            self.register_buffer("count", torch.zeros(1), persistent=False)

        def reset_parameters(self):
            self.weight = nn.Parameter(torch.rand(3))
            self.count += 1

    model = nn.Sequential(Fresh(), nn.MultiheadAttention(4, 2))
    weight = model[0].weight
    before = kept(model)
    with restored(model):
        for n, layer in enumerate(layers_with_weights(model)):
            randomize(layer, n)
        assert not torch.equal(model[1].in_proj_weight, before["1.in_proj_weight"])
        assert not torch.equal(model[1].out_proj.weight, before["1.out_proj.weight"])
    assert model[0].weight is weight
    assert float(model[0].count) == 0.0
    assert same(model, before)


def test_input_only_baseline():
    """The two numbers of a linear model in 784 dimensions: 0 with signs, 0.40 without."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10, bias=False)).double()
    with torch.no_grad():  # unrelated weights from two Gaussians
        model[1].weight.normal_(generator=torch.Generator().manual_seed(5))
    model[1].reset_parameters = lambda: nn.init.normal_(model[1].weight)
    x = images(20, 1, 28)
    explained = torch.arange(20) % 10
    again = input_x_gradient(model)
    result = RandomizationProtocol()(Subject(model, x), None, again(x, explained), again, explained)
    assert result.baseline.mean(0).tolist() == pytest.approx([0.0, 0.40], abs=0.02)
    assert result.rho[:, 0].mean(0).tolist() == pytest.approx([0.0, 0.40], abs=0.03)
    for sign in ("signed", "absolute"):
        metric = Randomization(sign=sign)
        metric.update(result)
        assert metric.compute()["all"]["excess"]["value"] == pytest.approx(0.0, abs=0.03)


def test_constant_maps_are_counted():
    model, x = Curved(), images()
    maps = input_x_gradient(model)(x, torch.zeros(3).long())
    maps[1] = 0.5
    calls = []

    def again(inputs, classes):
        calls.append(0)
        found = torch.rand(3, 6, 6, generator=torch.Generator().manual_seed(len(calls)))
        return found * 0 if len(calls) == 2 else found

    metric = Randomization()
    metric.update(*metric.of(Case(Subject(model, x), maps, again=again)))
    found = metric.compute()
    assert (found["n"], found["n_skipped"]) == (2, 1)
    assert found["all"]["constant"]["value"] == 0.25
    assert math.isfinite(found["value"])


def test_fewer_stages_are_some_of_all_stages():
    model, x = Curved(), images()
    again = input_x_gradient(model)
    maps = again(x, torch.zeros(3).long())
    every = RandomizationProtocol()(Subject(model, x), None, maps, again, torch.zeros(3).long())
    half = RandomizationProtocol(stages=2)(Subject(model, x), None, maps, again, torch.zeros(3).long())
    assert torch.equal(half.rho, every.rho[:, [1, 3]])
    assert RandomizationProtocol(stages=50)(Subject(model, x), None, maps, again).rho.shape[1] == 4


def test_random_logit():
    model, x = Curved(), images()
    explained, asked = torch.tensor([0, 1, 2]), []

    def again(inputs, classes):
        asked.append(classes)
        return inputs.sum(1)

    metric = Randomization("logit")
    metric.update(*metric.of(Case(Subject(model, x), x.sum(1), explained, again=again)))
    assert metric.compute()["value"] == pytest.approx(1.0, abs=1e-12)  # this map knows no class
    assert len(asked) == 1
    assert bool((asked[0] != explained).all())
    assert bool(((asked[0] >= 0) & (asked[0] < 3)).all())
    specific = input_x_gradient(model)
    metric = Randomization("logit")
    metric.update(*metric.of(Case(Subject(model, x), specific(x, explained), explained, again=specific)))
    assert metric.compute()["value"] < 0.9


def test_permuted_labels_need_a_second_model():
    model, second, x = Curved(), Curved(seed=1), images()
    explained = torch.tensor([0, 1, 2])
    maps = input_x_gradient(model)(x, explained)
    metric = Randomization("labels")
    with pytest.raises(ArgumentError, match="permuted labels"):
        metric.of(Case(Subject(model, x), maps, explained, again=input_x_gradient(model)))
    case = Case(Subject(model, x), maps, explained, relabelled=input_x_gradient(second))
    result = metric.of(case)[0]
    stats = pytest.importorskip("scipy.stats")
    other = input_x_gradient(second)(x, explained)
    for n in range(3):
        wanted = stats.spearmanr(maps[n].flatten(), other[n].flatten()).statistic
        assert float(randomization(result)[n, 0]) == pytest.approx(wanted, abs=1e-12)


def test_a_transformer_explained_by_the_library():
    model = HOSTS["timm_vit"]().eval()
    x = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    before = kept(model)

    def again(inputs, classes):
        return mhex.explain(model, inputs, "gae", classes).scores

    subject = Subject(model, x)
    case = Case(subject, again(x, subject.predicted), again=again)
    metrics = [
        BoxSensitivity(sizes=(4, 8), count=5, reference="mean"),
        Infidelity(draws=5, reference="mean"),
        MaxSensitivity(draws=2, units="model"),
        Randomization(stages=3),
        Randomization("logit"),
        SaCo(),
        ROAD(),
    ]
    for metric in metrics:
        metric.update(*metric.of(case))
        found = metric.compute()
        assert (found["n"], found["n_skipped"]) == (2, 0)
        assert all(math.isfinite(one["value"]) for one in found["all"].values())
    assert same(model, before)


def test_random_weights_by_the_library_itself():
    """With `mhex.explain` in the loop, on a network of torch layers."""
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 6, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3)
    ).eval()
    x = torch.rand(2, 3, 12, 12, generator=torch.Generator().manual_seed(0))
    before = kept(model)

    def again(inputs, classes):
        return mhex.explain(model, inputs, "input-x-gradient", classes).scores

    subject = Subject(model, x)
    case = Case(subject, again(x, subject.predicted), again=again)
    metric = Randomization()
    metric.update(*metric.of(case))
    assert metric.compute()["n"] == 2
    assert same(model, before)


def test_wrong_modes_are_refused():
    with pytest.raises(ArgumentError, match="mode to be one of"):
        RandomizationProtocol("weights")
    with pytest.raises(ArgumentError, match="at least one stage"):
        RandomizationProtocol(stages=0)
    result = RandomizationProtocol("logit")(Subject(Curved(), images()), None, images().sum(1), lambda x, c: x.sum(1))
    with pytest.raises(ArgumentError, match="sign to be 'signed' or 'absolute'"):
        randomization(result, "squared")
