"""Infidelity, max-sensitivity and randomisation: closed forms, outside packages, and models put back as they were."""

import math

import pytest
import torch
from torch import nn

import mhex
from mhex.errors import ArgumentError, MhexWarning
from mhex.metrics.box_sensitivity import BoxSensitivity
from mhex.metrics.case import Case
from mhex.metrics.infidelity import Infidelity, infidelity, squared_errors
from mhex.metrics.max_sensitivity import MaxSensitivity, max_sensitivity
from mhex.metrics.randomization import Randomization, randomization
from mhex.metrics.road import ROAD
from mhex.metrics.saco import SaCo
from mhex.perturb import NeighbourPass, NoisePass, RandomizedPass, Subject
from mhex.perturb.weights import layers_with_weights, randomize, restored
from support.fixtures_metrics import Additive, lin4
from support.hosts import HOSTS


class Curved(nn.Module):
    """A small network that is not linear."""

    def __init__(self, channels=2, side=6, classes=3, seed=0):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.conv = nn.Conv2d(channels, 4, 3, padding=1)
            self.norm = nn.BatchNorm2d(4)
            self.head = nn.Linear(4 * side * side, classes)
        self.shift = nn.Parameter(torch.arange(4.0).view(1, 4, 1, 1) / 10)
        self.double().eval()

    def forward(self, x):
        return self.head(torch.tanh(self.norm(self.conv(x)) + self.shift).flatten(1))


def input_x_gradient(model):
    def again(inputs, classes):
        with torch.enable_grad():
            x = inputs.detach().clone().requires_grad_()
            scores = model(x).gather(1, classes[:, None]).sum()
            return (torch.autograd.grad(scores, x)[0] * x.detach()).sum(1)

    return again


def gradient(model):
    def again(inputs, classes):
        x = inputs.detach().clone().requires_grad_()
        return torch.autograd.grad(model(x).gather(1, classes[:, None]).sum(), x)[0].sum(1)

    return again


def images(count=3, channels=2, side=6, seed=0):
    return torch.rand(count, channels, side, side, generator=torch.Generator().manual_seed(seed)).double()


# Infidelity


@pytest.mark.parametrize(("factor", "raw", "free"), [(1.0, 0.0, 0.0), (0.0, 0.3, 1.0), (2.0, 0.3, 0.0)])
def test_infidelity_of_a_linear_model(factor, raw, free):
    w = torch.tensor([4.0, 3.0, 2.0, 1.0]).double()
    # Noise whose second moments are exactly those of the Gaussian: 0.1^2 for each, and 0 for pairs.
    noise = 0.2 * torch.cat([torch.eye(4), -torch.eye(4)]).double()
    found = squared_errors((noise @ (factor * w))[None], (noise @ w)[None])
    assert found[0, :2].tolist() == pytest.approx([free, raw], abs=1e-6)
    model, x, saliency = lin4()
    result = NoisePass("gaussian", 0.1, 4000)(Subject(model, x))
    drawn = infidelity(result, factor * saliency, torch.tensor([0]))[0]
    assert float(drawn[0]) == pytest.approx(free, abs=1e-6)
    assert float(drawn[1]) == pytest.approx(raw, rel=0.1, abs=1e-6)


def test_hidden_squares_and_contributions():
    w = torch.randn(2, 64, generator=torch.Generator().manual_seed(0))
    x = images(2, 1, 8)
    subject = Subject(Additive(w), x)
    explained = torch.tensor([0, 1])
    result = NoisePass("square", reference="zero", draws=30)(subject, None, explained)
    maps = w.double().view(2, 8, 8) * x[:, 0]
    assert torch.allclose(infidelity(result, maps, explained)[:, :2], torch.zeros(2, 2).double(), atol=1e-12)
    wrong = infidelity(result, maps.flip(1), explained)
    assert bool((wrong[:, 0] > 0.05).all())
    assert bool((wrong[:, 0] <= 1 + 1e-12).all())
    assert torch.allclose(infidelity(result, -3 * maps, explained)[:, 2], torch.full((2,), -1 / 3).double())
    patterns = result.noise.patterns(0, range(30), (8, 8))
    assert set(patterns.unique().tolist()) == {0.0, 1.0}
    assert len({int(one.sum()) for one in patterns}) > 2


