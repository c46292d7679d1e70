"""CDAM, smooth and integrated: the closed forms and identities of their specification."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import mhex
from mhex.errors import ArgumentError
from support.block_internals import look, run_on
from support.cases import assert_same, explain
from support.formulas import View, view
from support.formulas_tokens import gauss, gradients, integrated, products
from support.models import CLASSES, FAMILIES, Family, PlainBlock, PlainViT, enliven

CLASS_TOKEN = (
    "timm_vit", "timm_vit_dynamic", "timm_deit_distilled", "timm_registers", "hf_vit", "hf_deit", "hf_deit_teacher",
    "hf_bert", "hf_roberta", "hf_distilbert", "tv_vit",
)  # fmt: skip
VITS = ("timm_vit", "timm_deit_distilled", "hf_vit", "tv_vit", "hf_dinov2", "timm_avg", "plain_vit_shared")


def seen(name: str, index: int = 0) -> View:
    family = FAMILIES[name]
    return view(family, family.model(), family.sample(family.inputs(3), index))


def scored(v: View, e: mhex.Explanation, index: int = 0) -> Tensor:
    """Scores of the scored tokens in a row."""
    one = e.scores[index]
    return one.flatten() if v.family.size is not None else one[v.scored]


# --- the exact relation to attention ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CLASS_TOKEN)
def test_closed_form_equals_the_gradient(name: str) -> None:
    family = FAMILIES[name]
    inputs = family.inputs(3)
    by_gradient = explain(family.model(), inputs, "cdam", target=[1, 4])
    by_attention = explain(family.model(), inputs, "cdam", target=[1, 4], closed_form=True)
    assert_same(by_attention.scores, by_gradient.scores, "cdam", 1e-10)
    if family.size is None:  # the separator too; only the class token itself has no closed form
        assert_same(by_attention.special[..., 1:], by_gradient.special[..., 1:], "cdam", 1e-10)
        assert float(by_attention.special[..., 0].abs().max()) == 0 < float(by_gradient.special[..., 0].abs().min())


@pytest.mark.parametrize("name", ["timm_vit", "timm_deit_distilled", "hf_bert"])
def test_closed_form_term_by_term(name: str) -> None:
    """Written out from what the attention was given; the last block's value and key biases are subtracted."""
    v = seen(name)
    inside = look(v)
    last = inside.calls[-1]
    (gradient,) = gradients(inside.logits[2], [last.z])
    block = v.model.blocks[-1].attn.qkv if name.startswith("timm") else v.model.bert.encoder.layer[-1].attention.self
    width = inside.tokens[-1].shape[-1]
    if name.startswith("timm"):
        key_bias, value_bias = block.bias.detach()[width : 2 * width], block.bias.detach()[2 * width :]
    else:
        key_bias, value_bias = block.key.bias.detach(), block.value.bias.detach()
    rows = [i for i in range(len(v.readout)) if float(v.readout[i]) > 0]
    wanted = torch.zeros_like(v.readout)
    d = last.q.shape[-1]
    for h in range(last.q.shape[1]):
        b_k, b_v = key_bias[h * d : (h + 1) * d], value_bias[h * d : (h + 1) * d]
        q, k, value, z = (t[0, h].detach() for t in (last.q, last.k, last.v, last.z))
        for r in rows:
            for i in v.scored:
                direct = torch.dot(value[i] - b_v, gradient[0, h, r])
                key = last.scale * torch.dot(q[r], k[i] - b_k) * torch.dot(value[i] - z[r], gradient[0, h, r])
                wanted[i] += last.matrix[0, h, r, i].detach() * (direct + key)
    inputs = v.family.sample(v.family.inputs(3), 0)
    for closed in (False, True):
        got = explain(v.model, inputs, "cdam", target=2, closed_form=closed)
        assert_same(scored(v, got), wanted[v.scored], "cdam", 1e-10)


@pytest.mark.parametrize("name", ["hf_dinov2", "timm_avg", "timm_map", "plain_vit", "encoder_text"])
def test_closed_form_is_refused_elsewhere(name: str) -> None:
    family = FAMILIES[name]
    with pytest.raises(ArgumentError, match=r"Expected a model that reads class tokens.*leave it out\."):
        explain(family.model(), family.inputs(1), "cdam", closed_form=True)


