"""Progress bars: where somebody watches, and with words for what is being done."""

from __future__ import annotations

import re
import sys
from io import StringIO
from types import ModuleType
from typing import Any

import pytest
from rich.console import Console

import mhex
from mhex import _progress
from support.method_races import run as raced
from support.tiny_models import pictures, tiny


class Screen(StringIO):
    """A terminal that keeps what is written."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Screen:
    """A terminal for bars, drawn anew at every change; a test makes it the standard error."""
    made = Screen()
    whole = _progress._display

    def display(console: Console | None) -> Any:
        bar = whole(Console(file=made, force_terminal=True, color_system=None, width=160))
        update = bar.update

        def drawn(*args: Any, **options: Any) -> None:
            update(*args, **options)
            bar.refresh()

        bar.update = drawn  # type: ignore[method-assign]
        return bar

    monkeypatch.setattr(_progress, "_display", display)
    return made


def test_evaluate_shows_method_metric_and_samples(screen: Screen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", screen)
    mhex.evaluate(tiny("cnn"), pictures(5), ["gradcam"], ["compactness"], batch_size=2)
    text = screen.getvalue()
    assert "samples 1 to 2 of 5, gradcam: compactness" in text
    assert "samples 5 to 5 of 5, control:random: maps" in text
    assert re.search(r"\b11/12 .* samples 5 to 5 of 5", text)
    assert not _progress.watched()


def test_recommend_shows_rounds_and_the_budget(screen: Screen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", screen)
    raced(images=2)
    text = screen.getvalue()
    assert "trying occlusion" in text
    assert re.search(r"/120 s .* round 1 of 2: 3 methods, input-x-gradient on sample 2", text)


def test_nobody_watches_a_pipe(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    mhex.evaluate(tiny("cnn"), pictures(2), ["gradcam"], ["compactness"])
    raced(images=1)
    assert capfd.readouterr() == ("", "")
    monkeypatch.setattr(sys, "stderr", Screen())
    for asked in (False, True):
        assert _progress.is_watched(asked) is asked
    assert _progress.is_watched(None)
    mhex.evaluate(tiny("cnn"), pictures(2), ["gradcam"], ["compactness"], progress=False)
    raced(images=1, progress=False)
    assert sys.stderr.getvalue() == ""  # type: ignore[attr-defined]


def test_notebooks_are_known_by_their_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    shells = {"ZMQInteractiveShell": True, "TerminalInteractiveShell": False, "NoneType": False}
    for name, wanted in shells.items():
        module = ModuleType("IPython")
        module.get_ipython = type(name, (), {})  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "IPython", module)
        monkeypatch.setattr(_progress, "find_spec", lambda package: object())
        assert _progress.is_watched(None) is wanted
        monkeypatch.setattr(_progress, "find_spec", lambda package: None)
        assert not _progress.is_watched(None)


def test_bars_inside_bars_are_lines_of_one_display(screen: Screen) -> None:
    for _ in _progress.track([1], "outer", enabled=True):
        display = _progress._OPEN.get()
        assert display is not None
        for _ in _progress.track([1, 2], "inner", enabled=True):
            assert [task.description for task in display.tasks] == ["outer", "inner"]
        assert len(display.tasks) == 1
    assert not _progress.watched()
