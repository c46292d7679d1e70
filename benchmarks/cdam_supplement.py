"""Nine methods on one picture: what the supplement of the CDAM paper shows, in numbers.

python benchmarks/cdam_supplement.py        writes docs/results/cdam-supplement.md

The nine published methods on pictures of two animals, for both, and on single photos; CDAM before the norm; concepts
by three similarities. A linear probe on a frozen ViT that learned without labels, which ships. Needs the pets
(`MHEX_DATA`). Pictures of pets are drawn into `out/studies`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

import mhex
from cdam_concepts import Target, animals_of, contrast, shares, side_by_side
from mhex.concept import Similarity
from mhex.lab.datasets import data_entry, load_pets
from mhex.stats.correlation import rank_correlation
from mhex.viz import comparison
from study_charts import stacked
from study_page import interval_of, made_by, parser_of, save_samples, table, write_page
from two_classes import INSIDE, Views, ahead, animals_on, both_maps, both_table, flat_row, inside, view

MODEL, OWN = "zoo:pets-vit-simclr-probe", "cdam"
BEFORE = "cdam, before the norm"
SIMILARITIES: tuple[Similarity, ...] = ("dot", "cosine", "l2")
BATCH, SHOWN = 20, 2


def published(passes: int) -> Views:
    """The nine methods of the paper's tables, those of many passes with so many."""
    plain = (OWN, "cdam-integrated", "transformer-attribution", "partial-lrp", "attention", "input-x-gradient")
    return {
        **{name: view(name) for name in plain},
        "cdam-smooth": view("cdam-smooth", sigma=0.4),  # the noise that was chosen on training photos
        "smoothgrad": view("smoothgrad", n=passes),
        "integrated-gradients": view("integrated-gradients", steps=passes),
    }


def single_rows(bundle: mhex.Bundle, items: Sequence[Any], views: Views, seed: int) -> list[list[Any]]:
    """Rows by method for the predicted class of single photos: share on the animal, likeness to CDAM's map."""
    found: dict[str, tuple[list[Tensor], list[Tensor]]] = {}
    areas = []
    for start in range(0, len(items), BATCH):
        part = [items[k] for k in range(start, min(start + BATCH, len(items)))]
        photos, animal = [item["image"] for item in part], torch.stack([item["mask"] for item in part]) == 1
        areas.append(animal.double().flatten(1).mean(1))
        target = mhex.explain(bundle, photos, OWN).target
        maps = {
            name: mhex.explain(bundle, photos, method, target, seed=seed, progress=False, **options).scores.cpu()
            for name, (method, options) in views.items()
        }
        for name, scores in maps.items():
            on, alike = found.setdefault(name, ([], []))
            on.append(inside(scores, animal))
            alike.append(rank_correlation(scores.flatten(1), on_grid(maps[OWN], scores).flatten(1)))
        print(f"single photos: {start + len(part)} of {len(items)}", flush=True)
    means = {name: (interval_of(stacked(on)), interval_of(stacked(alike))) for name, (on, alike) in found.items()}
    rows = [[f"`{name}`", *means[name]] for name in sorted(means, key=lambda name: -means[name][0].mean)]
    return [*rows, ["the same everywhere", interval_of(stacked(areas)), ""]]


def on_grid(maps: Tensor, like: Tensor) -> Tensor:
    """Maps (B, h, w) of patches at the size of others, each patch with one value."""
    if maps.shape[-2:] == like.shape[-2:]:
        return maps
    return torch.nn.functional.interpolate(maps[:, None].float(), (like.shape[-2], like.shape[-1]), mode="nearest")[
        :, 0
    ]


def similarity_rows(bundle: mhex.Bundle, pairs: Any, seed: int) -> list[list[Any]]:
    """Rows by similarity: share of CDAM's positive part on the right half, for concepts and for their difference."""
    animals = animals_of(bundle, load_pets("trainval"), seed)
    rows = []
    for similarity in SIMILARITIES:
        cat, dog = (concept.compared_by(similarity) for concept in animals)
        found = [
            shares(bundle, pairs, OWN, {number: _always(one) for number, one in enumerate(targets)}, seed)
            for targets in ((cat, dog), (contrast(cat, dog), contrast(dog, cat)))
        ]
        means = [interval_of((both[0] + both[1]) / 2, seed) for both in found]
        rows.append([similarity, *means])
    return rows


