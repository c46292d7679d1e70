"""Random maps and masks, for metrics of where a map is."""

import torch
import torch.nn.functional as F

from mhex.metrics.case import Case
from mhex.perturb import Subject
from support.additive_models import Additive

MAP = torch.tensor([[[1.0, 0.2], [0.6, 0.0]]], dtype=torch.float64)
OBJECT = torch.tensor([[[1, 1], [0, 0]]])
LEFT = torch.tensor([[[1, 0], [1, 0]]])


def near(value, wanted):
    assert torch.allclose(torch.as_tensor(value).double(), torch.tensor(wanted).double(), atol=1e-6, rtol=0)


def random_case(count=6, size=8, mask=None):
    """Random maps of 4 x 4, and masks of 8 x 8 with every kind of pixel."""
    draw = torch.Generator().manual_seed(3)
    saliency = torch.randn(count, 4, 4, generator=draw).double()
    mask = torch.randint(-1, 2, (count, size, size), generator=draw) if mask is None else mask
    subject = Subject(Additive(torch.ones(2, size * size)), torch.zeros(count, 1, size, size).double())
    return Case(subject, saliency, mask=mask)


def one_of(case, n):
    subject = Subject(case.subject.model, case.subject.main[n : n + 1], ids=[case.ids[n]])
    return Case(subject, case.saliency[n : n + 1], mask=case.mask[n : n + 1])


def computed(metric, *cases):
    for case in cases:
        metric.update(*metric.of(case))
    return metric.compute()


def large(case):
    return F.interpolate(case.saliency[:, None], size=(8, 8), mode="bilinear")[:, 0]