def test_infidelity_is_that_of_captum():
    metrics = pytest.importorskip("captum.metrics")
    model, x = Curved(channels=1), images(channels=1)
    explained = torch.tensor([0, 1, 2])
    maps = gradient(model)(x, explained)
    for kind in ("gaussian", "square"):
        runner = NoisePass(kind, 0.1, 20, reference="mean")
        result = runner(Subject(model, x), None, explained)

        def changes(inputs, baselines, runner=runner, kind=kind):
            count = len(inputs) // 3
            patterns = torch.cat([runner.patterns(n, range(count), (6, 6)) for n in range(3)])[:, None]
            if kind == "gaussian":
                return patterns, inputs - patterns
            return patterns, torch.where(patterns > 0, baselines, inputs)

        wanted = metrics.infidelity(
            model, changes, x, maps[:, None], baselines=x.mean((2, 3), keepdim=True).expand_as(x), target=explained,
            n_perturb_samples=20,
        )  # fmt: skip
        assert torch.allclose(infidelity(result, maps, explained)[:, 1], wanted, atol=1e-9)
        assert bool((wanted > 0).all())


def test_noise_is_shared_by_maps_and_classes_and_by_channels():
    subject = Subject(Curved(), images())
    metric = Infidelity("gradient", draws=10)
    for c in range(3):
        explained = torch.full((3,), c)
        metric.update(*metric.of(Case(subject, torch.rand(3, 6, 6), explained)))
    assert subject.passes == 3 + 30
    # One number for all channels of a pixel: a gradient summed over channels foretells a linear model exactly.
    weights = torch.randn(2, 2 * 36, generator=torch.Generator().manual_seed(0)).double()
    result = NoisePass("gaussian", draws=10)(Subject(Additive(weights), images()), None, torch.zeros(3).long())
    summed = weights[0].view(2, 6, 6).sum(0).expand(3, -1, -1)
    assert torch.allclose(infidelity(result, summed, torch.zeros(3).long())[:, 1], torch.zeros(3).double(), atol=1e-12)


def test_infidelity_without_any_change_is_skipped_and_of_zero_maps_one():
    x = images()
    metric = Infidelity("gradient", draws=5)
    blind = Additive(torch.zeros(2, 72), offset=-1.0)
    metric.update(*metric.of(Case(Subject(blind, x), torch.rand(3, 6, 6))))
    assert (metric.compute()["n"], metric.compute()["n_skipped"]) == (0, 3)
    metric = Infidelity("gradient", draws=5)
    metric.update(*metric.of(Case(Subject(Curved(), x), torch.zeros(3, 6, 6))))
    found = metric.compute()
    assert (found["value"], found["all"]["reversed"]["value"]) == (1.0, 0.0)


@pytest.mark.parametrize("kind", ["gaussian", "square"])
def test_noise_does_not_depend_on_batches_or_chunks(kind):
    x, maps = images(4), torch.rand(4, 6, 6, generator=torch.Generator().manual_seed(1))
    runner, model = NoisePass(kind, draws=9, seed=3, reference="mean"), Curved()
    whole = infidelity(runner(Subject(model, x, ids=[4, 5, 6, 7])), maps)
    small = infidelity(runner(Subject(model, x, ids=[4, 5, 6, 7], batch_size=5)), maps)
    singles = [infidelity(runner(Subject(model, x[n : n + 1], ids=[4 + n])), maps[n : n + 1]) for n in range(4)]
    assert torch.allclose(whole, small, atol=1e-12)
    assert torch.allclose(whole, torch.cat(singles), atol=1e-12)


# Max-sensitivity


