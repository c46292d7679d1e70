"""Integrated gradients: from a baseline to the input along a straight line.

`Explanation.diagnostics["completeness_gap"]` says how far the scores are from adding up to what the score changes by.
"""

import torch
from torch import Tensor

from mhex._settings import check_count
from mhex.capture import Trace
from mhex.errors import ArgumentError
from mhex.methods._hiding import expanded, padding_id
from mhex.methods._paths import INPUT_PATH, Rule, input_gradients, quadrature, tell_gap
from mhex.methods._shared import detach_float32
from mhex.registry import register
from mhex.targets import ResolvedTarget


@register(
    "integrated-gradients",
    title="Gradients integrated from a baseline to the input.",
    paper="Sundararajan, Taly & Yan, ICML 2017, arXiv:1703.01365",
    **INPUT_PATH,
    use="When scores must add up to what the model's score changes by, on any differentiable model, and the gap must "
    "be known.",
    avoid="When no input stands for 'nothing': the map shows the difference to the baseline, so black things on a "
    "black baseline get no score. Maps of pixels are noisy; compare with occlusion or gradcam.",
    quick={"image": {"steps": 24}},
)
def integrated_gradients(
    trace: Trace,
    target: ResolvedTarget,
    *,
    steps: int = 50,
    baseline: str | Tensor = "auto",
    rule: Rule = "gauss",
    batch_size: int | None = None,
) -> Tensor:
    r"""`S = sum_c (x_c - x'_c) sum_k w_k dy(x' + a_k (x - x'))/dx_c`, nodes and weights of a quadrature rule on [0, 1].

    Over colour channels for images, (B, K, H, W), over the embedding for text, (B, K, T).

    Args:
        steps: Number of nodes (`"trapezoid"`: of intervals).
        baseline: `x'`. Of images: `"black"`, which needs a preprocessing that says how it normalises (bundles of
            `mhex.load` and torchvision's presets do); `"mean"`, the mean colour, zero after normalisation; or a tensor
            (C, H, W) or (B, C, H, W), normalised. Of texts: `"zero"` embeddings; `"pad"`, the padding token's; or a
            tensor (D,), (T, D) or (B, T, D). `"auto"` is black where it can be told, else the mean colour, and zero
            for texts; the result says which.
        rule: As for `cdam-integrated`: `"gauss"`, `"midpoint"`, `"trapezoid"`, `"right"` or `"left"`.
    """
    check_count("steps", steps)
    nodes, weights = quadrature(rule, steps)
    x = detach_float32(trace.input)
    start = _baseline(trace, baseline, x)
    away = x - start

    def point(step: int, samples: Tensor) -> Tensor:
        return start[samples] + nodes[step] * away[samples]

    result = input_gradients(trace, target, point, weights, away, "integrated gradients", batch_size)
    samples = torch.arange(len(x), device=x.device)
    begin = target.scores(trace.rerun(start.to(trace.input.dtype), samples), samples).detach()
    trace.cost["forwards"] += 1
    change = target.scores(trace.outcome).detach() - begin
    real = result if trace.batch.real is None else result.masked_fill(~trace.batch.real[:, None], 0.0)
    tell_gap(trace, "integrated-gradients", real.flatten(2).sum(-1) - change, change)
    return result


def _baseline(trace: Trace, chosen: str | Tensor, x: Tensor) -> Tensor:
    """`x'`, of the shape of `x`; what "auto" stands for is written into the result."""
    scale, text = trace.batch.scale, trace.batch.modality == "text"
    if isinstance(chosen, Tensor):
        trace.chosen["baseline"] = "tensor"
        return expanded("baseline", chosen, x).clone()
    if isinstance(chosen, str) and chosen == "auto":  # an array is compared value by value
        chosen = "zero" if text else "mean" if scale is None else "black"
    choices = ("zero", "pad") if text else ("black", "mean")
    if not isinstance(chosen, str) or chosen not in choices:
        hint = "" if text else " 'mean' is zero after normalisation."
        raise ArgumentError(
            f"Expected baseline 'auto', {choices[0]!r}, {choices[1]!r} or a tensor, but got {chosen!r}.{hint}"
        )
    trace.chosen["baseline"] = chosen
    if chosen == "black":
        if scale is None:
            raise ArgumentError(
                "Expected to know how colours were normalised for baseline='black': give preprocess= with mean and "
                "std, a bundle, or the black image as a normalised tensor."
            )
        mean, std = (values.to(x).view(-1, 1, 1) for values in scale)
        return (-mean / std).expand_as(x).clone()
    if chosen == "pad":
        if (pad := padding_id(trace)) is None:
            raise ArgumentError("Expected to know the padding token for baseline='pad'; give tokenizer= or a tensor.")
        return detach_float32(trace.embed(torch.tensor([[pad]], device=x.device))).to(x).expand_as(x).clone()
    return torch.zeros_like(x)
