"""Class discrimination: closed forms, sharing, and images that do not count."""

import pytest
import torch

from mhex.errors import ArgumentError
from mhex.metrics.box_sensitivity import BoxProtocol, BoxSensitivity, box_sensitivity
from mhex.metrics.case import Case
from mhex.metrics.class_discrimination import ClassDiscrimination, class_discrimination
from mhex.metrics.fidelity import fidelity
from mhex.perturb import PerturbationSweep, Subject
from support.additive_models import additive, two4


def pair_of(subject, maps, first, second):
    """Cases of maps (B, 2, h, w) for two classes, with each other as the other class."""

    def case(own, other, column):
        return Case(subject, maps[:, column], own, other_class=other)

    one = case(first, second, 0)
    safe = torch.where(second < 0, first, second)
    one.other = lambda: case(safe, first, 1)
    return one


def test_class_discrimination_of_two4():
    model, x, maps = two4()
    subject = Subject(model, x)
    sweep = PerturbationSweep("zero", "pixel", 4, tie="stable")
    c, d = torch.tensor([0]), torch.tensor([1])
    right, wrong = (
        sweep(subject, None, maps[:, 0], c, other_class=d),
        sweep(subject, None, maps[:, 1], d, other_class=c),
    )
    assert fidelity(right, "explained").tolist() == [[175.0, 62.5, 237.5]]
    assert fidelity(wrong, "other").tolist() == [[-125.0, 212.5, 87.5]]
    boxes = BoxProtocol("zero", (1,), 50)(subject)
    found = class_discrimination(right, wrong, boxes, (maps[:, 0], maps[:, 1]))
    assert float(found[0, 0]) == pytest.approx(300.0, abs=1e-6)
    r = float(box_sensitivity(boxes, maps[:, 1], c))
    s = float(box_sensitivity(boxes, maps[:, 0], d))
    assert r < 0
    assert float(found[0, 1]) == pytest.approx(1 - (r + s) / 2, abs=1e-6)


def test_maps_that_know_no_class_discriminate_exactly_nothing():
    subject, _ = additive()
    subject.model.weights.data = subject.model.weights.data.round()
    same = torch.randint(3, (3, 8, 8), generator=torch.Generator().manual_seed(1)).double()  # many ties
    metric = ClassDiscrimination(reference="zero", steps=10, sizes=(2, 4), count=10)
    case = pair_of(subject, torch.stack([same, same], 1), torch.tensor([0, 1, 2]), torch.tensor([1, 2, 0]))
    metric.update(*metric.of(case))
    assert torch.equal(metric.rows()[1], torch.zeros(3, 3).double())


def test_class_discrimination_skips_images_of_one_class_and_shares_its_passes():
    subject, maps = additive()
    protocol = {"reference": "zero", "steps": 10, "sizes": (2, 4), "count": 10}
    metric = ClassDiscrimination(**protocol)
    case = pair_of(subject, maps[:, :2], torch.tensor([0, 0, 0]), torch.tensor([1, -1, 0]))
    metric.update(*metric.of(case))
    found = metric.compute()
    assert (found["n"], found["n_skipped"]) == (1, 2)
    assert found["value"] > 0
    assert found["all"]["box"]["value"] > 0.3
    # Clean, two maps of two orders (the ends once each), boxes.
    assert subject.passes == 3 * (1 + 2 * 19 + 20)
    boxes = BoxSensitivity(reference="zero", sizes=(2, 4), count=10)
    boxes.update(*boxes.of(case))
    assert subject.passes == 3 * (1 + 2 * 19 + 20)


def test_class_discrimination_needs_both_classes():
    subject, maps = additive()
    metric = ClassDiscrimination(reference="zero", steps=10, sizes=(2,), count=10)
    with pytest.raises(ArgumentError, match="other_class"):
        metric.of(Case(subject, maps[:, 0]))
    case = pair_of(subject, maps[:, :2], torch.tensor([0, 0, 0]), torch.tensor([1, 1, 1]))
    case.other = lambda: Case(subject, maps[:, 1], torch.tensor([2, 2, 2]), other_class=torch.tensor([0, 0, 0]))
    with pytest.raises(ArgumentError, match="exchanged"):
        metric.update(*metric.of(case))
