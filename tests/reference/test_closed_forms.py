"""Cases small enough to be worked out on paper."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mhex.capture import Anatomy, Block, Needs, find_anatomy, observe
from mhex.inputs import prepare
from support.cases import METHODS, PERTURBING, assert_same, explain, serving
from support.formulas import view
from support.formulas_tokens import drawn
from support.models import CLASSES, FAMILIES, Family, PlainViT, enliven

# --- one block, one head, tokens (1, 2, 3) ---------------------------------------------------------------------------


class OneNumberBlock(nn.Module):
    """Attention with q = 0, k = v = x and scale 1, and a skip connection; one head of width one."""

    def forward(self, x: Tensor) -> Tensor:
        heads = x[:, None]
        return x + F.scaled_dot_product_attention(0 * heads, heads, heads, scale=1.0)[:, 0]


class OneNumberModel(nn.Module):
    """Class token 1, one patch per pixel; the score is the class token after the block: y = x_0 + z_0."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, 1, 1, bias=False)
        self.class_token = nn.Parameter(torch.ones(1, 1, 1))
        self.blocks = nn.ModuleList([OneNumberBlock()])
        nn.init.ones_(self.patches.weight)

    def forward(self, image: Tensor) -> Tensor:
        x = torch.cat([self.class_token.expand(len(image), 1, 1), self.patches(image).flatten(2).mT], 1)
        y = self.blocks[0](x)[:, 0]
        return torch.cat([y, -y], 1)


# Scores of tokens 1 and 2, which hold 2 and 3: A = 1/3 everywhere, z_0 = 2, y = 3, dy/dA_0j = x_j.
FIXTURE: dict[str, tuple[float, float]] = {
    "attention": (1 / 3, 1 / 3),
    "rollout": (1 / 6, 1 / 6),
    "attention-flow": (1 / 6, 1 / 6),
    "attention-gradcam": (5 / 6, 5 / 6),
    "gae": (2 / 3, 1),
    "input-x-gradient": (2 / 3, 1),
    "attcat": (2 / 9, 1 / 3),
    "agcam": (1, 3 / 2),
    "cdam": (2 / 3, 1),
    "cdam-integrated": (2 / 3, 1),
    "integrated-gradients": (2 / 3, 1),
    "conservative-lrp": (2 / 3, 1),
    "attnlrp": (1 / 3, 1 / 2),
    "partial-lrp": (1 / 9, 1 / 6),
    "transformer-attribution": (2 / 9, 1 / 2),
    "gradtoken": (4 / 3, 2),
}
# Of images AttnLRP holds attention constant by default, and stabilisers would show in the last digits.
_FIXTURE_OPTIONS: dict[str, dict[str, Any]] = {
    "attnlrp": {"attention": "shared", "gamma_linear": 0, "gamma_conv": 0},
    "partial-lrp": {"epsilon": 0},
    "transformer-attribution": {"epsilon": 0},
}


@pytest.mark.parametrize("method", [m for m in METHODS if m in FIXTURE])
@pytest.mark.parametrize("tall", [False, True], ids=["wide", "tall"])
def test_fixture_of_one_number(method: str, tall: bool) -> None:
    model = OneNumberModel().double().eval()
    image = torch.tensor([[[[2.0, 3.0]]]], dtype=torch.float64)
    e = explain(model, image.mT.contiguous() if tall else image, method, target=0, **_FIXTURE_OPTIONS.get(method, {}))
    assert e.logits.tolist() == [[3, -3]]
    assert e.scores.shape == ((1, 2, 1) if tall else (1, 1, 2))
    rounding = 1e-6 if method == "attention-flow" else 1e-12
    assert e.scores.flatten().tolist() == pytest.approx(FIXTURE[method], abs=rounding)


def test_fixture_of_smooth_cdam() -> None:
    """Without noise it is CDAM; with noise the token moves and the gradient, 1/3, does not."""
    model, image = OneNumberModel().double().eval(), torch.tensor([[[[2.0, 3.0]]]], dtype=torch.float64)
    still = explain(model, image, "cdam-smooth", target=0, sigma=0).scores
    assert still.flatten().tolist() == pytest.approx((2 / 3, 1), abs=1e-12)
    noise = sum(drawn(draw, 3, 1, seed=5) for draw in range(4)) / 4
    spread = (2 / 3) ** 0.5  # of the tokens 1, 2, 3
    wanted = [(x + 0.3 * spread * float(noise[i])) / 3 for i, x in ((1, 2), (2, 3))]
    moved = explain(model, image, "cdam-smooth", target=0, sigma=0.3, n=4, seed=5).scores
    assert moved.flatten().tolist() == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize("heads", ["folded", "resolved"])
