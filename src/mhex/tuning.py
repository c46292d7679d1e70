"""Settings of methods chosen on held-out images, by how faithful the maps are."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mhex._progress import track
from mhex._settings import check_count, check_seed, check_that
from mhex.bundle import Bundle, as_bundle
from mhex.capture import Batch, Outcome, Outputs, find_ending, logits_of, untouched, unwrap
from mhex.errors import ArgumentError, warn
from mhex.explain import explain
from mhex.explanation import Explanation
from mhex.inputs import in_batches, prepare, with_window
from mhex.perturb.references import gaussian_blur
from mhex.targets import ResolvedTarget, Task

_POINTS = 21  # of a curve, from nothing removed to everything


@dataclass(frozen=True)
class SigmaStudy:
    """How faithful Smooth CDAM is at each noise level."""

    sigma: float  # the most faithful level, to be given as `sigma=`
    sigmas: tuple[float, ...]  # all levels
    fidelity: Tensor  # of each level and image, (S, N)

    def table(self) -> str:
        """Mean and standard error of every level, as a Markdown table."""
        rows = ["| sigma | fidelity | standard error |", "|---|---|---|"]
        count = self.fidelity.shape[1]
        for sigma, values in zip(self.sigmas, self.fidelity.double(), strict=True):
            error = float(values.std()) / math.sqrt(count) if count > 1 else math.nan
            best = " (best)" if sigma == self.sigma else ""
            rows.append(f"| {sigma:g}{best} | {float(values.mean()):.4g} | {error:.2g} |")
        return "\n".join(rows)


def tune_sigma(
    model: nn.Module | Bundle,
    images: Any,
    sigmas: Sequence[float] = (0.0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6),
    *,
    target: Any = None,
    n: int = 50,
    preprocess: Callable[[Any], Tensor] | None = None,
    window: tuple[float, float] | None = None,
    class_names: Sequence[str] | Mapping[int, str] | None = None,
    task: Task | None = None,
    outputs: Outputs | None = None,
    batch_size: int = 16,
    seed: int = 0,
    progress: bool = False,
) -> SigmaStudy:
    """Choose the noise level of `cdam-smooth` by fidelity, as its authors did on 200 images.

    Fidelity is the area between two curves of the explained class's logit while patches are blurred, the least
    important first and the most important first: `A_LIF - A_MIF` on an axis of percent, 21 points. Use images that you
    do not evaluate on.

    Args:
        model: An image classifier that `cdam-smooth` can explain, or a bundle from `mhex.load`.
        images: What `mhex.explain` takes, or a loader that gives batches of that.
        sigmas: Levels to try; 0 is CDAM without noise.
        target: Class to explain; None for the predicted one; a tensor (N,) for one of each image.
        n: Draws of each map.
        preprocess: From a PIL image to a tensor (C, H, W).
        window: As for `mhex.explain`.
        class_names: As for `mhex.explain`.
        task: As for `mhex.explain`.
        outputs: As for `mhex.explain`.
        batch_size: Images at once.
        seed: Of noise, and of the order of patches with equal scores.
        progress: Draw a progress bar.
    """
    levels = _levels(sigmas)
    check_count("batch_size", batch_size)
    seed = check_seed("seed", seed)
    bundle = as_bundle(model)
    inner = unwrap(bundle.model)
    names = bundle.class_names if class_names is None else class_names
    fidelity: list[Tensor] = []  # (S, B) of each batch
    for part in track(in_batches(images, batch_size), "noise of smooth CDAM", progress):
        if bundle.tokenizer is not None:
            raise ArgumentError("Expected a model of images, but it reads texts: fidelity is measured by blurring.")
        start = sum(values.shape[1] for values in fidelity)
        ids = range(start, start + len(part)) if isinstance(part, (list, tuple)) else None
        batch = prepare(inner, part, with_window(preprocess or bundle.preprocess, window, part), ids=ids).batch
        check_that(batch.modality == "image", "images", "texts", ": fidelity is measured by blurring patches")
        classes = target[start : start + batch.size] if isinstance(target, Tensor) and target.dim() else target
        options: Any = {"n": n, "seed": seed, "class_names": names, "task": task, "outputs": outputs}
        by_level = []
        for level in levels:
            e = explain(inner, batch.pixels, "cdam-smooth", classes, sigma=level, **options)
            if e.target is None or e.several:
                raise ArgumentError("Expected one class as target, but got several, a concept or a function.")
            by_level.append(_fidelity(inner, batch.pixels, e, e.target, seed).cpu())
        fidelity.append(torch.stack(by_level))
    check_that(bool(fidelity), "at least one image", "none")
    best = levels[int(torch.cat(fidelity, 1).mean(1).argmax())]
    if best == max(levels):
        warn(f"The largest level that was tried, {best:g}, is the most faithful; try larger ones with sigmas=.")
    return SigmaStudy(best, levels, torch.cat(fidelity, 1))


def _levels(sigmas: Any) -> tuple[float, ...]:
    levels = list(sigmas) if isinstance(sigmas, (list, tuple)) else [sigmas]
    wrong = [level for level in levels if isinstance(level, bool) or not isinstance(level, (int, float))]
    if wrong or len(levels) < 2 or len(set(levels)) != len(levels):
        raise ArgumentError(f"Expected at least two different levels to try as sigmas, but got {sigmas!r}.")
    return tuple(map(float, levels))


def _fidelity(model: nn.Module, images: Tensor, explanation: Explanation, classes: Tensor, seed: int) -> Tensor:
    """`A_LIF - A_MIF` of each image, (B,), for its class in `classes`, (B,)."""
    target = ResolvedTarget(classes[:, None], False, explanation.task)
    scores, blurred = explanation.scores, _blur(images)
    count = scores[0].numel()
    # Equal scores are put into a random order, the same in every image.
    shuffle = torch.randperm(count, generator=torch.Generator().manual_seed(seed % 2**63)).to(scores.device)
    order = shuffle[scores.flatten(1)[:, shuffle].argsort(dim=1, descending=True, stable=True)]
    rank = order.argsort(1).reshape(scores.shape)
    rank = F.interpolate(rank[:, None].float(), size=images.shape[-2:], mode="nearest").round()
    curves, batch = [], Batch("image", (images,), size=len(images))
    outputs = explanation.options.get("outputs", "logits")  # as the maps were made
    with untouched(model), torch.no_grad():
        ending = None if outputs == "logits" else find_ending(model, batch, logits_of(model, batch), outputs)
        for point in range(_POINTS):
            removed = round(count * point / (_POINTS - 1))
            for hidden in (rank < removed, rank >= count - removed):
                logits = logits_of(model, batch.with_input(torch.where(hidden, blurred, images)), ending)
                curves.append(target.scores(Outcome(logits))[:, 0].double())
    most, least = (torch.stack(curves[start::2], 1) for start in (0, 1))  # (B, points)
    area: Tensor = torch.trapezoid(least - most, dx=100 / (_POINTS - 1), dim=1)
    return area


def _blur(images: Tensor) -> Tensor:
    """Gaussian blur with a standard deviation of a sixteenth of the height, cut off at three of them."""
    sigma = images.shape[-2] / 16
    return gaussian_blur(images, sigma, min(math.ceil(3 * sigma), min(images.shape[-2:]) - 1))
