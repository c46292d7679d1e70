"""What is ranked and removed: pixels, cells, patches, tokens or words."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from mhex._settings import check_choice, check_that
from mhex.capture import Batch, plain_vit
from mhex.errors import ArgumentError
from mhex.inputs.words import POOLING, Pooling, Words, pool, words_of
from mhex.perturb.references import PIXELS, WORDS
from mhex.perturb.subject import Subject

Tie = Literal["random", "stable"]
CELLS = 8  # rows and columns of the grid of granularity "cell"
_SPREAD = 1_000_003  # a prime, so that seeds and numbers of samples do not meet
_GOLDEN, _FIRST, _SECOND = (n - 2**64 for n in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def generator_for(seed: int, number: int, purpose: int = 0) -> torch.Generator:
    """Random numbers that depend on the user's seed and the number of a sample alone, however samples are batched."""
    # Each purpose has a number, so that ties, boxes and noise of a sample are drawn apart from each other.
    return torch.Generator().manual_seed(((seed * _SPREAD + number) * _SPREAD + purpose) % 2**63)


def ranks(
    scores: Tensor, ids: Sequence[int], seed: int = 0, tie: Tie = "random", counted: Tensor | None = None
) -> Tensor:
    """Place of each unit when sorted by score (B, N), most important first: (B, N), whole numbers from 0 on.

    Ties are broken by (seed, id), so that a result does not depend on how samples are batched; or `"stable"`, in the
    order given, which takes whole rows of equal values first. Units that are never removed, where `counted`, bool
    (B, N), is False, come last.
    """
    check_choice("tie", tie, get_args(Tie))
    fits = scores.dim() == 2 and len(ids) == len(scores)
    check_that(fits, "scores (B, N) and a number for each sample", f"{tuple(scores.shape)} and {len(ids)}")
    size, units = scores.shape
    if counted is not None:
        scores = scores.masked_fill(~counted, -torch.inf)
    values, order = scores.sort(dim=1, descending=True, stable=True)
    equal = (values[:, 1:] == values[:, :-1]) & (values[:, 1:] > -torch.inf)
    if tie == "random" and bool(equal.any()):
        # A random order first, and then a stable sort: no difference where no two scores are equal.
        shuffled = unit_keys(seed, ids, scores, counted).argsort(dim=1)
        order = shuffled.gather(1, scores.gather(1, shuffled).argsort(dim=1, descending=True, stable=True))
    places = torch.arange(units, device=scores.device).expand(size, units)
    return torch.empty_like(order).scatter_(1, order, places)


def unit_keys(seed: int, ids: Sequence[int], scores: Tensor, counted: Tensor | None) -> Tensor:
    """A random whole number for each unit, (B, N), by seed, id and place alone: the same on every device."""
    # Mixed by the rounds of splitmix64. Of texts, places are counted among the units that count, whatever padding the
    # batch has beside them.
    place = torch.arange(scores.shape[1], device=scores.device).expand_as(scores)
    if counted is not None:
        place = counted.long().cumsum(1)
    start = [((seed * _SPREAD + int(i)) * _SPREAD) % 2**63 for i in ids]
    mixed = torch.tensor(start, device=scores.device)[:, None] + place * _GOLDEN
    for shift, factor in ((30, _FIRST), (27, _SECOND)):
        mixed = (mixed ^ _shifted(mixed, shift)) * factor
    return mixed ^ _shifted(mixed, 31)


def _shifted(number: Tensor, by: int) -> Tensor:
    """Bits moved to the right, zeros from the left: `>>` copies the sign."""
    return (number >> by) & ((1 << (64 - by)) - 1)


