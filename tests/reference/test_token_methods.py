"""GradToken, TokenTM, AttCAT and AGCAM: the closed forms and identities of their specification."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mhex.capture import Needs, find_anatomy, observe
from mhex.errors import ArgumentError, UnsupportedModelError
from mhex.inputs import prepare
from support.block_internals import FAMILY_NAMES, look
from support.cases import METHODS, assert_same, explain, serving
from support.formulas import View, view
from support.formulas_tokens import agcam_blocks, gradients, gradtoken_heads, products, tokentm_scores
from support.models import CLASSES, FAMILIES, Family, PlainBlock, PlainViT, enliven


def seen(name: str, index: int = 0) -> View:
    family = FAMILIES[name]
    return view(family, family.model(), family.sample(family.inputs(3), index))


def scored(v: View, scores: Tensor) -> Tensor:
    """Of one sample, (h, w) or (T,): the scored tokens in a row."""
    return scores.flatten() if v.family.size is not None else scores[v.scored]


def vit(**options: Any) -> nn.Module:
    from timm.models.vision_transformer import VisionTransformer

    sizes = {"img_size": 24, "patch_size": 8, "embed_dim": 32, "num_heads": 4, "depth": 3, "num_classes": CLASSES}
    return enliven(VisionTransformer(**{**sizes, **options})).double().eval()


def view_of(model: nn.Module, images: Tensor) -> View:
    """Of a small timm model that is in no table."""
    side = images.shape[-1] // 8
    family = Family(
        "timm_vit", lambda: model, size=(8 * side, 8 * side), blocks=len(model.blocks), prefix=1, grid=(side, side)
    )
    return view(family, model, images)


def images(count: int = 1, side: int = 24) -> Tensor:
    return torch.randn(count, 3, side, side, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


# --- GradToken -------------------------------------------------------------------------------------------------------

SCHEMES = [("none", "matrix"), *itertools.product(("average", "rollout"), ("matrix", "elementwise"))]


@pytest.mark.parametrize("name", ["timm_deit_distilled", "hf_bert", "timm_avg_class_token"])
@pytest.mark.parametrize(("aggregation", "propagation"), SCHEMES)
def test_gradtoken_schemes(aggregation: str, propagation: str, name: str) -> None:
    v = seen(name)
    inputs = v.family.sample(v.family.inputs(3), 0)
    for start, center in ((1, False), (2, True), (3, False)):
        options = {"aggregation": aggregation, "propagation": propagation, "start_block": start, "center_keys": center}
        heads = gradtoken_heads(v, 4, **options)
        for joined, wanted in (("average", heads.mean(0)), ("relu_average", heads.clamp_min(0).mean(0))):
            got = explain(v.model, inputs, "gradtoken", target=4, head_integration=joined, **options)
            assert_same(scored(v, got.scores[0]), wanted[v.scored].detach(), "gradtoken", 1e-10)
            assert got.signed == (joined == "average")
            assert got.signed or float(got.scores.min()) >= 0


def test_gradtoken_from_the_last_block_is_no_aggregation() -> None:
    family = FAMILIES["timm_vit"]
    none = explain(family.model(), family.inputs(2), "gradtoken", target=1, aggregation="none").scores
    for aggregation, propagation in SCHEMES[1:]:
        options = {"aggregation": aggregation, "propagation": propagation, "start_block": 3}
        assert torch.equal(explain(family.model(), family.inputs(2), "gradtoken", target=1, **options).scores, none)


class MaskedBlock(PlainBlock):
    """A plain block with a mask; by default every token attends to itself alone."""

    mask = torch.eye(25, dtype=torch.bool)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm_a(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask).transpose(1, 2).flatten(2))
        return x + self.feed(self.norm_b(x))


def test_gradtoken_with_identity_attention_below() -> None:
    """The mean of identities spreads nothing; the rollout of two blocks is (I + I)^2 = 4 I."""
    model = PlainViT()
    for block in (0, 1):
        model.blocks[block] = MaskedBlock()
    model = enliven(model).double().eval()
    inputs = FAMILIES["plain_vit"].inputs(2)
    none = explain(model, inputs, "gradtoken", target=1, aggregation="none").scores
    assert float(none.max()) > 0
    assert_same(explain(model, inputs, "gradtoken", target=1).scores, none, "gradtoken", 1e-12)
    rolled = explain(model, inputs, "gradtoken", target=1, aggregation="rollout").scores
    assert_same(rolled, 4 * none, "gradtoken", 1e-12)


@pytest.mark.parametrize("name", ["timm_vit", "hf_bert", "tv_vit"])
def test_gradtoken_query_gradient(name: str) -> None:
    """G_h = scale sum_m A_0m (g_0m - sum_n A_0n g_0n) k_m, seen through the heads' maps before they are joined."""
    v = seen(name)
    inside = look(v)
    last = inside.calls[-1]
    (gradient,) = gradients(inside.logits[2], [last.matrix])
    e = explain(v.model, v.inputs, "gradtoken", target=2, aggregation="none", head_integration="average", per_head=True)
    for h in range(4):
        row, g, k = last.matrix[0, h, 0].detach(), gradient[0, h, 0], last.k[0, h].detach()
        mean = torch.dot(row, g)
        wanted_query = last.scale * sum(row[m] * (g[m] - mean) * k[m] for m in range(len(row)))
        wanted = torch.stack([torch.dot(k[j], wanted_query) for j in v.scored])
        assert_same(scored(v, e.layers[f"head {h + 1}"][0]), wanted, "gradtoken", 1e-10)


