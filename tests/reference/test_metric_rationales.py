"""Rationales: words are split at white space, whatever the tokenizer does, and marks come in three forms."""

import warnings
from typing import Any

import numpy as np
import pytest
import torch

import mhex
from mhex.errors import ArgumentError
from mhex.inputs.masks import marked_words
from mhex.inputs.samples import in_samples
from mhex.judge import evaluation as judging
from mhex.metrics.aopc import AOPC
from mhex.metrics.case import Case
from mhex.metrics.comprehensiveness import Comprehensiveness
from mhex.metrics.token_f1 import TokenF1
from mhex.perturb import PerturbationSweep, Subject, text_units
from mhex.viz.text import units
from support.tiny_bert import bert, tokenizer

# As the tokenizer has it: a good - bad ( sea ##side ) film , play ##ing . long plot
TEXT = "a good-bad  (seaside) film, playing.\nlong plot"
FILM, LONG = 9, 14  # their tokens, the class token counted


def hot(length: int, *places: int) -> torch.Tensor:
    found = torch.zeros(1, length).double()
    for order, place in enumerate(places):
        found[0, place] = len(places) - order
    return found


def subject_of(inputs: Any, longest: int = 40, **options: Any) -> Subject:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # texts are cut
        return Subject(bert(longest), inputs, tokenizer=tokenizer(), **options)


def word_scores(
    subject: Subject, maps: torch.Tensor, words: Any = "whitespace", pooling: Any = "max"
) -> tuple[torch.Tensor, torch.Tensor]:
    units = text_units(subject, maps, "word", words, pooling)
    assert units.counted is not None
    return units.scores, units.counted


def test_both_numberings_differ():
    encoded = tokenizer()(TEXT)
    tokens = encoded.tokens()
    assert (tokens[FILM], tokens[LONG]) == ("film", "long")
    assert (encoded.word_ids()[FILM], encoded.word_ids()[LONG]) == (7, 11)
    assert [TEXT.split().index(word) for word in ("film,", "long")] == [3, 5]


def test_words_are_split_at_white_space():
    subject = subject_of([TEXT])
    length = subject.main.shape[1]
    metric = TokenF1(k=(1, 2))
    for marked in ([[3, 5]], [[(3, 4), (5, 6)]], [[False, False, False, True, False, True, False]]):
        rows = metric.score(*metric.of(Case(subject, hot(length, FILM, LONG), rationale=marked)))
        assert rows[0].tolist() == pytest.approx([2 / 3, 1.0, 1.0])
    scores, counted = word_scores(subject, torch.arange(float(length))[None])
    # The last token of each word is its highest: good-bad is one word, and so is a word with its brackets or comma.
    assert scores.tolist() == [[1.0, 4.0, 8.0, 10.0, 13.0, 14.0, 15.0]]
    assert counted.all()


def test_special_tokens_and_padding_have_no_say():
    subject = subject_of([TEXT, "bad-plot"])
    maps = torch.full(subject.main.shape, -1.0)
    maps[subject.batch.special] = 9.0
    scores, counted = word_scores(subject, maps)
    assert scores[counted].unique().tolist() == [-1.0]
    assert counted.sum(1).tolist() == [7, 1]
    alone = word_scores(subject_of(["bad-plot"]), maps[1:, :5])
    assert torch.equal(alone[0], scores[1:, :1])
    written = word_scores(subject_of(["good [SEP] bad"]), torch.ones(1, 5))  # a text that holds one
    assert written[1].tolist() == [[True, False, True]]


def test_words_that_were_cut_off_bound_the_recall():
    subject = subject_of([TEXT], longest=10)  # up to the word before film, and the separator
    metric = TokenF1(k=(1,))
    rows = metric.score(*metric.of(Case(subject, hot(10, 4), rationale=[[1, 3, 5]])))
    assert rows[0].tolist() == pytest.approx([0.5, 1 / 3])  # precision 1, recall 1 / 3
    _, counted = word_scores(subject, hot(10, 4))
    assert counted.tolist() == [[True] * 3 + [False] * 4]


