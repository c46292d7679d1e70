"""Metrics as judges of methods: order, regret and pairs by hand, and the bench from a network to its page."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from mhex.bundle import Bundle
from mhex.cli import app
from mhex.errors import ArgumentError
from mhex.inputs.preprocess import Preprocess
from mhex.lab.truth import bench
from mhex.lab.truth.bench import TruthNetwork, all_networks, networks_by_name, run_bench, stored_evidence
from mhex.lab.truth.page import method_lines, truth_page
from mhex.lab.truth.reliability import (
    RECOMMEND,
    Evidence,
    agreement_of,
    metric_reliability,
    order_of,
    random_pick,
    regret_of,
    with_interval,
)
from mhex.lab.truth.task import all_tasks

METHODS = ("a", "b", "c", "control:random")
RIGHT = [0.9, 0.5, 0.7, 0.2]
TRUTH = torch.tensor([RIGHT, RIGHT, [math.nan] * 4], dtype=torch.float64)


def made(values: dict[str, list[float]], truth: torch.Tensor = TRUTH, network: str = "net") -> Evidence:
    scores = {name: torch.tensor(row, dtype=torch.float64) for name, row in values.items()}
    return Evidence(network, "mark", "mark", "CNN", METHODS, {"truth": truth}, scores)


def test_order_is_the_rank_correlation_with_truth_and_reads_controls_too() -> None:
    evidence = made({"same": [4, 2, 3, 1], "turned": [1, 3, 2, 4], "flat": [1, 1, 1, 1]})
    assert order_of(evidence, evidence.values["same"]) == pytest.approx(1)
    assert order_of(evidence, evidence.values["turned"]) == pytest.approx(-1)
    assert math.isnan(order_of(evidence, evidence.values["flat"]))


def test_regret_is_what_the_named_method_lacks_and_controls_are_never_named() -> None:
    evidence = made({"control first": [1, 2, 3, 9], "tie": [1, 1, 0, 0], "one is missing": [math.nan, 1, 0, 0]})
    assert regret_of(evidence, evidence.values["control first"]) == pytest.approx(0.2)
    assert regret_of(evidence, evidence.values["tie"]) == pytest.approx(0.2)  # 0.9 less the mean of 0.9 and 0.5
    assert regret_of(evidence, evidence.values["one is missing"]) == pytest.approx(0.4)
    assert random_pick(evidence) == pytest.approx(0.9 - 0.7)


def test_regret_among_methods_is_still_beside_the_best_of_them() -> None:
    evidence = made({"any": [9, 1, 2, 0]})
    assert regret_of(evidence, evidence.values["any"], among=["b", "c"]) == pytest.approx(0)
    assert regret_of(evidence, -evidence.values["any"], among=["b", "c"]) == pytest.approx(0.2)


def test_only_pairs_that_truth_tells_apart_count() -> None:
    """Over 40 images a is above b; c is as often above as below both."""
    rows = torch.zeros(40, 4, dtype=torch.float64)
    rows[:, 0], rows[::2, 2] = 1.0, 1.0
    rows[1::2, 3] = 1.0
    evidence = made({}, rows)
    share, count = agreement_of(evidence, torch.tensor([3.0, 1.0, 2.0, 2.0]).double())
    assert count == 5  # all pairs but that of c and the control, which are right equally often
    assert share == 1
    assert agreement_of(evidence, torch.tensor([1.0, 3.0, 2.0, 2.0]).double())[0] == 0


def test_a_metric_is_judged_on_the_networks_that_have_it() -> None:
    first, second = made({"m": [4, 2, 3, 1]}), made({"m": [1, 2, 3, 0], "n": [4, 2, 3, 1]}, network="other")
    judged = metric_reliability("m", [first, second])
    assert (judged.networks, judged.worst) == (2, pytest.approx(0.2))
    assert judged.regret[0] == pytest.approx(0.1)
    assert metric_reliability("n", [first, second]).networks == 1
    assert math.isnan(metric_reliability("n", [first, second]).order[1])  # one network has no interval


def test_fewer_than_five_networks_have_no_interval() -> None:
    values = torch.tensor([0.1, 0.2, 0.3, 0.4, math.nan], dtype=torch.float64)
    mean, low, high = with_interval(values)
    assert mean == pytest.approx(0.25)
    assert math.isnan(low)
    assert math.isnan(high)
    mean, low, high = with_interval(values.nan_to_num(0.5))
    assert low < mean < high


def test_networks_have_tasks_and_some_are_for_choosing_alone() -> None:
    networks = all_networks()
    testing = [network for network in networks if not network.choosing]
    assert len(testing) >= 10
    assert {network.kind for network in testing} == {"CNN", "ViT", "text"}
    assert not {network.task.family for network in testing} & bench.CHOOSING
    assert any(network.label.endswith(", two-classes") for network in networks)
    with pytest.raises(ArgumentError, match="Did you mean 'truth-mark-vit'"):
        networks_by_name(["truth-mark-vit2"])


class Redness(nn.Module):
    """Says red where an image has more red than blue pixels, by one convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.colours = nn.Conv2d(3, 2, 8, 8, bias=False)
        weight = torch.tensor([[2.0, -1.0, -1.0], [-1.0, -1.0, 2.0]])[:, :, None, None].expand(2, 3, 8, 8) / 8
        self.colours.weight = nn.Parameter(weight.clone())

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits (B, 2)."""
        logits: torch.Tensor = self.colours(images).sum((2, 3))
        return logits


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> TruthNetwork:
    """A network without training that counts red and blue, in the place of all others."""
    entry = TruthNetwork("truth-count-redness", all_tasks()["count"], "CNN")
    bundle = Bundle("zoo:redness", Redness().eval(), Preprocess(64, 64, (0.4,) * 3, (0.2,) * 3), None, ["red", "blue"])
    monkeypatch.setattr(bench, "all_networks", lambda: [entry])
    monkeypatch.setattr("mhex.lab.truth.page.all_networks", lambda: [entry])
    monkeypatch.setattr(bench, "load", lambda name: bundle)
    monkeypatch.setattr(bench, "refuse_missing", lambda names: None)
    monkeypatch.setattr(bench, "IMAGE_METRICS", ("saco", ("deletion", {"steps": 4}), "removal"))
    monkeypatch.setattr(bench, "EXPLAINING_METRICS", (("balanced", {"draws": 0}),))
    monkeypatch.setattr(bench, "QUICK_SAMPLES", 3)
    entries = {name: spec for name, spec in bench_methods().items() if name in ("conservative-lrp", "input-x-gradient")}
    monkeypatch.setattr("mhex.judge.plan.all_methods", lambda: entries)
    return entry


def bench_methods() -> dict[str, Any]:
    from mhex.methods import all_methods

    return dict(all_methods())


def test_the_bench_goes_from_a_network_to_a_page(network: TruthNetwork, tmp_path: Path) -> None:
    words = ["bench", "truth", "--quick", "--out", str(tmp_path / "rows"), "--page", str(tmp_path / "truth.md")]
    printed = CliRunner().invoke(app, words, prog_name="mhex", catch_exceptions=False)
    assert printed.exit_code == 0
    page = (tmp_path / "truth.md").read_text(encoding="utf-8")
    assert page.strip() in printed.output
    assert "| truth-count-redness | The colour of most objects decides | CNN | 3 of 3 | choosing |" in page
    rows = ("conservative-lrp", "input-x-gradient", "control:random", "saco", "deletion", "balanced", "bag of patches")
    for name in rows:
        assert f"| {name}" in page
    (evidence,) = stored_evidence(tmp_path / "rows")
    place = evidence.methods.index("input-x-gradient")
    assert float(evidence.right("truth-sign")[place]) == 1  # red and blue, and nothing else, move the logits
    assert float(evidence.right("truth-sign")[evidence.methods.index("control:random")]) < 0.9
    score = evidence.values[RECOMMEND]  # three columns in one number, for methods and control maps
    assert float(score[place]) > float(score[evidence.methods.index("control:random")])
    assert not any(name.startswith("removal") for name in evidence.values)
    assert evidence.values["balanced (draws=0)"][evidence.methods.index("control:random")].isnan()


def test_a_bench_goes_on_where_it_was(network: TruthNetwork, tmp_path: Path) -> None:
    run_bench(tmp_path, samples=2, progress=False)
    parts = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("part-*.parquet")}
    run_bench(tmp_path, samples=2, progress=False)
    assert parts == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("part-*.parquet")}


def test_a_folder_without_rows_is_refused(network: TruthNetwork, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="there are none"):
        stored_evidence(tmp_path)


def test_a_page_orders_methods_by_truth(network: TruthNetwork) -> None:
    parts = dict.fromkeys(("truth-first", "truth-point", "truth-auroc", "truth-rank", "truth-sign"), TRUTH)
    base = made({"m": [4, 2, 3, 1]}, network=network.label)
    text = truth_page([replace(base, task="count", truth={"truth": TRUTH, **parts})], "command", "A reading.")
    places = [text.index(f"\n| {method} | ") for method in ("a", "c", "b", "control:random")]
    assert places == sorted(places)
    assert "A reading." in text


def test_a_method_of_fewer_networks_shows_how_many(network: TruthNetwork) -> None:
    parts = dict.fromkeys(("truth-first", "truth-point", "truth-auroc", "truth-rank", "truth-sign"), TRUTH)
    base = replace(made({"m": [4, 2, 3, 1]}, network=network.label), task="count", truth={"truth": TRUTH, **parts})
    lacking = TRUTH.clone()
    lacking[:, 1] = math.nan
    other = replace(base, truth={**base.truth, "truth": lacking}, values={})
    assert {line.method: line.networks for line in method_lines([base, other])} == {
        "a": 2,
        "b": 1,
        "c": 2,
        "control:random": 2,
    }
    text = truth_page([base, other], "command")
    assert "| b (1 of 2) | 0.50 |" in text
    assert "| a | 0.90 |" in text
    assert "| m (1 of 2) |" in text
    assert "### CNN: 2 pairs of a network and a task" in text
