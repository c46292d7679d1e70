"""Curves that an evaluation keeps: those of the sweep, once each, also after a break."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import mhex
from mhex.errors import ArgumentError
from mhex.judge import evaluation as judging
from mhex.judge import store
from mhex.metrics import get_metric
from mhex.perturb import PerturbationSweep, Subject, area
from support.tiny_models import pictures, tiny

SHORT = {"reference": "zero", "steps": 4}
BY = [("deletion", SHORT), ("insertion", SHORT), ("fidelity", SHORT), ("log-odds", SHORT), ("perturbation-auc", SHORT)]
ENDING = " (reference=zero, steps=4)"
LABELS = torch.tensor([0, 1, 2, 0, 1, 2])


def judged(metrics: Any = BY, **options: Any) -> mhex.Report:
    given = {"methods": ["gradcam"], "batch_size": 2, **options}
    return mhex.evaluate(tiny("cnn"), (pictures(6), LABELS), metrics=metrics, **given)


def by_hand() -> Any:
    model, x = tiny("cnn"), pictures(6)
    classes = model(x).argmax(1)
    maps = mhex.explain(model, x, "gradcam", classes).scores
    return PerturbationSweep("zero", "pixel", 4)(Subject(model, x, LABELS), None, maps, classes)


def test_curves_are_those_of_the_sweep() -> None:
    report, sweep = judged(), by_hand()
    wanted = {
        ("deletion", None): sweep.curve("mif"),
        ("insertion", None): sweep.curve("lif").flip(1),
        ("fidelity", "mif"): sweep.curve("mif", "logit"),
        ("fidelity", "lif"): sweep.curve("lif", "logit"),
        ("log-odds", "mif"): sweep.curve("mif", "log-probability", "predicted"),
        ("perturbation-auc", "lif"): sweep.curve("lif", "hit", "label"),
    }
    for (metric, order), curve in wanted.items():
        ids, shares, found = report.curves(metric + ENDING, order)
        assert ids.tolist() == list(range(6))
        assert shares.tolist() == [0, 0.25, 0.5, 0.75, 1]
        assert list(found) == report.methods
        assert torch.allclose(found["gradcam"], curve.float(), atol=1e-6), metric


@pytest.mark.parametrize(("metric", "rule"), [("deletion", "unit"), ("insertion", "unit")])
def test_areas_of_curves_are_the_values(metric: str, rule: str) -> None:
    report = judged()
    _, _, curves = report.curves(metric + ENDING)
    for name, values in report.per_image(metric + ENDING).items():
        assert torch.allclose(area(curves[name].double(), rule), values, atol=1e-6)


def test_every_metric_of_a_sweep_says_what_it_reads() -> None:
    sweep = by_hand()
    for name in ("deletion", "insertion", "aopc", "fidelity", "log-odds", "perturbation-auc"):
        metric: Any = get_metric(name).metric(**SHORT)
        curves = metric.curves(sweep)
        assert list(curves) == list(metric.orders)
        assert all(one.shape == (6, 5) for one in curves.values())


@pytest.mark.parametrize(
    ("metric", "part", "output", "scored"),
    [("fidelity", "centred", "centred-logit", "explained"), ("log-odds", "true_odds", "log-odds", "predicted")],
)
def test_parts_of_protocols_change_curves(metric: str, part: str, output: str, scored: str) -> None:
    report = judged([(metric, {**SHORT, part: True})])
    found = report.curves(metric)[2]["gradcam"]  # the only one of its name
    assert torch.allclose(found, by_hand().curve("mif", output, scored).float(), atol=1e-6)
    assert report.has_curves(metric)


def test_curves_say_of_which_run_they_are(tmp_path: Path) -> None:
    rows = judged([("deletion", SHORT)], out=tmp_path, task="multi-label").rows
    curves = store.read(tmp_path, store.CURVES)
    assert set(curves.column("run").to_pylist()) == set(rows.column("run").to_pylist())
    assert json.loads(curves.column("run")[0].as_py())["task"] == "multi-label"
    with pytest.raises(ArgumentError, match="another model, target, task or seed"):
        judged([("deletion", SHORT)], out=tmp_path)


def keys(folder: Path) -> list[tuple[Any, ...]]:
    rows = store.read(folder, store.CURVES).to_pylist()
    return [tuple(row[name] for name in store.CURVES.key) for row in rows]


def test_a_broken_run_has_every_curve_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = judged(out=tmp_path / "whole")
    real, calls = judging.rows_of, []

    def breaks(*given: Any) -> Any:
        calls.append(given)
        if len(calls) == 23:
            raise KeyboardInterrupt
        return real(*given)

    monkeypatch.setattr(judging, "rows_of", breaks)
    with pytest.raises(KeyboardInterrupt):
        judged(out=tmp_path / "broken")
    monkeypatch.undo()
    assert 0 < len(keys(tmp_path / "broken")) < len(keys(tmp_path / "whole"))
    found = judged(out=tmp_path / "broken")
    assert len(set(keys(tmp_path / "broken"))) == len(keys(tmp_path / "broken")) == len(keys(tmp_path / "whole"))
    assert_same(found, wanted)
    assert_same(mhex.Report.load(tmp_path / "broken"), wanted)
    assert len(store.numbered(tmp_path / "broken", store.CURVES)) == len(store.numbered(tmp_path / "broken"))


def assert_same(one: mhex.Report, other: mhex.Report) -> None:
    for metric in other.metrics:
        found, wanted = (report.curves(metric)[2] for report in (one, other))
        assert found.keys() == wanted.keys()
        assert all(torch.allclose(found[name], curve, atol=1e-6) for name, curve in wanted.items())


def test_a_damaged_part_is_made_again(tmp_path: Path) -> None:
    wanted = judged(out=tmp_path)
    part = tmp_path / "curves-000002.parquet"
    part.write_bytes(part.read_bytes()[:50])
    with pytest.raises(ArgumentError, match=r"Expected curves in .*curves-000002.* delete it, and the same call makes"):
        judged(out=tmp_path)
    part.unlink()
    assert_same(judged(out=tmp_path), wanted)
    assert mhex.Report.load(tmp_path).rows.num_rows == wanted.rows.num_rows


def test_rows_without_curves_get_them(tmp_path: Path) -> None:
    bare = judged(out=tmp_path, curves=False)
    with pytest.raises(ArgumentError, match=r"Expected curves of 'deletion.* in this report, but got none"):
        bare.curves("deletion" + ENDING)
    assert not keys(tmp_path)
    assert_same(judged(out=tmp_path), judged())
    assert mhex.Report.load(tmp_path).rows.num_rows == bare.rows.num_rows


def test_images_that_do_not_count_have_no_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    real = judging.case_of

    def broken(batch: Any, method: Any, gaps: Any) -> Any:
        case = real(batch, method, gaps)
        if method.name == "gradcam" and 3 in case.ids:
            maps = case.saliency.clone()
            maps[case.ids.index(3)] = torch.nan
            case.saliency = gaps.fill(maps)
        return case

    monkeypatch.setattr(judging, "case_of", broken)
    with pytest.warns(mhex.errors.MhexWarning, match="not finite"):
        _, _, found = judged().curves("deletion" + ENDING)
    assert gone(found["gradcam"]) == [3]
    assert gone(found["control:random"]) == []


def gone(curves: Tensor) -> list[int]:
    return [n for n, curve in enumerate(curves) if bool(curve.isnan().all())]


def test_what_has_no_curves_says_so(tmp_path: Path) -> None:
    report = judged([("deletion", SHORT), "compactness"])
    with pytest.raises(ArgumentError, match="'compactness' reads no curves"):
        report.curves("compactness")
    with pytest.raises(ArgumentError, match=r"an order of 'deletion.*, mif, but got 'lif'"):
        report.curves("deletion" + ENDING, "lif")
    with pytest.raises(ArgumentError, match="insertion"):
        report.curves("insertion")
    assert list(report.only(methods=["gradcam"]).curves("deletion" + ENDING)[2]) == ["gradcam"]
    for other in (mhex.Report.load(report.to_parquet(tmp_path / "rows.parquet")), report.merge(report)):
        with pytest.raises(ArgumentError, match="not single files or merged reports"):
            other.curves("deletion" + ENDING)


def test_other_grids_are_not_mixed(tmp_path: Path) -> None:
    report = judged([("deletion", SHORT)], out=tmp_path)
    row = store.read(tmp_path, store.CURVES).to_pylist()[0]
    other = store.as_table([{**row, "image": 99, "points": [0.0, 1.0]}], store.CURVES)
    store.write(other, tmp_path / "curves-000999.parquet")
    with pytest.raises(ArgumentError, match="some of 1 and 4 steps"):
        mhex.Report.load(tmp_path).curves(report.metrics[0])


def test_what_all_methods_share_is_in_nobodys_time(monkeypatch: pytest.MonkeyPatch) -> None:
    real, before = judging.case_of, []

    def watched(batch: Any, method: Any, gaps: Any) -> Any:
        before.append((batch.subject.passes, "classes" in vars(batch)))
        case = real(batch, method, gaps)
        assert batch.subject.passes == before[-1][0]
        return case

    monkeypatch.setattr(judging, "case_of", watched)
    judged([("deletion", SHORT)], target="predicted")
    assert all(passes >= 2 and known for passes, known in before)
