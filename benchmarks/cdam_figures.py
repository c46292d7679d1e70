"""Figures of the CDAM paper on pets: concept maps, attention against scores, box sensitivity, the variants.

python benchmarks/cdam_figures.py --device cuda        writes docs/results/cdam-figures.md

A linear probe on a frozen ViT that learned without labels, which is the paper's setting. Needs the pets data set
(`MHEX_DATA`) and the model (`mhex models build pets-vit-simclr-probe`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mhex
from cdam_attention import Beside, beside, correlations, tenths, zeros
from cdam_boxes import GRID, RANDOM, SIZES, box_curves, mean_correlation
from cdam_concepts import EXAMPLES, VARIANTS, concept_maps, energy_table, load_both
from mhex.lab.datasets import Pets
from mhex.viz import comparison, scatter
from study_charts import band_figure, bands_of
from study_page import Interval, interval_of, made_by, parser_of, save_picture, save_samples, table, write_page

MODEL = "zoo:pets-vit-simclr-probe"
SHOWN = 2


def photos_of(test: Pets, count: int) -> list[Any]:
    """Photos spread evenly over the test split."""
    items = test.items()
    return [items[k * len(items) // count]["image"] for k in range(min(count, len(items)))]


def concept_part(bundle: mhex.Bundle, count: int, seed: int) -> tuple[list[str], str, Pets]:
    """Concept maps: numbers, picture, reading; and the test photos."""
    train, test, pairs = load_both(count, seed)
    rows = energy_table(bundle, train, pairs, seed)
    sheet = comparison(
        concept_maps(bundle, train, pairs.photos[:SHOWN], seed), samples=range(SHOWN), title="Concepts on two animals"
    )
    picture = save_samples(sheet, "cdam-concepts.jpg", "Maps of the concepts cat and dog on pictures of both")
    lines = [[words, f"`{method}`", *found, found[-1].count] for words, method, found in rows]
    parts = [
        "## Concept maps",
        f"{len(pairs.photos)} pictures of the middle halves of a cat's and a dog's photo (test split). A concept is "
        f"the mean latent vector of {EXAMPLES} photos of the training split; scores are by the dot product with the "
        "picture's. *Share*: of the positive part of a map, how much lies on the half that shows its target; 0.5 is "
        "chance. *Both* is the mean over the two maps of a picture, which is 0.5 for every map that does not depend "
        "on the target.",
        table(["target", "method", "share, cats", "share, dogs", "both", "pictures"], lines),
        picture,
    ]
    return parts, concept_reading(rows), test


def concept_reading(rows: Sequence[tuple[str, str, list[Interval]]]) -> str:
    """What the shares show, in words."""
    said = []
    for words in dict.fromkeys(row[0] for row in rows if row[0] != "none"):
        own = {method: found[-1] for what, method, found in rows if what == words}
        better = [method for method, one in own.items() if one.low > 0.5]
        worse = [method for method, one in own.items() if one.high < 0.5]
        best = max(own, key=lambda method: own[method].mean)
        above = f"{len(better)} of {len(own)} variants put more than half of it on the right half"
        below = f", {len(worse)} less than half" if worse else ""
        said.append(f"- {words}: {above}{below}; most `{best}`, {own[best]}.")
    return "\n".join(said)


def attention_part(found: Beside, seed: int, out: Path) -> tuple[list[str], str]:
    """The scatter and its numbers, and the reading."""
    rho = correlations(found, seed)
    rows = [
        [f"{k + 1}", f"{share:.2f}", f"{middle:.3f}", f"{most:.3f}"]
        for k, (share, middle, most) in enumerate(tenths(found))
    ]
    sheet = scatter(found.attention, found.cdam, title="CDAM against attention")
    parts = [
        "## Attention against CDAM",
        f"{len(found.cdam.scores)} test photos, predicted class, attention of the class token in the last block (mean "
        "of heads). Spearman's rho over the patches of each photo: "
        + "; ".join(f"attention with the {name} {one}" for name, one in rho.items())
        + f". {zeros(found)}",
        save_picture(sheet, out / "cdam-attention.png", "CDAM against attention, a dot per patch"),
        "By tenths of each photo's patches, from the least attention to the most: mean attention (in means of the "
        "photo), and the size of scores beside the largest of the photo.",
        table(["tenth", "attention", "median size of a score", "largest size"], rows),
    ]
    first, last = tenths(found)[0], tenths(found)[-1]
    words = (
        "- The paper sees no score where attention is 0. Here scores of the tenth with the least attention have at "
        f"most {first[2]:.2f} of the size of their photo's largest (median {first[1]:.3f}), those with the most "
        f"attention a median of {last[1]:.3f}. The size of a score goes with attention (rho "
        f"{rho['size of the score']}), its sign is the class's."
    )
    return parts, words


def box_part(bundle: mhex.Bundle, photos: Sequence[Any], boxes: int, seed: int, out: Path) -> tuple[list[str], str]:
    """The curves, their means, and the reading."""
    curves = box_curves(bundle, photos, boxes, seed)
    means = {name: interval_of(mean_correlation(one), seed) for name, one in curves.items()}
    order = sorted(means, key=lambda name: -means[name].mean)
    sheet = band_figure(
        "Box sensitivity by the size of the boxes",
        SIZES,
        {"correlation of box sums and losses": bands_of({name: curves[name] for name in order}, seed)},
        f"side of a box, in {GRID}ths of the image",
        f"Mean over {len(photos)} photos of Pearson's r over {boxes} blurred boxes of a size; bands are 95 % bootstrap "
        "intervals over photos.",
        controls=[RANDOM],
    )
    parts = [
        "## Box sensitivity",
        f"{len(photos)} test photos, predicted class, {boxes} boxes of each size, the same for all methods: Pearson's "
        "r of the sum of the map over a box with what the logit loses when the box is blurred.",
        save_picture(sheet, out / "cdam-boxes.png", "Curves of box sensitivity of seven methods and random maps"),
        table(
            ["map", "mean r over sizes", "photos"],
            [[f"`{n}`" if n != RANDOM else n, means[n], means[n].count] for n in order],
        ),
    ]
    clear = [name for name in order if name != RANDOM and means[name].low > means[RANDOM].high]
    words = (
        f"- Box sensitivity: highest `{order[0]}` ({means[order[0]]}); the intervals of {len(clear)} of "
        f"{len(means) - 1} methods lie above that of random maps ({means[RANDOM]})."
    )
    return parts, words


def variant_part(bundle: mhex.Bundle, photos: Sequence[Any], seed: int) -> list[str]:
    """Plain, smooth and integrated CDAM beside attention."""
    batch = list(photos[:4])
    target = mhex.explain(bundle, batch, method="cdam").target
    maps = [mhex.explain(bundle, batch, method=name, target=target, seed=seed) for name in ("attention", *VARIANTS)]
    sheet = comparison(maps, samples=range(len(batch)), title="Attention and the variants of CDAM")
    words = (
        "The predicted class of four photos, 50 draws (noise 0.1 of the tokens' spread) and 50 steps (Gauss-Legendre)."
    )
    return [
        "## Variants",
        words,
        save_samples(sheet, "cdam-variants.jpg", "Attention and three variants of CDAM"),
    ]


def main() -> None:
    """Measure, draw and write."""
    parser = parser_of(__doc__, 200, "pictures of two animals, and photos")
    parser.add_argument("--boxes", type=int, default=100, help="of each size (100)")
    wanted = parser.parse_args()
    started, bundle, images = time.perf_counter(), mhex.load(MODEL), wanted.out / "images"
    bundle.model.to(wanted.device)
    concepts, first, test = concept_part(bundle, wanted.images, wanted.seed)
    print("concepts: done", flush=True)
    photos = photos_of(test, wanted.images)
    scattered, second = attention_part(beside(bundle, photos, wanted.seed), wanted.seed, images)
    boxed, third = box_part(bundle, photos, wanted.boxes, wanted.seed, images)
    variants = variant_part(bundle, photos, wanted.seed)
    accuracy = bundle.card["accuracy"]
    intro = (
        f"`{MODEL}`: a linear classifier on a frozen ViT that learned without labels, the paper's setting in small "
        f"(breeds {100 * accuracy['breed']:.1f} %, cat or dog {100 * accuracy['cat_dog']:.1f} % of the test split). "
        "Tables of CDAM's metrics are made by `mhex bench cdam`."
    )
    count = f"{wanted.images} pictures and as many photos of the pets' test split"
    facts = made_by(wanted, count, time.perf_counter() - started)
    reading = ["## Reading", "\n".join([first, second, third])]
    write_page(
        wanted.out,
        "cdam-figures",
        [
            "# Concepts, attention and boxes: CDAM's figures",
            intro,
            facts,
            *concepts,
            *scattered,
            *boxed,
            *variants,
            *reading,
        ],
    )


if __name__ == "__main__":
    main()
