"""Do the gate and the head of a block pull their shared matrix the same way, and where in an image do they?

In a block, `u = W1 h` feeds both. The loss of its own head pulls `W1` by `delta_DS h^T`; the loss of the next head,
which `W1` reaches only through the gate, by `delta_AG h^T`. The cosine of these matrices is that of the two vectors.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mhex._files import writing
from mhex._progress import track
from mhex._settings import check_count
from mhex.capture import full
from mhex.errors import ArgumentError, ArgumentTypeError, CaptureError, some_of, unknown_name, warn
from mhex.heads.call_record import Call, HeadReading
from mhex.heads.explainer_block import wide_dtype
from mhex.heads.heads import Heads, required_heads
from mhex.heads.losses import class_loss
from mhex.heads.predictors import watched
from mhex.inputs.data import labelled_batch, labelled_pieces, select
from mhex.stats.correlation import Correlation, Values, correlate

CellMode = Literal["keep", "occlude"]
CONFIDENCE = "p_orig"
_IMAGES = "pixel_values"


class _Drawing:
    """A result that is drawn by `show`."""

    show: Callable[[], Any]

    def save(self, path: str | PathLike[str]) -> Path:
        """Draw into a file; its suffix (`.png`, `.jpg`, `.pdf`, `.svg`, `.webp`) says how. Folders are made."""
        from mhex.viz import save_figure

        with writing(path):
            Path(path).parent.mkdir(parents=True, exist_ok=True)
        return save_figure(self.show(), path)


@dataclass(frozen=True, eq=False)
class Collaboration(_Drawing):
    """How gates and heads of N samples pulled.

    A cosine is from -1 (against each other) to 1 (the same way), and 0 where one of the two does not pull at all: the
    gate is fixed, the next head is untrained, or no channel is active. The last block has no successor, and no cosine.
    """

    cosine: Tensor  # (N, L - 1)
    blocks: tuple[str, ...]  # names of the L - 1 blocks, in the order in which they run
    heads: tuple[str, ...]  # names of all L heads
    labels: Tensor  # class numbers (N,) or targets (N, n)
    p_orig: Tensor  # probability of the true class, (N,); for several labels, the mean one of the right answers
    losses: Tensor  # loss of each head, (N, L)

    def __len__(self) -> int:
        return int(self.cosine.shape[0])

    def __repr__(self) -> str:
        return f"Collaboration({len(self)} samples, {len(self.blocks)} blocks)"

    def show(self) -> Any:
        """Draw the cosines of each block as a matplotlib figure; notebooks display it."""
        from mhex.viz import cosine_figure

        return cosine_figure(self.cosine, self.blocks)


@dataclass(frozen=True, eq=False)
class Study(_Drawing):
    """Correlations over a data set."""

    rows: tuple[Correlation, ...]  # of each block's cosine with each variable, then of each variable with `p_orig`
    collaboration: Collaboration  # the cosines

    def __repr__(self) -> str:
        return f"Study({len(self.rows)} correlations of {len(self.collaboration)} samples)"

    def table(self) -> str:
        """The rows as a Markdown table."""
        percent = f"{100 * self.rows[0].level:g} %"
        lines = [f"| of | with | r | {percent} interval | r² | p-value | N |", "|---|---|---|---|---|---|---|"]
        for row in self.rows:
            chance = "< 0.0001" if row.p_value < 1e-4 else f"{row.p_value:.4f}"
            numbers = f"{row.coefficient:.3f} | {row.low:.3f} to {row.high:.3f} | {row.squared:.3f}"
            lines.append(f"| {row.first} | {row.second} | {numbers} | {chance} | {row.count} |")
        return "\n".join(lines)

    def show(self) -> Any:
        """Draw each block's coefficients with their intervals as a matplotlib figure; notebooks display it."""
        from mhex.viz import forest_figure

        rows = [row for row in self.rows if row.first in self.collaboration.blocks]
        note = (
            f"Pearson's r over {rows[0].count} samples with {100 * rows[0].level:g} % intervals (Fisher's z), not "
            f"corrected for their number, {len(rows)}."
        )
        return forest_figure([(r.first, r.second, r.coefficient, r.low, r.high) for r in rows], note)


