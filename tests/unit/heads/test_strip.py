"""Taking heads off: predictions stay the same to the last bit."""

import pytest
import torch
from torch import nn

import mhex
from mhex.errors import ArgumentError, CaptureError, MhexWarning
from support.hosts_with_heads import RESNETS, host, inputs, run, with_heads

HOSTS = (*RESNETS, "hf_bert", "timm_vit", "hf_vit", "timm_convnext")


def matrices(scaffold):
    return [(b.w1 is not None, b.w2 is not None) for b in scaffold.heads.named_blocks().values()]


@pytest.mark.parametrize("name", HOSTS)
def test_classifier_predicts(name):
    scaffold, x = with_heads(name), inputs(name)
    before = run(scaffold.model, x)
    plain = run(host(name), x)
    assert not torch.equal(before, plain)  # the gates do something
    gone = scaffold.strip_heads()
    assert gone == scaffold.num_classes * sum(scaffold.settings.channels)
    assert set(matrices(scaffold)) == {(True, False)}
    assert torch.equal(run(scaffold.model, x), before)
    assert torch.equal(scaffold.predict(x), before)


@pytest.mark.parametrize("name", HOSTS)
@pytest.mark.slow
def test_last_head_predicts(name):
    scaffold, x = with_heads(name), inputs(name)
    scaffold.predict_from = "last_head"
    before = scaffold.predict(x)
    gone = scaffold.strip_heads()
    assert gone == scaffold.num_classes * sum(scaffold.settings.channels[:-1])
    assert matrices(scaffold) == [(True, False)] * (len(scaffold.names) - 1) + [(True, True)]
    assert torch.equal(scaffold.predict(x), before)


def test_sum_predicts():
    scaffold, x = with_heads("tv_resnet"), inputs("tv_resnet")
    scaffold.predict_from = "sum"
    before = scaffold.predict(x)
    with pytest.warns(MhexWarning, match="sum of all heads"):
        assert scaffold.strip_heads() == 0
    assert set(matrices(scaffold)) == {(True, True)}
    assert torch.equal(scaffold.predict(x), before)


@pytest.mark.parametrize("preset", ["probe", "warmup"])
@pytest.mark.parametrize("coupling", ["shared", "separate", "head_only"])
def test_gates_that_are_off(preset, coupling, recwarn):
    scaffold = with_heads("tv_resnet18", preset=preset, coupling=coupling)
    x = inputs("tv_resnet18")
    before = run(scaffold.model, x)
    scaffold.strip_heads()
    assert list(scaffold.head_parameters()) == []
    assert torch.equal(run(scaffold.model, x), before)
    assert torch.equal(run(scaffold.detach(), x), before)
    assert not [w for w in recwarn if issubclass(w.category, MhexWarning)]


@pytest.mark.parametrize(("coupling", "kept"), [("shared", True), ("separate", False)])
def test_last_head_with_gates_that_are_off(coupling, kept):
    scaffold = with_heads("tv_resnet18", preset="probe", coupling=coupling)
    scaffold.predict_from = "last_head"
    x = inputs("tv_resnet18")
    before = scaffold.predict(x)
    scaffold.strip_heads()
    assert matrices(scaffold) == [(False, False)] * 7 + [
        (kept, True)
    ]  # a shared head reads W1, a separate one does not
    assert torch.equal(scaffold.predict(x), before)


def test_what_is_gone_is_missed_clearly():
    scaffold, x = with_heads("tv_resnet"), inputs("tv_resnet")
    scaffold.predict_from = "last_head"
    scaffold.model(x)
    scaffold.strip_heads()
    scaffold.model(x)
    with pytest.raises(CaptureError, match=r"layer1\.0, layer2\.0, layer3\.0 were stripped"):
        scaffold.loss(torch.zeros(4, dtype=torch.long))
    with pytest.raises(CaptureError, match="stripped"):
        scaffold.equivalent_matrix("layer1.0")
    with pytest.raises(CaptureError, match="stripped"):
        scaffold(x, return_heads=True)
    scaffold.predict_from = "sum"
    with pytest.raises(CaptureError, match="stripped"):
        scaffold.predict(x)
    scaffold.predict_from = "classifier"
    scaffold.strip_heads()
    scaffold.predict_from = "last_head"
    with pytest.raises(CaptureError, match="stripped"):
        scaffold.predict(x)
    with pytest.raises(CaptureError, match="stripped"):
        scaffold.strip_heads()


@pytest.mark.parametrize("source", ["classifier", "last_head"])
@pytest.mark.parametrize("preset", ["identity", "probe"])
def test_files_keep_what_is_left(tmp_path, source, preset):
    scaffold, x = with_heads("tv_resnet", preset=preset), inputs("tv_resnet")
    scaffold.predict_from = source
    run(scaffold.model, x)
    scaffold.strip_heads()
    scaffold.save(tmp_path / "heads.safetensors")
    again = mhex.attach(host("tv_resnet"), weights=tmp_path / "heads.safetensors")
    assert list(again.heads.state_dict()) == list(scaffold.heads.state_dict())
    assert matrices(again) == matrices(scaffold)
    assert again.predict_from == source
    assert torch.equal(again.predict(x), scaffold.predict(x))


def test_intercepts_go_with_their_heads():
    scaffold, x = with_heads("tv_resnet"), inputs("tv_resnet")
    for block in scaffold.heads.blocks:
        block.intercept = torch.randn(7)
    scaffold.predict_from = "last_head"
    before = scaffold.predict(x)
    scaffold.strip_heads()
    assert [b.intercept is None for b in scaffold.heads.blocks] == [True, True, True, False]
    assert torch.equal(scaffold.predict(x), before)


def test_unknown_source_is_asked_for():
    scaffold = with_heads("tv_resnet")
    with pytest.raises(CaptureError, match="call the model once"):
        scaffold.strip_heads()
    with pytest.raises(ArgumentError, match="Did you mean 'last_head'"):
        scaffold.fold("last-head")


class Unit(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x):
        return torch.relu(x + self.conv(x))


class Backwards(nn.Module):
    """Written in another order than it runs."""

    def __init__(self):
        super().__init__()
        self.late, self.early = Unit(), Unit()
        self.stem = nn.Conv2d(3, 8, 3)

    def forward(self, x):
        return self.late(self.early(self.stem(x)))


def test_last_is_what_runs_last():
    model, x = Backwards().eval(), torch.randn(3, 3, 9, 9)
    scaffold = mhex.attach(model, 5, preset="paper")
    with torch.no_grad():
        model(x)
        assert scaffold.predict_from == "last_head"
        before = scaffold.logits
        folded = scaffold.fold()
        assert torch.allclose(folded(x), before, rtol=1e-5)
        scaffold.predict_from = "last_head"
        scaffold.heads.record.forget()
        scaffold.strip_heads()
    assert scaffold.heads["early"].w2 is None
    assert scaffold.heads["late"].w2 is not None
    assert torch.equal(scaffold.predict(x), before)