def test_fixture_of_tokentm(heads: str) -> None:
    """The attention step alone, W = I because value and output projection change nothing: A_0j dy/dA_0j x_j.

    The projections of an unknown model are not known, so its anatomy is drawn by hand.
    """
    model, image = OneNumberModel().double().eval(), torch.tensor([[[[2.0, 3.0]]]], dtype=torch.float64)
    assert "projection" in METHODS["tokentm"].refusal(
        find_anatomy(model, prepare(model, image).batch),
        needs=Needs(keep={"attention": "all"}, projections=True),
    )
    unit = (torch.ones(1, 1, dtype=torch.float64), None)
    block = Block(model.blocks[0], value_projection=lambda: unit, output_projection=lambda: unit)
    anatomy = Anatomy("fixture", "image", (block,), prefix_tokens=1, patch=(1, 1))
    method = METHODS["tokentm"]
    options = {**method.options, "ffn": False, "heads": heads}
    with observe(model, anatomy, prepare(model, image).batch, method.needs_with(options, anatomy)) as trace:
        scores = trace.place(method.function(trace, trace.logits[:, 0], **options))
    assert scores.flatten().tolist() == pytest.approx((4 / 3, 3), abs=1e-12)


@pytest.mark.parametrize("method", ["attention-gradcam", "gae", "agcam", "gradtoken"])
def test_fixture_for_the_opposite_class(method: str) -> None:
    """The score of class 1 is -y: all gradients of attention are negative, and nothing speaks for it."""
    image = torch.tensor([[[[2.0, 3.0]]]], dtype=torch.float64)
    assert explain(OneNumberModel().double().eval(), image, method, target=1).scores.tolist() == [[[0, 0]]]


# --- attention alone -------------------------------------------------------------------------------------------------


def vit(**options: Any) -> nn.Module:
    from timm.models.vision_transformer import VisionTransformer

    sizes = {"img_size": 24, "patch_size": 8, "embed_dim": 32, "num_heads": 4, "depth": 3, "num_classes": CLASSES}
    return enliven(VisionTransformer(**{**sizes, **options})).double().eval()


