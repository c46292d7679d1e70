from __future__ import annotations

import pytest
from torch import rand

from mhex._printable import one_line, printable
from mhex.heads.fit import BlockFit, FitReport
from mhex.heads.summary import BlockSummary, Summary
from mhex.recommend.answer import RankedMethod, Recommendation
from support.reports import report_of

TITLE = "\x1b]0;title\x07"  # sets the title of a terminal's window


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (TITLE, r"\x1b]0;title\x07"),
        ("a\x1b[31mred\x1b[0m", r"a\x1b[31mred\x1b[0m"),
        ("\x9b2J", r"\x9b2J"),  # the same as the escape sign and a bracket, in one sign
        ("over\rwritten", r"over\rwritten"),
        ("gpj.\u202etac", r"gpj.\u202etac"),
        ("\u2066a\u2069 \u200eb \u2028c", r"\u2066a\u2069 \u200eb \u2028c"),
        ("\x7f\x00\x08", r"\x7f\x00\x08"),
        ("caf\udce9", "caf?"),
        ("\ufeffa\u200bb\U000e0041", r"\ufeffa\u200bb\U000e0041"),
    ],
)
def test_signs_that_a_terminal_obeys_are_written_out(text: str, shown: str) -> None:
    assert printable(text) == shown


@pytest.mark.parametrize("text", ["two\nlines\tand a tab", "naïve 日本 🙂", "न\u200dम\u200c", "👩\u200d🚀", "±"])
def test_all_else_stays(text: str) -> None:
    assert printable(text) == text


def test_one_line() -> None:
    assert one_line(" a\n\tb\x1b \x85 c ") == r"a b\x1b c"


def test_reports_and_summaries_print_safely() -> None:
    fit = FitReport("ridge", 8, 2, (BlockFit(f"layer{TITLE}", 4, 0, 1.0, True, 0.5, 0.5, None, 1, 0.1),), 1.0)
    row = BlockSummary(f"layer{TITLE}", "map", 4, 16, 8, 0.1, "one", 1.0)
    line = RankedMethod(f"gae{TITLE}", "best", 0.0, 0.0, 0.0, 1.0, {"score": 1.0}, {}, "no", "above", 4, 0.1)
    report = report_of({"aopc": {f"gae{TITLE}": rand(4), "lrp": rand(4)}})
    answer = Recommendation(
        f"gae{TITLE}",
        {},
        1.0,
        None,
        0.1,
        (),
        (),
        {},
        {},
        (line,),
        "",
        ((1, 4),),
        None,
        1.0,
        2.0,
        report,
        {},
        None,
        {},
    )
    for made in (fit, Summary((row,), f"Net{TITLE}", 100, 2), report, answer):
        assert "\x1b" not in str(made)
        assert r"\x1b]0;title\x07" in str(made)
    for form in ("markdown", "latex", "html"):
        assert "\x1b" not in report.table(form)
