"""One explanation, or several, to a figure or a file, whatever they explain."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path

from matplotlib.figure import Figure

from mhex._files import write_bytes, write_text
from mhex.errors import ArgumentError
from mhex.explanation import Explanation
from mhex.viz.grid import comparison
from mhex.viz.html import Section, page, to_html
from mhex.viz.overlay import image_figure
from mhex.viz.sheet import Sheet, render
from mhex.viz.text import text_figure

_KINDS = {".png": "png", ".jpg": "jpg", ".jpeg": "jpg", ".pdf": "pdf", ".svg": "svg", ".webp": "webp"}


def figure(
    explanation: Explanation, *, samples: Sequence[int] | None = None, targets: Sequence[int] | None = None
) -> Sheet:
    """Draw an explanation as a matplotlib figure: heat maps over the photos, or highlighted text.

    Args:
        explanation: What `mhex.explain` returned.
        samples: Which samples to draw; None for the first ones, with a sentence in the figure on those left out.
        targets: Which of several targets to draw; None for the first ones.
    """
    draw = text_figure if explanation.modality == "text" else image_figure
    return draw(explanation, samples, targets)


def save_figure(drawing: Explanation | Sequence[Explanation] | Figure, path: str | PathLike[str]) -> Path:
    """Draw into a file; its suffix (`.png`, `.jpg`, `.pdf`, `.svg`, `.webp`) says how.

    Args:
        drawing: An explanation, several of the same input to be compared, or a figure.
        path: Where to write; the folder must exist.

    Raises:
        ArgumentError: If the suffix is unknown or the file cannot be written.
    """
    path = Path(path)
    kind = _KINDS.get(path.suffix.lower())
    if kind is None:
        raise ArgumentError(f"Expected a picture ending in {', '.join(_KINDS)}, but got {path.name!r}.")
    _check_folder(path)
    if isinstance(drawing, Explanation):
        drawing = figure(drawing)
    elif not isinstance(drawing, Figure):
        drawing = comparison(drawing)
    write_bytes(render(drawing, kind), path)
    return path


def save_html(explanation: Explanation | Sequence[Explanation], path: str | PathLike[str]) -> Path:
    """Write a complete HTML page that shows an explanation, or compares several of the same input.

    Args:
        explanation: One, or several of the same input.
        path: Where to write; the folder must exist.

    Raises:
        ArgumentError: If the file cannot be written.
    """
    path = Path(path)
    _check_folder(path)
    several = [explanation] if isinstance(explanation, Explanation) else list(explanation)
    title = "Explained by " + ", ".join(dict.fromkeys(e.method for e in several))
    text = page(title, "", [Section("Scores", to_html(explanation))])
    write_text(text, path)
    return path


def _check_folder(path: Path) -> None:
    """Refuse a missing folder before the work of drawing."""
    if not path.parent.is_dir():
        raise ArgumentError(f"Expected a file in an existing folder, but there is no folder {path.parent}; create it.")