def test_gradtoken_of_two_tokens() -> None:
    """N = 2: M_1 = scale A_0 A_1 (g_1 - g_0) (k_1 - k_0) k_1, in each head."""
    model, x = vit(img_size=8), images(1, 8)
    inside = look(view_of(model, x))
    last = inside.calls[-1]
    (gradient,) = gradients(inside.logits[3], [last.matrix])
    total = 0.0
    for h in range(4):
        a, g, k = last.matrix[0, h, 0].detach(), gradient[0, h, 0], last.k[0, h].detach()
        total += float(last.scale * a[0] * a[1] * (g[1] - g[0]) * torch.dot(k[1] - k[0], k[1])) / 4
    e = explain(model, x, "gradtoken", target=3, aggregation="none", head_integration="average")
    assert e.scores.shape == (1, 1, 1)
    assert float(e.scores) == pytest.approx(total, rel=1e-10)


def test_gradtoken_and_a_bias_of_the_keys() -> None:
    """The model does not notice it; nor does the map of centred keys, but the published one does."""
    family = FAMILIES["timm_vit"]
    shifted = family.fresh()
    shifted.blocks[-1].attn.qkv.bias.data[32:64] += torch.randn(32, dtype=torch.float64)
    inputs = family.inputs(2)
    plain, centred = (
        [explain(model, inputs, "gradtoken", target=1, center_keys=center) for model in (family.model(), shifted)]
        for center in (False, True)
    )
    assert_same(plain[1].logits, plain[0].logits, "gradtoken", 1e-12)
    assert_same(centred[1].scores, centred[0].scores, "gradtoken", 1e-10)
    assert float((plain[1].scores - plain[0].scores).abs().max()) > 0.01 * float(plain[0].scores.max())


@pytest.mark.parametrize("joined", ["average", "relu_average"])
def test_gradtoken_maps_of_heads_average_to_the_map(joined: str) -> None:
    family = FAMILIES["hf_bert"]
    e = explain(family.model(), family.inputs(3), "gradtoken", target=[0, 1], per_head=True, head_integration=joined)
    assert list(e.layers) == [f"head {h}" for h in range(1, 5)]
    heads = e.by_layer()
    assert float(e.scores.abs().max()) > 0
    assert_same(torch.stack([one.scores for one in heads.values()]).mean(0), e.scores, "gradtoken", 1e-12)
    assert_same(torch.stack([one.special for one in heads.values()]).mean(0), e.special, "gradtoken", 1e-12)
    assert not explain(family.model(), family.inputs(1), "gradtoken").layers


