"""Areas by eight random levels, and by eight equal steps, beside dense curves: a CNN, a Vision Transformer and texts.

MHEX_DATA=... python benchmarks/random_grid.py                  three models, 40 samples of each, eight draws
MHEX_DATA=... python benchmarks/random_grid.py --samples 8      a try

A table in Markdown. Dense areas are trapezoids over every count of units that the dense sweep has. The bias is the mean
of estimate less dense area, with its standard error over samples; random levels are drawn anew for each of several
seeds. "SE x" is the standard error of the mean over samples beside that of dense areas.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

import mhex
from mhex.lab.datasets.catalogue import data_entry
from mhex.perturb import ORDERS, STRATA, PerturbationSweep, Subject, SweepResult

HEADER = ("model", "order", "map", "dense area", "random: bias", "error", "SE x", "equal steps: bias", "of the area")


@dataclass(frozen=True)
class Setting:
    """A model, its data and what is removed."""

    model: str
    data: str
    methods: tuple[str, str]
    sweep: PerturbationSweep  # the dense one


SETTINGS = (
    Setting("zoo:blood-mhex-resnet18", "blood", ("gradcam", "input-x-gradient"), PerturbationSweep("mean", steps=72)),
    Setting("zoo:pets-vit", "pets", ("gae", "conservative-lrp"), PerturbationSweep("drop", "patch", steps=72)),
    Setting("zoo:agnews-mhex-minilm", "ag_news", ("gae", "attnlrp"), PerturbationSweep("drop", "token", steps=400)),
)


@dataclass(frozen=True)
class Areas:
    """Areas of one map along one order, (B,); those by random levels (R, B), of R seeds."""

    dense: Tensor
    random: Tensor
    equal: Tensor

    def __sub__(self, other: Areas) -> Areas:
        return Areas(self.dense - other.dense, self.random - other.random, self.equal - other.equal)

    def row(self) -> list[str]:
        """The numbers of a row of the table."""
        error, steps = self.random - self.dense, self.equal - self.dense
        ratio = float((self.random.var(1).mean() / self.dense.var()).sqrt())
        mean = float(self.dense.mean())
        share = f"{100 * float(steps.mean()) / mean:+.1f} %" if abs(mean) > 0.05 else ""
        size = f"{float(error.square().mean().sqrt()):.4f}"
        return [f"{mean:.4f}", with_error(error.mean(0)), size, f"{ratio:.3f}", with_error(steps), share]


def with_error(values: Tensor) -> str:
    """Mean and standard error of values (B,)."""
    return f"{float(values.mean()):+.4f} ± {float(values.std() / len(values) ** 0.5):.4f}"


def dense_area(result: SweepResult, order: str) -> Tensor:
    """Trapezoids over the counts that the sweep has, (B,)."""
    share = result.removed / result.units[:, None]
    return torch.trapezoid(result.curve(order), share, dim=1)


def subject_of(setting: Setting, bundle: mhex.Bundle, samples: int) -> Subject:
    """Every second of twice as many samples of the test split, evenly spaced over it."""
    items = list(data_entry(setting.data).items(limit=2 * samples))[::2]
    kind = data_entry(setting.data).kind
    inputs = [item[kind] for item in items]
    return Subject(bundle.model, inputs, preprocess=bundle.preprocess, tokenizer=bundle.tokenizer)


def areas(setting: Setting, samples: int, seeds: int) -> Iterator[tuple[str, str, Areas]]:
    """Areas by order and map, and of the difference of two maps."""
    bundle = mhex.load(setting.model)
    subject = subject_of(setting, bundle, samples)
    by_order: dict[str, list[Areas]] = {order: [] for order in ORDERS}
    for method in setting.methods:
        maps = mhex.explain(bundle, subject.prepared, method, subject.predicted).scores
        coarse = replace(setting.sweep, steps=STRATA)
        dense, equal = setting.sweep.ask(subject, maps), coarse.ask(subject, maps)
        random = [replace(coarse, grid="random", seed=seed).ask(subject, maps) for seed in range(seeds)]
        for order, entries in by_order.items():
            draws = torch.stack([result.area(order) for result in random])
            entries.append(Areas(dense_area(dense, order), draws, equal.area(order)))
            yield order, method, entries[-1]
    for order, (first, second) in by_order.items():
        yield order, "difference", first - second


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=4)
    options = parser.parse_args()
    print(f"{options.samples} samples, {STRATA} draws, {options.seeds} seeds; {STRATA} equal steps\n")
    print("| " + " | ".join(HEADER) + " |")
    print("|" + "---|" * len(HEADER), flush=True)
    for setting in SETTINGS:
        for order, name, entry in areas(setting, options.samples, options.seeds):
            print("| " + " | ".join([setting.model, order, name, *entry.row()]) + " |", flush=True)


if __name__ == "__main__":
    main()
