"""Smooth CDAM: CDAM averaged over noisy tokens. Only the last block and the head are run for each draw."""

from __future__ import annotations

import torch
from torch import Tensor

from mhex.capture import Needs, Trace
from mhex.errors import ArgumentError
from mhex.methods._tokens import Site, check_count, fixed, path_scores, settle_site
from mhex.registry import register
from mhex.targets import ResolvedTarget


@register(
    "cdam-smooth",
    title="CDAM averaged over noise on the tokens that enter the last attention.",
    paper="Brocki, Binda & Chung, Class-Discriminative Attention Maps for Vision Transformers, 2023, arXiv:2312.02364",
    modalities=("image", "text"),
    needs=Needs(keep={"block_input": "last", "tokens": "last"}),
    signed=True,
    class_specific=True,
    passes="F + n t",
    budget=(14.0, "F"),
    target="scores",
    use="A steadier CDAM; `mhex.tuning.tune_sigma` chooses the noise on held-out images.",
    avoid="Without choosing `sigma`: the published noise level is not known, and the default, which is ours, may not "
    "be the best for your model.",
)
def cdam_smooth(
    trace: Trace, target: ResolvedTarget, *, n: int = 50, sigma: float = 0.1, site: Site = "auto"
) -> Tensor:
    r"""`S_i = 1/n sum_r sum_j T'_ij dy(T')/dT'_ij`, `T' = T + sigma std(T) e_r`.

    The authors chose their noise level on held-out images and printed neither it nor the number of draws: both defaults
    are ours, and `mhex.tuning.tune_sigma` chooses the noise level on held-out images. Draws are the same for every
    sample and repeat with the seed.

    Args:
        trace: The observed pass.
        target: What is explained.
        n: Number of draws.
        sigma: Standard deviation of the noise, relative to that of a sample's tokens.
        site: As for `cdam`.
    """
    check_count("n", n)
    if isinstance(sigma, bool) or not isinstance(sigma, (int, float)) or not 0 <= sigma < float("inf"):
        raise ArgumentError(f"Expected sigma to be a number from 0 on, but got {sigma!r}.")
    chosen = settle_site(trace, site)
    tokens = fixed(trace.blocks[-1].site(chosen))
    spread = torch.stack([one[real].std(correction=0) for one, real in zip(tokens, trace.real, strict=True)])
    level = sigma * spread[:, None, None]

    def noisy(draw: int) -> Tensor:
        return tokens + level * trace.noise(draw, *tokens.shape[1:]).to(tokens)

    return path_scores(trace, chosen, target, noisy, [1 / n] * n, "smooth CDAM")
