"""Second formulas of the methods that read tokens, keys or all attention: plain loops, one sample at a time."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from support.block_internals import FAMILY_NAMES, Inside, block_modules, look, run_on, weights_of
from support.cases import FEW
from support.formulas import View, _on_grid, formula, stretch
from support.models import call


def gradients(y: Tensor, tensors: list[Tensor]) -> list[Tensor]:
    """dy/dt of each tensor; zero where the score does not depend on it."""
    found = torch.autograd.grad(y, tensors, retain_graph=True, allow_unused=True)
    return [torch.zeros_like(t) if g is None else g for t, g in zip(tensors, found, strict=True)]


def products(token: Tensor, gradient: Tensor) -> Tensor:
    """sum_j T_ij g_ij of each token, (N,), from (1, N, D)."""
    return torch.stack([torch.dot(token[0, i].detach(), gradient[0, i]) for i in range(token.shape[1])])


# --- CDAM ------------------------------------------------------------------------------------------------------------


def cdam_site(v: View) -> str:
    """Purely mean-pooled models are read before the norm."""
    return "block_input" if v.family.readout == "mean" else "tokens"


@formula("cdam")
def cdam(v: View, target: int) -> Tensor:
    inside = look(v)
    tokens = inside.stream[-1] if cdam_site(v) == "block_input" else inside.tokens[-1]
    return _on_grid(v, products(tokens, gradients(inside.logits[target], [tokens])[0]))


def drawn(step: int, *shape: int, seed: int = 0) -> Tensor:
    """Numbers of the library's documented stream: seeded by `seed` and `step`, drawn in whole groups of 16."""
    count = math.prod(shape)
    generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
    groups = (count + 15) // 16
    return torch.randn(16 * groups, generator=generator, dtype=torch.float32)[:count].reshape(shape).double()


@formula("cdam-smooth")
def cdam_smooth(v: View, target: int) -> Tensor:
    site, n = cdam_site(v), FEW["n"]
    inside = look(v)
    tokens = (inside.stream if site == "block_input" else inside.tokens)[-1].detach()
    entries = tokens.flatten()
    spread = math.sqrt(float(((entries - entries.sum() / len(entries)) ** 2).sum()) / len(entries))
    total = torch.zeros_like(v.readout)
    for draw in range(n):
        point = (tokens + 0.1 * spread * drawn(draw, *tokens.shape[1:])).requires_grad_()
        total = total + products(point, gradients(run_on(v, site, point)[target], [point])[0])
    return _on_grid(v, total / n)


def integrated(v: View, target: int, nodes: list[float], weights: list[float], site: str = "tokens") -> Tensor:
    """Scores (N,) of all tokens by a quadrature rule."""
    inside = look(v)
    tokens = (inside.stream if site == "block_input" else inside.tokens)[-1].detach()
    total = torch.zeros_like(tokens)
    for node, weight in zip(nodes, weights, strict=True):
        point = (node * tokens).requires_grad_()
        total = total + weight * gradients(run_on(v, site, point)[target], [point])[0]
    return products(tokens, total)


def gauss(steps: int) -> tuple[list[float], list[float]]:
    """Nodes and weights of Gauss-Legendre on [0, 1]."""
    from scipy.special import roots_legendre

    nodes, weights = roots_legendre(steps)
    return [(x + 1) / 2 for x in nodes], [w / 2 for w in weights]


@formula("cdam-integrated")
def cdam_integrated(v: View, target: int) -> Tensor:
    return _on_grid(v, integrated(v, target, *gauss(FEW["steps"])))


# --- GradToken -------------------------------------------------------------------------------------------------------


def gradtoken_heads(
    v: View,
    target: int,
    aggregation: str = "average",
    propagation: str = "matrix",
    start_block: int = 1,
    center_keys: bool = False,
) -> Tensor:
    """Propagated relevance of each head before heads are joined, (H, N); 0 outside of the scored tokens."""
    inside = look(v)
    last = inside.calls[-1]
    (query_gradient,) = gradients(inside.logits[target], [last.q])
    tokens = last.k.shape[2]
    matrices = [c.matrix[0].detach().mean(0) for c in inside.calls[start_block - 1 : -1]]
    out = []
    for h in range(last.k.shape[1]):
        g = sum(query_gradient[0, h, i] for i in range(tokens))
        keys = [last.k[0, h, j].detach() for j in range(tokens)]
        if center_keys:
            row = v.readout @ last.matrix[0, h].detach()
            middle = sum(row[m] * keys[m] for m in range(tokens))
            keys = [key - middle for key in keys]
        relevance = torch.zeros_like(v.readout)
        for j in v.scored:
            relevance[j] = torch.dot(keys[j], g)
        if matrices and aggregation != "none":
            relevance = _spread(v, matrices, relevance, aggregation, propagation)
        out.append(relevance)
    return torch.stack(out)


