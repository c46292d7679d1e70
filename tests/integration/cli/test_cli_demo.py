from __future__ import annotations

import html
import re
import socket
from html.parser import HTMLParser
from pathlib import Path

import pytest
from cli_helpers import Run, one_sentence

import mhex
from mhex.cli import demo
from mhex.registry import all_methods

pytest.importorskip("skimage", reason="the demo's photos come with scikit-image")


def test_the_page_shows_both_models_on_both_photos(
    run: Run, zoo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("the demo must not use a network"))
    result = run("demo", "--out", tmp_path / "o")
    assert result.exit_code == 0, result.output
    assert [file.name for file in (tmp_path / "o").iterdir()] == ["index.html"]
    page = (tmp_path / "o" / "index.html").read_text(encoding="utf-8")
    HTMLParser().feed(page)
    titles = re.findall("<h2>(.*?)</h2>", page)
    assert titles == [
        "The cat, zoo:pets-vit",
        "The cat, zoo:pets-resnet10t",
        "The rocket, zoo:pets-vit",
        "The rocket, zoo:pets-resnet10t",
        "Card of zoo:pets-vit",
        "Card of zoo:pets-resnet10t",
        "Do it yourself",
    ]
    assert page.count('<img src="data:image/png;base64,') == 4
    assert "This is no pet" in page
    # Every method is on the page of each network: explained, or left out with the reason.
    for section in re.findall('<section id="s[1-4]">(.*?)</section>', page, flags=re.DOTALL):
        cells = html.unescape(" ".join(re.findall("<td>(.*?)</td>", section)))
        assert all(re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", cells) for name in all_methods())
    assert "it reads attention" in page
    assert "Methods that can" not in page  # the reason only: the page itself shows the others
    # The cards, escaped.
    assert "made-up &lt;pets&gt;" in page
    assert "cat dog 50.0 % (test, 12 images)" in page
    last = result.stdout.splitlines()[-1]
    assert str(tmp_path / "o" / "index.html") in last
    assert f"{len(all_methods())} methods" in last


def test_a_look_sums_groups_and_explains_their_top_classes(zoo: Path) -> None:
    bundle = mhex.load("zoo:pets-vit")
    photo = demo.demo_photos()[0]
    seen = demo.look(bundle, photo, ["gae", "attention-flow"], lambda what: None)
    probabilities = mhex.explain(bundle, photo.image).probabilities[0]
    assert seen.groups == {
        "cat": pytest.approx(float(probabilities[:3].sum())),
        "dog": pytest.approx(float(probabilities[3:].sum())),
    }
    names = list(bundle.class_names or ())
    assert seen.explained == {
        "cat": names[int(probabilities[:3].argmax())],
        "dog": names[3 + int(probabilities[3:].argmax())],
    }
    assert next(iter(seen.favourites)) == names[int(probabilities.argmax())]
    assert seen.outcome.explanations[0].target_names(0) == list(seen.explained.values())


def test_methods_with_too_many_tokens_are_left_out_with_the_reason(zoo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    from mhex import registry

    methods = {**all_methods()}
    methods["attention-flow"] = replace(methods["attention-flow"], max_tokens=3)
    monkeypatch.setattr(registry, "all_methods", lambda: methods)
    seen = demo.look(mhex.load("zoo:pets-vit"), demo.demo_photos()[0], ["attention-flow", "gae"], lambda what: None)
    assert [e.method for e in seen.outcome.explanations] == ["gae"]
    assert "at most 3 tokens" in seen.outcome.left_out["attention-flow"]
    assert "Methods that can" not in seen.outcome.left_out["attention-flow"]


def test_an_unwritable_folder_is_told_before_any_work(run: Run, zoo: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "Cannot write to" in one_sentence(run("demo", "--out", tmp_path / "file" / "o"))


def test_a_missing_package_names_the_extra(
    run: Run, zoo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "skimage.data", None)
    assert "mhex[demo]" in one_sentence(run("demo", "--out", tmp_path / "o"))
