"""A BERT with random weights and a tokenizer of a few words, for metrics of texts."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn

from support.models import enliven

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
PIECES = ("good", "bad", "film", "long", "sea", "##side", "##shore", "plot", "play", "##ing", "##er")
WORDS = (*SPECIAL, *".,abcdefghi", *PIECES)
TEXTS = [
    "a good seaside film , playing long .",
    "bad plot",
    "the seashore player : good , bad film a b c d e f g h i .",
]


def new_bert(vocabulary: int, classes: int, longest: int, layers: int = 2, inner: int = 16, **more: Any) -> Any:
    """A BERT of width 16 and two heads (unless `more` says so), with the random weights of a new one."""
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=vocabulary,
        num_labels=classes,
        max_position_embeddings=longest,
        num_hidden_layers=layers,
        intermediate_size=inner,
        **{"hidden_size": 16, "num_attention_heads": 2, **more},
    )
    return BertForSequenceClassification(config)


@functools.cache
def tokenizer() -> Any:
    from transformers import BertTokenizerFast

    return BertTokenizerFast(vocab={word: n for n, word in enumerate(WORDS)}, do_lower_case=True)


@functools.cache
def bert(longest: int = 40) -> nn.Module:
    torch.manual_seed(4)
    model = new_bert(len(WORDS), 3, longest, pad_token_id=0)
    return enliven(model).double().eval().requires_grad_(False)


def ask(ids: list[int], attended: list[int] | None = None) -> Tensor:
    """Logits (3,) of one text, called by hand."""
    mask = torch.tensor([[1] * len(ids) if attended is None else attended])
    with torch.no_grad():
        return bert()(input_ids=torch.tensor([ids]), attention_mask=mask).logits[0]


def scores_of(texts: list[str]) -> Tensor:
    """Random maps (B, T) of texts, no two equal."""
    shape = tokenizer()(texts, padding=True, return_tensors="pt")["input_ids"].shape
    return torch.randn(shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
