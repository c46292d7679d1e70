"""What GradToken's ways to join attention look like (its figure 9), and its depth series where a suite was run.

python benchmarks/gradtoken_figures.py --device cuda        writes docs/results/gradtoken-figures.md

`--suite DIR` takes the folder of `mhex bench gradtoken-ablations`, from whose rows the series over the lowest block is
drawn (figure 11). Needs the pets data set (`MHEX_DATA`).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import mhex
from gradtoken_depth import depth_part
from mhex.capture import Needs, find_anatomy, observe, unwrap
from mhex.inputs import prepare
from mhex.lab.datasets import load_pets
from mhex.stats.correlation import rank_correlation
from mhex.viz import comparison
from study_page import Interval, interval_of, made_by, parser_of, save_samples, table, write_page

MODEL = "zoo:pets-vit"
SCHEMES: dict[str, dict[str, Any]] = {
    "none": {"aggregation": "none"},
    "rollout, element-wise": {"aggregation": "rollout", "propagation": "elementwise"},
    "rollout, matrix": {"aggregation": "rollout"},
    "average, element-wise": {"propagation": "elementwise"},
    "average, matrix": {},
}
DEFAULT = "average, matrix"
SHOWN, BATCH = 4, 25


@dataclass(frozen=True)
class Joined:
    """Attention of the blocks below the last, joined in one way.

    Attributes:
        readout: Row of the class token over the patches, (B, S), which multiplies relevance element by element.
        spread: Rows of the patches over the patches, (B, S, S), which spread relevance as a matrix. In the rollout
            blocks are multiplied in the reverse order for it, as published.
        grid: Rows and columns of the patches.
    """

    readout: Tensor
    spread: Tensor
    grid: tuple[int, int]


def joined(bundle: mhex.Bundle, photos: Any) -> dict[str, Joined]:
    """The attention of photos, joined by the average and by rollout."""
    model = unwrap(bundle.model)
    batch = prepare(model, photos, bundle.preprocess, bundle.tokenizer).batch
    anatomy = find_anatomy(model, batch)
    with torch.no_grad(), observe(model, anatomy, batch, Needs(keep={"attention": "all"})) as trace:
        below = [block.attention().mean(1) for block in trace.blocks[:-1]]
    first = anatomy.prefix_tokens
    side = round((below[0].shape[-1] - first) ** 0.5)
    assert first + side * side == below[0].shape[-1], "patches of a square"
    mean = torch.stack(below).mean(0)
    found = {"average": (mean, mean), "rollout": (_product(reversed(below)), _product(below))}
    return {
        name: Joined(upward[:, 0, first:], spread[:, first:, first:], (side, side))
        for name, (upward, spread) in found.items()
    }


def _product(matrices: Iterable[Tensor]) -> Tensor:
    """The product of `I + A`, the first one leftmost."""
    found: Tensor | None = None
    for one in matrices:
        step = one + torch.eye(one.shape[-1], device=one.device)
        found = step if found is None else found @ step
    assert found is not None
    return found


def likeness(spread: Tensor) -> Tensor:
    """How alike the rows of patches (B, S, S) are, (B,): the mean cosine of two of them, from 0 to 1."""
    rows = torch.nn.functional.normalize(spread.double(), dim=-1)
    count = rows.shape[1]
    return (rows.sum(1).square().sum(-1) - count) / (count * (count - 1))


def stays(spread: Tensor) -> Tensor:
    """The share of a patch's row (B, S, S) that is its own, mean over patches, (B,)."""
    return (spread.diagonal(dim1=1, dim2=2) / spread.sum(2)).double().mean(1)


def maps_of(bundle: mhex.Bundle, photos: Sequence[Any], target: Any = None) -> dict[str, mhex.Explanation]:
    """Maps of the predicted class by all schemes."""
    first = mhex.explain(bundle, list(photos), method="gradtoken", target=target)
    target = first.target if target is None else target
    return {
        name: mhex.explain(bundle, list(photos), method="gradtoken", target=target, **options)
        for name, options in SCHEMES.items()
    }


