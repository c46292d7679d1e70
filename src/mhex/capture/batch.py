"""A checked batch of inputs, ready to be given to a model, and the masks that say which of its tokens count."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from mhex.capture.anatomy import Anatomy, Modality
from mhex.errors import ArgumentError, ArgumentTypeError, CaptureError

# Masks by the names and shapes that models have for them, with the numbers of axes by which they speak of padding.
_KEEPING = {"attention_mask": (2, 3, 4)}  # True, 1, or 0 added to attention scores: the token counts
_PADDING = dict.fromkeys(("key_padding_mask", "src_key_padding_mask", "padding_mask"), (2,))  # the other way round
_LOOKING = {"attn_mask": (4,)}  # what each query may look at; says something of padding only if all queries share it
MASKS = {**_KEEPING, **_PADDING, **_LOOKING}


def full(tensor: Tensor) -> Tensor:
    """The tensor in at least float32; its graph, if it has one, goes on."""
    return tensor if tensor.dtype == torch.float32 else tensor.to(torch.promote_types(tensor.dtype, torch.float32))


@dataclass(frozen=True)
class Batch:
    """What the model is called with, and the roles of its tokens."""

    modality: Modality  # image or text
    args: tuple[Any, ...] = ()  # positional arguments of the model; for images `(pixels,)`
    kwargs: dict[str, Any] = field(default_factory=dict)  # keyword arguments; for text `input_ids`, `attention_mask`
    size: int = 0  # number of samples B
    real: Tensor | None = None  # text only: bool (B, T), False at padding
    special: Tensor | None = None  # text only: bool (B, T), True at class, separator and padding tokens
    mask_id: int | None = None  # text only: the token that stands for a hidden one, if the tokenizer has one
    pad_id: int | None = None  # text only: the padding token, if it is known
    alone: bool = False  # text only: True if the model takes one sample at a time
    # Images only: bool (B, P), the patches that a plain Vision Transformer is given; None for all of them.
    patches: Tensor | None = None
    # Images only: mean and spread (C,) by which colours from 0 to 1 were normalised, if they are known.
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
        """`real` and `special` of a batch of texts; images are refused."""
        if self.real is None or self.special is None:
            raise ArgumentTypeError("Expected a batch of texts, but got images.")
        return self.real, self.special

    def copied(self) -> Batch:
        """The same batch with a copy of its images, because the model may write into them."""
        return self.with_input(self.pixels.clone()) if self.modality == "image" else self

    def first(self) -> Batch:
        """The first sample alone, copied, because the model may write into it; `size` and token roles stay."""

        def cut(value: Any) -> Any:
            return value[:1].clone() if self._is_per_sample(value) else value

        return replace(self, args=tuple(map(cut, self.args)), kwargs={k: cut(v) for k, v in self.kwargs.items()})

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
                None if images are all that is given, or if there is one text for each sample.
        """
        if samples is None and self.modality == "text":
            samples = torch.arange(self.size, device=value.device)
        if samples is None:
            names = [name for name, argument in self.kwargs.items() if isinstance(argument, Tensor) and argument.dim()]
            if names:
                raise ArgumentError(
                    f"Expected images alone, but the model is also given {', '.join(names)}, which cannot be repeated "
                    "for changed images; say whose variants they are, or leave them out."
                )
        elif len(samples) != len(value):
            raise ArgumentError(f"Expected a sample for each of {len(value)} variants, but got {len(samples)}.")

        def rows(argument: Any) -> Any:
            if samples is None or not self._is_per_sample(argument):
                return argument
            return argument.index_select(0, samples.to(argument.device))

        kwargs = {name: rows(argument) for name, argument in self.kwargs.items()}
        if self.modality == "image":
            args = (value, *map(rows, self.args[1:]))
        else:
            args = tuple(map(rows, self.args))
            if not value.is_floating_point():
                kwargs["input_ids"] = value
            elif self.kwargs.get("input_ids") is None:
                kwargs["inputs_embeds"] = value
        return replace(self, args=args, kwargs=kwargs, size=len(value))

    def _is_per_sample(self, argument: Any) -> bool:
        return isinstance(argument, Tensor) and argument.dim() > 0 and len(argument) == self.size

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
        return (torch.arange(tokens, device=self.pixels.device) >= prefix).expand(self.size, tokens)


