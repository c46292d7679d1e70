"""Every method written a second time, from its paper's formula, in plain loops over samples and blocks.

Nothing here uses `mhex.capture`. Attention is seen by putting a softmax that is written out where the models call
torch's fused kernel, so that the matrix A is a tensor of the autograd graph; products over blocks are full N x N
matrix products; one sample is explained at a time, texts without padding.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from support.attention import attention_by, shares_of
from support.models import Family, call


@dataclass
class View:
    """One sample of a model, seen from the inside.

    Attributes:
        family: Which family the model is of.
        model: The model.
        inputs: The sample, a batch of one.
        logits: (C,), in the graph.
        attention: A of every block, each (H, N, N), in the graph.
        pooling: A of an attention-pooling head, (H, 1, N), if there is one.
        readout: w, (N,): what the head reads of each token.
        scored: Positions of patches or words.
    """

    family: Family
    model: nn.Module
    inputs: Any
    logits: Tensor
    attention: list[Tensor]
    pooling: Tensor | None
    readout: Tensor
    scored: list[int]

    def attention_gradients(self, target: int) -> list[Tensor]:
        """dy/dA of every block; zero where the score does not depend on it."""
        gradients = torch.autograd.grad(self.logits[target], self.attention, retain_graph=True, allow_unused=True)
        return [torch.zeros_like(a) if g is None else g for a, g in zip(self.attention, gradients, strict=True)]


Formula = Callable[[View, int], Tensor]
FORMULAS: dict[str, Formula] = {}


def formula(name: str) -> Callable[[Formula], Formula]:
    """Register the second formula of a method: from a view and a class to scores, (h, w) or (T,)."""

    def keep(function: Formula) -> Formula:
        FORMULAS[name] = function
        return function

    return keep


@contextlib.contextmanager
def written_out_attention() -> Iterator[list[Tensor]]:
    """While open, every attention is computed by a written-out softmax; yields the list of matrices A (B, H, N, N)."""
    seen: list[Tensor] = []

    def steps(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float) -> Tensor:
        seen.append(shares_of(query @ key.mT * scale + mask))
        return seen[-1] @ value

    with attention_by(steps):
        yield seen


def view(family: Family, model: nn.Module, inputs: Any) -> View:
    """Run one sample (a batch of one) with the attention written out."""
    if family.blocks:
        with written_out_attention() as seen:
            logits = call(model, inputs)
        attention = [matrix[0] for matrix in seen]
        # The blocks' graph must reach A itself, so the tensors asked for are those before taking the sample.
        view_ = View(family, model, inputs, logits[0], seen[: family.blocks], None, torch.empty(0), [])
        view_.pooling = attention[family.blocks] if len(attention) > family.blocks else None
        assert len(seen) == family.blocks + (view_.pooling is not None)
        view_.readout, view_.scored = _readout(view_), _scored(view_)
        return view_
    return View(family, model, inputs, call(model, inputs)[0], [], None, torch.empty(0), [])


def _scored(v: View) -> list[int]:
    tokens = v.attention[0].shape[-1]
    # Texts: all but the first and the last token, which are special in the samples of these tests.
    return list(range(v.family.prefix, tokens)) if v.family.size is not None else list(range(1, tokens - 1))


def _readout(v: View) -> Tensor:
    """The table of read-out vectors; unknown architectures are measured by the gradient at the last block's output."""
    tokens = v.attention[0].shape[-1]
    w = torch.zeros(tokens, dtype=v.logits.dtype)
    patches = range(v.family.prefix, tokens)
    match v.family.readout:
        case "class":
            w[0] = 1
        case "class+distilled":
            w[0] = w[1] = 1 / 2
        case "mean":
            for i in patches:
                w[i] = 1 / len(patches)
        case "class+mean":
            w[0] = 1 / 2
            for i in patches:
                w[i] = 1 / (2 * len(patches))
        case "pool":
            w = v.pooling.detach()[:, 0].mean(0)
        case "measured":
            w = _measured_readout(v)
    assert abs(float(w.sum()) - 1) < 1e-12
    return w


