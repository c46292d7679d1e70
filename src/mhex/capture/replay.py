"""Running the model again: the last block and the head on other tokens, or the whole of it on other inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from mhex.capture.adapters import known_anatomy
from mhex.capture.anatomy import Anatomy
from mhex.capture.batch import Batch
from mhex.capture.hooks import hook_each, replace_forward
from mhex.capture.outputs import Ending, Outcome, read_logits
from mhex.errors import ArgumentError, CaptureError, UnsupportedModelError

if TYPE_CHECKING:
    from mhex.capture.observe import Watch

T = TypeVar("T")
# Numbers in one pass: 16 images of 224 x 224. A CPU is not faster with more of them, only with more small ones.
_ON_CPU = 16 * 3 * 224 * 224
_ON_GPU = 4 * _ON_CPU  # of the first pass, by which the others are measured
_MOST_ON_CPU, _MOST_ON_GPU = 256, 1024
_SHARE = 0.7  # of the free memory that a pass may take


def in_chunks(
    count: int,
    run: Callable[[int, int], T],
    width: int,
    device: torch.device,
    batch_size: int | None,
    steps: Iterator[int],
) -> Iterator[tuple[int, int, T]]:
    """`run(start, stop)` over `count` samples in parts, each as large as is good.

    On a GPU the first part says what a sample needs, and the others are as large as memory allows. A part that does not
    fit all the same is halved, and so are all later ones.

    Args:
        count: Number of samples in all.
        run: Called for a part of them; must have no effect, because it may be called again for less.
        width: Numbers that one sample holds.
        device: Where the model is.
        batch_size: The most at a time; None for a number of its own.
        steps: Taken from for every sample that is done, such as a progress bar of `count` steps.

    Yields:
        Beginning and end of each part, and what `run` returned.
    """
    size = batch_size or _first_size(width, device)
    if batch_size is None and device.type == "cpu" and count:
        size = -(-count // -(-count // size))  # parts of one size: a small rest would cost as much as a large one
    start = 0
    with closing(steps):  # type: ignore[type-var]
        while start < count:
            stop = min(start + size, count)
            before = _allocated(device)
            # Out of the handler, because what it caught still holds the tensors of the pass.
            found = _attempt(run, start, stop)
            if found is None:
                size = max(1, (stop - start) // 2)
                _empty_cache(device)
                continue
            yield start, stop, found[0]
            if batch_size is None and start == 0 and device.type == "cuda":
                size = _fitting(size, stop - start, before, device)
            for _ in range(start, stop):
                next(steps, None)
            start = stop
        next(steps, None)


def sample_width(batch: Batch, anatomy: Anatomy) -> int:
    """Numbers that one sample holds, word embeddings counted."""
    if batch.modality == "image":
        return batch.pixels[0].numel()
    width = getattr(anatomy.embedding, "embedding_dim", None)
    real, _ = batch.roles
    return real.shape[1] * (width if isinstance(width, int) else 512)


def _attempt(run: Callable[[int, int], T], start: int, stop: int) -> tuple[T] | None:
    """What `run` returned; None if there was no memory for it. A single sample that does not fit is told."""
    try:
        return (run(start, stop),)
    except torch.OutOfMemoryError:
        if stop - start == 1:
            raise
        return None


def _first_size(width: int, device: torch.device) -> int:
    if device.type == "cpu":
        return max(1, min(_MOST_ON_CPU, _ON_CPU // width))
    return max(1, min(_MOST_ON_GPU, _ON_GPU // width))


def _allocated(device: torch.device) -> int:
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0


def _fitting(size: int, ran: int, before: int, device: torch.device) -> int:
    """How many samples fit, when `ran` of them went through.

    The highest memory use ever stands for what they needed: it is no less, and asking for their own would reset a
    statistic of the user's.
    """
    needed = max(1, (torch.cuda.max_memory_allocated(device) - before) // ran)
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    free = torch.cuda.mem_get_info(device)[0] + unused
    return max(size, min(_MOST_ON_GPU, int(_SHARE * free) // needed))


def _empty_cache(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.empty_cache()


_OF_CLASS_TOKEN = ("class", "class+distilled")  # something is left to be read without a patch


def plain_vit(model: nn.Module) -> Anatomy:
    """Anatomy of a model whose patches can be left out; other models are refused.

    Args:
        model: The unwrapped module.
    """
    found = known_anatomy(model)
    if found is None or not found.blocks or not found.positions_in_tokens or found.readout not in _OF_CLASS_TOKEN:
        raise ArgumentError(
            "Expected a plain Vision Transformer that reads its class token (of timm, torchvision, or Hugging Face's "
            f"ViT and DeiT) where patches are dropped, but got {type(model).__name__}; hide pixels instead, by the "
            "reference 'black', 'zero', 'mean', 'blur' or 'impute'."
        )
    return found


def logits_of(model: nn.Module, batch: Batch, ending: Ending | None = None) -> Tensor:
    """Class scores (B, C) of a batch, each sample given the patches alone that the batch keeps.

    Args:
        model: The unwrapped module.
        batch: Inputs. Samples that keep as many patches go through the model together.
        ending: How the model makes probabilities of its logits; None if it does not.
    """
    if batch.kept is None:
        return _called(model, batch, ending)
    anatomy, number = plain_vit(model), batch.kept.sum(1)
    parts, rows = [], []
    for count in dict.fromkeys(number.tolist()):
        own = (number == count).nonzero()[:, 0]
        part = batch.variants(batch.pixels[own], own)
        with _left_out(anatomy, batch.kept[own]):
            parts.append(_called(model, part, ending))
        rows.append(own)
    return torch.cat(parts)[torch.cat(rows).argsort()]


def _called(model: nn.Module, batch: Batch, ending: Ending | None) -> Tensor:
    if ending is None:
        return read_logits(model(*batch.args, **batch.kwargs), batch.size)
    with ending.skip():
        scores = read_logits(model(*batch.args, **batch.kwargs), batch.size)
    return ending.logits(scores)


@contextmanager
def _left_out(anatomy: Anatomy, kept: Tensor) -> Iterator[None]:
    """While open, the first block gets the tokens before the patches, and of these the kept ones alone.

    Their positions have been added by then, and stay theirs.

    Args:
        anatomy: Of a plain Vision Transformer.
        kept: Bool (B, P), as many in each row.
    """
    prefix = anatomy.prefix_tokens
    always = torch.arange(prefix, device=kept.device).expand(len(kept), -1)
    places = torch.cat([always, prefix + kept.nonzero()[:, 1].view(len(kept), -1)], 1)

    def shorten(tokens: Tensor) -> Tensor:
        if tokens.shape[:2] != (len(kept), prefix + kept.shape[1]):
            raise CaptureError(
                f"Expected {len(kept)} samples of {prefix + kept.shape[1]} tokens before the first block of this "
                f"{anatomy.family}, but saw {tuple(tokens.shape)}: its patches cannot be left out."
            )
        return tokens.gather(1, places[..., None].expand(-1, -1, tokens.shape[2]))

    with ExitStack() as stack:
        hook_each(stack, [anatomy.blocks[0].module], before=shorten)
        yield


class CopiesError(CaptureError):
    """The head of a model answers for the samples of its inputs only, not for copies of them."""


class Again:
    """Later passes of an observed model."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch

    def tail(self, *, block_input: Tensor | None = None, tokens: Tensor | None = None) -> Outcome:
        """Outcome of the last block and head alone, run again on other tokens, with a graph to them.

        Args:
            block_input: Stands for `X(L)`, (B, N, D); the one observed if None.
            tokens: Stands for `T(L)`, the tokens entering the attention; the skip connection keeps `block_input`.
                In post-norm models the two are the same tensor.

        Images and single texts may be replayed with any number of copies along the batch axis.
        """
        watch = self.watch
        last = watch.blocks[-1]
        if tokens is not None and last.block.norm1 is None:
            block_input, tokens = tokens, None
        watch.replaying = {"block_input": last.site("block_input") if block_input is None else block_input}
        if tokens is not None:
            watch.replaying["tokens"] = tokens
        try:
            with ExitStack() as stack:
                if tokens is not None and "tokens" not in watch.keep:
                    hook_each(stack, [last.block.norm1], after=partial(watch.visit, "tokens"))
                skip_lower_blocks(
                    stack,
                    [b.block.module for b in watch.blocks],
                    is_last=lambda: watch.current == len(watch.blocks) - 1,
                    stand_in=lambda: _copy(watch.lower_output),  # the model may write into it
                )
                outcome = watch.forward(watch.batch)
            given, got = watch.replaying["block_input"].shape[0], outcome.logits.shape[0]
            if given != got:
                raise CopiesError(f"Expected scores of {given} samples from the last block, but the head gave {got}.")
            return outcome
        finally:
            watch.replaying = None

    def whole(
        self, value: Tensor, samples: Tensor | None = None, graph: bool = False, drop: Tensor | None = None
    ) -> Outcome:
        """Outcome of the whole model on other inputs.

        Args:
            value: Images (M, C, H, W), token ids (M, T) or word embeddings (M, T, D), any number of them.
            samples: Whose variant each row is, (M,); see `Batch.variants`.
            graph: With a graph to `value`, or without any.
            drop: A token of each row that is taken out before the first block, (M,), counted with prefix tokens.
        """
        watch = self.watch
        batch = watch.batch.variants(value.clone(), samples)  # the model may write into it
        watch.asleep, watch.graph_asleep = True, graph
        try:
            with ExitStack() as stack:
                if batch.modality == "text" and value.is_floating_point() and "inputs_embeds" not in batch.kwargs:
                    self._embed_by(stack, value)
                if drop is None:
                    return watch.forward(batch)
                self._drop(stack, drop)
                try:
                    return watch.forward(batch)
                except RuntimeError as error:
                    if isinstance(error, torch.OutOfMemoryError):
                        raise
                    reason = "its blocks cannot run with a token less (they count them: rotary or relative positions)"
                    raise UnsupportedModelError(
                        f"Expected to take tokens out of this {watch.anatomy.family}, but {reason}; hide them by a "
                        "fill instead.",
                        reason,
                    ) from error
        finally:
            watch.asleep = watch.graph_asleep = False
            watch.again = None

    def _embed_by(self, stack: ExitStack, value: Tensor) -> None:
        """Let word embeddings stand for what the embedding layer returns, at the use of it that is kept."""
        if not self.watch.embedded:
            raise CaptureError("Word embeddings can stand in only where 'input' is kept; add it to the method's Needs.")
        uses = 0

        def stand_in(x: Tensor) -> Tensor:
            nonlocal uses
            uses += 1
            return value.to(x.dtype).clone() if uses == self.watch.embedded else x

        hook_each(stack, [self.watch.anatomy.embedding], after=stand_in)

    def _drop(self, stack: ExitStack, drop: Tensor) -> None:
        """Take a token of each row out of what enters the first block."""
        done = False

        def remove(x: Tensor) -> Tensor:
            nonlocal done
            if done:  # the module stands for several blocks
                return x
            done = True
            tokens = self.watch.turned(x)
            kept = torch.arange(tokens.shape[1], device=tokens.device) != drop[:, None]
            return self.watch.turned(tokens[kept].view(len(tokens), -1, tokens.shape[2]))

        hook_each(stack, [self.watch.anatomy.blocks[0].module], before=remove)

    def embed(self, ids: Tensor) -> Tensor:
        """Word embeddings (..., D) of token ids, as the model's own layer gives them, without a graph."""
        watch = self.watch
        if watch.anatomy.embedding is None:
            raise CaptureError("No embedding of the token ids was seen.")
        watch.asleep = True
        try:
            with torch.no_grad():
                found: Tensor = watch.anatomy.embedding(ids)
            return found
        finally:
            watch.asleep = False


def skip_lower_blocks(
    stack: ExitStack, modules: list[nn.Module], is_last: Callable[[], bool], stand_in: Callable[[], Any]
) -> None:
    """Let every block but the last return `stand_in()` at once, for the time of `stack`.

    The stand-in is what a lower block returned in the observed pass, so it has the structure that the model
    expects; its values do not matter, because the last block's input is substituted.

    Args:
        stack: Undoes the change.
        modules: The blocks, in order of execution.
        is_last: True while the last block is the one running (a module may stand for several blocks).
        stand_in: What the others return.
    """
    for module in dict.fromkeys(modules):
        replace_forward(stack, module, _Skipping(module.forward, is_last, stand_in))


class _Skipping:
    def __init__(self, forward: Callable[..., Any], is_last: Callable[[], bool], stand_in: Callable[[], Any]) -> None:
        self.forward, self.is_last, self.stand_in = forward, is_last, stand_in

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.forward(*args, **kwargs) if self.is_last() else self.stand_in()


def _copy(output: Any) -> Any:
    if isinstance(output, Tensor):
        return output.clone()
    if type(output) in (tuple, list):
        return type(output)(map(_copy, output))
    return output
