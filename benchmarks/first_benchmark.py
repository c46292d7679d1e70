"""The first benchmark: five methods and three control maps on the pets models, judged by every kind of metric.

python benchmarks/first_benchmark.py --device cuda        writes docs/results/first-benchmark.md

Needs the pets data set (`MHEX_DATA`). Rows per image are kept in `--out`, so that a run that was broken off goes on.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import mhex
from mhex.data import load_pets

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "results" / "first-benchmark.md"
MODELS = {
    "zoo:pets-vit": ("gradcam", "layercam", "gae", "rollout", "attention"),
    "zoo:pets-resnet10t": ("gradcam", "layercam"),
}
METRICS = (
    *("segmentation", "pointing-game", "energy-pointing-game", "compactness"),
    *("perturbation-auc", "aopc", "log-odds", "insertion", "deletion", "fidelity", "box-sensitivity"),
)
TABLES = {
    "Where maps lie": METRICS[:4],
    "What the model does without what they mark": METRICS[4:],
}


def judge(name: str, count: int, device: str, out: Path | None) -> tuple[mhex.Report, float, float]:
    """Report of one model, its accuracy on these photos and the seconds it took."""
    bundle = mhex.load(name)
    bundle.model.to(device)
    data = load_pets("test", trimaps=True, limit=count).items()  # photos, breeds, and masks of the animals
    started = time.perf_counter()
    report = mhex.evaluate(
        bundle,
        data,
        methods=MODELS[name],
        metrics=METRICS,
        batch_size=50,
        out=None if out is None else out / name.removeprefix("zoo:"),
        progress=True,
    )
    seconds = time.perf_counter() - started
    hits = report.values("perturbation-auc")[1]["gradcam"][:, 2]
    return report, float(hits.mean()), seconds


def page(found: dict[str, tuple[mhex.Report, float, float]], count: int, device: str) -> str:
    """The Markdown page."""
    parts = [
        "# First benchmark",
        f"Five methods and three control maps on {count} test photos of the pets data set, on two models of the zoo. "
        "The predicted class is explained; ties, boxes and seeds are the same for all methods. Made by\n"
        f"`python benchmarks/first_benchmark.py --device {device} --images {count}`.",
    ]
    for name, (report, accuracy, seconds) in found.items():
        parts.append(f"## `{name}`\n\nAccuracy on these photos {100 * accuracy:.1f} %; {seconds:.0f} s on `{device}`.")
        for title, metrics in TABLES.items():
            parts.append(f"### {title}\n\n{report.only(metrics=metrics).table('markdown', 'all')}")
    return "\n\n".join(parts)


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--out", type=Path, help="folder for rows per image")
    parser.add_argument("--page", type=Path, default=PAGE)
    arguments = parser.parse_args()
    found = {name: judge(name, arguments.images, arguments.device, arguments.out) for name in MODELS}
    arguments.page.parent.mkdir(parents=True, exist_ok=True)
    arguments.page.write_text(page(found, arguments.images, arguments.device), encoding="utf-8")
    print(f"Wrote {arguments.page}")


if __name__ == "__main__":
    main()
