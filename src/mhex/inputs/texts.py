"""Strings and token ids, and which tokens are special."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from mhex._settings import check_that
from mhex.capture import Batch
from mhex.errors import ArgumentTypeError, warn
from mhex.inputs.prepared import WHOLE_NUMBERS, Prepared, check_batch, filled, finite, place_of

# How whole numbers come to the model: embeddings look up those of 32 and 64 bits alone.
_INDEX = {**dict.fromkeys(WHOLE_NUMBERS, torch.int64), torch.int32: torch.int32}
# Tokenizers say some of these; of labels Hugging Face models compute a loss, and note what kind of task they have.
_NOT_FOR_THE_MODEL = ("special_tokens_mask", "offset_mapping", "length", "overflow_to_sample_mapping", "labels")


def text_batch(
    model: nn.Module, texts: list[str], tokenizer: Callable[..., Mapping[str, Any]] | None, ids: Sequence[int]
) -> Prepared:
    """A batch from strings, cut to the length that the model can take; `ids` are their numbers, for messages."""
    advice = "; a model of photos takes photos, such as PIL.Image.open(path)"
    check_that(tokenizer is not None, "tokenizer= beside texts, which turns them into inputs", "none", advice)
    if not callable(tokenizer):
        raise ArgumentTypeError(f"Expected tokenizer to be a function, but got {type(tokenizer).__name__}.")
    for number, text in zip(ids, texts, strict=True):
        check_that(bool(text.strip()), "some text in every sample", f"a blank sample {number}")
        whole = not any("\ud800" <= sign <= "\udfff" for sign in text)
        advice = "; read it with errors='replace'"
        check_that(whole, "texts of whole characters", f"half of a surrogate pair in sample {number}", advice)
    longest = _longest_text(model)
    options = {"truncation": True, "max_length": longest} if longest else {}
    alone = len(texts) == 1
    padded = alone or getattr(tokenizer, "pad_token", "") is not None
    advice = "; set its pad_token, and model.config.pad_token_id to its id"
    check_that(padded, "a tokenizer with a padding token for several texts", "one without", advice)
    encoded = tokenizer(texts, return_tensors="pt", padding=not alone, **options)
    if not isinstance(encoded, Mapping) or not isinstance(encoded.get("input_ids"), Tensor):
        actual = list(encoded) if isinstance(encoded, Mapping) else type(encoded).__name__
        raise ArgumentTypeError(f"Expected a dictionary with a tensor 'input_ids' of tokenizer=, but got {actual}.")
    shape = tuple(encoded["input_ids"].shape)
    check_that(shape[:1] == (len(texts),), f"token ids of {len(texts)} texts of tokenizer=", f"the shape {shape}")
    prepared = token_batch(model, encoded, tokenizer)
    lengths = prepared.lengths
    if longest and encoded["input_ids"].shape[1] == longest:
        if lengths is None:
            quiet = {"verbose": False} if hasattr(tokenizer, "model_max_length") else {}  # it would warn, too
            lengths = [len(ids) for ids in tokenizer(texts, **quiet)["input_ids"]]
        if max(lengths) > longest:
            warn(f"Texts of up to {max(lengths)} tokens were cut to {longest}.")
    return replace(prepared, texts=texts, lengths=lengths)


def _longest_text(model: nn.Module) -> int | None:
    config: Any = getattr(model, "config", None)
    positions = getattr(config, "max_position_embeddings", None)
    if not isinstance(positions, int) or positions <= 0:
        return None
    # RoBERTa numbers its positions from padding_idx + 1 on.
    offset = int(config.pad_token_id) + 1 if getattr(config, "model_type", "") == "roberta" else 0
    return positions - offset


def token_batch(model: nn.Module, inputs: Mapping[str, Any], tokenizer: Any, fill: bool = False) -> Prepared:
    """A batch of tokenizer outputs, such as `input_ids` (B, T) or `inputs_embeds` (B, T, D); `fill`: see `prepare`."""
    device, dtype = place_of(model)
    main = inputs.get("inputs_embeds") if inputs.get("input_ids") is None else inputs["input_ids"]
    if not isinstance(main, Tensor):
        kind = type(main).__name__
        raise ArgumentTypeError(f"Expected input_ids as a tensor, but got {kind}; tokenize with return_tensors='pt'.")
    check_batch(main, "token ids")
    if main.dtype not in _INDEX and (main is inputs.get("input_ids") or not main.is_floating_point()):
        raise ArgumentTypeError(f"Expected whole numbers as token ids, but got {main.dtype}.")
    axes = 3 if main.is_floating_point() else 2
    check_that(main.dim() == axes, "token ids of shape (batch, tokens)", tuple(main.shape))
    check_that(0 not in main.shape[:2], "at least one sample and one token", "an empty batch")
    longest = _longest_text(model)
    fits = not longest or main.shape[1] <= longest
    check_that(fits, f"at most {longest} tokens for this model", main.shape[1], "; truncate the text")
    kwargs: dict[str, Any] = {}
    gaps: tuple[int, ...] = ()
    if fill and main.is_floating_point():
        main, gaps = filled(main, model)
        inputs = {**inputs, "inputs_embeds": main}
    for name, value in inputs.items():
        if isinstance(value, Tensor):
            check_batch(value, name)
        if name not in _NOT_FOR_THE_MODEL:
            kwargs[name] = _brought(value, name, device, dtype) if isinstance(value, Tensor) else value
    config, ids, mask = getattr(model, "config", None), kwargs.get("input_ids"), kwargs.get("attention_mask")
    size = getattr(config, "vocab_size", None)
    if ids is not None and isinstance(size, int):
        low, high = int(ids.min()), int(ids.max())
        advice = "; the tokenizer does not belong to this model"
        check_that(low >= 0 and high < size, f"token ids from 0 to {size - 1}", f"{low} to {high}", advice)
    for name, value in (("attention_mask", mask), ("special_tokens_mask", inputs.get("special_tokens_mask"))):
        if value is not None:
            actual = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            shape = tuple(main.shape[:2])
            check_that(actual == shape, f"{name} to be a tensor of shape {shape}", actual)
    real = torch.ones(main.shape[:2], dtype=torch.bool, device=device) if mask is None else mask.bool()
    check_that(bool(real.any(1).all()), "at least one real token in every sample", "an attention mask of zeros")
    special = _special(ids, real, inputs.get("special_tokens_mask"), tokenizer, config)
    batch = Batch(
        "text",
        (),
        kwargs,
        main.shape[0],
        real=real,
        special=special,
        mask_id=next(iter(_token_ids(tokenizer, "mask")), None),
        alone=_takes_one(config),
        pad_id=next(iter([*_token_ids(tokenizer, "pad"), *_token_ids(config, "pad")]), None),
    )
    facts = _facts_of_tokens(inputs, real)
    if not facts and ids is not None and hasattr(tokenizer, "convert_ids_to_tokens"):
        rows = zip(ids, real, strict=True)
        facts["tokens"] = [tokenizer.convert_ids_to_tokens(row[mask].tolist()) for row, mask in rows]
    return Prepared(batch, **facts, gaps=gaps)


def _brought(value: Tensor, name: str, device: torch.device, dtype: torch.dtype) -> Tensor:
    """An argument of the model on its device: numbers in its precision, indices as embeddings look them up."""
    kind = dtype if value.is_floating_point() else torch.bool if value.dtype == torch.bool else _INDEX.get(value.dtype)
    if kind is None or value.dtype == torch.float4_e2m1fn_x2:
        raise ArgumentTypeError(f"Expected whole or real numbers as {name}, but got {value.dtype}.")
    return finite(finite(value, name).to(device, kind), f"{name} in the model's {kind}")


def _takes_one(config: Any) -> bool:
    """True of a classifier on a decoder that knows no padding, and refuses more than one text at a time."""
    if config is None or not hasattr(config, "pad_token_id") or getattr(config, "is_encoder_decoder", False):
        return False
    return config.pad_token_id is None and getattr(config, "num_labels", None) is not None


def _token_ids(owner: Any, *roles: str) -> list[int]:
    """Ids of tokens with these roles, such as `"pad"`, that a tokenizer or a configuration names."""
    ids = [getattr(owner, f"{role}_token_id", None) for role in roles]
    return [number for number in ids if isinstance(number, int)]


def _special(ids: Tensor | None, real: Tensor, mask: Any, tokenizer: Any, config: Any) -> Tensor:
    """True at class, separator and padding tokens (unknown words are words).

    Without a mask they are those that the tokenizer names, or else the model's configuration. Where neither names any,
    all real tokens are words; of word embeddings, which have no ids, the first is taken for the class token.
    """
    if isinstance(mask, Tensor):
        return mask.to(real.device).bool() | ~real
    if ids is None:
        special = ~real
        special[:, 0] = True
        return special
    roles = ("cls", "sep", "bos", "eos", "pad")
    numbers = _token_ids(tokenizer, *roles) or _token_ids(config, *roles)
    return torch.isin(ids, torch.tensor(numbers, device=ids.device, dtype=ids.dtype)) | ~real


def _facts_of_tokens(inputs: Any, real: Tensor) -> dict[str, Any]:
    """What the outputs of a fast tokenizer say of each real token, and how many tokens each text had before any cut."""
    if not getattr(inputs, "is_fast", False):
        return {}
    rows = list(zip(inputs.encodings, real.tolist(), strict=False))
    facts: dict[str, Any] = {}
    for name, attribute in (("tokens", "tokens"), ("words", "word_ids"), ("offsets", "offsets")):
        columns = [zip(getattr(encoding, attribute), mask, strict=True) for encoding, mask in rows]
        facts[name] = [[value for value, keep in column if keep] for column in columns]
    if len(inputs.encodings) == len(real):  # what was cut off stands beside the tokens that were not
        cut = [sum(part.special_tokens_mask.count(0) for part in encoding.overflowing) for encoding, _ in rows]
        facts["lengths"] = [visible + hidden for visible, hidden in zip(real.sum(1).tolist(), cut, strict=True)]
    return facts
