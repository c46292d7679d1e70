"""Fixed gates: what they are, where they go, and what they change."""

import pytest
import torch
from torch import nn

import mhex
from mhex.errors import ArgumentError
from mhex.heads.fold import FoldedBlock
from mhex.heads.predictors import watched
from support.hosts_with_heads import close, inputs, part, run, with_heads
from support.residual_units import CLASSES, Net, images


def gates(scaffold, x):
    with watched(scaffold.model) as watch:
        return {name: block.gate for name, block in watch(x).blocks.items()}


@pytest.mark.parametrize(
    "name", ["tv_resnet18", "timm_resnet", "tv_bottlenecks", "hf_bert", "timm_vit", "timm_convnext"]
)
@pytest.mark.slow
def test_one_sample_is_its_own_mean(name):
    scaffold, x = with_heads(name), inputs(name)
    one = part(x, slice(0, 1))
    for source in ("classifier", "last_head", "sum"):
        scaffold.predict_from = source
        folded, report = scaffold.fold_static(one)
        assert close(run(folded, one), scaffold.predict(one), 3e-5)
        assert not close(run(folded, x), scaffold.predict(x), 1e-3)  # the others have other gates
        assert (report.calibration.samples, report.calibration.top1_agreement) == (1, 1.0)
        assert not any("w1" in key for key in folded.state_dict())


def test_batch_norms_absorb_the_gates_of_projections():
    scaffold, x = with_heads("tv_resnet18"), inputs("tv_resnet18")
    mean = {name: gate.mean(0) for name, gate in gates(scaffold, x).items()}
    folded, _ = scaffold.fold_static(x, predict_from="classifier")
    planted = {n: m for n, m in folded.named_modules() if isinstance(m, FoldedBlock)}
    assert set(planted) == {f"layer{i}.{j}.mhex_gate" for i, j in ((1, 0), (1, 1), (2, 1), (3, 1), (4, 1))}
    for name, module in planted.items():
        assert torch.allclose(module.factors[0], mean[name.removesuffix(".mhex_gate")], rtol=1e-5)
    for i in (2, 3, 4):
        before = scaffold.model.get_submodule(f"layer{i}.0.downsample.1")
        after = folded.get_submodule(f"layer{i}.0.downsample.1")
        assert type(after) is nn.BatchNorm2d
        for term in ("weight", "bias"):
            assert torch.allclose(getattr(after, term), getattr(before, term) * mean[f"layer{i}.0"], rtol=1e-5)
        assert torch.equal(after.running_var, before.running_var)
    assert sum(p.numel() for p in folded.parameters()) == sum(p.numel() for p in scaffold.host_parameters())


class Shared(nn.Module):
    """Its branch reads the batch norm that ends its shortcut."""

    def __init__(self):
        super().__init__()
        self.skip, self.norm, self.body = nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8), nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x):
        x = self.norm(self.skip(x))
        return x + self.body(x)


def test_a_batch_norm_that_the_branch_reads_absorbs_no_gate():
    torch.manual_seed(0)
    scaffold = mhex.attach(Net(Shared(), Shared()).eval(), CLASSES, preset="paper")
    scaffold.predict_from = "classifier"
    with torch.no_grad():
        for block in scaffold.heads.blocks:
            block.w1.weight.normal_()
    x = images(1)
    folded, _ = scaffold.fold_static(x)
    assert close(run(folded, x), scaffold.predict(x), 1e-5)
    assert sum(isinstance(module, FoldedBlock) for module in folded.modules()) == 2


def test_constant_gates_lose_nothing():
    scaffold, x = with_heads("tv_resnet18", active=False, preset="paper"), inputs("tv_resnet18")
    with torch.no_grad():
        for block in scaffold.heads.blocks:
            block.w1.weight.zero_()
    assert set(torch.cat(list(gates(scaffold, x).values()), 1).unique().tolist()) == {0.5}
    scaffold.predict_from = "classifier"
    folded, report = scaffold.fold_static(x)
    assert close(run(folded, x), scaffold.predict(x))
    assert report.calibration.top1_agreement == 1
    assert set(report.spread.values()) == {0.0}


@pytest.mark.parametrize("name", ["tv_resnet", "hf_bert"])
def test_fixed_gates_report_what_they_lose(name):
    scaffold, x = with_heads(name), inputs(name, 5)
    scaffold.predict_from = "classifier"
    loader = [(part(x, slice(0, 3)), torch.zeros(3)), (part(x, slice(3, 4)), torch.zeros(1))]
    test = part(x, slice(4, 5))
    folded, report = scaffold.fold_static(loader, test)
    whole, _ = scaffold.fold_static(part(x, slice(0, 4)))
    assert close(run(folded, x), run(whole, x))  # each sample counts once, whatever the batches
    before, after = scaffold.predict(x), run(folded, x)
    for change, rows in ((report.calibration, slice(0, 4)), (report.test, slice(4, 5))):
        moved = (after[rows] - before[rows]).abs()
        assert change.samples == moved.shape[0]
        assert change.max_change == pytest.approx(moved.max().item(), rel=1e-4)
        assert change.mean_change == pytest.approx(moved.mean().item(), rel=1e-4)
        assert change.top1_agreement == (after[rows].argmax(1) == before[rows].argmax(1)).float().mean().item()
    assert report.calibration.max_change > 1e-4
    deviation = gates(scaffold, part(x, slice(0, 4)))[scaffold.names[0]].std(0, correction=0).max()
    assert report.spread[scaffold.names[0]] == pytest.approx(deviation.item(), rel=1e-4)
    assert "predictions stayed" in str(report)
    assert report.to_dict()["test"]["samples"] == 1


def test_agreement_can_be_lost():
    scaffold, x = with_heads("tv_resnet18"), inputs("tv_resnet18", 5)
    scaffold.predict_from = "last_head"
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for block in scaffold.heads.blocks:
            block.w1.weight.mul_(10)
            block.w2.weight.normal_(generator=generator)
    _, report = scaffold.fold_static(part(x, slice(0, 1)), x)
    assert report.calibration.top1_agreement == 1
    assert report.test.top1_agreement < 1


def test_a_model_with_fixed_gates_can_be_exported():
    scaffold, x = with_heads("tv_resnet"), inputs("tv_resnet")
    folded, _ = scaffold.fold_static(x, predict_from="classifier")
    program = torch.export.export(folded, (x,))
    assert not [n for n in program.graph.nodes if "sigmoid" in str(n.target)]
    assert close(run(program.module(), x), run(folded, x))


def test_data_must_be_there():
    scaffold, x = with_heads("tv_resnet"), inputs("tv_resnet")
    scaffold.predict_from = "classifier"
    with pytest.raises(ArgumentError, match="empty"):
        scaffold.fold_static([])
    with pytest.raises(ArgumentError, match="again"):
        scaffold.fold_static(iter([x]))
