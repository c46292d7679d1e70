"""HTML pages that need nothing else: pieces and whole pages from templates, with all pictures inside."""

import base64
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from os import PathLike
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from PIL import Image

from mhex._files import write_text
from mhex._printable import printable
from mhex.viz import captions
from mhex.viz.canvas import Canvas, Paper, render
from mhex.viz.captions import TEXT_SCALE_NOTE, Drawable
from mhex.viz.charts import Style
from mhex.viz.colour import INK, Pixels, text_colours
from mhex.viz.figures import comparison, figure
from mhex.viz.heatmap import describe, overlay, photo_pixels
from mhex.viz.text import text_blocks

_MOST_TEXTS = 48
_DPI = 160
_SIDE = 256  # of the maps of samples, in pixels


@dataclass(frozen=True)
class Section:
    """A part of a page.

    Attributes:
        title: Plain text.
        html: A piece of HTML, put in as it is: from `to_html`, `picture_tag` or `paragraphs`, never from strangers.
        note: Plain text below it; blank lines separate paragraphs.
    """

    title: str
    html: str
    note: str = ""


@dataclass(frozen=True)
class MapCard:
    """A map among those of a sample, and the caption and remark below it; a control has a dashed frame."""

    explanation: Drawable
    caption: str
    control: bool = False
    remark: str = ""


@lru_cache(maxsize=1)
def _environment() -> Environment:
    """The templates. Plain values lose characters that act, such as those that turn text around, and are escaped."""
    environment = Environment(
        loader=PackageLoader("mhex.viz"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: value if hasattr(value, "__html__") else printable(value),
    )
    shared = {"describe": describe, "overlay": overlay, "thumbnail": _thumbnail, "text_colours": text_colours}
    environment.globals.update(shared, ink=INK, blocks_of=re.compile(r"\n\s*\n").split)
    return environment


def part(name: str, template: str = "parts.html", /, **values: Any) -> Markup:
    """A piece of HTML from the macro `name` of a file of `templates`."""
    macro = getattr(_environment().get_template(template).module, name)
    return Markup(macro(**values).strip())


def page(title: str, intro: str, sections: Sequence[Section]) -> str:
    """A complete HTML page.

    Args:
        title: Plain text, also the name of the browser's tab.
        intro: Plain text; blank lines separate paragraphs.
        sections: Top to bottom; more than three get a list of links above them.
    """
    return _environment().get_template("page.html").render(title=title, intro=intro, sections=sections)


def paragraphs(text: str, kind: str = "") -> str:
    """Plain text as escaped HTML paragraphs, which blank lines separate; `kind` is a CSS class for them."""
    return part("paragraphs", text=text, kind=kind)


def to_html(explanation: Drawable | Sequence[Drawable]) -> str:
    """A self-contained piece of HTML: a picture with a description for images, highlighted words for texts.

    Args:
        explanation: One, or several of the same input to be compared.
    """
    several = list(explanation) if isinstance(explanation, Sequence) else [explanation]
    captions.check_same_input(several)
    first = several[0]
    if first.modality == "text":
        samples, targets, more = captions.choose_both(first, None, None, _MOST_TEXTS)
        return part(
            "texts",
            blocks=text_blocks(several, captions.column_labels(several), samples, targets),
            legends=captions.legends(several, captions.drawn_names(first, samples, targets)),
            notes=[captions.prediction_note(first, samples), TEXT_SCALE_NOTE, captions.agnostic_note(several), *more],
        )
    samples, targets, _ = captions.choose_both(first, None, None, 4, most_samples=4)
    maps = [
        f"{entry.method}: {'; '.join(describe(entry, sample, target) for sample in samples for target in targets)}."
        for entry in several
    ]
    alt = " ".join(filter(None, ("Heat maps over the input.", *maps, captions.prediction_note(first, samples))))
    paper = partial(Canvas, dpi=_DPI)
    return picture_tag(figure(first, paper=paper) if explanation is first else comparison(several, paper=paper), alt)


def picture_tag(figure: Paper, alt: str) -> str:
    """A figure or canvas as an `img` tag that holds the picture itself.

    Args:
        figure: A canvas, or any figure of matplotlib; one made by this package or by pyplot.
        alt: What the picture shows, for readers who cannot see it.
    """
    data = render(figure, "png", _DPI)
    width = round(96 * Image.open(io.BytesIO(data)).width / _DPI)
    return part("picture", source=_inline(data, "png"), alt=alt, width=width)


def charts_html(charts: Mapping[str, Paper], styles: Mapping[str, Style] | None = None, note: str = "") -> str:
    """Charts, by what they show, side by side where there is room, as HTML: a key of the styles above, a note below."""
    sources = {alt: _inline(render(chart, "svg", in_page=True), "svg+xml") for alt, chart in charts.items()}
    return part("charts", sources=sources, styles=styles or {}, note=note)


def sample_html(number: int, cards: Sequence[MapCard]) -> str:
    """A sample, by its number, with its maps side by side, or below each other for a text, as HTML."""
    first = cards[0].explanation
    heading = part("sample_heading", number=number, explanation=first)
    if first.modality == "text":
        return heading + to_html([card.explanation for card in cards])
    return heading + part("maps", photo=photo_pixels(first, 0), cards=cards)


def _thumbnail(pixels: Pixels) -> str:
    small = Image.fromarray(pixels)
    small.thumbnail((_SIDE, _SIDE))
    file = io.BytesIO()
    small.save(file, "JPEG", quality=82)
    return _inline(file.getvalue(), "jpeg")


def _inline(data: bytes, kind: str) -> str:
    """An address of a picture that is the picture itself."""
    return f"data:image/{kind};base64,{base64.b64encode(data).decode('ascii')}"


def save_html(explanation: Drawable | Sequence[Drawable], path: str | PathLike[str]) -> Path:
    """Write a complete HTML page that shows an explanation, or compares several of the same input.

    Args:
        explanation: One, or several of the same input.
        path: Where to write; the folder must exist.
    """
    path = Path(path)
    several = explanation if isinstance(explanation, Sequence) else [explanation]
    title = "Explained by " + ", ".join(dict.fromkeys(entry.method for entry in several))
    write_text(page(title, "", [Section("Scores", to_html(explanation))]), path)
    return path
