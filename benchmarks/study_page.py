"""What the pages of studies share: arguments, how a page was made, intervals, tables, pictures of a bounded size."""

from __future__ import annotations

import argparse
import io
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

from mhex.judge.report import versions
from mhex.stats.intervals import bootstrap
from mhex.viz.canvas import render

DOCS = Path(__file__).parents[1] / "docs"
OF_DATA = Path("out") / "studies"  # pictures that show samples of a data set stay on the machine
MOST_BYTES = 300_000  # of a picture
_DOTS = (200, 170, 145, 120, 100, 85)  # per inch, until a picture is small enough
_ELSEWHERE = ("out", "runs", "suite")  # folders of this machine, which are no part of what was measured


def parser_of(doc: str | None, images: int, what: str = "images") -> argparse.ArgumentParser:
    """The arguments that all studies take.

    Args:
        doc: Doc-string of the study.
        images: How many samples by default.
        what: They are.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--images", type=int, default=images, help=f"{what} ({images})")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=DOCS, help="folder of pages (results/) and pictures (images/)")
    return parser


@dataclass(frozen=True)
class Interval:
    """A mean over samples.

    Attributes:
        mean: Of the samples that count.
        low, high: 95 % percentile bootstrap over samples; NaN for fewer than two.
        count: Samples that count.
    """

    mean: float
    low: float
    high: float
    count: int

    def __str__(self) -> str:
        return f"{self.mean:.3f} ({self.low:.3f} to {self.high:.3f})"

    @property
    def above(self) -> bool:
        """Whether the whole interval lies above 0."""
        return self.low > 0

    @property
    def below(self) -> bool:
        """Whether the whole interval lies below 0."""
        return self.high < 0


def interval_of(values: Tensor, seed: int = 0) -> Interval:
    """Mean and bootstrap interval of values (n,); those that are not finite do not count."""
    kept = values.double().cpu()
    kept = kept[kept.isfinite()]
    if len(kept) < 2:
        mean = float(kept.mean()) if len(kept) else float("nan")
        return Interval(mean, float("nan"), float("nan"), len(kept))
    found = bootstrap(kept[:, None], lambda rows: rows.mean(-2), seed=seed)
    return Interval(float(kept.mean()), float(found.low), float(found.high), len(kept))


def made_by(wanted: argparse.Namespace, images: str, seconds: float) -> str:
    """The sentence on command, seed, samples, time, device and versions.

    Args:
        wanted: The arguments; folders are left out.
        images: How many samples of what.
        seconds: That it took.
    """
    given = {name: value for name, value in vars(wanted).items() if name not in _ELSEWHERE and value is not None}
    words = [f"--{name} {shlex.quote(str(value))}" for name, value in given.items() if not isinstance(value, bool)]
    words += [f"--{name}" for name, value in given.items() if value is True]
    tools = " · ".join(f"{name} {version}" for name, version in versions().items())
    script = Path(sys.argv[0]).name
    return (
        f"Made by `python benchmarks/{script} {' '.join(words)}`: {images}, seed {wanted.seed}; {seconds:.0f} s on "
        f"{device_words(wanted.device)}; {tools}. Intervals are 95 %, by bootstrap over samples (2000 resamples) where "
        "nothing else is said."
    )


def device_words(device: str) -> str:
    """The device in words."""
    return f"`{device}` ({torch.cuda.get_device_name(device)})" if device.startswith("cuda") else f"`{device}`"


def table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A Markdown table."""
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(map(str, row))} |" for row in rows)])


def save_samples(figure: Figure, name: str, alt: str) -> str:
    """Draw samples of a data set into the folder of such pictures, and give the sentence that tells of it.

    Args:
        figure: To be drawn.
        name: Of the file, with its suffix.
        alt: What it shows.
    """
    save_picture(figure, OF_DATA / name, alt)
    return f"*{alt}: the command draws them into `{OF_DATA / name}`; samples of a data set are no part of these pages.*"


def save_picture(figure: Figure, path: Path, alt: str) -> str:
    """Draw into a file of a bounded size, and give the Markdown that shows it on a page of results.

    Args:
        figure: To be drawn; a picture that is too large is drawn with fewer dots.
        path: In the folder of pictures; `.jpg` for photos, `.png` for charts.
        alt: What it shows.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    kinds = (_plain, _few_colours) if path.suffix == ".png" else (_plain,)
    for dots in _DOTS:
        for kind in kinds:
            drawn = kind(figure, path.suffix.removeprefix("."), dots)
            if len(drawn) <= MOST_BYTES:
                path.write_bytes(drawn)
                return f"![{alt}](../images/{path.name})"
    raise SystemExit(f"{path.name} has {len(drawn)} bytes with {_DOTS[-1]} dots per inch: draw fewer samples.")


def _plain(figure: Figure, kind: str, dots: int) -> bytes:
    return render(figure, kind, dots)


def _few_colours(figure: Figure, kind: str, dots: int) -> bytes:
    """A picture of words and boxes, which 256 colours are enough for."""
    written = io.BytesIO()
    colours = Image.open(io.BytesIO(render(figure, kind, dots))).convert("RGB")
    colours.quantize(256, Image.Quantize.MAXCOVERAGE).save(written, kind, optimize=True)
    return written.getvalue()


def write_page(out: Path, name: str, parts: Sequence[str]) -> None:
    """Write a page of results."""
    path = out / "results" / f"{name}.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n\n".join(part.strip() for part in parts if part.strip()) + "\n", encoding="utf-8")
    print(f"Wrote {path}", flush=True)
