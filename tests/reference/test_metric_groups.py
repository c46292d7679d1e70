"""SaCo: closed forms, invariance, and what is undefined."""

import pytest
import torch

from mhex.errors import ArgumentError
from mhex.metrics.case import Case
from mhex.metrics.saco import GroupProtocol, GroupResult, SaCo, saco
from mhex.perturb import Subject
from support.additive_models import Additive, bin4, fix10
from support.hosts import HOSTS


def groups_of(saliency, **options):
    model, x, _ = bin4()
    runner = GroupProtocol("zero", 4, tie="stable", **options)
    return runner(Subject(model, x), None, torch.tensor(saliency).view(1, 2, 2).double())


@pytest.mark.parametrize(
    ("saliency", "wanted"),
    [((4.0, 3.0, 2.0, 1.0), 1.0), ((1.0, 2.0, 3.0, 4.0), -1.0), ((4.0, 2.0, 3.0, 1.0), 0.8)],
)
def test_closed_forms(saliency, wanted):
    assert float(saco(groups_of(saliency))) == pytest.approx(wanted, abs=1e-6)
    s = torch.tensor([sorted(saliency, reverse=True)]).double()
    d = torch.tensor([[a for _, a in sorted(zip(saliency, (4.0, 3.0, 2.0, 1.0), strict=True), reverse=True)]])
    result = GroupResult((0,), s, d.double()[..., None].expand(1, 4, 3))
    assert float(saco(result)) == pytest.approx(wanted, abs=1e-6)


def test_equal_losses_count_as_agreement():
    result = GroupResult((0,), torch.tensor([[3.0, 1.0]]).double(), torch.ones(1, 2, 3).double())
    assert float(saco(result)) == 1.0


def test_each_group_is_hidden_alone():
    model, x, saliency = bin4()
    result = GroupProtocol("zero", 2)(Subject(model, x), None, saliency)
    p = [2.0**n / (1 + 2.0**n) for n in (10, 3, 7)]
    assert result.of("predicted")[0].tolist() == pytest.approx([p[0] - p[1], p[0] - p[2]], abs=1e-12)
    assert result.importance[0].tolist() == [2.5, 0.5]  # means above the lowest score


def test_factor_and_offset_do_not_matter_also_with_uneven_groups():
    draw = torch.Generator().manual_seed(0)
    model = Additive(torch.randn(3, 49, generator=draw))
    x, maps = torch.rand(2, 1, 7, 7, generator=draw).double(), torch.randn(2, 7, 7, generator=draw).double()
    values = [saco(GroupProtocol("mean", 10)(Subject(model, x), None, m)) for m in (maps, 3 * maps + 100, maps - 100)]
    assert torch.allclose(values[0], values[1], atol=1e-9)
    assert torch.allclose(values[0], values[2], atol=1e-9)
    assert torch.allclose(saco(GroupProtocol("mean", 10)(Subject(model, x), None, maps**3)), values[0]) is False


def test_constant_maps_score_zero_and_are_counted():
    model, x, _ = fix10()
    metric = SaCo(reference="zero", groups=3)
    metric.update(*metric.of(Case(Subject(model, x), torch.full((1, 2, 5), 0.1).double())))
    found = metric.compute()
    assert (found["value"], found["all"]["flat"]["value"], found["n"]) == (0.0, 1.0, 1)
    metric = SaCo(reference="zero", groups=3)
    metric.update(*metric.of(Case(Subject(model, x), fix10()[2])))
    assert metric.compute()["all"]["flat"]["value"] == 0.0


def test_groups_without_a_unit_have_no_part():
    result = groups_of((4.0, 3.0, 2.0, 1.0))
    model, x, saliency = bin4()
    more = GroupProtocol("zero", 10)(Subject(model, x), None, saliency)
    assert int(more.importance.isnan().sum()) == 6
    assert torch.equal(saco(more), saco(result))


def test_batches_and_chunks_do_not_matter():
    draw = torch.Generator().manual_seed(4)
    model = Additive(torch.randn(3, 64, generator=draw))
    x = torch.rand(4, 1, 8, 8, generator=draw).double()
    maps = torch.randint(4, (4, 8, 8), generator=draw).double()  # many ties
    runner = GroupProtocol("mean", 10)
    whole = runner(Subject(model, x, ids=[3, 4, 5, 6]), None, maps)
    small = runner(Subject(model, x, ids=[3, 4, 5, 6], batch_size=7), None, maps)
    singles = [runner(Subject(model, x[n : n + 1], ids=[3 + n]), None, maps[n : n + 1]) for n in range(4)]
    assert torch.allclose(saco(whole), saco(small), atol=1e-12)
    assert torch.allclose(saco(whole), torch.cat([saco(one) for one in singles]), atol=1e-12)
    assert len(set(saco(whole).tolist())) == 4


def test_padding_of_texts_belongs_to_no_group():
    model = HOSTS["hf_bert"]().eval()
    ids = torch.randint(10, 30, (2, 9), generator=torch.Generator().manual_seed(0))
    real = torch.ones_like(ids)
    real[1, 6:] = 0
    maps = torch.rand(2, 9, generator=torch.Generator().manual_seed(1))
    inputs = {"input_ids": ids, "attention_mask": real}
    metric = SaCo("text", reference="pad", groups=3)
    metric.update(*metric.of(Case(Subject(model, inputs), maps)))
    assert metric.compute()["n"] == 2
    short = {name: value[1:, :6] for name, value in inputs.items()}
    alone = SaCo("text", reference="pad", groups=3)
    alone.update(*alone.of(Case(Subject(model, short, ids=[1]), maps[1:, :6])))
    assert torch.allclose(alone.rows()[1], metric.rows()[1][1:], atol=1e-5)  # padding has no part


def test_passes_and_sharing():
    model, x, saliency = fix10()
    case = Case(Subject(model, x), saliency)
    for _ in range(2):
        SaCo(reference="zero").of(case)
    assert case.subject.passes == 11


def test_wrong_input():
    model, x, saliency = bin4()
    with pytest.raises(ArgumentError, match="at least 2 groups"):
        GroupProtocol(groups=1)
    with pytest.raises(ArgumentError, match="label="):
        saco(GroupProtocol("zero", 2)(Subject(model, x), None, saliency), "label")
    with pytest.raises(ArgumentError, match="scored to be one of"):
        saco(GroupProtocol("zero", 2)(Subject(model, x), None, saliency), "best")
    with pytest.raises(ArgumentError, match="one map for each"):
        GroupProtocol("zero", 2)(Subject(model, x), None, saliency[0])