def images(count: int = 2) -> Tensor:
    return torch.randn(count, 3, 24, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


def blind(model: nn.Module) -> nn.Module:
    """All queries zero, so that attention is uniform."""
    for block in model.blocks:
        width = block.attn.qkv.in_features
        block.attn.qkv.weight.data[:width] = 0
        block.attn.qkv.bias.data[:width] = 0
    return model


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_uniform_attention(depth: int) -> None:
    """Raw attention is 1/N; rollout is the row of 2^-L I + (1 - 2^-L) 1/N."""
    model, tokens = blind(vit(depth=depth)), 10
    wanted = torch.full((2, 3, 3), 1 / tokens, dtype=torch.float64)
    assert_same(explain(model, images(), "attention").scores, wanted, "attention", 1e-12)
    assert_same(explain(model, images(), "rollout").scores, (1 - 2.0**-depth) * wanted, "rollout", 1e-12)


@pytest.mark.parametrize("name", ["timm_vit", "timm_avg_class_token", "timm_map", "hf_dinov2_registers"])
def test_rows_sum_to_one(name: str) -> None:
    """What raw attention and rollout give to all tokens, prefix tokens included, is 1 in total: scores stay below."""
    family = FAMILIES[name]
    for method in ("attention", "rollout"):
        total = explain(family.model(), family.inputs(3), method).scores.sum((1, 2))
        assert float(total.max()) < 1 + 1e-12
        if family.prefix == 0:
            assert_same(total, torch.ones_like(total), method, 1e-7)
        else:
            assert float(total.max()) < 1 - 1e-3


@pytest.mark.parametrize("start", [1, 2, 3])
def test_rollout_from_a_later_block(start: int) -> None:
    model, x = vit(), images(1)
    family = Family("", lambda: model, size=(24, 24), blocks=3, prefix=1, grid=(3, 3))
    product = torch.eye(10, dtype=torch.float64)
    for matrix in view(family, model, x).attention[start - 1 :]:
        product = (matrix[0].mean(0) + torch.eye(10)) / 2 @ product
    got = explain(model, x, "rollout", start_block=start).scores
    assert_same(got.flatten(), product[0, 1:].detach(), "rollout", 1e-12)


def test_gae_from_a_later_block() -> None:
    model, x = vit(), images(1)
    family = Family("", lambda: model, size=(24, 24), blocks=3, prefix=1, grid=(3, 3))
    seen = view(family, model, x)
    relevance = torch.eye(10, dtype=torch.float64)
    for matrix, gradient in list(zip(seen.attention, seen.attention_gradients(2), strict=True))[1:]:
        relevance = relevance + (matrix[0] * gradient[0]).clamp_min(0).mean(0) @ relevance
    got = explain(model, x, "gae", target=2, start_block=2).scores
    assert_same(got.flatten(), relevance[0, 1:].detach(), "gae", 1e-11)


def test_flow_through_one_block() -> None:
    """L = 1: the flow to a token is the capacity of its only edge."""
    model = vit(depth=1)
    half = explain(model, images(), "attention").scores / 2
    got = explain(model, images(), "attention-flow").scores
    assert float((got - half).abs().max()) <= 1e-6


def test_flow_through_two_blocks() -> None:
    """L = 2: each token of the middle passes on the smaller of its two capacities."""
    model, x = vit(depth=2), images(1)
    family = Family("", lambda: model, size=(24, 24), blocks=2, prefix=1, grid=(3, 3))
    first, second = ((m[0].mean(0).detach() + torch.eye(10)) / 2 for m in view(family, model, x).attention)
    wanted = torch.stack([torch.minimum(second[0], first[:, j]).sum() for j in range(1, 10)])
    got = explain(model, x, "attention-flow").scores.flatten()
    assert float((got - wanted).abs().max()) <= 1e-5
    assert float(got.max()) <= 1


# --- gradients of attention ------------------------------------------------------------------------------------------


def test_attention_gradcam_with_one_head() -> None:
    """H = 1: raw attention times a number per sample, or zero where that number is negative."""
    model = vit(num_heads=1)
    x = images(5)
    raw = explain(model, x, "attention").scores
    positive = 0
    for target in range(CLASSES):
        ratio = (explain(model, x, "attention-gradcam", target=target).scores / raw).flatten(1)
        assert_same(ratio, ratio[:, :1].expand_as(ratio), "attention-gradcam", 1e-10)
        positive += int((ratio[:, 0] > 0).sum())
    assert 0 < positive < 5 * CLASSES, "some are positive, some are zero"


@pytest.mark.parametrize("factor", [0.5, 3.0])
def test_scaling_the_logits_scales_the_map(factor: float) -> None:
    model, scaled = vit(), vit()
    scaled.head.weight.data *= factor
    scaled.head.bias.data *= factor
    linear = ("cdam", "cdam-smooth", "cdam-integrated", "attcat", "agcam", "gradtoken")
    for method in ("attention-gradcam", "gradcam", "layercam", "input-x-gradient", *linear):
        wanted = factor * explain(model, images(), method, target=1).scores
        assert_same(explain(scaled, images(), method, target=1).scores, wanted, method, 1e-11)


@pytest.mark.parametrize(
    "method",
    [
        m
        for m in METHODS
        if METHODS[m].class_specific
        and METHODS[m].target != "class"
        and m not in PERTURBING
        and m in serving("timm_vit")
    ],
)
@pytest.mark.parametrize("pool", ["token", "avg"])
def test_no_gradient_no_map(method: str, pool: str) -> None:
    """A head of zeros: nothing matters for the score, so nothing is shown; no NaN from dividing by zero.

    GAE and Transformer attribution keep the identity of their products: on pooled models the tokens that are read keep
    their own share. So does TokenTM, and there the share is the token's length at the start.
    """
    model = vit(global_pool=pool)
    model.head.weight.data.zero_()
    options = {"ffn": False} if method == "tokentm" and pool == "avg" else {}
    scores = explain(model, images(), method, target=1, **options).scores
    wanted = torch.zeros_like(scores)
    if method in ("gae", "tokentm", "transformer-attribution") and pool == "avg":
        wanted += 1 / 9
    if options:
        seen: list[Tensor] = []
        handle = model.blocks[0].register_forward_pre_hook(lambda module, args: seen.append(args[0].detach()))
        model(images())
        handle.remove()
        wanted = wanted * seen[0][:, 1:].norm(dim=-1).reshape(wanted.shape)
    assert_same(scores, wanted, method, 1e-7)


def test_gae_of_one_block() -> None:
    """L = 1: exactly the class token's row of the positive part of gradient times attention."""
    model, x = vit(depth=1), images(1)
    family = Family("", lambda: model, size=(24, 24), blocks=1, prefix=1, grid=(3, 3))
    seen = view(family, model, x)
    weighted = (seen.attention[0][0] * seen.attention_gradients(4)[0][0]).clamp_min(0).mean(0)
    got = explain(model, x, "gae", target=4).scores
    assert_same(got.flatten(), weighted[0, 1:].detach(), "gae", 1e-12)


def test_gae_never_loses_what_it_has() -> None:
    """R >= I entry by entry: the score of a read token is at least its own share."""
    family = FAMILIES["timm_avg"]
    scores = explain(family.model(), family.inputs(5), "gae", target=[0, 1, 2]).scores
    assert float(scores.min()) >= (1 - 1e-6) / 24


# --- feature maps ----------------------------------------------------------------------------------------------------


# --- decoders, whose head reads the last word ------------------------------------------------------------------------


def _decoder() -> tuple[nn.Module, dict[str, Tensor], list[Tensor], list[Tensor]]:
    """A GPT-2 with a text of six words, and A and dA of its blocks for class 1, each (6, 6) or by heads."""
    from transformers import GPT2Config, GPT2ForSequenceClassification

    sizes = {"vocab_size": 20, "n_positions": 8, "n_embd": 16, "n_layer": 2, "n_head": 2, "num_labels": 3}
    special = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    config = GPT2Config(**sizes, **special, attn_implementation="eager")
    model = enliven(GPT2ForSequenceClassification(config)).double().eval()
    text = {"input_ids": torch.tensor([[5, 9, 12, 7, 3, 11]])}
    out = model(**text, output_attentions=True)
    gradients = torch.autograd.grad(out.logits[0, 1], out.attentions)
    model.set_attn_implementation("sdpa")
    return model, text, [a[0].detach() for a in out.attentions], [g[0] for g in gradients]


def _weighted(attentions: list[Tensor], gradients: list[Tensor]) -> list[Tensor]:
    return [(a * g).clamp_min(0).mean(0) for a, g in zip(attentions, gradients, strict=True)]


@pytest.mark.parametrize("fusion", ["mean", "max"])
def test_rollout_of_a_decoder_leaves_the_identity_of_the_last_word_out(fusion: str) -> None:
    model, text, attentions, _ = _decoder()
    product, share = torch.eye(6, dtype=torch.float64), 1.0
    for a in attentions:
        matrix = ((a.mean(0) if fusion == "mean" else a.amax(0)) + torch.eye(6)) / 2
        share *= 0.5 / float(matrix[-1].sum())
        product = matrix / matrix.sum(-1, keepdim=True) @ product
    wanted = product[-1].clone()
    wanted[-1] -= share
    assert_same(explain(model, text, "rollout", head_fusion=fusion).scores[0], wanted, "rollout", 1e-10)


@pytest.mark.parametrize(
    ("method", "options"), [("gae", {}), ("tokentm", {"weights": "none", "start": "identity", "ffn": False})]
)
def test_gae_of_a_decoder_leaves_the_identity_of_the_last_word_out(method: str, options: dict[str, Any]) -> None:
    model, text, attentions, gradients = _decoder()
    product = torch.eye(6, dtype=torch.float64)
    for weighted in _weighted(attentions, gradients):
        product = product + weighted @ product
    wanted = product[-1] - torch.eye(6)[-1]
    assert int(product[-1].argmax()) == 5 != int(wanted.argmax()), "by its identity alone the last word is the first"
    assert_same(explain(model, text, method, target=1, **options).scores[0], wanted, method, 1e-10)


@pytest.mark.parametrize("compat", [None, "bert"])
def test_transformer_attribution_of_a_decoder_is_small_where_attention_is(
    compat: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With attention in place of its relevance it is GAE, with rows that sum to 1 as published for BERT."""
    import mhex.methods.transformer_attribution as module

    model, text, attentions, gradients = _decoder()
    matrices = [torch.eye(6, dtype=torch.float64) + one for one in _weighted(attentions, gradients)]
    wanted, share = (matrices[1] @ matrices[0])[-1], 1.0
    if compat == "bert":
        wanted, share = matrices[1][-1] / matrices[1][-1].sum(), 1 / float(matrices[1][-1].sum())
    wanted[-1] -= share
    monkeypatch.setattr(module, "attention_relevance", lambda block, relevance, epsilon: block.attention())
    got = explain(model, text, "transformer-attribution", target=1, compat=compat).scores[0]
    assert_same(got, wanted, "transformer-attribution", 1e-10)


def test_flow_of_a_decoder_to_the_last_word_is_what_it_attends_to_itself() -> None:
    """No other way leads back to it, so that the smallest of its own edges is the flow."""
    model, text, attentions, _ = _decoder()
    last = min(float(a.mean(0)[-1, -1]) / 2 for a in attentions)
    first = min(float(a.mean(0)[0, 0] + 1) / 2 for a in attentions)
    scores = explain(model, text, "attention-flow").scores[0]
    assert float(scores[-1]) == pytest.approx(last, abs=1e-5)
    assert float(scores[0]) > 0
    assert float(scores[0]) <= first


class PooledCNN(nn.Module):
    """A linear head after global average pooling: Grad-CAM is then the class activation map, divided by h w."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, stride=2, padding=1)
        self.body = nn.Sequential(nn.Conv2d(6, 10, 3, stride=2, padding=1), nn.Tanh())
        self.head = nn.Linear(10, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(self.stem(x).relu()).mean((2, 3)))


def test_gradcam_is_cam_after_global_average_pooling() -> None:
    model = enliven(PooledCNN()).double().eval()
    x = torch.randn(3, 3, 24, 32, dtype=torch.float64)
    with torch.no_grad():
        maps = model.body(model.stem(x).relu())
        cam = torch.einsum("k,bkhw->bhw", model.head.weight[4], maps).clamp_min(0)
    got = explain(model, x, "gradcam", target=4)
    assert got.scores.shape == (3, 6, 8)
    assert_same(got.scores, cam / 48, "gradcam", 1e-12)


def test_layercam_equals_gradcam_when_gradients_are_positive_constants() -> None:
    model = enliven(PooledCNN()).double().eval()
    model.head.weight.data.abs_()
    x = torch.randn(2, 3, 24, 32, dtype=torch.float64)
    wanted = explain(model, x, "gradcam", target=1).scores
    assert_same(explain(model, x, "layercam", target=1).scores, wanted, "layercam", 1e-12)


def test_layer_chosen_by_name_or_by_module() -> None:
    model = enliven(PooledCNN()).double().eval()
    x = torch.randn(2, 3, 24, 32, dtype=torch.float64)
    by_name = explain(model, x, "gradcam", layer="stem")
    by_module = explain(model, x, "gradcam", layer=model.stem)
    assert by_name.scores.shape == (2, 12, 16)
    assert torch.equal(by_name.scores, by_module.scores)
    assert by_name.options["layer"] == by_module.options["layer"] == "stem"


# --- inputs ----------------------------------------------------------------------------------------------------------


def test_input_x_gradient_of_a_linear_model() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 4 * 6, CLASSES)).double()
    x = torch.randn(3, 3, 4, 6, dtype=torch.float64)
    e = explain(model, x, "input-x-gradient", target=2)
    weight = model[1].weight.detach()[2].reshape(3, 4, 6)
    assert_same(e.scores, (x * weight).sum(1), "input-x-gradient", 1e-12)
    assert torch.allclose(e.scores.sum((1, 2)), e.logits[:, 2] - model[1].bias.detach()[2])


