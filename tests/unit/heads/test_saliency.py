"""Maps from heads: their link with the logits, the options, and what models may do to them."""

from __future__ import annotations

import copy
import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mhex
from mhex.errors import CaptureError, MhexError, UnsupportedModelError
from mhex.heads.call_record import Call, HeadReading
from mhex.heads.predictors import watched
from mhex.heads.saliency import PRESETS, block_maps, choose_blocks, layer_weights, settle, thresholds
from support.hosts import copied
from support.models import FAMILIES, enliven, with_heads

FAMILY_NAMES = [name for name, family in FAMILIES.items() if family.heads]
CNN = FAMILIES["tv_resnet_heads"]
BERT = FAMILIES["hf_bert_heads"]


class Unit(nn.Module):
    """A residual unit that writes in place wherever that is usual."""

    def __init__(self, before: int, after: int, stride: int = 1) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, stride, 1)
        self.second = nn.Conv2d(after, after, 3, 1, 1)
        self.short = nn.Conv2d(before, after, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        out = self.second(F.relu(self.first(x), inplace=True))
        out += self.short(x)
        return F.relu(out, inplace=True)


class Net(nn.Module):
    def __init__(self, classes: int = 5) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        self.units = nn.ModuleList([Unit(6, 6), Unit(6, 8, 2), Unit(8, 8)])
        self.head = nn.Linear(8, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for unit in self.units:
            x = unit(x)
        return self.head(x.mean((2, 3)))


def net(classes: int = 5, heads: int | None = None, **options: Any) -> nn.Module:
    scaffold = copied(lambda: Net(classes), ("maps", classes), classes if heads is None else heads, **options)
    return enliven(scaffold.model).double().eval()


def images(count: int = 3) -> Tensor:
    return torch.randn(count, 3, 8, 12, dtype=torch.float64)


def recorded(model: nn.Module, inputs: Any) -> HeadReading:
    with watched(model) as run:
        return HeadReading(run(inputs), model.mhex)


def every_class(call: Call) -> Tensor:
    logits = next(iter(call.logits.values()))
    return torch.arange(logits.shape[1]).expand(logits.shape[0], -1)


def averaged(one: Tensor, keep: Tensor | None) -> Tensor:
    """Mean over positions, (B, K); over tokens that are pooled."""
    if keep is None:
        return one.flatten(2).mean(-1)
    weights = keep.to(one.dtype)[:, None]
    return (one * weights).sum(-1) / weights.sum(-1)


def close(got: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-12)


# --- maps and logits --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_the_mean_of_a_map_is_the_logit(name: str) -> None:
    family = FAMILIES[name]
    reading = recorded(family.model(), family.inputs(3))
    call = reading.call
    maps = block_maps(reading, list(call.blocks), every_class(call), settle("text", active_only=True))
    for block, one in maps.items():
        close(averaged(one, call.blocks[block].keep), call.logits[block])


@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_what_the_relu_and_the_gate_take_away(name: str) -> None:
    family = FAMILIES[name]
    reading = recorded(family.model(), family.inputs(3))
    call = reading.call
    index = every_class(call)
    plain, gated = (
        block_maps(reading, list(call.blocks), index, settle("text", activation=a)) for a in ("sum", "gated_sum")
    )
    clipped = 0
    for block, one in plain.items():
        seen, module = call.blocks[block], family.model().mhex[block]
        matrix = module.equivalent_matrix()
        mean = averaged(one, seen.keep)
        close(mean - call.logits[block], seen.pooled.clamp_max(0) @ matrix.T)
        clipped += int((seen.pooled < 0).sum())
        x = seen.shortcut if seen.shortcut.dim() == 3 else seen.shortcut.flatten(2).mT  # (B, positions, C)
        r = seen.branch if seen.branch.dim() == 3 else seen.branch.flatten(2).mT
        lost = x + r if module.gate_target == "sum" else x
        average = averaged(lost.mT, seen.keep)
        close(averaged(gated[block], seen.keep), mean - ((1 - seen.gate) * average) @ matrix.T)
    assert clipped, "the test needs channels that the ReLU clips"


@pytest.mark.parametrize("active_only", [False, True])
@pytest.mark.parametrize("gate_target", ["shortcut", "sum"])
def test_separate_heads_pool_the_gated_tensor(gate_target: str, active_only: bool) -> None:
    """They have no ReLU, so they see every channel and none is left out."""
    model = net(coupling="separate", gate_target=gate_target)
    reading = recorded(model, images())
    call = reading.call
    settings = settle("text", activation="gated", active_only=active_only)
    maps = block_maps(reading, list(call.blocks), every_class(call), settings)
    assert any(bool((seen.pooled < 0).any()) for seen in call.blocks.values())
    for block, one in maps.items():
        close(averaged(one, None), call.logits[block])
        close(model.mhex[block].equivalent_matrix(), model.mhex[block].w2.weight)


def test_a_channel_whose_mean_is_zero_is_not_seen() -> None:
    reading = recorded(net(), images())
    name, seen = next(iter(reading.call.blocks.items()))
    pooled = seen.pooled.clone()
    pooled[:, 0] = 0
    reading.call.blocks[name] = replace(seen, pooled=pooled)
    one = block_maps(reading, [name], every_class(reading.call), settle("text", active_only=True))[name]
    z = (seen.shortcut + seen.branch) * (pooled > 0)[:, :, None, None]
    close(one, torch.einsum("nc,bchw->bnhw", reading.heads[name].equivalent_matrix(), z))


@pytest.mark.parametrize("coupling", ["shared", "head_only"])
def test_heads_that_pool_after_the_relu(coupling: str) -> None:
    reading = recorded(net(relu="pre", coupling=coupling), images())
    call = reading.call
    maps = block_maps(reading, list(call.blocks), every_class(call), settle("text", activation="relu_sum"))
    for block, one in maps.items():
        close(averaged(one, None), call.logits[block])


def test_completeness_of_the_scores_of_an_explanation() -> None:
    model, x = net(), images()
    options = {"alpha": 1, "sharpness": 0, "activation": "sum", "active_only": True}
    call = recorded(model, x).call
    for block in call.blocks:
        e = mhex.explain(model, x, "mhex", target=2, blocks=[block], **options)
        close(e.scores.mean((1, 2)), call.logits[block][:, 2])
    tokens = BERT.inputs(3)
    call = recorded(BERT.model(), tokens).call
    e = mhex.explain(BERT.model(), tokens, "mhex", target=2, active_only=True, per_layer=True)
    total = sum(call.logits[block][:, 2] for block in list(call.blocks)[:3])
    close((e.scores + e.special).sum(1) / tokens["attention_mask"].sum(1), total)
    close(sum(e.layers.values()), e.scores + e.special)


def test_non_negative_weights_on_what_the_units_return() -> None:
    e = mhex.explain(CNN.model(), CNN.inputs(3), "mhex", alpha=0, activation="output", target="top5", per_layer=True)
    assert float(e.scores.min()) >= 0
    assert float(e.scores.max()) > 0
    call = recorded(CNN.model(), CNN.inputs(3)).call
    gated = [F.relu(seen.gate[:, :, None, None] * seen.shortcut + seen.branch) for seen in call.blocks.values()]
    for output, wanted in zip(call.outputs.values(), gated, strict=True):
        close(output, wanted)


def test_gated_names_mean_the_same_where_the_sum_is_gated() -> None:
    gated, both, plain = (
        mhex.explain(BERT.model(), BERT.inputs(2), "mhex", activation=a).scores for a in ("gated", "gated_sum", "sum")
    )
    assert gated.equal(both)
    assert not gated.equal(plain)


# --- weights of classes and layers ------------------------------------------------------------------------------------


def test_maps_are_affine_in_alpha() -> None:
    model, x = net(), images()
    none, some, all_ = (mhex.explain(model, x, "mhex", alpha=a, sharpness=0.25).scores for a in (0, 0.4, 1.0))
    close(some, 0.6 * none + 0.4 * all_)


def test_full_sharpness_gives_zero_maps_without_nan() -> None:
    e = mhex.explain(net(), images(), "mhex", sharpness=1.0)
    assert e.scores.eq(0).all()
    for how in ("auto", "minmax", "percentile", "relu_max", "none"):
        assert e.normalized(how).eq(0).all()
    scaled = mhex.explain(net(), images(), "mhex", sharpness=1.0, layer_scale="max")
    assert scaled.scores.eq(0).all()


def test_permuted_classes_permute_the_maps() -> None:
    model, x = net(), images()
    order = torch.tensor([3, 0, 4, 1, 2])
    before = mhex.explain(model, x, "mhex", target=order.tolist())
    with torch.no_grad():
        for block in model.mhex.blocks:
            block.w2.weight.copy_(block.w2.weight[order])
    close(mhex.explain(model, x, "mhex", target=list(range(5))).scores, before.scores)


def test_one_class() -> None:
    model, x = net(1), images()
    both = mhex.explain(model, x, "mhex", target=[0, 1], alpha=1, activation="sum", active_only=True, per_layer=True)
    assert both.options["sharpness"] == 0
    call = recorded(model, x).call
    for block, one in both.layers.items():
        close(one.mean((2, 3))[:, 1], call.logits[block][:, 0])
        close(one.mean((2, 3))[:, 0], -call.logits[block][:, 0])
    assert mhex.explain(model, x, "mhex").target.tolist() == (model(x)[:, 0] > 0).long().tolist()
    assert float(mhex.explain(model, x, "mhex").scores.abs().max()) > 0


def test_layer_weights() -> None:
    deep = layer_weights(4, 0.9)
    assert deep[-1] == 1
    assert all(a / b == pytest.approx(0.9) for a, b in itertools.pairwise(deep))
    assert layer_weights(8, 0.9)[0] == pytest.approx(0.478, abs=1e-3)
    assert layer_weights(4, 0.9, "shallow") == deep[::-1]
    assert layer_weights(3, 1.0) == [1, 1, 1]


@pytest.mark.parametrize("anchor", ["deep", "shallow"])
@pytest.mark.parametrize("scale", ["none", "max"])
def test_blocks_are_upsampled_weighted_and_summed(anchor: str, scale: str) -> None:
    model, x = net(), images()
    e = mhex.explain(
        model, x, "mhex", target=[1, 4], layer_factor=0.7, anchor=anchor, layer_scale=scale, per_layer=True
    )
    assert [one.shape for one in e.layers.values()] == [(3, 2, 8, 12), (3, 2, 4, 6), (3, 2, 4, 6)]
    total = torch.zeros(3, 2, 8, 12, dtype=torch.float64)
    for weight, one in zip((0.49, 0.7, 1) if anchor == "deep" else (1, 0.7, 0.49), e.layers.values(), strict=True):
        one = one / one.abs().amax((2, 3), keepdim=True) if scale == "max" else one
        total += weight * F.interpolate(one, size=(8, 12), mode="bilinear", align_corners=False)
    close(e.scores, total)


def test_one_grid_is_kept_as_it_is() -> None:
    model, x = net(), images()
    assert mhex.explain(model, x, "mhex", blocks="last2").scores.shape == (3, 4, 6)
    assert mhex.explain(model, x, "mhex", blocks="last2").map().shape == (3, 8, 12)
    assert mhex.explain(model, x, "mhex").scores.shape == (3, 8, 12)


# --- options ----------------------------------------------------------------------------------------------------------


def test_presets_are_those_of_the_publication_and_one_of_ours() -> None:
    rows = {n: (p.alpha, *thresholds(p, 8), p.layer_factor, p.activation) for n, p in PRESETS.items()}
    assert rows == {
        "paper": (0.5, 0.225, 0.225, 0.9, "gated_sum"),
        "table3": (1.0, 0.225, 0.1, 0.9, "gated_sum"),
        "figure8": (0.5, 0.225, 0.225, 0.8, "gated_sum"),
        "probe": (0.5, 0.225, 0.225, 0.7, "relu_sum"),
        "text": (1.0, 0.0, 0.0, 1.0, "sum"),
    }
    assert {(p.anchor, p.layer_scale, p.active_only) for p in PRESETS.values()} == {("deep", "none", False)}


def test_what_is_given_overrides_the_preset() -> None:
    assert thresholds(settle("paper", sharpness=0.3), 8) == (0.3, 0.3)
    assert thresholds(settle("table3", sharpness=0.3), 8) == (0.3, 0.1)
    assert thresholds(settle("table3", negative_sharpness="auto"), 8) == (0.225, 0.225)
    assert thresholds(settle("paper"), 1) == (0, 0)
    assert settle("text", alpha=0).alpha == 0


def test_the_result_says_how_it_was_made() -> None:
    e = mhex.explain(net(), images(), "mhex", alpha=0.25, blocks="first2")
    assert e.options["preset"] == "paper"
    assert e.options["alpha"] == 0.25
    assert e.options["sharpness"] == e.options["negative_sharpness"] == pytest.approx(0.3)
    assert e.options["blocks"] == ["units.0", "units.1"]
    again = mhex.explain(net(), images(), "mhex", **e.options)
    assert again.options == e.options
    text = mhex.explain(BERT.model(), BERT.inputs(2), "mhex")
    assert (text.options["preset"], text.options["activation"], len(text.options["blocks"])) == ("text", "sum", 3)
    assert e.cost["forwards"] == 1
    assert e.cost["backwards"] == 0


def test_heads_that_look_on_at_feature_maps_have_a_preset_of_their_own() -> None:
    e = mhex.explain(net(preset="probe"), images(), "mhex", target=1)
    assert (e.options["preset"], e.options["activation"], e.options["layer_factor"]) == ("probe", "relu_sum", 0.7)
    tokens = with_heads(copy.deepcopy(FAMILIES["timm_vit"].model()), 5, preset="probe")
    shown = mhex.explain(tokens, FAMILIES["timm_vit"].inputs(2), "mhex", target=1)
    assert (shown.options["preset"], shown.options["activation"]) == ("paper", "gated_sum")
    texts = with_heads(copy.deepcopy(FAMILIES["hf_bert"].model()), 5, preset="probe")
    assert mhex.explain(texts, BERT.inputs(2), "mhex", target=1).options["preset"] == "text"


def test_texts_are_explained_by_the_first_three_blocks() -> None:
    model = enliven(with_heads(FAMILIES["hf_bert"].fresh(), where="attention+mlp"))
    inputs = BERT.inputs(2)
    default, first, every = (mhex.explain(model, inputs, "mhex", blocks=b) for b in (None, "first3", "all"))
    assert default.scores.equal(first.scores)
    assert not default.scores.equal(every.scores)
    assert len(every.options["blocks"]) == 6


def test_blocks_by_name_and_number() -> None:
    names = ["a", "b", "first2", "c"]
    assert choose_blocks("all", names) == names
    assert choose_blocks("last2", names) == ["first2", "c"]
    assert choose_blocks("first9", names) == names
    assert choose_blocks("first2", names) == ["first2"], "a name is a name"
    assert choose_blocks("c, a", names) == choose_blocks(("c", "a"), names) == ["a", "c"]


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ({"preset": "papers"}, "'paper'"),
        ({"alpha": 1.5}, "alpha to be a number from 0 to 1, but got 1.5"),
        ({"alpha": True}, "alpha"),
        ({"alpha": "much"}, "alpha"),
        ({"alpha": float("nan")}, "alpha"),
        ({"sharpness": -0.1}, "sharpness to be a number of at least 0 or 'auto', but got -0.1"),
        ({"sharpness": "sharp"}, "'auto'"),
        ({"negative_sharpness": -1}, "negative_sharpness"),
        ({"layer_factor": 0}, "last1"),
        ({"layer_factor": 1.1}, "layer_factor"),
        ({"activation": "gated-sum"}, "'gated_sum'"),
        ({"anchor": "deepest"}, "'deep'"),
        ({"layer_scale": "mean"}, "none, max"),
        ({"active_only": 1}, "active_only"),
        ({"blocks": "units.9"}, "'units.0'"),
        ({"blocks": "first0"}, "first0"),
        ({"blocks": []}, "at least one"),
        ({"blocks": 3}, "list of names"),
        ({"blocks": [3]}, "list of names"),
        ({"target": lambda logits: logits[:, 0]}, "classes"),
        ({"target": 5}, "0 to 4"),
    ],
)
def test_wrong_options_are_answered_by_a_sentence(option: dict[str, Any], words: str) -> None:
    with pytest.raises(MhexError) as caught:
        mhex.explain(net(), images(), "mhex", **option)
    assert isinstance(caught.value, (ValueError, TypeError))
    assert words in str(caught.value)
    assert str(caught.value).endswith((".", "?"))


