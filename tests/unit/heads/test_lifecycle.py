"""Freezing the host, another task, leaving, predicting."""

import copy

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

import mhex
from mhex.errors import ArgumentError, ArgumentTypeError, CaptureError, MhexWarning
from support.hosts_with_heads import host, inputs, part, run, with_heads

LABELS = torch.tensor([0, 3, 1, 6])


def train(scaffold, x, steps=3):
    optimiser = torch.optim.SGD([p for p in scaffold.model.parameters() if p.requires_grad], 0.1)
    for _ in range(steps):
        scaffold.model.train()  # as a loop does before every epoch
        scaffold.model(x)
        scaffold.loss(LABELS).backward()
        optimiser.step()
        optimiser.zero_grad()
    scaffold.model.eval()


# --- freezing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"preset": "probe"}, {"coupling": "head_only"}])
@pytest.mark.parametrize("name", ["tv_resnet", "timm_resnet"])
def test_frozen_host_stays_as_it_is(name, options):
    scaffold, x = with_heads(name, **options), inputs(name)
    state, before = copy.deepcopy(scaffold.host_state_dict()), run(scaffold.model, x)
    heads = copy.deepcopy(scaffold.heads.state_dict())
    scaffold.freeze_host()
    train(scaffold, x)
    assert all(torch.equal(value, state[key]) for key, value in scaffold.host_state_dict().items())
    assert torch.equal(run(scaffold.model, x), before)
    assert any(not torch.equal(value, heads[key]) for key, value in scaffold.heads.state_dict().items())


def test_unfrozen_host_moves():
    scaffold, x = with_heads("tv_resnet", preset="probe"), inputs("tv_resnet")
    state = copy.deepcopy(scaffold.host_state_dict())
    scaffold.freeze_host()
    scaffold.freeze_host()  # twice is once
    scaffold.unfreeze_host()
    train(scaffold, x)
    for key in ("conv1.weight", "bn1.running_mean", "bn1.num_batches_tracked"):
        assert not torch.equal(scaffold.host_state_dict()[key], state[key])


def test_freezing_is_undone_exactly():
    scaffold = with_heads("tv_resnet", active=False)
    model = scaffold.model.train()
    model.conv1.weight.requires_grad_(False)
    before = {name: p.requires_grad for name, p in model.named_parameters()}
    scaffold.freeze_host()
    assert [n for n, p in model.named_parameters() if p.requires_grad] == [
        f"mhex.{n}" for n, _ in scaffold.heads.named_parameters()
    ]
    assert not model.bn1.training
    assert model.layer1[0].conv1.training  # only norms are held
    scaffold.unfreeze_host()
    assert {name: p.requires_grad for name, p in model.named_parameters()} == before
    assert all(module.training for module in model.modules())
    scaffold.freeze_host()
    scaffold.detach()
    assert not model.conv1.weight.requires_grad
    assert model.fc.weight.requires_grad


# --- another task -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("coupling", ["shared", "head_only"])
def test_new_classes(coupling, tmp_path):
    scaffold, x = (
        with_heads("tv_resnet", coupling=coupling, dtype=torch.float64),
        inputs("tv_resnet", dtype=torch.float64),
    )
    scaffold.predict_from = "classifier"
    before = run(scaffold.model, x)
    kept = {k: v.clone() for k, v in scaffold.heads.state_dict().items() if "w2" not in k}
    scaffold.heads["layer1.0"].intercept = torch.ones(7)
    scaffold.reset_classes(3)
    now = scaffold.heads.state_dict()
    assert set(now) == set(kept) | {f"blocks.{i}.w2.weight" for i in range(4)}
    assert all(torch.equal(now[key], value) for key, value in kept.items())
    for block in scaffold.heads.blocks:
        weight = block.w2.weight
        assert (tuple(weight.shape), weight.dtype, weight.requires_grad) == ((3, block.channels), torch.float64, True)
        assert 0.5 * block.channels**-0.5 < weight.abs().max() <= block.channels**-0.5
    assert torch.equal(run(scaffold.model, x), before)  # the gates are as they were
    assert scaffold.predict(x).shape == (4, 3)
    assert scaffold.predict_from == "last_head"  # the host's classifier has 7 classes
    assert scaffold.num_classes == 3
    scaffold.save(tmp_path / "heads.safetensors")
    assert mhex.attach(host("tv_resnet"), weights=tmp_path / "heads.safetensors").num_classes == 3


