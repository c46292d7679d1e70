"""Box sensitivity: closed forms, sharing, and what is undefined."""

import dataclasses

import pytest
import torch
from torch import nn

from mhex.errors import ArgumentError
from mhex.metrics.box_sensitivity import BoxProtocol, BoxSensitivity, box_area, box_sensitivity
from mhex.metrics.case import Case
from mhex.perturb import Subject
from mhex.stats.correlation import linear_correlation, mean_ranks, rank_correlation
from support.additive_models import additive


class Curved(nn.Module):
    """Not additive, so that correlations are neither 1 nor -1."""

    def __init__(self, classes=3, side=8):
        super().__init__()
        weights = torch.randn(classes, side * side, generator=torch.Generator().manual_seed(1))
        self.weights = nn.Parameter(weights.double())

    def forward(self, x):
        return torch.tanh(x.flatten(1) @ self.weights.mT) + x.flatten(1)[:, :3].square()


def test_correlations_are_those_of_scipy():
    stats = pytest.importorskip("scipy.stats")
    draw = torch.Generator().manual_seed(0)
    a, b = torch.randint(5, (4, 30), generator=draw).double(), torch.randn(4, 30, generator=draw).double()
    for n in range(4):
        assert float(linear_correlation(a, b)[n]) == pytest.approx(stats.pearsonr(a[n], b[n]).statistic, abs=1e-12)
        assert float(rank_correlation(a, b)[n]) == pytest.approx(stats.spearmanr(a[n], b[n]).statistic, abs=1e-12)
    assert mean_ranks(torch.tensor([[3.0, 1.0, 3.0, 2.0]])).tolist() == [[2.5, 0.0, 2.5, 1.0]]
    assert bool(linear_correlation(torch.ones(1, 5), b[:1, :5]).isnan())
    tiny = torch.tensor([[1.0, 2.0, 1.0, 4.0, 3.0]]).double() * 1e-200
    line = torch.arange(1, 6)[None].double()
    assert float(linear_correlation(line, tiny)) == pytest.approx(
        float(linear_correlation(line, tiny * 1e200)), abs=1e-12
    )


def test_rows_without_a_value_have_no_correlation():
    for one in (linear_correlation, rank_correlation):
        found = one(torch.zeros(2, 3, 0), torch.zeros(2, 3, 0))
        assert found.shape == (2, 3)
        assert found.isnan().all()


@pytest.mark.parametrize("shape", ["box", "pixels"])
def test_right_maps_of_additive_models_correlate_perfectly(shape):
    subject, maps = additive()
    explained = torch.tensor([0, 1, 2])
    own = maps[torch.arange(3), explained]
    result = BoxProtocol("zero", (1, 3, 5, 7), 20, shape=shape)(subject, None, explained)
    assert torch.allclose(box_sensitivity(result, own, explained), torch.ones(3, 4).double(), atol=1e-6)
    assert torch.allclose(box_sensitivity(result, -own, explained), -torch.ones(3, 4).double(), atol=1e-6)
    area, normalised = box_area(box_sensitivity(result, own, explained), result.sizes)
    assert torch.allclose(area, torch.full((3,), 6.0).double(), atol=1e-6)
    assert torch.allclose(normalised, torch.ones(3).double(), atol=1e-6)


def test_sums_and_losses_are_those_of_the_drawn_boxes():
    subject, maps = additive()
    result = BoxProtocol("mean", (2, 5), 10)(subject)
    stand_in = subject.batch.pixels.mean((2, 3), keepdim=True)
    for b, s, n in [(0, 0, 0), (1, 1, 3), (2, 0, 9)]:
        top, left = result.corners[b, s, n].tolist()
        rows, columns = slice(top, top + result.sides[s]), slice(left, left + result.sides[s])
        assert float(result.sums(maps[:, 0])[b, s, n]) == pytest.approx(float(maps[b, 0, rows, columns].sum()))
        changed = subject.batch.pixels[b : b + 1].clone()
        changed[:, :, rows, columns] = stand_in[b]
        wanted = subject.logits[b] - subject.model(changed)[0]
        for c in range(3):
            lost = result.lost(torch.full((3,), c))[b, s, n]
            assert float(lost) == pytest.approx(float(wanted[c]), abs=1e-9)
    assert len({tuple(c) for c in result.corners[0, 0].tolist()}) > 3  # boxes lie in different places


def test_what_has_no_variance_counts_as_zero():
    subject, maps = additive()
    runner = BoxProtocol("zero", (1, 4, 8), 20)
    metric = BoxSensitivity(sizes=(1, 4, 8), count=20, reference="zero")
    constant = torch.full((3, 8, 8), 0.1).double()
    assert torch.equal(box_sensitivity(runner(subject), constant), torch.zeros(3, 3).double())
    metric.update(runner(subject), constant)
    found = metric.compute()
    assert found["value"] == 0
    assert found["n"] == 3
    assert found["all"]["flat"]["value"] == 1
    metric.reset()
    metric.update(runner(subject), maps[:, 0], torch.zeros(3).long())  # the largest box has one place only
    found = metric.compute()
    assert found["all"]["flat"]["value"] == pytest.approx(1 / 3)
    assert found["all"]["area"]["value"] == pytest.approx(3 + 4 / 2, abs=1e-6)
    assert found["value"] == pytest.approx(5 / 7, abs=1e-6)


