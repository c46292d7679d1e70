"""Text of strangers inside HTML and SVG."""

import html
import re

# Control signs (a terminal obeys them), signs that turn the direction of writing (a name then reads as another), line
# separators and tags that are not seen, and halves of pairs, which no stream takes. Line breaks and tabs stay, and so
# do the joiners of Persian words and of emoji.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\U000e0000-\U000e007f]"
)


def printable(text: object) -> str:
    r"""Text that any stream and file takes and no terminal obeys: `\x1b` is printed as these four signs.

    Bytes of a file name that are no letters become question marks.
    """
    readable = str(text).encode("utf-8", "replace").decode("utf-8")
    return _UNSAFE.sub(lambda sign: sign[0].encode("unicode_escape").decode("ascii"), readable)


def one_line(text: object) -> str:
    """Printable text without line breaks and tabs: white space becomes one space."""
    return printable(" ".join(str(text).split()))


def escaped(text: str) -> str:
    """The text with nothing in it that a browser takes for markup, obeys, or turns around."""
    return html.escape(printable(text))
