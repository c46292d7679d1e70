"""Which passes curve metrics make, alone and beside each other."""

from types import SimpleNamespace

import pytest
import torch

from mhex.errors import ArgumentError
from mhex.metrics.case import Case
from mhex.metrics.curve import CurveMetric
from mhex.metrics.deletion import deletion
from mhex.metrics.registry import all_metrics, get_metric
from mhex.perturb import PerturbationSweep, Subject
from support.tiny_models import pictures, tiny

COUNT = 3


def subject_of():
    preprocess = SimpleNamespace(mean=[0.4], std=[0.5])
    return Subject(tiny("cnn"), pictures(COUNT), torch.tensor([0, 1, 2]), preprocess=preprocess)


def maps():
    """With ties in them."""
    return torch.randn(COUNT, 4, 4, generator=torch.Generator().manual_seed(8)).round(decimals=0)


CURVES = {
    name: spec.metric for name, spec in all_metrics().items() if isinstance(spec.metric(), CurveMetric)
}  # name -> class


def values(metric, case):
    metric.reset()
    metric.update(*metric.of(case))
    return metric.rows()[1]


@pytest.mark.parametrize("name", CURVES)
def test_a_curve_metric_alone_makes_the_orders_that_it_reads(name):
    metric = CURVES[name]()
    steps = metric.protocol.steps if name == "road" else 4  # road needs tenths
    metric = CURVES[name](steps=steps)
    case = Case(subject_of(), maps())
    found = values(metric, case)
    made = {1: steps, 2: 2 * steps - 1}[len(metric.orders)]
    assert case.subject.passes == COUNT * (1 + made)
    # The same as off a sweep of both orders.
    wanted = Case(subject_of(), maps())
    wanted.sweep(metric.protocol.sweep)
    assert torch.allclose(values(metric, wanted), found, atol=1e-6)
    assert wanted.subject.passes == COUNT * 2 * steps
    told = get_metric(name).passes
    assert told.startswith({1: "T F;", 2: "19 F " if name == "road" else "2 T - 1 F;"}[len(metric.orders)])


def test_a_plan_has_the_orders_of_all_metrics():
    shared = {"reference": "zero", "steps": 4}
    first, last, both = (CURVES[name](**shared) for name in ("deletion", "insertion", "fidelity"))
    case = Case(subject_of(), maps())
    case.plan([first.sweep, last.sweep])
    assert case.subject.passes == COUNT * 8  # clean, 3 between the ends in each order, and one end for both
    alone = [values(metric, Case(subject_of(), maps())) for metric in (first, last, both)]
    for metric, wanted in zip((first, last, both), alone, strict=True):
        assert torch.allclose(values(metric, case), wanted, atol=1e-6)
    assert case.subject.passes == COUNT * 8


def test_a_plan_makes_no_order_finer_than_it_is_read():
    fine, coarse = CURVES["deletion"](reference="zero", steps=8), CURVES["fidelity"](reference="zero", steps=4)
    wanted = values(coarse, Case(subject_of(), maps()))
    case = Case(subject_of(), maps())
    case.plan([coarse.sweep, fine.sweep])
    assert case.subject.passes == COUNT * (1 + 8 + 3)  # everything removed is the same from either end
    assert torch.allclose(values(coarse, case), wanted, atol=1e-6)
    assert case.subject.passes == COUNT * (1 + 8 + 3)


def test_an_order_that_was_not_made_is_told():
    result = PerturbationSweep("zero", steps=4, orders=("lif",))(subject_of(), None, maps())
    with pytest.raises(ArgumentError, match="orders of the sweep, lif, but got 'mif'"):
        deletion(result)


BOTH = PerturbationSweep("zero", "pixel", 4)


def assert_as_alone(sweep, subject, saliency, **options):
    """A sweep beside others gives what it gives to samples that nobody asked about before."""
    found, wanted = (sweep(whose, None, saliency, **options) for whose in (subject, subject_of()))
    for name in ("z", "norm", "mean", "top", "complement"):
        assert torch.allclose(getattr(found, name).double(), getattr(wanted, name).double(), atol=1e-6), name


def test_maps_of_equal_ranks_cost_no_pass():
    subject, saliency = subject_of(), maps()
    BOTH(subject, None, saliency)
    assert (subject.passes, subject.saved) == (COUNT * 8, 0)
    assert_as_alone(BOTH, subject, saliency.exp())
    assert (subject.passes, subject.saved) == (COUNT * 8, COUNT * 7)


def test_what_one_map_keeps_the_opposite_removes():
    """The most important first by one map are the least important first by the other: no pass is new."""
    subject, saliency = subject_of(), torch.rand(COUNT, 4, 4, generator=torch.Generator().manual_seed(1))
    BOTH(subject, None, saliency)
    assert_as_alone(BOTH, subject, -saliency)
    assert (subject.passes, subject.saved) == (COUNT * 8, COUNT * 7)


def test_different_maps_share_what_has_nothing_left():
    subject = subject_of()
    BOTH(subject, None, maps())
    assert_as_alone(BOTH, subject, maps().flip(1))
    assert (subject.passes, subject.saved) == (COUNT * (8 + 6), COUNT)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"reference": "zero"}, {"reference": "mean"}),
        ({"reference": "zero"}, {"reference": "black"}),
        ({"reference": "zero"}, {"reference": "zero", "granularity": "patch"}),
        ({"reference": "blur"}, {"reference": "blur", "sigma": 1.0}),
        ({"reference": "blur"}, {"reference": "blur", "radius": 1}),
        ({"reference": "impute"}, {"reference": "impute", "seed": 1}),
        ({"reference": "impute"}, {"reference": "impute", "noise": 0.5}),
    ],
)
def test_what_is_removed_in_another_way_is_run(first, second):
    subject = subject_of()
    PerturbationSweep(steps=4, **first)(subject, None, maps())
    passes = subject.passes
    assert_as_alone(PerturbationSweep(steps=4, **second), subject, maps())
    assert (subject.passes, subject.saved) == (passes + COUNT * 7, 0)


def test_patches_of_another_shape_are_other_units():
    subject, sweep = subject_of(), PerturbationSweep("zero", "patch", 4)
    saliency = torch.rand(COUNT, 2, 4, generator=torch.Generator().manual_seed(1))
    sweep(subject, None, saliency)
    assert_as_alone(sweep, subject, saliency.view(COUNT, 4, 2))
    assert subject.saved == 0


def test_other_classes_are_read_anew():
    subject = subject_of()
    BOTH(subject, None, maps())
    assert_as_alone(BOTH, subject, maps(), explained=torch.tensor([2, 0, 1]), other_class=torch.tensor([1, -1, 0]))
    assert subject.saved == 0


def test_an_error_leaves_nothing_behind():
    """What was run before the model failed is not taken for what comes after."""
    subject = subject_of()
    _ = subject.logits
    head, calls = subject.model.head, []

    def failing(x):
        calls.append(len(x))
        if len(calls) == 2:
            raise RuntimeError("out of luck")
        return torch.nn.functional.linear(x, head.weight, head.bias)

    subject.batch_size, subject.model.head.forward = 4, failing
    with pytest.raises(RuntimeError, match="out of luck"):
        BOTH(subject, None, maps())
    del subject.model.head.forward
    assert_as_alone(BOTH, subject, maps())
    assert subject.saved == 0
