"""The page of known evidence: methods on networks, metrics as judges, and exact models, in Markdown."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jinja2 import Environment, PackageLoader, StrictUndefined

from mhex.lab.truth.bench import all_networks
from mhex.lab.truth.exact import EXACT
from mhex.lab.truth.reliability import (
    TRUTH,
    TRUTHS,
    Evidence,
    MetricReliability,
    metric_reliability,
    random_pick,
    with_interval,
)

_PARTS = ("truth-first", "truth-point", "truth-auroc", "truth-rank", "truth-sign")
ABOUT = (
    "Scenes and sentences are made by a program, and networks learn them. What each part of an input is worth to a "
    "network is then measured, by taking exactly this part away. So it is known which maps are right, and which "
    "metrics rank methods as truth does."
)


@dataclass(frozen=True)
class MethodLine:
    """A method on the networks of one kind."""

    method: str
    networks: int  # on which it was judged
    truth: tuple[float, float, float]  # mean over networks, and ends of its interval
    lowest: float
    parts: tuple[float, ...]  # means of the metrics of known evidence


def method_lines(evidences: Sequence[Evidence]) -> list[MethodLine]:
    """Methods and control maps by their mean truth over networks, the best first."""
    lines = []
    for method in dict.fromkeys(name for evidence in evidences for name in evidence.methods):
        rows = []
        for evidence in evidences:
            if method in evidence.methods:
                place = evidence.methods.index(method)
                rows.append([float(evidence.right(name)[place]) for name in (TRUTH, *_PARTS)])
        table = torch.tensor(rows, dtype=torch.float64)
        means = tuple(table[:, 1:].nanmean(0).tolist())
        judged = int(table[:, 0].isfinite().sum())
        lines.append(MethodLine(method, judged, with_interval(table[:, 0]), float(table[:, 0].min()), means))
    return sorted(lines, key=lambda line: -line.truth[0])


def metric_lines(evidences: Sequence[Evidence]) -> list[MetricReliability]:
    """Metrics by their mean rank correlation with truth, the best first, each over the networks where it has values."""
    names = dict.fromkeys(name for evidence in evidences for name in evidence.values)
    reliabilities = [metric_reliability(name, evidences) for name in names if name not in TRUTHS]
    return sorted(reliabilities, key=lambda line: -line.order[0] if line.order[0] == line.order[0] else 2.0)


def truth_page(evidences: Sequence[Evidence], command: str, reading: str = "") -> str:
    """The page as Markdown, with the command that made the rows, and what follows from the tables, in words."""
    labels = {(network.label, network.task.name): network for network in all_networks()}
    kinds = {kind: [evidence for evidence in evidences if evidence.kind == kind] for kind in ("CNN", "ViT", "text")}
    kinds = {kind: entries for kind, entries in kinds.items() if entries}
    cases = {name: make(0) for name, make in EXACT.items()}
    exact = {name: {method: case.error(method) for method in case.complete} for name, case in cases.items()}
    content: dict[str, Any] = {
        "about": ABOUT,
        "command": command,
        "reading": reading.strip(),
        "evidences": evidences,
        "networks": [(evidence, labels[evidence.network, evidence.task]) for evidence in evidences],
        "counts": {kind: len(entries) for kind, entries in kinds.items()},
        "methods": {kind: method_lines(entries) for kind, entries in kinds.items()},
        "metrics": {kind: metric_lines(entries) for kind, entries in kinds.items()},
        "random": {
            kind: with_interval(torch.tensor([random_pick(e) for e in entries])) for kind, entries in kinds.items()
        },
        "exact": exact,
        "exact_methods": list(dict.fromkeys(method for errors in exact.values() for method in errors)),
    }
    loader = PackageLoader("mhex.lab.truth")
    environment = Environment(loader=loader, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return re.sub(r"\n{3,}", "\n\n", environment.get_template("truth.md").render(content)).strip() + "\n"
