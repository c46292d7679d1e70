"""A sheet of paper measured in inches: the only file that talks to matplotlib's figures."""

from __future__ import annotations

import io
import re
from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, fontManager, get_font
from matplotlib.patches import FancyBboxPatch
from matplotlib.text import Text
from matplotlib.textpath import text_to_path
from torch import Tensor

from mhex._printable import printable
from mhex.errors import ArgumentError
from mhex.explanation import Explanation
from mhex.viz.colour import INK, MUTED, Pixels, photo_bar, text_bar

SCALE_NOTE = "Each map is scaled on its own, so colours compare within a map."
_NAME = 28  # letters of a class among the predictions of several samples
TEXT_SCALE_NOTE = "Each text is scaled on its own, so colours compare within a text."


@dataclass(frozen=True)
class Legend:
    """A colour bar and the words at its two ends."""

    signed: bool
    left: str
    right: str


def percent(probability: float) -> str:
    """A probability in words that never round to impossible or certain: `83 %`, `0.4 %`, `>99.9 %`."""
    value = 100 * probability
    if 0 < value < 0.1:
        return "<0.1 %"
    if 99.9 < value < 100:
        return ">99.9 %"
    return f"{value:.1f} %" if 0 < value < 0.95 or 99.5 <= value < 100 else f"{value:.0f} %"


def number(value: float) -> str:
    """A value in three digits, written out where that is short: `3.21`, `12400`, `1.2e-05`."""
    return f"{value:.0f}" if 1000 <= abs(value) < 1e6 else f"{value:.3g}"


def target_kind(explanation: Explanation) -> str:
    """What the targets are, in one word: `"class"`, `"output"`, `"concept"`, or `"target"` for a function."""
    if explanation.target is None:
        return "concept" if explanation.named else "target"
    return "output" if explanation.task == "regression" else "class"


def target_label(explanation: Explanation, sample: int, target: int) -> tuple[str, str]:
    """Name of a target and what the model says of it: a class's probability, an output's value, a similarity."""
    name = " ".join(explanation.target_names(sample)[target].split())
    probability = explanation.target_probabilities(sample)[target]
    if probability is not None:
        return name, percent(probability)
    if explanation.values is None:
        return name, ""
    mark = "similarity" if target_kind(explanation) == "concept" else "="
    return name, f"{mark} {number(explanation.target_values(sample)[target])}"


def prediction_note(explanation: Explanation, samples: Sequence[int]) -> str:
    """A sentence on what the model predicts for the samples that are drawn, whatever class is explained."""
    parts = []
    for sample in samples:
        if (found := explanation.prediction(sample)) is None:
            continue
        name = " ".join(found[0].split())
        if len(samples) > 1:
            name = f"sample {sample} {name if len(name) <= _NAME else name[: _NAME - 1].rstrip(' ,') + '…'}"
        parts.append(f"{name} {percent(found[1])}")
    mark = "Most probable" if explanation.task == "multi-label" else "Predicted"
    return f"{mark}: {'; '.join(parts)}." if parts else ""


def target_scores(explanation: Explanation, sample: int, target: int) -> Tensor:
    """Raw scores of one sample and target on the CPU in float32: (h, w) or (T,)."""
    scores = explanation.scores[sample, target] if explanation.several else explanation.scores[sample]
    return scores.detach().float().cpu()


def remark(explanation: Explanation, sample: int, target: int) -> str:
    """What a reader must know of a map that carries no information; empty for an ordinary one."""
    scores = target_scores(explanation, sample, target)
    if not bool(torch.isfinite(scores).all()):
        return "not finite"
    if not bool(scores.any()):
        return "all zero"
    # Text scores are zero at special tokens and padding, so only maps of images can be told to be constant.
    constant = explanation.modality == "image" and bool((scores == scores.flatten()[0]).all())
    return "constant" if constant else ""


def legend(explanation: Explanation, names: Collection[str] = ()) -> Legend:
    """What the colours of an explanation mean.

    Args:
        explanation: Where the scores come from.
        names: Names of the targets drawn; a single one is named in the legend.
    """
    kind = target_kind(explanation)
    name = next(iter(names)) if len(names) == 1 and kind != "target" else f"the {kind}"
    if not explanation.class_specific:
        return Legend(explanation.signed, "least", f"most important, for any {kind}")
    if kind == "concept":
        low, high, most = f"unlike {name}", f"like {name}", f"most like {name}"
    elif explanation.task == "regression":
        low, high, most = f"lowers {name}", f"raises {name}", f"raises {name} most"
    else:
        low, high, most = f"against {name}", f"for {name}", f"most evidence for {name}"
    return Legend(True, low, high) if explanation.signed else Legend(False, "least", most)