def test_token_ids_have_the_words_of_the_tokenizer_alone():
    subject = subject_of(tokenizer()([TEXT], return_tensors="pt"))
    maps = hot(subject.main.shape[1], FILM, LONG)
    with pytest.raises(ArgumentError, match=r"strings for words split at white space.*choose words='tokenizer'"):
        TokenF1(k=(2,)).of(Case(subject, maps, rationale=[[7, 11]]))
    metric = TokenF1(k=(2,), words="tokenizer")
    assert metric.score(*metric.of(Case(subject, maps, rationale=[[7, 11]])))[0].tolist() == [1.0, 1.0]
    assert metric.score(*metric.of(Case(subject, maps, rationale=[[3, 5]])))[0, 0] == 0.0


def test_the_protocol_names_words_and_their_scores():
    assert str(TokenF1().protocol).endswith("words=whitespace, pooling=max")
    assert str(TokenF1("che").protocol).endswith("words=whitespace, pooling=max")
    assert "words=tokenizer, pooling=max" in str(Comprehensiveness().protocol)
    assert "pooling" not in str(Comprehensiveness(granularity="token").protocol)
    assert "words=tokenizer, pooling=sum" in str(Comprehensiveness(pooling="sum").protocol)
    assert str(AOPC("text", granularity="word").protocol).endswith("words=tokenizer, pooling=max")
    for part, value in (("words", "lines"), ("pooling", "mean")):
        for metric in (TokenF1, Comprehensiveness):
            with pytest.raises(ArgumentError, match=f"Expected {part} .* but got '{value}'"):
                metric(**{part: value})


@pytest.mark.parametrize("signed", [True, False])
def test_one_score_of_a_word(signed: bool):
    """An explanation, its picture, a sweep of words and token F1 give words the same scores, by default too."""
    text = "seaside film playing"  # words of the tokenizer are those between white space
    e = mhex.explain(bert(), [text], "attention", tokenizer=tokenizer())
    e.signed, e.scores = signed, torch.tensor([[0.0, 1.0, -3.0, 2.0, 4.0, 5.0, 0.0]])
    assert [len(pieces) for pieces in e.tokens] == [7]
    wanted = {"sum": [-2.0, 2.0, 9.0], "max": [1.0, 2.0, 5.0]}
    subject = subject_of([text])
    assert [score for _, score in e.word_scores()] == wanted["max"]
    assert [unit.score for unit in units(e) if not unit.special] == wanted["max"]
    assert text_units(subject, e.scores, "word").scores.tolist() == [wanted["max"]]
    assert TokenF1().of(Case(subject, e.scores, rationale=[[0]]))[0].scores.tolist() == [wanted["max"]]
    for pooling, scores in wanted.items():
        assert [score for _, score in e.word_scores(pooling=pooling)] == scores
        for words in ("tokenizer", "whitespace"):
            assert word_scores(subject, e.scores, words, pooling)[0].tolist() == [scores]
        metric = TokenF1(pooling=pooling)
        assert metric.of(Case(subject, e.scores, rationale=[[0]]))[0].scores.tolist() == [scores]


def test_words_between_white_space_are_removed_whole():
    subject = subject_of([TEXT, "bad-plot"])
    units = text_units(subject, torch.rand(subject.main.shape), "word", "whitespace")
    removed = torch.zeros(2, 7, dtype=torch.bool)
    removed[0, 1] = removed[1, 0] = True
    hidden = units.spread(removed, torch.tensor([0, 1]))
    tokens = subject.prepared.tokens
    assert tokens is not None
    assert [tokens[0][i] for i in hidden[0].nonzero()[:, 0].tolist()] == ["good", "[UNK]", "bad"]
    assert [tokens[1][i] for i in hidden[1].nonzero()[:, 0].tolist()] == ["bad", "[UNK]", "plot"]
    sweep = PerturbationSweep("drop", "word", 2, words="whitespace")
    assert sweep(subject, None, torch.rand(subject.main.shape)).units.tolist() == [7, 1]


def test_words_of_two_texts_are_different_words():
    """The tokenizer numbers the words of each text from 0."""
    for pair, count in ((("good film", "bad plot"), 4), (("film", "plot"), 2)):
        subject = subject_of(tokenizer()(*pair, return_tensors="pt"))
        units = text_units(subject, torch.arange(float(subject.main.shape[1]))[None], "word")
        assert units.number.tolist() == [count]
        assert bool((units.scores[0].diff() > 0).all())


def test_the_bound_of_recall_has_no_better_side():
    assert TokenF1.better[-1] is None
    assert TokenF1(k=(3,)).better == (True, True, None)