def test_files_of_another_format_are_refused(tmp_path):
    path = tmp_path / "heads.safetensors"
    with_heads("tv_resnet").save(path)
    with safe_open(path, "pt") as file:
        header = file.metadata()
    save_file(load_file(path), path, {**header, "format": "mhex heads 2"})
    with pytest.raises(ArgumentError, match="says 'mhex heads 2'"):
        mhex.attach(host("tv_resnet"), weights=path)
    save_file(load_file(path), path, header)
    assert mhex.attach(host("tv_resnet"), weights=path).num_classes == 7


def test_new_classes_after_stripping():
    scaffold, x = with_heads("tv_resnet"), inputs("tv_resnet")
    scaffold.predict_from = "classifier"
    scaffold.strip_heads()
    scaffold.reset_classes(5)
    assert scaffold.predict(x).shape == (4, 5)
    scaffold = with_heads("tv_resnet", preset="probe")
    scaffold.predict_from = "classifier"
    scaffold.strip_heads()
    with pytest.raises(ArgumentError, match="stripped of its first matrix"):
        scaffold.reset_classes(5)


def test_wrong_numbers_of_classes():
    scaffold = with_heads("tv_resnet")
    with pytest.raises(ArgumentError, match="at least one"):
        scaffold.reset_classes(0)
    with pytest.raises(ArgumentTypeError, match="whole number"):
        scaffold.reset_classes(2.0)


# --- leaving ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "active", "warned"),
    [
        ({}, False, False),
        ({}, True, True),
        ({"preset": "paper"}, False, True),
        ({"preset": "probe"}, True, False),
        ({"preset": "warmup"}, True, False),
        ({"coupling": "head_only"}, True, False),
    ],
)
def test_detaching_active_gates_is_warned_of(options, active, warned, recwarn):
    scaffold, x = with_heads("tv_resnet", active=active, **options), inputs("tv_resnet")
    before = run(scaffold.model, x)
    plain = scaffold.detach()
    said = [str(w.message) for w in recwarn if issubclass(w.category, MhexWarning)]
    assert len(said) == warned
    assert torch.equal(run(plain, x), before) != warned
    assert torch.equal(run(plain, x), run(host("tv_resnet"), x))


def test_constant_gates_are_warned_of():
    scaffold = with_heads("tv_resnet", preset="paper")
    for block in scaffold.heads.blocks:
        nn.init.zeros_(block.w1.weight)  # one half everywhere
    with pytest.warns(MhexWarning, match="another function"):
        scaffold.detach()


# --- predicting -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["tv_resnet", "hf_bert"])
def test_predictions_come_from_the_chosen_source(name):
    scaffold, x = with_heads(name), inputs(name)
    whole = {}
    for source in ("classifier", "last_head", "sum"):
        scaffold.predict_from = source
        run(scaffold.model, x)
        whole[source] = scaffold.predict(x)
        assert torch.equal(whole[source], scaffold.logits)
        assert not whole[source].requires_grad
    assert torch.equal(whole["classifier"], run(scaffold.model, x))
    assert not torch.equal(whole["last_head"], whole["sum"])
    loader = [part(x, slice(0, 3)), part(x, slice(3, 4))]
    labels = [LABELS[:3], LABELS[3:]]
    pairs = list(zip(loader, labels, strict=True))
    kinds = [loader, pairs, iter(loader)]
    if isinstance(x, dict):
        kinds.append([{**batch, "labels": label} for batch, label in pairs])
    for kind in kinds:
        assert torch.allclose(scaffold.predict(kind), whole["sum"], rtol=1e-4, atol=1e-5)


def test_predict_leaves_the_model_as_it_was():
    scaffold, x = with_heads("timm_vit"), inputs("timm_vit")
    before = scaffold.predict(x)
    scaffold.model.train()
    scaffold.model.blocks[1].eval()
    modes = [module.training for module in scaffold.model.modules()]
    assert torch.equal(scaffold.predict(x), before)
    assert [module.training for module in scaffold.model.modules()] == modes


def test_predicted_classes_of_one_and_of_several_labels():
    scaffold, x = with_heads("tv_resnet"), inputs("tv_resnet")
    with pytest.raises(CaptureError, match="call the model first"):
        _ = scaffold.predictions
    run(scaffold.model, x)
    assert torch.equal(scaffold.predictions, scaffold.logits.argmax(1))
    several = with_heads("tv_resnet", multi_label=True)
    run(several.model, x)
    assert torch.equal(several.predictions, several.logits > 0)


def test_wrong_data():
    scaffold = with_heads("tv_resnet")
    with pytest.raises(ArgumentError, match="empty"):
        scaffold.predict([])
    with pytest.raises(ArgumentTypeError, match="loader"):
        scaffold.predict(3)
