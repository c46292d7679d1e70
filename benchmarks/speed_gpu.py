"""What methods cost on a GPU, prepared once and called batch after batch, in the precisions that people use.

For each model, precision and batch size: F is a plain forward pass, F + B a forward pass and the gradient of a score
with respect to the input, weights frozen; then every method through `mhex.Explainer`, and captum where it does the same
work, and pytorch-grad-cam in float32. Times are wall times in milliseconds of single calls, each waited for; kernels
are what the profiler sees the GPU do; waits are the points at which the host waits for the device, the one at the end
of each timed call included.

    python benchmarks/speed_gpu.py [--models vit_base_patch16_224 resnet50] [--batches 1 8 64 256] [--out rows.json]
    python benchmarks/speed_gpu.py --evaluate
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import timm
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import Subset, TensorDataset

import mhex
from mhex.capture import find_anatomy
from mhex.inputs import prepare
from mhex.methods import all_methods
from speed import cam_peers, input_peers
from yardsticks import Bench

Job = Callable[[], Any]
PRECISIONS = ("float32", "autocast", "bfloat16")
CAMS = {"gradcam": "GradCAM", "layercam": "LayerCAM", "gradcam++": "GradCAMPlusPlus", "eigencam": "EigenCAM"}
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")


def precision_of(name: str) -> AbstractContextManager[Any]:
    """What calls are made under."""
    return torch.autocast("cuda", torch.bfloat16) if name == "autocast" else nullcontext()


def timed(job: Job, seconds: float) -> float:
    """Median wall time of a call in milliseconds, each waited for."""
    for _ in range(4):  # recorded by then
        job()
    times: list[float] = []
    until = time.perf_counter() + seconds
    while len(times) < 5 or (time.perf_counter() < until and len(times) < 100):
        torch.cuda.synchronize()
        start = time.perf_counter()
        job()
        torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times)


def seen(job: Job) -> tuple[float, int]:
    """Milliseconds of kernels in one call, and how often the host waits for the device in it."""
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as trace:
        job()
    events = trace.events() or []
    kernels = sum(
        event.device_time_total for event in events if event.device_type == torch._C._autograd.DeviceType.CUDA
    )
    return kernels / 1e3, sum(event.name in WAITS for event in events)


def peak(job: Job) -> float:
    """The most memory of a call above what was allocated before, in MB."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    job()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def own_passes(model: nn.Module, x: Tensor, precision: str) -> dict[str, Job]:
    """F and F + B."""

    def forward() -> None:
        with torch.no_grad(), precision_of(precision):
            model(x)

    def both() -> None:
        leaf = x.detach().requires_grad_()
        with precision_of(precision):
            y = model(leaf).float().amax(1).sum()
        torch.autograd.grad(y, leaf)

    return {"F": forward, "F+B": both}


def peers_of(model: nn.Module, x: Tensor, precision: str, only: set[str]) -> dict[str, Job]:
    """Captum and pytorch-grad-cam on the same work as some methods, or as all: for a class, and the last stage."""
    bench = Bench("", model, x)
    found = {"input-x-gradient": input_peers(bench)}
    if (stage := getattr(model, "layer4", None)) is not None:
        found |= {method: cam_peers(bench, stage[-1], kind) for method, kind in CAMS.items()}

    def call(job: Job) -> None:
        with precision_of(precision):
            job()

    return {
        f"{peer}'s {method}": partial(call, job)
        for method, jobs in found.items()
        for peer, job in jobs.items()
        # pytorch-grad-cam hands what it reads to numpy, which has no bfloat16.
        if (peer == "captum" or precision == "float32") and (not only or method in only)
    }


def rows_of(name: str, precision: str, batch: int, seconds: float, only: set[str]) -> list[dict[str, Any]]:
    """One row per pass, method and peer."""
    torch.manual_seed(0)
    with torch.device("cuda"):  # a host takes seconds to draw the weights
        model = timm.create_model(name, num_classes=1000).eval()
    if precision == "bfloat16":
        model = model.bfloat16()
    size = model.default_cfg["input_size"]
    x = torch.randn(batch, *size, device="cuda", dtype=next(model.parameters()).dtype)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    jobs = own_passes(model, x, precision)
    explainers = {}
    budgets = {}
    blocks = find_anatomy(model, prepare(model, x).batch).blocks
    for method in all_methods().values():
        if method.budget is None or method.budget[1] == "passes" or (only and method.name not in only):
            continue
        explainers[method.name] = mhex.Explainer(model, method.name)
        # Feature maps of a Transformer lie inside its last block, so the CAM methods are last-block methods there.
        budgets[method.name] = (1.35, "F") if blocks and "features" in method.needs.keep else method.budget

    def explain(explainer: mhex.Explainer) -> Any:
        with precision_of(precision):
            return explainer(x, 0)

    head = {"model": name, "precision": precision, "batch": batch}
    rows: list[dict[str, Any]] = []

    def measure(label: str, job: Job, **facts: Any) -> None:
        try:
            wall, (kernels, waits), memory = timed(job, seconds), seen(job), peak(job)
        except mhex.MhexError as error:
            rows.append({**head, "job": label, "refused": str(error)[:120], **facts})
            return
        rows.append({**head, "job": label, "wall": wall, "kernels": kernels, "waits": waits, "memory": memory, **facts})

    for label, job in jobs.items():
        measure(label, job)
    for label, explainer in explainers.items():
        measure(label, partial(explain, explainer), budget=budgets[label])
        recordings = explainer._recordings
        rows[-1]["recorded"] = bool(recordings.graphs)
        rows[-1]["not recorded"] = "; ".join(reason[:160] for reason in recordings.refusals.values())
        explainer.forget()
    for label, job in peers_of(model, x, precision, only).items():
        measure(label, job)
    if not only or "mhex" in only:  # beside the forward pass of the model with heads
        scaffold = mhex.attach(model, 1000)
        for name, parameter in scaffold.heads.named_parameters():
            if name.endswith("w1.weight"):  # heads that were not trained say nothing
                torch.nn.init.normal_(parameter, std=0.02)
        measure("F with heads", own_passes(model, x, precision)["F"])
        explainer = mhex.Explainer(model, "mhex")
        measure("mhex", partial(explain, explainer))
        rows[-1]["recorded"] = bool(explainer._recordings.graphs)
    return rows