class Slow:
    """A tokenizer that does not say where its tokens stand."""

    pad_token = "[PAD]"

    def __call__(self, texts: Any, **options: Any) -> dict[str, Any]:
        return dict(tokenizer()(texts, **options))


FORMS: dict[str, Any] = {
    "numbers": [5, 3, 4],
    "tuple": (3, 4, 5),
    "array": np.array([3, 4, 5]),
    "spans": [(3, 6)],
    "spans that meet": [[3, 5], [4, 6]],
    "array of spans": np.array([[3, 4], [4, 6]]),
    "bools": [False] * 3 + [True] * 3 + [False],
    "tensor of bools": torch.tensor([False] * 3 + [True] * 3 + [False]),
}


@pytest.mark.parametrize("form", FORMS)
def test_rationales_are_read_in_every_form(form: str):
    assert marked_words(FORMS[form], "sample 0", TEXT) == [3, 4, 5]
    (batch,) = in_samples([{"text": TEXT, "rationale": FORMS[form]}, {"text": TEXT, "rationale": None}], 2)
    assert batch.rationale == [[3, 4, 5], []]


WRONG: dict[str, tuple[Any, str]] = {
    "string": ("film", "but got str"),
    "words": ([3, "film"], "got 'film' among them"),
    "shares": (torch.tensor([0.5, 0.1]), r"got 0\.5 among them"),
    "triples": ([(1, 2, 3)], r"got \(1, 2, 3\) among them"),
    "numbers beside spans": ([1, (3, 5)], r"got \(3, 5\) among them"),
    "one span": ((3, 5), r"write \[\(3, 5\)\] for a span, \[3, 5\] for two words"),
    "zeros and ones": ([0, 0, 1, 0, 0, 0, 0], "turn them into bools"),
    "bools of tokens": ([True] * 15, "got 15 bools for a text of 7 words, split at white space"),
    "number of a token": ([2, 11], "rationale of sample 1 .* got 11 where words go from 0 to 6"),
    "span beyond": ([(2, 8)], "rationale of sample 1 .* got 7 where words go from 0 to 6"),
    "empty span": ([(3, 3)], r"got the span \(3, 3\)"),
    "below 0": ([-1], "rationale of sample 1 .* got -1 where words go from 0"),
}


@pytest.mark.parametrize("form", WRONG)
def test_other_marks_are_refused_before_the_first_map(form: str, monkeypatch: pytest.MonkeyPatch):
    def never(*args: Any, **options: Any) -> None:
        raise AssertionError("a batch was judged")

    monkeypatch.setattr(judging, "judge_batch", never)
    given, sentence = WRONG[form]
    items = [{"text": TEXT, "rationale": [0]}, {"text": TEXT, "rationale": given}]
    with pytest.raises(ArgumentError, match=sentence):
        mhex.evaluate(bert(), items, ["attention"], ["token-f1"], tokenizer=tokenizer())
    with pytest.raises(ArgumentError, match=sentence):
        TokenF1().of(Case(subject_of([TEXT], ids=[1]), hot(17, 3), rationale=[given]))


def test_slow_tokenizers_are_refused_before_the_first_map(monkeypatch: pytest.MonkeyPatch):
    slow: Any = Slow()
    with pytest.raises(ArgumentError, match="fast tokenizer, which says where"):
        TokenF1().of(Case(Subject(bert(), [TEXT], tokenizer=slow), hot(17, 3), rationale=[[0]]))
    monkeypatch.setattr(judging, "judge_batch", None)
    items = [{"text": TEXT, "rationale": [0]}]
    with pytest.raises(ArgumentError, match="fast tokenizer, which says where"):
        mhex.evaluate(bert(), items, ["attention"], ["token-f1"], tokenizer=slow)


def test_evaluation_counts_words_of_texts():
    """The same whatever form the marks have."""
    marks: list[Any] = [[3, 5], [(3, 4), (5, 6)], [False, False, False, True, False, True, False]]
    items = [{"text": TEXT, "rationale": one} for one in marks]
    options: Any = {"tokenizer": tokenizer(), "controls": False}
    report = mhex.evaluate(bert(), items, ["attention"], [("token-f1", {"k": (7,)})], **options)
    # All seven words are taken: precision 2 / 7, recall 1. Of the twelve words of the tokenizer it would be 2 / 12.
    assert report.values(report.metrics[0])[1]["attention"][:, 0].tolist() == pytest.approx([4 / 9] * 3)
