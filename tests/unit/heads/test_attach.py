"""Heads on stock hosts: nothing changes until training does, and everything comes off again."""

import copy

import pytest
import torch
import torchvision
import transformers
from torch import nn

import mhex
from mhex.errors import ArgumentError, CaptureError, MhexWarning, UnsupportedModelError
from support.hosts import CLASSES, HOSTS, MAIN, attached, host, inputs, run, stir
from support.snapshot import Snapshot

pytestmark = [
    pytest.mark.filterwarnings("ignore:The heads have:mhex.errors.MhexWarning"),
    pytest.mark.filterwarnings("ignore:The gates are active:mhex.errors.MhexWarning"),
]
BLOCKS = {
    "tv_resnet18": 8, "tv_resnet50": 16, "tv_bottlenecks": 6, "timm_resnet18": 8, "timm_resnet50": 16,
    "timm_bottlenecks": 6, "timm_resnet18d": 8, "timm_seresnet": 8, "tv_convnext": 3, "timm_convnext": 12,
    "timm_vit": 4, "tv_vit": 3, "hf_vit": 4, "hf_dinov2": 4, "hf_bert": 4, "hf_roberta": 4, "hf_distilbert": 4,
    "mobilenet": 11, "plain": 3,
}  # fmt: skip


# Every host is attached to in the default run, the main ones in all ways; the other pairs are slow.
HERE = [pytest.param(name, marks=() if name in MAIN else pytest.mark.slow) for name in HOSTS]


@pytest.mark.parametrize(
    ("name", "preset"),
    [
        pytest.param(name, preset, marks=() if name in MAIN or preset == "identity" else pytest.mark.slow)
        for name in HOSTS
        for preset in ("identity", "warmup", "probe")
    ],
)
@pytest.mark.slow
def test_attaching_changes_nothing(name, preset):
    model, batch = host(name), inputs(name)
    before = run(model, batch)
    scaffold = mhex.attach(model, CLASSES, preset=preset)
    assert len(scaffold.names) == BLOCKS[name]
    assert torch.equal(run(model, batch), before)
    assert all(logits.shape == (3, CLASSES) for logits in scaffold.head_logits.values())


@pytest.mark.parametrize("name", HERE)
def test_the_published_gate_changes_the_output(name):
    model, batch = stir(attached(name, preset="paper")).model, inputs(name)
    assert not torch.allclose(run(model, batch), run(host(name), batch), rtol=1e-3)


@pytest.mark.parametrize("name", HERE)
def test_detach_restores_the_host(name):
    model, batch = host(name), inputs(name)
    kinds, before = [type(m) for m in model.modules()], run(model, batch)
    snapshot = Snapshot(model)
    with torch.random.fork_rng(devices=[]):  # weights are drawn
        scaffold = stir(mhex.attach(model, CLASSES, preset="paper"))
    run(model, batch)
    assert scaffold.detach() is model
    snapshot.check()
    assert [type(m) for m in model.modules()] == kinds
    assert torch.equal(run(model, batch), before)


@pytest.mark.parametrize("name", MAIN)
@pytest.mark.slow
def test_keys_of_the_host_stay_and_its_weights_load(name):
    model, other = host(name), copy.deepcopy(host(name))
    keys, kind = list(model.state_dict()), type(model)
    scaffold = stir(mhex.attach(model, CLASSES))
    assert type(model) is kind
    assert [key for key in model.state_dict() if not key.startswith("mhex.")] == keys
    assert list(scaffold.host_state_dict()) == keys
    heads = {name: value.clone() for name, value in scaffold.heads.state_dict().items()}
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(0.01)
    model.load_state_dict(other.state_dict(), strict=True)
    assert all(torch.equal(model.state_dict()[key], other.state_dict()[key]) for key in keys)
    assert all(torch.equal(value, heads[name]) for name, value in scaffold.heads.state_dict().items())
    damaged = {key: value for key, value in model.state_dict().items() if key != "mhex.blocks.0.w2.weight"}
    with pytest.raises(RuntimeError, match="w2"):
        model.load_state_dict(damaged, strict=True)


