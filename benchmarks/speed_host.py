"""What the host does in a call beside the forward pass: Grad-CAM of one image of 32 px on a ResNet-18, on the CPU.

F, `mhex.explain` and a prepared explainer take turns. Wall time, and processor time of the calling thread, which tells
less of what else the machine does; medians, and medians of the differences to the F of the same turn.

    python benchmarks/speed_host.py [--turns 200] [--threads 2]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import timm
import torch
from rich.console import Console
from rich.table import Table

import mhex

CLOCKS = {"wall": time.perf_counter, "processor": time.thread_time}


def milliseconds(jobs: dict[str, Callable[[], object]], turns: int) -> dict[tuple[str, str], list[float]]:
    """Times of every turn, by job and clock."""
    times: dict[tuple[str, str], list[float]] = {(name, clock): [] for name in jobs for clock in CLOCKS}
    for turn in range(-10, turns):
        for name, job in jobs.items():
            before = {clock: read() for clock, read in CLOCKS.items()}
            job()
            after = {clock: read() for clock, read in CLOCKS.items()}
            if turn >= 0:  # the first load kernels
                for clock in CLOCKS:
                    times[name, clock].append(1e3 * (after[clock] - before[clock]))
    return times


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=200)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(arguments.threads)
    model, x = timm.create_model("resnet18", num_classes=1000).eval(), torch.randn(1, 3, 32, 32)
    explainer = mhex.Explainer(model, "gradcam")
    jobs: dict[str, Callable[[], object]] = {
        "F": torch.no_grad()(lambda: model(x)),
        "mhex.explain": lambda: mhex.explain(model, x, "gradcam"),
        "prepared explainer": lambda: explainer(x),
    }
    times = milliseconds(jobs, arguments.turns)
    table = Table("ms", *(f"{clock}{words}" for clock in CLOCKS for words in ("", ", above F")))
    for name in jobs:
        cells = []
        for clock in CLOCKS:
            above = [a - b for a, b in zip(times[name, clock], times["F", clock], strict=True)]
            cells += [f"{statistics.median(values):.2f}" for values in (times[name, clock], above)]
        table.add_row(name, *cells)
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
