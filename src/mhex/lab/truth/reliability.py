"""Reliability of metrics: how well they rank explanation methods where the truth is known."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from mhex.judge.controls import is_control
from mhex.judge.report import Report
from mhex.metrics.registry import all_metrics
from mhex.recommend.score import DEFAULT, score_of
from mhex.stats.comparison import pair_tests
from mhex.stats.correlation import rank_correlation
from mhex.stats.intervals import bootstrap

Kind = Literal["CNN", "ViT", "text"]
TRUTHS = tuple(name for name in all_metrics() if name.startswith("truth-"))
TRUTH = "truth"  # by which methods are ranked, and regret is counted: the mean of these three, of each image
_MEAN = ("truth-first", "truth-point", "truth-auroc")
RECOMMEND = "score of mhex.recommend"  # three columns of one metric, which are joined
_LEVEL = 0.05
_FEWEST = 5  # networks of an interval; the ends of fewer are hardly more than their extremes


@dataclass(frozen=True, eq=False)
class Evidence:
    """What is known of methods on one network: how right their maps are, and what metrics say of them."""

    network: str
    task: str
    family: str
    kind: Kind
    methods: tuple[str, ...]  # as in tables, control maps with them
    truth: Mapping[str, Tensor]  # by metric of known evidence, of each image and method, (n, M); NaN does not count
    values: Mapping[str, Tensor]  # by any other metric, of each method, (M,), higher being better; NaN for none

    def right(self, name: str = TRUTH) -> Tensor:
        """How right each method is on average, (M,)."""
        return self.truth[name].nanmean(0)

    @cached_property
    def clear_pairs(self) -> tuple[Tensor, Tensor, Tensor]:
        """Pairs that truth tells apart: numbers of both methods, and the sign of the first less the second.

        Flips of signs over images tell them apart, corrected for all pairs (Holm).
        """
        (tested,) = pair_tests(self.truth[TRUTH])
        clear = tested.adjusted < _LEVEL
        return tested.first[clear], tested.second[clear], tested.difference[clear].sign()

    @property
    def methods_only(self) -> Tensor:
        """Numbers of the methods that are no control maps."""
        return torch.tensor([n for n, name in enumerate(self.methods) if not is_control(name)])

    def counted(self) -> tuple[int, int]:
        """Images that count, and all."""
        rows = self.truth[TRUTH].isfinite().any(1)
        return int(rows.sum()), len(rows)


def evidence_of(report: Report, network: str, task: str, family: str, kind: Kind) -> Evidence:
    """Read a report of one network, with metrics of known evidence and others."""
    methods = tuple(report.methods)
    truth, values = {}, {}
    score = score_of(DEFAULT, "text" if kind == "text" else "image", 0)
    cells = {(cell.metric, cell.method): cell.value for cell in report.summary(resamples=1, outputs="first")}
    for name in report.metrics:
        if name == score.metric.label:
            score = score.with_units(report, [method for method in methods if not is_control(method)])
            scores = score.values(report)
            values[RECOMMEND] = torch.stack([scores[method] for method in methods], 1).nanmean(0)
            continue
        numbers = report.per_image(name)
        absent = torch.full_like(next(iter(numbers.values())), math.nan)  # a method that was not judged by it
        table = torch.stack([numbers.get(method, absent) for method in methods], 1)
        if name in TRUTHS:
            truth[name] = table
            continue
        better = report.metric(name).better[0]
        sign = 1.0 if better or better is None else -1.0
        means = [cells.get((name, method), math.nan) for method in methods]
        values[name] = sign * torch.tensor(means, dtype=torch.float64)
    truth[TRUTH] = torch.stack([truth[name] for name in _MEAN]).mean(0)
    return Evidence(network, task, family, kind, methods, truth, values)


def order_of(evidence: Evidence, scores: Tensor) -> float:
    """Spearman's rho over methods and control maps of scores (M,) and truth; NaN where either is constant."""
    right = evidence.right()
    valid = scores.isfinite() & right.isfinite()
    return float(rank_correlation(scores[valid], right[valid]))


def regret_of(evidence: Evidence, scores: Tensor, among: Sequence[str] | None = None) -> float:
    """Truth of the best method less truth of the method with the highest score; control maps are not chosen.

    Of equal highest scores, their mean truth counts. `among` names the methods that there was time for.
    """
    right = evidence.right()
    choices = [n for n in evidence.methods_only.tolist() if among is None or evidence.methods[n] in among]
    values = scores[choices].nan_to_num(-math.inf)
    chosen = right[choices][values == values.max()].nanmean()
    return float(right[choices].nan_to_num(-math.inf).max() - chosen)


def agreement_of(evidence: Evidence, scores: Tensor) -> tuple[float, int]:
    """Share of the clear pairs that scores (M,) order as truth does, equal ones counting half; and number of pairs."""
    first, second, sign = evidence.clear_pairs
    signs = (scores[first] - scores[second]).sign() * sign
    signs = signs[signs.isfinite()]
    return (float((signs + 1).mean() / 2) if len(signs) else math.nan), len(signs)


@dataclass(frozen=True)
class MetricReliability:
    """How well a metric ranks methods: means over networks with their 95 % bootstrap intervals over networks."""

    name: str
    networks: int  # on which it has values
    order: tuple[float, float, float]  # mean rank correlation with truth, and ends of its interval
    regret: tuple[float, float, float]
    worst: float  # largest regret
    pairs: tuple[float, float, float]  # share of clear pairs in the right order


def metric_reliability(name: str, evidences: Sequence[Evidence]) -> MetricReliability:
    """How well a metric ranks methods on several networks; those without values do not count."""
    rows = []
    for evidence in evidences:
        scores = evidence.values.get(name)
        if scores is not None and bool(scores.isfinite().any()):
            rows.append((order_of(evidence, scores), regret_of(evidence, scores), agreement_of(evidence, scores)[0]))
    table = torch.tensor(rows, dtype=torch.float64).view(-1, 3)
    spans = [with_interval(column) for column in table.unbind(1)]
    worst = float(table[:, 1].max()) if len(table) else math.nan
    return MetricReliability(name, len(rows), spans[0], spans[1], worst, spans[2])


def with_interval(values: Tensor) -> tuple[float, float, float]:
    """The mean of values of networks (n,), and ends of its bootstrap interval, NaN below five; NaN does not count."""
    rows = values[values.isfinite()][:, None]
    if len(rows) < _FEWEST:
        return (float(rows.mean()) if len(rows) else math.nan), math.nan, math.nan
    low, high = bootstrap(rows, lambda part: part.mean(-2))
    return float(rows.mean()), float(low), float(high)


def random_pick(evidence: Evidence) -> float:
    """Regret of a method that is drawn at random."""
    right = evidence.right()[evidence.methods_only]
    return float(right.nan_to_num(-math.inf).max() - right.nanmean())