@pytest.mark.parametrize("name", ["tv_resnet18", "hf_bert", "timm_vit", "plain"])
def test_train_then_detach(name):
    model, batch = host(name), inputs(name)
    kinds, keys = [type(m) for m in model.modules()], list(model.state_dict())
    scaffold = attached(name, preset="paper")
    model = scaffold.model.train()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    losses = []
    for _ in range(4):
        torch.manual_seed(0)  # drops the same each time
        model(batch) if isinstance(batch, torch.Tensor) else model(**batch)
        loss = scaffold.loss(torch.tensor([0, 1, 2]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]
    scaffold.detach()
    assert [type(m) for m in model.modules()] == kinds
    assert list(model.state_dict()) == keys
    assert model.training


def test_every_parameter_is_trained():
    scaffold = attached("timm_resnet18", preset="paper")
    scaffold.model(inputs("timm_resnet18"))
    scaffold.loss(torch.tensor([0, 1, 2])).backward()
    assert all(p.grad is not None and bool(p.grad.any()) for p in scaffold.head_parameters())
    assert all(p.grad is not None for p in scaffold.host_parameters())


@pytest.mark.parametrize(
    ("name", "where", "expected"),
    [
        ("tv_resnet18", "downsample", ["layer2.0", "layer3.0", "layer4.0"]),
        ("tv_resnet18", "projection", ["layer2.0", "layer3.0", "layer4.0"]),
        ("tv_bottlenecks", "downsample", ["layer2.0", "layer3.0", "layer4.0"]),
        ("tv_bottlenecks", "projection", ["layer1.0", "layer2.0", "layer3.0", "layer4.0"]),
        ("timm_resnet18d", "downsample", ["layer2.0", "layer3.0", "layer4.0"]),
        ("tv_resnet18", ["layer3.1", "layer1.0"], ["layer1.0", "layer3.1"]),
        ("hf_bert", "first3", [f"bert.encoder.layer.{i}" for i in range(3)]),
        ("timm_vit", "first2", ["blocks.0", "blocks.1"]),
        ("timm_vit", "attention+mlp", [f"blocks.{i}{part}" for i in range(4) for part in (":attention", "")]),
        ("plain", "all", ["units.0", "units.1", "(model)"]),
    ],
)  # fmt: skip
def test_heads_are_placed_where_asked_and_change_nothing(name, where, expected):
    scaffold, batch = attached(name, where=where), inputs(name)
    assert list(scaffold.names) == expected
    assert torch.equal(run(scaffold.model, batch), run(host(name), batch))
    assert set(scaffold.head_logits) == set(expected)


@pytest.mark.parametrize("name", HERE)
def test_names_are_in_order_of_execution(name):
    scaffold = attached(name, preset="paper")
    run(scaffold.model, inputs(name))
    assert tuple(scaffold.head_logits) == scaffold.names


@pytest.mark.parametrize(
    ("name", "expected"),
    [("hf_bert", "sum"), ("hf_distilbert", "sum"), ("timm_vit", "shortcut"), ("tv_resnet18", "shortcut")],
)
def test_default_gate_target(name, expected):
    assert attached(name).settings.gate_target == expected


@pytest.mark.parametrize("target", ["sum", "shortcut"])
@pytest.mark.parametrize("name", ["hf_bert", "timm_vit", "tv_resnet18"])
def test_what_the_gate_multiplies(name, target):
    """With `W1 = 0` and the published gate, g is one half everywhere."""
    scaffold = attached(name, dtype=torch.float64, preset="paper", gate_target=target, where="first1")
    model, batch = scaffold.model, inputs(name, dtype=torch.float64)
    torch.nn.init.zeros_(scaffold.heads.blocks[0].w1.weight)
    from mhex.heads.predictors import watched

    with watched(model) as see:
        call = see(batch)
    first = scaffold.names[0]
    seen = call.blocks[first]
    x, r = seen.shortcut, seen.branch
    joined, _ = scaffold.heads[first](x, r, seen.keep)
    assert torch.allclose(joined, 0.5 * (x + r) if target == "sum" else 0.5 * x + r, rtol=1e-12)


def test_layer_norm_scale_makes_the_sum_target_neutral():
    """Invariant 20: BERT divides the factor out again, so even the published gate starts without changing it."""
    batch = inputs("hf_bert")
    before = run(host("hf_bert"), batch)
    after = {}
    for target in ("sum", "shortcut"):
        scaffold = attached("hf_bert", preset="paper", gate_target=target)
        for block in scaffold.heads.blocks:
            nn.init.zeros_(block.w1.weight)
        after[target] = run(scaffold.model, batch)
    assert torch.allclose(after["sum"], before, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(after["shortcut"], before, rtol=1e-3)


@pytest.mark.parametrize("name", MAIN)
@pytest.mark.slow
def test_probe_training_leaves_predictions_and_buffers(name):
    """Invariant 4, exactly: training steps in training mode, with the host frozen."""
    scaffold, batch = attached(name, preset="probe"), inputs(name)
    model, before, state = scaffold.model, run(host(name), batch), host(name).state_dict()
    heads = [p.detach().clone() for p in scaffold.head_parameters()]
    scaffold.freeze_host()
    optimizer = torch.optim.Adam((p for p in model.parameters() if p.requires_grad), 0.1)
    model.train()
    for _ in range(2):
        model(batch) if isinstance(batch, torch.Tensor) else model(**batch)
        loss = scaffold.loss(torch.tensor([0, 1, 2]), classifier=False)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert model.training
    assert not any(map(torch.equal, heads, scaffold.head_parameters()))
    model.eval()
    assert torch.equal(run(model, batch), before)
    assert all(torch.equal(value, state[key]) for key, value in scaffold.host_state_dict().items())


def test_without_freezing_the_statistics_move():
    model, batch = attached("tv_resnet18", preset="probe").model, inputs("tv_resnet18")
    before = model.bn1.running_mean.clone()
    model.train()
    model(batch)
    assert not torch.equal(model.bn1.running_mean, before)


def test_warm_up_ends_in_the_published_gate():
    scaffold, batch = attached("tv_resnet18", preset="warmup"), inputs("tv_resnet18")
    model, before = scaffold.model, run(host("tv_resnet18"), batch)
    scaffold.ramp(0, 100)
    assert torch.equal(run(model, batch), before)
    scaffold.ramp(5, 100)
    assert float(scaffold.heads.blocks[0].strength) == pytest.approx(0.5)
    for step in (10, 99):
        scaffold.ramp(step, 100)
        assert float(scaffold.heads.blocks[0].strength) == 1.0
    assert not torch.allclose(run(model, batch), before, rtol=1e-3)
    identity = attached("tv_resnet18")
    identity.ramp(0, 100)
    assert float(identity.heads.blocks[0].strength) == 1.0


@pytest.mark.parametrize("name", MAIN)
@pytest.mark.slow
def test_save_and_attach_again(name, tmp_path):
    model, batch = host(name), inputs(name)
    scaffold = stir(mhex.attach(model, CLASSES, where="all", preset="paper"))
    scaffold.loss if run(model, batch) is None else scaffold.loss(torch.tensor([0, 1, 2]), mode="pretrain", decay=0.5)
    wanted, heads = run(model, batch), scaffold.head_logits
    scaffold.save(tmp_path / "deep" / "heads.safetensors")
    scaffold.detach()
    again = mhex.attach(model, weights=tmp_path / "deep" / "heads.safetensors")
    assert again.settings == scaffold.settings
    assert torch.equal(run(model, batch), wanted)
    assert all(torch.equal(again.head_logits[key], value) for key, value in heads.items())
    assert again.heads.mode == "pretrain"
    assert again.heads.decay == 0.5


def test_a_deep_copy_is_a_model_of_its_own():
    scaffold, batch = stir(attached("timm_resnet18", preset="paper")), inputs("timm_resnet18")
    model = scaffold.model
    twin = copy.deepcopy(model)
    own = mhex.Scaffold(twin)
    wanted = run(model, batch)
    with torch.no_grad():
        for parameter in scaffold.head_parameters():
            parameter.mul_(3)
    assert torch.equal(run(twin, batch), wanted)
    assert not torch.allclose(run(model, batch), wanted, rtol=1e-3)
    own.detach()
    assert not any(name.startswith("mhex") for name in twin.state_dict())
    assert mhex.Scaffold(model).heads is scaffold.heads


# --- mistakes ------------------------------------------------------------------------------------------------------


def test_attaching_twice():
    model = attached("timm_vit").model
    with pytest.raises(ArgumentError, match="already"):
        mhex.attach(model, CLASSES)


@pytest.mark.parametrize("bad", [0, -3, True, 2.0, "8", None])
def test_wrong_number_of_classes(bad):
    with pytest.raises((ValueError, TypeError), match=r"num_classes|class"):
        mhex.attach(host("timm_vit"), bad)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"where": "downsampl"}, "downsample"),
        ({"where": ["layer9.0"]}, "layer4.0|residual connection"),
        ({"where": []}, "at least one"),
        ({"preset": "paperr"}, "paper"),
        ({"coupling": "joint"}, "coupling"),
        ({"gate_target": "both"}, "gate_target"),
        ({"relu": "mid"}, "relu"),
        ({"weights": "nowhere.safetensors"}, "nowhere"),
    ],
)
def test_wrong_options_leave_no_heads_behind(options, said):
    model = host("tv_resnet18")
    with pytest.raises(ArgumentError, match=said):
        mhex.attach(model, CLASSES, **options)
    assert not any(key.startswith("mhex") for key in model.state_dict())