def test_closed_form_is_refused_with_normed_keys() -> None:
    from timm.models.vision_transformer import VisionTransformer

    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 4, "num_classes": CLASSES}
    model = enliven(VisionTransformer(**sizes, qk_norm=True)).eval()
    with pytest.raises(ArgumentError, match="plain projections of keys"):
        explain(model, torch.randn(1, 3, 32, 32), "cdam", closed_form=True)


class SteeredBlock(PlainBlock):
    """A plain block whose attention can be masked, or its q and k taken for constants."""

    mask: Tensor | None = None
    constant = False

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm_a(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if self.constant:
            q, k = q.detach(), k.detach()
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask).transpose(1, 2).flatten(2))
        return x + self.feed(self.norm_b(x))


def steered() -> PlainViT:
    model = PlainViT()
    for block in range(len(model.blocks)):
        model.blocks[block] = SteeredBlock()
    return enliven(model).double().eval()


def test_constant_attention_leaves_the_value_term() -> None:
    model, family = steered(), FAMILIES["plain_vit"]
    images = family.inputs(1)
    full = explain(model, images, "cdam", target=2).scores
    model.blocks[-1].constant = True
    v = view(family, model, images)
    inside = look(v)
    last = inside.calls[-1]
    (gradient,) = gradients(inside.logits[2], [last.z])
    bias = model.blocks[-1].qkv.bias.detach()[64:].reshape(4, 8)
    wanted = torch.zeros_like(v.readout)
    for h in range(4):
        for i in v.scored:
            share = last.matrix[0, h, 0, i].detach()
            wanted[i] += share * torch.dot(last.v[0, h, i].detach() - bias[h], gradient[0, h, 0])
    got = explain(model, images, "cdam", target=2).scores
    assert_same(got.flatten(), wanted[v.scored], "cdam", 1e-10)
    assert float((got - full).abs().max()) > 0.01 * float(full.abs().max())


@pytest.mark.parametrize("method", ["cdam", "cdam-smooth", "cdam-integrated"])
def test_what_is_not_attended_to_scores_zero(method: str) -> None:
    """A_0i = 0 in all heads: the softmax derivative carries the factor A_0i too."""
    model, images = steered(), FAMILIES["plain_vit"].inputs(2)
    mask = torch.ones(25, 25, dtype=torch.bool)
    hidden = [1, 7, 24]
    mask[0, hidden] = False
    model.blocks[-1].mask = mask
    scores = explain(model, images, method, target=1).scores.flatten(1)
    assert scores[:, [i - 1 for i in hidden]].tolist() == [[0, 0, 0]] * 2
    shown = [i - 1 for i in range(1, 25) if i not in hidden]
    assert float(scores[:, shown].abs().min()) > 0


# --- where the tokens are read ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["cdam", "cdam-smooth", "cdam-integrated"])
@pytest.mark.parametrize("name", ["timm_vit", "timm_avg", "hf_bert", "plain_vit"])
def test_scores_at_both_sites_against_the_definition(method: str, name: str) -> None:
    v = seen(name)
    inputs = v.family.sample(v.family.inputs(3), 0)
    inside = look(v)
    default = explain(v.model, inputs, method, target=2)
    wanted_site = "block_input" if name == "timm_avg" and method != "cdam-integrated" else "tokens"
    assert default.options["site"] == wanted_site
    for site, tokens in (("tokens", inside.tokens[-1]), ("block_input", inside.stream[-1])):
        got = explain(v.model, inputs, method, target=2, site=site)
        assert got.options["site"] == site
        if site == wanted_site:
            assert torch.equal(got.scores, default.scores)
        if method == "cdam":
            (gradient,) = gradients(inside.logits[2], [tokens])
            terms = float((tokens.detach() * gradient).abs().sum(-1).max())  # they may cancel
            error = scored(v, got) - products(tokens, gradient)[v.scored]
            assert float(error.abs().max()) <= 1e-12 * terms
    with pytest.raises(ArgumentError, match=r"Expected site .*'input'"):
        explain(v.model, inputs, method, site="input")


