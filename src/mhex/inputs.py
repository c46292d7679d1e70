"""From what users have (tensors, photos, strings, tokenizer outputs) to a checked batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mhex.capture import Anatomy, Batch
from mhex.errors import ArgumentError, ArgumentTypeError

_NOT_FOR_THE_MODEL = ("special_tokens_mask", "offset_mapping", "length", "overflow_to_sample_mapping")


@dataclass(frozen=True)
class Prepared:
    """A batch and what is needed to show it.

    Attributes:
        batch: For the model.
        pictures: Images: the PIL images given, or the tensor given.
        tokens: Text: the tokens of each sample, padding left out.
        words: Text: for each token the index of its word, None at special tokens; None without a fast tokenizer.
    """

    batch: Batch
    pictures: Any = None
    tokens: list[list[str]] | None = None
    words: list[list[int | None]] | None = None


def prepare(
    model: nn.Module,
    inputs: Any,
    preprocess: Callable[[Any], Tensor] | None = None,
    tokenizer: Callable[..., Mapping[str, Any]] | None = None,
) -> Prepared:
    """Build a batch on the model's device and in its dtype. See `mhex.explain` for what `inputs` may be."""
    if isinstance(inputs, str) or (
        isinstance(inputs, (list, tuple)) and inputs and all(isinstance(i, str) for i in inputs)
    ):
        return _texts(model, [inputs] if isinstance(inputs, str) else list(inputs), tokenizer)
    if isinstance(inputs, (list, tuple)) and not inputs:
        raise ArgumentError("Expected at least one sample, but the batch is empty.")
    if _is_picture(inputs) or (isinstance(inputs, (list, tuple)) and all(map(_is_picture, inputs))):
        return _pictures(model, [inputs] if _is_picture(inputs) else list(inputs), preprocess)
    if isinstance(inputs, Mapping):
        if "pixel_values" in inputs:
            rest = {k: v for k, v in inputs.items() if k != "pixel_values"}
            return _images(model, inputs["pixel_values"], rest)
        if "input_ids" in inputs or "inputs_embeds" in inputs:
            return _token_inputs(model, inputs, tokenizer)
        raise ArgumentError(f"Expected 'pixel_values' or 'input_ids' in the inputs, but got the keys {list(inputs)}.")
    if isinstance(inputs, Tensor):
        if inputs.dim() == 2 and not inputs.is_floating_point():
            return _token_inputs(model, {"input_ids": inputs}, tokenizer)
        return _images(model, inputs, {})
    raise ArgumentTypeError(
        "Expected a tensor, PIL images, strings or a dictionary of tokenizer outputs, but got "
        f"{type(inputs).__name__}; turn arrays into tensors with torch.from_numpy."
    )


def check_image(batch: Batch, anatomy: Anatomy) -> None:
    """Refuse images that the model cannot take, before it runs."""
    _, channels, height, width = batch.pixels.shape
    if anatomy.channels is not None and channels != anatomy.channels:
        raise ArgumentError(
            f"Expected images of {anatomy.channels} channels for this {anatomy.family}, but got {channels}."
        )
    fits_any_size = bool(batch.kwargs.get("interpolate_pos_encoding"))
    if anatomy.image_size is not None and not fits_any_size and (height, width) != anatomy.image_size:
        wanted = "x".join(map(str, anatomy.image_size))
        raise ArgumentError(
            f"Expected images of {wanted} pixels for this {anatomy.family}, but got {height}x{width}; resize them."
        )
    rows, columns = anatomy.patch or (1, 1)
    if not anatomy.pads_image and (height % rows or width % columns):
        raise ArgumentError(
            f"Expected image sides that are multiples of the patch size {rows}x{columns}, but got {height}x{width}; "
            "resize them."
        )


def _is_picture(value: Any) -> bool:
    # PIL images are told by their class, so that PIL is not imported for users of tensors.
    return any(c.__module__ == "PIL.Image" and c.__name__ == "Image" for c in type(value).__mro__)