@dataclass(frozen=True, eq=False)
class ConfidenceMap(_Drawing):
    """How much each part of an image brings gates and heads together; see `Scaffold.confidence_map`."""

    map: Tensor  # scaled per image from its least to its largest value, (B, grid, grid) in [0, 1]; constant maps are 0
    raw: Tensor  # the sums of cosines before that, or by how much they fall where a part is hidden, (B, grid, grid)
    images: Tensor  # what was cut into parts, (B, C, H, W)
    labels: Tensor  # of the images
    mode: CellMode  # whether only one part is visible, or only one hidden
    blocks: tuple[str, ...]  # names of the blocks whose cosines were summed

    def __repr__(self) -> str:
        shape = "x".join(map(str, self.map.shape))
        return f"ConfidenceMap({shape}, mode={self.mode!r}, {len(self.blocks)} blocks)"

    def show(self) -> Any:
        """Draw the maps over their images as a matplotlib figure; notebooks display it."""
        from mhex.viz import confidence_figure

        return confidence_figure(self.map, self.raw, self.images, self.mode)


def measure_all(model: nn.Module, inputs: Any, labels: Tensor | None, chunk: int, progress: bool) -> Collaboration:
    """The cosines of `Scaffold.collaboration`."""
    heads = checked_heads(model)
    check_count("chunk", chunk)
    with watched(model, nudge=True, graph=True) as run:
        batches = labelled_pieces(inputs, labels, heads.settings.check_labels, chunk, progress)
        parts = [measure(run, heads, batch, truth) for batch, truth in batches]
    if not parts:
        raise ArgumentError("Expected at least one sample, but the loader gave no batch.")
    names = ("cosine", "labels", "p_orig", "losses")
    columns: dict[str, Any] = {name: torch.cat([getattr(part, name) for part in parts]) for name in names}
    return replace(parts[0], **columns)


def checked_heads(model: nn.Module) -> Heads:
    """The heads of a model, or an ArgumentError if no gate and head share a matrix, or there are no two blocks."""
    heads = required_heads(model)
    coupling, names = heads.settings.coupling, heads.names
    if coupling != "shared" or len(names) < 2:
        raise ArgumentError(
            "Expected at least two blocks, whose gates and heads share a matrix, because a gate is judged by the head "
            f"after it, but got coupling={coupling!r} at {some_of(names)}; attach with coupling='shared', where='all'."
        )
    heads.check_whole("they have no loss")
    return heads


def measure(run: Callable[[Any], Call], heads: Heads, inputs: Any, labels: Tensor) -> Collaboration:
    """Cosines of one batch: one forward pass, and one pass backwards in pieces, each from a head to the gate before."""
    call = run(inputs)
    names = tuple(call.logits)
    binary = heads.settings.binary
    scores = {name: full(y.detach()) for name, y in call.logits.items()}
    labels = labels.to(scores[names[0]].device)
    errors = {name: _error_direction(y, labels, binary) for name, y in scores.items()}
    columns = []
    for name, successor in pairwise(names):
        w2 = cast(nn.Linear, heads[name].w2)  # stripped heads were refused
        supervision = errors[name] @ full(w2.weight.detach()).to(errors[name])  # delta_DS up to a factor, (B, C)
        gate = _gate_pull(call, name, successor, errors[successor])  # delta_AG, likewise
        active = call.blocks[name].features.detach().any(1)
        cosine = F.cosine_similarity(_unit(gate), _unit(supervision)).clamp(-1, 1)  # 0 where one of them is zero
        columns.append(torch.where(active, cosine, 0.0))
    return Collaboration(
        cosine=torch.stack(columns, 1),
        blocks=names[:-1],
        heads=names,
        labels=labels,
        p_orig=_true_probability(full(HeadReading(call, heads).logits.detach()), labels, binary),
        losses=torch.stack([class_loss(y, labels, binary, per_sample=True) for y in scores.values()], 1),
    )


