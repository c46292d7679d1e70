"""Figures of the MHEX paper beside its curves: areas image by image, curves beside the maps, more maps of cells.

python benchmarks/mhex_figures.py        writes docs/results/mhex-figures.md

Heads, Grad-CAM and two maps that know nothing, read of the network itself and of an unrelated one. Needs the blood
cells (`MHEX_DATA`); both models ship. Charts are part of the page, pictures of cells are drawn into `out/studies`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

import mhex
from mhex.judge.controls import control
from mhex.lab.datasets import data_entry
from mhex.lab.suites.run import evaluator_of
from mhex.perturb import PerturbationSweep, Subject, area, at_size, minmax
from mhex.stats.correlation import rank_correlation
from mhex.viz import comparison, overlay
from mhex.viz.charts import box_figure, styles_of
from mhex.viz.sheet import Sheet
from study_charts import stacked
from study_page import interval_of, made_by, parser_of, save_picture, save_samples, table, write_page

MODEL, OTHER, DATA = "zoo:blood-mhex-resnet18", "zoo:blood-vit", "blood"
METHODS, CONTROLS = ("mhex", "gradcam"), ("gaussian", "random")
WORDS = {"mhex": "MHEX", "gradcam": "Grad-CAM", "gaussian": "centred blob", "random": "random map"}
JUDGES = {"itself": None, "a ViT": OTHER}
ORDERS = {"deletion": "lower", "insertion": "higher"}  # which area speaks for a map
STEPS, BATCH, SHOWN, KINDS = 20, 20, 4, 8
Curves = dict[tuple[str, str, str], Tensor]  # judge, order, map: (N, STEPS + 1)


def batches(items: Sequence[Any]) -> Iterator[tuple[list[int], list[Any], Tensor]]:
    """Numbers, pictures and labels of a few items at a time."""
    for start in range(0, len(items), BATCH):
        part = [items[k] for k in range(start, min(start + BATCH, len(items)))]
        numbers = list(range(start, start + len(part)))
        yield numbers, [item["image"] for item in part], torch.tensor([int(item["label"]) for item in part])


def curves_of(subject: Subject, maps: Tensor, seed: int) -> dict[str, Tensor]:
    """Probability of the label over the share that is removed, or put in, (B, STEPS + 1) each."""
    found = PerturbationSweep("mean", steps=STEPS, seed=seed).ask(subject, maps)
    removed, kept = (found.curve(order, "probability", "label") for order in ("mif", "lif"))
    return {"deletion": removed, "insertion": kept.flip(1)}


def measure(bundle: mhex.Bundle, items: Sequence[Any], seed: int) -> Curves:
    """Curves of all images by judge, order and map."""
    device = next(bundle.model.parameters()).device
    judges = {
        words: bundle.model if name is None else evaluator_of(bundle, mhex.load(name)).to(device)
        for words, name in JUDGES.items()
    }
    parts: dict[tuple[str, str, str], list[Tensor]] = {}
    for ids, photos, labels in batches(items):
        maps = {name: mhex.explain(bundle, photos, name, labels).map() for name in METHODS}
        for words, model in judges.items():
            subject = Subject(model, photos, labels, ids, preprocess=bundle.preprocess)
            blind = {name: control(name, subject, seed) for name in CONTROLS}
            for name, values in {**maps, **blind}.items():
                for order, curve in curves_of(subject, values, seed).items():
                    parts.setdefault((words, order, name), []).append(curve)
        print(f"curves: {ids[-1] + 1} of {len(items)} images", flush=True)
    return {key: stacked(values) for key, values in parts.items()}


def share_better(first: Tensor, second: Tensor, order: str) -> Tensor:
    """Share of the points, ends left out, at which the first curve (N, T + 1) speaks for its map more; ties count half.

    A lower curve of deletion does, and a higher one of insertion.
    """
    apart = (second - first if ORDERS[order] == "lower" else first - second)[:, 1:-1]
    return ((apart.sign() + 1) / 2).mean(1)


def area_rows(curves: Curves) -> list[list[Any]]:
    """Rows of the table: means with intervals, quartiles, and the pair of heads and Grad-CAM."""
    rows = []
    for words, order, name in curves:
        values = area(curves[words, order, name])
        low, middle, high = values.quantile(torch.tensor([0.25, 0.5, 0.75], dtype=values.dtype)).tolist()
        rows.append([order, words, WORDS[name], interval_of(values), f"{middle:.3f}", f"{low:.3f} to {high:.3f}"])
    return sorted(rows, key=lambda row: (row[0], row[1] != "itself"))


def pair_rows(curves: Curves) -> list[list[Any]]:
    """Heads less Grad-CAM: difference of areas, share of images with the better area, share of points above."""
    rows = []
    for order, better in ORDERS.items():
        for words in JUDGES:
            own, other = (curves[words, order, name] for name in METHODS)
            difference = area(own) - area(other)
            wins = (difference < 0 if better == "lower" else difference > 0).double()
            points = share_better(own, other, order)
            whole = (points > 0.9).double().mean(), (points < 0.1).double().mean()
            both = " and ".join(f"{100 * float(part):.0f} %" for part in whole)
            rows.append([order, words, interval_of(difference), interval_of(wins), interval_of(points), both])
    return rows


def reading(curves: Curves) -> str:
    """What the pairs show, in words."""
    lines = []
    for order, better in ORDERS.items():
        for words in JUDGES:
            own, other = (area(curves[words, order, name]) for name in METHODS)
            found, blob = interval_of(own - other), interval_of(own - area(curves[words, order, "gaussian"]))
            lines.append(
                f"- {order.capitalize()} ({better} is better), read of {words}: MHEX less Grad-CAM {found}, "
                f"{_verdict(found, better)}; less a centred blob {blob}, {_verdict(blob, better)}."
            )
    return "\n".join(lines)


def claims(curves: Curves) -> str:
    """What the paper says of both curves, and by which judges it holds, in words."""
    lower = {
        order: [
            words
            for words in JUDGES
            if interval_of(area(curves[words, order, "mhex"]) - area(curves[words, order, "gradcam"])).below
        ]
        for order in ORDERS
    }
    faster, slower = (" and ".join(lower[order]) or "none" for order in ORDERS)
    return (
        "- The paper says in words that with MHEX deletion drops faster than with Grad-CAM, and insertion comes back "
        f"more slowly. Judges by which deletion drops faster here: {faster}; by which insertion comes back more "
        f"slowly: {slower}. More slowly is worse in the usual reading of insertion."
    )


def worst(rows: Sequence[Sequence[Any]]) -> str:
    """The kind of cell that heads explain worst by deletion, in words."""
    row = max(rows, key=lambda row: row[3].mean)
    return (
        f"- By deletion maps of heads are worst for the kind *{row[0]}*: {row[3]}, Grad-CAM {row[4]} ({row[6]} "
        "images). Of an image without any cell, all in its mean colour, the network still gives this kind a "
        f"probability of {row[5]}."
    )


def _verdict(found: Any, better: str) -> str:
    if not (found.above or found.below):
        return "not told apart"
    return "better" if found.below == (better == "lower") else "worse"


def curve_sheet(bundle: mhex.Bundle, items: Sequence[Any], curves: Curves) -> Sheet:
    """For a few images: photo, both maps, and both curves of each judge."""
    photos, labels = [item["image"] for item in items], torch.tensor([int(item["label"]) for item in items])
    maps = {name: mhex.explain(bundle, photos, name, labels) for name in METHODS}
    styles, side, wide, top = styles_of(METHODS), 1.25, 1.75, 0.75
    sheet = Sheet(0.3 + 3 * (side + 0.1) + 4 * (wide + 0.35), top + len(items) * (side + 0.35))
    sheet.write(0.1, 0.25, "Probability of the label, image by image", 12, bold=True)
    for number, photo in enumerate(photos):
        y = top + number * (side + 0.35)
        pictures = {"input": photo, **{WORDS[name]: overlay(maps[name], number) for name in METHODS}}
        for column, (heading, pixels) in enumerate(pictures.items()):
            x = 0.1 + column * (side + 0.1)
            sheet.paint(x, y, side, side, pixels, f"{heading} {number}")
            if number == 0:
                sheet.write(x, y - 0.08, heading, 8.5, styles[METHODS[column - 1]].colour if column else "#333333")
        for column, (words, order) in enumerate((w, o) for w in JUDGES for o in ORDERS):
            x = 0.35 + 3 * (side + 0.1) + column * (wide + 0.35)
            axes = sheet.axes_at(x, y, wide, side, f"{words} {order} {number}")
            for name in METHODS:
                values = curves[words, order, name][number].tolist()
                axes.plot([k / STEPS for k in range(STEPS + 1)], values, color=styles[name].colour, linewidth=1.3)
            axes.set_ylim(-0.03, 1.03)
            axes.tick_params(labelsize=6, length=2)
            if number == 0:
                sheet.write(x, y - 0.08, f"{order}, {words}", 8.5)
    return sheet


def image_rows(curves: Curves, names: Sequence[str], shown: Sequence[int]) -> list[list[str]]:
    """Areas of the images that are drawn: heads and Grad-CAM, by judge and order."""
    rows = []
    for place, k in enumerate(shown):
        cells = [
            " / ".join(f"{float(area(curves[w, o, n][k : k + 1])):.2f}" for n in METHODS)
            for w in JUDGES
            for o in ORDERS
        ]
        rows.append([names[place], *cells])
    return rows


def likeness(bundle: mhex.Bundle, items: Sequence[Any], seed: int) -> tuple[list[list[Any]], dict[str, Tensor], Tensor]:
    """Rows by map: how alike it is to that of heads, and how large; likeness to a centred blob, (N,); labels, (N,)."""
    found: dict[str, list[list[Tensor]]] = {}
    middle: dict[str, list[Tensor]] = {name: [] for name in METHODS}
    kinds = []
    for ids, photos, labels in batches(items):
        kinds.append(labels)
        subject = Subject(bundle.model, photos, labels, ids, preprocess=bundle.preprocess)
        maps = {name: mhex.explain(bundle, photos, name, labels).map() for name in (*METHODS, "layercam", "eigencam")}
        own, blob = minmax(maps["mhex"]), control("gaussian", subject, seed)
        size = (own.shape[-2], own.shape[-1])
        for name, values in {**maps, "centred blob": blob}.items():
            scaled = minmax(at_size(values, size))
            shares = [(scaled > level).double().flatten(1).mean(1) for level in (0.2, 0.5)]
            alike = rank_correlation(own.flatten(1), scaled.flatten(1))
            found.setdefault(name, []).append([alike, *shares])
            if name in middle:
                middle[name].append(rank_correlation(at_size(blob, size).flatten(1), scaled.flatten(1)))
    rows = []
    for name, parts in found.items():
        columns = [interval_of(stacked(column), seed) for column in zip(*parts, strict=True)]
        rows.append([name if " " in name else f"`{name}`", "1" if name == "mhex" else columns[0], *columns[1:]])
    return rows, {name: stacked(values) for name, values in middle.items()}, torch.cat(kinds)


def kind_rows(names: Sequence[str], labels: Tensor, middle: Mapping[str, Tensor], curves: Curves) -> list[list[Any]]:
    """Rows by kind of cell: likeness of both maps to a centred blob, areas of deletion, and what is left at its end."""
    own = [curves["itself", "deletion", name] for name in METHODS]
    columns = [*middle.values(), *(area(values) for values in own), own[0][:, -1]]
    rows = []
    for kind in sorted(set(labels.tolist())):
        here = [interval_of(values[labels == kind]) for values in columns]
        rows.append([names[kind], *here, here[0].count])
    return rows


def charts(curves: Curves, wanted: Any) -> list[str]:
    """Boxes of the areas, one chart for each order."""
    rows = [(words, name) for names in (METHODS, CONTROLS) for words in JUDGES for name in names]  # controls below
    styles = styles_of(METHODS, CONTROLS)
    pictures = []
    for order, better in ORDERS.items():
        drawn = {f"{WORDS[n]}, {w}": area(curves[w, order, n]).tolist() for w, n in rows}
        looks = {f"{WORDS[n]}, {w}": styles[n] for w, n in rows}
        sheet = box_figure(f"Areas under {order} ({better} is better)", "mean probability of the label", drawn, looks)
        path = wanted.out / "images" / f"mhex-{order}-areas.png"
        pictures.append(save_picture(sheet, path, f"Boxes of the areas under {order}, by map and judge"))
    return pictures


def kinds_of(items: Sequence[Any]) -> list[int]:
    """The first image of each label, by label."""
    first: dict[int, int] = {}
    for k in range(len(items)):
        first.setdefault(int(items[k]["label"]), k)
    return [first[label] for label in sorted(first)][:KINDS]


def page(wanted: Any, curves: Curves, drawn: Mapping[str, Any], facts: str) -> None:
    """Write the page."""
    head = ["order", "read of", "map", "mean area", "median", "quartiles"]
    pair = ["order", "read of", "MHEX less Grad-CAM", "images for MHEX", "points for MHEX", "for MHEX, for Grad-CAM"]
    kinds = [f"{words}, {WORDS[name]}" for words in ("blob", "deletion") for name in METHODS]
    columns = [f"{order}, {words}" for words in JUDGES for order in ORDERS]
    write_page(
        wanted.out,
        "mhex-figures",
        [
            "# Areas, curves and maps image by image: MHEX's other figures",
            f"`{MODEL}`, its heads and Grad-CAM on the same network, maps of the label. The paper draws PathMNIST, "
            "which is not at hand, and reads a plain ResNet-18 and a ResNet-34. Neither ships, so the network itself "
            f"is read, and `{OTHER}`, which is of another kind. Pixels go to the mean colour of the image in {STEPS} "
            "equal steps. Means by method, of other networks, are on [another page](mhex-curves.md). Of these figures "
            "the project's notes have the contents without numbers: curves, then boxes of areas, then curves beside "
            "maps. Curves are figure 10, so the others are taken for 11 and 12.",
            facts,
            "## Areas, image by image (figure 11)",
            *charts(curves, wanted),
            table(head, area_rows(curves)),
            "## Curves beside the maps (figure 12)",
            drawn["curves"],
            "*Images for MHEX*: share of the images in which its area is the better one. *Points for MHEX*: share of "
            "the steps at which its curve is the better one, mean over images. The last column: images in which nine "
            "tenths of the steps speak for the one or the other, so that curves do not cross.",
            table(pair, pair_rows(curves)),
            f"Areas of the {SHOWN} images of the picture, MHEX / Grad-CAM:",
            table(["image", *columns], drawn["rows"]),
            "## More maps",
            "What figure 16 shows could not be found out: the notes that this project has do not describe it. In its "
            "place: one image of each kind of cell, and how far its maps agree. Words of news items are on "
            "[their page](token-pictures.md).",
            drawn["maps"],
            table(["map", "rank correlation with MHEX", "share above 0.2", "share above 0.5"], drawn["alike"]),
            "By kind of cell: rank correlation with a blob in the middle of the image, where the cell is, and area of "
            "deletion, read of itself; and the probability of the kind when all pixels are removed.",
            table(["kind of cell", *kinds, "all removed", "images"], drawn["kinds"]),
            "## Reading",
            f"{reading(curves)}\n{claims(curves)}\n{worst(drawn['kinds'])}",
        ],
    )


def main() -> None:
    """Measure, draw and write."""
    wanted = parser_of(__doc__, 60, "test images").parse_args()
    started, bundle = time.perf_counter(), mhex.load(MODEL)
    bundle.model.to(wanted.device)
    items = data_entry(DATA).items("test", limit=wanted.images)
    curves = measure(bundle, items, wanted.seed)
    alike, middle, labels = likeness(bundle, items, wanted.seed)
    shown = [k * len(items) // SHOWN for k in range(SHOWN)]
    few = {key: values[shown] for key, values in curves.items()}
    sheet = curve_sheet(bundle, [items[k] for k in shown], few)
    cells, kinds = [items[k] for k in kinds_of(items)], list(bundle.class_names or ())
    shown_labels = torch.tensor([int(item["label"]) for item in cells])
    maps = [mhex.explain(bundle, [c["image"] for c in cells], name, shown_labels) for name in (*METHODS, "layercam")]
    drawn = {
        "alike": alike,
        "kinds": kind_rows(kinds, labels, middle, curves),
        "curves": save_samples(sheet, "mhex-image-curves.jpg", f"Maps and curves of {SHOWN} blood cells"),
        "maps": save_samples(
            comparison(maps, samples=range(len(cells)), title="Maps of the label"), "mhex-cells.jpg", "Maps of cells"
        ),
        "rows": image_rows(few, [f"{kinds[int(items[k]['label'])]}, image {k}" for k in shown], range(SHOWN)),
    }
    facts = made_by(wanted, f"{len(items)} test images of blood cells, evenly spaced", time.perf_counter() - started)
    page(wanted, curves, drawn, facts)


if __name__ == "__main__":
    main()
