"""A whole HTML page from pieces: inline style, light and dark, narrow and wide screens."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from mhex._printable import escaped
from mhex.explanation import Explanation
from mhex.viz.colour import INK, text_colours
from mhex.viz.grid import agnostic_note, check_same_input, column_labels, comparison, legends
from mhex.viz.overlay import describe, image_figure
from mhex.viz.sheet import TEXT_SCALE_NOTE, Legend, choose, prediction_note, render, target_count, target_label
from mhex.viz.text import explanation_block, text_html

_MOST_TEXTS = 48
_DPI = 160
# Words carry light backgrounds, so the card stays light on dark pages too.
_CARD = (
    f"background:#fff;color:{INK};color-scheme:light;border:1px solid #ddd;border-radius:8px;padding:.8em 1em;"
    "font:15px/1.5 system-ui,sans-serif;max-width:60em"
)


def to_html(explanation: Explanation | Sequence[Explanation]) -> str:
    """A self-contained piece of HTML: a picture with a description for images, highlighted words for texts.

    Args:
        explanation: One, or several of the same input to be compared.
    """
    several = [explanation] if isinstance(explanation, Explanation) else list(explanation)
    check_same_input(several)
    if several[0].modality == "text":
        return _texts(several)
    drawn = image_figure(several[0]) if isinstance(explanation, Explanation) else comparison(several)
    return picture_tag(drawn, _alt(several))


def picture_tag(figure: Figure, alt: str) -> str:
    """A matplotlib figure as an `img` tag that holds the picture itself.

    Args:
        figure: Any figure; one made by this package or by pyplot.
        alt: What the picture shows, for readers who cannot see it.
    """
    data = base64.b64encode(render(figure, "png", dpi=_DPI)).decode("ascii")
    width = round(96 * float(figure.get_figwidth()))
    return (
        f'<img src="data:image/png;base64,{data}" alt="{escaped(alt)}" width="{width}" '
        # On a narrow screen the picture scrolls sideways before its labels become too small to read.
        f'style="max-width:100%;min-width:{min(round(0.6 * width), 560)}px;height:auto;border-radius:8px">'
    )


def _alt(explanations: Sequence[Explanation]) -> str:
    parts = []
    for explanation in explanations:
        samples, _ = choose(None, explanation.scores.shape[0], 4, "samples")
        targets, _ = choose(None, target_count(explanation), 4, "targets")
        maps = [describe(explanation, sample, target) for sample in samples for target in targets]
        parts.append(f"{explanation.method}: {'; '.join(maps)}.")
    samples, _ = choose(None, explanations[0].scores.shape[0], 4, "samples")
    said = prediction_note(explanations[0], samples)
    return " ".join(filter(None, ("Heat maps over the input.", *parts, said)))


def _texts(explanations: Sequence[Explanation]) -> str:
    first = explanations[0]
    names = column_labels(explanations)
    targets, more_targets = choose(None, target_count(first), _MOST_TEXTS, "targets")
    samples, more_samples = choose(None, first.scores.shape[0], max(1, _MOST_TEXTS // len(targets)), "samples")
    parts = []
    for sample in samples:
        for target in targets:
            for explanation, name in zip(explanations, names, strict=True):
                prefix = f"{name} · sample {sample}" if len(samples) > 1 else name
                block = explanation_block(explanation, sample, target, prefix)
                heading = f"<strong>{escaped(block.title)}</strong> {escaped(block.tail)}"
                parts.append(f'<div style="margin-top:.5em">{heading}</div>')
                parts.append(text_html(block.words, block.signed))
    drawn = {target_label(first, sample, target)[0] for sample in samples for target in targets}
    parts += [_bar(bar) for bar in legends(explanations, drawn)]
    for note in (
        prediction_note(first, samples),
        TEXT_SCALE_NOTE,
        agnostic_note(explanations),
        more_samples,
        more_targets,
    ):
        if note:
            parts.append(f'<div style="color:#666;font-size:.85em">{escaped(note)}</div>')
    return f'<div style="{_CARD}">{"".join(parts)}</div>'


def _bar(legend: Legend) -> str:
    low = -10 if legend.signed else 0
    stops = ",".join(text_colours(step / 10, legend.signed)[0] for step in range(low, 11))
    colours = f"display:inline-block;width:8em;height:.8em;border-radius:3px;background:linear-gradient(90deg,{stops})"
    return (
        '<div style="color:#666;font-size:.85em;margin-top:.6em;display:flex;gap:.6em;align-items:center;'
        f'flex-wrap:wrap"><span>{escaped(legend.left)}</span><span style="{colours}"></span>'
        f"<span>{escaped(legend.right)}</span></div>"
    )


# The page may show its own pictures and use its own style. Nothing else is loaded, whatever a section contains.
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"

_STYLE = """
:root { color-scheme: light dark; --paper: #fafaf8; --ink: #1c1c1c; --soft: #5c5c5c; --line: #e3e1dc; --card: #ffffff;
  --accent: #b4470e; }
@media (prefers-color-scheme: dark) { :root { --paper: #161718; --ink: #e8e6e3; --soft: #a3a09b; --line: #34363a;
  --card: #1f2123; --accent: #f0945a; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.6 system-ui, -apple-system, "Segoe UI",
  sans-serif; }
main { max-width: 64rem; margin: 0 auto; padding: 2.5rem clamp(1rem, 4vw, 2.5rem) 4rem; }
h1 { font-size: clamp(1.6rem, 4vw, 2.3rem); line-height: 1.2; margin: 0 0 .6rem; letter-spacing: -.01em; }
h2 { font-size: 1.25rem; margin: 0 0 .8rem; line-height: 1.3; }
p { margin: 0 0 .8rem; max-width: 46rem; }
nav { margin: 1.2rem 0 0; display: flex; flex-wrap: wrap; gap: .3rem 1.2rem; font-size: .95rem; }
a { color: var(--accent); }
section { background: var(--card); border: 1px solid var(--line); border-radius: 12px; margin-top: 1.6rem;
  padding: clamp(1rem, 3vw, 1.6rem); overflow-x: auto; }
section > :last-child { margin-bottom: 0; }
.intro, .note { color: var(--soft); }
.intro { font-size: 1.06rem; }
.note { font-size: .92rem; margin-top: .9rem; }
img { display: block; max-width: 100%; height: auto; margin: .4rem 0 1rem; }
blockquote { margin: 0 0 1rem; padding-left: 1rem; border-left: 3px solid var(--line); }
table { margin: 0 0 1.1rem; border-collapse: collapse; font-size: .93rem; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .35rem .8rem .35rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
code, pre { font: .9em ui-monospace, "DejaVu Sans Mono", monospace; }
h3 { font-size: 1.05rem; margin: 1.6rem 0 .6rem; }
.scroll { overflow-x: auto; margin-bottom: 1rem; }
.scroll table { margin: 0; border-collapse: separate; border-spacing: 0; }
.scroll th { vertical-align: bottom; }
.scroll td:not(:first-child) { white-space: nowrap; }
.scroll th:not(:first-child) { min-width: 6.5rem; }
.scroll th:first-child, .scroll td:first-child { position: sticky; left: 0; background: var(--card); }
.control, .control td { color: var(--soft); font-style: italic; }
tr:not(.control) + tr.control td { border-top: 3px double var(--line); }
summary { cursor: pointer; margin-bottom: .8rem; }
.small, .scroll + ul { font-size: .88rem; color: var(--soft); padding-left: 1.1rem; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 21rem), 1fr)); gap: 1rem 1.6rem; }
.chart { margin: 0; }
figcaption { font-size: .9rem; font-weight: 600; margin-bottom: .3rem; }
.chart svg { display: block; width: 100%; max-width: 30rem; height: auto; font: 11px system-ui, sans-serif;
  fill: currentColor; }