def _measured_readout(v: View) -> Tensor:
    """Shares of the lengths of dy/dX of the last block's output, y the highest score."""
    last = (v.model.encoder.layers if hasattr(v.model, "encoder") else v.model.blocks)[-1]
    outputs: list[Tensor] = []
    handle = last.register_forward_hook(lambda module, args, output: outputs.append(output))
    with written_out_attention():
        y = call(v.model, v.inputs)[0].max()
    handle.remove()
    (gradient,) = torch.autograd.grad(y, outputs[-1])
    lengths = gradient[0].pow(2).sum(-1).sqrt()
    return lengths / lengths.sum()


def _on_grid(v: View, scores: Tensor) -> Tensor:
    """Token scores (N,) as a grid of patches, or as text scores with zeros at special tokens."""
    if v.family.size is None:
        out = torch.zeros_like(scores)
        for i in v.scored:
            out[i] = scores[i]
        return out
    rows, columns = v.family.grid
    return torch.stack(
        [torch.stack([scores[v.family.prefix + r * columns + c] for c in range(columns)]) for r in range(rows)]
    )


# --- the methods -----------------------------------------------------------------------------------------------------


@formula("attention")
def attention(v: View, target: int) -> Tensor:
    last = v.attention[-1][0]
    scores = sum(v.readout @ last[h] for h in range(len(last))) / len(last)
    return _on_grid(v, scores.detach())


@formula("rollout")
def rollout(v: View, target: int) -> Tensor:
    product = torch.eye(v.readout.numel(), dtype=v.readout.dtype)
    for matrix in v.attention:
        product = (matrix[0].mean(0).detach() + torch.eye(len(product), dtype=product.dtype)) / 2 @ product
    return _on_grid(v, v.readout @ product)


@formula("attention-flow")
def attention_flow(v: View, target: int) -> Tensor:
    """Maximum flow from the read-out to each token of the input, as a linear programme in real numbers."""
    matrices = [(m[0].mean(0).detach() + torch.eye(m.shape[-1], dtype=m.dtype)) / 2 for m in v.attention]
    scores = torch.zeros_like(v.readout)
    for token in v.scored:
        scores[token] = maximum_flow(matrices, v.readout, token)
    return _on_grid(v, scores)


def maximum_flow(matrices: list[Tensor], source: Tensor, sink: int) -> float:
    """Largest total of flows f(b, i, j) <= A(b)[i, j] that start with at most w_i at the top and all end in `sink`."""
    import numpy as np
    from scipy.optimize import linprog
    from scipy.sparse import lil_matrix

    layers, n = len(matrices), len(source)
    count = layers * n * n

    def edge(b: int, i: int, j: int) -> int:
        return (b * n + i) * n + j

    capacity = [float(matrices[b][i, j]) for b in range(layers) for i in range(n) for j in range(n)]
    # All that reaches the bottom must be in the sink.
    capacity = [c if k >= n * n or k % n == sink else 0.0 for k, c in enumerate(capacity)]
    balance = lil_matrix(((layers - 1) * n, count))
    for b in range(layers - 1):  # node (b, j): what comes from above leaves below
        for node in range(n):
            for other in range(n):
                balance[b * n + node, edge(b + 1, other, node)] += 1
                balance[b * n + node, edge(b, node, other)] -= 1
    start = lil_matrix((n, count))
    for node in range(n):
        for other in range(n):
            start[node, edge(layers - 1, node, other)] = 1
    gain = np.zeros(count)
    gain[[edge(0, i, sink) for i in range(n)]] = -1
    solved = linprog(
        gain,
        A_ub=start.tocsr(),
        b_ub=source.tolist(),
        A_eq=balance.tocsr() if layers > 1 else None,
        b_eq=np.zeros((layers - 1) * n) if layers > 1 else None,
        bounds=list(zip([0.0] * count, capacity, strict=True)),
        method="highs",
    )
    assert solved.success
    return -float(solved.fun)


