"""Which tokens count: masks of every kind that models pass around, told apart by their names and shapes."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from mhex.errors import CaptureError

_KEEPING = ("attention_mask",)  # True, 1, or 0 added to attention scores: the token counts
_PADDING = ("key_padding_mask", "src_key_padding_mask", "padding_mask")  # True, 1, or a number added: it does not
_LOOKING = ("attn_mask",)  # what each query may look at; says something of padding only if all queries share it
MASKS = (*_KEEPING, *_PADDING, *_LOOKING)


def tells_padding(names: Iterable[str]) -> bool:
    """True if an argument of one of these names says which tokens are padding."""
    return any(name in (*_KEEPING, *_PADDING) for name in names)


def mask_arguments(module: nn.Module) -> dict[str, int]:
    """Arguments of a module's forward that say which tokens are padding: their names, and places among the others."""
    names = list(inspect.signature(type(module).forward).parameters)[1:]
    return {name: place for place, name in enumerate(names) if tells_padding([name])}


def kept_tokens(
    masks: Mapping[str, Any], above: Mapping[str, Any], batch: int, tokens: int, unit: str = "a unit"
) -> tuple[Tensor | None, bool]:
    """Which tokens count, by the masks that a unit was called with, or else by those that its model was called with.

    Args:
        masks: Arguments of the unit whose names are among `MASKS`.
        above: Those of the whole model.
        batch: B.
        tokens: T.
        unit: Its name, for messages.

    Returns:
        Bool (B, T), True at tokens that count, or None if all do; and whether only the masks `above` said so.

    Raises:
        CaptureError: A mask of the model does not fit the unit's tokens, or cannot be told from one of another kind.
    """
    found: Tensor | None = None  # read off what each query may look at: right, but for rows that look at everything
    told = square = False
    for name, mask in masks.items():
        if mask is None:
            told |= tells_padding([name])
        elif isinstance(mask, Tensor) and _is_square(name, mask, batch, tokens):
            square = True
        elif isinstance(mask, Tensor) and _fits(name, mask, batch, tokens):
            found = _kept(name, mask).expand(batch, tokens)
            if mask.dim() == 2 or mask.shape[-2] == 1:
                return found, False
    given = {name: mask for name, mask in above.items() if mask is not None}
    if given and not told:
        return _from_above(given, batch, tokens, unit), found is None and not square
    if square and not told:
        raise CaptureError(
            f"{unit} was called with an attention_mask of shape ({tokens}, {tokens}) and {batch} samples, so it cannot "
            "be told whether its rows are samples or queries: pass it as (B, 1, 1, T), or use another batch size."
        )
    return found, False


def _from_above(given: Mapping[str, Any], batch: int, tokens: int, unit: str) -> Tensor:
    for name, mask in given.items():
        if isinstance(mask, Tensor) and _fits(name, mask, batch, tokens):
            return _kept(name, mask).expand(batch, tokens)
    name, mask = next(iter(given.items()))
    came = tuple(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
    raise CaptureError(
        f"Expected a mask of shape ({batch}, {tokens}) for the tokens of {unit}, but the model was called with a "
        f"{name} of {came} and hands the unit none: leave the unit out with where=[...], or hand it an attention_mask."
    )


def _is_square(name: str, mask: Tensor, batch: int, tokens: int) -> bool:
    """True for a mask whose rows may be samples as well as queries."""
    return name in _KEEPING and mask.dim() == 2 and batch == tokens and tuple(mask.shape) == (batch, tokens)


def _fits(name: str, mask: Tensor, batch: int, tokens: int) -> bool:
    """True if a mask of this name and shape says of each sample which of its tokens count."""
    ranks = {**dict.fromkeys(_KEEPING, (2, 3, 4)), **dict.fromkeys(_PADDING, (2,)), **dict.fromkeys(_LOOKING, (4,))}
    shared = mask.dim() > 2 and mask.shape[-2] == 1 and mask.shape[0] == 1  # of one row for all samples and queries
    return mask.dim() in ranks[name] and mask.shape[-1] == tokens and (mask.shape[0] == batch or shared)


def _kept(name: str, mask: Tensor) -> Tensor:
    """Bool (B, T): True at tokens that count; of one row per query, at those that any query may look at."""
    if name in _PADDING:
        return mask == 0
    kept = mask.bool()
    if mask.is_floating_point():  # of 0 and 1, or of 0 and large negative numbers that are added to attention scores
        kept = torch.where((mask > 0).flatten(1).any(1).reshape([-1] + [1] * (mask.dim() - 1)), mask > 0, mask >= 0)
    return kept if kept.dim() == 2 else kept.flatten(1, -2).any(1)


def first_and_last(ids: Tensor, real: Tensor) -> Tensor:
    """Bool (B, T): True at the first and the last real token of each sample, and at others with one of their ids.

    In BERT-like models these are the class and the separator token.

    Args:
        ids: Token ids, (B, T).
        real: Bool (B, T), False at padding.
    """
    last = real.shape[1] - 1 - real.flip(1).int().argmax(1)
    first = real.int().argmax(1)
    ends = torch.stack([ids.gather(1, first[:, None])[:, 0], ids.gather(1, last[:, None])[:, 0]], 1)
    return (ids[:, :, None] == ends[:, None, :]).any(-1) & real
