"""What is seen of a pass, against the same things seen by other means."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mhex.capture import Anatomy, Batch, Needs, Trace, find_anatomy, observe
from mhex.inputs import prepare
from mhex.relevance import Composite
from mhex.relevance.operation_rules import passed
from support.formulas import written_out_attention
from support.models import FAMILIES, Family, call, enliven
from support.snapshot import Snapshot

TRANSFORMERS = [f for f in FAMILIES.values() if f.blocks]
REPLAYED = [
    FAMILIES[name]
    for name in [
        "timm_vit",
        "timm_registers",
        "timm_map",
        "hf_vit",
        "hf_deit_teacher",
        "hf_dinov2",
        "tv_vit",
        "hf_bert",
        "hf_roberta",
        "hf_distilbert",
        "plain_vit",
        "plain_vit_shared",
        "encoder_vit",
        "encoder_text",
    ]
]


def by_name(families: list[Family]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("family", families, ids=[f.name for f in families])


@contextmanager
def watched(
    family: Family, needs: Needs, inputs: Any, model: nn.Module | None = None, rules: Any = None
) -> Iterator[tuple[nn.Module, Trace]]:
    """An observed pass of the family's model, or of another one of the same family."""
    model = family.model() if model is None else model
    batch = prepare(model, inputs).batch
    with observe(model, find_anatomy(model, batch), batch, needs, rules=rules) as trace:
        yield model, trace


# --- attention -------------------------------------------------------------------------------------------------------


@by_name(TRANSFORMERS)
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-6)], ids=["double", "single"]
)
def test_rebuilt_attention_and_its_gradient(family: Family, dtype: torch.dtype, tolerance: float) -> None:
    """A and dy/dA rebuilt after the fused kernel, against a softmax in the graph (relative to the largest entry)."""
    inputs = family.inputs(3, dtype)
    real = inputs["attention_mask"].bool() if family.size is None else None
    model = family.fresh(dtype)
    if dtype == torch.float32:  # weights of a usual size: steep ones multiply the rounding from block to block
        for parameter in model.parameters():
            parameter.data *= 0.5 if parameter.dim() > 1 else 1
    with written_out_attention() as seen:
        y = call(model, inputs)[:, 1].sum()
    explicit = seen[: family.blocks]
    gradients = torch.autograd.grad(y, explicit, allow_unused=True)
    with watched(family, Needs(keep={"attention": "all"}, graph="attention"), inputs, model) as (_, trace):
        z_gradients = trace.gradient(trace.logits[:, 1], *(block.z for block in trace.blocks))
        for block, z_gradient, matrix, gradient in zip(trace.blocks, z_gradients, explicit, gradients, strict=True):
            rebuilt, rebuilt_gradient = block.attention(), block.attention_gradient(z_gradient)
            if real is not None:  # rows of padding queries reach nothing
                keep = real[:, None, :, None]
                rebuilt, matrix = rebuilt * keep, matrix * keep
                # What padding keys would have contributed depends on values that no score can see.
                visible = real[:, None, None, :] & keep
                rebuilt_gradient, gradient = rebuilt_gradient * visible, gradient * visible
            assert float((rebuilt - matrix).abs().max()) <= tolerance
            error = float((rebuilt_gradient - gradient).abs().max())
            assert error <= tolerance * float(gradient.abs().max())
            assert float((block.attention().sum(-1) - 1).abs().max()) <= tolerance


@by_name(TRANSFORMERS)
def test_one_record_per_block_and_what_they_hold(family: Family) -> None:
    inputs = family.inputs(2)
    with watched(family, Needs(keep={"attention": "all"}), inputs) as (_, trace):
        assert len(trace.blocks) == family.blocks
        tokens = family.tokens if family.size is not None else inputs["input_ids"].shape[1]
        for block in trace.blocks:
            assert block.attention().shape == (2, 4, tokens, tokens)
        assert trace.tokens == tokens
        assert trace.readout.shape == (2, tokens)
        assert torch.allclose(trace.readout.sum(1), torch.ones(2, dtype=torch.float64))
        assert float(trace.readout.min()) >= 0


