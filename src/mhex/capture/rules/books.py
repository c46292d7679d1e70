"""The books of relevance: what was given, what arrived, and what was lost on the way."""

from __future__ import annotations

import torch
from torch import Tensor

from mhex.capture.precision import full
from mhex.capture.rules.flow import Flow


def conservation(flow: Flow, y: Tensor, start: Tensor, arrived: Tensor) -> dict[str, Tensor]:
    """Relevance at the score and where it arrived, and what is missing, each (B,).

    Args:
        flow: After the backward pass.
        y: The score, (B,).
        start: What the backward pass carried to the logits, (B, C).
        arrived: Relevance of the tensor where all of it should be, (B, ...).

    Returns:
        `relevance_in`: the score, or in the relevance flow what its classes were started with. `relevance_out`: what
        arrived. `lost_to_biases`: what constants of the model took: biases, position embeddings, class tokens and,
        where the graph starts inside a block, what passes it by. `conservation_gap`: the rest, as a share of the first.
    """
    # A concept is told by the latent vector, so that nothing arrives at the logits.
    given = full(start).sum(1) if flow.relevance and bool((start != 0).any()) else full(y)
    left = full(arrived).flatten(1).sum(1)
    lost = torch.zeros_like(given) if flow.lost is None else full(flow.lost)
    gap = (given - left - lost).abs() / given.abs().clamp_min(torch.finfo(given.dtype).tiny)
    return {"relevance_in": given, "relevance_out": left, "lost_to_biases": lost, "conservation_gap": gap}
