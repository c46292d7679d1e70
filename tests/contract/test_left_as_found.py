"""After a call, and after a call that failed half-way, the model and the process are as they were."""

from __future__ import annotations

import gc
import resource
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mhex.errors import MhexError
from mhex.registry import Method
from support.cases import CORE, PERTURBING, cases, explain, one_per_family
from support.models import FAMILIES, Family, PlainCNN, call
from support.snapshot import Snapshot, in_use


class Boom(Exception):
    """Raised by the user's own code in the middle of a pass."""


def lived_in(family: Family, dtype: torch.dtype = torch.float64) -> nn.Module:
    """A model in the middle of its life, with its attention written out where the family has a switch for it."""
    model = in_use(family.fresh(dtype))
    if family.explicit is not None:
        family.explicit(model)
    return model


def last_to_run(model: nn.Module, inputs: Any) -> nn.Module:
    """The leaf module that finishes last in a plain call."""
    ran: list[nn.Module] = []
    leaves = [m for m in model.modules() if not list(m.children())]
    handles = [m.register_forward_hook(lambda module, args, output: ran.append(module)) for m in leaves]
    with torch.no_grad():
        call(model, inputs)
    for handle in handles:
        handle.remove()
    return ran[-1]


@cases(CORE, where=lambda method, family: family.explicit is not None, cover=True)
def test_nothing_changes_by_a_call_with_attention_written_out(method: str, family: Family) -> None:
    model = lived_in(family, torch.float32)
    inputs = family.inputs(2, torch.float32)
    explain(model, inputs, method)  # what a model makes lazily on its first call is its own affair
    before = Snapshot(model)
    explain(model, inputs, method, target=[0, 2])
    before.check()


@cases(CORE, cover=True)
def test_after_an_error_in_the_forward_pass(method: str, family: Family) -> None:
    """The k-th pass fails in its last layer, for every k until the call succeeds: each kind of pass fails once."""
    model, inputs = lived_in(family), family.inputs(2)
    layer = last_to_run(model.eval(), inputs)
    model.train()
    calls, failing = 0, 1

    def explode(module: nn.Module, args: tuple[Any, ...]) -> None:
        nonlocal calls
        calls += 1
        if calls == failing:
            raise Boom

    layer.register_forward_pre_hook(explode)
    before = Snapshot(model)
    for failing in range(1, 8):  # noqa: B007 (read by the hook)
        calls = 0
        try:
            explain(model, inputs, method, target=1)
        except Boom:
            before.check()
            continue
        break
    else:
        failing = 3  # a method of many passes: the first seven have all failed once
    assert failing > 1, "the hook never ran"


@cases(CORE, cover=True)
@pytest.mark.slow
def test_after_a_target_that_is_found_wrong_after_the_pass(method: str, family: Family) -> None:
    model, inputs = lived_in(family), family.inputs(2)
    explain(model, inputs, method)
    before = Snapshot(model)
    with pytest.raises(MhexError):
        explain(model, inputs, method, target=99)
    before.check()


@cases(CORE, where=lambda method, family: method.class_specific and method.target != "class", cover=True)
def test_after_an_error_between_forward_and_backward(method: str, family: Family) -> None:
    model, inputs = lived_in(family), family.inputs(2)

    def target(logits: Tensor) -> Tensor:
        raise Boom

    before = Snapshot(model)
    with pytest.raises(Boom):
        explain(model, inputs, method, target=target)
    before.check()


def differentiates(method: Method, family: Family) -> bool:
    """Whether the method runs a backward pass of any score that it is given."""
    return method.class_specific and method.target != "class" and method.name not in PERTURBING


@cases(CORE, where=differentiates, cover=True)
def test_after_an_error_in_the_backward_pass(method: str, family: Family) -> None:
    class Explode(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            raise Boom

    model, inputs = lived_in(family), family.inputs(2)
    before = Snapshot(model)
    with pytest.raises(Boom):
        explain(model, inputs, method, target=lambda logits: Explode.apply(logits)[:, 0])
    before.check()


class Drawing(PlainCNN):
    """A network that draws random numbers also in evaluation mode."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 0.01 * torch.rand(1, dtype=x.dtype)


@pytest.mark.parametrize("method", ["input-x-gradient", "gradcam", "occlusion"])
def test_the_generator_is_put_back_after_a_model_that_draws(method: str) -> None:
    model, inputs = Drawing().double().eval(), FAMILIES["plain_cnn"].inputs(2)
    before = torch.get_rng_state()
    explain(model, inputs, method, target=1)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_a_refusal_touches_nothing(family: Family) -> None:
    model, inputs = lived_in(family), family.inputs(2)
    explain(model, inputs, "input-x-gradient")
    before = Snapshot(model)
    refused = 0
    for method in ("gradcam", "gae", "no such method"):
        try:
            explain(model, inputs, method)
        except MhexError:
            refused += 1
            before.check()
    assert refused


@one_per_family(CORE)
def test_gradients_of_the_user_are_kept(method: str, family: Family) -> None:
    """Training goes on as if nothing had happened: the same loss, the same gradients, the same hooks firing."""
    model, inputs = family.fresh(), family.inputs(2)
    call(model, inputs).logsumexp(1).sum().backward()
    wanted = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    explain(model, inputs, method)
    model.zero_grad()
    call(model, inputs).logsumexp(1).sum().backward()
    got = [p.grad for p in model.parameters() if p.grad is not None]
    assert len(got) == len(wanted) > 0
    assert all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True))


def live_tensors() -> int:
    gc.collect()
    return sum(isinstance(thing, Tensor) for thing in gc.get_objects())


def grows(method: str, family: Family, calls: int) -> tuple[int, float]:
    """Tensors and megabytes that are left behind by `calls` calls, after a warm-up."""
    model, inputs = family.model(torch.float32), family.inputs(5, torch.float32)
    for _ in range(20):
        explain(model, inputs, method, target=1)
    tensors, before = live_tensors(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(calls):
        explain(model, inputs, method, target=1)
    # The highest resident size ever: 100 leaked graphs would raise it, reused memory does not.
    return live_tensors() - tensors, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


@pytest.mark.parametrize("name", ["timm_vit", "hf_bert", "plain_cnn"])
def test_memory_does_not_grow(name: str) -> None:
    method = "input-x-gradient" if name == "plain_cnn" else "gae"
    tensors, megabytes = grows(method, FAMILIES[name], 100)
    assert tensors == 0
    assert megabytes < 15


@pytest.mark.slow
@cases(CORE, cover=True)
def test_memory_does_not_grow_for_any_method(method: str, family: Family) -> None:
    tensors, megabytes = grows(method, family, 100)
    assert tensors == 0
    assert megabytes < 15


@cases(CORE, cover=True)
@pytest.mark.slow
def test_nothing_is_left_in_cycles(method: str, family: Family) -> None:
    """Tensors are freed when the call returns, not when the garbage collector happens to run."""
    model, inputs = family.model(), family.inputs(2)
    explain(model, inputs, method, target=1)
    gc.collect()
    gc.disable()
    try:
        before = sum(isinstance(thing, Tensor) for thing in gc.get_objects())
        for _ in range(3):
            explain(model, inputs, method, target=1)
        after = sum(isinstance(thing, Tensor) for thing in gc.get_objects())
    finally:
        gc.enable()
    assert after == before
