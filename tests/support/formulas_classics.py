"""Second formulas of the methods that change the input or read feature maps: plain loops, one sample at a time."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from support.cases import FEW, HIDDEN_WORD, METHODS
from support.formulas import View, _on_grid, feature_maps, formula, stretch
from support.formulas_tokens import drawn
from support.models import call

HIDDEN = HIDDEN_WORD["fill"]  # the token that stands for a hidden one


def embeddings(v: View) -> Tensor:
    """(T, D)."""
    return v.model.get_input_embeddings()(v.inputs["input_ids"])[0].detach()


def gradient_at(v: View, target: int, point: Tensor) -> Tensor:
    """dy/dx at other pixels (C, H, W), or other word embeddings (T, D), put where the layer's output was."""
    point = point.clone().requires_grad_()
    if v.family.size is not None:
        y = call(v.model, point[None])[0, target]
    else:
        layer = v.model.get_input_embeddings()
        handle = layer.register_forward_hook(lambda module, args, output: point[None])
        y = call(v.model, v.inputs)[0, target]
        handle.remove()
    return torch.autograd.grad(y, point)[0]


def added_up(v: View, scores: Tensor) -> Tensor:
    return scores.sum(0) if v.family.size is not None else _on_grid(v, scores.sum(-1))


@formula("smoothgrad")
def smoothgrad(v: View, target: int) -> Tensor:
    x = v.inputs[0] if v.family.size is not None else embeddings(v)
    n = FEW["n"]
    level = 0.15 * (max(x.flatten().tolist()) - min(x.flatten().tolist()))
    total = sum(gradient_at(v, target, x + level * drawn(r, *x.shape)) for r in range(n)) / n
    return added_up(v, total if v.family.size is not None else total * x)


@formula("integrated-gradients")
def integrated_gradients(v: View, target: int) -> Tensor:
    """From zero, by the three nodes of Gauss and Legendre, which are known by heart."""
    assert FEW["steps"] == 3
    x = v.inputs[0] if v.family.size is not None else embeddings(v)
    outer = math.sqrt(3 / 5)
    rule = [((1 - outer) / 2, 5 / 18), (1 / 2, 8 / 18), ((1 + outer) / 2, 5 / 18)]
    return added_up(v, x * sum(weight * gradient_at(v, target, node * x) for node, weight in rule))


@formula("gradcam++")
def gradcam_plus_plus(v: View, target: int) -> Tensor:
    return plus_plus(*feature_maps(v, target))


def plus_plus(maps: Tensor, gradient: Tensor) -> Tensor:
    """Grad-CAM++ of maps (K, h, w) and their gradient."""
    result = torch.zeros_like(maps[0])
    for k in range(len(maps)):
        weight = 0.0
        for g in gradient[k].flatten().tolist():
            if g > 0:
                weight += g * g**2 / (2 * g**2 + g**3 * float(maps[k].sum()) + 1e-6)
        result += weight * maps[k]
    return result.clamp_min(0)


@formula("eigencam")
def eigencam(v: View, target: int) -> Tensor:
    return principal(feature_maps(v, target)[0])


def principal(maps: Tensor) -> Tensor:
    """Eigen-CAM of maps (K, h, w), by the eigenvectors of the covariance of the channels."""
    flat = maps.flatten(1).T.numpy()
    flat = flat - flat.mean(0)
    _, vectors = np.linalg.eigh(flat.T @ flat)
    scores = flat @ vectors[:, -1]
    scores = -scores if abs(scores.min()) > abs(scores.max()) else scores
    return torch.from_numpy(scores).clamp_min(0).reshape(maps.shape[1:])


def plain_scores(v: View, inputs: Any) -> Tensor:
    with torch.no_grad():
        return call(v.model, inputs)[0]


@formula("scorecam")
def scorecam(v: View, target: int) -> Tensor:
    return scorecam_of(v, target, FEW["max_channels"])


def scorecam_of(v: View, target: int, most: int | None) -> Tensor:
    maps, _ = feature_maps(v, target)
    spread = [float(((m - m.mean()) ** 2).sum()) for m in maps]
    kept = sorted(range(len(maps)), key=lambda k: -spread[k])[:most]
    scores = []
    for k in kept:
        mask = stretch(len(maps[k]), v.family.size[0]) @ maps[k] @ stretch(maps[k].shape[1], v.family.size[1]).T
        mask = (mask - mask.min()) / (mask.max() - mask.min() + 1e-8)
        scores.append(math.exp(float(plain_scores(v, v.inputs * mask)[target])))
    return sum(score / sum(scores) * maps[k] for score, k in zip(scores, kept, strict=True)).clamp_min(0)


