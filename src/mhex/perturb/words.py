"""Texts without some of their tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from mhex.capture import Batch
from mhex.errors import ArgumentError
from mhex.perturb.subject import Subject


def removed_words(subject: Subject, reference: str, hidden: Tensor, samples: Tensor) -> Batch:
    """Inputs for the model.

    Args:
        subject: The texts.
        reference: `"mask_token"`: the mask token's id stands there; `"pad"`: they are not attended to; `"drop"`: they
            are deleted, and the rest moves up.
        hidden: Bool (M, T), True at what is removed.
        samples: Whose variant each row is, (M,).
    """
    batch = subject.batch.variants(subject.main[samples], samples)
    if reference == "mask_token":
        return replace(batch, kwargs={**batch.kwargs, "input_ids": _masked(subject, hidden, samples)})
    real, _ = subject.batch.roles
    kept = real[samples] & ~hidden
    if reference == "pad":
        mask = batch.kwargs.get("attention_mask")
        kind = torch.long if mask is None else mask.dtype
        return replace(batch, kwargs={**batch.kwargs, "attention_mask": kept.to(kind)})
    return _shortened(batch, kept, subject.batch.pad_id)


def _masked(subject: Subject, hidden: Tensor, samples: Tensor) -> Tensor:
    ids, mask = subject.batch.kwargs.get("input_ids"), subject.batch.mask_id
    if ids is None or mask is None:
        raise ArgumentError(
            "Expected token ids and a tokenizer with a mask token for 'mask_token'; choose 'drop' or 'pad'."
        )
    found: Tensor = ids[samples].masked_fill(hidden, mask)
    return found


def _shortened(batch: Batch, kept: Tensor, pad: int | None) -> Batch:
    """Rows with the kept tokens alone, moved up, padded on the right to the longest."""
    order = (~kept).long().argsort(dim=1, stable=True)[:, : int(kept.sum(1).max())]
    real = kept.gather(1, order)

    def cut(value: Any) -> Any:
        if not isinstance(value, Tensor) or value.shape[:2] != kept.shape:
            return value
        place = order if value.dim() == 2 else order[..., None].expand(-1, -1, value.shape[2])
        return value.gather(1, place)

    kwargs = {name: cut(value) for name, value in batch.kwargs.items()}
    if pad is not None and kwargs.get("input_ids") is not None:
        kwargs["input_ids"] = kwargs["input_ids"].masked_fill(~real, pad)
    mask = kwargs.get("attention_mask")
    kwargs["attention_mask"] = real.to(torch.long if mask is None else mask.dtype)
    return replace(batch, kwargs=kwargs)