TEN = (
    *("attention", "rollout", "gae", "gradtoken", "cdam", "attcat", "conservative-lrp", "attnlrp"),
    *("input-x-gradient", "gradcam"),
)
SIX = ("deletion", "insertion", "perturbation-auc", "aopc", "log-odds", "fidelity")


class Scale:
    """How random images are taken to be normalised, so that black is known."""

    mean = std = (0.5, 0.5, 0.5)

    def __call__(self, x: Tensor) -> Tensor:
        """As it is."""
        return x


def evaluation(name: str, photos: int = 200) -> dict[str, Any]:
    """Wall time of ten methods and six metrics in bfloat16, beside that of the bare passes, as many at a time."""
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=1000).cuda().eval().bfloat16()
    images = torch.randn(photos, *model.default_cfg["input_size"]).bfloat16()
    data = TensorDataset(images, torch.randint(0, 1000, (photos,)))

    def run(count: int) -> mhex.Report:
        part = Subset(data, range(count))
        options: dict[str, Any] = {"batch_size": 64, "controls": False, "preprocess": Scale(), "progress": False}
        return mhex.evaluate(model, part, TEN, SIX, **options)

    run(16)  # kernels are loaded
    torch.cuda.synchronize()
    start = time.perf_counter()
    cost = run(photos).cost
    torch.cuda.synchronize()
    wall = time.perf_counter() - start
    many = images.repeat(3, 1, 1, 1)[:512].cuda()
    with torch.inference_mode():
        bare = timed(lambda: model(many), 3.0) / 1e3 / len(many) * cost["passes"]
    return {"model": name, "photos": photos, "wall": wall, "bare": bare, "ratio": wall / bare, **cost}


def table(rows: list[dict[str, Any]]) -> str:
    """Rows of one model, precision and batch size as Markdown."""
    forward = next(row["wall"] for row in rows if row["job"] == "F")
    both = next(row["wall"] for row in rows if row["job"] == "F+B")
    names = ("method", "ms", "kernels", "/ F", "/ (F + B)", "budget", "images / s", "waits", "MB", "recorded")
    lines = [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    for row in rows:
        if "wall" not in row:
            lines.append(f"| {row['job']} | refused: {row['refused']} |")
            continue
        factor, unit = row.get("budget") or (None, "")
        limit = "" if factor is None else f"{factor:g} {unit.replace('F+B', '(F + B)')}"
        cost = row["wall"] / (forward if unit == "F" else both)
        mark = " **over**" if factor is not None and cost > factor else ""
        speed = 1e3 * row["batch"] / row["wall"]
        lines.append(
            f"| {row['job']} | {row['wall']:.2f} | {row['kernels']:.2f} | {row['wall'] / forward:.2f} | "
            f"{row['wall'] / both:.2f} | {limit}{mark} | {speed:,.0f} | {row['waits']} | {row['memory']:.0f} | "
            f"{'yes' if row.get('recorded') else row.get('not recorded', '')} |"
        )
    return "\n".join(lines)


def save(rows: list[dict[str, Any]], path: Path | None) -> None:
    """Write rows, if a file is named."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(rows))


def main() -> None:
    """Measure, print tables, and write rows if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["vit_base_patch16_224", "resnet50"])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8, 64, 256])
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=list(PRECISIONS))
    parser.add_argument("--methods", nargs="+", default=[])
    parser.add_argument("--seconds", type=float, default=0.3, help="time for each job")
    parser.add_argument("--evaluate", action="store_true", help="time mhex.evaluate on the first model instead")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    if arguments.evaluate:
        rows = [evaluation(arguments.models[0])]
        print(json.dumps(rows[0]))
        save(rows, arguments.out)
        return
    for model in arguments.models:
        for precision in arguments.precisions:
            for batch in arguments.batches:
                part = rows_of(model, precision, batch, arguments.seconds, set(arguments.methods))
                rows += part
                print(f"\n### {model}, {precision}, batch {batch}\n\n{table(part)}", flush=True)
                save(rows, arguments.out)


if __name__ == "__main__":
    main()
