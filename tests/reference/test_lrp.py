"""The LRP family on whole networks: dense second formulas, and what the specification says must hold."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mhex
from mhex.relevance import gradient_rules
from support.cases import assert_same
from support.models import CLASSES, FAMILIES, PlainViT, enliven
from support.rule_comparison import handed_down
from support.rules_abslrp import absolute_neuron, absolute_rules, scaled_dense
from support.rules_lrp import (
    Neuron,
    alphabeta_neuron,
    box_neuron,
    dense,
    epsilon_neuron,
    gamma_neuron,
    relevance_rules,
    separate_neuron,
)
from support.rules_lrp import (
    gradient_rules as second_gradient_rules,
)
from support.tape import Rule, Tape
from support.tiny_models import pictures, tiny

CONSTANT = ("gate", "softmax")


NETWORKS = ("cnn", "pre", "post", "gated")
every_network = pytest.mark.parametrize("kind", NETWORKS)
RULES: dict[str, tuple[dict[str, Any], Neuron, Neuron | None]] = {
    "epsilon": ({"rule": "epsilon", "epsilon": 0.01}, epsilon_neuron(0.01), box_neuron(0.01)),
    "alpha1": ({"rule": "alphabeta"}, alphabeta_neuron(1.0, 1e-6), box_neuron(1e-6)),
    "alpha2": ({"rule": "alphabeta", "alpha": 2.0, "input_rule": "same"}, alphabeta_neuron(2.0, 1e-6), None),
    "gamma": ({"rule": "gamma", "gamma": 0.4, "input_rule": "same"}, gamma_neuron(0.4, 1e-6), None),
    "renormalised": ({"residual": "renormalised"}, epsilon_neuron(1e-6), box_neuron(1e-6)),
    "no-floor": ({"floor": 0.0}, epsilon_neuron(1e-6), box_neuron(1e-6)),
    "high-floor": ({"floor": 0.3, "rule": "alphabeta"}, alphabeta_neuron(1.0, 1e-6), box_neuron(1e-6)),
    "chefer": ({"compat": "chefer-lrp"}, separate_neuron(1e-9), box_neuron(1e-9)),
}


@every_network
def test_lrp_of_whole_networks(kind: str) -> None:
    model, x = tiny(kind), pictures()
    tapes = [Tape(model, x[n : n + 1]) for n in range(2)]
    for name, (options, neuron, entrance) in RULES.items():
        epsilon = {"chefer": 1e-9, "epsilon": 0.01}.get(name, 1e-6)
        first = None if entrance is None else dense(entrance)
        floor = 0.0 if kind == "cnn" or name == "chefer" else options.get("floor", 0.05)
        rules = relevance_rules(dense(neuron), first, epsilon, renormalised=name == "renormalised", floor=floor)
        e = mhex.explain(model, x, "lrp", target=3, **options)
        for n, tape in enumerate(tapes):
            # Scores above 0 speak for the class, also where its logit is negative.
            signed = options.get("rule") != "alphabeta" and "compat" not in options
            start = F.one_hot(torch.tensor([3]), CLASSES) * (e.logits[n, 3].sign() if signed else 1.0)
            wanted = tape.propagate(rules, start)[tape.input][0, 0]
            # Sums of both signs are divided by, and with 1e-9 they are hardly stabilised.
            assert_same(e.scores[n], wanted, f"lrp {name}", 1e-7 if name == "chefer" else 1e-9)


@every_network
def test_modified_gradients_of_whole_networks(kind: str) -> None:
    model, x = tiny(kind), pictures()
    tapes = [Tape(model, x[n : n + 1]) for n in range(2)]
    exact = dense(epsilon_neuron(0.0))
    gammas = [dense(gamma_neuron(gamma, 1e-6)) for gamma in (0.05, 0.25)]
    cases: list[tuple[str, dict[str, Any], dict[str, Rule], tuple[str, ...]]] = [
        ("conservative-lrp", {"level": "input"}, second_gradient_rules(exact, exact), CONSTANT),
        ("attnlrp", {}, second_gradient_rules(*gammas, projection=exact), CONSTANT),
        ("attnlrp", {"projections": "gamma"}, second_gradient_rules(*gammas), CONSTANT),
        ("attnlrp", {"attention": "shared", "gamma_linear": 0.0, "gamma_conv": 0.0},
         second_gradient_rules(exact, exact), ("gate",)),
    ]  # fmt: skip
    for method, options, rules, cut in cases:
        e = mhex.explain(model, x, method, target=3, **options)
        for n, tape in enumerate(tapes):
            start = F.one_hot(torch.tensor([3]), CLASSES) * e.logits[n, 3]
            wanted = tape.propagate(rules, start, cut)[tape.input][0, 0]
            assert_same(e.scores[n], wanted, method, 1e-9)


@every_network
def test_abslrp_of_whole_networks(kind: str) -> None:
    model, x = tiny(kind), pictures()
    e = mhex.explain(model, x, "abslrp", target=3)
    rules = absolute_rules(scaled_dense(absolute_neuron))
    for n in range(2):
        tape = Tape(model, x[n : n + 1])
        one = F.one_hot(torch.tensor([3]), CLASSES).double()
        parts = [tape.propagate(rules, s)[tape.input][0, 0] for s in (one, (1 - one) / (CLASSES - 1))]
        for part in parts:
            assert float(part.abs().sum()) == pytest.approx(1, abs=1e-12), "mass 1 after each pass"
        wanted = parts[0] - parts[1]
        assert_same(e.scores[n], wanted / wanted.abs().max(), "abslrp", 1e-9)
        assert float(e.scores[n].abs().max()) == 1


# --- one linear layer ------------------------------------------------------------------------------------------------


def linear_model(classes: int = CLASSES) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(16, classes, bias=False)).double().requires_grad_(False)


def test_lrp_of_one_linear_layer() -> None:
    """`R_i = x_i w_ic / |y_c|`, and with alpha 1, beta 0 no relevance is negative."""
    torch.manual_seed(0)
    model, x = linear_model(), pictures()
    z = x[:, 0] * model[1].weight[2].reshape(4, 4)
    e = mhex.explain(model, x, "lrp", target=2, epsilon=0, input_rule="same")
    assert_same(e.scores, z / z.sum((1, 2), keepdim=True).abs(), "lrp", 1e-12)
    positive = mhex.explain(model, x, "lrp", target=2, epsilon=0, input_rule="same", rule="alphabeta").scores
    assert_same(positive, z.clamp_min(0) / z.clamp_min(0).sum((1, 2), keepdim=True), "lrp", 1e-12)
    assert float(positive.min()) >= 0
    assert_same(mhex.explain(model, x, "conservative-lrp", target=2).scores, z, "conservative-lrp", 1e-12)


def test_abslrp_of_one_linear_layer() -> None:
    """`R^+_i` is proportional to `(x_i w_ic)^+`; the class with another one in place of the rest."""
    torch.manual_seed(0)
    model, x = linear_model(2), pictures()
    shares = []
    for c in range(2):
        z = (x[:, 0] * model[1].weight[c].reshape(4, 4)).clamp_min(0)
        shares.append(z / z.sum((1, 2), keepdim=True))
    wanted = shares[0] - shares[1]
    wanted = wanted / wanted.abs().amax((1, 2), keepdim=True)
    assert_same(mhex.explain(model, x, "abslrp", target=0).scores, wanted, "abslrp", 1e-12)
    assert_same(mhex.explain(model, x, "abslrp", target=1).scores, -wanted, "abslrp", 1e-12)


@every_network
def test_abslrp_of_two_classes_flips_with_them(kind: str) -> None:
    if kind == "cnn":
        model = tiny(kind)
        model.head = nn.Linear(3, 2, dtype=torch.float64).requires_grad_(False)
    else:
        model = tiny(kind, classes=2)
    e = mhex.explain(model, pictures(), "abslrp", target=[0, 1])
    assert_same(e.scores[:, 0], -e.scores[:, 1], "abslrp", 1e-12)
    assert float(e.scores.abs().max()) == 1


def test_abslrp_of_one_logit() -> None:
    """One output for two classes: class 0 is its opposite, whose contributions are those of the other sign."""
    model, x = tiny("pre", classes=1), pictures()
    e = mhex.explain(model, x, "abslrp", target=[0, 1])
    assert_same(e.scores[:, 0], -e.scores[:, 1], "abslrp", 1e-12)
    assert float(e.scores.flatten(2).abs().amax(2).min()) == 1


# --- attention -------------------------------------------------------------------------------------------------------


def test_attnlrp_with_constant_attention_is_conservative_lrp() -> None:
    """Queries and keys detached and values unscaled: nothing else is different."""
    options = {"attention": "constant", "gamma_linear": 0, "gamma_conv": 0}
    for kind in ("pre", "post", "gated"):
        model = tiny(kind)
        wanted = mhex.explain(model, pictures(), "conservative-lrp", target=1, level="input").scores
        assert_same(mhex.explain(model, pictures(), "attnlrp", target=1, **options).scores, wanted, "attnlrp", 1e-13)
    family = FAMILIES["hf_bert"]
    words = family.inputs(3)
    wanted = mhex.explain(family.model(), words, "conservative-lrp", target=1, level="input").scores
    got = mhex.explain(family.model(), words, "attnlrp", target=1, attention="constant").scores
    assert_same(got, wanted, "attnlrp", 1e-13)


def test_softmax_of_two_keys() -> None:
    """`R_A = (1, 0)` gives `R_l = (l_1 A_2, -l_2 A_2)`."""
    logits = torch.tensor([[0.7, -1.1]], dtype=torch.float64)
    a = logits.softmax(-1)
    shared = gradient_rules(attention="shared")
    found, _ = handed_down(shared, lambda x: x.softmax(-1), logits, torch.tensor([[1.0, 0.0]], dtype=torch.float64))
    wanted = torch.stack([logits[0, 0] * a[0, 1], -logits[0, 1] * a[0, 1]])
    assert torch.allclose(found[0], wanted, 1e-12)


def test_values_that_are_all_alike_leave_nothing_to_queries_and_keys() -> None:
    x = torch.randn(2, 2, 2, 5, 3, dtype=torch.float64)  # q and k
    v = torch.randn(2, 2, 1, 3, dtype=torch.float64).expand(2, 2, 5, 3)
    start = torch.randn(2, 2, 5, 3, dtype=torch.float64)
    shared = gradient_rules(attention="shared")
    found, _ = handed_down(shared, lambda x: F.scaled_dot_product_attention(x[:, 0], x[:, 1], v), x, start)
    assert float(found.abs().max()) < 1e-13
    moved, _ = handed_down(shared, lambda x: F.scaled_dot_product_attention(x[:, 0], x[:, 1], x[:, 1]), x, start)
    assert float(moved.abs().max()) > 0.1


def test_conservative_lrp_of_a_linear_head() -> None:
    """One head, values linear in the tokens, a score that reads z_0: `S_j = A_0j v_j dy/dz_0`."""
    model = enliven(PlainViT(blocks=1)).double().eval()
    block = model.blocks[0]
    block.norm_a = block.norm_b = model.norm = nn.Identity()
    block.heads = 1
    block.feed = nn.Sequential(nn.Linear(32, 32, dtype=torch.float64))
    for part in (block.feed[0].weight, block.feed[0].bias, block.out.bias, block.qkv.bias, model.head.bias):
        part.data.zero_()
    x = FAMILIES["plain_vit"].inputs(1)
    tokens: list[Tensor] = []
    handle = block.register_forward_pre_hook(lambda module, args: tokens.append(args[0].detach()))
    model(x)
    handle.remove()
    q, k, v = block.qkv(tokens[0])[0].detach().chunk(3, -1)
    attention = (q @ k.mT / 32**0.5).softmax(-1)[0]
    slope = (model.head.weight[2] @ block.out.weight).detach()
    wanted = attention * (v @ slope)
    got = mhex.explain(model, x, "conservative-lrp", target=2).scores
    assert_same(got.flatten(), wanted[1:], "conservative-lrp", 1e-12)


@pytest.mark.parametrize("name", ["timm_vit", "tv_resnet"])
@pytest.mark.parametrize("method", ["lrp", "conservative-lrp"])
def test_a_concept_is_a_class_whose_weights_are_its_latent(name: str, method: str) -> None:
    """The score `l * l_c` of a concept, handed down by LRP-0, is that of a linear classifier without a bias."""
    family = FAMILIES[name]
    model, x = family.fresh(), family.inputs(2)
    head = model.head if name == "timm_vit" else model.fc
    head.bias.data.zero_()
    concept = mhex.Concept(head.weight.detach()[2].clone())
    # With rules that are linear in relevance; the class starts with 1, the concept with mass 1 in its latent vector.
    options: dict[str, Any] = {"epsilon": 0, "floor": 0} if method == "lrp" else {}
    of_class = mhex.explain(model, x, method, target=2, **options)
    of_concept = mhex.explain(model, x, method, target=concept, **options)
    score = of_class.logits[:, 2]
    given = of_concept.diagnostics["relevance_in"]
    size, factor = (score.abs(), score / given) if method == "lrp" else (torch.ones_like(score),) * 2
    assert_same(of_concept.scores * factor[:, None, None], of_class.scores * size[:, None, None], method, 1e-9)
    if method != "lrp":
        assert_same(given, score, method, 1e-12)
    assert float(of_concept.diagnostics["conservation_gap"].max()) < 1e-9