def test_no_such_placement():
    with pytest.raises(ArgumentError, match=r"bert\.encoder\.layer\.0"):
        mhex.attach(host("hf_bert"), CLASSES, where="downsample")


@pytest.mark.parametrize("build", [lambda: torchvision.models.vgg11(num_classes=3), torchvision.models.densenet121])
def test_networks_without_residual_connections(build):
    with pytest.raises(UnsupportedModelError, match="residual"):
        mhex.attach(build(), 3)


def test_the_host_returns_other_classes():
    scaffold, batch = attached("tv_resnet18", CLASSES + 1), inputs("tv_resnet18")
    run(scaffold.model, batch)
    with pytest.raises(ArgumentError, match="classifier=False"):
        scaffold.loss(torch.tensor([0, 1, 2]))
    assert scaffold.loss(torch.tensor([0, 1, 4]), classifier=False) > 0


def test_heads_of_another_architecture(tmp_path):
    attached("tv_resnet18").save(tmp_path / "h.safetensors")
    with pytest.raises(ArgumentError, match="channels"):
        mhex.attach(host("timm_resnet18"), weights=tmp_path / "h.safetensors")
    with pytest.raises(ArgumentError, match="residual connection"):
        mhex.attach(host("hf_bert"), weights=tmp_path / "h.safetensors")
    with pytest.raises(ArgumentError, match="num_classes"):
        mhex.attach(host("tv_resnet18"), CLASSES + 1, weights=tmp_path / "h.safetensors")


