"""Does training with heads cost accuracy? `python benchmarks/mhex_accuracy.py --out out/accuracy`.

Trains each network with and without heads under one budget, fits heads in closed form on the plain ones, and writes
docs/results/mhex-accuracy.md. Runs that are done are not repeated; `--jobs` trains several at a time, `--page` only
writes the page from the rows that are there.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import nn

import mhex
from accuracy_page import page
from accuracy_studies import CLOSED, HEADS, STUDIES, folder_of, recipe_of
from mhex.heads.predictors import watched
from mhex.lab.config.recipe import TrainingRecipe, find_recipe, read_recipe
from mhex.lab.train.checkpoint import load_weights
from mhex.lab.train.evaluate import make_objective
from mhex.lab.train.report import read_finished
from mhex.lab.train.run import train
from mhex.lab.train.samples import Feed, FeedBatches, load_samples, load_test, make_feed

ROWS = "rows.json"
PAGE = Path(__file__).parents[1] / "docs" / "results" / "mhex-accuracy.md"


def run(out: Path, name: str, variant: str, seed: int) -> None:
    """Train one network, and judge it, its heads and its gates on the test split."""
    study, folder = STUDIES[name], folder_of(out, name, variant, seed)
    recipe = recipe_of(study, variant, seed)
    for need in recipe.needs:
        train(read_recipe(find_recipe(need)), folder.parent / need)
    report = train(recipe, folder)
    finished = read_finished(folder)
    assert finished is not None
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    judged = load_test(recipe)
    network, _ = make_objective(recipe, judged.classes, training=False)
    load_weights(network.model, finished.weights)
    model = network.model.to(device).eval()
    test = make_feed(recipe, judged, network.tokenizer, device)
    accuracy = next(value for value in report["test"].values() if isinstance(value, float))
    facts = {
        "data": name,
        "seed": seed,
        "digest": recipe.digest(),
        "seconds": report["seconds"],
        "device": report["device"],
    }
    rows: list[dict[str, Any]] = [
        {**facts, "variant": variant, "accuracy": accuracy, "heads": report["test"].get("heads", [])}
    ]
    if HEADS[variant]:
        rows[0]["gates"] = mean_gates(model, test)
    elif name in ("blood", "pneumonia"):
        rows.append({**facts, **closed_form(recipe, model, network.tokenizer, test)})
    (folder / ROWS).write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def mean_gates(model: nn.Module, feed: Feed) -> list[float]:
    """Mean gate of each block over samples and channels."""
    sums, count = torch.zeros(len(mhex.Scaffold(model).names), dtype=torch.float64), 0
    with watched(model) as see:
        for inputs, labels in FeedBatches(feed, size=128):
            sums += torch.tensor([float(one.gate.mean()) for one in see(inputs).blocks.values()]) * len(labels)
            count += len(labels)
    return [round(float(one) / count, 4) for one in sums]


def closed_form(recipe: TrainingRecipe, model: nn.Module, tokenizer: Any, test: Feed) -> dict[str, Any]:
    """Heads fitted on the frozen plain network: their accuracies; its own predictions stay, bit for bit."""
    samples = load_samples(recipe)
    learned = make_feed(recipe, samples.train, tokenizer, test.labels.device, samples.rows)
    first = next(iter(FeedBatches(test, size=128)))[0]
    with torch.no_grad():
        before = model(first)
    scaffold = mhex.attach(model, len(samples.train.classes), preset="probe")
    started = time.perf_counter()
    scaffold.fit(FeedBatches(learned, size=128))
    seconds = time.perf_counter() - started
    with torch.no_grad():
        if not torch.equal(model(first), before):
            raise SystemExit("Fitting heads changed a prediction.")
    shares = scaffold.head_accuracy(FeedBatches(test, size=128))
    return {
        "variant": CLOSED,
        "accuracy": round(list(shares.values())[-1], 4),
        "heads": [round(shares[head], 4) for head in scaffold.names],
        "fit_seconds": round(seconds, 1),
    }


def is_done(out: Path, name: str, variant: str, seed: int) -> bool:
    """Whether a run was judged, and by the recipe as it is now."""
    path = folder_of(out, name, variant, seed) / ROWS
    digest = recipe_of(STUDIES[name], variant, seed).digest()
    return path.is_file() and all(row.get("digest") == digest for row in json.loads(path.read_text(encoding="utf-8")))


def main() -> None:
    """Run what is missing and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out/accuracy"))
    parser.add_argument("--only", nargs="*", choices=list(STUDIES), default=list(STUDIES))
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument(
        "--page", action="store_true", help="write the page from the rows that are there, or those beside it"
    )
    parser.add_argument("--run", nargs=3, metavar=("DATA", "VARIANT", "SEED"), help="one run")
    wanted = parser.parse_args()
    if wanted.run:
        run(wanted.out, wanted.run[0], wanted.run[1], int(wanted.run[2]))
        return
    todo = [
        (name, variant, seed)
        for name in wanted.only
        for variant in STUDIES[name].variants
        for seed in STUDIES[name].seeds
        if not is_done(wanted.out, name, variant, seed)
    ]

    def start(one: tuple[str, str, int]) -> None:
        command = [sys.executable, __file__, "--out", str(wanted.out), "--run", *map(str, one)]
        print(*one, flush=True)
        subprocess.run(command, check=True)

    if not wanted.page:
        for name in wanted.only:  # what all runs of a data set start from is trained once, first
            for need in recipe_of(STUDIES[name], "plain", 1).needs:
                train(read_recipe(find_recipe(need)), wanted.out / name / need)
        with ThreadPoolExecutor(wanted.jobs) as pool:
            list(pool.map(start, todo))
    kept = PAGE.with_suffix(".json")
    found = sorted(wanted.out.glob(f"*/*/{ROWS}")) or [kept]
    if not found[0].is_file():
        raise SystemExit(f"There are no rows in {wanted.out}, and no {kept}.")
    rows = [row for path in found for row in json.loads(path.read_text(encoding="utf-8"))]
    PAGE.parent.mkdir(exist_ok=True)
    kept.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
