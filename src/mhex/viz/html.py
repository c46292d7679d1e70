"""Explanations as HTML: no script, nothing fetched from outside, readable alone or inside any page."""

from __future__ import annotations

import base64
from collections.abc import Sequence

from matplotlib.figure import Figure

from mhex._markup import escaped
from mhex.explanation import Explanation
from mhex.viz._colour import INK, text_colours
from mhex.viz._labels import TEXT_SCALE_NOTE, Legend, choose, prediction_note, target_count, target_label
from mhex.viz._sheet import render
from mhex.viz.grid import agnostic_note, check_same_input, column_labels, comparison, legends
from mhex.viz.overlay import describe, image_figure
from mhex.viz.text import text_html
from mhex.viz.text_figure import explanation_block

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
