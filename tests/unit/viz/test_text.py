"""Highlighted text: which words, which scores, which colours."""

import re
import warnings

import pytest
import torch
from matplotlib.text import Text

import mhex
from mhex.viz import Section, comparison, figure, page, to_html
from mhex.viz.letters import text_width
from mhex.viz.text import Unit, break_lines, units

TOKENS = ["[CLS]", "un", "##believ", "##able", ",", "don", "'", "t", "go", "[SEP]"]
WORDS = [None, 0, 0, 0, 1, 2, 3, 4, 5, None]
SCORES = [0.0, 0.1, 0.4, 0.2, 0.0, 0.3, 0.05, 0.0, 0.8, 0.0]


def words(drawn):
    return [t.get_text() for t in drawn.findobj(Text) if t.get_text()]


@pytest.mark.parametrize("signed", [False, True])
def test_words_have_the_scores_of_word_scores(text, signed):
    explanation = text(TOKENS, SCORES, WORDS, signed=signed)
    got = [(u.text, u.score) for u in units(explanation) if not u.special]
    assert [w for w, _ in got] == [w for w, _ in explanation.word_scores()]
    assert [s for _, s in got] == pytest.approx([s for _, s in explanation.word_scores()])


def test_special_tokens_stay_in_place_without_a_score(text):
    got = units(text(TOKENS, SCORES, WORDS))
    assert [u.text for u in got if u.special] == ["[CLS]", "[SEP]"]
    assert (got[0].special, got[-1].special) == (True, True)
    assert max(u.strength for u in got) == 1
    loud = units(text(TOKENS, [9.0, *SCORES[1:-1], -9.0], WORDS))  # they neither have a colour nor set the scale
    assert [u.strength for u in loud] == [u.strength for u in got]


def test_spaces_are_guessed(text):
    got = units(text(TOKENS, SCORES, WORDS))
    assert "".join((" " if u.space else "") + u.text for u in got) == "[CLS] unbelievable, don't go [SEP]"
    comma = units(text(["[CLS]", ",", "[SEP]"], [0.0, 1.0, 0.0], [None, 0, None]))
    assert [u.space for u in comma] == [False, True, True]  # it closes nothing after a special token


def test_tokens_without_words_lose_their_marks(text):
    got = units(text(TOKENS, SCORES))
    assert [u.text for u in got][1:4] == ["un", "believ", "able"]
    assert [u.space for u in got][1:4] == [True, False, False]
    assert got[0].special


def test_an_unknown_word_is_a_word(text):
    assert not units(text(["[UNK]", "<unk>"], [0.0, 0.0]))[0].special


def test_byte_level_pieces_become_letters(text):
    tokens = ["<s>", "ĠThe", "Ġcaf", "Ã©", ".", "</s>"]
    got = units(text(tokens, [0, 0.1, 0.5, 0.2, 0.3, 0], [None, 0, 1, 1, 2, None]))
    assert "".join((" " if u.space else "") + u.text for u in got) == "<s> The café. </s>"


def test_letters_that_only_look_like_bytes_are_kept(text):
    assert [u.text for u in units(text(["naïve", "Ø", "čaj"], [0.1, 0.2, 0.3]))] == ["naïve", "Ø", "čaj"]


def test_a_second_text_counts_its_words_again(text):
    tokens = ["[CLS]", "one", "[SEP]", "two", "[SEP]"]
    got = units(text(tokens, [0, 0.2, 0, 0.6, 0], [None, 0, None, 0, None], signed=True))
    assert [(u.text, round(u.score, 3)) for u in got if not u.special] == [("one", 0.2), ("two", 0.6)]


def test_padding_on_the_left_moves_nothing(text):
    right = units(text(["[CLS]", "hi", "[SEP]"], [0, 0.5, 0, 0, 0], [None, 0, None]))
    left = units(text(["[CLS]", "hi", "[SEP]"], [0, 0, 0, 0.5, 0], [None, 0, None], left=True))
    assert left == right


def test_positions_stand_for_tokens_that_are_not_known(text):
    explanation = text(None, [0, 0.5, 0.1, 0, 0], special=torch.tensor([[0.3, 0, 0, 0.2, 0]]))
    got = units(explanation)
    assert [u.text for u in got] == ["0", "1", "2", "3"]
    assert [u.special for u in got] == [True, False, False, True]
    explanation.ids = torch.tensor([[101, 2045, 7, 102, 0]])
    assert [u.text for u in units(explanation)] == ["id 101", "id 2045", "id 7", "id 102"]


def test_all_zero_text_is_drawn_and_marked(text):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drawn = figure(text(TOKENS, [0.0] * len(TOKENS), WORDS))
        drawn._repr_png_()
    assert any("all zero" in line for line in words(drawn))


