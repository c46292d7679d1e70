"""The section of a recipe about learning without labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mhex._schema import setting


@dataclass(frozen=True)
class UnlabelledPart:
    """Contrastive learning without labels (SimCLR, Chen et al. 2020).

    Two views of an image should be nearer to each other than to the views of all other images of the batch. They are
    compared behind a projector that is thrown away at the end.

    Attributes:
        method: `simclr`.
        hidden: Width of the projector's hidden layer.
        width: Width of its output, where views are compared by their cosine.
        temperature: Divides the cosines; a lower one looks at the most similar images alone.
    """

    method: Literal["simclr"] = "simclr"
    hidden: int = setting(1024, low=1)
    width: int = setting(128, low=2)
    temperature: float = setting(0.2, above=0)