# --- models -----------------------------------------------------------------------------------------------------------


def test_a_model_without_heads_is_told_how_to_get_some() -> None:
    with pytest.raises(UnsupportedModelError, match=r"mhex\.attach\(model, num_classes\).*Methods that can: .*gradcam"):
        mhex.explain(FAMILIES["tv_resnet"].model(), CNN.inputs(1), "mhex")


def test_heads_with_other_classes_than_their_host() -> None:
    model, x = net(5, heads=3), images()
    call = recorded(model, x).call
    e = mhex.explain(model, x, "mhex", class_names=["a", "b", "c"])
    assert e.logits.equal(call.logits["units.2"])
    assert e.target.equal(e.logits.argmax(1))
    model.mhex.source = "sum"
    wanted = call.logits["units.2"] + 0.8 * (call.logits["units.1"] + 0.8 * call.logits["units.0"])
    close(mhex.explain(model, x, "mhex").logits, wanted)
    assert mhex.explain(model, x, "gradcam").logits.shape == (3, 5)


def test_heads_for_several_labels() -> None:
    e = mhex.explain(net(multi_label=True), images(), "mhex")
    close(e.probabilities, e.logits.sigmoid())


def test_heads_inside_of_a_wrapper() -> None:
    model, x = net(), images()
    wrapped = nn.Sequential(nn.BatchNorm2d(3, affine=False).double(), model).eval()
    wanted = mhex.explain(model, wrapped[0](x), "mhex").scores
    close(mhex.explain(wrapped, x, "mhex").scores, wanted)
    with pytest.raises(UnsupportedModelError, match="2 parts"):
        mhex.explain(Pair(model, net()), x, "mhex")