def numbers(bundle: mhex.Bundle, photos: Sequence[Any], seed: int) -> tuple[list[list[Any]], list[list[Any]], str]:
    """Rows on the joined attentions, rows on the maps, and what both show in words."""
    alike: dict[str, list[Tensor]] = {"average": [], "rollout": []}
    own: dict[str, list[Tensor]] = {"average": [], "rollout": []}
    same: dict[str, list[Tensor]] = {name: [] for name in SCHEMES}
    for start in range(0, len(photos), BATCH):
        batch = photos[start : start + BATCH]
        for name, joint in joined(bundle, batch).items():
            alike[name].append(likeness(joint.spread).cpu())
            own[name].append(stays(joint.spread).cpu())
        maps = maps_of(bundle, batch)
        for name, e in maps.items():
            same[name].append(rank_correlation(e.scores.flatten(1), maps[DEFAULT].scores.flatten(1)).cpu())
        print(f"{start + len(batch)} of {len(photos)} photos", flush=True)
    found = {
        name: (interval_of(torch.cat(alike[name]), seed), interval_of(torch.cat(own[name]), seed)) for name in alike
    }
    ranks = {name: interval_of(torch.cat(parts), seed) for name, parts in same.items()}
    return (
        [[name, *pair] for name, pair in found.items()],
        [[name, "1" if name == DEFAULT else one] for name, one in ranks.items()],
        reading(found, ranks),
    )


def reading(found: dict[str, tuple[Interval, Interval]], ranks: dict[str, Interval]) -> str:
    """What the numbers show, in words."""
    (average, own), (rollout, kept) = found["average"], found["rollout"]
    more = "rollout" if rollout.mean > average.mean else "average"
    apart = "" if rollout.low > average.high or average.low > rollout.high else ", with intervals that overlap"
    least = min((name for name in ranks if name != DEFAULT), key=lambda name: ranks[name].mean)
    return (
        f"- Rows of different patches are more alike in the {more} (mean cosine {average} in the average, {rollout} in "
        f"the rollout{apart}): the more alike they are, the less a multiplication by them tells patches apart. Of its "
        f"own row a patch keeps {own} in the average and {kept} in the rollout.\n- The "
        f"map least like the default's is of *{least}* (rank correlation {ranks[least]}). Which scheme is best is "
        "measured by `mhex bench gradtoken-ablations`."
    )


def rows_figure(bundle: mhex.Bundle, photos: Sequence[Any], maps: dict[str, mhex.Explanation]) -> Any:
    """Rows of the joined attentions: of the class token, and of the patch with the highest relevance."""
    base = maps["none"]
    peak = base.scores.flatten(1).argmax(1).cpu()
    every = torch.arange(len(peak))
    drawn, labels = [base], ["relevance alone"]
    for name, joint in joined(bundle, photos).items():
        around = joint.spread.cpu()[every, peak].scatter(1, peak[:, None], 0.0)  # its own share would hide the rest
        for words, row in (("class token", joint.readout.cpu()), ("peak", around)):
            drawn.append(replace(base, scores=row.view(-1, *joint.grid), method="attention", class_specific=False))
            labels.append(f"{name}: row of the {words}")
    return comparison(drawn, samples=range(len(photos)), labels=labels, title="Rows of the joined attention")


def main() -> None:
    """Measure, draw and write."""
    parser = parser_of(__doc__, 200, "test photos")
    parser.add_argument("--suite", type=Path, help="folder of `mhex bench gradtoken-ablations`, for the depth series")
    wanted = parser.parse_args()
    started, bundle, images = time.perf_counter(), mhex.load(MODEL), wanted.out / "images"
    bundle.model.to(wanted.device)
    photos = [item["image"] for item in load_pets("test", limit=wanted.images).items()]
    attentions, schemes, said = numbers(bundle, photos, wanted.seed)
    shown = [photos[k * len(photos) // SHOWN] for k in range(min(SHOWN, len(photos)))]
    maps = maps_of(bundle, shown)
    sheet = comparison(
        list(maps.values()), samples=range(len(shown)), labels=list(maps), title="GradToken's five schemes"
    )
    parts = [
        "## What the schemes look like (figure 9)",
        save_samples(sheet, "gradtoken-schemes.jpg", "Maps of five schemes of GradToken on four photos"),
        "Spearman's rho of each scheme's map with the default's, over the patches of a photo:",
        table(["scheme", "rank correlation with the default"], schemes),
        "## What is joined",
        "The class token's row of the joined attention multiplies relevance element by element; the rows of patches "
        "spread it as a matrix. *Peak* is the patch with the highest relevance, whose own share is left out of the "
        "picture.",
        save_samples(rows_figure(bundle, shown, maps), "gradtoken-rows.jpg", "Rows of the joined attention"),
        table(["joined by", "mean cosine of two patches' rows", "share of a row that is the patch's own"], attentions),
    ]
    depth, words = depth_part(wanted.suite, images) if wanted.suite else ([], "")
    intro = f"`{MODEL}`, predicted class. Tables of GradToken's parts are made by `mhex bench gradtoken-ablations`."
    facts = made_by(wanted, f"{len(photos)} test photos of pets", time.perf_counter() - started)
    write_page(
        wanted.out,
        "gradtoken-figures",
        ["# Joining attention: GradToken's figures", intro, facts, *parts, *depth, "## Reading", f"{said}\n{words}"],
    )


if __name__ == "__main__":
    main()
