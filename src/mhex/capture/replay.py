"""Running the model again: the last block and the head on other tokens, or the whole of it on other inputs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from mhex.capture.hooks import hook_each, replace_forward
from mhex.capture.outputs import Outcome
from mhex.errors import CaptureError, UnsupportedModelError

if TYPE_CHECKING:
    from mhex.capture.watch import Watch


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