class Pair(nn.Module):
    def __init__(self, a: nn.Module, b: nn.Module) -> None:
        super().__init__()
        self.a, self.b = a, b

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x) + self.b(x)


def test_stripped_heads_say_so() -> None:
    model = net()
    for block in model.mhex.blocks:
        block.w2 = None
    with pytest.raises(CaptureError, match="stripped"):
        mhex.explain(model, images(), "mhex")


@pytest.mark.parametrize("name", ["timm_swin", "tv_swin"])
def test_windows_of_tokens_without_a_patch_size(name: str) -> None:
    family = FAMILIES[name]
    model = enliven(with_heads(family.fresh()))
    e = mhex.explain(model, family.inputs(2), "mhex", per_layer=True)
    assert [tuple(one.shape) for one in e.layers.values()] == [(2, 8, 12)] * 2 + [(2, 4, 6)] * 2
    assert e.scores.shape == (2, 32, 48)


def test_both_connections_of_transformer_blocks() -> None:
    family = FAMILIES["timm_vit"]
    model = enliven(with_heads(family.fresh(), where="attention+mlp"))
    e = mhex.explain(model, family.inputs(2), "mhex", per_layer=True)
    assert len(e.layers) == 6
    assert e.scores.shape == (2, 4, 6)
    with pytest.raises(MhexError, match="activation='output'"):
        mhex.explain(model, family.inputs(2), "mhex", activation="output")
    mhex.explain(model, family.inputs(2), "mhex", activation="output", blocks=["blocks.0", "blocks.2"])


