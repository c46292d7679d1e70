"""The page of an evaluation: whole, alone, and with the numbers of its report."""

from __future__ import annotations

import html
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch

import mhex
from mhex.errors import ArgumentError, MhexWarning
from mhex.judge import report as about
from mhex.judge import store
from mhex.judge.page import curve_panels, page_of
from mhex.judge.report import evaluations
from mhex.judge.store import MAPS, PHOTOS, explanations_from
from support.reports import report_of
from support.tiny_bert import bert
from support.tiny_bert import tokenizer as make_tokenizer
from support.tiny_models import pictures, tiny

SHORT = {"reference": "zero", "steps": 4}
BY = [("deletion", SHORT), ("insertion", SHORT), ("fidelity", SHORT), "compactness"]
NAMES = ["cat", "<b>dog</b> & co", "bird", "cow", "hen", "pig", "fox"]  # the second is what most are taken for
VOID = {"meta", "img", "path", "line", "rect", "circle", "br"}


def judged(out: Path, **options: Any) -> mhex.Report:
    given: dict[str, Any] = {
        "methods": ["gradcam", ("lrp", {"rule": "gamma"})],
        "metrics": BY,
        "pictures": 2,
        **options,
    }
    model = options.pop("model", None) or tiny("cnn")
    given.pop("model", None)
    return mhex.evaluate(model, pictures(6), batch_size=4, class_names=NAMES, out=out, **given)


