"""From what users have (tensors, photos, strings, tokenizer outputs) to a checked batch."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from mhex._settings import check_that
from mhex.errors import ArgumentError, ArgumentTypeError
from mhex.inputs.data import in_batches
from mhex.inputs.image_batches import check_image, image_batch, photo_batch, with_window
from mhex.inputs.parts import InputParts
from mhex.inputs.photos import is_photo
from mhex.inputs.prepared import Prepared
from mhex.inputs.texts import text_batch, token_batch

__all__ = ["InputParts", "Prepared", "check_image", "in_batches", "prepare", "with_window"]


def prepare(
    model: nn.Module,
    inputs: Any,
    preprocess: Callable[[Any], Tensor] | None = None,
    tokenizer: Callable[..., Mapping[str, Any]] | None = None,
    ids: Sequence[int] | None = None,
    fill: bool = False,
    check_later: bool = False,
) -> Prepared:
    """Build a batch on the model's device and in its dtype. See `mhex.explain` for what `inputs` may be.

    `ids` are the numbers of the samples in the user's data, for messages; None for 0, 1, 2... Samples that hold NaN or
    infinity are refused; with `fill`, they are zero in the batch, and `Prepared.gaps` has their places. With
    `check_later` images on a GPU are not looked at, because it would have to be waited for: see `Prepared.unchecked`.
    """
    samples = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
    numbers = ids if ids is not None and len(ids) == len(samples) else range(len(samples))
    if not samples:
        raise ArgumentError("Expected at least one sample, but the batch is empty.")
    if all(isinstance(sample, str) for sample in samples):
        advice = "; this model reads photos, since it has a preprocessing and no tokenizer"
        check_that(tokenizer is not None or preprocess is None, "photos", "texts", advice)
        return text_batch(model, samples, tokenizer, numbers)
    if all(map(is_photo, samples)):
        advice = "; this model reads texts, since it has a tokenizer and no preprocessing"
        check_that(preprocess is not None or tokenizer is None, "texts", "photos", advice)
        return photo_batch(model, samples, preprocess, numbers, fill)
    if isinstance(inputs, Mapping):
        if "pixel_values" in inputs:
            arguments = {name: value for name, value in inputs.items() if name != "pixel_values"}
            return image_batch(model, inputs["pixel_values"], arguments, None, preprocess, ids, fill, check_later)
        if "input_ids" in inputs or "inputs_embeds" in inputs:
            return token_batch(model, inputs, tokenizer, fill)
        hint = "; sound is not explained" if {"input_values", "input_features"} & inputs.keys() else ""
        raise ArgumentError(f"Expected 'pixel_values' or 'input_ids' as a key, but got {list(inputs)}{hint}.")
    if isinstance(inputs, Tensor):
        if inputs.dim() == 2 and not inputs.is_floating_point():
            return token_batch(model, {"input_ids": inputs}, tokenizer)
        return image_batch(model, inputs, {}, None, preprocess, ids, fill, check_later)
    kinds = ", ".join(sorted({type(sample).__name__ for sample in samples}))
    kinds = f"a list of {kinds}" if isinstance(inputs, (list, tuple)) else kinds
    raise ArgumentTypeError(
        f"Expected a tensor, PIL images, strings or a dictionary of tokenizer outputs, but got {kinds}; turn arrays "
        "into tensors with torch.from_numpy, join tensors with torch.stack, and tokenize pairs of texts."
    )
