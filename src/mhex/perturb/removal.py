"""Ranked units of samples, removed from either end, and what the model says then."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from mhex.capture import Batch
from mhex.perturb.subject import Subject
from mhex.perturb.units import Units

Change = Callable[[Tensor, Tensor], Batch]
Read = Callable[[Tensor, Tensor], tuple[Tensor, ...]]


@dataclass(frozen=True)
class Removal:
    """Units in the order of a map.

    Attributes:
        subject: The samples.
        units: Of each.
        rank: Place of each unit, the most important first, (B, N).
        change: From removed units (M, N) of samples (M,) to inputs for the model.
    """

    subject: Subject
    units: Units
    rank: Tensor
    change: Change

    def ask(self, number: Tensor, last: Tensor, read: Read) -> list[Tensor]:
        """What the model says when so many units are gone. Every different pass is made once.

        So a short text, of which several steps remove as many units, costs no pass twice; nothing removed is the clean
        pass, and everything removed is the same from either end.

        Args:
            number: How many units are removed in each row, (R, B).
            last: Whether these are the least important ones, bool (R,).
            read: From logits (M, C) of samples (M,) to what is kept of them.

        Returns:
            What is kept, each (R, B, ...).
        """
        subject, size = self.subject, self.subject.batch.size
        samples = torch.arange(size, device=subject.device)
        ends = self.rank.shape[1] + 1  # codes of removal from the other end begin here
        between = (number > 0) & (number < self.units.number)
        code = number + ends * (last[:, None] & between)
        code = torch.cat([torch.zeros_like(code[:1]), code]) * size + samples  # the first row is the clean pass
        different, which = torch.unique(code, return_inverse=True)
        # What keeps as much goes together: texts of one length, patches of one number, and first the most.
        left = self.units.number[different % size] - different // size % ends
        left[:size] = ends
        order = left.argsort(descending=True, stable=True)
        passes, place = different[order], order.argsort()[which]

        def make(jobs: Tensor) -> Batch:
            chosen = passes[size + jobs]
            own, removal = chosen % size, chosen // size
            n, rank = (removal % ends)[:, None], self.rank[own]
            least = rank >= self.units.number[own][:, None] - n
            removed = torch.where((removal >= ends)[:, None], least, rank < n)
            if self.units.counted is not None:
                removed &= self.units.counted[own]
            return self.change(removed, own)

        found = [read(subject.logits, samples)]
        for start, stop, logits in subject.run(len(passes) - size, make, "perturbation"):
            found.append(read(logits, passes[size + start : size + stop] % size))
        return [torch.cat(column)[place[1:]] for column in zip(*found, strict=True)]
