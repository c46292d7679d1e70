"""Do gates and heads that pull together go with good maps? MHEX, figures 7 and 8, on blood cells.

python benchmarks/collaboration.py --device cuda        writes docs/results/collaboration.md

For every test image: the cosine of how the gate and the head of a block pull the matrix that they share, the soft
average drop of the map of the label (settings of the paper's table) by another network, and the model's probability of
the label. Needs the blood cells (`MHEX_DATA`) and the models (`mhex models build`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import mhex
from mhex.heads import Correlation, Study
from mhex.heads.collaboration import CONFIDENCE
from mhex.lab.datasets import ImageSet, load_blood
from mhex.viz import overlay
from mhex.viz.captions import Legend
from mhex.viz.colour import blend
from mhex.viz.heatmap import photo_pixels
from mhex.viz.layout import Panel, PanelRow, draw_rows
from mhex.viz.sheet import Sheet
from study_page import made_by, parser_of, save_picture, save_samples, table, write_page

MODELS = ("zoo:blood-mhex-resnet18", "zoo:blood-mhex-resnet18-full")
EVALUATOR = "zoo:blood-resnet34"
SAD = "SAD"
LAST = 3
# Stored runs behind the figure, PathMNIST validation split, 10,004 images: blocks 5, 6, 7 of 7, runs A and B.
PUBLISHED = {SAD: ("0.171, 0.006", "0.058, 0.039", "0.121, 0.057"), CONFIDENCE: ("-0.027", "-0.156", "-0.130")}
SIGNS = {SAD: 1, CONFIDENCE: -1}
BATCH = 64


def inputs_of(bundle: mhex.Bundle, data: ImageSet, device: str) -> Tensor:
    """All images as the model takes them, (N, 3, H, W)."""
    assert bundle.preprocess is not None
    return torch.stack([bundle.preprocess(item["image"]) for item in data.items()]).to(device)


def drops(bundle: mhex.Bundle, data: ImageSet, device: str, seed: int) -> Tensor:
    """Soft average drop of each image by the evaluator, for the map of the label, (N,)."""
    report = mhex.evaluate(
        bundle,
        data.items(),
        methods=[("mhex", {"preset": "table3"})],
        metrics=["soft-average-drop:mhex"],
        target="label",
        controls=False,
        batch_size=BATCH,
        evaluator=mhex.load(EVALUATOR).model.to(device),
        seed=seed,
    )
    return next(iter(report.per_image("soft-average-drop:mhex").values()))


def study_of(name: str, data: ImageSet, device: str, seed: int) -> tuple[mhex.Bundle, Tensor, Study]:
    """The model, its inputs, and its correlations over all images."""
    bundle = mhex.load(name)
    bundle.model.to(device).eval()
    x, labels = inputs_of(bundle, data, device), data.labels.to(device)
    against = {SAD: drops(bundle, data, device, seed)}
    return bundle, x, mhex.Scaffold(bundle.model).collaboration_study((x, labels), against, chunk=BATCH)


def last_rows(study: Study) -> list[Correlation]:
    """Correlations of the last three blocks that have a successor."""
    return [row for row in study.rows if row.first in study.collaboration.blocks[-LAST:]]


def published_sign(row: Correlation) -> str:
    """Whether a correlation has the published sign, and whether its interval leaves 0 out."""
    if row.low <= 0 <= row.high:
        return "not told from 0"
    return "as published" if row.coefficient * SIGNS[row.second] > 0 else "the opposite"


def correlations(study: Study) -> str:
    """The table of the last blocks beside the published numbers."""
    lines = []
    for row in last_rows(study):
        place = study.collaboration.blocks[-LAST:].index(row.first)
        chance = "< 0.0001" if row.p_value < 1e-4 else f"{row.p_value:.4f}"
        found = f"{row.coefficient:.3f} ({row.low:.3f} to {row.high:.3f})"
        lines.append([f"`{row.first}`", row.second, found, chance, PUBLISHED[row.second][place], published_sign(row)])
    rest = next(row for row in study.rows if (row.first, row.second) == (SAD, CONFIDENCE))
    lines.append(
        [SAD, CONFIDENCE, f"{rest.coefficient:.3f} ({rest.low:.3f} to {rest.high:.3f})", "", "-0.176, -0.066", ""]
    )
    return table(["of", "with", "Pearson's r (Fisher's z)", "p", "published runs", "sign"], lines)


def reading(studies: dict[str, Study]) -> str:
    """What the numbers show, in words."""
    words = []
    for name, study in studies.items():
        for variable, sign in SIGNS.items():
            rows = [row for row in last_rows(study) if row.second == variable]
            said = [published_sign(row) for row in rows]
            words.append(
                f"- `{name}`, cosine with {variable} (published: {'positive' if sign > 0 else 'negative'}): "
                + ", ".join(f"{said.count(one)} {one}" for one in dict.fromkeys(said))
                + f"; the largest squared correlation is {max(row.squared for row in rows):.3f}."
            )
    return "\n".join(words)


def squares(scores: Tensor, photo: Any) -> Any:
    """Squares (grid, grid) in 0..1 over a photo (H, W, 3)."""
    wide = F.interpolate(scores[None, None].float().cpu(), size=photo.shape[:2], mode="nearest")[0, 0]
    return blend(photo, wide.numpy(), signed=False)


def grid_figure(bundle: mhex.Bundle, data: ImageSet, x: Tensor, shown: Sequence[int]) -> Sheet:
    """Photo, map of the heads, and the two grid confidence maps of some images."""
    scaffold, chosen = mhex.Scaffold(bundle.model), list(shown)
    labels = data.labels[chosen].to(x.device)
    photos = [data.items()[row]["image"] for row in chosen]
    own = mhex.explain(bundle, photos, method="mhex", target=labels, preset="figure8")
    maps = {mode: scaffold.confidence_map(x[chosen], labels, mode=mode) for mode in ("keep", "occlude")}
    rows = []
    for place, row in enumerate(chosen):
        photo = photo_pixels(own, place)
        assert photo is not None
        first = place == 0
        panels = [
            Panel(photo, "input" if first else ""),
            Panel(overlay(own, place), "map of the heads" if first else ""),
        ]
        for mode, title in (("keep", "square kept"), ("occlude", "square hidden")):
            low, high = (float(end(maps[mode].raw[place])) for end in (torch.min, torch.max))
            panels.append(
                Panel(
                    squares(maps[mode].map[place], photo),
                    title,
                    f"{low:.2f} to {high:.2f}".replace("-", "\N{MINUS SIGN}"),
                )
            )
        rows.append(PanelRow(panels, data.classes[int(data.labels[row])]))
    notes = [
        "Squares: sum of the cosines of gate and head over all blocks while only this one is visible, or by how much "
        "the sum falls while this one is hidden; least and largest sum above each map. Every map is scaled on its "
        "own.",
    ]
    bars = [
        Legend(False, "squares: least", "most agreement of gate and head"),
        Legend(True, "map: against", "for the class"),
    ]
    sheet: Sheet = draw_rows(rows, "Grid confidence maps", bars, notes)
    return sheet


def main() -> None:
    """Measure and write."""
    wanted = parser_of(__doc__, 2557, "test images").parse_args()
    started, data = time.perf_counter(), load_blood("test", limit=wanted.images)
    studies, parts = {}, []
    shown = [int((data.labels == kind).nonzero()[0]) for kind in sorted(set(data.labels.tolist()))][:4]
    for name in MODELS:
        bundle, x, study = study_of(name, data, wanted.device, wanted.seed)
        studies[name], stem = study, name.removeprefix("zoo:")
        path = wanted.out / "images" / f"collaboration-{stem}.png"
        parts += [
            f"## `{name}`",
            correlations(study),
            save_picture(study.show(), path, f"Correlations of all blocks of {stem} with their intervals"),
        ]
        print(f"{name}: {len(study.collaboration)} images", flush=True)
        if name == MODELS[0]:
            grid = grid_figure(bundle, data, x, shown)
    parts += ["## Where in an image gate and head agree (figure 8)", _grid_words(grid)]
    count = f"{len(data)} test images of the blood cells"
    intro = (
        "MHEX, figure 7: does the cosine of gate and head (collaboration) go with how much an explanation removes "
        "(SAD), and with the model's probability of the label (`p_orig`)? The paper shows the last three blocks on "
        "PathMNIST and says: with SAD positively, with `p_orig` negatively. SAD is of the map of the label with the "
        f"settings of the paper's table (`preset=table3`), read of `{EVALUATOR}`."
    )
    facts = made_by(wanted, count, time.perf_counter() - started)
    write_page(
        wanted.out,
        "collaboration",
        ["# Gates and heads that pull together", intro, facts, *parts, "## Reading", reading(studies), _CAVEAT],
    )


_CAVEAT = (
    "Intervals are not corrected for the number of blocks. Published numbers are of other cells of another kind of "
    "image, so only signs compare; two stored runs behind the published figure disagree in size."
)


def _grid_words(grid: Sheet) -> str:
    shown = save_samples(grid, "collaboration-grid.jpg", "Grid confidence maps of blood cells")
    return (
        f"`{MODELS[0]}`, the first test image of four kinds of cells. The published helper that masks squares is not "
        f"known; both readings are shown.\n\n{shown}"
    )


if __name__ == "__main__":
    main()
