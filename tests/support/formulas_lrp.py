"""The methods of relevance propagation a second time, on the program of one sample (`tape.py`)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Node

from support.block_internals import look
from support.formulas import View, _on_grid, formula
from support.models import call
from support.rules_abslrp import absolute_rules
from support.rules_lrp import gradient_rules, relevance_rules, route, split
from support.tape import Call, Rule, Tape

CONSTANT_ATTENTION = ("gate", "softmax")
EPSILON = 1e-6  # the stabiliser that methods have by default
FLOOR = 0.05  # of divisors beside the sizes of their terms
_TAPES: dict[Any, Tape] = {}


def tape_of(v: View) -> Tape:
    """The program from pixels or word embeddings to scores; the last few are kept, since tracing takes long."""
    given = v.inputs if v.family.size is not None else v.inputs["input_ids"]
    key = (v.family.name, id(v.model), tuple(given.shape), float(given.double().square().sum()))
    if key not in _TAPES:
        while len(_TAPES) > 8:
            _TAPES.pop(next(iter(_TAPES)))
        _TAPES[key] = _traced(v)
    return _TAPES[key]


def _traced(v: View) -> Tape:
    with _fused(v.model):
        if v.family.size is not None:
            return Tape(lambda x: call(v.model, x), v.inputs)
        embedding = v.model.get_input_embeddings()
        # Samples have no padding; Hugging Face looks into masks, which a tracer forbids.
        inputs = v.inputs if v.family.explicit is None else {"input_ids": v.inputs["input_ids"]}

        def function(x: Tensor) -> Tensor:
            handle = embedding.register_forward_hook(lambda module, args, output: x)
            try:
                return call(v.model, inputs)
            finally:
                handle.remove()

        return Tape(function, embedding(v.inputs["input_ids"]).detach())


@contextlib.contextmanager
def _fused(model: nn.Module) -> Iterator[None]:
    """Attention is explained as one operation wherever timm has a switch for it: biases of its logits get nothing."""
    switched = [module for module in model.modules() if module.__dict__.get("fused_attn") is False]
    for module in switched:
        module.fused_attn = True
    try:
        yield
    finally:
        for module in switched:
            module.fused_attn = False


def one_hot(tape: Tape, target: int, value: float = 1.0) -> Tensor:
    start = torch.zeros_like(tape.values[tape.output])
    start[0, target] = value
    return start


def pixels_or_words(v: View, found: Tensor) -> Tensor:
    """Summed over colour channels (h, w), or over the embedding with special tokens left out, (T,)."""
    return found[0].sum(0) if v.family.size is not None else _on_grid(v, found[0].sum(-1))


def at_first_block(v: View, tape: Tape, arrived: dict[Node, Any]) -> Tensor:
    """Relevance where the first block begins, (N, D)."""
    found = arrived[tape.find(look(v).stream[0].detach())]
    assert isinstance(found, Tensor)
    return found[0]


@formula("lrp")
def lrp(v: View, target: int) -> Tensor:
    tape = tape_of(v)
    entrance = split("box", EPSILON) if v.family.size is not None else None
    floor = FLOOR if tape.passes else 0.0
    rules = relevance_rules(split("epsilon", EPSILON), entrance, EPSILON, renormalised=False, floor=floor)
    start = one_hot(
        tape, target, 1.0 if float(v.logits[target].detach()) > 0 else -1.0
    )  # negative scores speak against
    return pixels_or_words(v, tape.propagate(rules, start)[tape.input])


def attention_relevance(v: View, target: int, rules: dict[str, Rule] | None = None) -> list[Tensor]:
    """R^A of all blocks, each (H, N, N), by the rules of Transformer attribution, or others."""
    tape = tape_of(v)
    if rules is None:
        rules = relevance_rules(split("alphabeta", EPSILON, 1.0), None, EPSILON, renormalised=True)
    arrived = tape.propagate(rules, one_hot(tape, target))
    return [arrived.get(node, torch.zeros_like(tape.values[node])) for node in tape.softmaxes[: v.family.blocks]]


def partial_rules() -> dict[str, Rule]:
    return relevance_rules(split("alphabeta", EPSILON, 1.0), None, EPSILON, renormalised=False, floor=FLOOR)


@formula("partial-lrp")
def partial_lrp(v: View, target: int) -> Tensor:
    last = attention_relevance(v, target, partial_rules())[-1]
    scores = torch.zeros_like(v.readout)
    for head in last:
        for i in range(len(head)):
            if v.readout[i] > 0:
                scores += head[i].clamp_min(0)
    return _on_grid(v, scores / len(last))


@formula("transformer-attribution")
def transformer_attribution(v: View, target: int) -> Tensor:
    product = torch.eye(len(v.readout), dtype=v.readout.dtype)
    for relevance, gradient in zip(attention_relevance(v, target), v.attention_gradients(target), strict=True):
        product = product + (relevance * gradient[0]).clamp_min(0).mean(0) @ product
    return _on_grid(v, (v.readout @ product).detach())


@formula("conservative-lrp")
def conservative_lrp(v: View, target: int) -> Tensor:
    tape = tape_of(v)
    exact = split("epsilon", 0.0)
    start = one_hot(tape, target, float(v.logits[target].detach()))
    arrived = tape.propagate(gradient_rules(exact, exact), start, CONSTANT_ATTENTION)
    if not v.family.blocks:
        return pixels_or_words(v, arrived[tape.input])
    return _on_grid(v, at_first_block(v, tape, arrived).sum(-1))


@formula("attnlrp")
def attnlrp(v: View, target: int) -> Tensor:
    """Images: constant attention, gamma rules but for its projections; texts: exact layers, and softmax takes part."""
    tape, image = tape_of(v), v.family.size is not None
    linear, convolution = (split("gamma", EPSILON, 0.05), split("gamma", EPSILON, 0.25)) if image else _exact()
    start = one_hot(tape, target, float(v.logits[target].detach()))
    rules = gradient_rules(linear, convolution, projection=split("epsilon", 0.0))
    arrived = tape.propagate(rules, start, CONSTANT_ATTENTION if image else ("gate",))
    return pixels_or_words(v, arrived[tape.input])


def _exact() -> tuple[Rule, Rule]:
    return split("epsilon", 0.0), split("epsilon", 0.0)


@formula("abslrp")
def abslrp(v: View, target: int) -> Tensor:
    tape = tape_of(v)
    classes = len(v.logits)
    others = (1 - one_hot(tape, target)) / (classes - 1)
    for_class, against = (
        tape.propagate(absolute_rules(), start)[tape.input] for start in (one_hot(tape, target), others)
    )
    found = (for_class - against)[0]
    found = found.sum(0) if v.family.size is not None else found.sum(-1)
    found = found / found.abs().max()
    return found if v.family.size is not None else _on_grid(v, found)


def _guided(c: Call, gradient: Tensor) -> list[Tensor]:
    assert c.name == "relu"
    return [torch.where((c.xs[0] > 0) & (gradient > 0), gradient, 0.0)]


@formula("guided-backprop")
def guided_backprop(v: View, target: int) -> Tensor:
    """Gradients of everything but the ReLU, which stops negative ones."""
    tape = tape_of(v)
    kinds = ("linear", "convolution", "layer_norm", "softmax", "scores", "matmul", "gate", "sum", "product", "pool")
    rules: dict[str, Rule] = {**dict.fromkeys((*kinds, "route"), route), "batch_norm": _through_norm}
    found = tape.propagate({**rules, "activation": _guided}, one_hot(tape, target), cut=())[tape.input]
    return pixels_or_words(v, found)


def _through_norm(c: Call, gradient: Tensor) -> list[Tensor]:
    """The tape hands what arrives at a batch norm to the input of the layer before it."""
    found = c.back(gradient)
    return found if c.source is None or c.source.name not in ("convolution", "addmm", "mm") else c.source.back(found[0])