@formula("occlusion")
def occlusion(v: View, target: int) -> Tensor:
    whole = plain_scores(v, v.inputs)[target]
    if v.family.size is None:
        ids = v.inputs["input_ids"]
        lost = torch.zeros(ids.shape[1], dtype=whole.dtype)
        for i in range(ids.shape[1]):
            changed = ids.clone()
            changed[0, i] = HIDDEN
            lost[i] = whole - plain_scores(v, {**v.inputs, "input_ids": changed})[target]
        return _on_grid(v, lost)
    window, (height, width) = METHODS["occlusion"].quick["image"]["patch"], v.family.size
    total, cover = torch.zeros(height, width, dtype=whole.dtype), torch.zeros(height, width)
    for top, left in product(range(0, height, window), range(0, width, window)):
        changed = v.inputs.clone()
        for channel in changed[0]:
            channel[top : top + window, left : left + window] = channel.mean()
        total[top : top + window, left : left + window] += whole - plain_scores(v, changed)[target]
        cover[top : top + window, left : left + window] += 1
    result = total / cover
    fills = height % window == width % window == 0
    return result[::window, ::window] if fills else result


def rise_mask(k: int, size: tuple[int, int], grid: int = 7, p: float = 0.5, seed: int = 0) -> Tensor:
    """A mask (H, W): cells below a threshold are shown, brought to size, and cut out at a shift."""
    numbers = drawn(k, grid * grid + 2, seed=seed)
    threshold = math.sqrt(2) * float(torch.erfinv(torch.tensor(2 * p - 1, dtype=torch.float64)))
    shown = (numbers[:-2] < threshold).double().reshape(grid, grid)
    cells = [-(-side // grid) for side in size]
    large = stretch(grid, (grid + 1) * cells[0]) @ shown @ stretch(grid, (grid + 1) * cells[1]).T
    shares = [0.5 + 0.5 * math.erf(float(z) / math.sqrt(2)) for z in numbers[-2:]]
    top, left = (int(share * cell) for share, cell in zip(shares, cells, strict=True))
    return large[top : top + size[0], left : left + size[1]]


@formula("rise")
def rise(v: View, target: int) -> Tensor:
    weighted: Any = 0.0
    cover: Any = 0.0
    for k in range(FEW["n"]):
        if v.family.size is not None:
            mask = rise_mask(k, v.family.size)
            seen = v.inputs * mask
        else:
            ids = v.inputs["input_ids"]
            mask = (drawn(k, ids.shape[1]) < 0).double()
            mask[0] = mask[-1] = 1
            seen = {**v.inputs, "input_ids": torch.where(mask > 0, ids, HIDDEN)}
        weighted = weighted + plain_scores(v, seen).softmax(0)[target] * mask
        cover = cover + mask
    result = torch.where(cover > 0, weighted / cover.clamp_min(1e-300), 0.0)
    return result if v.family.size is not None else _on_grid(v, result)


def blurred(image: Tensor) -> Tensor:
    """Each pixel of (C, H, W) the mean of a box of half the sides around it, in the image and its reflection."""
    _, height, width = image.shape
    rows, columns = _box(height), _box(width)
    return rows @ image @ columns.T


def _box(side: int) -> Tensor:
    box = side // 2
    matrix = torch.zeros(side, side, dtype=torch.float64)
    for pixel in range(side):
        for offset in range(box):
            place = abs(pixel - box // 2 + offset)
            matrix[pixel, place if place < side else 2 * (side - 1) - place] += 1 / box
    return matrix


def halves(places: list[tuple[int, int]]) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Places (row, column) of a full rectangle, cut across its longer side."""
    rows, columns = sorted({r for r, _ in places}), sorted({c for _, c in places})
    if len(rows) >= len(columns):
        first = set(rows[: len(rows) // 2])
        return [p for p in places if p[0] in first], [p for p in places if p[0] not in first]
    first = set(columns[: len(columns) // 2])
    return [p for p in places if p[1] in first], [p for p in places if p[1] not in first]


@formula("shap")
def shap(v: View, target: int) -> Tensor:
    """Twelve evaluations are the whole, nothing, two halves, and quarters in the four contexts of the halves."""
    assert FEW["max_evals"] == 12
    if v.family.size is not None:
        height, width = v.family.size
        places = list(product(range(height), range(width)))
        hidden = blurred(v.inputs[0])
    else:
        height, width = 1, v.inputs["input_ids"].shape[1]
        places = [(0, c) for c in range(1, width - 1)]

    def f(shown: list[tuple[int, int]]) -> float:
        mask = torch.ones(height, width, dtype=torch.bool)
        for place in places:
            mask[place] = False
        for place in shown:
            mask[place] = True
        if v.family.size is None:
            seen: Any = {**v.inputs, "input_ids": torch.where(mask, v.inputs["input_ids"], HIDDEN)}
        else:
            seen = torch.where(mask, v.inputs[0], hidden)[None]
        return float(plain_scores(v, seen).softmax(0)[target])

    scores = torch.zeros(height, width, dtype=torch.float64)
    if len(places) == 1:
        scores[places[0]] = f(places) - f([])
    else:
        for half, other in (parts := halves(places)), parts[::-1]:
            quarters = halves(half)
            for quarter, sibling in (quarters, quarters[::-1]):
                contexts = [a + b for a in ([], other) for b in ([], sibling)]
                value = sum(f(context + quarter) - f(context) for context in contexts) / 4
                for place in quarter:
                    scores[place] = value / len(quarter)
    return scores if v.family.size is not None else scores[0]
