"""What is ranked and removed: pixels, patches, tokens or words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from mhex._words import Pooling, pool
from mhex.errors import ArgumentError
from mhex.perturb.splitting import Words, words_of
from mhex.perturb.subject import Subject


@dataclass(frozen=True)
class Units:
    """Units of a batch.

    Attributes:
        scores: Importance, (B, N).
        number: How many units each sample has, (B,).
        counted: Bool (B, N), False at units that are never removed; None if all are.
        spread: From removed units (M, N) of samples (M,) to removed pixels (M, H, W) or tokens (M, T).
    """

    scores: Tensor
    number: Tensor
    counted: Tensor | None
    spread: Callable[[Tensor, Tensor], Tensor]


def check_map(subject: Subject, saliency: Tensor) -> Tensor:
    """A map of each sample, on their device; see `check_maps`."""
    image = None if subject.batch.modality == "text" else subject.batch.pixels.shape[-2:]
    return check_maps(saliency, subject.batch.size, image).to(subject.device)


def check_maps(saliency: Tensor, count: int, image: tuple[int, ...] | None) -> Tensor:
    """Maps, detached; of another number or size, or not finite, they are refused.

    Args:
        saliency: (B, h, w), no larger than the images; or (B, T).
        count: B.
        image: Height and width of the images; None for texts.
    """
    axes, wanted = (2, "(B, T)") if image is None else (3, "(B, H, W)")
    if not isinstance(saliency, Tensor) or saliency.dim() != axes or len(saliency) != count:
        got = tuple(saliency.shape) if isinstance(saliency, Tensor) else type(saliency).__name__
        raise ArgumentError(f"Expected one map for each of {count} samples, of shape {wanted}, but got {got}.")
    if image is not None and not all(1 <= own <= most for own, most in zip(saliency.shape[1:], image, strict=True)):
        size, own = ("x".join(map(str, shape)) for shape in (image, saliency.shape[1:]))
        raise ArgumentError(f"Expected maps of the size of the images, {size}, or on a coarser grid, but got {own}.")
    if not bool(torch.isfinite(saliency).all()):
        raise ArgumentError("Expected finite maps, but got NaN or infinity.")
    return saliency.detach()


def at_size(saliency: Tensor, size: tuple[int, int]) -> Tensor:
    """Maps (B, h, w) at the size of the image, bilinear."""
    if tuple(saliency.shape[-2:]) == tuple(size):
        return saliency
    return F.interpolate(saliency[:, None], size=size, mode="bilinear", align_corners=False)[:, 0]


def image_units(subject: Subject, saliency: Tensor, granularity: str) -> Units:
    """Pixels of the map brought to the size of the image; or the cells of its own grid, as patches."""
    saliency = check_map(subject, saliency)
    height, width = subject.batch.pixels.shape[-2:]
    if granularity == "pixel":
        saliency = at_size(saliency, (height, width))
    rows, columns = saliency.shape[-2:]
    if height % rows or width % columns:
        raise ArgumentError(
            f"Expected a map whose grid divides images of {height}x{width} for granularity 'patch', but got "
            f"{rows}x{columns}; choose 'pixel'."
        )

    def spread(removed: Tensor, samples: Tensor) -> Tensor:
        cells = removed.view(-1, rows, columns)
        if (rows, columns) == (height, width):
            return cells
        return cells.repeat_interleave(height // rows, 1).repeat_interleave(width // columns, 2)

    number = torch.full((len(saliency),), rows * columns, device=saliency.device)
    return Units(saliency.flatten(1), number, None, spread)


def text_units(
    subject: Subject, saliency: Tensor, granularity: str, words: Words = "tokenizer", pooling: Pooling = "max"
) -> Units:
    """Tokens that are neither special nor padding; or words.

    Args:
        subject: The texts.
        saliency: Scores of tokens, (B, T).
        granularity: `"token"` or `"word"`.
        words: Which words; see `words_of`. A token that stands in several is removed with any of them.
        pooling: How the scores of tokens make that of their word; see `mhex._words.pool`.
    """
    saliency = check_map(subject, saliency)
    _, special = subject.batch.roles
    if saliency.shape != special.shape:
        raise ArgumentError(f"Expected maps of shape {tuple(special.shape)}, but got {tuple(saliency.shape)}.")
    if granularity != "word":
        return Units(saliency, (~special).sum(1), ~special, lambda removed, samples: removed)
    word_of, most = words_of(subject, words)  # (B, T, P)
    scores, counted = pool(saliency[..., None].expand(word_of.shape).flatten(1), word_of.flatten(1), most, pooling)

    def spread(removed: Tensor, samples: Tensor) -> Tensor:
        own = word_of[samples]
        return (removed.gather(1, own.clamp_min(0).flatten(1)).view(own.shape) & (own >= 0)).any(2)

    return Units(scores, counted.sum(1), counted, spread)
