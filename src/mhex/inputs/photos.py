"""A photo as people see it: upright, in RGB, and with 8 bits, whatever the depth of its file."""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mhex.errors import ArgumentError, warn

if TYPE_CHECKING:
    from PIL.Image import Image

Window = tuple[float, float]
# What PIL raises while it reads a damaged file, beside its own errors of huge pictures.
BROKEN = (
    *(OSError, SyntaxError, ValueError, EOFError, TypeError, LookupError, OverflowError, RuntimeError),
    *(MemoryError, struct.error, zlib.error),
)
LARGEST = 640  # pixels of the longer side of a photo in pictures and files of explanations
MOST_PIXELS = 178_956_970  # PIL's own limit: half a gigabyte of RGB
_USUAL, _DENSEST = 4_000_000, 20_000  # pixels of any file, and pixels for each byte of a larger one
_DEEP = ("I", "F")  # how PIL's modes of grey values with more than 8 bits begin
_SIXTEEN: Window = (0.0, 65535.0)
_BITS, _WHITE_IS_ZERO, _MIN, _MAX, _SIGNED_MIN, _SIGNED_MAX = 258, 262, 280, 281, 340, 341  # tags of TIFF
_FORMAT, _UNSIGNED, _SIGNED = 339, 1, 2  # the tag of TIFF for the type of numbers, and two of its values
_LITTLE = 0.1  # share of the pixels between black and white below which a window is warned of
_SLIVER = 64  # a photo whose values are a smaller part of a window than 1/64 looks all the same
_CHUNKS = 1000  # of a PNG file are looked at, at most