SETTINGS = {"preset": "paper", "coupling": "separate", "gate_target": "sum", "relu": "pre"}
SETTINGS |= {"exclude_special": True, "multi_label": True}
FILE = {"num_classes": CLASSES, **SETTINGS}


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("num_classes", CLASSES + 1),
        ("preset", "identity"),
        ("coupling", "shared"),
        ("gate_target", "shortcut"),
        ("relu", "post"),
        ("exclude_special", False),
        ("multi_label", False),
    ],
)
def test_arguments_that_contradict_a_file(name, other, tmp_path):
    path = tmp_path / "h.safetensors"
    attached("timm_vit", **SETTINGS).save(path)
    model = host("timm_vit")
    with pytest.raises(ArgumentError, match=rf"{name}={FILE[name]!r} as in .*{name}={other!r}"):
        mhex.attach(model, weights=path, **{name: other})
    assert not any(key.startswith("mhex") for key in model.state_dict())


def test_a_placement_that_contradicts_a_file(tmp_path):
    path = tmp_path / "h.safetensors"
    attached("timm_vit", where="first2").save(path)
    for same in ("first2", ["blocks.1", "blocks.0"]):
        assert mhex.attach(host("timm_vit"), weights=path, where=same).names == ("blocks.0", "blocks.1")
    for other in ("all", ["blocks.1"]):
        with pytest.raises(ArgumentError, match=r"where=.*blocks\.0.*blocks\.1.* but got where="):
            mhex.attach(host("timm_vit"), weights=path, where=other)


