"""Photos and texts of an evaluation with the maps of all methods beside each other."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from typing import Any

from mhex._markup import escaped
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
    drawn = (dict(sorted(one.drawn[image].items(), key=lambda pair: is_control(pair[0]))) for image in chosen)
    return "".join(sample(image, maps) for image, maps in zip(chosen, drawn, strict=True))


def sample(image: int, drawn: Mapping[str, Explanation], said: Mapping[str, str] | None = None) -> str:
    """A sample with its maps side by side, or below each other for a text, as HTML.

    Args:
        image: Its number.
        drawn: Explanations by method, in the order in which they are shown; one at least.
        said: What is written below the names of methods, by method.
    """
    from mhex.viz import to_html

    first, words = next(iter(drawn.values())), said or {}
    about = f"{first.target_names(0)[0]} ({100 * (first.target_probabilities(0)[0] or 0.0):.3g} %)"
    kind = "Text" if first.modality == "text" else "Image"
    if (predicted := first.prediction(0)) is not None:
        same = predicted[0] == first.target_names(0)[0]
        about += ", the predicted class" if same else f"; predicted: {predicted[0]} ({100 * predicted[1]:.3g} %)"
    heading = f"<p><strong>{kind} {image}</strong>, explained for {escaped(about)}</p>"
    if first.modality == "text":
        return heading + to_html(list(drawn.values()))
    maps = "".join(_map(name, one, words.get(name, "")) for name, one in drawn.items())
    return f'{heading}<div class="maps">{_photo(first)}{maps}</div>'


def _photo(explanation: Explanation) -> str:
    from mhex.viz.overlay import photo_pixels

    pixels = photo_pixels(explanation, 0)
    return "" if pixels is None else _figure(pixels, "photo", "")


def _map(name: str, explanation: Explanation, said: str) -> str:
    from mhex.viz import overlay
    from mhex.viz.overlay import describe

    return _figure(overlay(explanation), name, describe(explanation, 0, 0), is_control(name), said)


def _figure(pixels: Any, name: str, alt: str, control: bool = False, words: str = "") -> str:
    from PIL import Image

    small = Image.fromarray(pixels)
    small.thumbnail((_SIDE, _SIDE))
    file = io.BytesIO()
    small.save(file, "JPEG", quality=82)
    data = base64.b64encode(file.getvalue()).decode("ascii")
    mark = ' class="control"' if control else ""
    shown = f"{name.removeprefix(PREFIX)} (control)" if control else name
    said = escaped(f"{name}: {alt}" if alt else name)
    below = f"<br><small>{escaped(words)}</small>" if words else ""
    return (
        f'<figure{mark}><img src="data:image/jpeg;base64,{data}" alt="{said}">'
        f"<figcaption>{escaped(shown)}{below}</figcaption></figure>"
    )
