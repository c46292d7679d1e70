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
    assert case.subject.passes == COUNT * (1 + 8 + 4)
    assert torch.allclose(values(coarse, case), wanted, atol=1e-6)
    assert case.subject.passes == COUNT * (1 + 8 + 4)
    assert case.ready_sweep(coarse.protocol.sweep).runner.orders == ("mif", "lif")
    assert case.ready_sweep(fine.protocol.sweep) is None


def test_an_order_that_was_not_made_is_told():
    result = PerturbationSweep("zero", steps=4, orders=("lif",))(subject_of(), None, maps())
    with pytest.raises(ArgumentError, match="orders of the sweep, lif, but got 'mif'"):
        deletion(result)
