"""What relevance sums to: nothing is lost without biases, and with them what is lost is accounted for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mhex
from mhex.capture import find_anatomy, observe
from mhex.inputs import prepare
from mhex.methods import get_method
from mhex.methods._relevance import TOKENS
from mhex.relevance import AlphaBeta, Epsilon, gradient_rules, relevance_rules
from support.cases import METHODS, assert_same
from support.formulas import _on_grid, view
from support.formulas_lrp import at_first_block, attention_relevance, one_hot, partial_rules, tape_of
from support.models import CLASSES, FAMILIES, Family
from support.rules_lrp import dense, epsilon_neuron, layer_of, over, terms_of
from support.rules_lrp import gradient_rules as second_gradient_rules
from support.rules_lrp import relevance_rules as second_relevance_rules
from support.tape import Call, Rule, Tape
from support.tiny_models import pictures, tiny

TRANSFORMERS = [name for name, family in FAMILIES.items() if family.blocks and not family.heads]
ALL = [name for name, family in FAMILIES.items() if not family.heads]
# One of each kind; the others are slow.
QUICK = ("timm_deit_distilled", "timm_map", "hf_dinov2", "hf_bert", "tv_vit", "plain_vit_shared", "encoder_text")
QUICK_ALL = (*QUICK, "timm_efficientnet", "timm_swin", "plain_cnn")


def some(names: list[str], quick: tuple[str, ...]) -> pytest.MarkDecorator:
    marked = [pytest.param(n, marks=[] if n in quick else [pytest.mark.slow]) for n in names]
    return pytest.mark.parametrize("name", marked)


def unbiased(family: Family) -> nn.Module:
    """Without biases and offsets of norms. Position embeddings stay: they are part of what enters the first block."""
    model = family.fresh()
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1 and name.rsplit(".", 1)[-1] in ("bias", "in_proj_bias"):
            parameter.data.zero_()
    return model


def gap_at_first_block(model: nn.Module, inputs: Any, composite: Any, target: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    """Relevance at the input of block 1, what was given at the score, and what constants took; each (B,)."""
    batch = prepare(model, inputs).batch
    with observe(model, find_anatomy(model, batch), batch, TOKENS, composite) as trace:
        trace.relevance(trace.logits[:, target], trace.blocks[0].site("block_input"), signed=False)
        found = trace.diagnostics
        return found["relevance_out"], found["relevance_in"], found["lost_to_biases"]


@some(TRANSFORMERS, QUICK)
def test_conservative_lrp_conserves_without_biases(name: str) -> None:
    """The scores of all tokens at the input of block 1 sum to the class score."""
    family = FAMILIES[name]
    model, inputs = unbiased(family), family.inputs(3)
    for target in (0, 3):
        out, given, lost = gap_at_first_block(model, inputs, gradient_rules(), target)
        e = mhex.explain(model, inputs, "conservative-lrp", target=target)
        assert torch.equal(given, e.logits[:, target])
        assert float((out - given).abs().max()) <= 1e-9 * float(given.abs().max())
        assert float(lost.abs().max()) <= 1e-12
        assert float(e.diagnostics["conservation_gap"].max()) <= 1e-9
        if family.prefix == 0 and family.modality == "image":
            assert_same(e.scores.flatten(1).sum(1), given, "conservative-lrp", 1e-9)


@some(TRANSFORMERS, QUICK)
def test_relevance_at_the_first_block_is_one(name: str) -> None:
    """Alpha 1, beta 0 with joint denominators, renormalised sums: started with 1, 1 arrives, also with biases.

    An attention-pooling head gives a quarter to its learned query. A stabiliser of 1e-6 takes 7e-5 of it at most on
    these models (measured: 4e-6 to 2e-5).
    """
    family = FAMILIES[name]
    inputs = family.inputs(3)
    for epsilon, allowed in ((0.0, 1e-9), (1e-6, 7e-5)):
        for model in (family.model(), unbiased(family)):
            composite = relevance_rules(AlphaBeta(1.0, epsilon), "renormalised", epsilon=epsilon)
            out, given, lost = gap_at_first_block(model, inputs, composite)
            wanted = 0.75 if family.readout == "pool" else 1.0
            assert torch.equal(given, torch.ones_like(given))
            assert float((out - wanted).abs().max()) <= allowed
            assert float((lost - (1 - wanted)).abs().max()) <= allowed
            if epsilon:
                assert float((out - wanted).abs().max()) > 1e-9, "the stabiliser takes something"


@some(ALL, QUICK_ALL)
def test_what_biases_take_is_accounted_for(name: str) -> None:
    """`relevance_in = relevance_out + lost_to_biases`, at pixels or word embeddings."""
    family = FAMILIES[name]
    model, inputs = family.model(), family.inputs(2)
    for method, options in (
        ("conservative-lrp", {"level": "input"}),
        ("lrp", {"epsilon": 0, "floor": 0, "input_rule": "same"}),
        ("lrp", {"epsilon": 0, "floor": 0}),
        ("lrp", {"epsilon": 0, "floor": 0, "residual": "renormalised"}),
        ("lrp", {"epsilon": 0, "floor": 0, "rule": "gamma"}),
    ):
        e = mhex.explain(model, inputs, method, target=2, **options)
        given, out, lost = (e.diagnostics[n] for n in ("relevance_in", "relevance_out", "lost_to_biases"))
        # Shares of residual sums may be large and of both signs: rounding is that of the largest.
        size = max(float(given.abs().max()), float(out.abs().max()), float(lost.abs().max()))
        assert float((given - out - lost).abs().max()) <= 1e-9 * size
        assert float(lost.abs().max()) > 1e-3
        if family.modality == "image":
            assert_same(e.scores.flatten(1).sum(1), out, method, 1e-9)


@pytest.mark.parametrize("kind", ["cnn", "pre", "post", "gated"])
def test_the_gap_is_bias_times_modified_gradient(kind: str) -> None:
    """Summed over all layers, norms, class tokens and position embeddings of the second formula."""
    model, x = tiny(kind), pictures()
    e = mhex.explain(model, x, "conservative-lrp", target=3, level="input")
    exact = dense(epsilon_neuron(0.0))
    for n in range(2):
        taken: list[float] = []

        def counting(rule: Rule, taken: list[float] = taken) -> Rule:
            def count(call: Call, relevance: Any) -> Any:
                parts = rule(call, relevance)
                taken.append(constants_take(call, relevance, parts))
                return parts

            return count

        tape = Tape(model, x[n : n + 1])
        rules = {kind: counting(rule) for kind, rule in second_gradient_rules(exact, exact).items()}
        start = torch.zeros(1, CLASSES, dtype=torch.float64)
        start[0, 3] = e.logits[n, 3]
        tape.propagate(rules, start, ("gate", "softmax"))
        assert float(e.diagnostics["lost_to_biases"][n]) == pytest.approx(sum(taken), abs=1e-11)
        assert abs(sum(taken)) > 0.01
        assert float(e.logits[n, 3] - e.scores[n].sum()) == pytest.approx(sum(taken), abs=1e-11)


def constants_take(call: Call, relevance: Any, parts: list[Any]) -> float:
    """`sum bias * R / y` of one operation."""
    if call.name in ("addmm", "mm", "convolution", "native_batch_norm"):
        layer = layer_of(call)
        return float((layer.b * over(relevance, layer.apply(layer.x, layer.w) + layer.b)).sum())
    if call.name == "native_layer_norm":
        return float((call.args[3] * over(relevance, call.y)).sum())
    if call.name in ("add", "sub"):
        return sum(float((t * over(relevance, call.y)).sum()) for n, t in terms_of(call) if n not in call.nodes)
    return float(relevance.sum() - sum(part.sum() for part in parts)) if call.name == "cat" else 0.0


def test_epsilon_takes_its_share() -> None:
    """The larger the stabiliser, the more is lost; `conservation_gap` says how much."""
    model, x = tiny("pre"), pictures()
    gaps = []
    for epsilon in (0.0, 1e-6, 1e-3, 1e-1):
        e = mhex.explain(model, x, "lrp", target=3, epsilon=epsilon, floor=0)
        found = e.diagnostics
        wanted = (found["relevance_in"] - found["relevance_out"] - found["lost_to_biases"]).abs() / 1.0
        assert torch.allclose(found["conservation_gap"], wanted)
        gaps.append(float(wanted.max()))
    assert gaps[0] < 1e-12 < gaps[1] < 1e-4 < gaps[2] < gaps[3]


# --- partial LRP and Transformer attribution -------------------------------------------------------------------------


def test_half_of_what_enters_the_product_goes_to_attention() -> None:
    for name in ("timm_vit", "timm_avg", "hf_bert"):
        family = FAMILIES[name]
        e = mhex.explain(family.model(), family.inputs(3), "partial-lrp", target=2, epsilon=0)
        heads, given = e.diagnostics["head_relevance"], e.diagnostics["relevance_out"]
        assert heads.shape == (3, 4)
        assert_same(heads.sum(1), given / 2, "partial-lrp", 1e-9)


def test_rows_that_are_not_read_carry_nothing() -> None:
    family = FAMILIES["timm_vit"]
    seen = view(family, family.model(), family.inputs(1))
    last = attention_relevance(seen, 2, partial_rules())[-1]
    assert float(last[:, 1:].abs().max()) == 0
    assert float(last[:, 0].abs().max()) > 0
    e = mhex.explain(family.model(), family.inputs(1), "partial-lrp", target=2)
    assert float(e.scores.min()) >= 0
    assert_same(e.diagnostics["head_relevance"][0], last.sum((1, 2)), "partial-lrp", 1e-9)


@pytest.mark.parametrize("name", ["timm_vit", "hf_bert"])
def test_partial_lrp_as_published(name: str) -> None:
    """The code behind the rows of Chefer et al.: separate sums, shares of residual sums as they are."""
    family = FAMILIES[name]
    model, inputs = family.model(), family.sample(family.inputs(1), 0)
    seen = view(family, model, inputs)
    last = attention_relevance(seen, 2, published_rules())[-1][:, 0].clamp_min(0).mean(0)
    e = mhex.explain(model, inputs, "partial-lrp", target=2, compat="chefer-lrp")
    assert_same(e.scores.flatten(), last[1:] if name == "timm_vit" else _on_grid(seen, last), "partial-lrp", 1e-7)
    usual = mhex.explain(model, inputs, "partial-lrp", target=2).scores
    assert float((e.scores - usual).abs().max()) > 0.01 * float(usual.abs().max())


def published_rules() -> dict[str, Rule]:
    def separate(call: Call, relevance: Tensor) -> list[Tensor]:
        layer = layer_of(call)
        total = torch.zeros_like(layer.x)
        for x, w in ((layer.x.clamp_min(0), layer.w.clamp_min(0)), (layer.x.clamp_max(0), layer.w.clamp_max(0))):
            total += x * layer.back(over(relevance, layer.apply(x, w), 1e-9), w)
        return [total]

    return second_relevance_rules(separate, None, 1e-9, renormalised=False)


@pytest.mark.parametrize("name", ["hf_bert", "hf_distilbert"])
def test_lrp_of_texts_as_published_reads_what_enters_the_first_block(name: str) -> None:
    """After the norm of the embeddings and the position embedding, which takes no share then."""
    family = FAMILIES[name]
    model, inputs = family.model(), family.sample(family.inputs(1), 0)
    seen = view(family, model, inputs)
    tape = tape_of(seen)
    arrived = tape.propagate(published_rules(), one_hot(tape, 2))
    wanted = _on_grid(seen, at_first_block(seen, tape, arrived).sum(-1))
    e = mhex.explain(model, inputs, "lrp", target=2, compat="chefer-lrp")
    assert_same(e.scores[0], wanted, "lrp", 1e-7)


@pytest.mark.parametrize("name", ["timm_vit", "hf_bert", "timm_map", "plain_vit"])
def test_transformer_attribution_of_attention_itself_is_gae(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import mhex.methods.transformer_attribution as module

    family = FAMILIES[name]
    model, inputs = family.model(), family.inputs(3)
    before = mhex.explain(model, inputs, "transformer-attribution", target=2).scores
    monkeypatch.setattr(module, "attention_relevance", lambda block, relevance, epsilon: block.attention())
    wanted = mhex.explain(model, inputs, "gae", target=2).scores
    assert_same(mhex.explain(model, inputs, "transformer-attribution", target=2).scores, wanted, "gae", 1e-12)
    assert float((before - wanted).abs().max()) > 1e-3 * float(wanted.abs().max())


@pytest.mark.parametrize("start", [1, 2, 3])
def test_transformer_attribution_from_a_later_block(start: int) -> None:
    family = FAMILIES["timm_vit"]
    model, x = family.model(), family.inputs(1)
    seen = view(family, model, x)
    product = torch.eye(25, dtype=torch.float64)
    pairs = list(zip(attention_relevance(seen, 4), seen.attention_gradients(4), strict=True))
    for relevance, gradient in pairs[start - 1 :]:
        product = product + (relevance * gradient[0]).clamp_min(0).mean(0) @ product
    got = mhex.explain(model, x, "transformer-attribution", target=4, start_block=start).scores
    assert_same(got.flatten(), product[0, 1:].detach(), "transformer-attribution", 1e-10)


def test_transformer_attribution_as_published_for_text() -> None:
    """Only the last block, and rows of `I + ...` scaled to sum 1."""
    family = FAMILIES["hf_bert"]
    model, inputs = family.model(), family.sample(family.inputs(1), 0)
    seen = view(family, model, inputs)
    relevance, gradient = attention_relevance(seen, 4)[-1], seen.attention_gradients(4)[-1][0]
    matrix = torch.eye(len(seen.readout), dtype=torch.float64) + (relevance * gradient).clamp_min(0).mean(0)
    row = (matrix / matrix.sum(-1, keepdim=True))[0].detach()
    e = mhex.explain(model, inputs, "transformer-attribution", target=4, compat="bert")
    assert_same(e.scores[0, 1:-1], row[1:-1], "transformer-attribution", 1e-10)


@pytest.mark.parametrize("method", [m for m in METHODS if METHODS[m].rules is not None and m != "guided-backprop"])
@pytest.mark.parametrize("name", ["timm_vit", "tv_vit", "hf_bert"])
def test_a_batch_is_its_samples(method: str, name: str) -> None:
    """Sums over samples, maxima of boxes and masses are each sample's own. Two targets, to be sure."""
    family = FAMILIES[name]
    model, inputs = family.model(), family.inputs(3)
    assert get_method(method).rules is not None
    together = mhex.explain(model, inputs, method, target=[2, 4]).scores
    for n in range(3):
        alone = mhex.explain(model, family.sample(inputs, n), method, target=[2, 4]).scores[0]
        assert_same(together[n, :, : alone.shape[-1]] if name == "hf_bert" else together[n], alone, method, 1e-8)


def test_epsilon_rule_of_layers_alone() -> None:
    """A stabiliser of layers shows where none of sums and products does."""
    family = FAMILIES["timm_vit"]
    out, given, lost = gap_at_first_block(family.model(), family.inputs(2), relevance_rules(Epsilon(0.5), epsilon=0.0))
    assert float((out + lost - given).abs().min()) > 1e-3