def target_count(explanation: Explanation) -> int:
    """Number of targets K; 1 if the scores have no such axis."""
    return int(explanation.scores.shape[1]) if explanation.several else 1


def choose(wanted: Sequence[int] | None, count: int, most: int, what: str, call: str = "") -> tuple[list[int], str]:
    """Which samples or targets to draw, and a sentence on those left out.

    Args:
        wanted: Asked for by the user, all of them drawn; None for the first `most`.
        count: How many there are.
        most: The largest number drawn unasked.
        what: `"samples"` or `"targets"`, also the argument that chooses them.
        call: The function that takes this argument, for the sentence.

    Raises:
        ArgumentError: If nothing is left to draw, or one asked for does not exist.
    """
    if wanted is None:
        if count <= most:
            return list(range(count)), ""
        more = f"; {call}(..., {what}=range({most}, {min(2 * most, count)})) draws more" if call else ""
        return list(range(most)), f"The first {most} of {count} {what} are drawn{more}."
    chosen = [int(i) for i in wanted]
    if not chosen or any(not 0 <= i < count for i in chosen):
        raise ArgumentError(f"Expected {what} between 0 and {count - 1}, at least one, but got {chosen}.")
    return chosen, ""


MARGIN = 0.18
BAR = (1.3, 0.13)
# DejaVu Sans comes with matplotlib; the others are taken, if installed, for the scripts it lacks.
_FALLBACKS = ("Noto Sans CJK SC", "Noto Sans CJK JP", "WenQuanYi Zen Hei", "Noto Sans Devanagari", "Arial Unicode MS")


class Sheet(Figure):
    """A matplotlib figure drawn in inches from the top left corner.

    It has `_repr_png_`, because a bare `Figure` that pyplot does not manage is displayed by notebooks only after their
    inline backend was set up, which pyplot does; this room never touches pyplot.
    """

    def __init__(self, width: float, height: float) -> None:
        super().__init__(figsize=(width, height), dpi=100, facecolor="white")
        # The user's settings may ask for a layout engine, which would move what is placed by hand.
        self.set_layout_engine("none")
        FigureCanvasAgg(self)

    def _repr_png_(self) -> bytes:
        return render(self, "png", dpi=110)

    def write(
        self, x: float, y: float, text: str, size: float = 9, ink: str = INK, bold: bool = False, centred: bool = False
    ) -> None:
        """Write one line with its base line at `y` inches below the top, from `x` on or centred at `x`."""
        line = Text(
            x,
            self.get_figheight() - y,
            drawable(text),
            color=ink,
            fontproperties=font(size, bold),
            horizontalalignment="center" if centred else "left",
            transform=self.dpi_scale_trans,
            parse_math=False,  # a dollar sign in a class name or a token is a dollar sign
            usetex=False,
        )
        self.add_artist(line)

    def paint(self, x: float, y: float, width: float, height: float, pixels: Pixels, label: str) -> Any:
        """Draw an image (h, w, 3) stretched over a rectangle whose upper left corner is (x, y); returns its axes."""
        paper_width, paper_height = self.get_size_inches()
        box = (x / paper_width, 1 - (y + height) / paper_height, width / paper_width, height / paper_height)
        axes = self.add_axes(box, label=label)
        axes.set_axis_off()
        axes.imshow(pixels, aspect="auto", interpolation="antialiased")
        return axes

    def box(self, x: float, y: float, width: float, height: float, colour: str) -> None:
        """Draw a filled box with round corners whose upper left corner is (x, y)."""
        self.add_artist(
            FancyBboxPatch(
                (x, self.get_figheight() - y - height),
                width,
                height,
                boxstyle="round,pad=0,rounding_size=0.035",
                facecolor=colour,
                edgecolor="none",
                transform=self.dpi_scale_trans,
            )
        )

    def bar(self, x: float, y: float, legend: Legend, text: bool, room: float) -> None:
        """Draw a colour bar with the words at its ends, at most `room` inches wide.

        Args:
            x: Left end.
            y: Base line of the words.
            legend: The bar and its words.
            text: Colours of words instead of those over photos.
            room: What does not fit is shortened.
        """
        words_room = (room - BAR[0] - 0.16) / 2
        right_room = max(words_room, room - BAR[0] - 0.16 - min(words_room, text_width(legend.left, 8)))
        left = shorten(legend.left, words_room, 8)
        self.write(x, y, left, 8, MUTED)
        x += text_width(left, 8) + 0.08
        pixels = text_bar(legend.signed) if text else photo_bar(legend.signed)
        self.paint(x, y - BAR[1] + 0.03, *BAR, pixels, "legend")
        self.write(x + BAR[0] + 0.08, y, shorten(legend.right, right_room, 8), 8, MUTED)


