"""What a sweep costs beside the forward passes it is made of, and beside Quantus on the same work.

python benchmarks/speed_metrics.py                 on the CPU
python benchmarks/speed_metrics.py --device cuda --images 32

Times are medians of ratios taken side by side in one run. Quantus 0.6 calls `numpy.trapz`, which numpy 2.4 no longer
has: it is put back here, and only here.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import timm
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from mhex.capture import untouched
from mhex.metrics import get_metric
from mhex.metrics.case import Case
from mhex.perturb import PerturbationSweep, Subject

SIX = ("deletion", "insertion", "perturbation-auc", "aopc", "log-odds", "fidelity")
BUDGETS = {"vit_small_patch16_224": 1.15, "resnet18": 1.3}


def timed(job: Callable[[], Any], device: str) -> float:
    """Seconds of one call."""
    if device != "cpu":
        torch.cuda.synchronize()
    started = time.perf_counter()
    job()
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter() - started


def bare(model: nn.Module, x: Tensor, passes: int, size: int) -> Callable[[], None]:
    """So many plain forward passes, as many images at a time."""
    batch = x.repeat(-(-size // len(x)), 1, 1, 1)[:size]

    def run() -> None:
        with untouched(model), torch.inference_mode():
            for start in range(0, passes, size):
                model(batch[: min(size, passes - start)])

    return run


def sweep(name: str, images: int, steps: int, device: str, repeats: int) -> list[tuple[str, float, str]]:
    """A sweep of both orders beside its bare passes; six metrics of it; Quantus."""
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=1000).to(device).eval()
    x = torch.randn(images, 3, 224, 224, device=device)
    maps = torch.rand(images, 224, 224, device=device)
    runner = PerturbationSweep("zero", "pixel", steps)
    one = PerturbationSweep("zero", "pixel", steps, orders=("mif",))
    passes = images * 2 * steps
    size = 16 if device == "cpu" else 256
    label = torch.zeros(images, dtype=torch.long)

    def both() -> Any:
        return runner(Subject(model, x, label, batch_size=size), None, maps)

    def six() -> None:
        case = Case(Subject(model, x, label, batch_size=size), maps)
        for metric in SIX:
            made = get_metric(metric).metric(reference="zero", steps=steps)
            made.update(*made.of(case))

    plain = bare(model, x, passes, size)
    ratios: dict[str, list[float]] = {}
    jobs = {"sweep": both, "six metrics": six}
    flipping = quantus_curve(model, x, maps, steps, device)
    single = lambda: one(Subject(model, x, label, batch_size=size), None, maps)  # noqa: E731
    for job in (plain, both):
        job()
    for _ in range(repeats):
        base = timed(plain, device)
        for key, job in jobs.items():
            ratios.setdefault(key, []).append(timed(job, device) / base)
        if flipping is not None:
            theirs = timed(flipping, device)
            ratios.setdefault("quantus", []).append(theirs / timed(single, device))
            ratios.setdefault("quantus six", []).append(6 * theirs / timed(six, device))
    found = [
        (
            f"{name}: sweep of both orders / its {2 * steps} bare passes",
            _median(ratios["sweep"]),
            f"at most {BUDGETS[name]}",
        ),
        (f"{name}: six metrics, both orders / the same passes", _median(ratios["six metrics"]), ""),
    ]
    if flipping is not None:
        found.append(
            (f"{name}: Quantus PixelFlipping / one deletion curve", _median(ratios["quantus"]), "at least 2.5")
        )
        found.append(
            (f"{name}: six Quantus curves / six metrics, both orders", _median(ratios["quantus six"]), "at least 6")
        )
    return found


def quantus_curve(model: nn.Module, x: Tensor, maps: Tensor, steps: int, device: str) -> Callable[[], Any] | None:
    """One curve of Quantus on the same images and steps; None where it is not installed."""
    if find_spec("quantus") is None:
        return None
    import numpy as np

    if not hasattr(np, "trapz"):
        np.trapz = np.trapezoid  # type: ignore[attr-defined]
    import quantus

    metric = quantus.PixelFlipping(
        features_in_step=224 * 224 // steps,
        perturb_baseline="black",
        normalise=False,
        disable_warnings=True,
        display_progressbar=False,
    )
    images, scores = x.cpu().numpy(), maps[:, None].cpu().numpy()
    classes = np.zeros(len(x), dtype=int)
    return lambda: metric(
        model=model, x_batch=images, y_batch=classes, a_batch=scores, device=device, channel_first=True
    )


def _median(values: list[float]) -> float:
    return statistics.median(values)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--images", type=int, default=4)
    parser.add_argument("--steps", type=int, default=28)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    table = Table("work", "ratio", "budget")
    for name in BUDGETS:
        for work, ratio, budget in sweep(name, arguments.images, arguments.steps, arguments.device, arguments.repeats):
            table.add_row(work, f"{ratio:.2f}", budget)
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