@pytest.mark.parametrize("name", ["timm_vit", "hf_vit", "tv_vit"])
def test_a_norm_leaves_nothing_of_the_tokens_before_it(name: str) -> None:
    """Patches reach a class token through the norm alone, which does not notice their length: X dy/dX = 0."""
    family = FAMILIES[name]
    before = explain(family.model(), family.inputs(2), "cdam", target=2, site="block_input").scores
    after = explain(family.model(), family.inputs(2), "cdam", target=2).scores
    assert float(before.abs().max()) < 1e-4 * float(after.abs().max())


# --- smooth ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 5])
@pytest.mark.parametrize("name", ["timm_vit", "timm_avg", "hf_bert", "encoder_vit"])
def test_smooth_without_noise_is_cdam(name: str, n: int) -> None:
    family = FAMILIES[name]
    wanted = explain(family.model(), family.inputs(3), "cdam", target=[0, 3])
    got = explain(family.model(), family.inputs(3), "cdam-smooth", target=[0, 3], sigma=0, n=n)
    assert_same(got.scores, wanted.scores, "cdam-smooth", 1e-11)


def test_smooth_follows_its_seed() -> None:
    family = FAMILIES["timm_vit"]

    def scores(**options: Any) -> Tensor:
        return explain(family.model(), family.inputs(2), "cdam-smooth", target=1, **options).scores

    assert torch.equal(scores(seed=4), scores(seed=4))
    assert float((scores(seed=4) - scores(seed=5)).abs().max()) > 1e-3
    # Draws are numbered: of three draws, the first two are those of two.
    one, two, three = scores(n=1), scores(n=2), scores(n=3)
    second, third = 2 * two - one, 3 * three - 2 * two
    for first, other in ((one, second), (second, third), (one, third)):
        assert float((first - other).abs().max()) > 1e-3
    spread = float(torch.stack([one, second, third]).std(0).mean())
    assert spread < 0.5 * float(one.abs().max()), "a third draw that is no draw"
    assert torch.equal(scores(sigma=0.1), scores())


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("cdam-smooth", {"n": 0}),
        ("cdam-smooth", {"n": 2.0}),
        ("cdam-smooth", {"sigma": -0.1}),
        ("cdam-smooth", {"sigma": float("inf")}),
        ("cdam-integrated", {"steps": 0}),
        ("cdam-integrated", {"steps": True}),
        ("cdam-integrated", {"rule": "simpson"}),
    ],
)
def test_wrong_options_of_cdam_are_named(method: str, options: dict[str, Any]) -> None:
    family = FAMILIES["timm_vit"]
    with pytest.raises(ArgumentError, match=f"Expected {next(iter(options))}"):
        explain(family.model(), family.inputs(1), method, **options)


# --- integrated ------------------------------------------------------------------------------------------------------


def nodes(rule: str, steps: int) -> tuple[list[float], list[float]]:
    if rule == "trapezoid":
        ends = [0.5 if k in (0, steps) else 1.0 for k in range(steps + 1)]
        return [k / steps for k in range(steps + 1)], [w / steps for w in ends]
    shift = {"left": 0, "midpoint": 0.5, "right": 1}[rule]
    return [(k + shift) / steps for k in range(steps)], [1 / steps] * steps


@pytest.mark.parametrize("rule", ["right", "midpoint", "left", "trapezoid"])
@pytest.mark.parametrize("name", ["timm_vit", "hf_distilbert"])
def test_quadrature_rules_match_their_own_loop(rule: str, name: str) -> None:
    """Every rule against its own loop, and the gap it reports against the true one."""
    v = seen(name, index=2)
    inputs = v.family.sample(v.family.inputs(3), 2)
    everything = integrated(v, 3, *nodes(rule, 5))
    got = explain(v.model, inputs, "cdam-integrated", target=3, rule=rule, steps=5)
    assert_same(scored(v, got), everything[v.scored], "cdam-integrated", 1e-11)
    begin = run_on(v, "tokens", torch.zeros_like(look(v).tokens[-1]))[3]
    gap = float((everything.sum() - (v.logits[3] - begin)).detach())
    assert float(got.diagnostics["completeness_gap"][0]) == pytest.approx(gap, rel=1e-9)
    assert abs(gap) > 1e-6


