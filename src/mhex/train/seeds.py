"""All randomness of a run follows from its seed and the place in the run.

Nothing random is carried from one step to the next, so that a run can go on anywhere without the states of generators,
and the number of processes does not change the data.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor


def derive(seed: int, *place: int | str) -> int:
    """A seed of its own for a place in the run, such as ``derive(seed, "order", epoch)``; in 0..2^63 - 1."""
    words = "/".join(map(str, (seed, *place))).encode()
    return int.from_bytes(hashlib.blake2b(words, digest_size=8).digest(), "big") >> 1


def generator_for(device: torch.device, seed: int, *place: int | str) -> torch.Generator:
    """A generator on a device, seeded for a place in the run."""
    return torch.Generator(device=device).manual_seed(derive(seed, *place))


def epoch_order(count: int, batch: int, seed: int, epoch: int) -> Tensor:
    """Rows of the batches of one epoch.

    Args:
        count: Samples N.
        batch: Samples per step.
        seed: Of the run.
        epoch: Counted from 0.

    Returns:
        (steps, batch), int64, on the CPU. Samples that fill no batch are left out; where there are fewer samples than
        one batch takes, they are repeated.
    """
    generator = generator_for(torch.device("cpu"), seed, "order", epoch)
    if count < batch:
        passes = [torch.randperm(count, generator=generator) for _ in range(-(-batch // count))]
        return torch.cat(passes)[:batch].view(1, batch)
    steps = count // batch
    return torch.randperm(count, generator=generator)[: steps * batch].view(steps, batch)


def held_out(count: int, share: float, name: str) -> Tensor:
    """Which samples are held out: ``share`` of them, rounded down, drawn at random.

    Evenly spaced ones would all be of a kind where the order of the samples has a period. The seed of the run does not
    matter, so that a network never learned what one that starts from it is chosen by; a smaller share is part of a
    larger one.

    Args:
        count: Samples N.
        share: From 0 to below 1.
        name: Of the data.

    Returns:
        (N,), bool, on the CPU.
    """
    order = torch.randperm(count, generator=generator_for(torch.device("cpu"), 0, "held out", name))
    out = torch.zeros(count, dtype=torch.bool)
    out[order[: int(share * count + 1e-9)]] = True  # a share of 0.29 of 100 should be 29, whatever floats say
    return out
