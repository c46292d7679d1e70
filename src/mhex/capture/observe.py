"""Hooks and state of one observed forward pass of an unmodified model, and later passes of the same model."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from mhex.capture.anatomy import Anatomy, Sighting, guests
from mhex.capture.attention import AttentionRecord
from mhex.capture.batch import Batch, full
from mhex.capture.block_trace import BlockTrace
from mhex.capture.guard import call_compiled
from mhex.capture.hooks import FunctionTap, hook_each, replace_forward, straighten_norms
from mhex.capture.inventory import inventory_of
from mhex.capture.needs import BLOCK_SITES, OUTER_SITES, Needs
from mhex.capture.operations import Rules, mark, origin_of
from mhex.capture.outputs import Outcome, as_vector, bare_outcome, read_logits
from mhex.capture.precision import halves_on, precision, user_precision
from mhex.capture.threads import of_this_thread
from mhex.errors import CaptureError, UnsupportedModelError


class ObservedPass:
    """State and hooks of one observed pass, and the passes of the same model that follow it."""

    def __init__(self, model: nn.Module, anatomy: Anatomy, batch: Batch, needs: Needs, rules: Rules | None) -> None:
        self.model, self.anatomy, self.batch, self.needs = model, anatomy, batch, needs
        self.keep: dict[str, str] = {str(site): depth for site, depth in needs.keep.items()}
        self.flow = None if rules is None else rules.begin(model, batch.size)
        if self.flow is not None:
            inventory = inventory_of(model, check=False)
            halves = inventory.is_half or halves_on(inventory.device.type)
            self.flow.sequence_first = anatomy.sequence_first
            self.flow.splits = self.flow.needs_float32 and halves and inventory.device.type == "cuda"
        self.tap = FunctionTap(self._attend, self.flow)
        self.compiled: Callable[..., Any] | None = None  # what runs where nothing is seen inside
        self.norms: list[nn.Module] = []  # batch norms whose gradients torch may get wrong
        self.hooks = ExitStack()
        self.logits = torch.empty(0)  # (B, C), in the autograd graph if one was asked for
        # What the model gave for the scores, (B, C): the logits, or probabilities that they are computed from.
        self.returned: Tensor | None = None
        self.blocks = [BlockTrace(block) for block in anatomy.blocks]  # first to last
        self.block_index = (needs.block or len(self.blocks)) - 1  # of the block whose sites "last" means
        self.outer: dict[str, Tensor] = {}
        self.pool: AttentionRecord | None = None  # the attention of a head that pools
        self.current: int | None = None  # index of the block that is running
        self.entered = 0  # counts calls rather than modules, so that a block used twice is two blocks
        self.replaying: dict[str, Tensor] | None = None  # site of the last block -> tensor that stands in
        # While asleep the model runs on other inputs, and nothing is looked at but the latent.
        self.asleep = self.graph_asleep = self.is_over = False
        self.embedded = 0  # uses of the embedding layer in the observed pass
        self.later_latent: Tensor | None = None  # latent of a later pass
        self.substituted: set[str] = set()  # sites of the replayed block that were reached
        self.lower_output: Any = None  # what a lower block returned, for its structure
        modules = inventory_of(model, check=False).modules(model) if "heads" in self.keep else ()
        self.guest = next(iter(guests(modules)), None)
        self.sighting: Sighting | None = None

    def run(self, stack: ExitStack) -> None:
        """The observed forward pass; `stack` removes its hooks and lets go of its tensors."""
        stack.callback(self.clear)
        self._hook(stack.enter_context(self.hooks))
        batch = self.batch
        x = batch.pixels if batch.modality == "image" else batch.kwargs.get("inputs_embeds")
        if "input" in self.keep and x is not None:
            batch = batch.with_input(self._visit("input", x))
        unhooked = batch.modality == "image" and self.keep.keys() <= {"input"}
        outcome = self._forward(batch, unseen=unhooked and self.needs.graph is None)
        self.logits = outcome.logits
        if outcome.latent is not None:
            self.outer.setdefault("latent", outcome.latent)
        self._check()

    def _hook(self, stack: ExitStack) -> None:
        keep, anatomy = self.keep, self.anatomy
        straighten_norms(stack, self.norms)
        if self.guest is not None:
            stack.enter_context(self.guest[1].recording(self.guest[0]))
        if self.needs.blocks or (self.flow is not None and anatomy.sequence_first):
            hook_each(stack, [b.module for b in anatomy.blocks], self._enter_block, self._leave_block)
        for site, part in (("tokens", "norm1"), ("attention_output",) * 2, ("mlp_output",) * 2):
            if site in keep:
                hook_each(stack, [getattr(b, part) for b in anatomy.blocks], after=partial(self._visit, site))
        if "mlp_input" in keep:
            hook_each(stack, [b.mlp_input for b in anatomy.blocks], partial(self._visit, "mlp_input"))
        if "block_input" in keep:
            for module in {b.module for b in anatomy.blocks}:
                stack.callback(module.register_forward_hook(of_this_thread(self._note_structure)).remove)
        if "features" in keep and anatomy.features is not None:
            hook_each(stack, [anatomy.features.module], after=partial(self._visit, "features"))
        if "latent" in keep:
            hook_each(stack, [anatomy.head], self._note_latent)
        if "input" in keep and self.batch.modality == "text":
            hook_each(stack, [anatomy.embedding], after=partial(self._visit, "input"))

    def _enter_block(self, x: Tensor) -> Tensor:
        if self.asleep:
            return x
        self.current = self.entered
        self.entered += 1
        if self.flow is not None:
            self.flow.turned = self.anatomy.sequence_first
        if self.current >= len(self.blocks):
            raise CaptureError(f"Expected {len(self.blocks)} blocks in this {self.anatomy.family}, but more ran.")
        if self.replaying is not None:
            # Handed on as copies, because blocks may write into what they are given.
            return self._turned(self.replaying["block_input"]).clone() if self._in_last() else x
        x = self._visit("block_input", x)
        # Post-norm blocks: what enters the block is what enters its attention.
        return self._visit("tokens", x) if self.blocks[self.current].block.norm1 is None else x

    def _leave_block(self, x: Tensor) -> Tensor:
        if self.replaying is None:
            x = self._visit("block_output", x)
        self.current = None
        if self.flow is not None:
            self.flow.turned = False
        return x

    def _note_latent(self, x: Tensor) -> Tensor:
        if self.replaying is None and not self.asleep:
            return self._visit("latent", x)
        self.later_latent = x
        return x

    def _note_structure(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if self.replaying is None and not self.asleep and self.entered < len(self.blocks):
            self.lower_output = output

    def _visit(self, site: str, x: Tensor) -> Tensor:
        """Keep `x` if it is wanted; return what flows on."""
        if self.asleep:
            return x
        if self.replaying is not None:
            if not self._in_last() or site not in self.replaying or site in self.substituted:
                return x
            self.substituted.add(site)
            return self._turned(self.replaying[site]).clone()
        if self.flow is not None:
            x = self.flow.current(x)
        if not self._wanted(site):
            return x
        self.embedded += site == "input"
        outside = site in OUTER_SITES
        sites = self.outer if outside else self._running_block().sites
        if not outside and site in sites:
            return x  # a module used again in the same block, as a norm before attention and MLP: the first use counts
        x = x if outside else self._turned(x)
        if self.needs.graph == site and self._graph_starts(site):
            wide = self.flow is not None and self.flow.needs_float32  # or relevance would be rounded on arrival
            x = (full(x) if wide else x).detach().requires_grad_()
        sites[site] = x
        # Flow on as a copy: the model may write into it, and autograd forbids writing into a leaf.
        return x.clone() if outside else self._turned(x.clone())

    def _attend(
        self,
        kernel: Callable[..., Tensor],
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        """Stands where the model calls scaled-dot-product attention, and keeps a record of it if it is wanted."""
        if dropout_p > 0:
            raise CaptureError(
                "The model drops attention at random even in evaluation mode, so it cannot be explained."
            )
        keeps = self.replaying is None and self._wanted("attention")
        if keeps and query.dim() != 4:
            raise CaptureError(f"Expected attention over (B, H, N, d), but it is given {tuple(query.shape)}.")
        graph = self.needs.graph
        starts = keeps and self._graph_starts("attention")
        if starts and graph == "query":
            query = query.detach().requires_grad_()
        options = {"enable_gqa": True} if enable_gqa else {}
        z = kernel(query, key, value, attn_mask=attn_mask, is_causal=is_causal, scale=scale, **options)
        if starts and graph == "attention":
            z = z.detach().requires_grad_()
        pooling = self.current is None and self.anatomy.readout == "pool" and self.replaying is None
        if not keeps and not pooling:
            return z
        factor = query.shape[-1] ** -0.5 if scale is None else scale
        record = AttentionRecord(query, key, value, attn_mask, factor, is_causal, z if graph else None)
        if pooling:
            self.pool = record
        elif self._running_block().record is not None:
            raise CaptureError("A block attends twice; only blocks with one self-attention can be explained.")
        else:
            self._running_block().record = record
        if not graph:
            return z
        copy = z.clone()  # the model may write into it
        mark(copy, origin_of(z))
        return copy

    def _turned(self, x: Tensor) -> Tensor:
        """Between the model's layout of the residual stream and (B, N, D)."""
        return x.transpose(0, 1) if self.anatomy.sequence_first else x

    def _in_last(self) -> bool:
        return self.current == self.block_index

    def _running_block(self) -> BlockTrace:
        if self.current is None:
            raise CaptureError("A site of a block was reached while no block was running.")
        return self.blocks[self.current]

    def _wanted(self, site: str) -> bool:
        """Whether a site is kept where the pass is now."""
        depth = self.keep.get(site)
        if site in OUTER_SITES:
            return depth is not None
        return self.current is not None and (depth == "all" or (depth == "last" and self._in_last()))

    def _graph_starts(self, site: str) -> bool:
        """True at the one place where the graph starts."""
        if site in OUTER_SITES or self.needs.start == "each":
            return True
        all_blocks = self.keep.get(site) == "all" and self.needs.start == "first"
        return self.current == (0 if all_blocks else self.block_index)

    def _forward(self, batch: Batch, unseen: bool = False) -> Outcome:
        """One call of the model: the observed one, or while asleep or replaying another.

        `unseen` if nothing inside of the model is read or changed by the caller, and one gradient is taken at most.
        """
        self.current, self.entered, self.later_latent = None, 0, None
        self.substituted.clear()
        batch = batch.copied() if batch is self.batch else batch
        later = self.replaying is not None or self.asleep
        graph = self.graph_asleep if self.asleep else self.needs.graph is not None or later
        tapped = not self.asleep and self.flow is not None
        ending = self.anatomy.ending
        with ExitStack() as stack:
            stack.enter_context(torch.set_grad_enabled(graph))
            if tapped and self.flow is not None:
                stack.enter_context(self.tap)
                self.flow.see_as_one(stack)
            elif not later:
                self._tap_attention(stack)
            wide = tapped and self.flow is not None and self.flow.needs_float32
            stack.enter_context(precision(()) if wide else user_precision())
            if ending is not None:
                stack.enter_context(ending.skip())
            if unseen and self.compiled is not None and self._may_be_compiled(batch, graph):
                stack.enter_context(self._unhooked())
                output = call_compiled(self.compiled, self.model, batch)
            else:
                output = self.model(*batch.args, **batch.kwargs)
        if self.flow is not None and tapped:
            output = self.flow.settled(output)
        if self.guest is not None and not self.asleep:
            self.sighting = self.guest[1].sighting()
            output = self.sighting.logits  # heads may have other classes than their host
        # Replayed tokens may be several copies of the batch.
        size = batch.size if self.replaying is None else None
        if "latent" in self.keep and self.anatomy.head is None:  # the latent vector is what the model returns
            return bare_outcome(output, size, self.anatomy.no_latent)
        latent = self.later_latent if later else self.outer.get("latent")
        scores = read_logits(output, size)
        scores = scores if self.compiled is None else scores.clone()  # its next call may write into what it returned
        if not later:
            self.returned = scores
        logits = scores if ending is None else ending.logits(scores)
        return Outcome(logits, None if latent is None else as_vector(latent))

    def _may_be_compiled(self, batch: Batch, graph: bool) -> bool:
        """Whether nothing inside is needed for what is asked of any pass, and torch has the gradient right."""
        inside = self.flow is not None or self.anatomy.ending is not None or "latent" in self.keep
        return not inside and not (graph and self.norms and batch.size == 1)

    @contextmanager
    def _unhooked(self) -> Iterator[None]:
        """While open, the hooks of the observed pass are off, because they would be compiled too, and stay."""
        self.hooks.close()
        try:
            yield
        finally:
            self._hook(self.hooks)

    def _tap_attention(self, stack: ExitStack) -> None:
        """See the calls of attention, where they are read.

        A function mode costs some microseconds per operation, so it is on only inside of the parts that attend.
        """
        if self.anatomy.readout == "pool" and self.needs.blocks:
            stack.enter_context(self.tap)  # the head attends too
        elif "attention" in self.keep:
            place, blocks = self.block_index, self.anatomy.blocks
            blocks = blocks if self.keep["attention"] == "all" else blocks[place : place + 1]
            for module in dict.fromkeys(block.attention or block.module for block in blocks):
                replace_forward(stack, module, partial(self._run_tapped, module.forward))

    def _run_tapped(self, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with self.tap:
            return forward(*args, **kwargs)

    def _check(self) -> None:
        """Fail loudly if the pass did not show what was asked for."""
        missing = [site for site in OUTER_SITES if site in self.keep and site not in self.outer]
        if missing:
            raise CaptureError(f"The forward pass of this {self.anatomy.family} never reached: {', '.join(missing)}.")
        if not self.needs.blocks:
            return
        if self.entered != len(self.blocks):
            raise CaptureError(f"Expected {len(self.blocks)} blocks to run, but {self.entered} did.")
        for number, block in enumerate(self.blocks, start=1):
            depths = ("all", "last") if number == self.block_index + 1 else ("all",)
            sites = [site for site, depth in self.keep.items() if site in BLOCK_SITES and depth in depths]
            if absent := [site for site in sites if not block.shows(site)]:
                raise CaptureError(
                    f"Block {number} of this {self.anatomy.family} did not show its {', '.join(absent)}: "
                    "it does not attend through torch's scaled_dot_product_attention or is laid out differently."
                )
        if self.anatomy.readout == "pool" and self.pool is None:
            raise CaptureError("Expected an attention-pooling head, but no attention ran outside of the blocks.")

    @contextmanager
    def sleep(self, graph: bool = False) -> Iterator[None]:
        """While open, the model runs on other inputs, and its hooks see nothing but the latent."""
        self._check_open()
        self.asleep, self.graph_asleep = True, graph
        try:
            yield
        finally:
            self.asleep = self.graph_asleep = False
            self.later_latent = None

    def _check_open(self, site: str | None = None) -> None:
        if self.is_over or (site is not None and site not in self.keep):
            raise CaptureError(
                "The model can be run again only while it is observed, its tail only with 'block_input' kept."
            )

    def replay(self, *, block_input: Tensor | None = None, tokens: Tensor | None = None) -> Outcome:
        """Outcome of the last block and head alone, run again on other tokens, with a graph to them.

        Where the method reads another block (`Needs.block`), that one and all above it are run.

        Args:
            block_input: Stands for `X(L)`, (B, N, D); the one observed if None.
            tokens: Stands for `T(L)`, the tokens entering the attention; the skip connection keeps `block_input`.
                In post-norm models the two are the same tensor.

        Images and single texts may be replayed with any number of copies along the batch axis.
        """
        self._check_open("block_input")
        last = self.blocks[self.block_index]
        if tokens is not None and last.block.norm1 is None:
            block_input, tokens = tokens, None
        stream = last.site("block_input") if block_input is None else block_input
        self.replaying = {"block_input": stream} if tokens is None else {"block_input": stream, "tokens": tokens}
        try:
            with ExitStack() as stack:
                if tokens is not None and "tokens" not in self.keep:
                    hook_each(stack, [last.block.norm1], after=partial(self._visit, "tokens"))
                for module in dict.fromkeys(b.block.module for b in self.blocks):
                    replace_forward(stack, module, partial(self._run_if_last, module.forward))
                outcome = self._forward(self.batch)
        finally:
            self.replaying = None
        if len(stream) != len(outcome.logits):
            raise CaptureError(
                f"Expected scores of {len(stream)} samples from the last block, but the head gave "
                f"{len(outcome.logits)}: it answers for the samples of its inputs only, not for copies of them."
            )
        return outcome

    def _run_if_last(self, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """What a block returns in a replay. One module may stand for several blocks.

        Lower blocks return at once what one of them returned in the observed pass: it has the structure that the model
        expects, and its values do not matter, because the last block's input is substituted.
        """
        return _copy(self.lower_output) if (self.current or 0) < self.block_index else forward(*args, **kwargs)

    def rerun(
        self,
        value: Tensor,
        samples: Tensor | None = None,
        graph: bool = False,
        drop: Tensor | None = None,
        once: bool = False,
    ) -> Outcome:
        """Outcome of the whole model on other inputs.

        Args:
            value: Images (M, C, H, W), token ids (M, T) or word embeddings (M, T, D), any number of them.
            samples: Whose variant each row is, (M,); see `Batch.variants`.
            graph: With a graph to `value`, or without any.
            drop: A token of each row that is taken out before the first block, (M,), counted with prefix tokens.
            once: Whether a single gradient will be taken of the graph, and not kept for another: the backward pass of
                a compiled model may write over what it read.
        """
        with self.sleep(graph), ExitStack() as stack:
            batch = self.batch.variants(value.clone(), samples)  # the model may write into it
            unseen = once or not graph
            if batch.modality == "text" and value.is_floating_point() and "inputs_embeds" not in batch.kwargs:
                if not self.embedded:
                    raise CaptureError(
                        "Word embeddings can stand in only where 'input' is kept; add it to the method's Needs."
                    )
                words = _at_use(self.embedded, lambda x: value.to(x.dtype).clone())
                hook_each(stack, [self.anatomy.embedding], after=words)
                unseen = False
            if drop is None:
                return self._forward(batch, unseen)
            # The module of the first block may stand for others too.
            hook_each(stack, [self.anatomy.blocks[0].module], _at_use(1, partial(self._drop_token, drop)))
            try:
                return self._forward(batch)
            except RuntimeError as error:
                if isinstance(error, torch.OutOfMemoryError):
                    raise
                reason = "its blocks cannot run with a token less (they count them: rotary or relative positions)"
                raise UnsupportedModelError(
                    f"Expected to take tokens out of this {self.anatomy.family}, but {reason}; hide them by a fill "
                    "instead.",
                    reason,
                ) from error

    def _drop_token(self, drop: Tensor, x: Tensor) -> Tensor:
        """The residual stream without a token of each row, (M,)."""
        tokens = self._turned(x)
        remaining = torch.arange(tokens.shape[1], device=tokens.device) != drop[:, None]
        return self._turned(tokens[remaining].view(len(tokens), -1, tokens.shape[2]))

    def embed(self, ids: Tensor) -> Tensor:
        """Word embeddings (..., D) of token ids, as the model's own layer gives them, without a graph."""
        if self.anatomy.embedding is None:
            raise CaptureError("No embedding of the token ids was seen.")
        with self.sleep(), torch.no_grad():
            words: Tensor = self.anatomy.embedding(ids)
        return words

    def clear(self) -> None:
        """Let go of every tensor, so that the graph is freed even if the pass is still referred to."""
        self.is_over = True
        self.blocks.clear()
        self.outer.clear()
        self.pool = self.lower_output = self.sighting = self.later_latent = self.returned = None
        self.logits = self.logits.detach()
        self.tap.on_attention = _over


def _over(*_: Any, **__: Any) -> Tensor:
    raise CaptureError("The observed pass is over.")


def _copy(output: Any) -> Any:
    """A copy of the tensors in a block's output, because the model may write into them."""
    if isinstance(output, Tensor):
        return output.clone()
    return type(output)(map(_copy, output)) if type(output) in (tuple, list) else output


def _at_use(number: int, change: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """A hook that changes the tensor at one use of a module, the first being 1, and lets others pass."""
    uses = 0

    def hook(x: Tensor) -> Tensor:
        nonlocal uses
        uses += 1
        return change(x) if uses == number else x

    return hook