@by_name(TRANSFORMERS)
def test_attention_is_far_from_uniform(family: Family) -> None:
    """Of the tests themselves: with uniform attention many mistakes would not show."""
    with watched(family, Needs(keep={"attention": "all"}), family.inputs(2)) as (_, trace):
        for block in trace.blocks:
            assert float(block.attention().amax(-1).mean()) > 2.5 / trace.tokens


# --- tokens ----------------------------------------------------------------------------------------------------------


@by_name(TRANSFORMERS)
def test_residual_stream(family: Family) -> None:
    """X of a block is what the block before returned, and what enters the block in a plain pass."""
    inputs = family.inputs(2)
    needs = Needs(keep={"block_input": "all", "block_output": "all"})
    with watched(family, needs, inputs) as (model, trace):
        entering = [block.site("block_input") for block in trace.blocks]
        leaving = [block.site("block_output") for block in trace.blocks]
        modules = [block.block.module for block in trace.blocks]
    for before, after in zip(leaving[:-1], entering[1:], strict=True):
        assert torch.equal(before, after)
    plain: list[Tensor] = []
    handles = [
        m.register_forward_pre_hook(lambda module, args, kwargs: plain.append(args[0]), with_kwargs=True)
        for m in dict.fromkeys(modules)
    ]
    with torch.no_grad():
        call(model, inputs)
    for handle in handles:
        handle.remove()
    if family.name == "encoder_text":
        return  # the plain pass drops padding by nested tensors: other shapes, same values
    assert len(plain) == family.blocks
    for seen, wanted in zip(entering, plain, strict=True):
        assert float((seen - wanted).abs().max()) <= 1e-12


# --- the frozen prefix -----------------------------------------------------------------------------------------------


@by_name(TRANSFORMERS)
def test_nothing_before_the_start_has_a_graph(family: Family) -> None:
    needs = Needs(keep={"block_input": "all", "attention": "all"}, graph="attention", start="last")
    with watched(family, needs, family.inputs(2)) as (_, trace):
        for block in trace.blocks:
            assert block.site("block_input").grad_fn is None
            assert not block.site("block_input").requires_grad
            assert not block.attention_record.query.requires_grad
            assert block.attention_record.value.grad_fn is None
        for block in trace.blocks[:-1]:
            assert not block.z.requires_grad
        assert trace.blocks[-1].z.is_leaf
        assert trace.blocks[-1].z.requires_grad
        assert trace.logits.grad_fn is not None
        assert _graph_size(trace.logits) < 90, "the graph holds one block and the head"


@by_name(TRANSFORMERS)
def test_graph_from_the_first_block_on(family: Family) -> None:
    needs = Needs(keep={"block_input": "all", "attention": "all"}, graph="attention")
    with watched(family, needs, family.inputs(2)) as (_, trace):
        assert not trace.blocks[0].site("block_input").requires_grad
        assert trace.blocks[0].z.is_leaf
        assert all(block.z.requires_grad for block in trace.blocks)
        assert all(block.site("block_input").grad_fn is not None for block in trace.blocks[1:])


@by_name([f for f in FAMILIES.values() if f.features])
def test_features_start_the_graph(family: Family) -> None:
    with watched(family, Needs(keep={"features": "last"}, graph="features"), family.inputs(2)) as (_, trace):
        assert trace.features.is_leaf
        assert trace.features.requires_grad
        assert trace.logits.grad_fn is not None


@by_name([*TRANSFORMERS, FAMILIES["plain_cnn"]])
def test_no_graph_at_all(family: Family) -> None:
    site = {"attention": "all"} if family.blocks else {"features": "last"}
    with watched(family, Needs(keep=site), family.inputs(2)) as (_, trace):
        assert trace.logits.grad_fn is None


def _graph_size(tensor: Tensor) -> int:
    seen: set[Any] = set()
    todo = [tensor.grad_fn]
    while todo:
        node = todo.pop()
        if node is not None and node not in seen:
            seen.add(node)
            todo.extend(parent for parent, _ in node.next_functions)
    return len(seen)


@by_name(TRANSFORMERS)
def test_tensors_are_let_go(family: Family) -> None:
    with watched(family, Needs(keep={"attention": "all"}, graph="attention"), family.inputs(2)) as (_, trace):
        assert trace.blocks
    assert not trace.blocks
    assert not trace.outer
    assert trace.logits.grad_fn is None


# --- replay of the tail ----------------------------------------------------------------------------------------------

