"""Colours: from scores in [-1, 1] to paint, over a photo or behind a word."""

import matplotlib
import numpy as np
from matplotlib.colors import to_hex, to_rgb
from numpy.typing import NDArray

INK = "#1c1c1c"
MUTED = "#6b6b6b"
# Stands for a photo: below legends, and below maps whose photo is not known.
GREY = 215

Pixels = NDArray[np.uint8]
Scores = NDArray[np.float32]

# The ends of the maps are cut: near-black and near-white look like parts of the photo, or hide the ink of a word.
_ON_PHOTO = {False: ("inferno", 0.25, 0.92), True: ("RdBu_r", 0.06, 0.94)}
_BEHIND_TEXT = {False: ("Oranges", 0.0, 0.85), True: ("RdBu_r", 0.12, 0.88)}
_STRONGEST = 0.82
# Of pure black and pure white, one has a contrast of at least 4.5 on any colour.
_INKS = ("#000000", "#ffffff")
_LUMA = np.array([0.2126, 0.7152, 0.0722], np.float32)


def _paint(scores: Scores, signed: bool, table: dict[bool, tuple[str, float, float]]) -> NDArray[np.float32]:
    """Colours (..., 3) in [0, 1] of scores (...); zero is the middle of a signed map, the low end of the other."""
    name, low, high = table[signed]
    place = np.clip((scores + 1) / 2 if signed else scores, 0, 1, dtype=np.float64)
    colours = matplotlib.colormaps[name](low + (high - low) * place)
    return np.asarray(colours, np.float32)[..., :3]


def blend(photo: Pixels, scores: Scores, signed: bool) -> Pixels:
    """Lay a heat map over a photo (H, W, 3); the stronger the score, the less of the photo shows through.

    Args:
        photo: Where the score is zero, it is left, with paler colours.
        scores: (H, W), in [0, 1], or in [-1, 1] if signed.
        signed: Whether negative scores speak against the target.
    """
    base = photo.astype(np.float32) / 255
    # The photo's own colours are held back, or a red cat would read as a hot one.
    grey = (base @ _LUMA)[..., None]
    base = 0.35 * base + 0.65 * grey
    if not signed:
        # Strong scores glow: on a dimmed photo they are the brightest parts, in print without colours too.
        base = 0.78 * base
    opacity = _STRONGEST * np.abs(np.clip(scores, -1, 1))[..., None] ** 0.8
    mixed = (1 - opacity) * base + opacity * _paint(scores, signed, _ON_PHOTO)
    return np.asarray(np.rint(255 * mixed), np.uint8)


def colour_bar(signed: bool, text: bool, steps: int = 128) -> Pixels:
    """A colour bar (1, steps, 3): the colours behind words, or as they look on a light grey photo."""
    scores = np.linspace(-1 if signed else 0, 1, steps, dtype=np.float32)[None]
    if text:
        return np.asarray(np.rint(255 * _paint(scores, signed, _BEHIND_TEXT)), np.uint8)
    return blend(np.full((1, steps, 3), GREY, np.uint8), scores, signed)


def text_colours(strength: float, signed: bool) -> tuple[str, str]:
    """Background and ink for a word of a score in [-1, 1]: of black and white, the ink is the one that reads better."""
    background = to_hex(_paint(np.asarray(strength, np.float32), signed, _BEHIND_TEXT))
    return background, max(_INKS, key=lambda ink: contrast(background, ink))


def contrast(first: str, second: str) -> float:
    """Contrast ratio of two colours `#rrggbb` by the WCAG formula, from 1 to 21."""
    channels = np.array([to_rgb(first), to_rgb(second)])
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    dark, light = sorted((linear @ _LUMA).tolist())
    return float((light + 0.05) / (dark + 0.05))
