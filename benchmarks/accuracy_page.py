"""The page that mhex_accuracy.py writes."""

from __future__ import annotations

import statistics
from typing import Any

from accuracy_studies import CLOSED, HEADS, STUDIES, recipe_of


def page(rows: list[dict[str, Any]]) -> str:
    """The page of results."""
    lines = [
        "# Accuracy with and without heads",
        "",
        "Made by `python benchmarks/mhex_accuracy.py`; the rows of all runs are in "
        "[mhex-accuracy.json](mhex-accuracy.json). Seconds are of one run among several that shared one GPU, so "
        "they say little; those of closed-form heads are of the fit alone, which takes 1 to 3 s where it has the GPU "
        "for itself ([head-maps](head-maps.md)).",
        "",
    ]
    for name, study in STUDIES.items():
        mine = [row for row in rows if row["data"] == name]
        if not mine:
            continue
        recipe = recipe_of(study, "plain", 1)
        lines += [
            f"## {study.title}",
            "",
            f"Test split; {recipe.training.epochs} epochs for every variant, the same data order and changes for the "
            f"same seed; gates start as preset `{study.preset}`; mean and standard deviation over seeds.",
            "",
            "| variant | predicts | seeds | test accuracy % | seconds |",
            "|---|---|---|---|---|",
        ]
        order = (*study.variants, CLOSED)
        for variant in order:
            group = [row for row in mine if row["variant"] == variant]
            if group:
                lines += _rows(variant, group)
        mine.sort(key=lambda row: order.index(row["variant"]))
        lines += ["", *_per_block("Accuracy % of each head, first block to last", mine, "heads", 100), ""]
        lines += [*_per_block("Mean gate of each block", mine, "gates", 1), ""]
    return "\n".join(lines).rstrip() + "\n"


def _rows(variant: str, group: list[dict[str, Any]]) -> list[str]:
    """Lines of the table; heads in closed form leave the answers to the classifier, and could give their own."""
    answers = {_predicts(variant): [row["accuracy"] for row in group]}
    if variant == CLOSED:
        answers["last head"] = [row["heads"][-1] for row in group]
    seconds = statistics.mean(row.get("fit_seconds", row["seconds"]) for row in group)
    return [
        f"| {variant} | {said} | {len(group)} | {_spread([100 * share for share in shares])} | {seconds:.0f} |"
        for said, shares in answers.items()
    ]


def _predicts(variant: str) -> str:
    options = HEADS.get(variant, {})
    if not options or options["classifier"]:
        return "classifier"
    return "running sum" if options["mode"] == "pretrain" else "last head"


def _spread(values: list[float]) -> str:
    spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.2f}{spread}"


def _per_block(title: str, rows: list[dict[str, Any]], key: str, factor: float) -> list[str]:
    variants = dict.fromkeys(row["variant"] for row in rows if row.get(key))
    if not variants:
        return []
    depth = max(len(row.get(key, [])) for row in rows)
    lines = [
        f"{title}:",
        "",
        "| variant | " + " | ".join(str(block + 1) for block in range(depth)) + " |",
        "|---" * (depth + 1) + "|",
    ]
    for variant in variants:
        group = [row[key] for row in rows if row["variant"] == variant and row.get(key)]
        means = [statistics.mean(column) for column in zip(*group, strict=True)]
        lines.append(
            f"| {variant} | " + " | ".join(f"{factor * mean:.{1 if factor > 1 else 3}f}" for mean in means) + " |"
        )
    return lines