def test_gradients_of_linear_models_never_change():
    x = images(2, 1, 8)
    model = Additive(torch.randn(3, 64, generator=torch.Generator().manual_seed(0)))
    explained = torch.tensor([0, 2])
    again = gradient(model)
    runner = NeighbourPass(draws=5, units="model")
    result = runner(Subject(model, x), None, again(x, explained), again, explained)
    assert torch.equal(max_sensitivity(result), torch.zeros(2).double())


def test_input_times_gradient_at_one_moves_by_the_radius_over_root_three():
    model = Additive(torch.randn(2, 128 * 128, generator=torch.Generator().manual_seed(0)))
    x, explained = torch.ones(2, 1, 128, 128).double(), torch.tensor([0, 1])
    again = input_x_gradient(model)
    result = NeighbourPass(0.02, 5, units="model")(Subject(model, x), None, again(x, explained), again, explained)
    assert bool((result.change.amax(1) <= 0.02 * result.size).all())
    assert max_sensitivity(result).tolist() == pytest.approx([0.02 / math.sqrt(3)] * 2, abs=3e-4)


def test_max_sensitivity_is_that_of_captum():
    metrics = pytest.importorskip("captum.metrics")
    model, x, explained = Curved(), images(2), torch.tensor([0, 1])
    again = input_x_gradient(model)
    seen = []

    def recorded(inputs, classes):
        seen.append(inputs - x)
        return again(inputs, classes)

    runner = NeighbourPass(0.02, 7, units="model")
    result = runner(Subject(model, x), None, again(x, explained), recorded, explained)
    moves = torch.stack(seen, 1)  # (B, n, C, H, W)
    assert float(moves.abs().max()) <= 0.02
    assert float(moves.min()) < -0.019
    assert float(moves.max()) > 0.019

    def perturb(inputs, radius):
        return (inputs + moves.flatten(0, 1),)

    def explained_again(inputs):
        classes = explained.repeat_interleave(len(inputs[0]) // 2)
        return (again(inputs[0], classes),)

    wanted = metrics.sensitivity_max(explained_again, (x,), perturb_func=perturb, n_perturb_samples=7)
    assert torch.allclose(max_sensitivity(result), wanted, atol=1e-9)


class Normalised:
    """A preprocess whose mean and spread can be found."""

    mean, std = (0.5, 0.5), (0.25, 0.5)

    def __call__(self, picture):
        raise NotImplementedError


def test_the_radius_is_in_raw_colours_where_these_are_known():
    model, x = Curved(), images(2)
    subject = Subject(model, x, preprocess=Normalised())
    if subject.batch.scale is None:  # told by attributes of the preprocess
        pytest.fail("the scale of this preprocess should be known")
    moved = []

    def again(inputs, classes):
        moved.append((inputs - x).abs().amax((0, 2, 3)))
        return inputs.sum(1)

    NeighbourPass(0.02, 20)(subject, None, x.sum(1), again)
    most = torch.stack(moved).amax(0)
    assert most.tolist() == pytest.approx([0.08, 0.04], rel=0.02)
    with pytest.warns(MhexWarning, match="units of the model"):
        NeighbourPass(0.02, 1)(Subject(model, x), None, x.sum(1), lambda inputs, classes: inputs.sum(1))


def test_share_of_neighbours_predicted_otherwise_and_maps_of_zeros():
    weights = 3 * torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]])
    x = torch.tensor([[[[0.5, 0.5 - 1e-9], [0.0, 0.0]]], [[[0.9, 0.1], [0.0, 0.0]]]]).double()
    metric = MaxSensitivity(draws=200, units="model")
    case = Case(Subject(Additive(weights), x), torch.zeros(2, 2, 2), again=lambda inputs, classes: inputs[:, 0] * 0 + 1)
    metric.update(*metric.of(case))
    value, flipped = metric.rows()[1].unbind(1)
    assert value.tolist() == [2.0, 2.0]  # the norm of four ones, divided by 1
    assert float(flipped[0]) == pytest.approx(0.5, abs=0.15)
    assert float(flipped[1]) == 0.0