class Overwriting(nn.Module):
    """Writes into the shortcut, or into a unit's output, after the unit is done with it."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.stem, self.unit, self.head = nn.Conv2d(3, 6, 3), Unit(6, 6), nn.Linear(6, 5)
        self.what = what

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.unit(x)
        (x if self.what == "shortcut" else y).mul_(0.5)
        return self.head(y.mean((2, 3)))


@pytest.mark.parametrize(("what", "activation"), [("shortcut", "gated_sum"), ("output", "output")])
def test_tensors_that_the_model_overwrites_are_noticed(what: str, activation: str) -> None:
    model = enliven(with_heads(Overwriting(what), 5)).double().eval()
    with pytest.raises(CaptureError, match=f"writes in place into the {what} of 'unit'"):
        mhex.explain(model, images(), "mhex", activation=activation)
    other = Overwriting("output" if what == "shortcut" else "shortcut")
    mhex.explain(enliven(with_heads(other, 5)).double().eval(), images(), "gradcam")


def test_explaining_leaves_the_last_call_alone() -> None:
    """A training step goes on after an explanation in its middle."""
    model, x, labels = net().train(), images(), torch.tensor([0, 1, 2])
    scaffold = mhex.Scaffold(model)
    model(x)
    wanted = float(scaffold.loss(labels).detach())
    for method in ("mhex", "gradcam"):
        mhex.explain(model, images(2), method)
    loss = scaffold.loss(labels)
    assert float(loss.detach()) == wanted
    loss.backward()
    assert all(p.grad is not None for p in scaffold.head_parameters())
    with pytest.raises(MhexError):
        mhex.explain(model, images(2), "mhex", target=77)
    assert float(scaffold.loss(labels).detach()) == wanted


def test_half_precision_is_summed_in_float32() -> None:
    model = net().float()
    x = images().float()
    wanted = mhex.explain(model, x.bfloat16().float(), "mhex", target=1).scores
    with torch.backends.mkldnn.flags(enabled=False):
        got = mhex.explain(model.bfloat16(), x, "mhex", target=1).scores
    assert got.dtype == torch.float32
    assert float(torch.corrcoef(torch.stack([got.flatten(), wanted.flatten()]))[0, 1]) > 0.97


# --- results ----------------------------------------------------------------------------------------------------------


def test_layers_are_saved_and_loaded(tmp_path: Any) -> None:
    model = net()
    assert mhex.explain(model, images(), "mhex").layers == {}
    e = mhex.explain(model, images(), "mhex", target=[0, 2], per_layer=True)
    again = mhex.Explanation.load(e.save(tmp_path / "e.safetensors"))
    assert list(again.layers) == list(e.layers) == ["units.0", "units.1", "units.2"]
    assert all(again.layers[name].equal(one) for name, one in e.layers.items())
    assert mhex.explain(model, images(), "mhex", per_layer=True).layers["units.1"].shape == (3, 4, 6)
    shown = e.by_layer()
    assert list(shown) == list(e.layers)
    assert shown["units.1"].map().shape == (3, 2, 8, 12)
    assert shown["units.1"].scores.equal(e.layers["units.1"])
    assert mhex.explain(model, images(), "mhex").by_layer() == {}


def test_words_are_made_of_their_pieces() -> None:
    inputs = BERT.inputs(1)
    e = mhex.explain(BERT.model(), inputs, "mhex")
    length = inputs["input_ids"].shape[1]
    e.tokens, e.words = [[f"t{i}" for i in range(length)]], [[None, 0, 0, *range(1, length - 3), None]]
    assert e.word_scores()[0][1] == pytest.approx(float(e.scores[0, 1:3].max()))
    assert e.word_scores(pooling="sum")[0][1] == pytest.approx(float(e.scores[0, 1:3].sum()))


def test_heads_that_pool_after_the_relu_are_mapped_as_they_pool() -> None:
    model, x = net(relu="pre"), images()
    mapped = mhex.explain(model, x, method="mhex", target=2)
    assert mapped.options["activation"] == "relu_sum"
    assert torch.equal(mapped.scores, mhex.explain(model, x, method="mhex", target=2, activation="relu_sum").scores)
    named = mhex.explain(model, x, method="mhex", target=2, activation="sum")
    assert named.options["activation"] == "sum"
    assert mhex.explain(model, x, method="mhex", target=2, preset="paper").options["activation"] == "gated_sum"
    assert mhex.explain(net(), x, method="mhex", target=2).options["activation"] == "gated_sum"
    exact = mhex.explain(model, x, method="mhex", target=2, alpha=1, sharpness=0, per_layer=True)
    logits = recorded(model, x).call.logits
    for block, one in exact.layers.items():
        close(one.flatten(1).mean(-1), logits[block][:, 2])
