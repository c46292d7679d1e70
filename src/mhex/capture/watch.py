"""The hooks of one observed pass and what they see."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from mhex.capture.anatomy import Anatomy
from mhex.capture.attend import attend
from mhex.capture.attention import AttentionRecord
from mhex.capture.batch import Batch
from mhex.capture.block_trace import BlockTrace, check_kept
from mhex.capture.calling import call
from mhex.capture.guest import Sighting, guests
from mhex.capture.hooks import hook_each
from mhex.capture.needs import OUTER_SITES, Needs
from mhex.capture.outputs import Outcome, as_vector, bare_outcome, read_logits
from mhex.capture.replay import Again
from mhex.capture.rules import Composite, Flow, see_whole, written_out
from mhex.capture.tap import FunctionTap
from mhex.capture.trace import Trace
from mhex.errors import CaptureError


class Watch:
    """State and hooks of one observed pass."""

    def __init__(self, model: nn.Module, anatomy: Anatomy, batch: Batch, needs: Needs, rules: Composite | None) -> None:
        self.model, self.anatomy, self.batch, self.needs = model, anatomy, batch, needs
        self.keep: dict[str, str] = {str(site): depth for site, depth in needs.keep.items()}
        self.flow = None if rules is None else Flow(rules, batch.size)
        if self.flow is not None:
            self.flow.check_precision(model)
            self.flow.sequence_first = anatomy.sequence_first
        self.written_out = [] if rules is None else written_out(model)
        self.tap = FunctionTap(partial(attend, self), self.flow)
        self.blocks = [BlockTrace(block) for block in anatomy.blocks]
        self.outer: dict[str, Tensor] = {}
        self.pool: AttentionRecord | None = None
        self.current: int | None = None  # index of the block that is running
        self.entered = 0  # counts calls rather than modules, so that a block used twice is two blocks
        self.replaying: dict[str, Tensor] | None = None  # site of the last block -> tensor that stands in
        # While asleep the model runs on other inputs, and nothing is looked at but the latent.
        self.asleep = self.graph_asleep = False
        self.embedded = 0  # uses of the embedding layer in the observed pass
        self.again: Tensor | None = None  # latent of a later pass
        self.substituted: set[str] = set()  # sites of the replayed block that were reached
        self.lower_output: Any = None  # what a lower block returned, for its structure
        self.guest = next(iter(guests(model.modules())), None) if "heads" in self.keep else None
        self.sighting: Sighting | None = None

    def hook(self, stack: ExitStack) -> None:
        """Register what is needed; `stack` removes it."""
        keep, anatomy = self.keep, self.anatomy
        if self.guest is not None:
            stack.enter_context(self.guest[1].recording(self.guest[0]))
        if self.needs.blocks or (self.flow is not None and anatomy.sequence_first):
            hook_each(stack, [b.module for b in anatomy.blocks], self._enter_block, self._leave_block)
        if self.needs.blocks:
            for site in ("tokens", "attention_output", "mlp_output"):
                if site in keep:
                    modules = [b.norm1 if site == "tokens" else getattr(b, site) for b in anatomy.blocks]
                    hook_each(stack, modules, after=partial(self.visit, site))
            if "mlp_input" in keep:
                hook_each(stack, [b.mlp_input for b in anatomy.blocks], partial(self.visit, "mlp_input"))
            if "block_input" in keep:
                for module in {b.module for b in anatomy.blocks}:
                    stack.callback(module.register_forward_hook(self._note_structure).remove)
        if "features" in keep and anatomy.features is not None:
            hook_each(stack, [anatomy.features.module], after=partial(self.visit, "features"))
        if "latent" in keep:
            hook_each(stack, [anatomy.head], self._note_latent)
        if "input" in keep and self.batch.modality == "text":
            hook_each(stack, [anatomy.embedding], after=partial(self.visit, "input"))

    def _enter_block(self, x: Tensor) -> Tensor:
        if self.asleep:
            return x
        self.current = self.entered
        self.entered += 1
        if self.flow is not None:
            self.flow.turned = self.anatomy.sequence_first
        if self.current >= len(self.blocks):
            raise CaptureError(
                f"Expected {len(self.blocks)} blocks to run in this {self.anatomy.family}, but saw more."
            )
        if self.replaying is not None:
            # Handed on as copies, because blocks may write into what they are given.
            return self.turned(self.replaying["block_input"]).clone() if self._in_last() else x
        x = self.visit("block_input", x)
        # Post-norm blocks: what enters the block is what enters its attention.
        return self.visit("tokens", x) if self.blocks[self.current].block.norm1 is None else x

    def _leave_block(self, x: Tensor) -> Tensor:
        if self.replaying is None:
            x = self.visit("block_output", x)
        self.current = None
        if self.flow is not None:
            self.flow.turned = False
        return x

    def _note_latent(self, x: Tensor) -> Tensor:
        if self.replaying is None and not self.asleep:
            return self.visit("latent", x)
        self.again = x
        return x

    def _note_structure(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if self.replaying is None and not self.asleep and self.entered < len(self.blocks):
            self.lower_output = output

    def visit(self, site: str, x: Tensor) -> Tensor:
        """Keep `x` if it is wanted; return what flows on."""
        if self.asleep:
            return x
        if self.replaying is not None:
            if not self._in_last() or site not in self.replaying or site in self.substituted:
                return x
            self.substituted.add(site)
            return self.turned(self.replaying[site]).clone()
        if self.flow is not None:
            x = self.flow.current(x)
        if not self.wanted(site):
            return x
        self.embedded += site == "input"
        outside = site in OUTER_SITES
        if not outside and site in self.blocks[self.running()].sites:
            return x  # a module used again in the same block, as a norm before attention and MLP: the first use counts
        x = x if outside else self.turned(x)
        if self.needs.graph == site and self.graph_starts(site):
            x = x.detach().requires_grad_()
        kept = self.outer if outside else self.blocks[self.running()].sites
        kept[site] = x
        # Flow on as a copy: the model may write into it, and autograd forbids writing into a leaf.
        return x.clone() if outside else self.turned(x.clone())

    def turned(self, x: Tensor) -> Tensor:
        """Between the model's layout of the residual stream and (B, N, D)."""
        return x.transpose(0, 1) if self.anatomy.sequence_first else x

    def _in_last(self) -> bool:
        return self.current == len(self.blocks) - 1

    def running(self) -> int:
        """Index of the block that is running."""
        if self.current is None:
            raise CaptureError("A site of a block was reached while no block was running.")
        return self.current

    def wanted(self, site: str) -> bool:
        """Whether a site is kept where the pass is now."""
        depth = self.keep.get(site)
        if site in OUTER_SITES:
            return depth is not None
        return self.current is not None and (depth == "all" or (depth == "last" and self._in_last()))

    def graph_starts(self, site: str) -> bool:
        """True at the one place where the graph starts."""
        if site in OUTER_SITES or self.needs.start == "each":
            return True
        all_blocks = self.keep.get(site) == "all" and self.needs.start == "first"
        return self.current == (0 if all_blocks else len(self.blocks) - 1)

    def run(self, progress: bool) -> Trace:
        """The observed forward pass."""
        batch = self.batch
        given = batch.pixels if batch.modality == "image" else batch.kwargs.get("inputs_embeds")
        if "input" in self.keep and given is not None:
            batch = batch.with_input(self.visit("input", given))
        outcome = self.forward(batch)
        if outcome.latent is not None:
            self.outer.setdefault("latent", outcome.latent)
        self._check()
        if self.flow is not None:
            self.flow.finish()
        trace = Trace(self.anatomy, self.batch, outcome.logits, progress)
        trace.blocks, trace.outer, trace.sighting = self.blocks, self.outer, self.sighting
        trace.flow, trace.embeddings = self.flow, self._embeddings()
        again = Again(self)
        trace.rerun, trace.embed = again.whole, again.embed
        if "block_input" in self.keep:
            trace.replay = again.tail
        return trace

    def _embeddings(self) -> int:
        """How often words were embedded: layers that share their weight, as encoder and decoder, are several uses."""
        weight = getattr(self.anatomy.embedding, "weight", None)
        if not self.embedded or weight is None:
            return self.embedded
        layers = sum(isinstance(m, nn.Embedding) and m.weight is weight for m in self.model.modules())
        return max(self.embedded, layers)

    def forward(self, batch: Batch) -> Outcome:
        """One call of the model: the observed one, or while asleep or replaying another."""
        self.current, self.entered, self.again = None, 0, None
        self.substituted.clear()
        if batch.modality == "image" and batch is self.batch:
            batch = batch.with_input(batch.pixels.clone())  # the model may write into it
        graph = self.graph_asleep if self.asleep else self.needs.graph is not None or self.replaying is not None
        # A function mode costs some microseconds per operation, so it is on only where it has something to do.
        tapped = not self.asleep and (self.needs.blocks or self.flow is not None)
        with ExitStack() as stack:
            stack.enter_context(torch.set_grad_enabled(graph))
            if tapped:
                stack.enter_context(self.tap)
            if tapped and self.flow is not None:
                see_whole(stack, self.written_out, self.flow)
            output = call(self.model, batch)
        if self.flow is not None and tapped:
            output = self.flow.settled(output)
        if self.guest is not None and not self.asleep:
            self.sighting = self.guest[1].sighting()
            output = self.sighting.logits  # heads may have other classes than their host
        # Replayed tokens may be several copies of the batch.
        size = batch.size if self.replaying is None else None
        if "latent" in self.keep and self.anatomy.head is None:  # the latent vector is what the model returns
            return bare_outcome(output, size, self.anatomy.no_latent)
        latent = self.again if self.replaying is not None or self.asleep else self.outer.get("latent")
        return Outcome(read_logits(output, size), None if latent is None else as_vector(latent))

    def _check(self) -> None:
        """Fail loudly if the pass did not show what was asked for."""
        missing = [site for site in OUTER_SITES if site in self.keep and site not in self.outer]
        if missing:
            raise CaptureError(f"The forward pass of this {self.anatomy.family} never reached: {', '.join(missing)}.")
        if self.needs.blocks:
            if self.entered != len(self.blocks):
                raise CaptureError(f"Expected {len(self.blocks)} blocks to run, but {self.entered} did.")
            check_kept(self.blocks, self.keep, self.anatomy.family)

    def clear(self) -> None:
        """Let go of every tensor."""
        self.blocks, self.outer = [], {}
        self.pool = self.lower_output = self.sighting = self.again = None
        self.tap.on_attention = _gone


def _gone(*_: Any, **__: Any) -> Tensor:
    raise CaptureError("The observed pass is over.")
