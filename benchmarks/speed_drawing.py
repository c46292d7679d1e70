"""What drawing costs beside explaining the same photo, and what a batch costs in files of its own; CPU seconds.

The picture by Pillow, which `Explanation.save` writes, is timed beside the same picture as a figure of matplotlib.

    python benchmarks/speed_drawing.py [--model zoo:pets-vit] [--photos 1000] [--repeats 9]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

import mhex
from mhex.data import load_pets
from mhex.viz import figure, save_figure

_BATCH = 50


def cpu_seconds(jobs: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Medians by name; the jobs take turns, so that all see the same machine."""
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    for turn in range(repeats + 1):
        for name, job in jobs.items():
            start = time.process_time()
            job()
            if turn:  # the first turn loads fonts and kernels
                seconds[name].append(time.process_time() - start)
    return {name: statistics.median(times) for name, times in seconds.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="zoo:pets-vit")
    parser.add_argument("--photos", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=9)
    arguments = parser.parse_args()
    photos = [row["image"] for row in load_pets(split="test").items()[:_BATCH]]
    explainer = mhex.Explainer(mhex.load(arguments.model))
    single, batch = explainer(photos[:1]), explainer(photos)
    turns = -(-arguments.photos // _BATCH)  # one pass of them all would fill the memory, and is not measured
    tensors = {name: value for name, value in vars(batch).items() if isinstance(value, Tensor)}
    repeated: dict[str, Any] = {name: torch.cat([tensor] * turns) for name, tensor in tensors.items()}
    batch = replace(batch, pictures=list(batch.pictures) * turns, **repeated)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        jobs: dict[str, Callable[[], object]] = {
            "explain one photo": lambda: explainer(photos[:1]),
            "figure of matplotlib, PNG": lambda: save_figure(figure(single), folder / "figure.png"),
            "save, PNG": lambda: single.save(folder / "picture.png"),
            "save, JPEG": lambda: single.save(folder / "picture.jpg"),
        }
        seconds = cpu_seconds(jobs, arguments.repeats)
        wall, start = time.perf_counter(), time.process_time()
        batch.save(folder / "maps" / "{sample}.png")
        count = len(batch.scores)
        seconds[f"save {count} photos in threads, PNG, each"] = (time.process_time() - start) / count
        wall = (time.perf_counter() - wall) / count
    table = Table("work", "ms of CPU", "/ explaining", title=f"{arguments.model}, {single.method}")
    for work, value in seconds.items():
        table.add_row(work, f"{1000 * value:.1f}", f"{value / seconds['explain one photo']:.2f}")
    Console(width=120).print(table)
    print(f"Each of {count} photos took {1000 * wall:.1f} ms of the clock.")


if __name__ == "__main__":
    main()
