"""Running suites: reports and what is told of them, going on after a kill, and pages."""

from __future__ import annotations

import json
import math
import multiprocessing
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import mhex
from mhex.errors import ArgumentError
from mhex.judge import cases
from mhex.judge.report import evaluations
from mhex.lab.config.suite import SuiteData
from mhex.lab.suites import run as suite_shelf
from mhex.lab.suites.page import suite_page
from mhex.lab.suites.run import Shelf, evaluator_of, run_suite
from mhex.methods import all_methods
from support.suites import suite_of, write_models

DELETION = "deletion (seed=3, reference=zero, steps=4)"


pytestmark = pytest.mark.usefixtures("_places")


def values_of(report: mhex.Report) -> dict[tuple[Any, ...], float]:
    names = ("image", "input", "method", "options", "metric", "column")
    return {tuple(row[name] for name in names): row["value"] for row in report.rows.to_pylist()}


def test_every_model_has_a_report_and_is_told_of(tmp_path: Path) -> None:
    known = {"name": "zoo:tiny-vit", "label": "known", "target": "label"}
    suite = suite_of(tmp_path, models=["zoo:tiny-vit", known])
    result = run_suite(suite, tmp_path / "out", command="mhex bench mine.yaml")
    assert list(result.reports) == ["tiny-vit", "known"]
    for label, report in result.reports.items():
        assert report.methods[:2] == ["gae", "rollout (start_block=2)"]
        assert report.metrics == [DELETION, "segmentation (seed=3)"]
        assert values_of(mhex.Report.load(tmp_path / "out" / label)).keys() == values_of(report).keys()
    told = json.loads((tmp_path / "out" / "suite.json").read_text())
    assert told == result.record
    assert {"mhex", "torch", "timm", "transformers", "python"} <= told["versions"].keys()
    assert (told["seed"], told["quick"], told["command"]) == (3, False, "mhex bench mine.yaml")
    assert told["device"].startswith("cpu")
    assert told["wall_seconds"] > 0
    assert told["suite"]["title"] == "A small suite"
    record = told["models"]["known"]
    assert (record["images"], record["target"], record["model"]) == (6, "label", "zoo:tiny-vit")
    assert record["protocols"][DELETION].startswith("reference=zero, steps=4")
    assert record["accuracy"]["breed"] == 0.1667


def test_the_second_call_computes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    suite = suite_of(tmp_path)
    first = run_suite(suite, tmp_path / "out", command="first")
    assert first.added > 0
    monkeypatch.setattr(cases.Explainer, "__call__", lambda *a, **k: pytest.fail("explained again"))
    monkeypatch.setattr(cases, "control", lambda *a, **k: pytest.fail("made a control map again"))
    second = run_suite(suite, tmp_path / "out", command="second")
    assert second.added == 0
    assert second.record == first.record  # also the seconds and the command: they are of the call that made the rows
    assert values_of(second.reports["tiny-vit"]).keys() == values_of(first.reports["tiny-vit"]).keys()


def test_more_methods_are_added_to_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run_suite(suite_of(tmp_path), tmp_path / "out")
    seen: list[str] = []
    original = cases.Explainer.__call__
    monkeypatch.setattr(cases.Explainer, "__call__", lambda e, *a: (seen.append(e.method), original(e, *a))[1])
    second = run_suite(suite_of(tmp_path, methods=["gae", "attention"]), tmp_path / "out")
    assert set(seen) == {"attention"}
    assert {"gae", "attention"} <= set(second.reports["tiny-vit"].methods)
    assert second.record["wall_seconds"] > first.record["wall_seconds"]
    assert not second.record["models"]["tiny-vit"]["resumed"]  # its seconds are those of both calls


