"""Removal: samples without some of their units, each different one run once, whichever map or metric asks for it."""

from collections.abc import Hashable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from mhex.capture import Batch
from mhex.perturb.subject import Change, Subject, top_class
from mhex.perturb.units import Units, unit_keys


@dataclass
class Answers:
    """What the model said of samples without some sets of units; the first rows are of the samples as they are."""

    rows: dict[int, int]  # place of each set in the tables, by its code
    tables: list[Tensor]  # see `UnitRemoval.ask`, each (M, ...)


@dataclass(frozen=True)
class UnitRemoval:
    """Units of samples in the order of a map."""

    subject: Subject
    units: Units
    rank: Tensor  # place of each unit, the most important first, (B, N)
    change: Change  # from removed units (M, N) of samples (M,)
    kind: Hashable  # equal where the same units are removed in the same way, whatever their order

    def ask(self, number: Tensor, last: Tensor, classes: Tensor) -> list[Tensor]:
        """What the model says when so many units are gone: the tables of a `SweepResult`, each (R, B, ...).

        In each row `number` (R, B) units are removed, the least important ones where `last`, bool (R,), says so;
        scores are read of classes (B, 4). Every different set of units is run once for all maps of the subject: steps
        of a short text that remove as many units, everything removed, and what maps or metrics have in common.
        """
        subject, size = self.subject, self.subject.batch.size
        code, answers = self._codes(number, last), self._answers(classes)
        different, inverse = torch.unique(code, return_inverse=True)
        row = torch.tensor([answers.rows.get(entry, -1) for entry in different.tolist()], device=subject.device)
        subject.saved += int((row >= size).sum())
        new = (row < 0).nonzero()[:, 0]
        jobs = torch.arange(code.numel(), device=subject.device)
        job = torch.full_like(different, len(jobs)).scatter_reduce(0, inverse.flatten(), jobs, "amin")[new]
        # What keeps as much goes together: texts of one length, patches of one number, and first the most.
        order = (self.units.number[job % size] - number.flatten()[job]).argsort(descending=True, stable=True)
        new, job = new[order], job[order]
        sample, amount, least = job % size, number.flatten()[job], last[job // size]

        def make(jobs: Tensor) -> Batch:
            rank, total = self.rank[sample[jobs]], self.units.number[sample[jobs]][:, None]
            n = amount[jobs][:, None]
            removed = torch.where(least[jobs][:, None], rank >= total - n, rank < n)
            if self.units.counted is not None:
                removed &= self.units.counted[sample[jobs]]
            return self.change(removed, sample[jobs])

        parts = [answers.tables]
        for jobs, logits in subject.run(len(job), make, "perturbation"):
            parts.append(self._read(logits, classes[sample[jobs]]))
        start = len(answers.tables[0])
        row[new] = torch.arange(start, start + len(new), device=subject.device)
        answers.tables = [torch.cat(column) for column in zip(*parts, strict=True)]
        answers.rows.update(zip(different[new].tolist(), range(start, start + len(new)), strict=True))
        return [table[row[inverse]] for table in answers.tables]

    def _codes(self, number: Tensor, last: Tensor) -> Tensor:
        """A whole number for each sample and set of removed units, (R, B): the sum of random numbers of its units."""
        # The number of the sample is added, so that nothing removed has this number alone. Sums wrap around at 64 bits:
        # two different sets of ten million have the same code once in a hundred thousand times.
        size, units = self.rank.shape[0], self.units.number[:, None]
        keys = unit_keys(1, range(size), self.units.scores, self.units.counted)  # by seed 0 the first of all is 0
        sums = F.pad(torch.empty_like(keys).scatter_(1, self.rank, keys).cumsum(1), (1, 0))
        first = sums.gather(1, number.mT)
        rest = sums.gather(1, units) - sums.gather(1, units - number.mT)
        return torch.where(last, rest, first).mT + torch.arange(size, device=number.device)

    def _answers(self, classes: Tensor) -> Answers:
        """What was answered before of the same units and classes."""
        subject, key = self.subject, (Answers, self.kind, tuple(classes.flatten().tolist()))
        if key not in subject.shared:
            rows = {number: number for number in range(subject.batch.size)}
            subject.shared[key] = Answers(rows, self._read(subject.logits, classes))
        answers: Answers = subject.shared[key]
        return answers

    def _read(self, logits: Tensor, classes: Tensor) -> list[Tensor]:
        """What is kept of logits (M, C), for classes (M, 4); see `SweepResult`."""
        z, norm = self.subject.read(logits, classes)
        # The two classes of a single output have the scores z and -z.
        mean = logits.double().mean(1) if logits.shape[1] > 1 else torch.zeros_like(z[:, 0])
        return [z, norm, mean, top_class(logits), self.subject.complement(logits, classes)]
