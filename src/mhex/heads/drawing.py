"""Pictures of results, written where the user wants them."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Any

from mhex.errors import ArgumentError


def save_drawing(draw: Callable[[], Any], path: str | PathLike[str]) -> Path:
    """Draw into a file, in a folder that is made where there is none.

    Args:
        draw: Gives a matplotlib figure.
        path: Where to write; its suffix says how.

    Raises:
        ArgumentError: The folder cannot be made, the suffix is unknown, or the file cannot be written.
    """
    from mhex.viz import save_figure

    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArgumentError(
            f"Expected a path in a folder that can be made, but {path.parent} cannot: {error.strerror or error}; "
            "choose another path."
        ) from error
    return save_figure(draw(), path)