@lru_cache(maxsize=64)
def font(size: float, bold: bool = False) -> FontProperties:
    """The one font of all pictures; independent of the user's matplotlib settings."""
    return FontProperties(family=_families(), size=size, weight="bold" if bold else "normal", style="normal")


@lru_cache(maxsize=1)
def _families() -> list[str]:
    installed = set(fontManager.get_font_names())
    return ["DejaVu Sans", *(name for name in _FALLBACKS if name in installed)]


@lru_cache(maxsize=1)
def _letters() -> frozenset[int]:
    """Code points that the installed fonts can draw."""
    return frozenset().union(*(get_font(findfont(FontProperties(family=name))).get_charmap() for name in _families()))


def drawable(text: str) -> str:
    """The text with a box for each letter that no font has; matplotlib would warn once per letter."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(letter if ord(letter) in _letters() else "□" for letter in printable(text))


def font_note(texts: Iterable[str]) -> str:
    """A sentence if some letters cannot be drawn."""
    if all(drawable(text) == printable(text) for text in texts):
        return ""
    return "Boxes (□) stand for letters that the installed fonts lack; install a Noto font, or save as HTML."


@lru_cache(maxsize=8192)
def text_width(text: str, size: float, bold: bool = False) -> float:
    """Width of a line in inches."""
    if not text:
        return 0.0
    width, _, _ = text_to_path.get_text_width_height_descent(drawable(text), font(size, bold), ismath=False)
    # Letters drawn on a pixel grid come out a few percent wider than their outlines.
    return 1.03 * float(width) / 72


def shorten(text: str, room: float, size: float, bold: bool = False) -> str:
    """The text, or as much of its beginning as fits `room` inches, with an ellipsis."""
    if text_width(text, size, bold) <= room:
        return text
    cuts = range(1, len(text))
    fitting = bisect_right(cuts, room, key=lambda end: text_width(_cut(text, end), size, bold))
    return _cut(text, fitting)


def _cut(text: str, end: int) -> str:
    return text[:end].rstrip(" ,;") + "…"


def wrap(text: str, room: float, size: float, most: int, bold: bool = False, hyphens: bool = False) -> list[str]:
    """Break a text at spaces into at most `most` lines of `room` inches; the last one is shortened.

    Args:
        text: Its runs of spaces count as one.
        room: Inches.
        size: Of the letters, in points.
        most: Number of lines.
        bold: Whether the letters are.
        hyphens: Break after hyphens too.
    """
    lines: list[str] = []
    # Each piece brings the space that follows it.
    pieces = re.findall(r"[^\s-]*-+|[^\s-]+ ?| " if hyphens else r"\S+ ?", " ".join(text.split()))
    while pieces and len(lines) < most - 1:
        count = 1
        while count < len(pieces) and text_width("".join(pieces[: count + 1]).rstrip(), size, bold) <= room:
            count += 1
        lines.append(shorten("".join(pieces[:count]).rstrip(), room, size, bold))
        pieces = pieces[count:]
    return [*lines, shorten("".join(pieces).rstrip(), room, size, bold)] if pieces else lines


def render(figure: Figure, kind: str, dpi: int = 200) -> bytes:
    """A figure as the bytes of a file.

    Args:
        figure: Any matplotlib figure.
        kind: `"png"`, `"jpg"`, `"pdf"`, `"svg"` or `"webp"`.
        dpi: Dots per inch.
    """
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, dpi=dpi, facecolor=figure.get_facecolor(), bbox_inches=None)
    return buffer.getvalue()