def test_a_killed_run_goes_on(tmp_path: Path) -> None:
    small = {"data": {"name": "pets", "limit": 4}, "batch_size": 1, "controls": False, "metrics": ["average-drop"]}
    suite = suite_of(tmp_path, **small, methods=["attention", "gae", "rollout"], quick={"limit": 2})
    out = tmp_path / "out"
    process = multiprocessing.get_context("fork").Process(target=run_suite, args=(suite, out))
    process.start()
    until = time.monotonic() + 60
    while len(list(out.glob("tiny-vit/part-*.parquet"))) < 2:
        assert process.is_alive()
        assert time.monotonic() < until
        time.sleep(0.005)
    process.kill()
    process.join()
    assert process.exitcode == -9
    left = {path: path.stat().st_mtime_ns for path in out.glob("tiny-vit/part-*.parquet")}
    assert not (out / "suite.json").exists()
    result = run_suite(suite, out)
    assert 0 < len(left) < len(list(out.glob("tiny-vit/part-*.parquet")))
    assert {path: path.stat().st_mtime_ns for path in left} == left
    assert result.record["models"]["tiny-vit"]["resumed"]
    whole = values_of(run_suite(suite, tmp_path / "other").reports["tiny-vit"])
    found = values_of(result.reports["tiny-vit"])
    assert found.keys() == whole.keys()
    for key, value in whole.items():
        assert (math.isnan(value) and math.isnan(found[key])) or math.isclose(value, found[key], rel_tol=1e-6)


def test_models_and_data_are_loaded_once_for_several_suites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    load, entry = suite_shelf.load, suite_shelf.data_entry
    monkeypatch.setattr(suite_shelf, "load", lambda name: (seen.append(name), load(name))[1])
    monkeypatch.setattr(suite_shelf, "data_entry", lambda name: (seen.append("data"), entry(name))[1])
    shelf, lines = Shelf(), []
    known = {"name": "zoo:tiny-vit", "label": "known", "target": "label"}
    for name in ("one", "two"):
        suite = suite_of(tmp_path, name=name, models=["zoo:tiny-vit", known], metrics=["compactness"], curves=False)
        run_suite(suite, tmp_path / name, shelf=shelf, say=lines.append)
    assert seen == ["data", "zoo:tiny-vit"]
    assert [line.split(" in ")[0] for line in lines] == [
        f"{name}: {label}: 2 methods and 3 control maps on 6 samples"
        for name in ("one", "two")
        for label in ("tiny-vit", "known")
    ]
    assert all(re.search(r"in \d+\.\d s\.$", line) for line in lines)


def test_curves_and_pictures_are_kept_as_the_suite_says(tmp_path: Path) -> None:
    run_suite(suite_of(tmp_path, pictures=1), tmp_path / "some")
    report = mhex.Report.load(tmp_path / "some" / "tiny-vit")
    assert report.has_curves(DELETION)
    (one,) = evaluations(tmp_path / "some")
    assert list(one.drawn) == [0]
    assert {"gae", "rollout (start_block=2)", "control:random"} <= one.drawn[0].keys()
    run_suite(suite_of(tmp_path, pictures=0, curves=False), tmp_path / "none")
    (bare,) = evaluations(tmp_path / "none")
    assert not bare.drawn
    assert not bare.report.has_curves(DELETION)


def test_a_model_may_leave_out_other_methods(tmp_path: Path) -> None:
    own = {"name": "zoo:tiny-vit", "label": "own", "leave_out": ["gae"]}
    changes = {"methods": ["gae", "rollout"], "metrics": ["compactness"], "controls": False}
    suite = suite_of(tmp_path, **changes, models=["zoo:tiny-vit", own], leave_out=["rollout"])
    found = run_suite(suite, tmp_path / "out").reports
    assert {label: report.methods for label, report in found.items()} == {"tiny-vit": ["gae"], "own": ["rollout"]}


def test_quick_and_all_and_what_is_left_out(tmp_path: Path) -> None:
    result = run_suite(suite_of(tmp_path), tmp_path / "quick", quick=True)
    assert result.reports["tiny-vit"].methods[0] == "rollout"
    assert result.reports["tiny-vit"].metrics == ["segmentation (seed=3)"]
    assert result.record["models"]["tiny-vit"]["images"] == 2
    kept = ("gae", "rollout", "gradtoken", "cdam", "attention-flow", "mhex", "guided-backprop")
    others = [name for name in all_methods() if name not in kept]
    methods = ["all", {"name": "gae", "options": {"start_block": 2}}]
    changes = {"methods": methods, "leave_out": others, "metrics": ["compactness"], "controls": False}
    found = run_suite(suite_of(tmp_path, **changes), tmp_path / "all").reports["tiny-vit"].methods
    # The model has neither heads nor ReLU.
    assert found == ["attention-flow", "cdam", "gae", "gradtoken", "rollout", "gae (start_block=2)"]


