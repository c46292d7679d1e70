"""How often `mhex.recommend` names a method that a full benchmark of the same model does not rate worse than its best.

python benchmarks/recommend.py --budget 120 --seeds 10 --images 60        prints, and writes out/recommend

All methods that serve the model are judged on `--images` photos, once, by the same score (`--slow-images` for those of
many passes); then the race is run with each seed on photos that the benchmark has not seen. Rows and races are kept in
`--out`, so that a run that was broken off goes on. `--clock cpu` counts seconds of the processor instead of those of
the wall, for machines that others use too. Needs the pets data set (`MHEX_DATA`).
"""

from __future__ import annotations

import argparse
import json
import math
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import mhex
from mhex.bench.budget import Watch
from mhex.bench.controls import RANDOM
from mhex.bench.judging import judge_batch
from mhex.bench.outcome import LEVEL, Outcome, above, outcome_of, tested
from mhex.bench.race import Race
from mhex.bench.recommending import entered
from mhex.bench.sampling import Pieces
from mhex.data import data_entry
from mhex.errors import MhexError, MhexWarning

CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
SLOW = ("rise", "occlusion", "scorecam", "shap", "vit-cx", "integrated-gradients", "smoothgrad")


def full(bundle: Any, data: Any, counts: dict[str, int], score: str, without: Sequence[str], out: Path) -> Race:
    """Every method on the first images, and no race."""
    race = entered(bundle, Pieces(data), Watch(math.inf), score=score, out=out)
    race.left_out.update(dict.fromkeys(without, "not judged"))
    for number, place in enumerate(range(max(counts.values()))):
        piece = race.pieces.get(place)
        if piece is None:
            break
        for one in list(race.entrants):
            count = counts["slow" if one.name in SLOW else "quick"]
            if one.label in race.left_out or piece.ids[0] >= count:
                continue
            started = time.perf_counter()
            try:
                judge_batch(race.run, piece, [one], [race.score.judge], progress=False)
            except MhexError as error:
                if number:
                    raise
                race.left_out[one.label] = str(error)
                continue
            race.seconds[one.label] = time.perf_counter() - started
        print(f"full benchmark: {piece.ids[-1] + 1} images", flush=True)
    return race


def rated(race: Race) -> tuple[Outcome, dict[str, str]]:
    """Places by the full benchmark, beside the best of those with all images; and who random maps are as good as."""
    raced = [one.label for one in race.entrants if one.label in race.seconds and not one.control]
    quick = [name for name in raced if name not in SLOW]
    race.score = race.score.with_units(race.report, quick)
    values, faithful = race.score.values(race.report), race.score.faithful(race.report)
    return outcome_of({name: values[name] for name in raced}, quick), above(faithful, RANDOM, raced)


def better(race: Race, name: str, others: Sequence[str]) -> list[str]:
    """Methods that the full benchmark shows to be better than one, each on the images that both have."""
    values = race.score.values(race.report)
    others = [one for one in others if one != name]
    shown = tested([values[one] - values[name] for one in others])
    return [one for one, (_, p) in zip(others, shown, strict=True) if p < LEVEL]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="zoo:pets-vit")
    parser.add_argument("--data", default="pets")
    parser.add_argument("--budget", default="120")
    parser.add_argument("--score", default="balanced")
    parser.add_argument("--images", type=int, default=60)
    parser.add_argument("--slow-images", type=int, default=12)
    parser.add_argument("--without", nargs="*", default=[], help="methods that the full benchmark does not judge")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--clock", choices=list(CLOCKS), default="wall")
    parser.add_argument("--out", type=Path, default=Path("out/recommend"))
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", MhexWarning)
    bundle, items = mhex.load(arguments.model), data_entry(arguments.data).items()
    order = torch.randperm(len(items), generator=torch.Generator().manual_seed(2024)).tolist()
    counts = {"quick": arguments.images, "slow": arguments.slow_images}
    seen = (items[place] for place in order[: arguments.images])
    race = full(bundle, seen, counts, arguments.score, arguments.without, arguments.out / "full")
    best, higher = rated(race)
    weak = [name for name in best.order if higher[name] == "no"]
    print(race.score.words)
    for name in best.order:
        mean, low, high = best.behind[name]
        note = "" if name == best.best else f"p {best.worse[name][1]:.2g}"
        told = f"behind {mean:6.3f} [{low:.3f}, {high:.3f}] {note:9s} above random: {higher[name]}"
        print(f"{name:26s} n {best.images[name]:3d} {told}", flush=True)
    print(f"not better than random maps: {', '.join(weak) or 'none'}; left out: {race.left_out}", flush=True)
    good = 0
    for seed in range(arguments.seeds):
        file = arguments.out / f"seed-{seed}.json"
        if not file.exists():
            unseen = [items[place] for place in order[arguments.images :][seed :: arguments.seeds][:200]]
            clock = CLOCKS[arguments.clock]
            found = mhex.recommend(bundle, unseen, arguments.budget, score=arguments.score, seed=seed, clock=clock)
            (arguments.out / f"seed-{seed}.txt").write_text(f"{found}\n", encoding="utf-8")
            file.write_text(json.dumps(found.as_dict(), indent=2), encoding="utf-8")
        answer = json.loads(file.read_text(encoding="utf-8"))
        ahead = better(race, answer["method"], best.order)
        good += not ahead
        flagged = set(answer["not_better_than_random"])
        lists = {
            "as good": answer["indistinguishable"],
            "no better than random": sorted(flagged),
            "missed": sorted(set(weak) - flagged - set(answer["left_out"])),
            "wrongly so": sorted(name for name in flagged if higher.get(name) == "yes"),
        }
        print(
            f"seed {seed}: {answer['method']} ({'worse than ' + ', '.join(ahead) if ahead else 'not worse'}), "
            f"sure {answer['sure']:.2f}, {answer['used']:.0f} s of {answer['budget']:.0f}, rounds {answer['rounds']}; "
            + "; ".join(f"{what}: {', '.join(names) or 'none'}" for what, names in lists.items()),
            flush=True,
        )
    print(f"{good} of {arguments.seeds} seeds name a method that the full benchmark does not rate worse than its best.")


if __name__ == "__main__":
    main()