def _place(model: nn.Module) -> tuple[torch.device, torch.dtype]:
    floating = next((p for p in model.parameters() if p.is_floating_point()), None)
    return (torch.device("cpu"), torch.get_default_dtype()) if floating is None else (floating.device, floating.dtype)


def _finite(x: Tensor, what: str) -> Tensor:
    if not bool(torch.isfinite(x).all()):
        raise ArgumentError(f"Expected finite {what}, but they hold NaN or infinity; check how they were normalised.")
    # Tensors made under inference_mode cannot enter a graph; a copy made outside of it can.
    with torch.inference_mode(False):
        return x.clone() if x.is_inference() else x.detach()


def _images(model: nn.Module, x: Any, kwargs: dict[str, Any], pictures: Any = None) -> Prepared:
    if not isinstance(x, Tensor):
        raise ArgumentTypeError(f"Expected an image tensor, but got {type(x).__name__}.")
    if x.dim() != 4:
        hint = "; add a batch axis with x[None]" if x.dim() == 3 else ""
        raise ArgumentError(
            f"Expected images of shape (batch, channels, height, width), but got {tuple(x.shape)}{hint}."
        )
    if x.shape[0] == 0:
        raise ArgumentError("Expected at least one sample, but the batch is empty.")
    if not x.is_floating_point():
        raise ArgumentTypeError(
            f"Expected floating-point images, scaled and normalised as in training, but got {x.dtype}; "
            "for raw photos pass PIL images and preprocess=."
        )
    device, dtype = _place(model)
    x = _finite(x, "images")
    batch = Batch("image", (x.to(device, dtype),), kwargs, x.shape[0])
    return Prepared(batch, pictures=x if pictures is None else pictures)


def _pictures(model: nn.Module, pictures: list[Any], preprocess: Callable[[Any], Tensor] | None) -> Prepared:
    if preprocess is None:
        raise ArgumentError(
            "PIL images were given without preprocess=, which turns one into a tensor (C, H, W) as in training."
        )
    tensors = [preprocess(picture.convert("RGB")) for picture in pictures]
    shapes = {tuple(t.shape) for t in tensors}
    if len(shapes) != 1:
        raise ArgumentError(
            f"Expected preprocess to give images of one shape, but it gave {sorted(shapes)}; resize in it."
        )
    return _images(model, torch.stack(tensors), {}, pictures)


def _texts(model: nn.Module, texts: list[str], tokenizer: Callable[..., Mapping[str, Any]] | None) -> Prepared:
    if tokenizer is None:
        raise ArgumentError("Strings were given without tokenizer=, which turns them into the model's inputs.")
    if blank := [i for i, text in enumerate(texts) if not text.strip()]:
        raise ArgumentError(f"Expected some text in every sample, but sample {blank[0]} is blank.")
    longest = _longest_text(model)
    options = {"truncation": True, "max_length": longest} if longest else {}
    return _token_inputs(model, tokenizer(texts, return_tensors="pt", padding=True, **options), tokenizer)


def _longest_text(model: nn.Module) -> int | None:
    config: Any = getattr(model, "config", None)
    positions = getattr(config, "max_position_embeddings", None)
    if not isinstance(positions, int):
        return None
    # RoBERTa numbers its positions from padding_idx + 1 on.
    offset = int(config.pad_token_id) + 1 if getattr(config, "model_type", "") == "roberta" else 0
    return positions - offset