def test_neighbours_do_not_depend_on_batches():
    model, x = Curved(), images(3)
    again, explained = input_x_gradient(model), torch.tensor([0, 1, 2])
    runner = NeighbourPass(draws=4, units="model", seed=2)
    maps = again(x, explained)
    whole = runner(Subject(model, x, ids=[7, 8, 9]), None, maps, again, explained)
    small = runner(Subject(model, x, ids=[7, 8, 9], batch_size=2), None, maps, again, explained)
    for n in range(3):
        part = slice(n, n + 1)
        single = runner(Subject(model, x[part], ids=[7 + n]), None, maps[part], again, explained[part])
        assert torch.allclose(max_sensitivity(single), max_sensitivity(whole)[part], atol=1e-12)
    assert torch.allclose(max_sensitivity(whole), max_sensitivity(small), atol=1e-12)


def test_what_cannot_be_explained_again_is_refused():
    model, x = Curved(), images(2)
    with pytest.raises(ArgumentError, match="explain changed images"):
        MaxSensitivity().of(Case(Subject(model, x), x.sum(1)))
    with pytest.raises(ArgumentError, match="when explained again"):
        NeighbourPass(units="model")(Subject(model, x), None, x.sum(1), lambda inputs, classes: inputs)
    with pytest.raises(ArgumentError, match="radius above 0"):
        NeighbourPass(0.0)
    with pytest.raises(ArgumentError, match="'raw' or 'model'"):
        NeighbourPass(units="pixels")


# Randomisation


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
    result = RandomizedPass()(Subject(model, x), None, maps, again, torch.zeros(3).long())
    assert result.rho.shape == (3, 4, 2)
    assert {name.split(".")[0] for name in seen[0]} == {"head"}
    assert "norm.running_mean" in seen[1]
    assert {name.split(".")[0] for name in seen[2]} == {"head", "norm", "conv"}
    assert "shift" in seen[3]
    assert same(model, before)
    assert all(parameters[name] is p for name, p in model.named_parameters())
    assert torch.equal(torch.random.get_rng_state(), state)
    again_result = RandomizedPass()(Subject(model, x), None, maps, input_x_gradient(model), torch.zeros(3).long())
    assert torch.equal(result.rho, again_result.rho)  # by the seed
    other = RandomizedPass(seed=1)(Subject(model, x), None, maps, input_x_gradient(model), torch.zeros(3).long())
    assert not torch.equal(result.rho, other.rho)


def test_the_model_is_put_back_after_an_error():
    model, x = Curved(), images()
    before = kept(model)

    def again(inputs, classes):
        assert not same(model, before)
        raise RuntimeError("no map today")

    with pytest.raises(RuntimeError, match="no map today") as caught:
        RandomizedPass()(Subject(model, x), None, x.sum(1), again)
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
    result = RandomizedPass()(Subject(model, x), None, again(x, explained), again, explained)
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


def test_stages():
    model, x = Curved(), images()
    again = input_x_gradient(model)
    maps = again(x, torch.zeros(3).long())
    every = RandomizedPass()(Subject(model, x), None, maps, again, torch.zeros(3).long())
    half = RandomizedPass(stages=2)(Subject(model, x), None, maps, again, torch.zeros(3).long())
    assert torch.equal(half.rho, every.rho[:, [1, 3]])
    assert RandomizedPass(stages=50)(Subject(model, x), None, maps, again).rho.shape[1] == 4


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
        RandomizedPass("weights")
    with pytest.raises(ArgumentError, match="at least one stage"):
        RandomizedPass(stages=0)
    result = RandomizedPass("logit")(Subject(Curved(), images()), None, images().sum(1), lambda x, c: x.sum(1))
    with pytest.raises(ArgumentError, match="sign to be one of"):
        randomization(result, "squared")
