"""What one forward pass left behind, in the terms that the papers use, and `observe`, which makes the pass."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from mhex._progress import track
from mhex.capture.anatomy import Anatomy, Sighting, grid_of, layout_of, readout_vector
from mhex.capture.batch import Batch, full
from mhex.capture.block_trace import BlockTrace
from mhex.capture.guard import model_failures, untouched
from mhex.capture.inventory import Inventory, inventory_of
from mhex.capture.needs import Needs
from mhex.capture.observe import ObservedPass
from mhex.capture.operations import Rules
from mhex.capture.outputs import Ending, Outcome, Outputs, as_vector, find_ending, may_be_probabilities
from mhex.capture.replay import in_chunks, sample_width
from mhex.errors import ArgumentError, CaptureError

T = TypeVar("T")
_CUT = (
    "No gradient reaches what the method reads: the pass cuts it (no_grad, quantised layers), or the method's rules "
    "hold constant what it goes through."
)


class Trace(ObservedPass):
    """One forward pass as a method sees it, and what the method leaves for the result."""

    def __init__(self, model: nn.Module, anatomy: Anatomy, batch: Batch, needs: Needs, rules: Rules | None) -> None:
        super().__init__(model, anatomy, batch, needs, rules)
        self.progress = False  # whether progress bars are drawn
        self.seed = 0  # the seed of random numbers that the user gave
        self.cost = {"forwards": 1, "backwards": 0}  # passes made so far
        # Maps of single layers by name: token scores (B, N), or (B, K, ...) from a method called once for all targets.
        self.layers: dict[str, Tensor] = {}
        self.diagnostics: dict[str, Tensor] = {}  # what a method measured of its own result: (B,), or (B, K) as above
        self.signed: bool | None = None  # whether scores are, where options decide it; None for what is registered
        self.chosen: dict[str, Any] = {}  # options that a method settled by itself, to be written into the result
        self.of_class = False  # whether scores are logits of single classes
        self.is_random = False  # whether random numbers were drawn
        self._done: dict[str, Any] = {}
        self.checks: list[tuple[Tensor, Callable[[], None]]] = []  # see `check_later`

    def _outer(self, name: str) -> Tensor:
        if name not in self.outer:
            raise CaptureError(f"{name!r} was not kept; add it to the method's Needs.")
        return self.outer[name]

    @property
    def input(self) -> Tensor:
        """Pixels (B, C, H, W) or word embeddings (B, T, D), if kept."""
        return self._outer("input")

    @property
    def features(self) -> Tensor:
        """Output of the feature layer as the model laid it out, if kept; see `as_maps`."""
        return self._outer("features")

    @property
    def latent(self) -> Tensor:
        """The vector that the classifier reads, (B, D), if kept."""
        return as_vector(self._outer("latent"))

    @property
    def heads(self) -> Sighting:
        """What the heads of `mhex.attach` saw, if kept."""
        if self.sighting is None:
            raise CaptureError("'heads' was not kept; add it to the method's Needs.")
        return self.sighting

    @property
    def tokens(self) -> int:
        """Number of tokens N, prefix and padding included."""
        for block in self.blocks:
            if block.record is not None:
                return block.record.key.shape[-2]
            for tensor in block.sites.values():
                return tensor.shape[1]
        raise CaptureError("No tokens were kept; add a site of the blocks to the method's Needs.")

    @property
    def block(self) -> BlockTrace:
        """The block that the method reads: the last one, or that of its option `block`."""
        return self.blocks[self.block_index]

    def blocks_from(self, start: int) -> list[BlockTrace]:
        """Blocks `start` to the last, counted from 1."""
        if not isinstance(start, int) or not 1 <= start <= len(self.blocks):
            raise ArgumentError(f"Expected start_block from 1 to {len(self.blocks)}, but got {start!r}.")
        return self.blocks[start - 1 :]

    @property
    def spatial(self) -> Tensor:
        """Bool (B, N): True at patches, or at words neither special nor padding."""
        return self.batch.spatial(self.tokens, self.anatomy.prefix_tokens)

    @property
    def real(self) -> Tensor:
        """Bool (B, N): False at padding."""
        return torch.ones_like(self.spatial) if self.batch.real is None else self.batch.real

    @property
    def readout(self) -> Tensor:
        """The read-out vector `w`, (B, N): which tokens the head reads, non-negative, rows summing to 1."""
        if not self.needs.blocks or self.is_over:
            raise CaptureError("The read-out vector is known only to methods that keep something of the blocks.")
        return self.once("readout", self._find_readout)

    def _find_readout(self) -> Tensor:
        """Each final token's share in the gradient of the top score of an unknown architecture, by a further pass."""
        # Of a model without a classifier, in that of the length of its latent vector.
        if self.pool is not None:
            return self.pool.probabilities().mean(1)[:, 0]
        if self.anatomy.readout != "measured":
            return readout_vector(self.anatomy, self.spatial, full(self.logits).dtype)
        bare = self.anatomy.head is None and "latent" in self.keep
        needs = Needs(keep={"block_output": "last"}, graph="block_output")
        anatomy, needs = replace(self.anatomy, readout="mean"), needs.with_latent() if bare else needs
        with self.sleep(), observe(self.model, anatomy, self.batch, needs) as trace:
            tokens = trace.blocks[-1].site("block_output")
            y = full(trace.latent).square().sum(1) if bare else trace.logits.amax(1)
            (gradient,) = trace.gradient(y, tokens)
            length: Tensor = full(gradient).norm(dim=-1)
        self.cost["forwards"] += 1
        total = length.sum(1, keepdim=True)
        self.check_later(~(total > 0).all(), _refuse_readout)
        return length / total

    @property
    def embeddings(self) -> int:
        """How often words were embedded: layers that share their weight, as encoder and decoder, are several uses."""
        if not self.embedded:
            return 0
        modules = inventory_of(self.model, check=False).modules(self.model)
        tables = (m.weight for m in modules if isinstance(m, nn.Embedding))
        weight = getattr(self.anatomy.embedding, "weight", None)
        return max(self.embedded, sum(table is weight for table in tables))

    @contextmanager
    def plain(self) -> Iterator[Trace]:
        """A second pass of one under rules, with plain gradients."""
        if self.flow is None or self.is_over:
            raise CaptureError("Only a pass under rules has a second one without, while it is observed.")
        with self.sleep(), observe(self.model, self.anatomy, self.batch, self.needs) as trace:
            yield trace

    def gradient(self, y: Tensor, *tensors: Tensor, last: bool = False) -> tuple[Tensor, ...]:
        """`dy_n/dt` for every kept tensor `t`, from one score per sample, (B,); after the `last` the graph is freed."""
        # Samples are independent, so the sum over the batch is differentiated.
        if not y.requires_grad:
            raise CaptureError(_CUT)
        return self.carried(y, torch.ones_like(y), tensors, last)

    def carried(
        self, source: Tensor, start: Tensor, tensors: Sequence[Tensor], last: bool = False
    ) -> tuple[Tensor, ...]:
        """What one backward pass carries from `source`, which starts with `start`, to each of the tensors."""
        self.cost["backwards"] += 1
        if self.flow is not None:
            self.flow.everywhere = False
        try:
            gradients = torch.autograd.grad(source, tensors, start, retain_graph=not last, allow_unused=True)
        except RuntimeError as error:
            if "modified by an inplace operation" not in str(error):
                raise
            raise CaptureError(
                "The model writes in place into what its own gradient needs, so it could not be trained and has none; "
                "choose a method without gradients, such as occlusion or rise."
            ) from error
        if all(gradient is None for gradient in gradients):
            raise CaptureError(_CUT)
        return tuple(torch.zeros_like(t) if g is None else g for t, g in zip(tensors, gradients, strict=True))

    def relevance(self, y: Tensor, at: Tensor, *further: Tensor, signed: bool = True) -> list[Tensor]:
        """Relevance of kept tensors under the method's rules; what was lost on the way is left in `diagnostics`.

        Args:
            y: One score per sample, (B,).
            at: Where conservation is measured: all of the relevance should arrive here.
            further: More kept tensors.
            signed: False if a class with a negative logit starts with positive relevance all the same.
        """
        if self.flow is None:
            raise CaptureError("Relevance needs rules; give the method rules=.")
        sources = (self.returned, self.outer.get("latent"))
        relevances, conservation = self.flow.propagate(y, sources, (at, *further), self.carried, signed, self.of_class)
        self.diagnostics |= conservation
        return relevances

    @property
    def outcome(self) -> Outcome:
        """Logits and latent of the observed pass, from which targets take their scores."""
        return Outcome(self.logits, self.latent if "latent" in self.outer else None)

    @property
    def read_rows(self) -> slice:
        """Queries of the last attention that the head reads: the first of class-token models, else all."""
        return slice({"class": 1, "class+distilled": 2}.get(self.anatomy.readout))

    def once(self, name: str, compute: Callable[[], T]) -> T:
        """What does not depend on the target: computed for the first one and shared by the others."""
        if name not in self._done:
            self._done[name] = compute()
        value: T = self._done[name]
        return value

    def check_later(self, flag: Tensor, react: Callable[[], None]) -> None:
        """Have `react()` called when the method is done, if `flag`, a single bool, is true."""
        # All flags are read together, so that the device is waited for once.
        self.checks.append((flag, react))

    def noise(self, step: int, *shape: int) -> Tensor:
        """Standard normal numbers, float32, that depend on the user's seed, `step` and the kind of device alone."""
        # For texts a longer first axis begins with the same numbers, so that a text gets the same alone and padded in a
        # batch: drawn on the CPU, where torch fills whole groups of 16 one after the other.
        self.is_random = True
        device = self.logits.device if self.batch.modality == "image" else torch.device("cpu")
        generator = torch.Generator(device).manual_seed((self.seed * 1_000_003 + step) % 2**63)
        count = math.prod(shape)
        numbers = torch.randn(-(-count // 16) * 16, generator=generator, device=device, dtype=torch.float32)
        return numbers[:count].reshape(shape).to(self.logits.device)

    def chunks(
        self, count: int, run: Callable[[int, int], T], words: str = "", size: int | None = None, weight: int = 1
    ) -> Iterator[tuple[int, int, T]]:
        """`run(start, stop)` over `count` samples, as many at a time as are good for the device; see `in_chunks`.

        `words` stand at the progress bar, if any; `size` is the most at a time; `weight` is the share of a sample.
        """
        width = weight * sample_width(self.batch, self.anatomy)
        bar = track(range(count), words, self.progress and bool(words))
        return in_chunks(count, run, width, self.logits.device, 1 if self.batch.alone else size, bar)

    def track(self, steps: Sequence[T], words: str) -> Iterator[T]:
        """Iterate with a progress bar if the user asked for one."""
        return track(steps, words, self.progress)

    def as_maps(self, tensor: Tensor) -> Tensor:
        """Rearrange features, or their gradient, to (B, C, h, w), at least float32; prefix tokens are dropped."""
        tensor = full(tensor.detach())
        if tensor.dim() == 3:
            if self.anatomy.sequence_first:
                tensor = tensor.transpose(0, 1)
            return self.on_grid(tensor.mT)
        shape = tuple(tensor.shape)
        if len(shape) != 4:
            raise CaptureError(f"Expected feature maps of 4 axes or tokens of 3, but the layer gave {shape}.")
        layer = self.anatomy.features
        layout = (None if layer is None else layer.layout) or layout_of(tensor.shape, self.batch.pixels.shape)
        if layout is None:
            right = "feature maps with the aspect ratio of the image"
            raise CaptureError(f"Expected {right}, but the layer gave {shape}; name another one with layer=.")
        return tensor.permute(0, 3, 1, 2) if layout == "nhwc" else tensor

    def grid(self) -> tuple[int, int]:
        """Rows and columns of the patch grid."""
        return self.anatomy.grid(*self.batch.pixels.shape[-2:])

    def on_grid(self, scores: Tensor) -> Tensor:
        """Scores of tokens (..., N) as they lie: (..., h, w) without prefix tokens, or (..., T) with 0 at padding."""
        if scores.dim() == 4:  # maps already
            return scores
        if self.batch.modality == "text":
            if self.batch.real is None or scores.shape[-1] != self.batch.real.shape[1]:
                raise CaptureError(f"Expected one score per token of the text, but the layer has {scores.shape[-1]}.")
            return scores.where(self.batch.real.reshape(-1, *[1] * (scores.dim() - 2), scores.shape[-1]), 0.0)
        if self.anatomy.patch is None:  # then the tokens must fill a grid of the shape of the image
            return scores.reshape(*scores.shape[:-1], *grid_of(scores.shape[-1], self.batch.pixels.shape))
        rows, columns = self.grid()
        prefix, count = self.anatomy.prefix_tokens, rows * columns
        if scores.shape[-1] != prefix + count:
            raise CaptureError(
                f"Expected {prefix} prefix tokens and {count} patches, but saw {scores.shape[-1]} tokens: "
                "the layer does not hold the patch grid of the image."
            )
        return scores[..., prefix:].reshape(*scores.shape[:-1], rows, columns)

    def place(self, scores: Tensor) -> Tensor:
        """Token scores (B, N) where they belong: (B, h, w) for images, (B, T) for text with special tokens at 0."""
        if scores.dim() == 3:  # a map already
            return scores
        if self.batch.modality == "text":
            return scores.where(self.batch.spatial(scores.shape[1], 0), 0.0)
        return self.on_grid(scores)

    def clear(self) -> None:
        super().clear()
        for results in (self.layers, self.diagnostics, self._done, self.checks):
            results.clear()


def _refuse_readout() -> None:
    raise CaptureError("The top score does not depend on the last block's tokens, so they cannot be explained.")


@contextmanager
def observe(
    model: nn.Module,
    anatomy: Anatomy,
    batch: Batch,
    needs: Needs,
    rules: Rules | None = None,
    progress: bool = False,
    outputs: Outputs | None = "logits",
    compiled: Callable[..., Any] | None = None,
    check: bool = True,
) -> Iterator[Trace]:
    """Run `model` once on `batch` and show what `needs` asks for.

    Everything before the site where the graph starts runs without a graph. On leaving, also after an error, hooks
    are gone and the model is as it was (see `untouched`).

    Args:
        model: The unwrapped module.
        anatomy: Where things are inside it.
        batch: Checked inputs.
        needs: What to keep, and where the graph starts.
        rules: Relevance rules to apply in this pass (see `mhex.relevance`).
        progress: Whether `Trace.track` draws progress bars.
        outputs: What the model returns; None to recognise it. Of a model that returns probabilities, everything is
            that of its logits, and the trace's anatomy has the `ending`.
        compiled: What runs in place of the model in passes where nothing is seen inside; see `compiled_form`.
        check: As for `untouched`.

    Yields:
        The trace. Its tensors are released when the context ends.
    """
    with model_failures(model, batch), ExitStack() as stack:
        inventory = stack.enter_context(untouched(model, needs.blocks or rules is not None, check))
        straight = _needs_straight_norms(inventory, anatomy, batch, needs, rules)
        first = stack.enter_context(ExitStack())
        trace = Trace(model, anatomy, batch, needs, rules)
        trace.compiled, trace.norms = compiled, list(inventory.norms) if straight else []
        trace.run(first)
        ending: Ending | None = None
        scores_are_logits = ("logits", trace.guest is not None)  # a fact of the model, or of its heads
        if outputs != "logits" and not (outputs is None and inventory.knows(scores_are_logits)):
            # Heads give logits, whatever their host returns.
            if outputs is None and not may_be_probabilities(trace.logits):
                inventory.note(scores_are_logits)
            elif trace.guest is None or bool(((trace.logits >= 0) & (trace.logits <= 1)).all()):
                with trace.sleep():
                    ending = find_ending(model, batch, trace.logits, outputs, cost=trace.cost)
        if ending is not None:
            first.close()
            passes = trace.cost["forwards"]
            norms, trace = trace.norms, Trace(model, replace(anatomy, ending=ending), batch, needs, rules)
            trace.norms = norms
            trace.run(stack)
            trace.cost["forwards"] += passes
        if trace.flow is not None:
            outcome = trace.outcome
            trace.flow.finish(*(output for output in (outcome.logits, outcome.latent) if output is not None))
        trace.progress = progress
        yield trace


def _needs_straight_norms(
    inventory: Inventory, anatomy: Anatomy, batch: Batch, needs: Needs, rules: Rules | None
) -> bool:
    """Whether a gradient may go back through batch norms that torch gets wrong; see `straighten_norms`."""
    # None lies above the feature maps that a model has by default. Rules replace gradients, and know layers by their
    # tensors.
    above = needs.graph == "features" and anatomy.features is not None and anatomy.features.layout is not None
    ruled = rules is not None and not rules.partial
    return bool(inventory.norms) and inventory.device.type == "cpu" and not above and not ruled
