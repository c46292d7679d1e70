"""From what users have (tensors, photos, strings, tokenizer outputs) to a checked batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from mhex.errors import ArgumentError, ArgumentTypeError
from mhex.inputs.batching import in_batches
from mhex.inputs.images import check_image, images, photos, with_scale, with_window
from mhex.inputs.prepared import Prepared
from mhex.inputs.texts import texts, token_inputs

__all__ = ["Prepared", "check_image", "in_batches", "prepare", "with_window"]


def prepare(
    model: nn.Module,
    inputs: Any,
    preprocess: Callable[[Any], Tensor] | None = None,
    tokenizer: Callable[..., Mapping[str, Any]] | None = None,
    ids: Sequence[int] | None = None,
) -> Prepared:
    """Build a batch on the model's device and in its dtype. See `mhex.explain` for what `inputs` may be.

    `ids` are the numbers of the samples in the user's data, for messages; None for 0, 1, 2...
    """
    prepared = _prepare(model, inputs, preprocess, tokenizer, ids)
    return with_scale(prepared, preprocess) if prepared.batch.modality == "image" else prepared


def _prepare(
    model: nn.Module,
    inputs: Any,
    preprocess: Callable[[Any], Tensor] | None,
    tokenizer: Callable[..., Mapping[str, Any]] | None,
    ids: Sequence[int] | None,
) -> Prepared:
    if isinstance(inputs, str) or (
        isinstance(inputs, (list, tuple)) and inputs and all(isinstance(i, str) for i in inputs)
    ):
        if tokenizer is None and preprocess is not None:
            raise ArgumentError(
                "The data are texts, and this model reads photos; choose data of photos, or a model of texts. A photo "
                "is given as PIL.Image.open(path), not by its path."
            )
        strings = [inputs] if isinstance(inputs, str) else list(inputs)
        return texts(model, strings, tokenizer, _numbers(ids, strings))
    if isinstance(inputs, (list, tuple)) and not inputs:
        raise ArgumentError("Expected at least one sample, but the batch is empty.")
    if _is_picture(inputs) or (isinstance(inputs, (list, tuple)) and all(map(_is_picture, inputs))):
        if preprocess is None and tokenizer is not None:
            raise ArgumentError("The data are photos, and this model reads texts; choose texts, or a model of photos.")
        pictures = [inputs] if _is_picture(inputs) else list(inputs)
        return photos(model, pictures, preprocess, _numbers(ids, pictures))
    if isinstance(inputs, Mapping):
        if "pixel_values" in inputs:
            rest = {k: v for k, v in inputs.items() if k != "pixel_values"}
            return images(model, inputs["pixel_values"], rest, preprocess=preprocess)
        if "input_ids" in inputs or "inputs_embeds" in inputs:
            return token_inputs(model, inputs, tokenizer)
        hint = "; sound is not explained" if {"input_values", "input_features"} & inputs.keys() else ""
        raise ArgumentError(
            f"Expected 'pixel_values' or 'input_ids' in the inputs, but got the keys {list(inputs)}{hint}."
        )
    if isinstance(inputs, Tensor):
        if inputs.dim() == 2 and not inputs.is_floating_point():
            return token_inputs(model, {"input_ids": inputs}, tokenizer)
        return images(model, inputs, {}, preprocess=preprocess)
    if isinstance(inputs, (list, tuple)):
        kinds = ", ".join(sorted({type(item).__name__ for item in inputs}))
        raise ArgumentTypeError(
            f"Expected a list of PIL images or of strings, but it holds: {kinds}; join tensors with torch.stack, and "
            "give pairs of texts as a dictionary of tokenizer outputs."
        )
    raise ArgumentTypeError(
        "Expected a tensor, PIL images, strings or a dictionary of tokenizer outputs, but got "
        f"{type(inputs).__name__}; turn arrays into tensors with torch.from_numpy."
    )


def _numbers(ids: Sequence[int] | None, samples: Sequence[Any]) -> Sequence[int]:
    return ids if ids is not None and len(ids) == len(samples) else range(len(samples))


def _is_picture(value: Any) -> bool:
    # PIL images are told by their class, so that PIL is not imported for users of tensors.
    return any(c.__module__ == "PIL.Image" and c.__name__ == "Image" for c in type(value).__mro__)