@pytest.mark.parametrize("option", ["aggregation", "propagation", "head_integration"])
def test_gradtoken_wrong_choice(option: str) -> None:
    family = FAMILIES["timm_vit"]
    with pytest.raises(ArgumentError, match=rf"Expected {option} .*'sum'\."):
        explain(family.model(), family.inputs(1), "gradtoken", **{option: "sum"})


# --- TokenTM ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [n for n in FAMILIES if "gae" in serving(n) and not FAMILIES[n].heads])
def test_tokentm_without_transformations_is_gae(name: str) -> None:
    """W = I, W_F = 0, C = I at the start; then no projections are needed, and unknown models are served too."""
    family = FAMILIES[name]
    wanted = explain(family.model(), family.inputs(3), "gae", target=[1, 4]).scores
    got = explain(
        family.model(), family.inputs(3), "tokentm", target=[1, 4], weights="none", ffn=False, start="identity"
    )
    assert_same(got.scores, wanted, "tokentm", 1e-13)
    if "tokentm" in serving(name):
        options = {"weights": "none", "start": "identity"}
        got = explain(family.model(), family.inputs(3), "tokentm", target=[1, 4], **options)
        assert_same(got.scores, wanted, "tokentm", 1e-13)


OPTIONS = [
    {"weights": "length"},
    {"weights": "direction"},
    {"weights": "none"},
    {"reference": "normed"},
    {"heads": "resolved"},
    {"value_bias": True},
    {"ffn": False},
    {"start": "identity"},
    {"heads": "resolved", "value_bias": True, "reference": "normed", "weights": "length"},
]


@pytest.mark.parametrize("name", ["timm_vit", "timm_registers", "hf_distilbert"])
@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: "-".join(f"{k}={v}" for k, v in o.items()))
def test_tokentm_options(options: dict[str, Any], name: str) -> None:
    """Each against its loop; each changes the map, but for a reference that is the same in post-norm models."""
    v = seen(name)
    got = explain(v.model, v.inputs, "tokentm", target=2, **options).scores
    wanted = tokentm_scores(v, 2, **options).detach()[v.scored]
    assert_same(scored(v, got[0]), wanted, "tokentm", 1e-10)
    default = explain(v.model, v.inputs, "tokentm", target=2).scores
    same = options == {"reference": "normed"} and FAMILY_NAMES[name].norm is None
    changed = float((got - default).abs().max()) > 1e-4 * float(default.max())
    assert changed != same


@pytest.mark.parametrize("option", ["weights", "reference", "heads", "start"])
def test_tokentm_wrong_choice(option: str) -> None:
    family = FAMILIES["timm_vit"]
    with pytest.raises(ArgumentError, match=rf"Expected {option} .*'both'\."):
        explain(family.model(), family.inputs(1), "tokentm", **{option: "both"})


def test_tokentm_is_refused_where_parts_are_hidden() -> None:
    """An unknown model shows no MLP and no projections; what needs neither is served."""
    family = FAMILIES["plain_vit"]
    for options, part in (({}, "MLP output"), ({"ffn": False}, "value projection")):
        with pytest.raises(UnsupportedModelError, match=f"it reads the {part} of every block, .* does not show"):
            explain(family.model(), family.inputs(1), "tokentm", **options)
    assert explain(family.model(), family.inputs(1), "tokentm", ffn=False, weights="none").scores.shape == (1, 4, 6)


ALONE = {"ffn": False, "start": "identity"}  # the attention step of one block: S = w + w A^ W


