"""Smooth CDAM: CDAM averaged over noisy tokens. Only the last block and the head are run for each draw."""

import torch
from torch import Tensor

from mhex._settings import check_count, check_number
from mhex.capture import Trace
from mhex.methods._paths import CDAM_PATH, Site, path_scores, settle_site
from mhex.methods._shared import detach_float32
from mhex.registry import register
from mhex.targets import ResolvedTarget


@register(
    "cdam-smooth",
    title="CDAM averaged over noise on the tokens that enter the last attention.",
    **CDAM_PATH,
    use="A steadier CDAM; `mhex.tuning.tune_sigma` chooses the noise on held-out images.",
    avoid="Without choosing `sigma`: the published noise level is not known, and the default, which is ours, may not "
    "be the best for your model.",
)
def cdam_smooth(
    trace: Trace,
    target: ResolvedTarget,
    *,
    n: int = 50,
    sigma: float = 0.1,
    site: Site = "auto",
    block: int | None = None,
) -> Tensor:
    r"""`S_i = 1/n sum_r sum_j T'_ij dy(T')/dT'_ij`, `T' = T + sigma std(T) e_r`.

    The authors chose their noise level on held-out images and printed neither it nor the number of draws: both defaults
    are ours, and `mhex.tuning.tune_sigma` chooses the noise level on held-out images. Draws are the same for every
    sample and repeat with the seed.

    Args:
        n: Number of draws.
        sigma: Standard deviation of the noise, relative to that of a sample's tokens.
        site: As for `cdam`.
        block: As for `cdam`.
    """
    check_count("n", n)
    check_number("sigma", sigma)
    source = settle_site(trace, site)
    tokens = detach_float32(trace.block.site(source))
    spread = torch.stack([sample[real].std(correction=0) for sample, real in zip(tokens, trace.real, strict=True)])
    level = sigma * spread[:, None, None]

    def noisy(draw: int) -> Tensor:
        return tokens + level * trace.noise(draw, *tokens.shape[1:]).to(tokens)

    return path_scores(trace, source, target, noisy, [1 / n] * n, "smooth CDAM")
