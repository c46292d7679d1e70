"""Comparisons by names."""

from __future__ import annotations

from mhex.errors import ArgumentError, unknown_name
from mhex.metrics.comparison import Paired


class Pairs(dict[tuple[str, str], Paired]):
    """Comparisons by the names of two methods; asked for in the other order, a pair is turned round."""

    def __missing__(self, pair: tuple[str, str]) -> Paired:
        names = dict.fromkeys(name for known in self for name in known)
        if not isinstance(pair, tuple) or len(pair) != 2 or pair[0] == pair[1]:
            raise ArgumentError(f"Expected the names of two methods, but got {pair!r}.")
        for name in pair:
            if name not in names:
                raise unknown_name("method", name, names)
        return self[pair[1], pair[0]].reversed
