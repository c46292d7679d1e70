"""The closed-form values of the metrics that read one sweep."""

import math

import pytest
import torch

from mhex.errors import ArgumentError
from mhex.metrics.aopc import aopc
from mhex.metrics.case import Case
from mhex.metrics.deletion import deletion
from mhex.metrics.fidelity import Fidelity, fidelity
from mhex.metrics.insertion import insertion
from mhex.metrics.log_odds import LogOdds, log_odds
from mhex.metrics.perturbation_auc import perturbation_auc
from mhex.perturb import PerturbationSweep, Subject, area
from support.additive_models import bin4, fix10, lin4, sweep_of, two4


def near(value, wanted, tolerance=1e-6):
    assert torch.allclose(
        torch.as_tensor(value).double(), torch.tensor(wanted, dtype=torch.float64), atol=tolerance, rtol=0
    )


def test_deletion_and_insertion():
    result = sweep_of(bin4(), 4)
    near(deletion(result), [0.822421])
    near(insertion(result), [0.920247])


def test_insertion_is_removal_of_the_least_read_backwards():
    result = sweep_of(bin4(), 4)
    assert torch.equal(insertion(result), area(result.curve("lif")))


def test_aopc_of_an_additive_model():
    result = sweep_of(bin4(), 4)
    near(aopc(result), [0.191185])
    near(aopc(result, first=False), [0.238982])


def test_log_odds_of_an_additive_model():
    result = sweep_of(bin4(), 4)
    near(log_odds(result), [-0.245599])
    near(log_odds(result, first=False), [-0.306999])
    near(log_odds(result, true_odds=True), [-6 * math.log(2)])


def judged(metric, fixture):
    model, x, saliency = fixture
    return metric.score(*metric.of(Case(Subject(model, x), saliency, torch.tensor([0]))))


def test_true_odds_by_the_protocol():
    metric = LogOdds(reference="zero", steps=4, tie="stable", true_odds=True)
    near(judged(metric, bin4()), [-4.158883])
    assert "true_odds=True" in str(metric.protocol)
    near(judged(LogOdds(reference="zero", steps=4, tie="stable"), bin4()), [-0.245599])


def test_centred_fidelity_by_hand():
    """Of two classes, half the difference of the logits: 0, -1, -1.5, -0.5, 0 along MIF, and 0, 0.5, 1.5, 1, 0."""
    model, x, maps = two4()
    part = {"reference": "zero", "steps": 4, "tie": "stable"}
    centred = Fidelity(centred=True, **part)
    near(judged(centred, (model, x, maps[:, 0])), [[150.0, -75.0, 75.0]])
    near(judged(Fidelity(**part), (model, x, maps[:, 0])), [[175.0, 62.5, 237.5]])
    assert "centred=True" in str(centred.protocol)


def test_a_coarser_grid_must_be_in_the_finer_one():
    result = sweep_of(bin4(), 4)
    assert result.every(2).curve("mif").shape == (1, 3)
    for stride in (0, 3, 8):
        with pytest.raises(ArgumentError, match=f"divides the 4 steps of the sweep, but got {stride}"):
            result.every(stride)


@pytest.mark.parametrize("output", ["probability", "log-odds", "logit", "centred-logit", "hit"])
def test_a_class_that_is_not_there_has_no_curve(output):
    model, x, maps = two4()
    other = torch.tensor([1, -1])
    sweep = PerturbationSweep("zero", "pixel", 4)
    result = sweep(model, x.expand(2, -1, -1, -1), maps[:, 0].expand(2, -1, -1), torch.tensor([0, 0]), other)
    assert result.curve("mif", output, "other").isnan().all(1).tolist() == [False, True]


class Sure(torch.nn.Module):
    """Scores 100 times the sum of the image, and nothing for other classes, if there are any."""

    def __init__(self, others):
        super().__init__()
        self.others = others

    def forward(self, x):
        z = 100 * x.flatten(1).sum(1, keepdim=True)
        return torch.cat([z, *[torch.zeros_like(z)] * self.others], 1)


@pytest.mark.parametrize("multi_label", [False, True])
@pytest.mark.parametrize("others", [0, 1, 3])
def test_odds_of_a_sure_model_are_finite_and_exact(others, multi_label):
    model, (_, x, saliency) = Sure(others), lin4()
    subject = Subject(model, x, multi_label=multi_label)
    sure = torch.tensor([1 if others == 0 else 0])  # of a single output, z is that of class 1
    result = PerturbationSweep("zero", "pixel", 4, tie="stable")(subject, None, saliency, sure)
    rest = 0.0 if others < 2 or multi_label else math.log(others)
    near(result.curve("mif", "log-odds"), [[100.0 * n - rest for n in (4, 3, 2, 1, 0)]])
    near(log_odds(result, true_odds=True), [-200.0])
    for scored in ("explained", "predicted"):  # where p is neither 0 nor 1, it is what p says
        p = result.curve("mif", "probability", scored)[:, -1]
        near(result.curve("mif", "log-odds", scored)[:, -1], p.logit().tolist())
    last = torch.tensor([0 if others == 0 else others])
    against = PerturbationSweep("zero", "pixel", 4, tie="stable")(subject, None, saliency, last)
    wanted = [-400.0, -300.0, -200.0, -100.0, -rest]
    near(against.curve("mif", "log-odds"), [[0.0] * 5 if multi_label and others else wanted])
    assert not against.curve("lif", "log-odds", "other").isfinite().any()  # there is no other class
    near(result.every(2).curve("mif", "log-odds"), [[100.0 * n - rest for n in (4, 2, 0)]])


def test_accuracy_under_perturbation():
    che = perturbation_auc(sweep_of(fix10(), 10), "che")
    near(che, [[35.0, 65.0]])
    near(perturbation_auc(sweep_of(fix10(), 20)), [[0.375, 0.625]])
    hits = sweep_of(fix10(), 10).curve("mif", "hit", "label")[:, 1:10].mean()
    near(100 * hits, 100 / 3, 0.05)
    assert float(perturbation_auc(sweep_of(bin4(), 4))[0, 0]) == 1.0
    swapped = bin4()
    swapped[0].weights.neg_()
    assert float(perturbation_auc(sweep_of(swapped, 4, label=1))[0, 0]) == 0.875


def test_fidelity():
    near(fidelity(sweep_of(lin4(), 4)), [[250.0, 375.0, 625.0]])
    near(fidelity(sweep_of(fix10(bias=False), 10)), [[1650.0, 1925.0, 3575.0]])


@pytest.mark.parametrize(("rule", "wanted"), [("unit", 0.5), ("left100", 0.505), ("percent", 50.0), ("mean11", 0.5)])
def test_areas_of_a_falling_line(rule, wanted):
    near(area(torch.linspace(1, 0, 101, dtype=torch.float64)[None], rule), [wanted])


def test_areas_of_a_constant():
    near(area(torch.full((1, 11), 0.8, dtype=torch.float64)), [0.8])
    near(area(torch.full((1, 11), 0.8, dtype=torch.float64), "che"), [72.0])
