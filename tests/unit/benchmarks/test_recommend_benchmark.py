"""The benchmark of recommendations: what a full benchmark says of an answer, and its page."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mhex.errors import ArgumentError
from mhex.judge import store
from support.reports import report_of

N = 20


@pytest.fixture(autouse=True)
def _benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "benchmarks"))


def numbers(mean: float, seed: int, n: int = N) -> Tensor:
    """Agreement, insertion and deletion around a mean, of which low deletion is better, (N, 3); NaN behind row n."""
    draw = torch.Generator().manual_seed(seed)
    parts = 0.3 * torch.randn(N, 3, generator=draw, dtype=torch.float64)
    parts += mean * torch.tensor([1.0, 1.0, -1.0], dtype=torch.float64)
    parts[n:] = math.nan
    return parts


def full(**changes: Tensor) -> Any:
    methods = {
        "best": numbers(2.0, 0),
        "equal": numbers(1.99, 1),
        "worse": numbers(1.0, 2),
        "weak": numbers(0.0, 3),
        "slow": numbers(1.9, 4, 8),
        "control:random": numbers(0.0, 5),
        **changes,
    }
    return report_of({"removal": methods})


def answer(pick: str, flagged: tuple[str, ...] = (), **said: str) -> dict[str, Any]:
    told = {"best": "above", "equal": "above", "worse": "above", "weak": "negligible", **said}
    names = [pick, *(name for name in told if name != pick)]
    table = [{"method": name, "above_random": told[name]} for name in names]
    table.append({"method": "control:random", "above_random": None})
    beside = {"seed": 0, "clock": "wall", "command": "python benchmarks/recommend.py --seeds 1"}
    rounds = {"rounds": [[4, 11], [2, 30]], "used": 99.0, "budget": 120.0, "sure": 0.8}
    return {"table": table, "not_better_than_random": list(flagged), **rounds, **beside}


def test_a_pick_is_right_if_it_is_not_rated_worse() -> None:
    from recommend_rating import Full, judged

    found = Full.of(full())
    assert set(found.good) >= {"best", "equal", "slow"}
    assert not {"worse", "weak"} & set(found.good)
    assert found.outcome.images["slow"] == 8
    assert found.outcome.best != "slow"
    assert found.weak == {"weak"}
    assert found.images == N
    assert [judged(found, answer(name)).right for name in ("best", "equal", "worse")] == [True, True, False]
    with pytest.raises(ArgumentError, match="'gone' among the methods"):
        judged(found, answer("gone", gone="above"))


def test_flags_are_counted() -> None:
    from recommend_rating import Full, judged

    found = Full.of(full())
    one = judged(found, answer("best", ("weak", "worse")))
    assert (one.hits, one.misses, one.false, one.untold) == (("weak",), (), ("worse",), ())
    one = judged(found, answer("best", weak="above"))
    assert (one.hits, one.misses, one.false, one.untold) == ((), ("weak",), (), ())
    one = judged(found, answer("best", weak="undecided"))
    assert (one.misses, one.untold) == ((), ("weak",))
    assert "best, not rated worse" in one.words


def test_the_page_tells_commands_counts_and_intervals(tmp_path: Path) -> None:
    from recommend_page import page

    folder = tmp_path / "pets-vit"
    store.write(full().rows, folder / "full" / "part-000000.parquet")
    made = [{"command": "recommend.py --full-only --device cuda", "versions": {}}]
    (folder / "full" / "about.json").write_text(json.dumps(made), "utf-8")
    for seed, pick in enumerate(("best", "equal", "worse")):
        told = {**answer(pick, ("weak",)), "seed": seed}
        (folder / f"seed-{seed}.json").write_text(json.dumps(told), "utf-8")
    said = page(tmp_path, ["pets-vit"])
    assert "Full benchmark: 20 photos (their order by seed 2024), seed 0, by `python benchmarks/recommend.py" in said
    assert "recommend.py --full-only --device cuda`" in said
    assert "`python benchmarks/recommend.py --seeds 1`" in said
    assert "**2 of 3 (95 % interval 9 to 99 %)** seeds" in said
    assert "3 of 3 (95 % interval 29 to 100 %) are flagged" in said
    assert "| 2 | `worse` | **yes**: " in said
    assert "| 11, 30 | 99 |" in said
    assert "| `slow` | 8 |" in said


def test_races_need_a_benchmark(tmp_path: Path) -> None:
    from recommend_rating import Full

    with pytest.raises(ArgumentError, match="make it first"):
        Full.load(tmp_path / "full")


def test_both_parts_run_alone_and_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each part by itself, and again without making anything twice."""
    import mhex
    import recommend as script
    from mhex.bundle import as_bundle
    from support.tiny_models import pictures, tiny

    photos = list(pictures(24))
    entry = type("Entry", (), {"items": lambda self: photos})()
    monkeypatch.setattr(script, "data_entry", lambda name: entry)
    monkeypatch.setattr(mhex, "load", lambda name: as_bundle(tiny("cnn")))
    monkeypatch.setattr(script, "all_methods", lambda: ["gradcam", "layercam", "gae", "rise"])

    def call(*given: str) -> str:
        usual = ["recommend.py", "--out", str(tmp_path), "--images", "4", "--seeds", "0", "1"]
        monkeypatch.setattr("sys.argv", [*usual, *given])
        script.main()
        return capsys.readouterr().out

    said = call("--full-only", "--slow-images", "0")
    assert "gae is left out:" in said
    assert "rise:" not in said
    assert sorted(path.name for path in (tmp_path / "pets-vit").iterdir()) == ["full"]
    rows = {path: path.stat().st_mtime_ns for path in (tmp_path / "pets-vit" / "full").glob("part-*")}
    calls: list[int] = []
    real = mhex.recommend

    def recommend(*given: Any, **options: Any) -> Any:
        calls.append(len(given[1]))
        return real(*given, **options, methods=["gradcam", "layercam"])

    monkeypatch.setattr(mhex, "recommend", recommend)
    said = call("--seeds-only", "--page", str(tmp_path / "page.md"))
    assert calls == [2, 2]  # photos that the benchmark has not seen
    assert "seed 1: " in said
    assert (tmp_path / "page.md").read_text("utf-8").count("| `gradcam` |") >= 1
    call("--slow-images", "0")
    assert len(calls) == 2
    assert {path: path.stat().st_mtime_ns for path in rows} == rows
    with pytest.raises(ArgumentError, match="a budget of 30"):
        call("--seeds-only", "--budget", "30")
