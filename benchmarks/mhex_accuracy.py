"""Does training with heads cost accuracy? `python benchmarks/mhex_accuracy.py --out out/accuracy`.

Trains each network with and without heads under one budget, fits heads in closed form on the plain ones, and writes
docs/results/mhex-accuracy.md. Runs that are done are not repeated; `--jobs` trains several at a time, `--page` only
writes the page from the rows that are there.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import mhex
from mhex.heads.passes import watched
from mhex.train.checkpoint import load_weights
from mhex.train.feeds import Feed, row_batches
from mhex.train.measure import make_objective
from mhex.train.recipe import Recipe
from mhex.train.recipe_files import find_recipe, read_recipe
from mhex.train.report import read_finished
from mhex.train.run import train
from mhex.train.samples import load_samples, load_test, make_feed

PAGE = Path(__file__).parents[1] / "docs" / "results" / "mhex-accuracy.md"
HEADS = {
    "plain": {},
    "pretrain": {"mode": "pretrain", "classifier": False},
    "finetune": {"mode": "finetune", "classifier": False},
    "finetune + classifier": {"mode": "finetune", "classifier": True},
}
CLOSED = "closed-form heads"


@dataclass(frozen=True)
class Study:
    """One data set.

    Attributes:
        title: For the page.
        recipe: Packaged recipe of the plain network.
        variants: Ways to train it.
        preset: Of the gates: `paper` from scratch, `identity` from trained weights.
        changes: Of the recipe.
        seeds: One run each.
    """

    title: str
    recipe: str
    variants: tuple[str, ...]
    preset: str
    changes: tuple[str, ...] = ()
    seeds: tuple[int, ...] = (1, 2, 3)


STUDIES = {
    "blood": Study("Blood cells, ResNet-18, 112 px", "blood-resnet18", tuple(HEADS), "paper"),
    "pneumonia": Study(
        "Pneumonia X-rays, ResNet-18, 112 px", "pneumonia-resnet18", tuple(HEADS), "paper", ("data.side=112",)
    ),
    "pets": Study(
        "Pets, ResNet-18, 128 px, 60 epochs from one CIFAR-10 start",
        "pets-resnet18",
        ("plain", "finetune", "finetune + classifier"),
        "identity",
    ),
    "ag_news": Study(
        "AG News, MiniLM, fine-tuned", "agnews-minilm", ("plain", "finetune", "finetune + classifier"), "identity"
    ),
}


def recipe_of(study: Study, variant: str, seed: int) -> Recipe:
    """The recipe of one run: the same data, network, epochs and seed, with or without heads."""
    heads = [f"heads.{key}={json.dumps(value)}" for key, value in HEADS[variant].items()]
    preset = [f"heads.preset={study.preset}"] if heads else []
    return read_recipe(find_recipe(study.recipe), [*study.changes, *preset, *heads, f"seed={seed}"])


def folder_of(out: Path, name: str, variant: str, seed: int) -> Path:
    """Folder of a run; runs of a data set share a parent, where their common start lies too."""
    return out / name / f"{variant.replace(' + ', '-')}-{seed}"


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
    facts = {"data": name, "seed": seed, "seconds": report["seconds"], "device": report["device"]}
    rows: list[dict[str, Any]] = [
        {**facts, "variant": variant, "accuracy": accuracy, "heads": report["test"].get("heads", [])}
    ]
    if HEADS[variant]:
        rows[0]["gates"] = mean_gates(model, test)
    elif name in ("blood", "pneumonia"):
        rows.append({**facts, **closed_form(recipe, model, network.tokenizer, test)})
    (folder / "rows.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def batches(feed: Feed) -> Iterator[tuple[Any, Tensor]]:
    """Plain batches of a feed with their labels."""
    for rows in row_batches(len(feed), 128):
        yield feed.plain(rows), feed.labels[rows.to(feed.labels.device)]


def mean_gates(model: nn.Module, feed: Feed) -> list[float]:
    """Mean gate of each block over samples and channels."""
    sums, count = torch.zeros(len(mhex.Scaffold(model).names), dtype=torch.float64), 0
    with watched(model) as see:
        for inputs, labels in batches(feed):
            sums += torch.tensor([float(one.gate.mean()) for one in see(inputs).blocks.values()]) * len(labels)
            count += len(labels)
    return [round(float(one) / count, 4) for one in sums]


def closed_form(recipe: Recipe, model: nn.Module, tokenizer: Any, test: Feed) -> dict[str, Any]:
    """Heads fitted on the frozen plain network: their accuracies; its own predictions stay, bit for bit."""
    samples = load_samples(recipe)
    learned = make_feed(recipe, samples.train, tokenizer, test.labels.device, samples.kept)
    first = next(batches(test))[0]
    with torch.no_grad():
        before = model(first)
    scaffold = mhex.attach(model, len(samples.train.classes), preset="probe")
    started = time.perf_counter()
    scaffold.fit(batches(learned))
    seconds = time.perf_counter() - started
    with torch.no_grad():
        if not torch.equal(model(first), before):
            raise SystemExit("Fitting heads changed a prediction.")
    shares = scaffold.head_accuracy(batches(test))
    return {
        "variant": CLOSED,
        "accuracy": round(list(shares.values())[-1], 4),
        "heads": [round(shares[head], 4) for head in scaffold.names],
        "fit_seconds": round(seconds, 1),
    }


def page(rows: list[dict[str, Any]]) -> str:
    """The page of results."""
    lines = [
        "# Accuracy with and without heads",
        "",
        "Made by `python benchmarks/mhex_accuracy.py`; the rows of all runs are in "
        "[mhex-accuracy.json](mhex-accuracy.json).",
        "",
    ]
    for name, study in STUDIES.items():
        mine = [row for row in rows if row["data"] == name]
        if not mine:
            continue
        recipe = recipe_of(study, "plain", 1)
        lines += [
            f"## {study.title}",
            "",
            f"Test split; {recipe.training.epochs} epochs for every variant, the same data order and changes for the "
            f"same seed; gates start as preset `{study.preset}`; mean and standard deviation over seeds.",
            "",
            "| variant | predicts | seeds | test accuracy % | seconds |",
            "|---|---|---|---|---|",
        ]
        for variant in (*study.variants, CLOSED):
            group = [row for row in mine if row["variant"] == variant]
            if group:
                said = _predicts(variant)
                lines.append(
                    f"| {variant} | {said} | {len(group)} | {_spread([100 * row['accuracy'] for row in group])} | "
                    f"{statistics.mean(row.get('fit_seconds', row['seconds']) for row in group):.0f} |"
                )
        lines += ["", *_per_block("Accuracy % of each head, first block to last", mine, "heads", 100), ""]
        lines += [*_per_block("Mean gate of each block", mine, "gates", 1), ""]
    return "\n".join(lines).rstrip() + "\n"


def _predicts(variant: str) -> str:
    options = HEADS.get(variant, {})
    if not options or options["classifier"]:
        return "classifier"
    return "running sum" if options["mode"] == "pretrain" else "last head"


def _spread(values: list[float]) -> str:
    spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.2f}{spread}"


def _per_block(title: str, rows: list[dict[str, Any]], key: str, factor: float) -> list[str]:
    variants = dict.fromkeys(row["variant"] for row in rows if row.get(key))
    if not variants:
        return []
    depth = max(len(row.get(key, [])) for row in rows)
    lines = [
        f"{title}:",
        "",
        "| variant | " + " | ".join(str(block + 1) for block in range(depth)) + " |",
        "|---" * (depth + 1) + "|",
    ]
    for variant in variants:
        group = [row[key] for row in rows if row["variant"] == variant and row.get(key)]
        means = [statistics.mean(column) for column in zip(*group, strict=True)]
        lines.append(
            f"| {variant} | " + " | ".join(f"{factor * mean:.{1 if factor > 1 else 3}f}" for mean in means) + " |"
        )
    return lines


def main() -> None:
    """Run what is missing and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out/accuracy"))
    parser.add_argument("--only", nargs="*", choices=list(STUDIES), default=list(STUDIES))
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--page", action="store_true", help="write the page from the rows that are there")
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
        if not (folder_of(wanted.out, name, variant, seed) / "rows.json").is_file()
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
    found = sorted(wanted.out.glob("*/*/rows.json"))
    rows = [row for path in found for row in json.loads(path.read_text(encoding="utf-8"))]
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.with_suffix(".json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