def test_direction_of_tokentm_is_1_on_average() -> None:
    """Over real tokens, padding left out: seen as the ratio of what W makes of the same attention."""
    family = FAMILIES["hf_bert"]
    model = family.fresh()
    model.bert.encoder.layer = model.bert.encoder.layer[:1]
    model.config.num_hidden_layers = 1
    inputs = family.inputs(3)
    found = {}
    for kind in ("direction", "none"):
        # Summed over classes, because every token speaks for some of them.
        e = explain(model, inputs, "tokentm", target=list(range(CLASSES)), weights=kind, **ALONE)
        found[kind] = (e.scores + e.special).sum(1)
        found[kind][:, 0] -= CLASSES  # the read-out's own share
    for n, length in enumerate((8, 3, 11)):
        direction = found["direction"][n, :length] / found["none"][n, :length]
        assert float(direction.mean()) == pytest.approx(1, abs=1e-9)
        assert float(direction.min()) > 0
        assert float(direction.max() - direction.min()) > 0.01


def test_tokentm_of_tokens_that_keep_their_direction() -> None:
    """Value and output projection make T three times as long: NECC is 1 everywhere, the ratio of lengths 3."""
    model = vit(depth=1, global_pool="avg", class_token=False)
    attention = model.blocks[0].attn
    attention.qkv.weight.data[64:] = torch.eye(32)
    attention.proj.weight.data = 3 * torch.eye(32, dtype=torch.float64)
    scores = {
        kind: explain(model, images(2), "tokentm", target=2, weights=kind, reference="normed", **ALONE).scores - 1 / 9
        for kind in ("none", "direction", "length", "length+direction")
    }
    assert_same(scores["direction"], scores["none"], "tokentm", 1e-12)
    assert_same(scores["length"], 3 * scores["none"], "tokentm", 1e-12)
    assert_same(scores["length+direction"], 3 * scores["none"], "tokentm", 1e-12)


def test_rows_of_tokentm_do_not_overflow() -> None:
    deep = vit(depth=140)  # every MLP doubles a row, or nearly: about 2^140 in all
    exact = explain(deep, images(2), "tokentm", target=1, weights="direction").scores
    scores = explain(deep.float(), images(2).float(), "tokentm", target=1, weights="direction").scores
    assert float(scores.max()) > 0
    for got, wanted in zip(scores.double(), exact, strict=True):
        assert_same(got / got.max(), wanted / wanted.max(), "tokentm", 1e-2)


def test_tokentm_of_tokens_of_length_zero() -> None:
    """A black image without position embedding: patches enter as zeros, and leave no NaN behind."""
    for dtype in (torch.float32, torch.float64):
        model = vit(depth=2, pos_embed="none").to(dtype)
        model.patch_embed.proj.bias.data.zero_()
        for block in model.blocks:
            block.attn.proj.weight.data *= 30  # long beside nothing
        scores = explain(model, torch.zeros(1, 3, 24, 24, dtype=dtype), "tokentm", target=1).scores
        assert float(scores.abs().max()) == 0, "what has no length contributes nothing"


# --- AttCAT ----------------------------------------------------------------------------------------------------------


def blind(model: nn.Module) -> nn.Module:
    """All queries zero, so that attention is uniform."""
    for block in model.blocks:
        width = block.attn.qkv.in_features
        block.attn.qkv.weight.data[:width] = 0
        block.attn.qkv.bias.data[:width] = 0
    return model


def test_attcat_with_uniform_attention() -> None:
    """1/N times gradient times token, summed over blocks."""
    model, x = blind(vit()), images(2)
    for n in range(2):
        v = view_of(model, x[n : n + 1])
        inside = look(v)
        found = gradients(inside.logits[2], inside.stream)
        wanted = sum(products(t, g) for t, g in zip(inside.stream, found, strict=True)) / 10
        got = explain(model, x, "attcat", target=2).scores[n]
        assert_same(got.flatten(), wanted[1:], "attcat", 1e-11)


