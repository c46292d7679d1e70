"""Which residual connections of a model get heads."""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection, Mapping, Sequence

from mhex.capture.junctions import Junction
from mhex.errors import ArgumentError, ArgumentTypeError, MhexWarning, some_of, unknown_name

_PLACEMENTS = ("all", "downsample", "projection", "attention+mlp", "first3")


def placed(found: list[Junction], where: str | Sequence[str], left_out: Mapping[str, str]) -> list[Junction]:
    """The junctions of a placement."""
    main = [j for j in found if j.kind == "map" or j.last]
    if not isinstance(where, str):
        if not isinstance(where, Collection) or isinstance(where, (Mapping, bytes)):
            raise ArgumentTypeError(
                f"Expected where to be one of {', '.join(map(repr, _PLACEMENTS))}, or a list of names of residual "
                f"connections, but got {where!r}."
            )
        return named(found, where, left_out)
    if left_out:
        reasons = some_of([f"{name}: {why}" for name, why in left_out.items()], between="; ")
        warnings.warn(f"Some units get no head. {reasons}.", MhexWarning, stacklevel=3)
    if where == "all":
        return main
    if where == "attention+mlp":
        chosen = [j for j in found if j.kind == "token"]
    elif where == "downsample":
        chosen = [j for j in main if j.meeting.strided]
    elif where == "projection":
        chosen = [j for j in main if j.meeting.projection]
    elif number := re.fullmatch(r"first(\d+)", where):
        chosen = main[: (count := int(number.group(1)))]
        if count > len(main):
            warnings.warn(
                f"where={where!r} asks for {count} residual connections, but the model has {len(main)}: all of them "
                "get a head.",
                MhexWarning,
                stacklevel=3,
            )
    elif where in {j.name for j in found} or where in left_out:
        raise ArgumentError(f"Expected names of residual connections in a list: where=[{where!r}], not {where!r}.")
    else:
        raise unknown_name("placement", where, _PLACEMENTS)
    if not chosen:
        known = some_of([j.name for j in main])
        raise ArgumentError(
            f"No residual connection of the model fits where={where!r}. There are: {known}. Use 'all', 'first3' or a "
            "list of these names."
        )
    return chosen


def named(found: list[Junction], names: Collection[str], left_out: Mapping[str, str]) -> list[Junction]:
    """The junctions with these names, in the order of the model."""
    by_name = {j.name: j for j in found}
    if not names:
        raise ArgumentError(f"Expected at least one name in where=, out of: {some_of(list(by_name))}.")
    for name in names:
        if name not in by_name and name in left_out:
            raise ArgumentError(f"No head can be placed on {name}: {left_out[name]}.")
        if name not in by_name:
            raise unknown_name("residual connection", str(name), by_name)
    return [j for j in found if j.name in set(names)]
