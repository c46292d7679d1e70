"""Photos and texts of an evaluation with the maps of all methods beside each other."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Mapping, Sequence
from typing import Any

from mhex.bench.controls import PREFIX, is_control
from mhex.bench.runs import Evaluation
from mhex.explanation import Explanation

_SIDE = 256


def pictures(one: Evaluation, images: Sequence[int] | None) -> str:
    """The kept samples, each with its maps, as HTML; empty if none was kept.

    Args:
        one: The evaluation.
        images: Numbers of the samples; None for all that were kept.
    """
    chosen = [image for image in one.drawn if images is None or image in images]
    return "".join(_sample(image, one.drawn[image]) for image in chosen)


def _sample(image: int, drawn: Mapping[str, Explanation]) -> str:
    from mhex.viz import to_html

    ordered = dict(sorted(drawn.items(), key=lambda pair: is_control(pair[0])))
    first = next(iter(ordered.values()))
    about = f"{first.target_names(0)[0]} ({100 * (first.target_probabilities(0)[0] or 0.0):.3g} %)"
    heading = f"<p><strong>Image {image}</strong>, explained for {html.escape(about)}</p>"
    if first.modality == "text":
        return heading.replace("Image", "Text") + to_html(list(ordered.values()))
    return f'{heading}<div class="maps">{_photo(first)}{"".join(_map(*pair) for pair in ordered.items())}</div>'


def _photo(explanation: Explanation) -> str:
    from mhex.viz.overlay import photo_pixels

    pixels = photo_pixels(explanation, 0)
    return "" if pixels is None else _figure(pixels, "photo", "")


def _map(name: str, explanation: Explanation) -> str:
    from mhex.viz import overlay
    from mhex.viz.overlay import describe

    return _figure(overlay(explanation), name, describe(explanation, 0, 0), is_control(name))


def _figure(pixels: Any, name: str, alt: str, control: bool = False) -> str:
    from PIL import Image

    small = Image.fromarray(pixels)
    small.thumbnail((_SIDE, _SIDE))
    file = io.BytesIO()
    small.save(file, "JPEG", quality=82)
    data = base64.b64encode(file.getvalue()).decode("ascii")
    mark = ' class="control"' if control else ""
    shown = f"{name.removeprefix(PREFIX)} (control)" if control else name
    said = html.escape(f"{name}: {alt}" if alt else name)
    return (
        f'<figure{mark}><img src="data:image/jpeg;base64,{data}" alt="{said}">'
        f"<figcaption>{html.escape(shown)}</figcaption></figure>"
    )
