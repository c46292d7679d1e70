"""Methods and metrics by the names that a report has."""

from __future__ import annotations

from collections.abc import Iterable

from mhex.errors import ArgumentError, unknown_name
from mhex.metrics.comparison import Paired


class Pairs(dict[tuple[str, str], Paired]):
    """Comparisons by the names of two methods; asked for in the other order, a pair is turned round."""

    def __missing__(self, pair: tuple[str, str]) -> Paired:
        names = dict.fromkeys(name for known in self for name in known)
        if not isinstance(pair, tuple) or len(pair) != 2 or pair[0] == pair[1]:
            raise ArgumentError(f"Expected the names of two methods, but got {pair!r}.")
        check_names("method", pair, names)
        return self[pair[1], pair[0]].reversed


def check_names(kind: str, names: Iterable[str], known: Iterable[str]) -> None:
    """Refuse names that are not known, and those that come twice."""
    names, known = list(names), list(known)
    for name in names:
        if name not in known:
            raise unknown_name(kind, name, known)
        if names.count(name) > 1:
            raise ArgumentError(f"Expected each {kind} once, but got {name!r} twice.")