def _token_inputs(model: nn.Module, inputs: Mapping[str, Any], tokenizer: Any) -> Prepared:
    device, dtype = _place(model)
    main = inputs["inputs_embeds"] if inputs.get("input_ids") is None else inputs["input_ids"]
    if not isinstance(main, Tensor):
        raise ArgumentTypeError(
            f"Expected tensors of token ids, but got {type(main).__name__}; tokenize with return_tensors='pt'."
        )
    if main.dim() != (3 if main.is_floating_point() else 2):
        raise ArgumentError(f"Expected token ids of shape (batch, tokens), but got {tuple(main.shape)}.")
    if main.shape[0] == 0 or main.shape[1] == 0:
        raise ArgumentError("Expected at least one sample and one token, but the batch is empty.")
    longest = _longest_text(model)
    if longest and main.shape[1] > longest:
        raise ArgumentError(
            f"Expected at most {longest} tokens for this model, but got {main.shape[1]}; truncate the text."
        )
    kwargs: dict[str, Any] = {}
    for name, value in inputs.items():
        if name in _NOT_FOR_THE_MODEL:
            continue
        if isinstance(value, Tensor):
            value = (
                _finite(value, name).to(device)
                if not value.is_floating_point()
                else _finite(value, name).to(device, dtype)
            )
        kwargs[name] = value
    ids = kwargs.get("input_ids")
    _check_vocabulary(model, ids)
    mask = kwargs.get("attention_mask")
    real = torch.ones(main.shape[:2], dtype=torch.bool, device=device) if mask is None else mask.bool()
    if not bool(real.any(1).all()):
        raise ArgumentError(
            "Expected at least one real token in every sample, but the attention mask of one is all zero."
        )
    special = _special(ids, real, inputs.get("special_tokens_mask"), tokenizer)
    batch = Batch("text", (), kwargs, main.shape[0], real=real, special=special)
    return Prepared(batch, tokens=_token_strings(ids, real, tokenizer), words=_word_indices(inputs, real))


def _check_vocabulary(model: nn.Module, ids: Tensor | None) -> None:
    size = getattr(getattr(model, "config", None), "vocab_size", None)
    if ids is not None and isinstance(size, int) and (int(ids.min()) < 0 or int(ids.max()) >= size):
        raise ArgumentError(
            f"Expected token ids from 0 to {size - 1}, but got {int(ids.min())} to {int(ids.max())}; "
            "the tokenizer does not belong to this model."
        )


def _special(ids: Tensor | None, real: Tensor, given: Any, tokenizer: Any) -> Tensor:
    """True at class, separator and padding tokens (unknown words are words).

    Without a tokenizer or a mask, the first and the last real token of each sample are taken for its class and
    separator token, and so is every other token with one of their ids.
    """
    if isinstance(given, Tensor):
        return given.to(real.device).bool() | ~real
    if ids is None:
        first_or_last = torch.zeros_like(real)
        first_or_last[:, 0] = True
        return first_or_last | ~real
    names = ("cls_token_id", "sep_token_id", "bos_token_id", "eos_token_id", "pad_token_id")
    known = [i for name in names if isinstance(i := getattr(tokenizer, name, None), int)]
    if known:
        return torch.isin(ids, torch.tensor(known, device=ids.device)) | ~real
    last = real.shape[1] - 1 - real.flip(1).int().argmax(1)
    first = real.int().argmax(1)
    ends = torch.stack([ids.gather(1, first[:, None])[:, 0], ids.gather(1, last[:, None])[:, 0]], 1)
    return (ids[:, :, None] == ends[:, None, :]).any(-1) | ~real


def _token_strings(ids: Tensor | None, real: Tensor, tokenizer: Any) -> list[list[str]] | None:
    if ids is None or not hasattr(tokenizer, "convert_ids_to_tokens"):
        return None
    return [tokenizer.convert_ids_to_tokens(row[keep].tolist()) for row, keep in zip(ids, real, strict=True)]


def _word_indices(inputs: Any, real: Tensor) -> list[list[int | None]] | None:
    if not getattr(inputs, "is_fast", False):
        return None
    return [
        [word for word, keep in zip(inputs.word_ids(n), row.tolist(), strict=True) if keep]
        for n, row in enumerate(real)
    ]
