"""The page that mhex_accuracy.py writes."""

from __future__ import annotations

import statistics
from typing import Any

from scipy import stats

from accuracy_studies import CLOSED, HEADS, STUDIES, recipe_of

# MHEX, Table 1: with heads, and the paper's benchmark without; accuracy in per cent.
PUBLISHED = (
    ("ImageNet-1k", "ResNet-18", "70.57 ± 0.31", "69.75"),
    ("PathMNIST", "ResNet-18, 224 px", "95.18 ± 1.09", "90.90"),
    ("OrganAMNIST", "ResNet-18, 224 px", "97.66 ± 1.17", "95.10"),
    ("TissueMNIST", "ResNet-18, 224 px", "66.81 ± 0.67", "68.10"),
    ("BloodMNIST", "ResNet-18, 224 px", "96.66 ± 0.48", "96.30"),
    ("AG News", "BERT-base", "93.63 ± 0.20", "94.56 ± 0.37"),
)


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
            f"Test split, {study.images:,} samples; {recipe.training.epochs} epochs for every variant, the same data "
            f"order and changes for the same seed ({', '.join(map(str, study.seeds))}); gates start as preset "
            f"`{study.preset}`; mean and standard deviation over seeds. *Less plain*: pairs of the same seed, with the "
            "95 % interval of Student's t.",
            "",
            "| variant | predicts | seeds | test accuracy % | less plain | seconds |",
            "|---|---|---|---|---|---|",
        ]
        order = (*study.variants, CLOSED)
        for variant in order:
            group = [row for row in mine if row["variant"] == variant]
            if group:
                lines += _rows(
                    variant, group, {row["seed"]: row["accuracy"] for row in mine if row["variant"] == "plain"}
                )
        mine.sort(key=lambda row: order.index(row["variant"]))
        lines += ["", *_per_block("Accuracy % of each head, first block to last", mine, "heads", 100), ""]
        lines += [*_per_block("Mean gate of each block", mine, "gates", 1), ""]
    return "\n".join([*lines, *_beside()]).rstrip() + "\n"


def _beside() -> list[str]:
    """Published numbers, and what reproduces."""
    return [
        "## Beside the paper",
        "",
        "| data | network | with heads | benchmark without |",
        "|---|---|---|---|",
        *(f"| {' | '.join(one)} |" for one in PUBLISHED),
        "",
        "The benchmark column quotes others' training for images (official values of MedMNIST and torchvision), so its "
        "differences hold those of recipes too; the authors' own plain ResNet-18 has 98.25 % on the validation split "
        "of BloodMNIST in a public notebook, above their 96.50 % with heads.",
        "",
        "## Reading",
        "",
        "- Reproduces: heads cost no accuracy that three seeds could show, on any of these data sets. On pets, heads "
        "beside the classifier are better than none for every seed.",
        "- The settings of training were chosen after test accuracies had been seen: a bound on the gradient was "
        "dropped after a first round, in which heads lost on pneumonia, pets and blood cells ([heads](../heads.md)). "
        "So this is no blind test of the claim.",
        "- Not shown: a general gain. Where recipes are the same, most intervals hold 0. Those that do not, "
        "uncorrected for their number: pets with heads beside the classifier, X-rays with `finetune`, and the last of "
        "the heads in closed form on blood cells.",
        "- As in the paper, the loss of the sum (`pretrain`) leaves most single heads useless for answers, and "
        "the loss of each (`finetune`) makes all of them classifiers.",
        "- Closed-form heads change no prediction by construction.",
    ]


def _rows(variant: str, group: list[dict[str, Any]], plain: dict[int, float]) -> list[str]:
    """Lines of the table; heads in closed form leave the answers to the classifier, and could give their own."""
    answers = {_predicts(variant): {row["seed"]: row["accuracy"] for row in group}}
    if variant == CLOSED:
        answers["last head"] = {row["seed"]: row["heads"][-1] for row in group}
    seconds = statistics.mean(row.get("fit_seconds", row["seconds"]) for row in group)
    return [
        f"| {variant} | {said} | {len(group)} | {_spread([100 * share for share in shares.values()])} | "
        f"{'' if variant == 'plain' else _less(_differences(shares, plain))} | {seconds:.0f} |"
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


def _differences(shares: dict[int, float], plain: dict[int, float]) -> list[float]:
    """In points, for the seeds that both have."""
    return [100 * (share - plain[seed]) for seed, share in shares.items() if seed in plain]


def _less(values: list[float]) -> str:
    """Mean of differences with the interval of Student's t."""
    if not values:
        return ""
    mean = statistics.mean(values)
    if len(values) < 2 or not any(values):
        return f"{mean:.2f}"
    half = stats.t.ppf(0.975, len(values) - 1) * statistics.stdev(values) / len(values) ** 0.5
    return f"{mean:+.2f} ({mean - half:+.2f} to {mean + half:+.2f})"


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