class UnknownWindowError(ArgumentError):
    """Photos of these names, with values from `low` to `high`, do not say which are black and white."""

    def __init__(self, names: Sequence[str], low: float, high: float) -> None:
        self.names, self.low, self.high = tuple(names), low, high
        several = len(self.names) > 1
        photos = f"{names[0]} and {len(names) - 1} more" if several else names[0]
        super().__init__(
            f"{photos} {'hold' if several else 'holds'} grey values from {low:.6g} to {high:.6g} and "
            f"{'do' if several else 'does'} not say which values are black and white; {window_hint(low, high)}."
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """The arguments that make it again: workers hand errors on by pickling them."""
        return type(self), (self.names, self.low, self.high)

    @classmethod
    def joined(cls, errors: Sequence[UnknownWindowError]) -> UnknownWindowError:
        """One error about all photos of several, with the range over all."""
        names = [name for error in errors for name in error.names]
        return cls(names, min(error.low for error in errors), max(error.high for error in errors))


def is_photo(value: Any) -> bool:
    """True of a PIL image, which is told by its class so that PIL is not imported for users of tensors."""
    return any(c.__module__ == "PIL.Image" and c.__name__ == "Image" for c in type(value).__mro__)


def is_deep(photo: Image) -> bool:
    """Whether a photo has grey values of more than 8 bits."""
    return photo.mode.startswith(_DEEP)


def claims_too_much(photo: Image, size: int) -> bool:
    """Whether a photo that is not read yet claims more pixels than anybody has, or than its file of `size` bytes."""
    return photo.width * photo.height > min(MOST_PIXELS, max(_USUAL, _DENSEST * size))


def check_window(window: Any) -> Window | None:
    """A range of two finite numbers, of which the first becomes black and the larger one white; None stays None."""
    if window is None:
        return None
    ends = list(window) if isinstance(window, (tuple, list)) else []
    if len(ends) == 2 and not any(isinstance(end, bool) or not isinstance(end, (int, float)) for end in ends):
        low, high = map(float, ends)
        if math.isfinite(low) and math.isfinite(high) and low < high:
            return low, high
    hint = " The size of occlusion's patches is patch=." if isinstance(window, int) else ""
    raise ArgumentError(
        "Expected window= to be two numbers, the value that is black and a larger one that is white, such as "
        f"(0, 4095), but got {window!r}.{hint}"
    )


def upright_rgb(photo: Image, window: Window | None = None, name: str = "The photo") -> Image:
    """The photo, of any mode, turned by its EXIF orientation, in 8-bit RGB, transparency over white.

    The window has the values that become black and white, and those outside are clipped; None for what the mode says,
    or the file, if the photo is not decoded yet. Without a known range, or with one that does not fit, it is refused.
    """
    from PIL import ImageOps

    depth = _depth(photo)  # before the photo is decoded
    return _rgb(ImageOps.exif_transpose(photo), depth, window, name)


def plain_rgb(photo: Image, window: Window | None = None, name: str = "The photo") -> Image:
    """The same without turning it and without transparency, as published collections are read."""
    return _rgb(photo, _depth(photo), window, name, transparency=False)


def scaled(values: Any, window: Window) -> Any:
    """Values of an array or tensor from 0 to 1: the range's ends become 0 and 1, and what is outside is clipped."""
    low, high = window
    return ((values - low) / (high - low)).clip(0, 1)


def drawn_photo(picture: Any) -> Image:
    """A photo, or an image tensor (C, H, W), in RGB and at most `LARGEST` pixels wide and high, as pictures show it."""
    # How a tensor was normalised is not known, so it is stretched from black to white.
    from PIL import Image

    if isinstance(picture, Image.Image):
        photo = picture.convert("RGB")
    else:
        x = picture.detach().float().cpu()
        x = x if x.shape[0] == 3 else x.mean(0, keepdim=True).expand(3, -1, -1)
        span = x.amax() - x.amin()
        x = (x - x.amin()) / span if span > 0 else x.new_full(x.shape, 0.5)
        photo = Image.fromarray((255 * x).round().byte().permute(1, 2, 0).contiguous().numpy())
    width, height = (max(1, round(side * LARGEST / max(photo.size))) for side in photo.size)
    return photo if max(photo.size) <= LARGEST else photo.resize((width, height), Image.Resampling.LANCZOS)


@dataclass(frozen=True)
class _Depth:
    """What a file says of its values; decoding forgets most of it."""

    sixteen: bool = False  # samples are whole numbers from 0 to 65535 by their type
    significant: int | None = None  # PNG: how many bits are significant
    stated: Window | None = None  # TIFF and PGM: values that are black and white
    inverted: bool = False  # TIFF: black and white change places
    narrowed: bool = False  # PIL reads the upper 8 bits of colours of 16
    numbers: int = 0  # TIFF: the type of numbers that PIL takes for another one, for negative or large ones


def _depth(photo: Any) -> _Depth:
    deep, kind = photo.mode.startswith(_DEEP), getattr(photo, "format", None)
    sixteen = photo.mode.startswith("I;16")
    undecoded = getattr(photo, "tile", None) or [("", None, 0, "")]
    raw = undecoded[0][3]
    if kind == "PNG":
        file = getattr(photo, "fp", None)
        significant = _significant_bits(file) if deep and file is not None else None
        return _Depth(sixteen or deep, significant, narrowed=not deep and ";16" in str(raw))
    if kind == "TIFF":
        tags = photo.tag_v2
        bits = max(tags.get(_BITS, (1,)))
        inverted = deep and tags.get(_WHITE_IS_ZERO) == 0
        narrowed, numbers = not deep and bits > 8, max(tags.get(_FORMAT, (_UNSIGNED,)))
        numbers = numbers if (bits, numbers) in ((8, _SIGNED), (32, _UNSIGNED)) else 0
        return _Depth(sixteen, stated=_tiff_range(tags, bits), inverted=inverted, narrowed=narrowed, numbers=numbers)
    if kind == "PPM" and deep:
        # PIL scales to 16 bits unless the file says that they are 16 bits already, as it does of many that are not.
        return _Depth(True, stated=_SIXTEEN if isinstance(raw, tuple) and raw[-1] != 65535 else None)
    return _Depth(sixteen)


def _significant_bits(file: Any) -> int | None:
    """The first entry of the chunk sBIT of a PNG file, which PIL passes over; the file is left where it was."""
    place = file.tell()
    try:
        file.seek(8)
        for _ in range(_CHUNKS):
            head = file.read(8)
            if len(head) < 8 or head[4:] == b"IDAT":
                return None
            if head[4:] == b"sBIT":
                bits = file.read(1)
                return bits[0] if bits and 1 <= bits[0] <= 16 else None
            file.seek(struct.unpack(">I", head[:4])[0] + 4, 1)
        return None
    finally:
        file.seek(place)


def _tiff_range(tags: Any, bits: int) -> Window | None:
    """The range that a TIFF file states: by a depth that is no whole byte, or a largest value of a smaller depth."""
    # Writers also put the largest value of the picture itself there, so other numbers than 2 ** n - 1 state nothing.
    if 8 < bits < 16:
        return 0.0, 2.0**bits - 1
    ends = [tags.get(unsigned, tags.get(signed)) for unsigned, signed in ((_MIN, _SIGNED_MIN), (_MAX, _SIGNED_MAX))]
    low, high = (end[0] if isinstance(end, tuple) else end for end in ends)
    if high is None or low not in (None, 0) or not 255 <= high < min(2.0**bits, 2.0**31) - 1:
        return None
    return (0.0, float(high)) if math.log2(high + 1).is_integer() else None


def _rgb(photo: Image, depth: _Depth, window: Window | None, name: str, transparency: bool = True) -> Image:
    from PIL import Image

    if photo.mode.startswith(_DEEP):
        return _grey(photo, depth, window, name).convert("RGB")
    if depth.numbers == _SIGNED:
        raise ArgumentError(f"{name} has signed values of 8 bits; save it with values from 0 to 255.")
    if transparency and photo.has_transparency_data:
        clear = photo.convert("RGBA")
        colours = Image.alpha_composite(Image.new("RGBA", clear.size, "white"), clear).convert("RGB")
    else:
        colours = photo.convert("RGB")
    if window is not None and not depth.narrowed:
        return _stretched(colours, window, name)
    if depth.narrowed and window != _SIXTEEN:  # PIL gives the upper 8 of 16 bits, which may not be the used ones
        top = max(int(high) for _, high in photo.convert("RGB").getextrema())  # type: ignore[misc]  # of three bands
        if window is not None or top < 128:
            raise ArgumentError(
                f"{name} has colours of 16 bits, of which the upper 8 are read, up to {top} of 255 here; give "
                "window=(0, 65535), or save it with 8 bits for each colour, in the range that is to be seen."
            )
    return colours


def _grey(photo: Image, depth: _Depth, window: Window | None, name: str) -> Image:
    """Grey photos of more than 8 bits: PIL would cut them off at 255 and show white."""
    import numpy as np
    from PIL import Image

    values = np.asarray(photo, dtype=np.float64)
    if depth.numbers == _UNSIGNED:
        values = values % 2.0**32  # PIL reads them as signed
    if not np.isfinite(values).all():
        raise ArgumentError(f"{name} holds values that are not finite; save it with numbers in their place.")
    low, high = float(values.min()), float(values.max())
    ends = window or _known_range(values, photo.mode, depth)
    if ends is None:
        raise UnknownWindowError([name], low, high)
    light = scaled(values, ends)
    if window is not None:
        check_fit(values, light, window, name)
    return Image.fromarray(np.rint(255 * (1 - light if depth.inverted else light)).astype(np.uint8))


def check_fit(values: Any, light: Any, window: Window, name: str) -> None:
    """Refuse a window with no value of an image in it; warn of one that is far too narrow or far too wide.

    Values are an array of any shape, and `light` is what they become, from 0 to 1.
    """
    low, high = float(values.min()), float(values.max())
    text = f"{name} holds values from {low:g} to {high:g}"
    clipping = f"window=({window[0]:g}, {window[1]:g})"
    if high < window[0] or low > window[1]:
        raise ArgumentError(f"{text}, all of them outside of {clipping}; give a window that fits.")
    inside = float(((light > 0) & (light < 1)).mean())
    if inside < _LITTLE and high > low:
        warn(f"{text}, and only {inside:.0%} of its pixels are within {clipping}: the others are black or white.")
    elif 0 < high - low < (window[1] - window[0]) / _SLIVER:
        warn(f"{text}, which are less than 1/{_SLIVER} of {clipping}: all of its pixels look nearly the same.")


def window_hint(low: float, high: float) -> str:
    """What to do about values from `low` to `high` whose black and white are not known."""
    counts = low >= 0 and low.is_integer() and high.is_integer()
    bits = next((bits for bits in (8, 10, 12, 14, 16) if counts and high < 2**bits), None)
    if bits is None:
        ends = math.floor(low), math.ceil(high) if high > low else math.floor(low) + 1
        return f"say which, such as window={ends} for these (in a command, --window={ends[0]},{ends[1]})"
    top = 2**bits - 1
    dark = "" if bits == 16 else ", or window=(0, 65535) if it is a dark one of 16 bits"
    return f"for {bits} bits say window=(0, {top}) (in a command, --window=0,{top}){dark}"


def _known_range(values: Any, mode: str, depth: _Depth) -> Window | None:
    """Values that are black and white, as the file says or as their type and size leave no doubt; None if they do."""
    low, high = float(values.min()), float(values.max())
    if depth.stated is not None and depth.stated[0] <= low and high <= depth.stated[1]:
        return depth.stated
    if mode.startswith("F"):
        return (0.0, 1.0) if low >= 0 and high <= 1 else None
    if depth.significant is not None:
        step = 2 ** (16 - depth.significant)
        # The standard wants values scaled to all 16 bits. Numbers between the steps of such values are not scaled.
        between = bool((abs(values - (values / step).round() * step) > 1).any())
        return (0.0, 2.0**depth.significant - 1) if between and high < 2**depth.significant else _SIXTEEN
    return _SIXTEEN if depth.sixteen and high >= 2**15 else None


def _stretched(colours: Image, window: Window, name: str) -> Image:
    import numpy as np

    low, high = window
    if low < 0 or high > 255:
        raise ArgumentError(f"{name} has 8 bits, and window=({low:g}, {high:g}) goes beyond 0 to 255; leave it out.")
    light, values = scaled(np.arange(256.0), window), np.asarray(colours)
    check_fit(values, light[values], window, name)
    return colours.point(3 * np.rint(255 * light).astype(int).tolist())
