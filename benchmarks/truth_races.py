"""How right the methods are that `mhex.recommend` names on networks of known evidence.

python benchmarks/truth_races.py              every network that has rows in out/bench/truth, five seeds, 60 s each
python benchmarks/truth_races.py --testing    only networks of families that the score was not chosen on

Regret is the truth of the best method that the race had time for less the truth of the named one, by the rows of
`mhex bench truth`. Races draw other samples of the task. Beside it: the metrics of the bench as scores, on all of its
samples and methods, and a method drawn at random. `--clock cpu` counts seconds of the processor, for machines that
others use too. What was raced stays in `--out`, so that a broken run goes on.
"""

from __future__ import annotations

import argparse
import json
import math
import time
import warnings
from pathlib import Path
from typing import Any

import torch

import mhex
from mhex.errors import MhexWarning
from mhex.judge.report import Report
from mhex.lab.datasets import data_entry
from mhex.lab.truth.bench import TruthNetwork, all_networks, evidence, folder_of
from mhex.lab.truth.reliability import (
    Evidence,
    metric_reliability,
    order_of,
    random_pick,
    regret_of,
    with_interval,
)

CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
BESIDE = ("balanced", "insertion", "deletion", "box-sensitivity", "perturbation-auc", "saco")  # metrics beside the race
_PHOTOS = 300  # samples that a race may use


def main() -> None:
    """Race, and print a table."""
    arguments = _arguments()
    warnings.simplefilter("ignore", MhexWarning)
    arguments.out.mkdir(parents=True, exist_ok=True)
    networks = [network for network in all_networks() if path_of(network, arguments.rows).exists()]
    networks = [network for network in networks if not (arguments.testing and network.choosing)]
    evidences, regrets, orders = [], [], []
    for network in networks:
        known = evidence(Report.load(path_of(network, arguments.rows)), network)
        evidences.append(known)
        for seed in range(arguments.seeds):
            answer = race(network, seed, arguments)
            regret, order = rated(known, answer)
            regrets.append(regret)
            orders.append(order)
            half = "choosing" if network.choosing else "testing"
            print(
                f"{network.label}, {half}, seed {seed}: {answer['method']}, regret {regret:.3f}, order {order:.2f}, "
                f"rounds {answer['rounds']}",
                flush=True,
            )
    table = torch.tensor([regrets, orders], dtype=torch.float64)
    print(f"\nrecommend: regret {_span(table[0])}, at worst {float(table[0].max()):.3f}; order {_span(table[1])}")
    for name in dict.fromkeys(name for known in evidences for name in known.values if name.startswith(BESIDE)):
        judged = metric_reliability(name, evidences)
        span = f"{judged.regret[0]:.3f} ({judged.regret[1]:.3f} to {judged.regret[2]:.3f})"
        print(f"{name}: regret {span}, at worst {judged.worst:.3f}; order {judged.order[0]:.2f}")
    picks = torch.tensor([random_pick(known) for known in evidences], dtype=torch.float64)
    print(f"a method drawn at random: regret {_span(picks)}")


def path_of(network: TruthNetwork, rows: Path) -> Path:
    """The rows of a network: a folder of the bench, or a packed file."""
    folder = rows / folder_of(network)
    return folder if folder.is_dir() else folder.with_name(f"{folder.name}.parquet")


def race(network: TruthNetwork, seed: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """The answer of a race, from its file where there is one."""
    file = arguments.out / f"{folder_of(network)}-{arguments.budget}-{seed}.json"
    if not file.exists():
        bundle = mhex.load(f"zoo:{network.name}")
        # Of the validation split, which the bench does not read.
        items = data_entry(f"truth:{network.task.name}").items("val", limit=_PHOTOS)
        answer = mhex.recommend(bundle, items, arguments.budget, seed=seed, clock=CLOCKS[arguments.clock])
        scores = {line.method: line.score for line in answer.table}
        facts = {"method": answer.method, "scores": scores, "rounds": answer.rounds, "used": answer.used}
        file.write_text(json.dumps(facts), encoding="utf-8")
    facts = json.loads(file.read_text(encoding="utf-8"))
    return dict(facts)


def rated(known: Evidence, answer: dict[str, Any]) -> tuple[float, float]:
    """Regret of the named method among those that were raced, and rank correlation of their scores with truth."""
    raced = list(answer["scores"])
    scores = torch.tensor([answer["scores"].get(name, math.nan) for name in known.methods], dtype=torch.float64)
    named = torch.tensor([float(name == answer["method"]) for name in known.methods], dtype=torch.float64)
    return regret_of(known, named, among=raced), order_of(known, scores)


def _span(values: torch.Tensor) -> str:
    mean, low, high = with_interval(values)
    return f"{mean:.3f} ({low:.3f} to {high:.3f})"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path, default=Path("out/bench/truth"), help="what `mhex bench truth` wrote")
    parser.add_argument("--budget", default="60")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--clock", choices=list(CLOCKS), default="wall")
    parser.add_argument("--testing", action="store_true", help="only networks that the score was not chosen on")
    parser.add_argument("--out", type=Path, default=Path("out/truth-races"))
    return parser.parse_args()


if __name__ == "__main__":
    main()