def test_input_x_gradient_of_a_relu_network_without_biases() -> None:
    """Piecewise linear through the origin: the scores add up to the logit."""
    model = nn.Sequential(
        nn.Conv2d(3, 6, 3, bias=False), nn.ReLU(inplace=True), nn.Conv2d(6, 4, 3, stride=2, bias=False), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(4 * 2 * 3, CLASSES, bias=False),
    ).double()  # fmt: skip
    x = torch.randn(4, 3, 12, 16, dtype=torch.float64)
    e = explain(model, x, "input-x-gradient", target=[0, 5])
    assert torch.allclose(e.scores.sum((2, 3)), e.logits[:, [0, 5]], rtol=1e-10)


def test_measured_readout_of_a_pooled_model() -> None:
    """A mean over all tokens, prefix tokens too, and a linear head: every token is read alike."""
    model = enliven(PlainViT(blocks=2, registers=2, pooled=True)).double().eval()
    model.norm = nn.Identity()
    for block in model.blocks:  # queries of zero: uniform attention
        block.qkv.weight.data[:32] = 0
        block.qkv.bias.data[:32] = 0
    family = FAMILIES["plain_vit"]
    got = explain(model, family.inputs(2), "rollout").scores
    assert_same(got, torch.full_like(got, 1 / 26), "rollout", 1e-12)
    assert_same(explain(model, family.inputs(2), "attention").scores, got, "attention", 1e-12)
