"""Where heads should sit, how gates should start, and which loss to take: blood cells, narrow ResNet-18.

python benchmarks/heads_placement.py --device cuda --parallel 8        writes docs/results/heads-placement.md

Every variant is trained as `mhex train blood-mhex-resnet18 --set ...` would, for a few epochs and two seeds, and judged
on validation images by another network; heads in closed form are fitted on the plain network. Runs are kept in
`--runs`: what is done is not repeated, and a run that was broken off goes on; other epochs need another folder.
`--page` writes the page from what is there. Needs the blood cells (`MHEX_DATA`) and `mhex models build blood-resnet34`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

import mhex
from mhex.lab.config.recipe import TrainingRecipe
from mhex.lab.datasets import load_blood
from mhex.lab.train.run import train
from mhex.lab.train.samples import Feed, FeedBatches, load_samples, load_test, make_feed
from placement_page import page
from placement_studies import FITTED, PLAIN_NAME, VARIANTS, Budget, folder_of, recipe_of
from study_page import DOCS, device_words

EVALUATOR = "zoo:blood-resnet34"
METRICS = ("soft-average-drop:mhex", "average-drop:mhex", "effective-average-drop:mhex")
METHODS: tuple[Any, ...] = ("mhex", ("mhex", {"preset": "table3"}), "gradcam")
ROWS = "rows.json"


def judge(bundle: mhex.Bundle, images: int, device: str) -> dict[str, dict[str, list[float]]]:
    """Numbers of each image by method and metric, for maps of the label judged by the evaluator."""
    report = mhex.evaluate(
        bundle,
        load_blood("val", limit=images).items(),
        methods=METHODS,
        metrics=METRICS,
        target="label",
        controls=False,
        batch_size=32,
        evaluator=mhex.load(EVALUATOR).model.to(device),
    )
    found: dict[str, dict[str, list[float]]] = {method: {} for method in report.methods}
    for metric in METRICS:
        for method, values in report.per_image(metric).items():
            found[method][metric] = values.tolist()
    return found


def run(runs: Path, variant: str, seed: int, budget: Budget, device: str) -> None:
    """Train and judge one variant; of the plain network, fit heads at all placements and judge them."""
    folder, recipe = folder_of(runs, variant, seed), recipe_of(variant, seed, budget)
    report = train(recipe, folder)
    bundle = mhex.load(f"run:{folder}")
    bundle.model.to(device)
    facts = {"seed": seed, "seconds": report["seconds"], "accuracy": report["test"]["cell"]}
    if variant == PLAIN_NAME:
        feeds = feeds_of(recipe, device)
        rows = [{**facts, "kind": "trained", "variant": variant}]
        for name, options in FITTED.items():
            found = fitted(bundle, feeds, options, budget.images, device)
            rows.append({**facts, "kind": "fitted", "variant": name, **found})
    else:
        maps = judge(bundle, budget.images, device)
        rows = [{**facts, "kind": "trained", "variant": variant, "heads": report["test"]["heads"], "maps": maps}]
    told = {"digest": recipe.digest(), "budget": asdict(budget), "device": device_words(device), "rows": rows}
    (folder / ROWS).write_text(json.dumps(told) + "\n", encoding="utf-8")


def feeds_of(recipe: TrainingRecipe, device: str) -> tuple[Feed, Feed]:
    """What heads are fitted on, and what they are judged on."""
    learned, judged = load_samples(recipe).train, load_test(recipe)
    return make_feed(recipe, learned, None, torch.device(device)), make_feed(recipe, judged, None, torch.device(device))


def fitted(
    bundle: mhex.Bundle, feeds: tuple[Feed, Feed], options: dict[str, Any], images: int, device: str
) -> dict[str, Any]:
    """Heads in closed form: how good each is on the validation split, seconds of the fit, and what their maps do."""
    assert bundle.class_names is not None
    scaffold = mhex.attach(bundle.model, len(bundle.class_names), preset="probe", **options)
    started = time.perf_counter()
    scaffold.fit(FeedBatches(feeds[0], size=128))
    seconds = time.perf_counter() - started
    shares = scaffold.head_accuracy(FeedBatches(feeds[1], size=128))
    found = judge(bundle, images, device)
    heads = [round(shares[name], 4) for name in scaffold.names]
    scaffold.detach()
    return {"fit_seconds": round(seconds, 1), "heads": heads, "maps": found}


def done(runs: Path, variant: str, seed: int, budget: Budget) -> dict[str, Any] | None:
    """What a finished run told, if it was made by this recipe and budget; else None."""
    path = folder_of(runs, variant, seed) / ROWS
    if not path.is_file():
        return None
    told: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    same = json.loads(json.dumps(asdict(budget)))
    fits = told["budget"] == same and told["digest"] == recipe_of(variant, seed, budget).digest()
    return told if fits else None


def start_all(wanted: argparse.Namespace, budget: Budget) -> None:
    """Run what is missing, several at a time, each in a process of its own."""
    todo = [(v, s) for s in budget.seeds for v in VARIANTS if done(wanted.runs, v, s, budget) is None]
    share = str(max(1, (os.cpu_count() or 1) // wanted.parallel))
    given = [f"--{name}={getattr(wanted, name)}" for name in ("runs", "device", "epochs", "images", "seeds")]
    given += [] if wanted.learn is None else [f"--learn={wanted.learn}"]

    def start(one: tuple[str, int]) -> str:
        variant, seed = one
        log = folder_of(wanted.runs, variant, seed).with_suffix(".log")
        command = [sys.executable, __file__, *given, "--run", variant, str(seed)]
        with log.open("w", encoding="utf-8") as told:
            failed = subprocess.run(
                command,
                stdout=told,
                stderr=subprocess.STDOUT,
                env={**os.environ, "OMP_NUM_THREADS": share},
                check=False,
            ).returncode
        print(f"{variant}, seed {seed}: {f'failed, see {log}' if failed else 'done'}", flush=True)
        return f"{variant}, seed {seed}" if failed else ""

    wanted.runs.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(wanted.parallel) as pool:
        failed = [one for one in pool.map(start, todo) if one]
    if failed:
        raise SystemExit(f"Not finished: {'; '.join(failed)}. The same command goes on.")


def main() -> None:
    """Run what is missing and write the page."""
    usual = Budget()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--device", default="cuda" if torch.cuda.is_available() else "cpu", help="where maps are judged"
    )
    parser.add_argument("--images", type=int, default=usual.images, help="validation images for maps (256)")
    parser.add_argument("--epochs", type=int, default=usual.epochs)
    parser.add_argument("--seeds", type=int, default=len(usual.seeds), help="runs of each variant (2)")
    parser.add_argument("--learn", type=int, help="at most so many images of a split, to try the script")
    parser.add_argument("--parallel", type=int, default=1, help="runs at a time")
    parser.add_argument("--runs", type=Path, default=Path("out/placement"), help="folder of the runs")
    parser.add_argument("--out", type=Path, default=DOCS, help="folder of pages")
    parser.add_argument("--page", action="store_true", help="write the page from the runs that are there")
    parser.add_argument("--run", nargs=2, metavar=("VARIANT", "SEED"), help="one run")
    wanted = parser.parse_args()
    budget = Budget(wanted.epochs, wanted.images, wanted.learn, tuple(range(1, wanted.seeds + 1)))
    if wanted.run:
        run(wanted.runs, wanted.run[0], int(wanted.run[1]), budget, wanted.device)
        return
    if not wanted.page:
        start_all(wanted, budget)
    told = [done(wanted.runs, variant, seed, budget) for variant in VARIANTS for seed in budget.seeds]
    there = [one for one in told if one is not None]
    if not there:
        raise SystemExit(f"There are no finished runs of this budget in {wanted.runs}.")
    path = wanted.out / "results" / "heads-placement.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page(there, budget), encoding="utf-8")
    print(f"Wrote {path}", flush=True)


if __name__ == "__main__":
    main()
