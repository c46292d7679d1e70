"""Pieces of HTML and whole pages."""

import base64
import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest
import torch
from matplotlib.figure import Figure

from mhex.errors import ArgumentError
from mhex.viz import Section, page, paragraphs, picture_tag, save_html, to_html

VOID = {"meta", "img", "br", "link"}


class Balance(HTMLParser):
    """Collects tags and checks that they nest."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_image_is_inline_with_a_description(image, corner):
    got = to_html(image(corner))
    data = re.search(r'src="data:image/png;base64,([^"]+)"', got)
    assert base64.b64decode(data[1]).startswith(b"\x89PNG")
    alt = re.search(r'alt="([^"]+)"', got)[1]
    assert "gae: evidence for tabby (83 %), strongest at the top left" in alt


def test_description_is_escaped(image, corner):
    got = to_html(image(corner, class_names=['"><script>alert(1)</script>', "b", "c", "d"]))
    assert "<script" not in got
    assert "&lt;script&gt;" in got


def test_a_list_is_a_comparison(image, corner):
    got = to_html([image(corner), image(corner, method="rollout", class_specific=False)])
    assert got.count("<img") == 1
    assert "rollout: importance for any class" in got


def test_picture_tag_takes_any_figure():
    assert picture_tag(Figure(), 'a "plain" figure').startswith('<img src="data:image/png;base64,')


@pytest.mark.parametrize("count", [0, 1, 5])
def test_page_is_complete_and_loads_nothing(image, text, corner, count):
    fragments = [to_html(image(corner)), to_html(text(["good", "day"], [0.5, 0.1])), paragraphs("one\n\ntwo")] * 2
    sections = [Section(f"Part {n}", fragments[n], "A note.") for n in range(count)]
    got = page("Title & <b>", "First.\n\nSecond <i>.", sections)
    parser = Balance()
    parser.feed(got)
    assert parser.open == []
    assert not {"script", "link", "iframe", "object"} & set(parser.seen)
    bare = re.sub(r"base64,[A-Za-z0-9+/=]+", "", got)
    assert "://" not in bare
    assert "url(" not in bare
    assert "@import" not in bare
    assert "prefers-color-scheme: dark" in got
    assert "<title>Title &amp; &lt;b&gt;</title>" in got
    assert got.count("<section") == count
    assert ("<nav>" in got) == (count > 3)
    assert got.count('class="intro"') == 2


def test_saved_page_stands_alone(text, tmp_path):
    path = save_html(text(["café", "day"], [0.5, 0.1]), tmp_path / "e.html")
    got = path.read_text(encoding="utf-8")
    assert got.startswith("<!doctype html>")
    assert '<meta charset="utf-8">' in got
    assert "café" in got
    with pytest.raises(ArgumentError, match="no folder"):
        save_html(text(["a"], [0.5]), tmp_path / "nowhere" / "e.html")


def test_pyplot_is_not_imported_and_no_setting_changed():
    code = """
import sys, matplotlib
def settings():  # reading the backend would itself import pyplot
    return {k: matplotlib.rcParams[k] for k in matplotlib.rcParams if not k.startswith("backend")}
before = settings()
import torch, mhex.viz
from mhex import Explanation
p = torch.tensor([[0.2, 0.8]])
e = Explanation(torch.rand(1, 4, 4), torch.tensor([1]), p.log(), p, "gae", size=(8, 8))
e.show()._repr_png_(); e.to_html()
from mhex.viz.charts import CurvePanel, Style, bar_figure, box_figure, curve_figure
from mhex.viz.pages import charts_html
styles = {"m": Style("#000000")}
curves = CurvePanel("t", "x", "y", [0.0, 1.0], {"m": ([1.0, 2.0],) * 3})
charts = [bar_figure("t", "x", {"m": (1.0, "1 s")}, styles), curve_figure([curves], styles, key=True)]
charts_html(dict(zip("abc", [*charts, box_figure("t", "x", {"m": [1.0, 2.0]}, styles)])))
print("matplotlib.pyplot" in sys.modules, settings() == before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "False True\n"


def test_user_settings_do_not_change_the_picture(image, corner):
    import matplotlib

    plain = image(corner).show()._repr_png_()
    with matplotlib.rc_context({"text.usetex": True, "font.size": 30, "figure.autolayout": True}):
        assert image(corner).show()._repr_png_() == plain


def test_scores_on_several_targets_are_described(image):
    scores = torch.zeros(1, 2, 3, 3)
    scores[0, 1, 2, 1] = 1
    got = to_html(image(scores))
    assert "tabby (83 %): all zero" in got
    assert "Egyptian cat (17 %), strongest at the bottom centre" in got


def test_the_strongest_place_of_a_map_that_is_no_square_is_described(image):
    scores = torch.zeros(1, 3, 6)
    scores[0, 2, 0] = 1
    assert "strongest at the bottom left" in to_html(image(scores))
    assert "strongest at the top right" in to_html(image(scores.flip(1, 2)))
    for row, column, words in ((1, 3, "middle centre"), (2, 2, "bottom centre"), (0, 4, "top right")):
        scores = torch.zeros(1, 3, 6)
        scores[0, row, column] = 1
        assert f"strongest at the {words}" in to_html(image(scores))
