"""Many samples through a model, as many at a time as are good for the device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import TypeVar

import torch

from mhex.capture.anatomy import Anatomy
from mhex.capture.batch import Batch

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