def removed_words(subject: Subject, reference: str, hidden: Tensor, samples: Tensor) -> Batch:
    """Inputs for the model without the tokens that are hidden, bool (M, T), of samples (M,).

    The reference `"mask_token"` puts the mask token's id there; with `"pad"` they are not attended to; with `"drop"`
    they are deleted, and the rest moves up, padded on the right to the longest.
    """
    batch = subject.batch.variants(subject.main[samples], samples)
    if reference == "mask_token":
        ids, token = subject.batch.kwargs.get("input_ids"), subject.batch.mask_id
        if ids is None or token is None:
            raise ArgumentError("Expected token ids and a mask token for 'mask_token'; choose 'drop' or 'pad'.")
        return replace(batch, kwargs={**batch.kwargs, "input_ids": ids[samples].masked_fill(hidden, token)})
    tokens, mask = subject.batch.roles[0][samples] & ~hidden, batch.kwargs.get("attention_mask")
    kind = torch.long if mask is None else mask.dtype
    if reference == "pad":
        return replace(batch, kwargs={**batch.kwargs, "attention_mask": tokens.to(kind)})
    order = (~tokens).long().argsort(dim=1, stable=True)[:, : int(tokens.sum(1).max())]
    real, rows = tokens.gather(1, order), torch.arange(len(order), device=order.device)[:, None]
    kwargs = {
        name: value[rows, order] if isinstance(value, Tensor) and value.shape[:2] == tokens.shape else value
        for name, value in batch.kwargs.items()
    }
    if subject.batch.pad_id is not None and kwargs.get("input_ids") is not None:
        kwargs["input_ids"] = kwargs["input_ids"].masked_fill(~real, subject.batch.pad_id)
    return replace(batch, kwargs={**kwargs, "attention_mask": real.to(kind)})


@dataclass(frozen=True)
class Units:
    """Units of a batch."""

    scores: Tensor  # importance, (B, N)
    number: Tensor  # how many units each sample has, (B,)
    counted: Tensor | None  # bool (B, N), False at units that are never removed; None if all are
    layout: tuple[int, ...]  # rows and columns of the units of images; empty for texts
    spread: Callable[[Tensor, Tensor], Tensor]  # removed units (M, N) of samples (M,) -> pixels or tokens


def check_map(subject: Subject, saliency: Tensor) -> Tensor:
    """A map of each sample, on their device; see `check_maps`."""
    image = None if subject.batch.modality == "text" else subject.batch.pixels.shape[-2:]
    return check_maps(saliency, subject.batch.size, image).to(subject.device)


def check_maps(saliency: Tensor, count: int, image: tuple[int, ...] | None) -> Tensor:
    """Maps (B, h, w), of texts (B, T), detached; refused if of another number, larger than the image, or not finite."""
    axes, expectation = (2, "(B, T)") if image is None else (3, "(B, H, W)")
    actual = tuple(saliency.shape) if isinstance(saliency, Tensor) else type(saliency).__name__
    right = isinstance(actual, tuple) and len(actual) == axes and actual[0] == count
    check_that(right, f"one map for each of {count} samples, of shape {expectation}", actual)
    if image is not None and not all(1 <= side <= most for side, most in zip(saliency.shape[1:], image, strict=True)):
        size, grid = ("x".join(map(str, shape)) for shape in (image, saliency.shape[1:]))
        raise ArgumentError(f"Expected maps of the size of the images, {size}, or on a coarser grid, but got {grid}.")
    check_that(bool(torch.isfinite(saliency).all()), "finite maps", "NaN or infinity")
    return saliency.detach()


def at_size(saliency: Tensor, size: tuple[int, int]) -> Tensor:
    """Maps (B, h, w) at the size of the image, bilinear."""
    if tuple(saliency.shape[-2:]) == tuple(size):
        return saliency
    return F.interpolate(saliency[:, None], size=size, mode="bilinear", align_corners=False)[:, 0]


