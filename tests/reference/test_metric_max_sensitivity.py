"""Max-sensitivity: closed forms, an outside package, and units of the radius."""

import math

import pytest
import torch

from mhex.errors import ArgumentError, MhexWarning
from mhex.metrics.case import Case
from mhex.metrics.max_sensitivity import MaxSensitivity, NeighbourProtocol, max_sensitivity
from mhex.perturb import Subject
from support.additive_models import Additive
from support.nonlinear_models import Curved, Normalised, gradient, images, input_x_gradient


def test_gradients_of_linear_models_never_change():
    x = images(2, 1, 8)
    model = Additive(torch.randn(3, 64, generator=torch.Generator().manual_seed(0)))
    explained = torch.tensor([0, 2])
    again = gradient(model)
    runner = NeighbourProtocol(draws=5, units="model")
    result = runner(Subject(model, x), None, again(x, explained), again, explained)
    assert torch.equal(max_sensitivity(result), torch.zeros(2).double())


def test_input_times_gradient_at_one_moves_by_the_radius_over_root_three():
    model = Additive(torch.randn(2, 128 * 128, generator=torch.Generator().manual_seed(0)))
    x, explained = torch.ones(2, 1, 128, 128).double(), torch.tensor([0, 1])
    again = input_x_gradient(model)
    result = NeighbourProtocol(0.02, 5, units="model")(Subject(model, x), None, again(x, explained), again, explained)
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

    runner = NeighbourProtocol(0.02, 7, units="model")
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


def test_the_radius_is_in_raw_colours_where_these_are_known():
    model, x = Curved(), images(2)
    subject = Subject(model, x, preprocess=Normalised())
    if subject.batch.scale is None:  # told by attributes of the preprocess
        pytest.fail("the scale of this preprocess should be known")
    moved = []

    def again(inputs, classes):
        moved.append((inputs - x).abs().amax((0, 2, 3)))
        return inputs.sum(1)

    NeighbourProtocol(0.02, 20)(subject, None, x.sum(1), again)
    most = torch.stack(moved).amax(0)
    assert most.tolist() == pytest.approx([0.08, 0.04], rel=0.02)
    with pytest.warns(MhexWarning, match="units of the model"):
        NeighbourProtocol(0.02, 1)(Subject(model, x), None, x.sum(1), lambda inputs, classes: inputs.sum(1))


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
    runner = NeighbourProtocol(draws=4, units="model", seed=2)
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
        NeighbourProtocol(units="model")(Subject(model, x), None, x.sum(1), lambda inputs, classes: inputs)
    with pytest.raises(ArgumentError, match="radius above 0"):
        NeighbourProtocol(0.0)
    with pytest.raises(ArgumentError, match="'raw' or 'model'"):
        NeighbourProtocol(units="pixels")
