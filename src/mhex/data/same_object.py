"""Which classes have names that mean the same object, such as sunglass and sunglasses."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from mhex.errors import ArgumentError

Embed = Callable[[Sequence[str]], Tensor]


def same_object(names: Sequence[str], threshold: float = 0.75, embed: Embed | None = None) -> Tensor:
    """Compare the names of classes.

    Two classes are the same object if the cosine similarity of a name of one to a name of the other is above the
    threshold. Names are compared by their groups of three letters unless vectors are given: that finds sunglass and
    sunglasses, and not screen and monitor, for which the vectors of a language model are needed.

    Args:
        names: Of C classes, several names of one with commas between.
        threshold: In 0..1.
        embed: From M names to vectors (M, D).

    Returns:
        (C, C), bool; a class is the same as itself.

    Raises:
        ArgumentError: The threshold is not in 0..1, or ``embed`` gives other than a vector for each name.
    """
    if not 0 <= threshold <= 1:
        raise ArgumentError(f"threshold should lie in 0..1, not be {threshold}.")
    pairs = [(place, one.strip()) for place, several in enumerate(names) for one in several.split(",") if one.strip()]
    single = [name for _, name in pairs]
    vectors = (letters if embed is None else embed)(single)
    if vectors.dim() != 2 or len(vectors) != len(single):
        raise ArgumentError(f"embed should give a vector for each of {len(single)} names, not {tuple(vectors.shape)}.")
    unit = torch.nn.functional.normalize(vectors.float(), dim=1)
    alike = unit @ unit.T > threshold
    owner = torch.nn.functional.one_hot(torch.tensor([place for place, _ in pairs]), len(names)).float()
    return (owner.T @ alike.float() @ owner > 0) | torch.eye(len(names), dtype=torch.bool)


def letters(names: Sequence[str]) -> Tensor:
    """How often each group of three letters is in each name, (M, D); names begin and end with a space."""
    groups = [[f" {name.lower()} "[k : k + 3] for k in range(len(name))] for name in names]
    places = {group: place for place, group in enumerate(dict.fromkeys(one for row in groups for one in row))}
    counts = torch.zeros(len(names), len(places))
    for row, own in enumerate(groups):
        for group in own:
            counts[row, places[group]] += 1
    return counts
