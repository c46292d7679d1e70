"""Timing jobs on a model beside its own passes, in one run: see speed.py."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn

import mhex
from mhex.methods import all_methods

Job = Callable[[], object]
_UNITS = {"F": "F", "F+B": "(F + B)", "F+KB": "B, and F", "passes": "F a pass"}


@dataclass
class Row:
    """One line of the table: a method's job, its budget and its peers' jobs."""

    name: str
    job: Job
    budget: tuple[float, str] | None = None
    peers: dict[str, Job] = field(default_factory=dict)
    over_forward: list[float] = field(default_factory=list)
    over_both: list[float] = field(default_factory=list)
    peer_over_forward: dict[str, list[float]] = field(default_factory=dict)
    peak: float = 0.0

    @property
    def unit(self) -> str:
        """What its budget is counted in."""
        return "" if self.budget is None else self.budget[1]


class Bench:
    """A model, a batch, its two yardsticks and the rows to be measured."""

    def __init__(self, title: str, model: nn.Module, x: Tensor) -> None:
        self.title, self.x = title, x
        self.model = model.eval().requires_grad_(False)
        self.rows: list[Row] = []
        self.seconds = {"F": [0.0], "F+B": [0.0]}
        self.peak = 0.0

    def forward(self) -> Tensor:
        """F."""
        with torch.no_grad():
            scores: Tensor = self.model(self.x)
            return scores

    def both(self) -> Tensor:
        """F + B."""
        x = self.x.clone().requires_grad_()
        return torch.autograd.grad(self.model(x)[:, 0].sum(), x)[0]

    def add(
        self,
        method: str,
        peers: dict[str, Job] | None = None,
        classes: int = 1,
        budget: tuple[float, str] | None = None,
        **options: Any,
    ) -> None:
        """Add a method, explained for one class or for several at once, under its own budget or another."""
        target = 0 if classes == 1 else list(range(classes))
        budget = budget or all_methods()[method].budget
        if classes > 1 and all_methods()[method].class_specific:
            budget = (1.1 * classes, "F+KB")
        name = method if classes == 1 else f"{method}, {classes} classes"
        name = ", ".join([name, *(f"{key}={value}" for key, value in options.items())])
        job: Job = lambda: mhex.explain(self.model, self.x, method=method, target=target, **options)  # noqa: E731
        self.rows.append(Row(name, job, budget, peers or {}))

    def measure(self, repeats: int) -> None:
        """Time every row, with both yardsticks right before it."""
        for row in track(self.rows, f"{self.title}", transient=True):
            for job in (self.forward, self.both, row.job, *row.peers.values()):
                job()  # warm up
            made = row.job()
            passes = int(made.cost["forwards"]) if isinstance(made, mhex.Explanation) else 1
            self.peak, row.peak = max(self.peak, self._peak(self.both)), self._peak(row.job)
            for _ in range(repeats):
                forward, both, own = self._time(self.forward), self._time(self.both), self._time(row.job)
                self.seconds["F"].append(forward)
                self.seconds["F+B"].append(both)
                row.over_forward.append(own / forward)
                row.over_both.append(_over(row.unit, own, forward, both, passes))
                for name, job in row.peers.items():
                    row.peer_over_forward.setdefault(name, []).append(self._time(job) / forward)

    def _time(self, job: Job) -> float:
        self._synchronise()
        started = time.perf_counter()
        job()
        self._synchronise()
        return time.perf_counter() - started

    def _synchronise(self) -> None:
        if self.x.is_cuda:
            torch.cuda.synchronize()

    def _peak(self, job: Job) -> float:
        """Peak memory of a job above what was allocated before, in MiB; 0 on the CPU."""
        if not self.x.is_cuda:
            return 0.0
        self._synchronise()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        job()
        self._synchronise()
        return (torch.cuda.max_memory_allocated() - before) / 2**20

    def table(self) -> tuple[Table, int]:
        """The rich table, and how many rows are over their budget."""
        seconds = {name: statistics.median(values[1:]) for name, values in self.seconds.items()}
        table = Table(title=f"{self.title}: F = {seconds['F'] * 1e3:.0f} ms, F + B = {seconds['F+B'] * 1e3:.0f} ms")
        for column in ("method", "/ F", "/ (F + B)", "budget", "", "peers / F", "memory / (F + B)"):
            table.add_column(column, justify="left" if column in ("method", "peers / F") else "right")
        over = 0
        for row in self.rows:
            forward, both = statistics.median(row.over_forward), statistics.median(row.over_both)
            verdict = ""
            if row.budget is not None:
                within = (forward if row.budget[1] == "F" else both) <= row.budget[0]
                over += not within
                verdict = "within" if within else "OVER"
            peers = ", ".join(f"{n} {statistics.median(v):.2f}" for n, v in row.peer_over_forward.items())
            budget = "" if row.budget is None else f"{row.budget[0]:.3g} {_UNITS[row.budget[1]]}"
            memory = f"{row.peak / self.peak:.2f}" if self.peak else "not measured"
            words = {"F+KB": "(t - F) / B = ", "passes": "t / passes / F = "}
            shown = f"{words.get(row.unit, '')}{both:.2f}"
            table.add_row(row.name, f"{forward:.2f}", shown, budget, verdict, peers, memory)
        return table, over


def _over(unit: str, own: float, forward: float, both: float, passes: int) -> float:
    """How many times the yardstick a job takes, beside F itself."""
    if unit == "F+KB":  # for K classes at once it is F + K B; the ratio is (time - F) / B
        return (own - forward) / (both - forward)
    return own / (passes * forward) if unit == "passes" else own / both
