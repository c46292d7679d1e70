"""Why does GradToken find animals worse than rollout does? Three guesses, each tested on the outlines of pets.

python benchmarks/gradtoken_causes.py --images 300   test photos of `zoo:pets-vit`, predicted class

Do the lower blocks spread relevance too far? Then a matrix that spreads it to the nearest patches alone would help, in
the place of the mean attention. Is it that the class is wrong? Then it is behind on photos that are classified wrongly.
Is it that a pet fills its photo? Then it is behind where the animal is large.
"""

import argparse
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import mhex
from mhex.lab.datasets import data_entry
from mhex.metrics import JudgedMaps, get_metric
from mhex.stats.intervals import bootstrap

MODEL, DATA = "zoo:pets-vit", "pets"
REFERENCE = "rollout"


def local(heads: Tensor) -> Tensor:
    """Relevance of heads (B, H, h, w) spread over the nearest patches alone, 3 x 3, and joined as published."""
    return F.avg_pool2d(heads, 3, 1, 1, count_include_pad=False).clamp_min(0).mean(1)


def maps_of(bundle: mhex.Bundle, photos: Sequence[Any], target: Tensor) -> dict[str, Tensor]:
    """Maps (B, h, w) of every variant, by its name on the page."""

    def explain(method: str = "gradtoken", **options: Any) -> mhex.Explanation:
        return mhex.explain(bundle, photos, method, target, **options)

    single = explain(aggregation="none", head_integration="average", per_head=True)
    heads = torch.stack([*single.layers.values()], 1).float()
    return {
        REFERENCE: explain(REFERENCE).scores,
        "gradtoken": explain().scores,
        "no propagation": heads.clamp_min(0).mean(1),
        "local matrix": local(heads),
        "heads averaged as they are": explain(head_integration="average").scores,
    }


def share(rows: Tensor) -> Tensor:
    """Mean IoU of rows (..., n, 27) of the metric, cut at the mean of each map, (..., 1)."""
    return get_metric("segmentation").metric("che").summary(rows)[..., :1]


def with_interval(rows: Tensor, other: Tensor | None = None) -> str:
    """Mean IoU, or how much that of others is above it, with its 95 % bootstrap interval over photos."""
    size = rows.shape[1]
    both = rows if other is None else torch.cat([other, rows], 1)

    def value(part: Tensor) -> Tensor:
        return share(part) if other is None else share(part[..., :size]) - share(part[..., size:])

    low, high = (float(end) for end in bootstrap(both, value))
    return f"{float(value(both)):.3f} ({low:.3f} to {high:.3f})"


def main(images: int, batch: int = 32) -> None:
    """Print mean IoU of each variant on all photos and on parts of them, and what rollout is ahead, in Markdown."""
    bundle, items = mhex.load(MODEL), data_entry(DATA).items("test", limit=images)
    rows: dict[str, list[Tensor]] = {}
    right, size = [], []
    for start in range(0, len(items), batch):
        part = [items[place] for place in range(start, min(start + batch, len(items)))]
        photos, labels = [item["image"] for item in part], torch.tensor([int(item["label"]) for item in part])
        masks = torch.stack([item["mask"] for item in part])
        predicted = torch.as_tensor(mhex.explain(bundle, photos, "attention").logits).argmax(-1)
        right.append(predicted == labels)
        size.append((masks == 1).flatten(1).double().mean(1))
        ids = tuple(range(start, start + len(part)))
        for kind, target in (("", predicted), (", label", labels)):
            for name, maps in maps_of(bundle, photos, target).items():
                metric = get_metric("segmentation").metric("che")
                if not kind or name == "gradtoken":
                    rows.setdefault(f"{name}{kind}", []).append(metric.score(JudgedMaps(ids, maps, masks)))
    hit, filled = torch.cat(right), torch.cat(size)
    table = {name: torch.cat(parts) for name, parts in rows.items()}
    there = table[REFERENCE].isfinite().all(1)  # photos with an animal in the mask
    middle = float(filled[there].median())
    parts = {
        "all": there,
        "classified rightly": there & hit,
        "classified wrongly": there & ~hit,
        f"animal at most {middle:.2f} of the photo": there & (filled <= middle),
        "animal larger": there & (filled > middle),
    }
    heads = [f"{name}, {int(place.sum())} photos" for name, place in parts.items()]
    print(f"{MODEL}, {len(items)} test photos, mean IoU cut at the mean of each map\n")
    print(f"| map | {' | '.join(heads)} |\n{'|---' * (len(heads) + 1)}|")
    for name, values in table.items():
        print(f"| {name} | {' | '.join(with_interval(values[place]) for place in parts.values())} |")
    ahead = [with_interval(table["gradtoken"][place], table[REFERENCE][place]) for place in parts.values()]
    print(f"| {REFERENCE} less gradtoken | {' | '.join(ahead)} |")
    for name in ("local matrix", "no propagation", "heads averaged as they are", "gradtoken, label"):
        gains = [with_interval(table["gradtoken"][place], table[name][place]) for place in parts.values()]
        print(f"| {name} less gradtoken | {' | '.join(gains)} |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--images", type=int, default=128, help="Test photos, evenly spaced (128).")
    main(parser.parse_args().images)
