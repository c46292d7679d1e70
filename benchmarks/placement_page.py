"""The page that heads_placement.py writes."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from mhex.judge.report import versions
from placement_studies import BASE, FITTED, OTHERS, PLACEMENTS, PLAIN_NAME, RECIPE, Budget
from study_page import Interval, interval_of, table

NAMES = {
    "soft-average-drop:mhex": "SAD",
    "average-drop:mhex": "AVG Drop",
    "effective-average-drop:mhex": "EAD",
}
EAD = "effective-average-drop:mhex"
OWN, TABLE3, CAM = "mhex", "mhex (preset=table3)", "gradcam"
Rows = Sequence[Mapping[str, Any]]


def values_of(rows: Rows, variant: str, method: str, metric: str) -> Tensor:
    """Numbers of each image, mean over seeds, (n,)."""
    return torch.tensor([row["maps"][method][metric] for row in rows if row["variant"] == variant]).double().mean(0)


def less(rows: Rows, variant: str, base: str, method: str, metric: str) -> Interval:
    """A variant less the base on the same images."""
    return interval_of(values_of(rows, variant, method, metric) - values_of(rows, base, method, metric))


def page(told: Sequence[Mapping[str, Any]], budget: Budget) -> str:
    """The page of results.

    Args:
        told: What each finished run wrote.
        budget: Of the runs.
    """
    rows = [row for one in told for row in one["rows"]]
    trained = [row for row in rows if row["kind"] == "trained" and "maps" in row]
    fitted = [row for row in rows if row["kind"] == "fitted"]
    plain = [row["accuracy"] for row in rows if row["variant"] == PLAIN_NAME]
    tools = " · ".join(f"{name} {version}" for name, version in versions().items())
    smaller = f" --learn {budget.limit}" if budget.limit else ""
    seeds = ", ".join(map(str, budget.seeds))
    parts = [
        "# Placement, gates and losses of heads",
        f"Blood cells, the narrow ResNet-18 of recipe `{RECIPE}`, {budget.epochs} epochs each, one thing changed at a "
        "time from *all blocks*, gates `paper`, loss `finetune` with the classifier. Accuracy is of the whole "
        "validation split, by what the model answers with; nothing was chosen by that split. Maps are of the label, "
        f"by method `mhex` (library settings; `table3` are the published ones), on {budget.images} validation images, "
        "judged by `zoo:blood-resnet34` with the published thresholds (removed above 0.5, area above 0.2).",
        f"Made by `python benchmarks/heads_placement.py --images {budget.images} --epochs {budget.epochs} --seeds "
        f"{len(budget.seeds)}{smaller}`: {len(told)} runs, seeds {seeds}; on {told[0]['device']}; {tools}. Numbers "
        "are means over seeds with 95 % intervals by bootstrap over images; in brackets after the accuracies, each "
        "seed. *Less* columns are pairs on the same images.",
        "## Trained heads: placement",
        _table(trained, list(PLACEMENTS), plain),
        "## Trained heads: gates and losses",
        _table(trained, [BASE, *OTHERS], []),
        "## Closed-form heads on the plain network",
        "The plain network answers, and none of its answers changes.",
        _table(fitted, list(FITTED), []),
        "## Accuracy of each head",
        _heads(trained, fitted),
        "## Reading",
        reading(trained, "trained", [*PLACEMENTS, *OTHERS]),
        reading(fitted, "closed-form", list(FITTED)),
        "Two seeds say little about how much training itself scatters: intervals hold that of images alone, and are "
        "not corrected for their number.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _table(rows: Rows, variants: Sequence[str], plain: Sequence[float]) -> str:
    there = [name for name in variants if any(row["variant"] == name for row in rows)]
    lines = []
    for name in there:
        shares = [row["accuracy"] for row in rows if row["variant"] == name]
        cells: list[Any] = [name, _accuracy(shares)]
        cells += [interval_of(values_of(rows, name, OWN, metric)) for metric in NAMES]
        cells += [interval_of(values_of(rows, name, TABLE3, metric)) for metric in (EAD,)]
        known = name != BASE and BASE in there
        cells += [less(rows, name, BASE, OWN, m) if known else "" for m in ("soft-average-drop:mhex", EAD)]
        lines.append(cells)
    if BASE in there:
        seen = [interval_of(values_of(rows, BASE, CAM, metric)) for metric in NAMES]
        lines.append([f"Grad-CAM on the network of *{BASE}*", "", *seen, *[""] * 3])
    if plain:
        lines.append(["plain network, without heads", _accuracy(plain), *[""] * 6])
    names = list(NAMES.values())
    return table(["variant", "accuracy %", *names, "EAD, `table3`", "SAD less base", "EAD less base"], lines)


def _accuracy(shares: Sequence[float]) -> str:
    return f"{100 * statistics.mean(shares):.2f} ({', '.join(f'{100 * one:.2f}' for one in shares)})"


def _heads(trained: Rows, fitted: Rows) -> str:
    lines = []
    for kind, rows in (("trained", trained), ("closed form", fitted)):
        for name in dict.fromkeys(row["variant"] for row in rows):
            group = [row["heads"] for row in rows if row["variant"] == name]
            means = [statistics.mean(one) for one in zip(*group, strict=True)]
            lines.append([kind, name, ", ".join(f"{100 * one:.1f}" for one in means)])
    return table(["heads", "variant", "% right, first to last, mean over seeds"], lines)


def reading(rows: Rows, kind: str, variants: Sequence[str]) -> str:
    """Which variants differ from the base by SAD, average drop and EAD, in words."""
    there = [name for name in variants if name != BASE and any(row["variant"] == name for row in rows)]
    if not there or not any(row["variant"] == BASE for row in rows):
        return ""
    lines = []
    for metric, words in NAMES.items():
        found = {name: less(rows, name, BASE, OWN, metric) for name in there}
        higher = [f"{name} ({one.mean:+.3f})" for name, one in found.items() if one.above]
        lower = [f"{name} ({one.mean:+.3f})" for name, one in found.items() if one.below]
        lines.append(
            f"- {words} of {kind} heads beside *{BASE}*: higher for {'; '.join(higher) or 'none'}. Lower for "
            f"{'; '.join(lower) or 'none'}. The others are not told apart on these images."
        )
    return "\n".join(lines)