def test_html_escapes_tokens_and_class_names(text):
    explanation = text(["<script>", "a&b", '"q"'], [0.5, 0.1, -0.2], [0, 1, 2], signed=True)
    explanation.class_names = ["x", "<img src=x onerror=alert(1)>"]
    got = to_html(explanation)
    assert "<script" not in got
    assert "<img" not in got
    assert "&lt;script&gt;" in got
    assert "a&amp;b" in got


def test_characters_that_act_do_not_reach_the_page(text):
    acting = "\x1b[2J\x00\x9b\u202e\u2066\u2028\udcff"
    explanation = text([f"good{acting}", "film"], [0.5, 0.1], [0, 1], class_names=["x", f"y{acting}"])
    for got in (to_html(explanation), page(f"t{acting}", f"i{acting}", [Section(f"s{acting}", "", f"n{acting}")])):
        assert not set(got) & (set(acting) - set("[2J"))
        got.encode("utf-8")
    assert r"good\x1b[2J\x00" in to_html(explanation)
    # Marks of right-to-left scripts and joined letters are text.
    assert "\u200d" in to_html(text(["a\u200db"], [0.5], [0]))


def test_texts_that_were_cut_say_so(text, tmp_path):
    explanation = text(TOKENS, SCORES, WORDS, lengths=[10782])
    said = "cut after 10 of 10,782 tokens"
    assert explanation.cut(0) == said
    again = type(explanation).load(explanation.save(tmp_path / "e.safetensors"))
    for one in (explanation, again):
        assert said in to_html(one)
        assert any(said in line for line in words(figure(one)))
        assert any(said in line for line in words(comparison([one, one])))
    for whole in (None, [10]):
        assert "cut after" not in to_html(text(TOKENS, SCORES, WORDS, lengths=whole))


def test_the_prediction_is_said_whatever_the_target(text):
    explanation = text(TOKENS, SCORES, WORDS, target=torch.tensor([0]))
    assert "Predicted: positive 70 %." in words(figure(explanation))
    assert "Predicted: positive 70 %." in words(comparison([explanation, explanation]))
    assert "Predicted: positive 70 %." in to_html(explanation)


def test_html_colours_and_tooltips(text):
    got = to_html(text(["good", "bad", "so"], [0.5, -0.25, 0.0], [0, 1, 2], signed=True))
    found = {
        word: (background, title)
        for background, title, word in re.findall(r'background:(#\w{6})[^"]*" title="([^"]+)">(\w+)<', got)
    }
    assert found["good"][1] == "+0.5"
    assert found["bad"][1] == "-0.25"
    assert int(found["good"][0][1:3], 16) > int(found["good"][0][5:7], 16)
    assert int(found["bad"][0][1:3], 16) < int(found["bad"][0][5:7], 16)
    assert "so" not in found
    assert "gae · positive" in got
    assert "70 %" in got
    assert "against positive" in got


def test_many_texts_in_html_say_what_they_leave_out(text):
    explanation = text(["hi"], [0.5], [0])
    explanation.scores = explanation.scores.repeat(60, 1)
    explanation.target = explanation.target.repeat(60)
    explanation.probabilities = explanation.probabilities.repeat(60, 1)
    explanation.real = explanation.real.repeat(60, 1)
    explanation.tokens, explanation.words = [["hi"]] * 60, [[0]] * 60
    assert "first 48 of 60 samples" in to_html(explanation)
    assert any("first 16 of 60 samples" in line for line in words(figure(explanation)))


def test_lines_are_filled_by_measured_widths():
    found = [Unit(f"word{n}", 0.1) for n in range(60)]
    lines = break_lines(found, 4.0)
    assert [u for line in lines for u in line] == found
    assert all(sum(text_width(u.text, 10) for u in line) <= 4.0 for line in lines)
    assert [len(line) for line in lines[:2]] == [7, 6]


def test_a_comma_stays_with_its_word():
    found = [u for n in range(40) for u in (Unit(f"word{n}", 0.1), Unit(",", 0.1, space=False))]
    assert all(line[0].text != "," for line in break_lines(found, 3.0))


def test_words_stay_on_the_paper(text):
    drawn = figure(text(["x" * 400, *(["word"] * 50)], [0.5] * 51))
    drawn.canvas.draw()
    width = drawn.canvas.get_width_height()[0]
    assert all(t.get_window_extent().x1 <= width for t in drawn.findobj(Text) if t.get_text())


def test_too_many_lines_are_said(text):
    drawn = figure(text(["supercalifragilistic" * 3] * 1300, [0.0] * 1300))
    assert any("Only the first 600 of 1300 lines" in line for line in words(drawn))


def test_ids_label_texts_that_were_given_without_a_tokenizer():
    from support.tiny_bert import bert, tokenizer

    ids = tokenizer()(["a bad film"], return_tensors="pt")["input_ids"]
    explanation = mhex.explain(bert(), {"input_ids": ids}, "gae")
    assert {f"id {number}" for number in ids[0].tolist()} <= set(words(figure(explanation)))