def test_what_a_model_does_not_allow_is_refused_before_any_work(tmp_path: Path) -> None:
    both = suite_of(tmp_path, models=["zoo:tiny-vit", "zoo:tiny-resnet"])
    with pytest.raises(ArgumentError, match=r"^small: tiny-resnet: Method 'gae' cannot explain this"):
        run_suite(both, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(ArgumentError, match="no method is left"):
        run_suite(suite_of(tmp_path, leave_out=["gae", "rollout"]), tmp_path / "out")


def changed_resnet(folder: Path, **changes: Any) -> str:
    """Models whose residual network was trained on other inputs."""
    models = write_models(folder)
    card = json.loads((models / "tiny-resnet.json").read_text())
    card["preprocess"].update(changes)
    (models / "tiny-resnet.json").write_text(json.dumps(card))
    return str(models)


def test_an_evaluator_must_see_the_same_inputs(
    tmp_path: Path, folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    drop = {"evaluator": "zoo:tiny-resnet", "metrics": ["average-drop:mhex"]}
    monkeypatch.setenv("MHEX_MODELS", changed_resnet(tmp_path / "models", mean=[0.5, 0.5, 0.5]))
    with pytest.raises(ArgumentError, match="the evaluator zoo:tiny-resnet was trained on other inputs"):
        run_suite(suite_of(tmp_path, **drop), tmp_path / "out")
    monkeypatch.setenv("MHEX_MODELS", str(folders[0]))
    result = run_suite(suite_of(tmp_path, **drop), tmp_path / "out")
    record = result.record["models"]["tiny-vit"]
    assert (record["evaluator"], record["evaluator_size"]) == ("zoo:tiny-resnet", None)
    own = run_suite(suite_of(tmp_path, metrics=["average-drop"]), tmp_path / "own")
    assert set(values_of(own.reports["tiny-vit"]).values()) != set(values_of(result.reports["tiny-vit"]).values())


def test_an_evaluator_must_know_the_same_classes() -> None:
    explained, other = mhex.load("zoo:tiny-vit"), mhex.load("zoo:tiny-resnet")
    assert evaluator_of(explained, other) is other.model
    another = replace(other, class_names=[*reversed(explained.class_names or ())])
    with pytest.raises(ArgumentError, match="the evaluator zoo:tiny-resnet knows other classes than zoo:tiny-vit"):
        evaluator_of(explained, another)


def test_an_evaluator_of_another_size_has_inputs_resized(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MHEX_MODELS", changed_resnet(tmp_path / "models", size=64))
    drop = {"evaluator": "zoo:tiny-resnet", "metrics": ["average-drop:mhex"]}
    result = run_suite(suite_of(tmp_path, **drop), tmp_path / "out")
    assert "zoo:tiny-resnet, inputs resized to 64 x 64 |" in suite_page(result)
    explained, other = mhex.load("zoo:tiny-vit"), mhex.load("zoo:tiny-resnet")
    pixels, seen = torch.rand(2, 3, 32, 32), []
    hook = other.model.register_forward_pre_hook(lambda _, given: seen.append(given[0].shape))
    evaluator_of(explained, other)(pixels)
    hook.remove()
    assert seen == [(2, 3, 64, 64)]


def test_the_seed_of_a_suite_decides_which_photos_come_together() -> None:
    shelf, part = Shelf(), SuiteData(name="pets", form="side-by-side")

    def classes(seed: int) -> list[tuple[int, int]]:
        return [(item["label"], item["other"]) for item in shelf.items(part, seed)]

    assert classes(1) == classes(1) != classes(2)


@pytest.mark.parametrize("form", ["side-by-side", "mosaic"])
def test_maps_that_ignore_the_class_discriminate_nothing(tmp_path: Path, form: str) -> None:
    boxes = {"name": "class-discrimination", "changes": {"reference": "zero", "steps": 4, "sizes": 2, "count": 8}}
    suite = suite_of(
        tmp_path,
        data={"name": "pets", "form": form, "limit": 3},
        methods=["rollout", "gae"],
        metrics=[boxes],
        target="label",
        quick={"limit": 2},
    )
    report = run_suite(suite, tmp_path / "out").reports["tiny-vit"]
    numbers = report.values(report.metrics[0])[1]
    assert numbers["rollout"].abs().max() == 0
    assert numbers["gae"].abs().max() > 0
