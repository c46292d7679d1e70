"""Suite files: what they say, what is refused with file and key, and that all packaged ones can be run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mhex.errors import ArgumentError
from mhex.lab.config.suite import SuiteMethod, find_suite, packaged_suites, read_suite
from support.suites import write_models, write_suite


@pytest.fixture(autouse=True)
def _models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MHEX_MODELS", str(write_models(tmp_path / "models")))


def read(tmp_path: Path, **changes: Any) -> Any:
    return read_suite(write_suite(tmp_path / "mine.yaml", **changes))


def test_a_suite_says_what_is_asked_of_each_model(tmp_path: Path) -> None:
    other = {"name": "zoo:tiny-vit", "label": "known", "target": "label", "methods": ["all"], "data": {"name": "pets"}}
    suite = read(tmp_path, models=["zoo:tiny-vit", other], leave_out=["rise"])
    plain, known = suite.entries()
    assert (plain.label, plain.target, plain.data.limit, plain.leave_out) == ("tiny-vit", "predicted", 6, ("rise",))
    assert plain.methods == (SuiteMethod(name="gae"), SuiteMethod(name="rollout", options={"start_block": 2}))
    assert (known.label, known.target, known.data.limit, known.methods) == (
        "known",
        "label",
        None,
        (SuiteMethod(name="all"),),
    )
    quick = suite.entries(quick=True)
    assert [(one.data.limit, [part.name for part in one.metrics]) for one in quick] == [(2, ["segmentation"])] * 2
    assert quick[0].methods == (SuiteMethod(name="rollout"),)
    assert quick[1].methods == known.methods  # a model's own methods stay
    suite = read(tmp_path, leave_out=["rise"], quick={"limit": 2, "leave_out": ["shap"]})
    assert [suite.entries(quick)[0].leave_out for quick in (False, True)] == [("rise",), ("rise", "shap")]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"titel": "x"}, "Unknown key 'titel'. Did you mean 'title'"),
        ({"metrics": None}, "the key metrics is missing"),
        ({"name": "Small suite"}, "name should be small letters"),
        ({"models": []}, "models should not be empty"),
        ({"models": ["zoo:tiny-vit", {"nam": "x"}]}, r"Unknown key in models\[1\] 'nam'"),
        ({"models": [3]}, r"models\[0\] should be a text or a mapping of keys to values, not 3"),
        ({"models": ["tiny-vit"]}, r"models\[0\]: expected a model as zoo:NAME"),
        ({"models": ["zoo:tiny-vid"]}, r"models\[0\]: Unknown zoo model 'tiny-vid'. Did you mean 'tiny-vit'"),
        ({"models": ["zoo:tiny-vit", "zoo:tiny-vit"]}, r"models\[1\]: 'tiny-vit' is there twice; give one .* a label"),
        ({"models": [{"name": "zoo:tiny-vit", "label": "a/b"}]}, r"models\[0\]: label: expected letters"),
        ({"data": {"name": "pet"}}, "data: Unknown data set 'pet'. Did you mean 'pets'"),
        ({"data": {"name": "pets", "limit": 0}}, "data.limit should be a whole number of at least 1 or null, not 0"),
        ({"data": {"name": "pets", "form": "grid"}}, "data.form should be one of single, side-by-side, mosaic"),
        ({"data": {"name": "pets", "window": [0, 4095]}}, "data: window is for photos of one's own"),
        ({"data": {"name": "folder:x", "window": [9, 1]}}, "data: Expected window= to be two numbers"),
        ({"data": {"name": "folder:x", "window": 12}}, "data.window should be"),
        ({"methods": ["gae", "gaa"]}, r"methods\[1\]: Unknown method 'gaa'"),
        ({"methods": [{"name": "gae", "options": {"start": 1}}]}, r"methods\[0\]: Method 'gae' has no option 'start'"),
        ({"methods": ["gae", "gae"]}, r"methods\[1\]: gae is there twice"),
        ({"methods": [{"name": "all", "options": {"n": 1}}]}, r"methods\[0\]: 'all' takes no options"),
        ({"methods": ["control:rendom"]}, r"methods\[0\]: Unknown control map"),
        ({"leave_out": ["ris"]}, "leave_out: Unknown method 'ris'"),
        ({"metrics": ["deletion:ris"]}, r"metrics\[0\]: Unknown preset 'ris'"),
        ({"metrics": [{"name": "deletion", "changes": {"step": 2}}]}, r"metrics\[0\]: .*step"),
        ({"metrics": ["token-f1"]}, r"metrics\[0\]: Metric 'token-f1' is not defined for image models"),
        ({"metrics": ["class-discrimination"]}, r"metrics\[0\]: class-discrimination needs pictures of two classes"),
        (
            {"data": {"name": "pets", "form": "mosaic"}},
            r"metrics\[1\]: segmentation needs masks, and pets as mosaic pictures has none",
        ),
        ({"metrics": ["average-drop:mhex"]}, r"metrics\[0\]: average-drop:mhex reads another network .*evaluator"),
        ({"evaluator": "zoo:tiny-vit"}, "evaluator: expected another network than zoo:tiny-vit"),
        ({"quick": {"limit": 2, "methods": ["gea"]}}, r"quick.methods\[0\]: Unknown method 'gea'"),
        ({"quick": {"limit": 2, "models": ["tiny"]}}, "quick.models: Unknown model 'tiny'"),
        ({"quick": {}}, "the key quick.limit is missing"),
        ({"seed": -1}, "seed should be a whole number of at least 0"),
        ({"pictures": -1}, "pictures should be a whole number of at least 0"),
        ({"charts": True, "curves": False}, "charts draw curves, so curves should be true"),
        ({"charts": True, "metrics": ["segmentation"]}, "charts: they draw curves, and no metric .* has any"),
        (
            {"models": [{"name": "zoo:tiny-vit", "leave_out": ["gea"]}]},
            r"models\[0\].leave_out: Unknown method 'gea'",
        ),
    ],
)
def test_mistakes_are_told_with_file_and_key(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ArgumentError, match=rf"^mine\.yaml: {words}"):
        read(tmp_path, **changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"values": {"gea": {"segmentation miou": 1}}}, ": Unknown method 'gea'. Did you mean 'gae'"),
        ({"values": {"gae": {"segmentation mio": 1}}}, ": Unknown column 'segmentation mio'"),
        ({"values": {"gae": {"segmentation miou": "1"}}}, ".values.gae.segmentation miou should be a number"),
        ({"values": {"gae": 3}}, ".values.gae should be a mapping of keys"),
        ({"models": ["other"]}, ": Unknown model 'other'"),
    ],
)
def test_published_numbers_need_a_place(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    told = {"paper": "P", "table": "T", "note": "N", "values": {"gae": {"segmentation miou": 1.0}}}
    read(tmp_path, published=[told])
    with pytest.raises(ArgumentError, match=rf"^mine\.yaml: published\[0\]{words}"):
        read(tmp_path, published=[{**told, **changes}])


def test_files_are_found_by_path_and_by_name(tmp_path: Path) -> None:
    path = write_suite(tmp_path / "mine.yaml")
    assert find_suite(str(path)) == path
    assert find_suite("cdam").name == "cdam.yaml"
    with pytest.raises(ArgumentError, match=r"There is no suite file .*other\.yaml"):
        find_suite(str(tmp_path / "other.yaml"))
    with pytest.raises(ArgumentError, match=r"Unknown suite 'cdan'\. Did you mean 'cdam'"):
        find_suite("cdan")
    wrong = {"- a": "should be a mapping", "name: [": "not valid YAML", "a: 1\na: 2": "twice", 5000 * "[": "64 levels"}
    for text, words in wrong.items():
        path.write_text(text)
        with pytest.raises(ArgumentError, match=words):
            read_suite(path)


@pytest.mark.parametrize("name", sorted(packaged_suites()))
def test_packaged_suites_can_be_run(name: str) -> None:
    """Methods, options, metrics, presets, data, models and published columns are checked by reading."""
    suite = read_suite(packaged_suites()[name])
    assert suite.name == name
    assert suite.reading
    assert suite.quick.limit <= 32
    assert all(entry.data.limit == suite.quick.limit for entry in suite.entries(quick=True))
