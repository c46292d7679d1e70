"""Text of strangers inside HTML and SVG."""

from __future__ import annotations

import html

from mhex._printable import printable


def escaped(text: str) -> str:
    """The text with nothing in it that a browser takes for markup, obeys, or turns around."""
    return html.escape(printable(text))