.chart .grid { stroke: var(--line); stroke-width: 1; }
.chart .axis { stroke: var(--soft); stroke-width: 1; }
.chart .soft { fill: var(--soft); }
.chart .mean { fill: var(--card); stroke: var(--ink); stroke-width: 1.2; }
.key { display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; margin: 0 0 1rem; font-size: .88rem; }
.key span { display: inline-flex; align-items: center; gap: .4rem; }
.key svg { width: 26px; height: 10px; }
.maps { display: grid; grid-template-columns: repeat(auto-fill, minmax(clamp(5.2rem, 11vw, 8rem), 1fr)); gap: .7rem;
  margin-bottom: 1.4rem; }
.maps figure { margin: 0; }
.maps figcaption { font-size: .78rem; font-weight: 400; line-height: 1.25; margin: .25rem 0 0;
  overflow-wrap: anywhere; }
.maps img { width: 100%; margin: 0; border-radius: 6px; }
.maps .control img { outline: 2px dashed var(--soft); outline-offset: -2px; }
pre { overflow-x: auto; padding: .8rem 1rem; border: 1px solid var(--line); border-radius: 8px; }
"""


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


def page(title: str, intro: str, sections: Sequence[Section]) -> str:
    """A complete HTML page.

    Args:
        title: Plain text, also the name of the browser's tab.
        intro: Plain text; blank lines separate paragraphs.
        sections: Top to bottom; more than three get a list of links above them.
    """
    links = "".join(f'<a href="#s{n}">{escaped(s.title)}</a>' for n, s in enumerate(sections, 1))
    navigation = f"<nav>{links}</nav>\n" if len(sections) > 3 else ""
    body = "\n".join(_section(n, section) for n, section in enumerate(sections, 1))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        f"<title>{escaped(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n"
        f"<h1>{escaped(title)}</h1>\n{paragraphs(intro, 'intro')}\n{navigation}{body}\n</main>\n</body>\n</html>\n"
    )


def paragraphs(text: str, kind: str = "") -> str:
    """Plain text as escaped HTML paragraphs, one per block of lines.

    Args:
        text: Blank lines separate paragraphs.
        kind: A CSS class for them.
    """
    mark = f' class="{escaped(kind)}"' if kind else ""
    blocks = [block.strip() for block in re.split(r"\n\s*\n", text) if block.strip()]
    return "\n".join(f"<p{mark}>{escaped(block)}</p>" for block in blocks)


def _section(number: int, section: Section) -> str:
    note = paragraphs(section.note, "note")
    return f'<section id="s{number}">\n<h2>{escaped(section.title)}</h2>\n{section.html}\n{note}\n</section>'