def test_everything_but_the_model_is_in_the_file(tmp_path):
    path = tmp_path / "h.safetensors"
    attached("timm_vit", **SETTINGS).save(path)
    # With nothing said again, and with everything: what agrees with the file is no mistake.
    plain, repeated = (mhex.attach(host("timm_vit"), weights=path, **given).settings for given in ({}, FILE))
    assert plain == repeated
    assert {name: getattr(plain, name) for name in FILE} == FILE


def test_loss_before_a_forward_pass():
    scaffold = attached("tv_resnet18")
    with pytest.raises(CaptureError, match="forward pass"):
        scaffold.loss(torch.tensor([0]))


def test_loss_after_a_failed_forward_pass():
    scaffold = attached("tv_resnet18")
    model = scaffold.model
    run(model, inputs("tv_resnet18"))
    with pytest.raises(RuntimeError):
        model(torch.zeros(1, 5, 8, 8))
    with pytest.raises(CaptureError, match="forward pass"):
        scaffold.loss(torch.tensor([0]))


def test_large_heads_are_warned_about():
    with torch.device("meta"):
        model = torchvision.models.resnet50(num_classes=9)
    with pytest.warns(MhexWarning, match="downsample"):
        mhex.attach(model, 9)


def test_no_heads_no_scaffold():
    with pytest.raises(ArgumentError, match=r"mhex\.attach"):
        mhex.Scaffold(host("tv_resnet18"))


def test_chunked_feed_forward_is_refused():
    config = transformers.BertConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, chunk_size_feed_forward=2
    )
    model = transformers.BertForSequenceClassification(config)
    with pytest.raises(UnsupportedModelError, match="residual"):
        mhex.attach(model, 2)


def test_a_host_that_runs_all_its_children():
    inner = host("tv_resnet18")
    model, batch = nn.Sequential(nn.Identity(), inner), inputs("tv_resnet18")
    before = run(model, batch)
    scaffold = mhex.attach(model, CLASSES)
    assert torch.equal(run(model, batch), before)
    assert len(scaffold.head_logits) == 8


def test_a_unit_that_cannot_be_rewritten_leaves_the_model_as_it_was():
    """It branches on its input in training alone, which shows only when its forward is rewritten."""

    class Moody(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Conv2d(3, 3, 3, padding=1)

        def forward(self, x):
            if self.training and x.mean() > 0:
                return x
            return x + self.body(x)

    model = nn.Sequential(nn.Conv2d(3, 3, 1), Moody(), nn.Conv2d(3, CLASSES, 1)).eval()
    snapshot, kinds = Snapshot(model), [type(m) for m in model.modules()]
    for _ in range(2):
        with torch.random.fork_rng(devices=[]), pytest.raises(UnsupportedModelError, match="1 cannot be rewritten"):
            mhex.attach(model, CLASSES)
    snapshot.check()
    assert [type(m) for m in model.modules()] == kinds
