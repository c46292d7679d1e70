"""Infidelity: closed forms, an outside package, and passes that all maps share."""

import pytest
import torch

from mhex.metrics.case import Case
from mhex.metrics.infidelity import Infidelity, NoiseProtocol, infidelity, squared_errors
from mhex.perturb import Subject
from support.additive_models import Additive, lin4
from support.nonlinear_models import Curved, gradient, images


@pytest.mark.parametrize(("factor", "raw", "free"), [(1.0, 0.0, 0.0), (0.0, 0.3, 1.0), (2.0, 0.3, 0.0)])
def test_infidelity_of_a_linear_model(factor, raw, free):
    w = torch.tensor([4.0, 3.0, 2.0, 1.0]).double()
    # Noise whose second moments are exactly those of the Gaussian: 0.1^2 for each, and 0 for pairs.
    noise = 0.2 * torch.cat([torch.eye(4), -torch.eye(4)]).double()
    found = squared_errors((noise @ (factor * w))[None], (noise @ w)[None])
    assert found[0, :2].tolist() == pytest.approx([free, raw], abs=1e-6)
    model, x, saliency = lin4()
    result = NoiseProtocol("gaussian", 0.1, 4000)(Subject(model, x))
    drawn = infidelity(result, factor * saliency, torch.tensor([0]))[0]
    assert float(drawn[0]) == pytest.approx(free, abs=1e-6)
    assert float(drawn[1]) == pytest.approx(raw, rel=0.1, abs=1e-6)


def test_hidden_squares_and_contributions():
    w = torch.randn(2, 64, generator=torch.Generator().manual_seed(0))
    x = images(2, 1, 8)
    subject = Subject(Additive(w), x)
    explained = torch.tensor([0, 1])
    result = NoiseProtocol("square", reference="zero", draws=30)(subject, None, explained)
    maps = w.double().view(2, 8, 8) * x[:, 0]
    assert torch.allclose(infidelity(result, maps, explained)[:, :2], torch.zeros(2, 2).double(), atol=1e-12)
    wrong = infidelity(result, maps.flip(1), explained)
    assert bool((wrong[:, 0] > 0.05).all())
    assert bool((wrong[:, 0] <= 1 + 1e-12).all())
    assert torch.allclose(infidelity(result, -3 * maps, explained)[:, 2], torch.full((2,), -1 / 3).double())
    patterns = result.runner.patterns(0, range(30), (1, 8, 8))
    assert set(patterns.unique().tolist()) == {0.0, 1.0}
    assert {int(one.sum()) for one in patterns} == {1, 4, 9, 16}  # squares of up to half of the side


@pytest.mark.parametrize(
    ("kind", "channels", "colours"), [("gaussian", "shared", 3), ("gaussian", "own", 3), ("square", "shared", 3)]
)
def test_infidelity_is_that_of_captum(kind, channels, colours):
    """Of the same changes, and attributions that share a map equally among the channels."""
    metrics = pytest.importorskip("captum.metrics")
    model, x = Curved(channels=colours), images(channels=colours)
    explained = torch.tensor([0, 1, 2])
    maps = gradient(model)(x, explained)
    shown = {"reference": "mean"} if kind == "square" else {}
    runner = NoiseProtocol(kind, 0.1, 20, channels=channels, **shown)
    result = runner(Subject(model, x), None, explained)

    def changes(inputs, baselines):
        count = len(inputs) // 3
        patterns = torch.cat([runner.patterns(n, range(count), (colours, 6, 6)) for n in range(3)]).expand_as(inputs)
        if kind == "gaussian":
            return patterns, inputs - patterns
        return patterns, torch.where(patterns > 0, baselines, inputs)

    wanted = metrics.infidelity(
        model, changes, x, maps[:, None].expand_as(x) / colours, baselines=x.mean((2, 3), keepdim=True).expand_as(x),
        target=explained, n_perturb_samples=20,
    )  # fmt: skip
    assert torch.allclose(infidelity(result, maps, explained)[:, 1], wanted, atol=1e-9)
    assert bool((wanted > 0).all())
    shapes = {"shared": (20, 1, 6, 6), "own": (20, 3, 6, 6)}
    assert runner.patterns(0, range(20), (colours, 6, 6)).shape == shapes[channels]


def test_the_protocol_says_whether_channels_share_noise():
    assert "channels=shared" in str(Infidelity("gradient").protocol)
    assert "channels=own" in str(Infidelity("captum").protocol)
    assert Infidelity("captum").protocol.channels == "own"
    with pytest.raises(ValueError, match="would change nothing"):
        Infidelity(channels="own")
    with pytest.raises(ValueError, match="Expected channels to be 'shared' or 'own'"):
        Infidelity("gradient", channels="mine")


def test_noise_is_shared_by_maps_and_classes_and_by_channels():
    subject = Subject(Curved(), images())
    metric = Infidelity("gradient", draws=10)
    for c in range(3):
        explained = torch.full((3,), c)
        metric.update(*metric.of(Case(subject, torch.rand(3, 6, 6), explained)))
    assert subject.passes == 3 + 30
    # One number for all channels of a pixel: a gradient summed over channels foretells a linear model exactly.
    weights = torch.randn(2, 2 * 36, generator=torch.Generator().manual_seed(0)).double()
    result = NoiseProtocol("gaussian", draws=10)(Subject(Additive(weights), images()), None, torch.zeros(3).long())
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
    shown = {"reference": "mean"} if kind == "square" else {}
    runner, model = NoiseProtocol(kind, draws=9, seed=3, **shown), Curved()
    whole = infidelity(runner(Subject(model, x, ids=[4, 5, 6, 7])), maps)
    small = infidelity(runner(Subject(model, x, ids=[4, 5, 6, 7], batch_size=5)), maps)
    singles = [infidelity(runner(Subject(model, x[n : n + 1], ids=[4 + n])), maps[n : n + 1]) for n in range(4)]
    assert torch.allclose(whole, small, atol=1e-12)
    assert torch.allclose(whole, torch.cat(singles), atol=1e-12)