def _spread(v: View, matrices: list[Tensor], relevance: Tensor, aggregation: str, propagation: str) -> Tensor:
    unit = torch.eye(len(relevance), dtype=relevance.dtype)
    if aggregation == "average":
        joined = sum(matrices) / len(matrices)
    else:
        joined = unit
        for matrix in matrices:  # lowest block first
            # Element-wise: the top block stands left. As a matrix: the lowest stands left.
            joined = (unit + matrix) @ joined if propagation == "elementwise" else joined @ (unit + matrix)
    if propagation == "elementwise":
        return (v.readout @ joined) * relevance
    return joined @ relevance


@formula("gradtoken")
def gradtoken(v: View, target: int) -> Tensor:
    heads = gradtoken_heads(v, target)
    return _on_grid(v, sum(head.clamp_min(0) for head in heads) / len(heads))


# --- TokenTM ---------------------------------------------------------------------------------------------------------


def transformation(before: Tensor, after: Tensor, weights: str) -> Tensor:
    """rho_j kappa_j of tokens (N, D), one by one."""
    lengths, alike = [], []
    for x, changed in zip(before, after, strict=True):
        lengths.append(changed.norm() / x.norm())
        alike.append(torch.exp(torch.dot(x, changed) / (x.norm() * changed.norm())))
    mean = sum(alike) / len(alike)
    rho, kappa = torch.stack(lengths), torch.stack([a / mean for a in alike])
    return {"length+direction": rho * kappa, "length": rho, "direction": kappa, "none": torch.ones_like(rho)}[weights]


def tokentm_scores(
    v: View,
    target: int,
    weights: str = "length+direction",
    reference: str = "residual",
    heads: str = "folded",
    value_bias: bool = False,
    ffn: bool = True,
    start: str = "lengths",
) -> Tensor:
    """Scores (N,) of all tokens, from the full N x N matrix C."""
    inside, names = look(v), FAMILY_NAMES[v.family.name]
    matrices = [c.matrix for c in inside.calls]
    found = gradients(inside.logits[target], matrices)
    unit = torch.eye(v.readout.numel(), dtype=v.readout.dtype)
    lengths = torch.stack([x.norm() for x in inside.stream[0][0].detach()])
    contribution = torch.diag(lengths) if start == "lengths" else unit
    for b, block in enumerate(block_modules(v)):
        stream, tokens = inside.stream[b][0].detach(), inside.tokens[b][0].detach()
        token = tokens if reference == "normed" else stream
        value, bias, output = weights_of(block, names)
        attention_scale, mlp_scale = _layer_scales(block, names)
        count, width = found[b].shape[1], len(value) // found[b].shape[1]
        positive = [(found[b][0, h] * matrices[b][0, h].detach()).clamp_min(0) for h in range(count)]
        values = torch.stack([value @ t + (bias if value_bias and bias is not None else 0) for t in tokens])
        if heads == "folded":
            changed = torch.stack([attention_scale * (output @ x) for x in values])
            step = sum(positive) / count @ torch.diag(transformation(token, changed, weights))
        else:
            step = torch.zeros_like(unit)
            for h in range(count):
                part = slice(h * width, (h + 1) * width)
                changed = torch.stack([attention_scale * (output[:, part] @ x[part]) for x in values])
                step = step + positive[h] @ torch.diag(transformation(token, changed, weights)) / count
        contribution = contribution + step @ contribution
        if ffn and weights != "none":
            after = mlp_scale * inside.mlp[b][0].detach()
            weight = transformation(inside.middle[b][0].detach(), after, weights)
            contribution = contribution + torch.diag(weight) @ contribution
    return v.readout @ contribution


def _layer_scales(block: Any, names: Any) -> tuple[Any, Any]:
    if names.scales is None:
        return 1.0, 1.0
    first, second = (block.get_parameter(name).detach() for name in names.scales)
    return first, second


@formula("tokentm")
def tokentm(v: View, target: int) -> Tensor:
    return _on_grid(v, tokentm_scores(v, target))


# --- AttCAT and AGCAM ------------------------------------------------------------------------------------------------