TAIL = Needs(keep={"block_input": "last", "tokens": "last"}, graph="tokens")


@by_name(REPLAYED)
def test_replay_with_what_was_seen(family: Family) -> None:
    with watched(family, TAIL, family.inputs(3)) as (_, trace):
        last = trace.blocks[-1]
        logits = trace.logits.detach()
        for again in (
            trace.replay(tokens=last.site("tokens").detach()),
            trace.replay(block_input=last.site("block_input").detach()),
            trace.replay(),
        ):
            assert float((again.logits - logits).abs().max()) <= 1e-12


@by_name(REPLAYED)
def test_replay_with_other_tokens(family: Family) -> None:
    """Against a full pass in which a hook puts the other tokens in their place."""
    inputs = family.inputs(3)
    noise = torch.Generator().manual_seed(5)
    with watched(family, TAIL, inputs) as (model, trace):
        last = trace.blocks[-1]
        seen = last.site("tokens").detach()
        other = seen + torch.randn(seen.shape, generator=noise, dtype=seen.dtype)
        other.requires_grad_()
        got = trace.replay(tokens=other).logits
        (gradient,) = torch.autograd.grad(got[:, 1].sum(), other)
        norm, block = last.block.norm1, last.block.module
        got = got.detach()

    replaced = other.detach().clone().requires_grad_()
    calls = 0

    def substitute(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> Any:
        nonlocal calls
        calls += 1
        return (replaced, *args[1:]) if calls == _uses(model, block) else args

    if norm is None:  # post-norm: the block's input is what enters its attention
        handle = block.register_forward_pre_hook(substitute)
    else:
        handle = norm.register_forward_hook(lambda module, args, output: substitute(module, (output,))[0])
    wanted = call(model, inputs)
    handle.remove()
    (wanted_gradient,) = torch.autograd.grad(wanted[:, 1].sum(), replaced)
    assert float((got - wanted).abs().max()) <= 1e-11
    assert float((gradient - wanted_gradient).abs().max()) <= 1e-10 * float(wanted_gradient.abs().max())


def _uses(model: nn.Module, block: nn.Module) -> int:
    """How often a block is used in a pass: more than once where it is shared."""
    lists = [m for m in model.modules() if isinstance(m, nn.ModuleList)]
    return max([sum(child is block for child in m) for m in lists] + [1])


@by_name(REPLAYED)
def test_replay_runs_the_last_block_only(family: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted by the attention calls, which every block makes once."""
    inputs = family.inputs(2)
    with watched(family, TAIL, inputs) as (model, trace):
        counts: list[str] = []
        attend = F.scaled_dot_product_attention
        counting = lambda *args, **kwargs: (counts.append("attention"), attend(*args, **kwargs))[1]  # noqa: E731
        monkeypatch.setattr(F, "scaled_dot_product_attention", counting)
        before = Snapshot(model)
        trace.replay(tokens=trace.blocks[-1].site("tokens").detach())
        before.check()
        assert len(counts) == 1 + (family.readout == "pool")


@by_name([f for f in REPLAYED if f.size is not None])
def test_replay_with_copies(family: Family) -> None:
    """One sample, many variants of its tokens in one replay: each equals its own replay."""
    with watched(family, TAIL, family.inputs(1)) as (_, trace):
        seen = trace.blocks[-1].site("tokens").detach()
        block_input = trace.blocks[-1].site("block_input").detach()
        factors = torch.tensor([0.0, 0.5, 1.0, 1.5], dtype=seen.dtype)[:, None, None]
        together = trace.replay(block_input=block_input.expand(4, -1, -1), tokens=factors * seen).logits
        for n in range(4):
            alone = trace.replay(tokens=factors[n : n + 1] * seen).logits
            assert float((together[n : n + 1] - alone).abs().max()) <= 1e-11


@by_name([FAMILIES["timm_vit"], FAMILIES["hf_bert"], FAMILIES["plain_vit_shared"]])
def test_replay_that_fails_leaves_no_trace(family: Family) -> None:
    with watched(family, TAIL, family.inputs(2)) as (model, trace):
        before = Snapshot(model)
        with pytest.raises((RuntimeError, ValueError)):
            trace.replay(tokens=torch.zeros(2, 3, 5, dtype=torch.float64))
        before.check()
        again = trace.replay().logits
        assert float((again - trace.logits).abs().max()) <= 1e-12


# --- rules -----------------------------------------------------------------------------------------------------------


class Network(nn.Module):
    """Two linear maps with an activation between, on a flattened image."""

    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(12, 8), nn.Linear(8, 3)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.activation(self.first(x.flatten(1))))


ACTIVATIONS = {
    "relu": nn.ReLU(),
    "relu_in_place": nn.ReLU(inplace=True),
    "gelu": nn.GELU(),
    "silu": nn.SiLU(),
    "tanh": nn.Tanh(),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_rule_changes_the_gradient_only(name: str) -> None:
    model = enliven(Network(ACTIVATIONS[name])).double().eval()
    x = torch.randn(4, 3, 2, 2, dtype=torch.float64)
    anatomy, batch = Anatomy("network", "image"), Batch("image", (x,), {}, 4)
    needs = Needs(keep={"input": "last"}, graph="input")

    def gradient(rules: Any) -> tuple[Tensor, Tensor]:
        with observe(model, anatomy, batch, needs, rules=rules) as trace:
            (found,) = trace.gradient(trace.logits[:, 1], trace.input)
            return trace.logits.detach(), found

    plain_logits, plain = gradient(None)
    rule_logits, modified = gradient(Composite("gradient", {"activation": passed}, partial=True))
    assert torch.equal(plain_logits, rule_logits), "a rule changes no value"

    first, second = model.first.weight.detach(), model.second.weight.detach()
    chain = (second[1] @ first).reshape(1, 3, 2, 2).expand_as(x)  # activations handed down unchanged
    assert float((modified - chain).abs().max()) <= 1e-12
    assert float((modified - plain).abs().max()) > 1e-3

    again_logits, again = gradient(None)
    assert torch.equal(again, plain), "ordinary gradients are untouched afterwards"
    assert torch.equal(again_logits, plain_logits)
    pixels = x.clone().requires_grad_()
    (outside,) = torch.autograd.grad(model(pixels)[:, 1].sum(), pixels)
    assert float((outside - plain).abs().max()) <= 1e-12


def test_rule_for_attention_and_norm() -> None:
    """Rules on fused attention and layer norm: detached queries and keys leave the value path only."""
    family = FAMILIES["timm_vit"]

    def values_only(
        flow: Any, operation: Any, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any
    ) -> Tensor:
        return operation(query.detach(), key.detach(), value, *args, **kwargs)

    inputs = family.inputs(2)
    needs = Needs(keep={"input": "last"}, graph="input")
    with watched(family, needs, inputs, rules=Composite("gradient", {"attention": values_only}, partial=True)) as (
        model,
        trace,
    ):
        (got,) = trace.gradient(trace.logits[:, 2], trace.input)
        logits = trace.logits.detach()

    original = F.scaled_dot_product_attention
    F.scaled_dot_product_attention = lambda q, k, v, *a, **kw: original(q.detach(), k.detach(), v, *a, **kw)
    try:
        pixels = inputs.clone().requires_grad_()
        wanted_logits = model(pixels)
        (wanted,) = torch.autograd.grad(wanted_logits[:, 2].sum(), pixels)
    finally:
        F.scaled_dot_product_attention = original
    assert float((logits - wanted_logits).abs().max()) <= 1e-12
    assert float((got - wanted).abs().max()) <= 1e-11 * float(wanted.abs().max())


def test_several_classes_by_batched_gradients() -> None:
    """Records work under `is_grads_batched`, which takes all classes in one backward pass."""
    family = FAMILIES["timm_vit"]
    needs = Needs(keep={"attention": "all"}, graph="attention")
    with watched(family, needs, family.inputs(2)) as (_, trace):
        tensors = [block.z for block in trace.blocks]
        one_hot = torch.eye(7, dtype=torch.float64)[[1, 4]][:, None].expand(2, 2, 7)
        together = torch.autograd.grad(trace.logits, tensors, one_hot, is_grads_batched=True, retain_graph=True)
        for k, target in enumerate((1, 4)):
            alone = trace.gradient(trace.logits[:, target], *tensors)
            for a, b in zip(together, alone, strict=True):
                assert float((a[k] - b).abs().max()) <= 1e-11
