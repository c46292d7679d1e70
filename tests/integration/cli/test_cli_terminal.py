"""What reaches a terminal: nothing that it obeys, and no flood."""

from __future__ import annotations

import json
import shutil
import sys
import warnings
from pathlib import Path

import pytest
from cli_helpers import Run, one_sentence

from mhex.cli import _console
from mhex.errors import MhexWarning

TITLE = "\x1b]0;title\x07"
WRITTEN = r"\x1b]0;title\x07"


def _safe(*texts: str) -> None:
    for text in texts:
        assert not set(text) & {"\x1b", "\x07", "\x9b", "\u202e"}


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such file names")
@pytest.mark.parametrize("width", [None, 80])
def test_names_of_photos_and_models(
    run: Run, zoo: Path, cat: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, width: int | None
) -> None:
    monkeypatch.setattr(_console, "_width", lambda: width)
    odd = cat.with_name(f"{TITLE}\u202e\x9bcat.png")
    shutil.copy(cat, odd)
    asked = ("--method", "gae,attention", "--html", "--out", tmp_path / f"o{TITLE}")
    result = run("explain", odd, *asked)
    assert result.exit_code == 0, result.output
    _safe(result.stdout, result.stderr, (tmp_path / f"o{TITLE}" / "index.html").read_text(encoding="utf-8"))
    assert rf"{WRITTEN}\u202e\x9bcat.gae.png" in result.stdout
    _safe(one_sentence(run("explain", odd, "--model", f"hf:{TITLE}", "--out", tmp_path / "p")))


def test_texts_and_names_of_classes(run: Run, bert_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "bert"
    shutil.copytree(bert_folder, folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["id2label"] = {"0": f"bad{TITLE}", "1": "so so", "2": "good\u202e"}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    asked = ("--text", f"a fine {TITLE} film", "--model", f"hf:{folder}", "--target", "0,2", "--out", tmp_path / "o")
    result = run("explain", *asked, "--method", "integrated-gradients", "--option", "steps=2")
    assert result.exit_code == 0, result.output
    assert "completeness gap" in result.stderr
    assert f"bad{WRITTEN}" in result.stdout
    _safe(result.stdout, result.stderr, (tmp_path / "o" / "index.html").read_text(encoding="utf-8"))
    _safe(one_sentence(run("explain", *asked[:4], "--target", f"{TITLE}\u202e")))


def test_a_long_text_does_not_flood_the_terminal(run: Run, bert_folder: Path, tmp_path: Path) -> None:
    text = " ".join(["a fine film"] * 3000)
    asked = ("--model", f"hf:{bert_folder}", "--method", "gae,attention", "--target", "top3", "--out", tmp_path / "o")
    result = run("explain", "--text", text, *asked)
    assert result.exit_code == 0, result.output
    assert "a fine film a fine film" in result.stdout
    assert "and 8985 more words" in result.stdout
    assert len(result.output) < 3000


def test_beginnings_of_texts() -> None:
    assert _console.beginning(" a\nfilm ") == "a film"
    assert _console.beginning("x" * 100) == "x" * 60 + "..."
    assert _console.beginning("one " * 20) == "one " * 15 + "... and 5 more words"


def test_warnings_are_one_line_each(run: Run, bert_folder: Path, tmp_path: Path) -> None:
    asked = ("--model", f"hf:{bert_folder}", "--method", "gae,attention,rollout", "--out", tmp_path / "o")
    result = run("explain", "--text", "a fine film " * 20, *asked)
    assert result.exit_code == 0, result.output
    cut, page = result.stderr.splitlines()
    assert cut == "mhex: text-1: cut after 24 of 62 tokens, all that the model can read"
    assert page.endswith("index.html.")


def test_each_sentence_is_told_once_and_other_warnings_as_usual(capsys: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings(record=True) as others, _console.warning_lines():
        for sentence in ("first", "second", "first"):
            warnings.warn(sentence, MhexWarning, stacklevel=1)
        warnings.warn("another's", RuntimeWarning, stacklevel=1)
    assert [str(other.message) for other in others] == ["another's"]
    assert capsys.readouterr().err == "mhex: warning: first\nmhex: warning: second\n"


def test_a_stream_of_few_letters(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from io import BytesIO, TextIOWrapper

    stream = TextIOWrapper(BytesIO(), encoding="ascii", newline="\n")
    monkeypatch.setattr(sys, "stdout", stream)
    _console.say("0.1 ± 0.2")
    stream.flush()
    assert stream.buffer.getvalue() == b"0.1 ? 0.2\n"  # type: ignore[attr-defined]


def test_names_in_progress_bars_are_no_markup(monkeypatch: pytest.MonkeyPatch) -> None:
    from io import StringIO

    from rich.console import Console

    from mhex import _progress

    screen = StringIO()
    monkeypatch.setattr(_console, "_watcher", lambda: Console(file=screen, force_terminal=True, width=120))
    with _console.busy(f"Loading [/x] {TITLE}"):
        pass
    with _console.steps(1) as step:
        step(f"[/x] {TITLE}")
        list(_progress.track([1], f"concept [/y] {TITLE}", enabled=True))
    assert "\x1b]0" not in screen.getvalue()
    assert "[/x]" in screen.getvalue()