def _error_direction(logits: Tensor, labels: Tensor, binary: bool) -> Tensor:
    """Gradient of each sample's cross-entropy by its class scores, times a positive factor for each sample, (B, n)."""
    target = labels.to(logits.dtype)
    if binary:
        return (1 - target) * logits.sigmoid() - target * (-logits).sigmoid()
    if labels.dim() == 2:
        return logits.softmax(1) * target.sum(1, keepdim=True) - target
    # softmax - one_hot is (1 - p) times this; computed as such, it would lose its digits, and be 0, as p comes near 1.
    rivals = logits.scatter(1, labels[:, None], -torch.inf).softmax(1)
    return rivals.scatter(1, labels[:, None], -1.0)


def _true_probability(logits: Tensor, labels: Tensor, binary: bool) -> Tensor:
    """Probability of the true class, (B,); of several labels the mean probability of the right answer."""
    target = labels.to(logits.dtype)
    if binary:
        return (target * logits.sigmoid() + (1 - target) * (-logits).sigmoid()).mean(1)
    if labels.dim() == 2:
        return (logits.softmax(1) * target).sum(1)
    return logits.softmax(1).gather(1, labels[:, None])[:, 0]


def _gate_pull(call: Call, name: str, successor: str, error: Tensor) -> Tensor:
    """Gradient of the successor's loss by `u` of a block, (B, C), each sample's times a positive factor."""
    scores = call.logits[successor]
    (gradient,) = torch.autograd.grad(
        scores, call.nudges[name], _unit(error).to(scores.dtype), retain_graph=True, allow_unused=True
    )
    if gradient is None:
        raise CaptureError(
            f"The head of {successor} does not see the gate of {name}: they lie on parallel paths; see where=[...]."
        )
    return gradient


def _unit(rows: Tensor) -> Tensor:
    """Rows divided by their largest entry, so that no square of theirs is lost; zero rows stay."""
    largest = rows.abs().amax(1, keepdim=True)
    return torch.where(largest == 0, rows, rows / largest)


def pearson(x: Values, y: Values, level: float = 0.95, names: tuple[str, str] = ("x", "y")) -> Correlation:
    """Pearson's correlation with its p-value and interval; NaN and a warning if a variable does not vary, or N < 3.

    Args:
        x: One value per sample, (N,).
        y: Another, (N,).
        level: Confidence of the interval, between 0 and 1.
        names: What the two are called.

    Example:
        >>> from mhex.heads import pearson
        >>> round(pearson([1.0, 2.0, 3.0, 4.0], [1.0, 3.0, 2.0, 4.0]).coefficient, 3)
        0.8
    """
    row, why = correlate(x, y, level, names)
    if why is not None:
        warn(f"There is no correlation of {names[0]} and {names[1]}: {why}.")
    return row


def study(collaboration: Collaboration, against: Mapping[str, Values] | None = None, level: float = 0.95) -> Study:
    """Correlations of cosines from `Scaffold.collaboration`; other arguments as for `Scaffold.collaboration_study`."""
    if against is not None and not isinstance(against, Mapping):
        raise ArgumentTypeError(f"Expected against= as {{'SAD': values (N,)}}, but got {type(against).__name__}.")
    variables = dict(against or {})
    if reserved := {CONFIDENCE, *collaboration.blocks} & variables.keys():
        raise ArgumentError(f"Expected other names in against= than {', '.join(sorted(reserved))}, which are taken.")
    cosines = dict(zip(collaboration.blocks, collaboration.cosine.unbind(1), strict=True))
    pairs: list[tuple[str, Values, str, Values]] = [
        (block, cosine, name, values)
        for name, values in {CONFIDENCE: collaboration.p_orig, **variables}.items()
        for block, cosine in cosines.items()
    ]
    pairs += [(name, values, CONFIDENCE, collaboration.p_orig) for name, values in variables.items()]
    results = [correlate(x, y, level, (first, second)) for first, x, second, y in pairs]
    reasons = [why for _, why in results if why is not None]
    if reasons:
        words = "; ".join(dict.fromkeys(reasons))
        warn(f"{len(reasons)} of {len(results)} correlations do not exist and are NaN: {words}.")
    return Study(tuple(row for row, _ in results), collaboration)


