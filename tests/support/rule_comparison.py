"""A function under the library's rules, and the same by the second formulas."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from mhex.capture.hooks import FunctionTap
from mhex.relevance import (
    AlphaBeta,
    Box,
    Composite,
    Epsilon,
    Flow,
    Gamma,
    Separate,
    absolute_rules,
    gradient_rules,
    relevance_rules,
)
from support import rules_abslrp, rules_lrp
from support.rules_lrp import dense
from support.tape import Rule, Tape

Function = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Variant:
    """Rules of the library and of the second formulas that mean the same.

    Attributes:
        composite: The library's.
        rules: The second ones, layers as dense matrices.
        cut: Kinds of operations whose values are constants.
    """

    composite: Composite
    rules: dict[str, Rule]
    cut: tuple[str, ...] = ("gate",)


def _relevance(shares: object, neuron: rules_lrp.Neuron, entrance: rules_lrp.Neuron | None = None) -> Variant:
    """Only layers matter here, so residual sums are by ratio."""
    composite = relevance_rules(shares, "ratio", None if entrance is None else Box(1e-6), 1e-6)
    first = None if entrance is None else dense(entrance)
    return Variant(composite, rules_lrp.relevance_rules(dense(neuron), first, 1e-6, renormalised=False))


def _gradient(shares: object, neuron: rules_lrp.Neuron) -> Variant:
    layer = dense(neuron)
    return Variant(gradient_rules(shares, shares), rules_lrp.gradient_rules(layer, layer), ("gate", "softmax"))


_ABSOLUTE = Variant(
    absolute_rules(), rules_abslrp.absolute_rules(rules_abslrp.scaled_dense(rules_abslrp.absolute_neuron))
)
_EXACT = dense(rules_lrp.epsilon_neuron(0.0))

_GAMMA = dense(rules_lrp.gamma_neuron(0.25, 1e-6))
PROJECTIONS = Variant(
    gradient_rules(Gamma(0.25, 1e-6), projection=Epsilon(0.0)),
    rules_lrp.gradient_rules(_GAMMA, _GAMMA, projection=_EXACT),
    ("gate", "softmax"),
)
LAYER_VARIANTS: dict[str, Variant] = {
    "epsilon": _relevance(Epsilon(1e-6), rules_lrp.epsilon_neuron(1e-6)),
    "epsilon-large": _relevance(Epsilon(0.3), rules_lrp.epsilon_neuron(0.3)),
    "epsilon-zero": _relevance(Epsilon(0.0), rules_lrp.epsilon_neuron(0.0)),
    "alpha1": _relevance(AlphaBeta(1.0, 1e-6), rules_lrp.alphabeta_neuron(1.0, 1e-6)),
    "alpha2": _relevance(AlphaBeta(2.0, 1e-6), rules_lrp.alphabeta_neuron(2.0, 1e-6)),
    "alpha2-zero": _relevance(AlphaBeta(2.0, 0.0), rules_lrp.alphabeta_neuron(2.0, 0.0)),
    "alpha2-large": _relevance(AlphaBeta(2.0, 0.3), rules_lrp.alphabeta_neuron(2.0, 0.3)),
    "gamma": _relevance(Gamma(0.25, 1e-6), rules_lrp.gamma_neuron(0.25, 1e-6)),
    "gamma-large": _relevance(Gamma(5.0, 0.3), rules_lrp.gamma_neuron(5.0, 0.3)),
    "box": _relevance(Epsilon(1e-6), rules_lrp.epsilon_neuron(1e-6), rules_lrp.box_neuron(1e-6)),
    "separate": _relevance(Separate(), rules_lrp.separate_neuron()),
    "gradient": _gradient(Epsilon(0.0), rules_lrp.epsilon_neuron(0.0)),
    "gradient-gamma": _gradient(Gamma(0.25, 1e-6), rules_lrp.gamma_neuron(0.25, 1e-6)),
    "absolute": _ABSOLUTE,
}
VARIANTS: dict[str, Variant] = {
    "renormalised": Variant(
        relevance_rules(Epsilon(1e-6), "renormalised", None, 1e-6),
        rules_lrp.relevance_rules(dense(rules_lrp.epsilon_neuron(1e-6)), None, 1e-6, renormalised=True),
    ),
    "ratio": Variant(
        relevance_rules(Epsilon(1e-6), "ratio", None, 0.1),
        rules_lrp.relevance_rules(dense(rules_lrp.epsilon_neuron(1e-6)), None, 0.1, renormalised=False),
    ),
    "constant": Variant(gradient_rules(), rules_lrp.gradient_rules(_EXACT, _EXACT), ("gate", "softmax")),
    "shared": Variant(gradient_rules(attention="shared"), rules_lrp.gradient_rules(_EXACT, _EXACT)),
    "slopes": Variant(
        gradient_rules(attention="shared", activation="gradient"),
        rules_lrp.gradient_rules(_EXACT, _EXACT, rules_lrp.slope),
    ),
    "absolute": _ABSOLUTE,
}


def ruled(composite: Composite, function: Function, x: Tensor) -> tuple[Flow, Tensor, Tensor]:
    """The state of a ruled pass, its input as a leaf and its output."""
    flow = Flow(composite, len(x))
    point = x.detach().clone().requires_grad_()
    with FunctionTap(lambda attend, *args, **kwargs: attend(*args, **kwargs), flow):
        y = flow.settled(function(point.clone()))
    flow.finish(y)
    return flow, point, y


def handed_down(composite: Composite, function: Function, x: Tensor, relevance: Tensor) -> tuple[Tensor, Tensor]:
    """Relevance of `x` (B, ...) by the library, and what constants took of each sample, (B,).

    Args:
        composite: The rules.
        function: From `x` to `y`.
        x: A batch.
        relevance: Of `y`; zero where `y` is zero.
    """
    flow, point, y = ruled(composite, function, x)
    start = relevance if flow.relevance else torch.where(y == 0, 0.0, relevance / y.detach())
    (carried,) = torch.autograd.grad(y, point, start)
    lost = torch.zeros(len(x), dtype=x.dtype) if flow.lost is None else flow.lost
    return (carried if flow.relevance else carried * x), lost


def by_formula(variant: Variant, tapes: list[Tape], relevance: Tensor) -> Tensor:
    """The same by the second formulas, one sample at a time."""
    found = [
        tape.propagate(variant.rules, relevance[n : n + 1], variant.cut).get(tape.input) for n, tape in enumerate(tapes)
    ]
    return torch.cat(
        [torch.zeros_like(tapes[n].values[tapes[n].input]) if f is None else f for n, f in enumerate(found)]
    )


def agree(function: Function, x: Tensor, variants: dict[str, Variant], tolerance: float = 1e-10) -> None:
    """Assert that library and second formulas give the same relevance under every variant, and keep the value."""
    generator = torch.Generator().manual_seed(11)
    wanted_value = function(x.clone()).detach()
    relevance = torch.randn(wanted_value.shape, generator=generator, dtype=x.dtype)
    relevance = torch.where(wanted_value == 0, 0.0, relevance)
    tapes = [Tape(function, x[n : n + 1].clone()) for n in range(len(x))]
    for name, variant in variants.items():
        assert torch.allclose(ruled(variant.composite, function, x)[2], wanted_value, 1e-12, 1e-12), name
        got, lost = handed_down(variant.composite, function, x, relevance)
        wanted = by_formula(variant, tapes, relevance)
        size = float(wanted.abs().max())
        assert size > 1e-6, f"{name}: nothing arrives, so nothing is tested"
        error = float((got - wanted).abs().max())
        assert error <= tolerance * size, f"{name}: differs by {error:.3g}, largest value {size:.3g}"
        if name in ("constant", "gradient"):  # conserve what constants do not take
            left = relevance.flatten(1).sum(1) - got.flatten(1).sum(1) - lost
            assert float(left.abs().max()) <= tolerance * size * got.shape[1], f"{name}: {left} is not accounted for"
