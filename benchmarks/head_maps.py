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
from torch import Tensor, nn

import mhex
from accuracy_studies import STUDIES, folder_of, recipe_of
from mhex.heads.explainer_block import Relu
from mhex.lab.train.checkpoint import load_weights
from mhex.lab.train.evaluate import make_objective
from mhex.lab.train.samples import FeedBatches, load_samples, load_test, make_feed

PAGE = Path(__file__).parents[1] / "docs" / "results" / "head-maps.md"
METRICS = ("AVG Drop", "SAD", "EAD", "area")
NETWORKS: dict[str, tuple[str, Relu]] = {
    "plain, fitted heads": ("plain", "post"),
    'plain, fitted heads, relu="pre"': ("plain", "pre"),
    "trained with heads": ("finetune + classifier", "post"),
}
VIEWS: dict[str, dict[str, Any]] = {
    "gradcam": {"method": "gradcam"},
    "layercam": {"method": "layercam"},
    "mhex": {"method": "mhex"},
    'mhex, preset="paper"': {"method": "mhex", "preset": "paper"},
    'mhex, preset="probe"': {"method": "mhex", "preset": "probe"},
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


def network_of(out: Path, name: str, seed: int, device: torch.device) -> nn.Module:
    """A trained network, with its own heads or with heads fitted now."""
    variant, relu = NETWORKS[name]
    recipe = recipe_of(STUDIES["blood"], variant, seed)
    samples = load_samples(recipe)
    network, _ = make_objective(recipe, samples.train.classes, training=False)
    load_weights(network.model, folder_of(out, "blood", variant, seed) / "weights.safetensors")
    model = network.model.to(device).eval()
    if variant == "plain":
        learned = FeedBatches(make_feed(recipe, samples.train, None, device, samples.rows), size=128)
        fitted = mhex.attach(model, len(samples.train.classes), preset="probe", relu=relu).fit(learned)
        print(f"seed {seed}, {name}: fitted {fitted.rows} samples in {fitted.seconds:.1f} s", flush=True)
    return model


def study(out: Path, seed: int, count: int) -> tuple[dict[tuple[str, str], list[float]], float]:
    """Metrics of one seed by network and map, and the mean rank correlation of maps of fitted and of trained heads."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    networks = {name: network_of(out, name, seed, device) for name in NETWORKS}
    recipe = recipe_of(STUDIES["blood"], "plain", seed)
    feed = make_feed(recipe, load_test(recipe), None, device, torch.arange(count))
    sums: dict[tuple[str, str], Tensor] = {}
    same = 0.0
    for x, labels in FeedBatches(feed, size=128):
        ranks = []
        for kind, model in networks.items():
            with torch.no_grad():
                target = model(x).argmax(-1)
            for name, view in VIEWS.items():
                found = judge(model, x, maps_of(model, x, target, view)).sum(1).double()
                sums[kind, name] = sums.get((kind, name), torch.zeros_like(found)) + found
            ranks.append(rank(maps_of(model, x, labels, VIEWS["mhex"])))
        same += float((ranks[0] * ranks[-1]).mean(1).sum())
    return {name: (total / len(feed)).tolist() for name, total in sums.items()}, same / len(feed)


def page(found: list[tuple[dict[tuple[str, str], list[float]], float]], count: int) -> str:
    """The page of results."""
    lines = [
        "# Maps of heads on blood cells",
        "",
        f"Made by `python benchmarks/head_maps.py` from the ResNet-18 that `mhex_accuracy.py` trains: {count} test "
        f"images, {len(found)} seeds, mean and smallest to largest. Every map explains the predicted class and is "
        "judged by the network it explains, after min-max. AVG Drop: relative loss of probability when all over 0.5 is "
        "set to 0; SAD: when the image fades to its mean with the map; EAD: the drop times `5A / (1 + 256 A^5)` of the "
        "area A over 0.2. Higher is better; area is best near 0.25 in the eyes of EAD.",
        "",
        "| network | map | " + " | ".join(METRICS) + " |",
        "|---" * (2 + len(METRICS)) + "|",
    ]
    for kind, name in found[0][0]:
        columns = list(zip(*(rows[kind, name] for rows, _ in found), strict=True))
        cells = [f"{statistics.mean(one):.3f} ({min(one):.3f} to {max(one):.3f})" for one in columns]
        lines.append(f"| {kind} | {name} | " + " | ".join(cells) + " |")
    same = [one for _, one in found]
    lines += [
        "",
        f"Rank correlation of the maps of fitted and of trained heads, per image, for the true class: "
        f"{statistics.mean(same):.3f} ({min(same):.3f} to {max(same):.3f}).",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/accuracy"), help="where mhex_accuracy.py trained")
    parser.add_argument("--count", type=int, default=512, help="test images")
    wanted = parser.parse_args()
    found = [study(wanted.out, seed, wanted.count) for seed in STUDIES["blood"].seeds]
    PAGE.write_text(page(found, wanted.count), encoding="utf-8")
    print(PAGE.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
