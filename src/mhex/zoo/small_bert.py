"""A small BERT that reads words of a list: for texts of few different words, such as generated sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mhex._settings import check_that
from mhex.errors import ArgumentError, require
from mhex.zoo.files import FAILURES, in_one_line

SOURCE = "words"  # of recipes and cards
_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def build_small_bert(arguments: Mapping[str, Any], classes: Sequence[str]) -> tuple[Any, Any]:
    """Build a BERT classifier with random weights, and a tokenizer that splits texts at white space.

    Args:
        arguments: `words`, the vocabulary in one text; all others are entries of the configuration of BERT.
        classes: Names of the classes.
    """
    words, entries = arguments.get("words"), {name: value for name, value in arguments.items() if name != "words"}
    right = isinstance(words, str) and bool(words.split())
    check_that(right, "the words that a small BERT knows, in one text (words)", repr(words))
    vocabulary = list(dict.fromkeys([*_SPECIAL, *str(words).split()]))
    entries.pop("num_classes", None)  # cards have it
    transformers = require("transformers")
    labels = dict(enumerate(classes))
    try:
        config = transformers.BertConfig(
            **{"vocab_size": len(vocabulary), "attn_implementation": "sdpa", "hidden_dropout_prob": 0.0, **entries},
            id2label=labels,
            label2id={name: number for number, name in labels.items()},
        )
        model = transformers.BertForSequenceClassification(config)
    except FAILURES as error:
        raise ArgumentError(f"A small BERT cannot be made with {entries}: {in_one_line(error)}") from error
    return model.eval(), _tokenizer(vocabulary, config.max_position_embeddings)


def _tokenizer(vocabulary: Sequence[str], length: int) -> Any:
    tokenizers, transformers = require("tokenizers"), require("transformers")
    numbers = {word: number for number, word in enumerate(vocabulary)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(numbers, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    ends = [(name, numbers[name]) for name in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=ends
    )
    names = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=length, **names)
