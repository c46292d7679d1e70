"""A recommendation as a folder and a page: whole, alone, with pictures, and read by `mhex report` too."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import mhex
from mhex.cli.report import folder_page
from mhex.errors import ArgumentError
from support.method_races import GRADIENT, GRADIENT_NAME, Clock, Linear, images, run
from support.tiny_models import pictures, tiny

NAMES = ["cat", "<b>dog</b>", "bird", "cow", "hen", "pig", "fox"]
BESIDE = {"recommendation.html", "recommendation.txt", "recommendation.json", "run.json", "about.json"}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[mhex.Recommendation, Path]:
    path = tmp_path_factory.mktemp("runs") / "new"
    given: Any = {"methods": ["gradcam", "layercam", "input-x-gradient", ("rise", {"n": 10**8})], "out": path}
    found = mhex.recommend(tiny("cnn"), pictures(8), 600, **given, class_names=NAMES, clock=Clock())
    return found, path


def test_the_folder_holds_all_of_it(saved: tuple[mhex.Recommendation, Path]) -> None:
    found, folder = saved
    rows = {f"{kind}-000000.parquet" for kind in ("part", "photos", "maps")}
    assert {path.name for path in folder.iterdir()} == BESIDE | rows
    assert (folder / "recommendation.txt").read_text("utf-8") == f"{found}\n"
    told = json.loads((folder / "recommendation.json").read_text("utf-8"))
    assert told["method"] == found.method
    assert list(told["too_slow"]) == ["rise (n=100000000)"]
    report = mhex.Report.load(folder)
    assert report.rows.num_rows == found.report.rows.num_rows
    assert report.values("removal")[1]["gradcam"].shape == (8, 3)


def test_the_page_is_whole_and_fetches_nothing(saved: tuple[mhex.Recommendation, Path]) -> None:
    found, folder = saved
    page = (folder / "recommendation.html").read_text("utf-8")
    assert page == found.to_html()
    assert page.count("<section") == page.count("</section>")
    sources = re.findall(r'(?:src|href)="([^"]*)"', page)
    assert sources
    inside = ("#", "data:image/jpeg;base64,", "data:image/svg+xml;base64,")
    assert all(source.startswith(inside) for source in sources)
    assert not re.search(r"https?:|@import|url\(|<script|<link|<b>dog", page)
    assert 'name="viewport"' in page
    heads = ["Answer", "Methods", "Maps", "Behind the best", "Cost per explanation", "Not raced", "Score and race"]
    assert re.findall(r"<h2>(.*?)</h2>", page) == [*heads, "How it was made"]
    plain = html.unescape(page)
    assert found.sentences()[0] in plain
    assert found.score in plain
    assert "Too slow for a budget of 10 min: rise (n=100000000)." in plain
    assert f'mhex.explain(model, inputs, "{found.method}")' in plain
    assert f"torch {torch.__version__}" in page


def test_the_table_has_scores_parts_and_standings(saved: tuple[mhex.Recommendation, Path]) -> None:
    found, _ = saved
    body = found.to_html().split("<tbody>")[1].split("</tbody>")[0]
    rows = [re.findall(r"<td>(?:<b>)?(.*?)(?:</b>)?</td>", row) for row in body.split("</tr>")[:-1]]
    assert [row[0] for row in rows] == [line.method for line in found.table]
    for row, line in zip(rows, found.table, strict=True):
        low, high = line.spans["score"]
        assert low <= line.score <= high
        assert row[1] == line.standing
        assert row[2] == (line.above_random or "")
        assert row[3] == f"{line.score:.2f} ± {(high - low) / 2:.2f}"
        values = found.values[line.method]
        assert line.score == pytest.approx(float(values[values.isfinite()].mean()))
        assert row[4].startswith(f"{line.parts['agreement']:.2f} ± ")
        assert row[-2] == str(line.images)
    assert rows[0][1].startswith("best")
    assert [row[1] for row in rows[-3:]] == ["control"] * 3


def test_pictures_are_of_the_best_and_of_random_maps(saved: tuple[mhex.Recommendation, Path]) -> None:
    found, _ = saved
    page = found.to_html()
    assert [f"Image {k}" in page for k in range(4)] == [True, True, True, False]
    assert page.count("data:image/jpeg") == 3 * (1 + 3 + 1)  # the photo, three methods and random maps
    assert page.count('<figure class="control">') == 3
    assert f"<figcaption>{found.method}<br><small>{found.table[0].standing}</small>" in page
    assert "explained for &lt;b&gt;dog&lt;/b&gt;" in page


def test_reports_read_it_and_say_where_the_answer_is(saved: tuple[mhex.Recommendation, Path]) -> None:
    _, folder = saved
    page = folder_page(folder)
    assert "recommendation.html, beside this page, says which method to use" in page
    assert "Maps side by side" in page
    assert "<td>gradcam</td>" in page


def test_it_replaces_another_one_and_nothing_else(tmp_path: Path) -> None:
    run(images=4, score=("deletion", {"reference": "zero", "steps": 4})).save(tmp_path / "a")
    assert (tmp_path / "a" / "curves-000000.parquet").is_file()
    found = run(images=3, seed=1)
    found.save(tmp_path / "a")
    assert mhex.Report.load(tmp_path / "a").rows.num_rows == found.report.rows.num_rows
    assert not (tmp_path / "a" / "curves-000000.parquet").exists()
    assert json.loads((tmp_path / "a" / "run.json").read_text("utf-8"))["seed"] == 1
    assert len(json.loads((tmp_path / "a" / "about.json").read_text("utf-8"))) == 1
    mhex.evaluate(tiny("cnn"), pictures(2), ["gradcam"], ["compactness"], out=tmp_path / "b")
    with pytest.raises(ArgumentError, match="holds an evaluation"):
        found.save(tmp_path / "b")
    clock = Clock()
    with pytest.raises(ArgumentError, match="holds an evaluation"):
        run(Linear(clock, 1.0), clock=clock, out=tmp_path / "b")
    assert clock.now < 0.1  # before any work


def test_curves_are_kept_where_the_score_reads_some(tmp_path: Path) -> None:
    found = run(score=("deletion", {"reference": "zero", "steps": 4}), images=3)
    found.save(tmp_path)
    name = "deletion (reference=zero, steps=4)"
    assert mhex.Report.load(tmp_path).curves(name)[2]["input-x-gradient"].shape == (3, 5)
    assert "<h2>Curves</h2>" in found.to_html()


def test_a_table_alone_is_shown_in_notebooks() -> None:
    piece = run(methods=[GRADIENT, "input-x-gradient"], data=images(16))._repr_html_()
    assert piece.startswith("<ul><li>Use input-x-gradient")
    assert f"<tr><td>{GRADIENT_NAME}</td><td>worse</td><td>negligible</td>" in piece
    assert "<html" not in piece


def test_texts_are_shown_with_their_words(tmp_path: Path) -> None:
    from support.tiny_bert import bert, tokenizer

    data = ["a good seaside film", "bad plot , long play", "good player a b"]
    given: Any = {"methods": ["gae", "rollout"], "tokenizer": tokenizer(), "out": tmp_path}
    found = mhex.recommend(bert(), data, 600, **given)
    page = (tmp_path / "recommendation.html").read_text("utf-8")
    assert page.count("<strong>Text ") == 3
    assert "seaside" in page
    assert all(f"<strong>{name}" in page for name in (found.method, "control:random"))