def confidence_map(
    model: nn.Module, inputs: Any, labels: Any, grid: int, mode: CellMode, blocks: str, chunk: int, progress: bool
) -> ConfidenceMap:
    """The map of `Scaffold.confidence_map`."""
    heads = checked_heads(model)
    check_count("chunk", chunk)
    if mode not in get_args(CellMode):
        raise unknown_name("mode", str(mode), get_args(CellMode))
    count = _count(blocks, len(heads.settings.junctions) - 1)
    _images(inputs)  # first: without a batch axis the labels would be blamed
    inputs, labels = labelled_batch(inputs, labels, heads.settings.check_labels)
    device = next(heads.parameters()).device
    images = _images(inputs).to(device)
    visible = cell_masks(images.shape[2], images.shape[3], grid).to(device)
    if mode == "occlude":  # and the whole image last, from whose cosines the others are taken
        visible = torch.cat([~visible, torch.ones_like(visible[:1])])
    mean = images.mean((2, 3), dtype=wide_dtype(images), keepdim=True).to(images.dtype)
    sums = []
    with watched(model, nudge=True, graph=True) as run:
        every = torch.arange(len(images) * len(visible), device=device)
        for part in track(torch.split(every, chunk), "Confidence map", progress):
            sample = part // len(visible)
            copies: Any = torch.where(visible[part % len(visible), None], images[sample], mean[sample])
            if isinstance(inputs, Mapping):
                copies = {**select(inputs, sample.cpu(), len(images)), _IMAGES: copies}
            measurement = measure(run, heads, copies, labels[sample.to(labels.device)])
            sums.append(measurement.cosine[:, -count:].sum(1))
    raw = torch.cat(sums).reshape(len(images), len(visible))
    if mode == "occlude":
        raw = raw[:, -1:] - raw[:, :-1]
    low, high = raw.amin(1, keepdim=True), raw.amax(1, keepdim=True)
    scaled = torch.where(high == low, 0.0, (raw - low) / (high - low))
    shape = (len(images), grid, grid)
    return ConfidenceMap(scaled.reshape(shape), raw.reshape(shape), images, labels, mode, measurement.blocks[-count:])


def cell_masks(height: int, width: int, grid: int) -> Tensor:
    """The parts of an image, row by row, bool (grid * grid, H, W); it is cut at `floor(i * H / grid)`."""
    check_count("grid", grid, most=min(height, width))
    edges = (torch.arange(1, grid + 1) * size // grid for size in (height, width))
    rows, columns = (torch.bucketize(torch.arange(int(end[-1])), end, right=True) for end in edges)
    return rows[:, None] * grid + columns == torch.arange(grid * grid)[:, None, None]


def _count(blocks: str, available: int) -> int:
    """How many of the blocks, counted from the last."""
    if blocks == "all":
        return available
    number = re.fullmatch(r"last([1-9]\d*)", blocks) if isinstance(blocks, str) else None
    if number is None:
        raise unknown_name("choice of blocks", str(blocks), ("all", "last3"))
    if int(number.group(1)) > available:
        raise ArgumentError(f"Expected at most {available} blocks, but got blocks={blocks!r}; use 'all'.")
    return int(number.group(1))


def _images(inputs: Any) -> Tensor:
    images = inputs.get(_IMAGES) if isinstance(inputs, Mapping) else inputs
    if isinstance(images, Tensor) and images.is_floating_point() and images.dim() == 4:
        return images
    came = f"the arguments {', '.join(inputs)}" if isinstance(inputs, Mapping) else type(images).__name__
    came = f"{tuple(images.shape)} ({images.dtype})" if isinstance(images, Tensor) else came
    raise ArgumentError(
        f"Expected images (B, C, H, W), as a tensor or as {_IMAGES!r}, but got {came}: pass a single image, and its "
        "label, as image[None]; for texts there is Scaffold.collaboration."
    )
