"""Running a model on many inputs: in parts that fit the device, without some patches, or from its last block on."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from mhex.capture.adapters.families import known_anatomy
from mhex.capture.anatomy import Anatomy
from mhex.capture.batch import Batch
from mhex.capture.guard import call_compiled
from mhex.capture.hooks import hook_each
from mhex.capture.outputs import Ending, read_logits
from mhex.capture.precision import user_precision
from mhex.errors import ArgumentError, CaptureError

T = TypeVar("T")
# Numbers in one pass: 16 images of 224 x 224. A CPU is not faster with more of them, only with more small ones.
_ON_CPU = 16 * 3 * 224 * 224
_ON_GPU = 4 * _ON_CPU  # of the first pass, by which the others are measured
_MOST_ON_CPU, _MOST_ON_GPU = 256, 1024
_SHARE = 0.7  # of the free memory that a pass may take


def in_chunks(
    count: int, run: Callable[[int, int], T], width: int, device: torch.device, size: int | None, steps: Iterator[int]
) -> Iterator[tuple[int, int, T]]:
    """`run(start, stop)` over `count` samples in parts, as large as is good; yields both ends and what it returned.

    On a GPU the first part says what a sample needs, and the others are as large as memory allows. A part that does not
    fit all the same is halved, and so are all later ones: `run` may be called again for less, and must have no effect.
    `width` is how many numbers a sample holds; `size` is the most at a time, None for a number of its own. One of
    `steps` is taken for every sample that is done, as from a progress bar of `count` steps.
    """
    on_gpu = device.type == "cuda"
    first, most = (_ON_CPU, _MOST_ON_CPU) if device.type == "cpu" else (_ON_GPU, _MOST_ON_GPU)
    step = size or max(1, min(most, first // width))
    if size is None and device.type == "cpu" and count:
        step = -(-count // -(-count // step))  # parts of one size: a small rest would cost as much as a large one
    start = 0
    with closing(steps):  # type: ignore[type-var]
        while start < count:
            stop = min(start + step, count)
            before = torch.cuda.memory_allocated(device) if on_gpu else 0
            try:
                result: tuple[T] | None = (run(start, stop),)
            except torch.OutOfMemoryError:
                if stop - start == 1:
                    raise
                result = None
            if result is None:  # out of the handler, because what it caught still holds the tensors of the pass
                step = max(1, (stop - start) // 2)
                if on_gpu:
                    torch.cuda.empty_cache()
                continue
            yield start, stop, result[0]
            if size is None and start == 0 and on_gpu:
                step = _fitting(step, stop - start, before, device)
            for _ in range(start, stop):
                next(steps, None)
            start = stop
        next(steps, None)


def sample_width(batch: Batch, anatomy: Anatomy) -> int:
    """Numbers that one sample holds, word embeddings counted."""
    if batch.modality == "image":
        return batch.pixels[0].numel()
    width = getattr(anatomy.embedding, "embedding_dim", None)
    return batch.roles[0].shape[1] * (width if isinstance(width, int) else 512)


def _fitting(size: int, ran: int, before: int, device: torch.device) -> int:
    """How many samples fit, when `ran` of them went through.

    The highest memory use ever stands for what they needed: it is no less, and asking for their own would reset a
    statistic of the user's.
    """
    needed = max(1, (torch.cuda.max_memory_allocated(device) - before) // ran)
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    free = torch.cuda.mem_get_info(device)[0] + unused
    return max(size, min(_MOST_ON_GPU, int(_SHARE * free) // needed))


_OF_CLASS_TOKEN = ("class", "class+distilled")  # something is left to be read without a patch


def plain_vit(model: nn.Module) -> Anatomy:
    """Anatomy of a model whose patches can be left out; other models are refused."""
    anatomy = known_anatomy(model)
    fits = anatomy is not None and anatomy.positions_in_tokens and anatomy.readout in _OF_CLASS_TOKEN
    if anatomy is None or not anatomy.blocks or not fits:
        raise ArgumentError(
            "Expected a plain Vision Transformer that reads its class token (of timm, torchvision, or Hugging Face's "
            f"ViT and DeiT) where patches are dropped, but got {type(model).__name__}; hide pixels instead, by the "
            "reference 'black', 'zero', 'mean', 'blur' or 'impute'."
        )
    return anatomy


def logits_of(
    model: nn.Module, batch: Batch, ending: Ending | None = None, compiled: Callable[..., Any] | None = None
) -> Tensor:
    """Class scores (B, C) of a batch, each sample given the patches alone that the batch keeps.

    Samples that keep as many patches go through the unwrapped model together. `ending` is how it makes probabilities.
    Its compiled form runs where nothing is changed inside.
    """
    if batch.patches is None and ending is None and compiled is not None:
        with user_precision():  # a copy, because the next call may write into what this one returned
            return read_logits(call_compiled(compiled, model, batch), batch.size).clone()
    if batch.patches is None:
        with nullcontext() if ending is None else ending.skip(), user_precision():
            scores = read_logits(model(*batch.args, **batch.kwargs), batch.size)
        return scores if ending is None else ending.logits(scores)
    anatomy, number = plain_vit(model), batch.patches.sum(1)
    parts, rows = [], []
    for count in dict.fromkeys(number.tolist()):
        row = (number == count).nonzero()[:, 0]
        part = replace(batch.variants(batch.pixels[row], row), patches=None)
        with ExitStack() as stack:
            hook_each(stack, [anatomy.blocks[0].module], before=partial(_shorten_tokens, anatomy, batch.patches[row]))
            parts.append(logits_of(model, part, ending))
        rows.append(row)
    return torch.cat(parts)[torch.cat(rows).argsort()]


def _shorten_tokens(anatomy: Anatomy, patches: Tensor, tokens: Tensor) -> Tensor:
    """What enters the first block of a plain Vision Transformer, with these patches alone after the prefix tokens.

    Their positions have been added by then, and stay theirs. `patches` is bool (B, P), with as many in each row.
    """
    prefix, size = anatomy.prefix_tokens, len(patches)
    if tokens.shape[:2] != (size, prefix + patches.shape[1]):
        raise CaptureError(
            f"Expected {size} samples of {prefix + patches.shape[1]} tokens before the first block of this "
            f"{anatomy.family}, but saw {tuple(tokens.shape)}: its patches cannot be left out."
        )
    always = torch.arange(prefix, device=patches.device).expand(size, -1)
    places = torch.cat([always, prefix + patches.nonzero()[:, 1].view(size, -1)], 1)
    return tokens.gather(1, places[..., None].expand(-1, -1, tokens.shape[2]))
