"""Occlusion: what the score loses when a window of the image, or a token, is hidden."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from mhex._settings import check_that
from mhex.capture import Outcome, Trace
from mhex.errors import ArgumentError
from mhex.methods._hiding import Run, all_scores, filled, hidden_pixels, hidden_tokens, run_hidden, words_kept
from mhex.registry import register
from mhex.targets import ResolvedTarget

_WINDOWS = 14  # along the shorter side of an image, where the model has no patches


@register(
    "occlusion",
    title="What the score loses when a patch or a token is hidden.",
    paper="Zeiler & Fergus, ECCV 2014, arXiv:1311.2901",
    adapt=words_kept,
    signed=True,
    passes="F (1 + S), S windows or tokens",
    budget=(1.15, "passes"),
    target="scores",
    use="When the question is plain, what happens without this part, on any model, also one without gradients.",
    avoid="When several parts carry the same evidence: each alone can be missed without a loss. The answer depends on "
    "what is put in place of a part: compare two kinds of fill.",
    quick={"image": {"patch": 16}},
)
def occlusion(
    trace: Trace,
    target: ResolvedTarget,
    *,
    patch: int | Sequence[int] | None = None,
    stride: int | Sequence[int] | None = None,
    fill: str | int | float | Tensor | None = None,
    drop: bool = False,
    batch_size: int | None = None,
) -> Tensor:
    r"""`S_j = y(x) - y(x without j)` for each window or token `j`.

    Of windows side by side, a grid with one score each; of windows that overlap, or do not fill the image, a map of the
    image with the mean of the windows that cover a pixel.

    Args:
        patch: Images: side of the windows in pixels, or height and width. None for the patches of the model, or about
            a fourteenth of the shorter side. Texts are hidden token by token.
        stride: Images: step between windows; None for the window itself.
        fill: What stands for hidden pixels: `"mean"` (by default), the mean colour of the image; `"blur"`, the image
            averaged over boxes twice the window; `"zero"`, the mean colour of the data after normalisation; a number or
            tensor, normalised. Of texts: the id of a token, whose embedding stands for the word; by default the
            tokenizer's mask token, or else the padding token (word embeddings: zeros). The result says which.
        drop: Vision Transformers: take a patch's token out after its position embedding, with nothing in its place.
    """
    if drop:
        if patch is not None or stride is not None or fill is not None:
            raise ArgumentError("Expected no patch=, stride= and fill= with drop=True, which takes whole tokens out.")
        return _dropped(trace, target, batch_size)
    if trace.batch.modality == "text":
        if patch is not None or stride is not None:
            raise ArgumentError("Expected no patch= and stride= for texts, which are hidden token by token.")
        real, _ = trace.batch.roles
        masks = torch.eye(real.shape[1], dtype=torch.bool, device=trace.logits.device)
        return _losses(trace, target, masks, run_hidden(trace, hidden_tokens(trace, fill)), batch_size).permute(1, 2, 0)
    sides = tuple(trace.batch.pixels.shape[-2:])
    size = _pair("patch", patch) or _own_window(trace)
    step = _pair("stride", stride) or size
    for name, pair, most in (("patch", size, sides), ("stride", step, size)):
        if any(side > limit for side, limit in zip(pair, most, strict=True)):
            raise ArgumentError(f"Expected {name} to be no larger than {most[0]}x{most[1]}, but got {pair}.")
    trace.chosen |= {"patch": list(size), "stride": list(step)}
    hide = hidden_pixels(trace, filled(trace, fill, (2 * size[0] + 1, 2 * size[1] + 1)))
    places = [_places(side, window, by, trace) for side, window, by in zip(sides, size, step, strict=True)]
    masks = (places[0][:, None, :, None] & places[1][None, :, None, :]).flatten(0, 1)  # (S, H, W)
    losses = _losses(trace, target, masks, run_hidden(trace, hide), batch_size)
    if step == size and (size == trace.anatomy.patch or not any(a % b for a, b in zip(sides, size, strict=True))):
        return losses.permute(1, 2, 0).reshape(*losses.shape[1:], len(places[0]), len(places[1]))
    cover = masks.sum(0).clamp_min(1)
    return torch.einsum("sbk,shw->bkhw", losses, masks.to(losses)) / cover


def _dropped(trace: Trace, target: ResolvedTarget, batch_size: int | None) -> Tensor:
    """What the score loses without each patch's token, (B, K, h, w)."""
    anatomy = trace.anatomy
    known = trace.batch.modality == "image" and bool(anatomy.blocks) and anatomy.patch is not None
    right = "a Vision Transformer of a known family for drop=True"
    check_that(known, right, f"a {anatomy.family}", "; leave it out")
    rows, columns = trace.grid()
    numbers = torch.arange(rows * columns, device=trace.logits.device)

    def without(patches: Tensor, samples: Tensor) -> Outcome:
        return trace.rerun(trace.batch.pixels[samples], samples, drop=patches + anatomy.prefix_tokens)

    losses = _losses(trace, target, numbers, without, batch_size)
    return losses.permute(1, 2, 0).reshape(*losses.shape[1:], rows, columns)


def _losses(trace: Trace, target: ResolvedTarget, masks: Tensor, again: Run, batch_size: int | None) -> Tensor:
    """`y(x) - y(x without j)` for every mask, (S, B, K)."""
    clean = target.scores(trace.outcome).detach()
    return clean - all_scores(trace, target, masks, again, "occlusion", batch_size)


def _places(side: int, window: int, stride: int, trace: Trace) -> Tensor:
    """Bool (n, side): the pixels of each of n windows along one side; the last may reach over the edge."""
    starts = torch.arange(math.ceil((side - window) / stride) + 1, device=trace.logits.device)[:, None] * stride
    pixels = torch.arange(side, device=trace.logits.device)
    return (pixels >= starts) & (pixels < starts + window)


def _own_window(trace: Trace) -> tuple[int, int]:
    """The patch of the model, or a square near a fourteenth of the shorter side, best one that fills the image."""
    if trace.anatomy.patch is not None:
        return trace.anatomy.patch
    height, width = trace.batch.pixels.shape[-2:]
    target = min(height, width) / _WINDOWS
    common = math.gcd(height, width)
    near = [d for d in range(1, common + 1) if common % d == 0 and target / 2 <= d <= target * 2]
    best = min(near, key=lambda d: abs(math.log(d / target)), default=max(1, round(target)))
    return best, best


def _pair(name: str, value: int | Sequence[int] | None) -> tuple[int, int] | None:
    if value is None:
        return None
    pair = (value, value) if isinstance(value, int) else tuple(value) if isinstance(value, (tuple, list)) else ()
    fits = len(pair) == 2 and all(isinstance(side, int) and not isinstance(side, bool) and side > 0 for side in pair)
    check_that(fits, f"{name} to be a whole number from 1 on, or a height and a width", repr(value))
    return pair[0], pair[1]