def _always(one: mhex.Concept) -> Target:
    """The same concept for every part of the pictures."""
    return lambda part: one


def main() -> None:
    """Measure, draw and write."""
    parser = parser_of(__doc__, 40, "pictures of two animals, and photos")
    parser.add_argument("--passes", type=int, default=16, help="of the methods that have 50 in the paper (16)")
    wanted = parser.parse_args()
    views = published(wanted.passes)
    started, seed, bundle = time.perf_counter(), wanted.seed, mhex.load(MODEL)
    bundle.model.to(wanted.device)
    pets = load_pets("test", trimaps=True)
    if pets.trimaps is None:
        raise SystemExit("The pets have no masks.")
    pairs = side_by_side(pets, wanted.images, seed)
    places = animals_on(pets.trimaps, pairs.rows)
    every = {**views, BEFORE: view("cdam", site="block_input")}
    found = both_maps(bundle, pairs, places, every, seed)
    head, rows = both_table(found, seed)
    rivals = [name for name in found if name != OWN]
    items = data_entry("pets").items("test", limit=wanted.images)
    single = single_rows(bundle, items, every, seed)
    similar = similarity_rows(bundle, pairs, seed)
    breeds = pairs.breeds[:SHOWN].to(wanted.device)
    both = [mhex.explain(bundle, pairs.photos[:SHOWN], m, breeds, seed=seed, **o) for m, o in views.values()]
    photos = [items[k * len(items) // 4]["image"] for k in range(4)]
    target = mhex.explain(bundle, photos, OWN).target
    alone = [mhex.explain(bundle, photos, m, target, seed=seed, **o) for m, o in views.values()]
    names = list(views)
    sheets = {
        "cdam-two-animals.jpg": comparison(both, samples=range(SHOWN), labels=names, title="One picture, two targets"),
        "cdam-one-animal.jpg": comparison(alone, samples=range(4), labels=names, title="The predicted class"),
    }
    pictures = [
        save_samples(sheet, name, f"Maps of {len(views)} methods, {words}")
        for (name, sheet), words in zip(sheets.items(), ("two targets", "one target"), strict=True)
    ]
    count = f"{len(pairs.photos)} pictures of two animals and {len(items)} test photos"
    write_page(
        wanted.out,
        "cdam-supplement",
        [
            "# Nine methods on one picture: CDAM's supplement in numbers",
            f"`{MODEL}`, the paper's setting in small. What figures S2 and S3 show could not be found out: the notes "
            "that this project has do not describe them. Curves of removal, curves of boxes and the scatter beside "
            "attention are on other pages ([two animals](cdam.md), [one](cdam-single.md), [figures](cdam-figures.md)), "
            "and the paper's scans of lungs are not at hand. What no page had are all methods beside each other, for "
            "several targets and for one; here they are.",
            made_by(wanted, count, time.perf_counter() - started)
            + f" `smoothgrad` and `integrated-gradients` have {wanted.passes} passes, in the paper 50.",
            "## Two targets",
            "The middle halves of a cat's and a dog's photo (test split) side by side; maps of the breed of either. "
            "*Share*: of the positive part of a map, how much lies on the half that shows its breed, mean of both "
            "maps; 0.5 is what every map has that knows no class. *On its animal*: the same inside the outline. The "
            "rank correlation is that of the two maps of a picture.",
            pictures[0],
            table(head, [*rows, flat_row(places)]),
            "## One target",
            "Single photos, predicted class: share of the positive part on the animal, and Spearman's rho with CDAM's "
            "map.",
            pictures[1],
            table(["map", "share on the animal", "rank correlation with CDAM"], single),
            "## Before the norm, and other similarities",
            "*Before the norm* in both tables is CDAM of the tokens that enter the last norm; the paper finds it far "
            "worse. The paper names three similarities of latent vectors for concepts: share of CDAM's positive part "
            "on the half that shows the concept (30 training photos), for it, and for it less the other.",
            table(["similarity", "concept", "concept less the other"], similar),
            "## Reading",
            f"- By halves `{OWN}` is {ahead(found, OWN, rivals, seed)}.\n"
            f"- By animals `{OWN}` is {ahead(found, OWN, rivals, seed, INSIDE)}.\n"
            "- Differences are of shares on the same pictures, with 95 % intervals, not corrected for their number.",
        ],
    )


if __name__ == "__main__":
    main()
