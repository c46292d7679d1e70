"""Watching one forward pass of an unmodified model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from mhex.capture.anatomy import Anatomy, readout_vector
from mhex.capture.attention import AttentionRecord
from mhex.capture.batch import Batch
from mhex.capture.ending import Ending, Outputs, find_ending
from mhex.capture.failures import model_failures
from mhex.capture.guard import untouched
from mhex.capture.hooks import straighten_norms
from mhex.capture.needs import Needs
from mhex.capture.precision import full
from mhex.capture.rules import Composite
from mhex.capture.trace import Trace
from mhex.capture.watch import Watch
from mhex.errors import CaptureError


@contextmanager
def observe(
    model: nn.Module,
    anatomy: Anatomy,
    batch: Batch,
    needs: Needs,
    rules: Composite | None = None,
    progress: bool = False,
    outputs: Outputs | None = "logits",
) -> Iterator[Trace]:
    """Run `model` once on `batch` and show what `needs` asks for.

    Everything before the site where the graph starts runs without a graph. On leaving, also after an error, hooks
    are gone and the model is as it was (see `untouched`).

    Args:
        model: The unwrapped module.
        anatomy: Where things are inside it.
        batch: Checked inputs.
        needs: What to keep, and where the graph starts.
        rules: Relevance rules to apply in this pass (see `mhex.capture.rules`).
        progress: Whether `Trace.track` draws progress bars.
        outputs: What the model returns; None to recognise it. Of a model that returns probabilities, everything is
            that of its logits, and the trace's anatomy has the `ending`.

    Yields:
        The trace. Its tensors are released when the context ends.
    """
    with model_failures(model, batch), ExitStack() as stack:
        stack.enter_context(untouched(model, attention=needs.blocks or rules is not None))
        if rules is None or rules.partial:  # rules have gradients of their own, and know layers by their very tensors
            straighten_norms(stack, model.modules())
        first = stack.enter_context(ExitStack())
        watch, trace = _watched(first, model, anatomy, batch, needs, rules, progress)
        if outputs != "logits" and (ending := _ending(model, watch, trace, outputs)) is not None:
            first.close()
            anatomy = replace(anatomy, ending=ending)
            watch, trace = _watched(stack, model, anatomy, batch, needs, rules, progress)
            trace.cost["forwards"] += 2  # the pass that showed probabilities, and the one that showed their origin
        if watch.flow is not None:
            scored = (trace.outcome.logits, trace.outcome.latent)
            watch.flow.finish(*(output for output in scored if output is not None))
        if rules is not None:
            trace.plain = partial(_without_rules, model, watch)
        if needs.blocks and anatomy.readout != "measured":
            trace.readout_row = _readout(trace, watch.pool)
        elif needs.blocks:  # costs a pass, so only for methods that ask for it
            trace.measure_readout = partial(_measure_readout, model, watch, trace)
        yield trace


def _watched(
    stack: ExitStack,
    model: nn.Module,
    anatomy: Anatomy,
    batch: Batch,
    needs: Needs,
    rules: Composite | None,
    progress: bool,
) -> tuple[Watch, Trace]:
    """One observed pass; `stack` ends it."""
    watch = Watch(model, anatomy, batch, needs, rules)
    stack.callback(watch.clear)
    watch.hook(stack)
    trace = watch.run(progress)
    stack.callback(trace.clear)
    return watch, trace


def _ending(model: nn.Module, watch: Watch, trace: Trace, outputs: Outputs | None) -> Ending | None:
    """How the model makes probabilities of its logits, if it does; its hooks are still there, and see nothing."""
    if watch.guest is not None and not bool(((trace.logits >= 0) & (trace.logits <= 1)).all()):
        return None  # heads give logits, whatever their host returns
    watch.asleep = True
    try:
        return find_ending(model, watch.batch, trace.logits, outputs)
    finally:
        watch.asleep = False


def _readout(trace: Trace, pool: AttentionRecord | None) -> Tensor:
    """The read-out vector `w` of a known family, (B, N)."""
    dtype = torch.promote_types(trace.logits.dtype, torch.float32)
    if trace.anatomy.readout != "pool":
        return readout_vector(trace.anatomy, trace.spatial, dtype)
    if pool is None:
        raise CaptureError("Expected an attention-pooling head, but no attention ran outside of the blocks.")
    return pool.probabilities().mean(1)[:, 0]


@contextmanager
def _without_rules(model: nn.Module, watch: Watch) -> Iterator[Trace]:
    """A second pass of a ruled one, with plain gradients."""
    watch.asleep = True  # its hooks are still there
    try:
        with observe(model, watch.anatomy, watch.batch, watch.needs) as trace:
            yield trace
    finally:
        watch.asleep = False


def _measure_readout(model: nn.Module, watch: Watch, seen: Trace) -> Tensor:
    """Read-out of an unknown architecture: the share of each final token in the gradient of the top score, (B, N).

    Of a model without a classifier, in that of the length of its latent vector.
    """
    bare = watch.anatomy.head is None and "latent" in watch.keep
    needs = Needs(keep={"block_output": "last"}, graph="block_output")
    needs = needs.with_latent() if bare else needs
    watch.asleep = True  # its hooks are still there
    try:
        with observe(model, replace(watch.anatomy, readout="mean"), watch.batch, needs) as trace:
            tokens = trace.blocks[-1].site("block_output")
            y = full(trace.latent).square().sum(1) if bare else trace.logits.amax(1)
            (gradient,) = trace.gradient(y, tokens)
            length: Tensor = full(gradient).norm(dim=-1)
    finally:
        watch.asleep = False
    seen.cost["forwards"] += 1
    total = length.sum(1, keepdim=True)
    if not bool((total > 0).all()):
        raise CaptureError("The top score does not depend on the last block's tokens, so they cannot be explained.")
    return length / total