def units_of(
    subject: Subject, saliency: Tensor, reference: str, granularity: str, words: Words, pooling: Pooling
) -> Units:
    """What a sweep ranks: pixels, cells of a grid, patches, tokens or words; see `PerturbationSweep`."""
    if subject.batch.modality == "text":
        check_choice("the reference of texts", reference, WORDS)
        check_choice("granularity of texts", granularity, ("token", "word"))
        return text_units(subject, saliency, granularity, words, pooling)
    patches = reference != "drop" or granularity == "patch"
    expectation = "granularity 'patch' for the reference 'drop' of images"
    check_that(patches, expectation, repr(granularity), ": whole patches are dropped")
    right = reference in (*PIXELS, "drop") and granularity in ("pixel", "cell", "patch")
    check_that(right, "a reference and a granularity of images", f"{reference!r} and {granularity!r}")
    saliency = check_map(subject, saliency)
    height, width = subject.batch.pixels.shape[-2:]
    if granularity == "patch":
        saliency = _on_patches(subject, saliency) if reference == "drop" else saliency
        expectation = f"a map whose grid divides images of {height}x{width} for granularity 'patch'"
        rows, columns = saliency.shape[-2:]
        check_that(height % rows == width % columns == 0, expectation, f"{rows}x{columns}", "; choose 'pixel'")
    else:
        saliency = at_size(saliency, (height, width))
        saliency = on_cells(saliency) if granularity == "cell" else saliency
    rows, columns = saliency.shape[-2:]
    down, across = (_cell_of(side, count, saliency.device) for side, count in ((height, rows), (width, columns)))

    def spread(removed: Tensor, samples: Tensor) -> Tensor:
        cells = removed.view(-1, rows, columns)
        return cells if (rows, columns) == (height, width) else cells[:, down][:, :, across]

    number = torch.full((len(saliency),), rows * columns, device=saliency.device)
    return Units(saliency.flatten(1), number, None, (rows, columns), spread)


def _cell_of(side: int, cells: int, device: torch.device) -> Tensor:
    """The cell of each pixel along a side, (side,), of as even cells as whole pixels allow."""
    return torch.arange(side, device=device) * cells // side


def on_cells(saliency: Tensor) -> Tensor:
    """Mean over each of 8 x 8 cells of maps (B, H, W), or over fewer of smaller images: (B, rows, columns)."""
    means = []
    for side in saliency.shape[-2:]:
        count = min(CELLS, side)
        member = F.one_hot(_cell_of(side, count, saliency.device), count).to(saliency)
        means.append(member / member.sum(0))
    return torch.einsum("bhw,hr,wc->brc", saliency, *means)


def _on_patches(subject: Subject, saliency: Tensor) -> Tensor:
    """Maps (B, h, w) on the patches of a plain Vision Transformer; of a finer grid, the mean over each patch."""
    rows, columns = plain_vit(subject.model).grid(*subject.batch.pixels.shape[-2:])
    height, width = saliency.shape[-2:]
    expectation = f"maps on the grid of the model's patches, {rows}x{columns}, or a finer one that it divides, for "
    check_that(height % rows == width % columns == 0, f"{expectation}the reference 'drop'", f"{height}x{width}")
    return F.avg_pool2d(saliency[:, None], (height // rows, width // columns))[:, 0]


def text_units(
    subject: Subject, saliency: Tensor, granularity: str, words: Words = "tokenizer", pooling: Pooling = POOLING
) -> Units:
    """Tokens that are neither special nor padding, by their scores (B, T); or words, as `mhex.inputs.words` has them.

    A token that stands in several words is removed with any of them.
    """
    saliency = check_map(subject, saliency)
    _, special = subject.batch.roles
    check_that(saliency.shape == special.shape, f"maps of shape {tuple(special.shape)}", tuple(saliency.shape))
    if granularity != "word":
        return Units(saliency, (~special).sum(1), ~special, (), lambda removed, samples: removed)
    key = f"words of {words}"
    if key not in subject.shared:
        subject.shared[key] = words_of(subject.prepared, words)
    word_of, most = subject.shared[key]  # (B, T, P), and the most words of a text
    scores, valid = pool(saliency[..., None].expand(word_of.shape).flatten(1), word_of.flatten(1), most, pooling)

    def spread(removed: Tensor, samples: Tensor) -> Tensor:
        words: Tensor = word_of[samples]
        return (removed.gather(1, words.clamp_min(0).flatten(1)).view(words.shape) & (words >= 0)).any(2)

    return Units(scores, valid.sum(1), valid, (), spread)