@pytest.mark.parametrize("name", VITS)
def test_gauss_is_complete_on_vits(name: str) -> None:
    """Over all tokens, prefix tokens too, the scores add up to y(T) - y(0)."""
    family = FAMILIES[name]
    e = explain(family.model(), family.inputs(2), "cdam-integrated", target=[0, 5], steps=50)
    gap = e.diagnostics["completeness_gap"]
    assert gap.shape == (2, 2)
    assert float(gap.abs().max()) < 1e-9
    v = seen(name)
    begin = run_on(v, "tokens", torch.zeros_like(look(v).tokens[-1])).detach()
    # Prefix tokens are left out of the map, so their own scores are added by hand.
    prefix = integrated(v, 5, *gauss(50))[: family.prefix].sum()
    total = float(e.scores[0, 1].sum() + prefix)
    assert total == pytest.approx(float(v.logits[5].detach() - begin[5]), abs=1e-9)


@pytest.mark.parametrize(("rule", "order"), [("right", 1), ("left", 1), ("midpoint", 2), ("trapezoid", 2)])
def test_rules_converge_at_their_order(rule: str, order: int) -> None:
    family = FAMILIES["timm_vit"]

    def gap(steps: int) -> Tensor:
        e = explain(family.model(), family.inputs(2), "cdam-integrated", target=[0, 5], rule=rule, steps=steps)
        return e.diagnostics["completeness_gap"]

    ratio = gap(40) / gap(80)
    assert float((ratio - 2**order).abs().max()) < 0.15 * 2**order


def test_padding_is_no_part_of_the_gap() -> None:
    family = FAMILIES["hf_bert"]
    together = explain(family.model(), family.inputs(3), "cdam-integrated", target=1, rule="right", steps=3)
    for n in range(3):
        alone = explain(
            family.model(), family.sample(family.inputs(3), n), "cdam-integrated", target=1, rule="right", steps=3
        )
        wanted = float(alone.diagnostics["completeness_gap"][0])
        assert float(together.diagnostics["completeness_gap"][n]) == pytest.approx(wanted, rel=1e-9)


# --- concepts --------------------------------------------------------------------------------------------------------


def latent(model: Any, logits_of: Any) -> tuple[Tensor, Tensor]:
    """What enters the classifier of a timm model, and what the call gave."""
    kept: list[Tensor] = []
    handle = model.head.register_forward_pre_hook(lambda module, args: kept.append(args[0]))
    out = logits_of()
    handle.remove()
    return kept[-1], out


@pytest.mark.parametrize("similarity", ["dot", "cosine", "l2"])
def test_scores_of_a_concept_against_the_definition(similarity: str) -> None:
    family: Family = FAMILIES["timm_vit"]
    model, images = family.model(), family.inputs(5)
    with torch.no_grad():
        examples, _ = latent(model, lambda: model(images[2:]))
    mean = examples.mean(0)
    concept = mhex.Concept.from_examples(model, images[2:], similarity=similarity, batch_size=2)
    assert_same(concept.latent, mean, "cdam", 1e-12)
    v = view(family, model, images[:1])
    kept: list[Tensor] = []
    handle = model.blocks[-1].norm1.register_forward_hook(lambda module, args, output: kept.append(output))
    vector, _ = latent(model, lambda: model(images[:1]))
    handle.remove()
    vector = vector[0]
    score = {
        "dot": lambda: sum(vector[i] * mean[i] for i in range(len(mean))),
        "cosine": lambda: torch.dot(vector, mean) / (vector.norm() * mean.norm()),
        "l2": lambda: -((vector - mean) ** 2).sum().sqrt(),
    }[similarity]()
    wanted = products(kept[0], gradients(score, [kept[0]])[0])[v.scored]
    for method, options in (("cdam", {}), ("cdam", {"closed_form": True}), ("cdam-smooth", {"sigma": 0})):
        got = explain(model, images[:1], method, target=concept, **options)
        assert_same(got.scores.flatten(), wanted, method, 1e-10)
        assert float(got.values[0]) == pytest.approx(float(score.detach()), rel=1e-12)