class Reader(HTMLParser):
    """Tags that are closed as they were opened, and everything that a browser would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []
        self.cells: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "td":
            self.cells.append("")
        for name, value in attrs:
            if name in ("src", "href", "data", "srcset", "xlink:href", "action"):
                self.fetched.append(value or "")

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "td" in self.open:
            self.cells[-1] += data


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    assert not reader.open
    return reader


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "one"
    judged(path)
    return path


def test_a_page_is_whole_and_fetches_nothing(folder: Path) -> None:
    page = page_of(folder, title="Mine & <yours>")
    reader = read(page)
    assert "<h1>Mine &amp; &lt;yours&gt;</h1>" in page
    assert reader.fetched
    inside = ("#", "data:image/jpeg;base64,", "data:image/svg+xml;base64,")
    assert all(address.startswith(inside) for address in reader.fetched)
    assert "http:" not in page
    assert "https:" not in page
    assert not re.search(r"@import|url\(|<script|<link", page)
    assert 'name="viewport"' in page
    heads = ("Table", "Curves", "Values per sample", "Maps side by side", "Cost per explanation", "How it was made")
    assert re.findall(r"<h2>(.*?)</h2>", page) == list(heads)


def test_numbers_are_those_of_the_report(folder: Path) -> None:
    reader, report = read(page_of(folder)), mhex.Report.load(folder)
    for cell in report.summary():
        assert cell.text in reader.cells
    page = html.unescape(page_of(folder))
    for metric in report.metrics:
        assert report.protocol(metric) in page


def test_curves_are_drawn_where_they_are(folder: Path) -> None:
    """The line of a method goes through its means, inside its band."""
    (entry,) = evaluations(folder)
    panels = {panel.title: panel for panel in curve_panels(entry)}
    name = "deletion (reference=zero, steps=4)"
    fidelity = "fidelity (reference=zero, steps=4)"
    assert list(panels) == [name, "insertion (reference=zero, steps=4)", f"{fidelity}, MIF", f"{fidelity}, LIF"]
    _, shares, curves = entry.report.curves(name)
    for method in ("gradcam", "control:random"):
        middle, low, high = panels[name].bands[method]
        assert torch.allclose(torch.tensor(middle).double(), curves[method].double().mean(0), atol=1e-6)
        assert all(a <= b <= c for a, b, c in zip(low, middle, high, strict=True))
    assert panels[name].x == shares.tolist()
    page = page_of(folder)
    alt = f"{name}: curves of gradcam, lrp (rule=gamma), control:random, control:gaussian, control:sobel"
    assert [f'alt="{panel.title}: curves of gradcam' in page for panel in panels.values()] == [True] * 4
    assert f'alt="{alt}"' in page


def test_controls_are_set_apart(folder: Path) -> None:
    page = page_of(folder)
    assert '<tr class="control"><td>control:random</td>' in page
    assert '<tr class="control"><td>gradcam' not in page
    assert page.count('<figure class="control">') == 2 * 3
    key = re.search(r'<span class="control"><svg .*stroke-dasharray="5 4".*</svg>control:random</span>', page)
    assert key is not None


def test_pictures_and_odd_names(folder: Path) -> None:
    page = page_of(folder)
    assert "<b>dog</b>" not in page
    assert "explained for &lt;b&gt;dog&lt;/b&gt; &amp; co (" in page
    assert "Image 0" in page
    assert "Image 1" in page
    assert "Image 2" not in page
    only = page_of(folder, images=[1])
    assert "Image 0" not in only
    assert "Image 1" in only
    assert only.count("data:image/jpeg") == 1 + 5  # the photo, two methods and three controls
    with pytest.raises(ArgumentError, match=r"but got 5; the folder has \[0, 1\]"):
        page_of(folder, images=[5])


def test_maps_are_those_of_the_methods(folder: Path) -> None:
    (found,) = evaluations(folder)
    model, x = tiny("cnn"), pictures(6)
    explanation = mhex.explain(model, x, "gradcam", model(x).argmax(1), class_names=NAMES)
    for image in (0, 1):
        drawn = found.drawn[image]["gradcam"]
        assert torch.allclose(drawn.scores[0].double(), explanation.scores[image], atol=1e-6)
        assert drawn.target_names(0) == explanation.target_names(image)
        assert drawn.target_probabilities(0) == pytest.approx(explanation.target_probabilities(image))
        assert drawn.pictures is not None
    assert list(found.drawn) == [0, 1]


def test_saved_maps_of_texts_have_no_padding(tmp_path: Path) -> None:
    model, tokenizer, texts = bert(), make_tokenizer(), ["the movie was good", "good"]
    options: Any = {"tokenizer": tokenizer, "pictures": 2, "out": tmp_path, "controls": False}
    mhex.evaluate(model, [{"text": text} for text in texts], ["gae"], ["compactness"], **options)
    (evaluation,) = evaluations(tmp_path)
    for image, text in enumerate(texts):
        saving, alone = evaluation.drawn[image]["gae"], mhex.explain(model, [text], "gae", tokenizer=tokenizer)
        assert saving.scores.shape == alone.scores.shape
        assert saving.tokens == alone.tokens
        assert torch.allclose(saving.scores.double(), alone.scores.double(), atol=1e-6)


def test_the_predicted_class_is_told_beside_another(tmp_path: Path) -> None:
    model, x = tiny("cnn"), pictures(6)
    shares = model(x).softmax(1)
    other = int(shares[0].argmin())
    judged(tmp_path, target=other, controls=False)
    (found,) = evaluations(tmp_path)
    name, share = found.drawn[0]["gradcam"].prediction(0) or ("", 0.0)
    assert (name, share) == (NAMES[int(shares[0].argmax())], pytest.approx(float(shares[0].max())))
    assert f"; predicted: {html.escape(name)} ({100 * share:.3g} %)" in page_of(tmp_path)


def test_files_that_do_not_tell_the_prediction_are_read(folder: Path, tmp_path: Path) -> None:
    photos, maps = store.read(folder, PHOTOS), store.read(folder, MAPS)
    place = maps.column_names.index("tokens")
    empty = maps.set_column(place, "tokens", pa.array([""] * len(maps)))
    first = explanations_from(photos, empty)[0]["gradcam"]
    known = explanations_from(photos, maps)[0]["gradcam"]
    assert first.prediction(0) is None
    assert known.prediction(0) is not None
    assert first.target_names(0) == known.target_names(0)
    assert first.target_probabilities(0) == known.target_probabilities(0)


def test_pictures_are_kept_once(tmp_path: Path) -> None:
    judged(tmp_path, pictures=1)
    judged(tmp_path, pictures=2)
    before = sorted(path.name for path in tmp_path.iterdir())
    judged(tmp_path, pictures=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    (found,) = evaluations(tmp_path)
    assert {image: len(by) for image, by in found.drawn.items()} == {0: 5, 1: 5}
    with pytest.raises(ArgumentError, match="a folder for 2 pictures"):
        mhex.evaluate(tiny("cnn"), pictures(2), ["gradcam"], ["compactness"], pictures=2)
    with pytest.raises(ArgumentError, match="whole number from 0"):
        judged(tmp_path, pictures=-1)


def test_texts_are_shown_with_their_words(tmp_path: Path) -> None:
    from support.tiny_bert import bert, tokenizer

    data = [("the movie was good", 1), ("a bad bad film", 0)]
    given: Any = {"controls": True, "tokenizer": tokenizer(), "out": tmp_path, "pictures": 1}
    mhex.evaluate(bert(), data, ["attention"], [("deletion:text", {"steps": 4})], **given)
    page = page_of(tmp_path)
    read(page)
    assert "Text 0" in page
    assert "cut after" not in page
    (found,) = evaluations(tmp_path)
    explanation = mhex.explain(bert(), [data[0][0]], "attention", tokenizer=tokenizer())
    words = found.drawn[0]["attention"].word_scores()
    assert all(name in page for name in ("control:random", "attention", *(word for word, _ in words)))
    assert [word for word, _ in words] == [word for word, _ in explanation.word_scores()]
    assert [score for _, score in words] == pytest.approx([score for _, score in explanation.word_scores()], abs=1e-6)


def test_a_text_that_was_cut_is_told(tmp_path: Path) -> None:
    from support.tiny_bert import bert, tokenizer

    given: Any = {"controls": False, "tokenizer": tokenizer(), "out": tmp_path, "pictures": 1}
    with pytest.warns(MhexWarning, match="were cut"):
        mhex.evaluate(bert(), ["good film " * 30], ["attention"], [("deletion:text", {"steps": 2})], **given)
    assert "cut after 40 of 62 tokens" in page_of(tmp_path)


def test_several_models_are_chapters(tmp_path: Path) -> None:
    judged(tmp_path / "a", pictures=0, metrics=["compactness"])
    judged(tmp_path / "deep" / "b", pictures=0, metrics=["compactness"], model=tiny("pre"), methods=["rollout"])
    page = page_of(tmp_path)
    read(page)
    assert re.findall(r"<h2>(.*?)</h2>", page) == ["a", "deep/b"]
    assert page.count("<h3>Table</h3>") == 2
    assert "<h3>Curves</h3>" not in page


def test_how_it_was_made_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = read(page_of(folder)).cells
    facts = dict(zip(cells[-20:], cells[-19:], strict=False))
    assert facts["seed"] == "0"
    assert facts["samples"] == "6"
    assert facts["skipped"] == "none"
    assert f"torch {torch.__version__}" in facts["versions"]
    assert facts["methods"].startswith("gradcam, lrp (rule=gamma), control:random")
    monkeypatch.setattr("sys.argv", ["/somewhere/mhex", "bench", "my suite.yaml"])
    assert about.command() == "mhex bench 'my suite.yaml'"


def test_images_that_do_not_count_are_told(tmp_path: Path) -> None:
    numbers = {"deletion": {"a <x>": torch.tensor([0.1, float("nan"), 0.3]), "b": torch.tensor([0.2, 0.2, 0.4])}}
    (tmp_path / "run").mkdir()
    store.write(report_of(numbers).rows, tmp_path / "run" / "part-000000.parquet")
    page = page_of(tmp_path / "run")
    read(page)
    assert "1 of 3 for a &lt;x&gt; by deletion" in page
    assert "<x>" not in page
    assert "not written down" in page


def test_cost_is_the_longest_of_an_image(tmp_path: Path) -> None:
    """Maps that were read from a cache took no time."""
    rows = report_of({"deletion": {"a": torch.rand(3)}, "insertion": {"a": torch.rand(3)}}).rows.to_pylist()
    for row, seconds in zip(rows, (2.0, 3.0, 9.0, 0.1, 0.1, 0.1), strict=True):
        row["explain_seconds"] = seconds
    store.write(store.as_table(rows), tmp_path / "part-000000.parquet")
    (found,) = evaluations(tmp_path)
    assert found.seconds() == {"a": 3.0}
    assert 'alt="Time per explanation: a 3 s"' in page_of(tmp_path)


def test_folders_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"Expected a folder with evaluations at .*nowhere"):
        page_of(tmp_path / "nowhere")
    with pytest.raises(ArgumentError, match="no rows"):
        page_of(tmp_path)
    judged(tmp_path / "run", pictures=1)
    for name in ("maps-000001.parquet", "photos-000000.parquet", "curves-000000.parquet", "part-000001.parquet"):
        path = tmp_path / "run" / name
        whole = path.read_bytes()
        path.write_bytes(whole[:60])
        with pytest.raises(ArgumentError, match=f"{name}', but the file is damaged"):
            page_of(tmp_path)
        path.write_bytes(whole)
    (tmp_path / "run" / "about.json").write_text("{")
    with pytest.raises(ArgumentError, match="no JSON"):
        page_of(tmp_path)
    (tmp_path / "run" / "about.json").write_text(json.dumps({"a": 1}))
    with pytest.raises(ArgumentError, match="something else"):
        page_of(tmp_path)
