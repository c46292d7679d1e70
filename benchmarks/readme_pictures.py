"""The two pictures of the README that show evidence: a ranking of methods, and maps of some of them.

python benchmarks/readme_pictures.py        writes docs/images/ranking.png and docs/images/demo.jpg

The ranking is that of the full benchmark of `recommend.py`, whose rows must be in `--full`. The photo is Chelsea, by
Stefan van der Walt, CC0, which comes with scikit-image.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from PIL import Image
from skimage import data

import mhex
from mhex.viz import comparison
from mhex.viz.colour import INK, MUTED
from mhex.viz.layout import MARGIN
from mhex.viz.letters import font, text_width, wrap
from mhex.viz.sheet import Sheet
from recommend_rating import Full
from study_page import DOCS, save_picture

MODEL = "zoo:pets-vit"
DRAWN = ("conservative-lrp", "agcam", "gradcam", "rollout", "lrp")
LINE, WIDTH = 0.2, 5.2
GOOD, USUAL, WEAK = "#1b7f5c", "#3a5a8c", "#a8a39a"


def ranking(full: Full) -> Sheet:
    """How far each method is behind the best, with intervals."""
    found = full.outcome
    order = list(found.order)
    left = MARGIN + max(text_width(name, 9) for name in order) + 0.15
    note = wrap(
        f"{MODEL}, {full.images} test photos (fewer for methods of many passes), metric balanced: faithfulness both "
        "ways, class sensitivity and stability. Green: not shown to be worse than the best. Grey: not shown to be "
        "above random maps. Bars are 95 % intervals of paired differences.",
        left + WIDTH - MARGIN,
        7.5,
        most=4,
    )
    top, tall = MARGIN + 0.4, LINE * len(order)
    sheet = Sheet(left + WIDTH + 2 * MARGIN, top + tall + 0.6 + 0.18 * len(note) + MARGIN)
    sheet.write(MARGIN, MARGIN + 0.14, f"{len(order)} methods on one model: how far behind the best?", 12, bold=True)
    width, height = sheet.get_size_inches()
    axes = sheet.add_axes((left / width, 1 - (top + tall) / height, WIDTH / width, tall / height))
    for place, name in enumerate(order):
        mean, low, high = found.behind[name]
        colour = WEAK if name in full.weak else GOOD if name in full.good else USUAL
        axes.plot([low, high], [place, place], color=colour, linewidth=2, solid_capstyle="round")
        axes.plot([mean], [place], "o", color=colour, markersize=5)
        sheet.write(MARGIN, top + LINE * (place + 0.5) + 0.045, name, 9, MUTED if name in full.weak else INK)
    axes.set_ylim(len(order) - 0.5, -0.5)
    axes.set_yticks([])
    axes.grid(axis="x", color="#d9d6d0", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(colors=MUTED, length=3, labelsize=8)
    axes.set_xlabel("behind the best, in units of the score", fontproperties=font(9), color=INK)
    for number, line in enumerate(note):
        sheet.write(MARGIN, top + tall + 0.65 + 0.18 * number, line, 7.5, MUTED)
    return sheet


def maps(full: Full) -> Sheet:
    """Chelsea by methods from the best to the last."""
    order = list(full.outcome.order)
    bundle, photo = mhex.load(MODEL), Image.fromarray(data.chelsea())
    explained = [mhex.explain(bundle, photo, method=name, target="top2") for name in DRAWN]
    sheet: Sheet = comparison(explained, labels=[f"{order.index(name) + 1}. {name}" for name in DRAWN])
    return sheet


def main() -> None:
    """Draw both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", type=Path, default=Path("out/recommend/pets-vit/full"))
    wanted = parser.parse_args()
    full = Full.load(wanted.full)
    for name, figure in (("ranking.png", ranking(full)), ("demo.jpg", maps(full))):
        save_picture(figure, DOCS / "images" / name, "")
        print(f"Wrote {DOCS / 'images' / name}", flush=True)


if __name__ == "__main__":
    main()