def test_attcat_without_attention_output() -> None:
    """One block that moves nothing between tokens, and a head that reads the class token: patches count for nothing."""
    model = vit(depth=1)
    assert float(explain(model, images(2), "attcat", target=2).scores.abs().max()) > 0
    model.blocks[0].attn.proj.weight.data.zero_()
    assert float(explain(model, images(2), "attcat", target=2).scores.abs().max()) == 0


@pytest.mark.parametrize("name", ["hf_bert", "encoder_text"])
def test_attcat_counts_queries_that_are_not_padding(name: str) -> None:
    """Padding queries attend to words too; a mean over them would move with the length of the batch."""
    family = FAMILIES[name]
    inputs = family.inputs(3)
    together = explain(family.model(), inputs, "attcat", target=1).scores
    for n, length in enumerate((8, 3, 11)):
        alone = explain(family.model(), family.sample(inputs, n), "attcat", target=1).scores
        assert_same(together[n, :length], alone[0], "attcat", 1e-10)


# --- AGCAM -----------------------------------------------------------------------------------------------------------


def test_agcam_of_the_last_block_uses_the_plain_gradient() -> None:
    """L = 1: nothing above is cut. With more blocks the gradients below differ."""
    one, three = vit(depth=1), vit(depth=3)
    for model, agrees in ((one, True), (three, False)):
        v = view_of(model, images())
        plain = sum(agcam_blocks(look(v), 2))[1:]
        got = explain(model, images(), "agcam", target=2).scores.flatten()
        assert (float((got - plain).abs().max()) < 1e-11 * float(plain.max())) == agrees
    v = view_of(three, images())
    whole, cut = agcam_blocks(look(v), 2), agcam_blocks(look(v, cut="input"), 2)
    assert_same(cut[-1], whole[-1], "agcam", 1e-11)
    assert float((cut[0] - whole[0]).abs().max()) > 0.05 * float(whole[0].max())


def test_agcam_reads_logits_before_a_bias_of_positions() -> None:
    """An additive mask, as of relative positions, is in A and its gradient, but not in the sigmoid."""
    model, family = PlainViT(), FAMILIES["plain_vit"]
    for number in range(3):
        model.blocks[number] = MaskedBlock()
        model.blocks[number].mask = torch.randn(25, 25, dtype=torch.float64)
    model = enliven(model).double().eval()
    v = view(family, model, family.inputs(1))
    wanted = sum(agcam_blocks(look(v, cut="input"), 2))[v.scored]
    assert_same(explain(model, family.inputs(1), "agcam", target=2).scores.flatten(), wanted, "agcam", 1e-11)


def test_agcam_is_linear_in_the_score() -> None:
    family = FAMILIES["timm_deit_distilled"]
    once = explain(family.model(), family.inputs(3), "agcam", target=lambda logits: logits[:, 2]).scores
    twice = explain(family.model(), family.inputs(3), "agcam", target=lambda logits: 2 * logits[:, 2]).scores
    assert_same(twice, 2 * once, "agcam", 1e-12)


@pytest.mark.parametrize(("name", "rows"), [("timm_vit", 1), ("timm_deit_distilled", 2), ("hf_bert", 1)])
def test_agcam_reads_rows_that_alone_have_a_gradient(name: str, rows: int) -> None:
    family = FAMILIES[name]
    model, batch = family.model(), prepare(family.model(), family.inputs(3)).batch
    for needs, alone in ((METHODS["agcam"].needs, True), (Needs(keep={"attention": "all"}, graph="attention"), False)):
        with observe(model, find_anatomy(model, batch), batch, needs) as trace:
            found = trace.gradient(trace.logits[:, 2], *(block.z for block in trace.blocks))
            below = [float(g[:, :, rows:].abs().max()) for g in found]
            assert all(float(g[:, :, :rows].abs().min()) > 0 for g in found)
            assert below[-1] == 0
            assert (max(below) == 0) == alone
