"""Folding: a plain module that predicts the same."""

import copy
import threading

import pytest
import torch
from torch import nn

from mhex.errors import ArgumentError, CaptureError
from mhex.heads import Heads
from mhex.heads.predictors import watched
from support.hosts import CLASSES
from support.hosts_with_heads import HOSTS, called, close, enliven_gates, inputs, part, run, with_heads

SOURCES = ("classifier", "last_head", "sum")


def hooks(model):
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_load_state_dict_post_hooks", "_state_dict_hooks")
    return sum(len(getattr(module, kind)) for module in model.modules() for kind in kinds)


def added(folded):
    return sum(p.numel() for name, p in folded.named_parameters() if "mhex_gate" in name)


@pytest.mark.parametrize("name", HOSTS)
@pytest.mark.slow
def test_a_folded_model_predicts_the_same_from_every_source(name):
    scaffold, x = with_heads(name), inputs(name)
    state = copy.deepcopy(scaffold.model.state_dict())
    before = run(scaffold.model, x)
    for source in SOURCES:
        scaffold.predict_from = source
        folded = scaffold.fold()
        assert close(run(folded, x), scaffold.predict(x))
        assert hooks(folded) == 0
        assert not any(isinstance(module, Heads) for module in folded.modules())
        assert not any(module.training for module in folded.modules())
    assert torch.equal(run(scaffold.model, x), before)
    now = scaffold.model.state_dict()
    assert list(now) == list(state)
    assert all(torch.equal(now[key], value) for key, value in state.items())


def test_remainder_of_resnet18():
    scaffold = called("tv_resnet18")
    plain = sum(p.numel() for p in scaffold.host_parameters())
    widths = [16, 16, 24, 24, 32, 32, 40, 40]
    gates = sum(width**2 for width in widths)
    for source, rest in (
        ("last_head", gates - 40**2 + 40 * CLASSES),
        ("classifier", gates),
        ("sum", gates + sum(widths) * CLASSES),
    ):
        folded = scaffold.fold(source)
        assert added(folded) == rest
        assert sum(p.numel() for p in folded.parameters()) == plain + rest


def test_folded_head_is_the_equivalent_matrix():
    scaffold, x = called("tv_resnet18"), inputs("tv_resnet18")
    folded = scaffold.fold("last_head")
    last = scaffold.names[-1]
    matrix = folded.host.get_submodule(f"{last}.mhex_gate").w2.weight
    assert matrix.shape == (CLASSES, scaffold.model.fc.in_features)
    assert torch.equal(matrix, scaffold.equivalent_matrix(last))
    with watched(scaffold.model) as watch:
        seen = watch(x).blocks[last]
    pooled = (seen.shortcut + seen.branch).mean((2, 3)).relu()
    assert close(run(folded, x), pooled @ matrix.T)


def test_classifier_keeps_what_the_host_returned():
    scaffold, x = with_heads("hf_bert"), inputs("hf_bert")
    with torch.no_grad():
        before, after = scaffold.model(**x), scaffold.fold("classifier")(**x)
    assert type(after) is type(before)
    assert list(after) == list(before)


# Every pair of a coupling, a preset and a gate: what each is folded to does not depend on the third.
PAIRS = {
    *(("shared", "paper", "shortcut"), ("shared", "probe", "sum"), ("separate", "paper", "sum")),
    *(("separate", "probe", "shortcut"), ("head_only", "paper", "shortcut"), ("head_only", "probe", "sum")),
    ("shared", "warmup", "shortcut"),  # the only preset whose gate is in part constant
}
KINDS_OF_BLOCK = [
    pytest.param(*kind, relu, marks=() if kind in PAIRS else pytest.mark.slow)
    for gate_target, relu in (("shortcut", "post"), ("sum", "pre"))
    for preset in ("paper", "probe", "identity", "warmup")
    for coupling in ("shared", "separate", "head_only")
    if (kind := (coupling, preset, gate_target))
]


@pytest.mark.parametrize(("coupling", "preset", "gate_target", "relu"), KINDS_OF_BLOCK)
def test_every_kind_of_block(coupling, preset, gate_target, relu):
    options = {"coupling": coupling, "preset": preset, "gate_target": gate_target, "relu": relu}
    scaffold = called("timm_vit", dtype=torch.float64, where="first2", **options)
    x = inputs("timm_vit", dtype=torch.float64)
    scaffold.ramp(3, 100)
    scaffold.heads.decay = 0.6
    for block in scaffold.heads.blocks:
        block.intercept = torch.randn(7, dtype=torch.float64)
    for source in SOURCES if preset == "paper" else ("sum",):  # which every head and the classifier are part of
        scaffold.predict_from = source
        assert close(run(scaffold.fold(), x), scaffold.predict(x), 1e-12)