def tells_padding(names: Iterable[str]) -> bool:
    """True if an argument of one of these names says which tokens are padding."""
    return any(name in _KEEPING or name in _PADDING for name in names)


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
        batch: Number of samples B.
        tokens: Number of tokens T. Masks of the model that do not fit them are refused, and those that may be another.
        unit: Its name, for messages.

    Returns:
        Bool (B, T), True at tokens that count, or None if all do; and whether only the masks `above` said so.
    """
    real: Tensor | None = None  # read off what each query may look at: right, but for rows that look at everything
    no_padding = square = False
    for name, mask in masks.items():
        if mask is None:
            no_padding |= tells_padding([name])
        elif (
            isinstance(mask, Tensor)
            and name in _KEEPING
            and mask.dim() == 2  # comparing more sizes would tie an exported program to its batch size
            and mask.shape == (tokens, tokens) == (batch, batch)
        ):
            square = True  # rows may be samples as well as queries
        elif _fits(name, mask, batch, tokens):
            real = _counted(name, mask).expand(batch, tokens)
            if mask.dim() == 2 or mask.shape[-2] == 1:
                return real, False
    of_model = {name: mask for name, mask in above.items() if mask is not None}
    if of_model and not no_padding:
        fitting = [(name, mask) for name, mask in of_model.items() if _fits(name, mask, batch, tokens)]
        if fitting:
            return _counted(*fitting[0]).expand(batch, tokens), real is None and not square
        name, mask = next(iter(of_model.items()))
        came = tuple(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
        raise CaptureError(
            f"Expected a mask of shape ({batch}, {tokens}) for the tokens of {unit}, but the model was called with a "
            f"{name} of {came} and hands the unit none: leave the unit out with where=[...], or hand it an "
            "attention_mask."
        )
    if square and not no_padding:
        raise CaptureError(
            f"{unit} was called with an attention_mask of shape ({tokens}, {tokens}) and {batch} samples, so it cannot "
            "be told whether its rows are samples or queries: pass it as (B, 1, 1, T), or use another batch size."
        )
    return real, False


def _fits(name: str, mask: Any, batch: int, tokens: int) -> bool:
    """True if a mask of this name and shape says of each sample which of its tokens count."""
    if not isinstance(mask, Tensor) or mask.dim() not in MASKS[name] or mask.shape[-1] != tokens:
        return False
    shared = mask.dim() > 2 and mask.shape[-2] == 1 and mask.shape[0] == 1  # of one row for all samples and queries
    return mask.shape[0] == batch or shared


def _counted(name: str, mask: Tensor) -> Tensor:
    """Bool (B, T): True at tokens that count; of one row per query, at those that any query may look at."""
    if name in _PADDING:
        return mask == 0
    real = mask.bool()
    if mask.is_floating_point():  # of 0 and 1, or of 0 and large negative numbers that are added to attention scores
        positive = mask > 0
        real = torch.where(positive.flatten(1).any(1).reshape([-1] + [1] * (mask.dim() - 1)), positive, mask >= 0)
    return real if real.dim() == 2 else real.flatten(1, -2).any(1)


def first_and_last(ids: Tensor, real: Tensor) -> Tensor:
    """Bool (B, T): True at the first and the last `real` token of each sample, and at others with one of their ids."""
    # In BERT-like models these are the class and the separator token.
    first, last = real.int().argmax(1), real.shape[1] - 1 - real.flip(1).int().argmax(1)
    ends = ids.gather(1, torch.stack([first, last], 1))
    return (ids[:, :, None] == ends[:, None, :]).any(-1) & real