@formula("attention-gradcam")
def attention_gradcam(v: View, target: int) -> Tensor:
    matrix, gradient = v.attention[-1][0].detach(), v.attention_gradients(target)[-1][0]
    total = torch.zeros_like(v.readout)
    for h in range(len(matrix)):
        weight = sum(float(gradient[h, :, j].sum()) for j in v.scored) / len(v.scored)
        total = total + weight * (v.readout @ matrix[h])
    return _on_grid(v, (total / len(matrix)).clamp_min(0))


@formula("gae")
def gae(v: View, target: int) -> Tensor:
    relevance = torch.eye(v.readout.numel(), dtype=v.readout.dtype)
    for matrix, gradient in zip(v.attention, v.attention_gradients(target), strict=True):
        positive = (matrix[0].detach() * gradient[0]).clamp_min(0).mean(0)
        relevance = relevance + positive @ relevance
    return _on_grid(v, v.readout @ relevance)


def feature_maps(v: View, target: int) -> tuple[Tensor, Tensor]:
    """The maps (K, h, w) of the family's feature layer and their gradient."""
    outputs: list[Tensor] = []

    def keep(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        outputs.append(output)
        return output.clone()  # what follows may write in place

    handle = v.model.get_submodule(v.family.features).register_forward_hook(keep)
    y = call(v.model, v.inputs)[0, target]
    handle.remove()
    (gradient,) = torch.autograd.grad(y, outputs[-1])
    found = []
    for tensor in (outputs[-1].detach()[0], gradient[0]):
        if v.family.layout == "tokens":
            rows, columns = v.family.grid
            tensor = tensor[v.family.prefix :].reshape(rows, columns, -1).permute(2, 0, 1)
        elif v.family.layout == "nhwc":
            tensor = tensor.permute(2, 0, 1)
        found.append(tensor)
    return found[0], found[1]


@formula("gradcam")
def gradcam(v: View, target: int) -> Tensor:
    maps, gradient = feature_maps(v, target)
    total = sum(gradient[k].mean() * maps[k] for k in range(len(maps)))
    return total.clamp_min(0)


@formula("layercam")
def layercam(v: View, target: int) -> Tensor:
    maps, gradient = feature_maps(v, target)
    total = sum(gradient[k].clamp_min(0) * maps[k] for k in range(len(maps)))
    return total.clamp_min(0)


@formula("input-x-gradient")
def input_x_gradient(v: View, target: int) -> Tensor:
    if v.family.size is not None:
        pixels = v.inputs.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(call(v.model, pixels)[0, target], pixels)
        return (pixels.detach() * gradient)[0].sum(0)
    outputs: list[Tensor] = []
    handle = v.model.get_input_embeddings().register_forward_hook(lambda module, args, output: outputs.append(output))
    y = call(v.model, v.inputs)[0, target]
    handle.remove()
    (gradient,) = torch.autograd.grad(y, outputs[0])
    return _on_grid(v, (outputs[0].detach() * gradient)[0].sum(-1))


# --- heads ------------------------------------------------------------------------------------------------------------

# Where shortcut and branch can be read in each family: submodules of a unit, and whether their input or their output.
_JOINTS: dict[str, tuple[str, tuple[str, str], tuple[str, str]]] = {
    "tv_resnet_heads": (r"layer\d\.0", ("downsample|", "out|in"), ("bn2", "out")),
    "timm_convnext_heads": (r"stages\.\d\.blocks\.0", ("shortcut|", "out|in"), ("drop_path", "out")),
    "timm_vit_heads": (r"blocks\.\d", ("norm2", "in"), ("drop_path2", "out")),
    "tv_vit_heads": (r"encoder\.layers\.encoder_layer_\d", ("ln_2", "in"), ("mlp", "out")),
    "hf_bert_heads": (r"bert\.encoder\.layer\.\d", ("attention.output.LayerNorm", "out"), ("output.dense", "out")),
    "hf_distilbert_heads": (r"distilbert\.transformer\.layer\.\d", ("sa_layer_norm", "out"), ("ffn", "out")),
    "plain_cnn_heads": (r"", ("third", "in"), ("third", "out")),
}


def joints(v: View) -> list[tuple[Tensor, Tensor]]:
    """Shortcut x and branch r of every unit, each (C, positions), seen by hooks on the host's own layers."""
    pattern, shortcut, branch = _JOINTS[v.family.name]
    units = [module for name, module in v.model.named_modules() if re.fullmatch(pattern, name)]
    seen: list[dict[str, Tensor]] = [{} for _ in units]
    handles = []
    for unit, kept in zip(units, seen, strict=True):
        for what, (names, ends) in (("x", shortcut), ("r", branch)):
            choices = list(zip(names.split("|"), ends.split("|"), strict=True))
            name, end = next((n, e) for n, e in choices if not n or getattr(unit, n.split(".")[0], None) is not None)
            handles.append(_keep(unit.get_submodule(name), end, what, kept))
    with torch.no_grad():
        call(v.model, v.inputs)
    for handle in handles:
        handle.remove()
    pairs = []
    for kept in seen:
        x, r = kept["x"][0], kept["r"][0]
        pairs.append((x.flatten(1), r.flatten(1)) if x.dim() == 3 else (x.T, r.T))
    return pairs


def _keep(module: nn.Module, end: str, what: str, kept: dict[str, Tensor]) -> Any:
    if end == "in":
        return module.register_forward_pre_hook(lambda m, args: kept.update({what: args[0].clone()}))
    return module.register_forward_hook(lambda m, args, output: kept.update({what: output.clone()}))


def class_row(matrix: Tensor, target: int, alpha: float, sharpness: float) -> Tensor:
    """Adjusted weights of one class, channel by channel."""
    row = torch.zeros_like(matrix[target])
    for k in range(matrix.shape[1]):
        column = matrix[:, k].tolist()
        value = column[target]
        same_sign = sum(abs(w) for w in column if (w > 0) == (value > 0) and w != 0)
        if value != 0 and abs(value) / (same_sign + 1e-8) > sharpness:
            row[k] = value if value > 0 else alpha * value
    return row


def stretch(count: int, size: int) -> Tensor:
    """Matrix (size, count) of linear interpolation between cell centres, constant beyond the outermost."""
    matrix = torch.zeros(size, count, dtype=torch.float64)
    for pixel in range(size):
        place = min(max((pixel + 0.5) * count / size - 0.5, 0.0), count - 1.0)
        left = int(place)
        matrix[pixel, left] += 1 - (place - left)
        if place > left:
            matrix[pixel, left + 1] += place - left
    return matrix


@formula("mhex")
def mhex(v: View, target: int) -> Tensor:
    """Images: alpha 0.5, sharpness 1/n + 0.1, factor 0.9, g x + r. Text: the plain weights on x + r, three layers."""
    text = v.family.size is None
    weights = v.model.state_dict()
    pairs = joints(v)[: 3 if text else None]
    total = 0.0
    for number, (x, r) in enumerate(pairs):
        w1, w2 = (weights[f"mhex.blocks.{number}.{name}.weight"] for name in ("w1", "w2"))
        matrix = w2 @ w1
        h = (x + r).mean(1).clamp_min(0)
        gate = 2 / (1 + (-(w1 @ h)).exp())
        normed = v.family.name in ("hf_bert_heads", "hf_distilbert_heads")
        gated = gate[:, None] * (x + r) if normed else gate[:, None] * x + r
        if text:
            row, activation, factor = matrix[target], x + r, 1.0
        else:
            row = class_row(matrix, target, 0.5, 1 / len(matrix) + 0.1)
            activation, factor = gated, 0.9 ** (len(pairs) - 1 - number)
        scores = sum(row[k] * activation[k] for k in range(len(row)))
        total = total + factor * _spread_out(v, scores)
    return total


def _spread_out(v: View, scores: Tensor) -> Tensor:
    """Scores of positions as a map, at the size of the image where grids differ, or of words."""
    if v.family.grid is not None or v.family.size is None:
        return _on_grid(v, scores)
    height, width = v.family.size
    rows = round(math.sqrt(len(scores) * height / width))
    grid = scores.reshape(rows, -1)
    if v.family.head_grid is not None:
        return grid
    return stretch(rows, height) @ grid @ stretch(grid.shape[1], width).T
