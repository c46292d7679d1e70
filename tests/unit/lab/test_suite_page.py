"""Pages of suites: numbers beside published ones, narrow tables, charts, and pages from rows alone."""

from __future__ import annotations

import json
import re
import shutil
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from mhex.errors import ArgumentError
from mhex.judge.rows import explain_seconds
from mhex.lab.config.suite import ClaimPart, Suite
from mhex.lab.suites import run as suite_shelf
from mhex.lab.suites.page import Checked, check_claims, fingerprint, suite_charts, suite_page, write_page
from mhex.lab.suites.run import run_suite
from mhex.lab.suites.stored import SuiteResult, stored_result
from mhex.stats.simultaneous import holm
from support.pairs import paired
from support.suites import numbers_of, suite_of

SWEEP = {"reference": "zero", "steps": 4}
MANY = [
    *({"name": name, "changes": SWEEP} for name in ("deletion", "fidelity", "insertion")),
    "average-drop",
    "segmentation",
    "compactness",
]


pytestmark = pytest.mark.usefixtures("_places")


@pytest.fixture(scope="module")
def many(folders: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, SuiteResult]:
    """A run of many columns with charts, and its folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MHEX_MODELS", str(folders[0]))
        patch.setenv("MHEX_DATA", str(folders[1]))
        folder = tmp_path_factory.mktemp("many")
        suite = suite_of(folder, metrics=MANY, charts=True, seed=0)
        return folder / "out", run_suite(suite, folder / "out", command="mhex bench mine.yaml")


def test_the_page_has_our_numbers_beside_the_published_ones(tmp_path: Path) -> None:
    published = {
        "paper": "A paper",
        "table": "Table 9",
        "note": "Another model.",
        "percent": True,
        "values": {"gae": {"segmentation miou": 61.5}, "rollout (start_block=2)": {"segmentation pacc": 70}},
    }
    suite = suite_of(tmp_path, published=[published], reading="What follows.", about="What it is.")
    result = run_suite(suite, tmp_path / "out", command="mhex bench mine.yaml")
    result = replace(result, suite=suite.model_copy(update={"reading_of": fingerprint(result)}))
    page = suite_page(result)
    for words in (
        "# A small suite",
        "What it is.",
        "Made by `mhex bench mine.yaml`: seed 3, ",
        "| tiny-vit (`zoo:tiny-vit`) | breed 16.7 %, cat dog 50.0 % (test) | pets, test | 6 | predicted | itself |",
        "### Beside A paper, Table 9",
        "Published per cent are shown as shares",
        "reference=zero, steps=4",
        "| method | seconds per explanation |",
        "## Reading\n\nWhat follows.\n\n## tiny-vit",
    ):
        assert words in page, words
    ours = {(cell.method, cell.output): cell.text for cell in result.reports["tiny-vit"].summary()}
    assert "| method | segmentation miou | published | segmentation pacc | published |" in page
    assert f"| gae | {ours['gae', 'miou']} | 0.615 | {ours['gae', 'pacc']} | — |" in page
    costs = explain_seconds(result.reports["tiny-vit"].rows)
    assert costs.keys() == set(result.reports["tiny-vit"].methods)
    assert all(value > 0 for value in costs.values())


def test_tables_are_narrow_and_hold_every_number(many: tuple[Path, SuiteResult]) -> None:
    page = suite_page(many[1])
    cells = many[1].reports["tiny-vit"].summary()
    neutral = {
        cell.column: {one.text for one in cells if one.column == cell.column} for cell in cells if not cell.higher
    }
    empty = {cell.column for cell in cells if cell.higher is None and len(neutral[cell.column]) == 1}
    columns = [name for name in dict.fromkeys(cell.column for cell in cells) if name not in empty]
    assert empty
    assert len(columns) > 8
    heads = [line for line in page.splitlines() if line.startswith("| method |") and "seconds" not in line]
    shown = [re.sub(r" [\u2191\u2193]$", "", name.strip()) for line in heads for name in line.split("|")[2:-1]]
    assert shown == columns
    assert all(len(line.split("|")) - 3 <= 4 for line in heads)
    for cell in cells:
        assert cell.text in page or cell.column in empty
    for metric in many[1].reports["tiny-vit"].metrics:
        assert sum(line.startswith(f"- {metric}: n = 6") for line in page.splitlines()) == 1, metric
    assert page.count("is half of the 95 % bootstrap interval") == 1
    for column in empty:
        text = next(cell.text for cell in cells if cell.column == column)
        assert (f"- {column}: {text} for all" in page) is (set(text) - set("0.± ") != set())


def test_claims_are_tested_on_the_rows(tmp_path: Path) -> None:
    names, column = ("gae", "rollout (start_block=2)"), "compactness"
    claims = [
        {"words": "first", "column": column, "better": [names[0]], "than": [names[1]]},
        {"words": "second", "column": column, "better": [names[1]], "than": [names[0], "control:random"]},
        {"words": "other", "column": column, "better": [names[0]], "than": [names[1]], "models": ["tiny-vit"]},
    ]
    suite = suite_of(tmp_path, metrics=["compactness"], claims=claims, seed=0)
    result = run_suite(suite, tmp_path / "out", remark="The machine was busy.")
    report = result.reports["tiny-vit"]
    found = check_claims(suite.claims, "tiny-vit", report, report.summary(), 0)
    assert [(one.first, one.second) for one in found] == [names, names[::-1], (names[1], "control:random"), names]
    pair = report.compare("compactness", list(names))[names]
    assert found[0].pair.difference == pytest.approx(pair.difference)
    assert found[1].pair.difference == pytest.approx(-pair.difference)
    assert [one.adjusted for one in found] == holm([one.pair.p for one in found])
    assert {one.result for one in found} == {"not told apart"}  # six images show nothing
    page = suite_page(result)
    assert "### Claims, tested" in page
    assert f"| first | {column} ↑ | gae minus rollout (start_block=2) | {pair.difference:.3g} (" in page
    assert "`. The machine was busy." in page


@pytest.mark.parametrize(("difference", "higher", "p", "wanted"), [
    (0.2, True, 0.01, "better"),
    (0.2, False, 0.01, "worse"),
    (-0.2, True, 0.049, "worse"),
    (-0.2, False, 0.01, "better"),
    (0.2, True, 0.05, "not told apart"),
    (0.0, True, float("nan"), "not told apart"),
])  # fmt: skip
def test_what_a_claim_shows(difference: float, higher: bool, p: float, wanted: str) -> None:
    rows = torch.rand(9, generator=torch.Generator().manual_seed(0))
    pair = replace(paired(rows, rows), difference=difference)
    claim = ClaimPart(words="words", column="deletion", better=("a",), than=("b",))
    assert Checked(claim, "a", "b", pair, p, higher).result == wanted


@pytest.mark.parametrize(("p", "adjusted", "words"), [
    (1 / 10_001, 0.0018, "at most 0.0018"),
    (2 / 10_001, 0.0018, "0.0018"),
    (1 / 10_001, 0.0005, "< 0.001"),
    (0.3, 1.0, "1"),
    (float("nan"), float("nan"), "nan"),
])  # fmt: skip
def test_p_of_a_claim_as_it_is_printed(p: float, adjusted: float, words: str) -> None:
    rows = torch.rand(9, generator=torch.Generator().manual_seed(0))
    pair = replace(paired(rows, rows), p=p, flips=10_000)
    claim = ClaimPart(words="words", column="deletion", better=("a",), than=("b",))
    assert Checked(claim, "a", "b", pair, adjusted, True).p_text == words


def test_claims_of_what_no_table_has_are_refused(tmp_path: Path) -> None:
    good = {"words": "w", "column": "segmentation miou", "better": ["gae"], "than": ["rollout (start_block=2)"]}
    wrong = {
        "column": ["segmentation", "segmentation best_threshold"],
        "better": [["gea"], [], ["gae", "rollout (start_block=2)"]],
        "than": [["rollout"], [], ["gae"]],
        "models": [["vit"]],
        "words": ["a | b"],
    }
    suite_of(tmp_path, claims=[good])
    for key, value in ((key, value) for key, values in wrong.items() for value in values):
        with pytest.raises(ArgumentError, match=r"claims\[0\]"):
            suite_of(tmp_path, claims=[{**good, key: value}])


def test_charts_are_files_beside_the_page(many: tuple[Path, SuiteResult], tmp_path: Path) -> None:
    files = write_page(many[1], tmp_path / "results" / "mine.md")
    assert [path.relative_to(tmp_path / "results").as_posix() for path in files] == [
        "mine.md",
        "images/small-tiny-vit.svg",
    ]
    assert "![Mean curves of tiny-vit](images/small-tiny-vit.svg)" in files[0].read_text(encoding="utf-8")
    ElementTree.fromstring(files[1].read_text(encoding="utf-8"))
    (chart,) = suite_charts(many[1]).values()
    assert len(chart.axes) == 4, "deletion, both orders of fidelity, and insertion"
    (key,) = chart.legends
    names = [text.get_text() for text in key.get_texts()]
    assert names[:2] == ["gae", "rollout (start_block=2)"]
    assert "control:random" in names
    chart.canvas.draw()
    boxes = [axes.get_tightbbox() for axes in chart.axes]
    for box in (*boxes, key.get_window_extent(), *(text.get_window_extent() for text in chart.artists)):
        assert box.x0 >= 0
        assert box.y0 >= 0
        assert box.x1 <= chart.bbox.width
        assert box.y1 <= chart.bbox.height
    assert not any(box.overlaps(beside) for n, box in enumerate(boxes) for beside in boxes[n + 1 :])
    assert not any(box.overlaps(key.get_window_extent()) for box in boxes)


def test_a_page_is_made_from_rows_alone(
    many: tuple[Path, SuiteResult], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(many[0], tmp_path / "copied")
    for name in ("MHEX_MODELS", "MHEX_DATA"):
        monkeypatch.setenv(name, str(tmp_path / "nothing"))
    monkeypatch.setattr(suite_shelf, "load", lambda name: pytest.fail("loaded a model"))
    monkeypatch.setattr(suite_shelf, "data_entry", lambda name: pytest.fail("loaded data"))
    again = stored_result(tmp_path / "copied")
    assert again.suite == many[1].suite
    assert suite_page(again) == suite_page(many[1])
    words = {"reading": "Other words.", "reading_of": fingerprint(again)}
    assert "Other words." in suite_page(stored_result(tmp_path / "copied", suite_of_words(many[1].suite, **words)))


def test_a_reading_stands_above_its_own_numbers_alone(many: tuple[Path, SuiteResult]) -> None:
    numbers = fingerprint(many[1])
    assert f"Fingerprint of the numbers: `{numbers}`." in suite_page(many[1])
    assert numbers_of(suite_page(many[1])) == numbers, "it is that of the numbers as they are printed"
    for reading_of in ("", "0123456789abcdef"):
        suite = suite_of_words(many[1].suite, reading="Words of a paper.", reading_of=reading_of)
        page = suite_page(replace(many[1], suite=suite))
        assert "Words of a paper." not in page
        assert "The suite has a reading of other numbers than these, which is left out." in page
    suite = suite_of_words(many[1].suite, reading="Words of a paper.", reading_of=numbers)
    report = many[1].reports["tiny-vit"]
    fewer = replace(many[1], suite=suite, reports={"tiny-vit": report.only(report.methods[:1], report.metrics)})
    assert "## Reading\n\nWords of a paper." in suite_page(replace(many[1], suite=suite))
    assert "Words of a paper." not in suite_page(fewer)
    renamed = replace(many[1], suite=suite, reports={"other": report})
    assert fingerprint(renamed) != numbers


def suite_of_words(suite: Suite, **changes: Any) -> Suite:
    return suite.model_copy(update=changes)


def test_rows_that_do_not_belong_are_refused(many: tuple[Path, SuiteResult], tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"Expected .*nowhere.suite\.json"):
        stored_result(tmp_path / "nowhere")
    folder = tmp_path / "copied"
    shutil.copytree(many[0], folder)
    with pytest.raises(ArgumentError, match=r"rows of the suite other in .*but got those of small"):
        stored_result(folder, suite_of_words(many[1].suite, name="other"))
    told = json.loads((folder / "suite.json").read_text())
    for key, value, words in (
        ("images", 5, "Expected rows of 5 samples .*but got 6"),
        ("methods", ["gae", "lrp"], "Expected rows of lrp"),
    ):
        record = {**told["models"]["tiny-vit"], key: value}
        (folder / "suite.json").write_text(json.dumps({**told, "models": {"tiny-vit": record}}))
        with pytest.raises(ArgumentError, match=words):
            stored_result(folder)
    (folder / "suite.json").write_text("{}")
    with pytest.raises(ArgumentError, match="is damaged"):
        stored_result(folder)


def test_only_what_is_told_of_is_shown(many: tuple[Path, SuiteResult], tmp_path: Path) -> None:
    folder = tmp_path / "copied"
    shutil.copytree(many[0], folder)
    told = json.loads((folder / "suite.json").read_text())
    told["models"]["tiny-vit"]["methods"] = ["gae", "control:random"]
    (folder / "suite.json").write_text(json.dumps(told))
    assert stored_result(folder).reports["tiny-vit"].methods == ["gae", "control:random"]
