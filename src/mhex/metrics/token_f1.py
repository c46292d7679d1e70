"""Token F1: are the words with the highest scores those that people marked?"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from mhex._settings import check_choice, check_that
from mhex.inputs.masks import FORMS, marked_words
from mhex.inputs.words import Pooling, Words
from mhex.metrics import Case, PerImage, Protocol, register_metric
from mhex.perturb import ranks, text_units

Mode = Literal["signed", "clamp"]
_K = (10, 20, 30, 40, 50, 60, 70, 80)


@dataclass(frozen=True)
class TokenProtocol(Protocol):
    """Protocol of token F1; `k`, `mode` and `seed` are as for the function."""

    k: tuple[int, ...] = _K
    mode: Mode = "signed"
    seed: int = 0
    words: Words = "whitespace"  # as people number words; or the tokenizer's, for token ids and marks of these
    pooling: Pooling = "max"  # of a word: the highest score of its tokens, as published, or their sum

    def __post_init__(self) -> None:
        super().__post_init__()
        _check(self.k, self.mode)


@dataclass(frozen=True, eq=False)
class WordScores:
    """Words of texts, and those that people marked."""

    ids: tuple[int, ...]  # number of each text in its data set
    scores: Tensor  # of words, (B, W)
    counted: Tensor  # bool (B, W), False where a text has no such word, or none that the model was given
    rationale: Sequence[Sequence[int]]  # numbers of the words that were marked, also of words that were cut off


def token_f1(words: WordScores, k: Sequence[int] = _K, mode: str = "signed", seed: int = 0) -> Tensor:
    """F1 of the k words with the highest scores against those that were marked, (B, K); NaN where none is marked.

    Args:
        words: Scores and marks. A word that was marked and cut off can not be found, which bounds the recall.
        k: How many words are taken; all of them where a text has fewer.
        mode: `"signed"` ranks scores as they are; `"clamp"` sets those below 0 to 0 first, as published.
        seed: Seed of ties.
    """
    _check(k, mode)
    scores = words.scores.clamp_min(0) if mode == "clamp" else words.scores
    marked, size = _marked(words)
    rank = ranks(scores, words.ids, seed, "random", words.counted)
    number = words.counted.sum(1)
    columns = []
    for most in k:
        choice = number.clamp_max(most)
        hits = ((rank < choice[:, None]) & marked).sum(1).double()
        columns.append(2 * hits / (choice + size))  # 2 P R / (P + R) with P = hits / chosen and R = hits / size
    return torch.stack(columns, 1).masked_fill((size == 0)[:, None], torch.nan)


def recall_bound(words: WordScores) -> Tensor:
    """Share of the marked words that have a score, (B,); NaN where none is marked."""
    marked, size = _marked(words)
    return marked.sum(1).double() / size.masked_fill(size == 0, torch.nan)


def _marked(words: WordScores) -> tuple[Tensor, Tensor]:
    """Bool (B, W), True at words that were marked and have a score; and how many were marked in all, (B,)."""
    texts, count = len(words.scores), len(words.rationale)
    check_that(texts == count, f"marked words of {texts} texts", f"those of {count}")
    lowest = min((word for row in words.rationale for word in row), default=0)
    check_that(lowest >= 0, "numbers of marked words from 0 on", "one below")
    marked, rows = torch.zeros_like(words.counted), [set(row) for row in words.rationale]
    for place, row in enumerate(rows):
        marked[place, [word for word in row if word < marked.shape[1]]] = True
    size = torch.tensor([len(row) for row in rows], dtype=torch.float64, device=marked.device)
    return marked & words.counted, size


def _check(k: Sequence[int], mode: str) -> None:
    right = bool(k) and all(isinstance(number, int) and number >= 1 for number in k)
    check_that(right, "k to be numbers of words from 1 on", k)
    check_choice("mode", mode, get_args(Mode))


@register_metric(
    "token-f1",
    function=token_f1,
    title="Are the words with the highest scores those that people marked?",
    paper="DeYoung et al., ERASER, ACL 2020, arXiv:1911.03429; Chefer, Gur & Wolf, CVPR 2021, arXiv:2012.09838",
    passes="0",
    traps="What people mark is not what a model reads. Texts are cut at what the model can take, and marked words "
    "beyond can not be found: `recall_bound` is what is left, a property of the data. Numbers for different k cannot "
    "be compared. Words are split at white space, as `text.split()` does and people number them, whatever the "
    f"tokenizer does with hyphens and punctuation, and `rationale` is, for each text, {FORMS}. Of token ids these "
    "words are not known: choose words='tokenizer', whose words are the tokenizer's, punctuation among them, and "
    "number marks likewise.",
    modalities=("text",),
    data=("rationale",),
    presets={"default": TokenProtocol(), "che": TokenProtocol(mode="clamp")},
)
class TokenF1(PerImage):
    """Mean over texts (macro), for each k, and the mean of these; higher is better."""

    columns = (*(f"f1@{k}" for k in _K), "recall_bound")
    outputs = ("value", *columns)
    better = (*(True,) * (len(_K) + 1), None)
    protocol: TokenProtocol

    def __init__(self, preset: str = "default", **changes: Any) -> None:
        super().__init__(preset, **changes)
        self.columns = (*(f"f1@{k}" for k in self.protocol.k), "recall_bound")
        self.outputs = ("value", *self.columns)
        self.better = (*(True,) * (len(self.outputs) - 1), None)

    def of(self, case: Case) -> tuple[Any, ...]:
        marks = case.needs("rationale", f"the words that people marked as a rationale of each text: {FORMS}")
        count = len(case.ids)
        check_that(len(marks) == count, f"a rationale for each of {count} texts", len(marks))
        split = case.subject.prepared.texts if self.protocol.words == "whitespace" else None
        texts: Sequence[str | None] = split or [None] * count
        rows = zip(marks, case.ids, texts, strict=True)
        rationale = [marked_words(row, f"sample {i}", text) for row, i, text in rows]
        units = text_units(case.subject, case.saliency, "word", self.protocol.words, self.protocol.pooling)
        valid = units.counted
        assert valid is not None
        return (WordScores(tuple(case.ids), units.scores, valid, rationale),)

    def score(self, words: WordScores) -> Tensor:
        return torch.cat([super().score(words), recall_bound(words)[:, None]], 1)

    def summary(self, rows: Tensor) -> Tensor:
        """Means over texts, and first of all the mean over k."""
        means = rows.mean(-2)
        return torch.cat([means[..., :-1].mean(-1, keepdim=True), means], -1)
