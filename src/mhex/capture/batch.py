"""A checked batch of inputs, ready to be given to a model."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from mhex.capture.anatomy import Anatomy, Modality
from mhex.errors import ArgumentError, ArgumentTypeError


def full(tensor: Tensor) -> Tensor:
    """The tensor in at least float32; its graph, if it has one, goes on."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


@dataclass(frozen=True)
class Batch:
    """What the model is called with, and the roles of its tokens.

    Attributes:
        modality: Image or text.
        args: Positional arguments of the model; for images `(pixels,)`.
        kwargs: Keyword arguments; for text `input_ids`, `attention_mask`...
        size: Number of samples B.
        real: Text only: bool (B, T), False at padding.
        special: Text only: bool (B, T), True at class, separator and padding tokens.
        mask_id: Text only: the token that stands for a hidden one, if the tokenizer has one.
        pad_id: Text only: the padding token, if it is known.
        alone: Text only: True if the model takes one sample at a time.
        kept: Images only: bool (B, P), the patches that a plain Vision Transformer is given; None for all of them.
        scale: Images only: mean and spread (C,) by which colours from 0 to 1 were normalised, if they are known.
    """

    modality: Modality
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    size: int = 0
    real: Tensor | None = None
    special: Tensor | None = None
    mask_id: int | None = None
    pad_id: int | None = None
    alone: bool = False
    kept: Tensor | None = None
    scale: tuple[Tensor, Tensor] | None = None

    @property
    def pixels(self) -> Tensor:
        """The image batch, (B, C, H, W)."""
        image = self.args[0]
        if not isinstance(image, Tensor):
            raise ArgumentTypeError("Expected a batch of images, but got texts.")
        return image

    @property
    def roles(self) -> tuple[Tensor, Tensor]:
        """Of texts: bool (B, T), False at padding; and bool (B, T), True at class, separator and padding tokens."""
        if self.real is None or self.special is None:
            raise ArgumentTypeError("Expected a batch of texts, but got images.")
        return self.real, self.special

    def first(self) -> Batch:
        """The first sample alone, copied, because the model may write into it; `size` and token roles stay."""

        def one(value: Any) -> Any:
            return value[:1].clone() if isinstance(value, Tensor) and value.dim() and len(value) == self.size else value

        return replace(self, args=tuple(map(one, self.args)), kwargs={k: one(v) for k, v in self.kwargs.items()})

    def with_input(self, value: Tensor) -> Batch:
        """The same batch with other pixels, or with word embeddings instead of token ids."""
        if self.modality == "image":
            return replace(self, args=(value, *self.args[1:]))
        kwargs = {k: v for k, v in self.kwargs.items() if k != "input_ids"}
        return replace(self, kwargs={**kwargs, "inputs_embeds": value})

    def variants(self, value: Tensor, samples: Tensor | None = None) -> Batch:
        """Changed samples, any number of them.

        Args:
            value: Images (M, C, H, W), token ids (M, T) or, where the model was given word embeddings, those (M, T, D).
                Embeddings in place of token ids enter elsewhere: here the ids are those of the samples.
            samples: Whose variant each row is, (M,), so that every argument with one row per sample goes with it.
                None: of nobody in particular, where images are all that is given; of texts, one for each sample.
        """
        if samples is None and self.modality == "text":
            samples = torch.arange(self.size, device=value.device)
        if samples is None:
            self._check_alone()
        elif len(samples) != len(value):
            raise ArgumentError(f"Expected a sample for each of {len(value)} variants, but got {len(samples)}.")

        def rows(given: Any) -> Any:
            if samples is None or not isinstance(given, Tensor) or not given.dim() or len(given) != self.size:
                return given
            return given.index_select(0, samples.to(given.device))

        kwargs = {name: rows(given) for name, given in self.kwargs.items()}
        if self.modality == "image":
            args = (value, *map(rows, self.args[1:]))
        else:
            args = tuple(map(rows, self.args))
            if not value.is_floating_point():
                kwargs["input_ids"] = value
            elif self.kwargs.get("input_ids") is None:
                kwargs["inputs_embeds"] = value
        return replace(self, args=args, kwargs=kwargs, size=len(value))

    def _check_alone(self) -> None:
        per_sample = [name for name, value in self.kwargs.items() if isinstance(value, Tensor) and value.dim()]
        if per_sample:
            raise ArgumentError(
                f"Expected images alone, but the model is also given {', '.join(per_sample)}, which cannot be repeated "
                "for changed images; say whose variants they are, or leave them out."
            )

    def tokens(self, anatomy: Anatomy) -> int | None:
        """Number of tokens N that the model will make of it; None if it has none, or that is not known."""
        if self.real is not None:
            return self.real.shape[1]
        if anatomy.patch is None:
            return None
        rows, columns = anatomy.grid(*self.pixels.shape[-2:])
        return anatomy.prefix_tokens + rows * columns

    def spatial(self, tokens: int, prefix: int) -> Tensor:
        """Bool (B, N): True at patches, or at words that are neither special nor padding."""
        if self.special is not None:
            return ~self.special
        device = self.pixels.device
        return (torch.arange(tokens, device=device) >= prefix).expand(self.size, tokens)
