"""Token F1 of control maps of texts on Movie Reviews: how well do the first or the last words do?

python benchmarks/token_positions.py

Control maps need no pass of a model, and depend on the tokenizer alone, which says where a review is cut. It is that of
the networks of `mhex bench gradtoken-movies`, so that these numbers stand beside the ones of that suite.
"""

import argparse
from typing import Any

import torch
from torch import Tensor

import mhex
from mhex.judge.controls import PREFIX, control, controls_of
from mhex.lab.datasets import data_entry
from mhex.metrics import Case, get_metric
from mhex.perturb import Subject
from study_page import interval_of

CARRIER = "zoo:agnews-mhex-minilm"  # the same tokenizer as `zoo:movies-minilm`, and it travels with mhex
METRIC = ("token-f1", "che")


def f1_of(items: Any, bundle: mhex.Bundle, batch: int = 8) -> dict[str, Tensor]:
    """The metric's numbers of each review, (n, k + 1), by control map: F1 for each k, and what can be found at all."""
    rows: dict[str, list[Tensor]] = {}
    for start in range(0, len(items), batch):
        ids = range(start, min(start + batch, len(items)))
        part = [items[place] for place in ids]
        subject = Subject(bundle.model, [item["text"] for item in part], ids=list(ids), tokenizer=bundle.tokenizer)
        nobody = torch.zeros(len(part), dtype=torch.long)  # control maps are of no class
        for name in controls_of("text"):
            case = Case(subject, control(name, subject), nobody, rationale=[item["rationale"] for item in part])
            metric = get_metric(METRIC[0]).metric(METRIC[1])
            rows.setdefault(f"{PREFIX}{name}", []).append(metric.score(*metric.of(case)))
    return {name: torch.cat(parts) for name, parts in rows.items()}


def main(limit: int | None, carrier: str) -> None:
    """Print the mean over k and reviews for each control map, and their differences, with 95 % intervals."""
    numbers = f1_of(data_entry("movies").items("test", limit=limit), mhex.load(carrier))
    means = {name: rows[:, :-1].mean(1) for name, rows in numbers.items()}  # over k, of each review
    for name, rows in numbers.items():
        print(f"{name}: {interval_of(means[name])}; marked words that can be found {interval_of(rows[:, -1])}")
        print(f"    for each k: {', '.join(f'{value:.4f}' for value in rows[:, :-1].nanmean(0).tolist())}")
    names = list(means)
    for first, second in ((a, b) for place, a in enumerate(names) for b in names[place + 1 :]):
        print(f"{first} less {second}: {interval_of(means[first] - means[second])}, {len(means[first])} reviews")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--limit", type=int, default=None, help="The most reviews; all by default.")
    parser.add_argument("--carrier", default=CARRIER, help="The model whose tokenizer is used.")
    arguments = parser.parse_args()
    main(arguments.limit, arguments.carrier)