@pytest.mark.parametrize("where", ["attention+mlp", "first2"])
def test_folding_works_for_other_placements(where):
    for name, source in (("timm_vit", "last_head"), ("hf_bert", "sum")):
        scaffold, x = called(name, where=where), inputs(name)
        scaffold.predict_from = source
        assert close(run(scaffold.fold(), x), scaffold.predict(x))


def test_classifier_of_another_size_stays_out_of_the_sum():
    scaffold, x = with_heads("tv_resnet", num_classes=4), inputs("tv_resnet")
    scaffold.predict_from = "sum"
    assert run(scaffold.fold(), x).shape == (4, 4)
    assert close(run(scaffold.fold(), x), scaffold.predict(x))


def test_padding_does_not_count():
    x = inputs("hf_bert")
    folded = called("hf_bert").fold("last_head")
    whole = run(folded, x)
    for row, length in enumerate(x["attention_mask"].sum(1).tolist()):
        alone = {key: value[row : row + 1, :length] for key, value in x.items()}
        assert close(run(folded, alone), whole[row : row + 1])


def test_special_tokens():
    scaffold, x = called("timm_vit", exclude_special=True), inputs("timm_vit")
    scaffold.predict_from = "last_head"
    assert close(run(scaffold.fold(), x), scaffold.predict(x))
    assert not close(run(called("timm_vit").fold("last_head"), x), scaffold.predict(x), 1e-3)
    with pytest.raises(ArgumentError, match="exclude_special=False"):
        called("hf_bert", exclude_special=True).fold("last_head")


def test_stripped_heads_cannot_speak():
    scaffold, x = with_heads("tv_resnet"), inputs("tv_resnet")
    before = scaffold.predict(x)
    scaffold.model(x)
    scaffold.strip_heads()
    assert torch.equal(run(scaffold.fold(), x), before)
    for source in ("last_head", "sum"):
        with pytest.raises(CaptureError, match="stripped"):
            scaffold.fold(source)


def test_probe_leaves_the_plain_model():
    folded = with_heads("tv_resnet", preset="probe").fold("classifier")
    assert added(folded) == 0
    assert type(folded.layer1[0]).__name__ == "BasicBlock"
    assert "_mhex_rewrite" not in vars(type(folded.layer1[0]))


def test_folded_is_on_its_own():
    scaffold, x = called("tv_resnet"), inputs("tv_resnet")
    folded = scaffold.fold("last_head")
    before = run(folded, x)
    with torch.no_grad():
        for parameter in scaffold.model.parameters():
            parameter.add_(1)
    assert torch.equal(run(folded, x), before)
    twin = copy.deepcopy(folded)
    with torch.no_grad():
        for parameter in folded.parameters():
            parameter.zero_()
    assert torch.equal(run(twin, x), before)
    other = called("tv_resnet", preset="paper").fold("last_head")
    other.load_state_dict(twin.state_dict())
    assert not any(p.requires_grad for p in other.parameters())


def test_threads_do_not_mix():
    folded, x = with_heads("timm_vit").fold("sum"), inputs("timm_vit")
    alone = [run(folded, part(x, slice(i, i + 1))) for i in range(4)]
    heard = {}

    def work(i):
        heard[i] = [run(folded, part(x, slice(i, i + 1))) for _ in range(20)]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(y, alone[i]) for i in range(4) for y in heard[i])
    assert all(module.sink is None for module in folded.modules() if hasattr(module, "sink"))


def test_half_precision():
    # Without oneDNN: some virtual machines announce bfloat16 matrix instructions that they cannot run.
    scaffold, x = called("timm_vit"), inputs("timm_vit")
    folded = scaffold.fold("last_head")
    scaffold.predict_from = "last_head"
    exact = scaffold.predict(x)
    with torch.backends.mkldnn.flags(enabled=False), torch.no_grad():
        with torch.autocast("cpu", torch.bfloat16):
            scaffold.model(x)
            before, after = scaffold.logits, folded(x)
        rounded = folded.bfloat16()(x.bfloat16())
    assert after.dtype == before.dtype == rounded.dtype == torch.float32
    assert close(after, before)
    assert close(after, exact, 0.1)
    assert close(rounded, exact, 0.1)


def test_name_clash():
    scaffold = with_heads("tv_resnet")
    scaffold.model.layer1[0].mhex_gate = nn.Identity()
    with pytest.raises(Exception, match="rename"):
        scaffold.fold("classifier")


def test_gates_are_those_of_the_heads():
    scaffold, x = with_heads("tv_resnet"), inputs("tv_resnet")
    before = run(scaffold.fold("classifier"), x)
    enliven_gates(scaffold, 0.5)
    assert not close(run(scaffold.fold("classifier"), x), before, 1e-3)
