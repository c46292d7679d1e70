"""The page of which method serves which model, from what the tests saw."""

from __future__ import annotations

from typing import Any

from mhex.methods import all_methods


def support_page(seen: dict[str, dict[str, Any]]) -> str:
    """The Markdown page of what serves which model, as the tests saw it."""
    groups = _groups()
    rows = [f"| model | {' | '.join(groups)} |", "|---|" + "---|" * len(groups)]
    for name, found in seen.items():
        cells = [_served(methods, set(found["serves"])) for methods in groups.values()]
        rows.append(f"| {name} | {' | '.join(cells)} |")
    reasons: dict[str, dict[str, list[str]]] = {}
    for name, found in seen.items():
        told = {**found["refuses"], **{f"in bfloat16: {why}": names for why, names in found["bfloat16"].items()}}
        for why, names in told.items():
            reasons.setdefault(why, {}).setdefault(", ".join(names), []).append(name)
    lines = []
    for why, by_methods in sorted(reasons.items()):
        lines.append(f"- {why}")
        lines += [f"  - {methods}: {', '.join(models)}" for methods, models in by_methods.items()]
    listed = "\n".join(f"- {group}: {', '.join(methods)}" for group, methods in groups.items())
    return f"""# Which method serves which model

Generated from what the tests see: `tests/integration/families/test_stock_models.py` explains {len(seen)} small models
with random weights, one for each family, by every method: alone and in a batch of three, in float32 and in bfloat16.
A method either explains a model or refuses it in a sentence. A model of another family is looked at in a pass, as
those are here that mhex has no adapter for; what it shows decides.

{listed}

`mhex` serves every model that carries heads ([Heads](heads.md)). Models that are no classifiers, TorchScript and int8:
[Inputs, targets and results](explain.md#models-that-are-no-classifiers).

## In float32

{chr(10).join(rows)}

## Why not

{chr(10).join(lines)}
"""


def _groups() -> dict[str, list[str]]:
    """Methods by what they read."""
    groups: dict[str, list[str]] = {"inputs and scores": [], "feature maps": [], "blocks": [], "every operation": []}
    for method in all_methods().values():
        if "heads" in method.needs.keep:
            continue
        kind = "feature maps" if "features" in method.needs.keep else "blocks" if method.needs.blocks else ""
        groups["every operation" if method.rules is not None else kind or "inputs and scores"].append(method.name)
    return groups


def _served(methods: list[str], serves: set[str]) -> str:
    """How many of some methods serve a model, in few words."""
    able, unable = ([m for m in methods if (m in serves) is yes] for yes in (True, False))
    if not able or not unable:
        return "none" if not able else "all"
    return f"all but {', '.join(unable)}" if len(unable) <= len(able) else f"only {', '.join(able)}"