def test_a_model_that_loses_nothing_counts_as_zero():
    subject, maps = additive()
    blank = Subject(subject.model, torch.zeros_like(subject.batch.pixels))
    assert torch.equal(box_sensitivity(BoxProtocol("zero", (1, 3), 20)(blank), maps[:, 0]), torch.zeros(3, 2).double())


def test_boxes_are_shared_by_maps_and_classes():
    subject, maps = additive()
    metric = BoxSensitivity(sizes=(2, 4), count=10, reference="zero")
    for c in range(3):
        for sign in (1, -1):
            metric.update(*metric.of(Case(subject, sign * maps[:, c], torch.full((3,), c))))
    assert subject.passes == 3 + 3 * 2 * 10


def test_many_classes_are_kept_as_they_are_asked_for():
    subject, maps = additive(classes=100)
    runner = BoxProtocol("zero", (2,), 10)
    runner(subject, None, torch.tensor([1, 2, 3]), other_class=torch.tensor([4, 5, -1]))
    assert subject.passes == 3 + 30
    again = runner(subject, None, torch.tensor([4, 5, 3]))
    assert subject.passes == 3 + 30
    assert torch.allclose(box_sensitivity(again, maps[torch.arange(3), [4, 5, 3]], torch.tensor([4, 5, 3])),
                          torch.ones(3, 1).double())  # fmt: skip
    with pytest.raises(ArgumentError, match="were kept"):
        box_sensitivity(again, maps[:, 0], torch.tensor([50, 50, 50]))
    more = runner(subject, None, torch.tensor([50, 50, 50]))
    assert subject.passes == 3 + 60
    assert torch.equal(more.lost(torch.tensor([4, 5, 3])), again.lost(torch.tensor([4, 5, 3])))


@pytest.mark.parametrize("shape", ["box", "pixels"])
def test_batches_and_chunks_do_not_matter(shape):
    x = torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(2)).double()
    maps = torch.rand(4, 8, 8, generator=torch.Generator().manual_seed(3)).double()
    runner = BoxProtocol("mean", (2, 3, 5), 12, seed=7, shape=shape)
    whole = box_sensitivity(runner(Subject(Curved(), x, ids=[5, 6, 7, 8])), maps)
    small = box_sensitivity(runner(Subject(Curved(), x, ids=[5, 6, 7, 8], batch_size=5)), maps)
    singles = [box_sensitivity(runner(Subject(Curved(), x[n : n + 1], ids=[5 + n])), maps[n : n + 1]) for n in range(4)]
    assert 0.01 < float(whole.abs().mean()) < 0.9
    assert torch.allclose(whole, small, atol=1e-12)
    assert torch.allclose(whole, torch.cat(singles), atol=1e-12)
    other = box_sensitivity(dataclasses.replace(runner, seed=8)(Subject(Curved(), x, ids=[5, 6, 7, 8])), maps)
    assert not torch.allclose(whole, other)


def test_each_size_has_draws_of_its_own():
    subject, _ = additive()
    both, one = BoxProtocol("zero", (2, 5), 10)(subject), BoxProtocol("zero", (5,), 10)(subject)
    assert torch.equal(both.corners[:, 1:], one.corners)
    sweep = BoxProtocol(shape="pixels")
    few, more = (set(sweep.pixels(0, side, 0, (8, 8)).tolist()) for side in (3, 4))
    assert (len(few), len(more)) == (9, 16)
    assert not few <= more


def test_sides_of_boxes_are_those_of_the_papers():
    assert BoxProtocol().sides(224, 224)[1] == (26, 53, 80, 107, 134, 161, 188, 215)
    assert BoxProtocol(sizes=4).sides(12, 12)[1] == (1, 2, 3)  # 100 places of the largest
    paper = BoxSensitivity("cdam").protocol
    assert paper.sides(224, 224) == (tuple(range(1, 28)), tuple(range(8, 224, 8)))
    assert paper.sides(56, 70)[1] == tuple(range(2, 56, 2))
    area, normalised = box_area(torch.full((1, 27), 0.5).double(), tuple(range(1, 28)))
    assert (float(area), float(normalised)) == (13.0, 0.5)
    assert float(box_area(torch.full((1, 1), 0.5).double(), (4,))[1]) == 0.5


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sizes": (9,)}, "fit images of 8x8"),
        ({"sizes": 8}, "at least 100 places"),
        ({"sizes": (3, 2)}, "rising sizes"),
        ({"reference": "impute"}, "reference to be one of"),
        ({"shape": "disc"}, "'box' or 'pixels'"),
        ({"count": 1}, "at least 2 boxes"),
    ],
)
def test_wrong_boxes_are_refused(options, words):
    subject, _ = additive()
    with pytest.raises(ArgumentError, match=words):
        BoxProtocol(**{"reference": "zero", **options})(subject)


def test_wrong_maps_are_refused():
    subject, maps = additive()
    result = BoxProtocol("zero", (2,), 5)(subject)
    with pytest.raises(ArgumentError, match="for each of 3 samples"):
        box_sensitivity(result, maps[:2, 0])
    with pytest.raises(ArgumentError, match="coarser grid"):
        box_sensitivity(result, torch.ones(3, 9, 8))
    with pytest.raises(ArgumentError, match="finite"):
        box_sensitivity(result, maps[:, 0] * torch.nan)
