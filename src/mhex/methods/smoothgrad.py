"""SmoothGrad: the gradient of the input, averaged over noise."""

import torch
from torch import Tensor

from mhex._settings import check_count, check_number
from mhex.capture import Trace
from mhex.errors import ArgumentTypeError
from mhex.methods._paths import INPUT_PATH, input_gradients
from mhex.methods._shared import detach_float32
from mhex.registry import register
from mhex.targets import ResolvedTarget


@register(
    "smoothgrad",
    title="The gradient of the input, averaged over noisy copies of it.",
    paper="Smilkov et al., 2017, arXiv:1706.03825",
    **INPUT_PATH,
    use="For a fine-grained map of any differentiable model, where a single gradient is too noisy to read.",
    avoid="When you need scores that add up to the prediction (take integrated-gradients), or have no time for n "
    "gradients. A gradient says what would change the score, not what made it; times_input=True brings it nearer.",
    quick={"image": {"n": 5}, "text": {"n": 10}},
)
def smoothgrad(
    trace: Trace,
    target: ResolvedTarget,
    *,
    n: int = 50,
    sigma: float = 0.15,
    times_input: bool | None = None,
    batch_size: int | None = None,
) -> Tensor:
    r"""`S = 1/n sum_r sum_c dy(x + s e_r)/dx_c`, `s = sigma (max x - min x)` of each sample.

    Over colour channels for images, (B, K, H, W), over the embedding for text, (B, K, T). Draws are the same for every
    sample and repeat with the seed.

    Args:
        n: Number of draws.
        sigma: Standard deviation of the noise, relative to the range of a sample's pixels, or of the embeddings of its
            words; 0.1 to 0.2 were published.
        times_input: Whether the mean gradient is multiplied by the input. None for texts only: where embeddings enter
            a layer norm, as in BERT, their gradients alone add up to 0 in every word.
    """
    check_count("n", n)
    check_number("sigma", sigma)
    if times_input is None:
        times_input = trace.chosen["times_input"] = trace.batch.modality == "text"
    elif not isinstance(times_input, bool):
        raise ArgumentTypeError(f"Expected True or False for the option 'times_input', but got {times_input!r}.")
    x = detach_float32(trace.input)
    real = torch.ones_like(x, dtype=torch.bool)
    if trace.batch.real is not None:
        real = trace.batch.real[..., None].expand_as(x)
    axes = tuple(range(1, x.dim()))
    highest = x.masked_fill(~real, -torch.inf).amax(axes, keepdim=True)
    level = sigma * (highest - x.masked_fill(~real, torch.inf).amin(axes, keepdim=True))

    def noisy(draw: int, samples: Tensor) -> Tensor:
        return x[samples] + level[samples] * trace.noise(draw, *x.shape[1:]).to(x)

    return input_gradients(trace, target, noisy, [1 / n] * n, x if times_input else None, "SmoothGrad", batch_size)