@formula("attcat")
def attcat(v: View, target: int) -> Tensor:
    inside = look(v)
    total = torch.zeros_like(v.readout)
    for x, g, attention in zip(
        inside.stream, gradients(inside.logits[target], inside.stream), inside.calls, strict=True
    ):
        matrix = attention.matrix[0].detach()
        count, tokens = matrix.shape[:2]
        received = sum(matrix[h, m] for h in range(count) for m in range(tokens)) / (count * tokens)
        total = total + received * products(x, g)
    return _on_grid(v, total)


def agcam_blocks(inside: Inside, target: int) -> list[Tensor]:
    """Share (N,) of each block."""
    found = gradients(inside.logits[target], [c.matrix for c in inside.calls])
    shares = []
    for attention, gradient in zip(inside.calls, found, strict=True):
        terms = attention.logits[0].detach().sigmoid() * gradient[0].clamp_min(0)
        shares.append(sum(terms[h, i] for h in range(terms.shape[0]) for i in range(terms.shape[1])))
    return shares


@formula("agcam")
def agcam(v: View, target: int) -> Tensor:
    return _on_grid(v, sum(agcam_blocks(look(v, cut="input"), target)))


# --- ViT-CX ----------------------------------------------------------------------------------------------------------


def scaled(grid: Tensor) -> Tensor:
    return (grid - grid.min()) / (grid.max() - grid.min())


def channel_maps(v: View) -> list[Tensor]:
    """Channels of T(L) that vary, each at the size of the image and then scaled to [0, 1]."""
    tokens = look(v).tokens[-1][0].detach()
    (rows, columns), (height, width) = v.family.grid, v.family.size
    grids = [tokens[v.family.prefix :, d].reshape(rows, columns) for d in range(tokens.shape[1])]
    varying = [grid for grid in grids if float(grid.max()) > float(grid.min())]
    return [scaled(stretch(rows, height) @ grid @ stretch(columns, width).T) for grid in varying]


def clusters(maps: list[Tensor], distance: float, most: int | None) -> list[list[int]]:
    """Complete linkage by hand: the two nearest groups are joined until none are within reach."""
    flat = [m.flatten() for m in maps]
    apart = [[1 - float(torch.dot(a, b) / (a.norm() * b.norm())) for b in flat] for a in flat]
    groups = [[i] for i in range(len(maps))]
    while len(groups) > 1:
        far = {
            (a, b): max(apart[i][j] for i in groups[a] for j in groups[b])
            for a in range(len(groups))
            for b in range(a + 1, len(groups))
        }
        (a, b), least = min(far.items(), key=lambda item: item[1])
        if least > distance and (most is None or len(groups) <= most):
            break
        groups[a] += groups.pop(b)
    return groups


def numbered(maps: list[Tensor], groups: list[list[int]]) -> list[list[int]]:
    """The same groups in the order in which scipy numbers them, which says which noise each gets."""
    import numpy as np
    from scipy.cluster.hierarchy import fcluster, linkage
    from scipy.spatial.distance import pdist

    if len(maps) < 2:
        return groups
    tree = linkage(pdist(np.stack([m.flatten().numpy() for m in maps]), "cosine"), "complete")
    labels = fcluster(tree, t=len(groups), criterion="maxclust")
    return sorted(groups, key=lambda group: labels[group[0]])


def masks(v: View, distance: float = 0.1, most: int | None = None) -> list[Tensor]:
    """Masks (H, W) of the clusters, each from 0 to 1."""
    maps = channel_maps(v)
    return [scaled(sum(maps[d] for d in group)) for group in numbered(maps, clusters(maps, distance, most))]


def vit_cx_scores(
    v: View, target: int, distance: float = 0.1, most: int | None = None, noise: float = 0.1, seed: int = 0
) -> Tensor:
    """The map (H, W) before negative scores are cut off."""
    shown, image = masks(v, distance, most), v.inputs[0]
    total, cover = torch.zeros_like(image[0]), torch.zeros_like(image[0])
    with torch.no_grad():
        plain = call(v.model, v.inputs).softmax(1)[0, target]
        for k, mask in enumerate(shown):
            hidden = (1 - mask) * noise * drawn(k, *image.shape, seed=seed)
            seen = call(v.model, (image * mask + hidden)[None]).softmax(1)[0, target]
            whole = call(v.model, (image + hidden)[None]).softmax(1)[0, target]
            total, cover = total + (seen - whole + plain) * mask, cover + mask
    return torch.where(cover > 0, total / cover.where(cover > 0, 1.0), 0.0) / len(shown)


@formula("vit-cx")
def vit_cx(v: View, target: int) -> Tensor:
    return vit_cx_scores(v, target, most=FEW["max_masks"]).clamp_min(0)
