"""Maps of fitted and of trained heads beside Grad-CAM and Layer-CAM: `python benchmarks/head_maps.py`.

Reads the blood networks that mhex_accuracy.py trained. Every map explains the predicted class and is judged by the
network it explains: AVG Drop removes what the min-max map puts over 0.5, SAD fades the image towards its mean with the
map, EAD weights the drop with the area over 0.2 (best at a quarter of the image). Higher is better for all three.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import mhex
from mhex.heads.block import Relu
from mhex.train.checkpoint import load_weights
from mhex.train.measure import make_objective
from mhex.train.samples import load_samples, load_test, make_feed
from mhex_accuracy import STUDIES, batches, folder_of, recipe_of

METRICS = ("AVG Drop", "SAD", "EAD", "area")
VIEWS: dict[str, dict[str, Any]] = {
    "gradcam": {"method": "gradcam"},
    "layercam": {"method": "layercam"},
    "mhex": {"method": "mhex"},
    "mhex, ReLU of the sum": {"method": "mhex", "activation": "relu_sum"},
    "mhex, last three blocks": {"method": "mhex", "blocks": "last3"},
}


def judge(model: nn.Module, x: Tensor, maps: Tensor) -> Tensor:
    """AVG Drop, SAD, EAD and area of each sample, (4, B), for maps (B, H, W) in 0..1."""
    with torch.no_grad():
        plain = torch.softmax(model(x), -1)
        top = plain.argmax(-1, keepdim=True)
        hard = maps[:, None] > 0.5
        removed = torch.softmax(model(x.masked_fill(hard, 0.0)), -1)
        faded = torch.softmax(model(torch.lerp(x, x.mean((2, 3), keepdim=True), maps[:, None])), -1)
    p = plain.gather(1, top).clamp_min(1e-12)
    drop, soft = (((p - other.gather(1, top)) / p).clamp_min(0)[:, 0] for other in (removed, faded))
    area = (maps > 0.2).float().mean((1, 2))
    return torch.stack([drop, soft, drop * 5 * area / (1 + 256 * area**5), area])


def rank(maps: Tensor) -> Tensor:
    """Standardised ranks of the values of each map, (B, H W)."""
    places = maps.flatten(1).argsort(1).argsort(1).double()
    return (places - places.mean(1, keepdim=True)) / places.std(1, keepdim=True, correction=0)


def maps_of(model: nn.Module, x: Tensor, target: Tensor, view: dict[str, Any]) -> Tensor:
    """Min-max maps (B, H, W) at the size of the image."""
    size = (int(x.shape[-2]), int(x.shape[-1]))
    found = mhex.explain(model, x, target=target, **view).normalized("minmax", size=size)
    return found.reshape(len(x), *size)


def study(out: Path, seed: int, count: int) -> dict[str, list[float]]:
    """All rows of one seed."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    networks: dict[str, nn.Module] = {}
    for kind, variant in (("fitted", "plain"), ("fitted, ReLU pre", "plain"), ("trained", "finetune + classifier")):
        recipe = recipe_of(STUDIES["blood"], variant, seed)
        judged = load_test(recipe)
        network, _ = make_objective(recipe, judged.classes, training=False)
        load_weights(network.model, folder_of(out, "blood", variant, seed) / "weights.safetensors")
        model = networks[kind] = network.model.to(device).eval()
        if kind != "trained":
            samples = load_samples(recipe)
            learned = make_feed(recipe, samples.train, None, device, samples.kept)
            relu: Relu = "pre" if kind.endswith("pre") else "post"
            fitted = mhex.attach(model, len(judged.classes), preset="probe", relu=relu).fit(batches(learned))
            print(f"seed {seed}, {kind}: fitted {fitted.rows} samples in {fitted.seconds:.1f} s", flush=True)
    feed = make_feed(recipe, judged, None, device, torch.arange(count))
    sums: dict[str, Tensor] = {}
    same = torch.zeros((), dtype=torch.float64, device=device)
    for x, labels in batches(feed):
        ranks = {}
        for kind, model in networks.items():
            with torch.no_grad():
                target = model(x).argmax(-1)
            for name, view in VIEWS.items():
                maps = maps_of(model, x, target, view)
                row = f"{kind} heads: {name}"
                sums[row] = sums.get(row, 0) + judge(model, x, maps).sum(1).double()
            ranks[kind] = rank(maps_of(model, x, labels, VIEWS["mhex"]))
        same += (ranks["fitted"] * ranks["trained"]).mean(1).sum()
    rows = {name: (total / len(feed)).tolist() for name, total in sums.items()}
    rows["rank correlation of fitted and trained"] = [float(same) / len(feed)]
    return rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/accuracy"))
    parser.add_argument("--count", type=int, default=512, help="test images")
    wanted = parser.parse_args()
    found = [study(wanted.out, seed, wanted.count) for seed in STUDIES["blood"].seeds]
    table = Table(
        title=f"{wanted.count} test images, {len(found)} seeds: mean, smallest to largest", title_justify="left"
    )
    table.add_column("map")
    for name in METRICS:
        table.add_column(name, justify="right")
    for row in found[0]:
        columns = zip(*(one[row] for one in found), strict=True)
        table.add_row(row, *(f"{statistics.mean(c):.3f} ({min(c):.3f} to {max(c):.3f})" for c in columns))
    Console(width=150).print(table)


if __name__ == "__main__":
    main()
