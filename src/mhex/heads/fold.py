"""Folding: from a model with heads to one that can be shipped."""

import copy
import inspect
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mhex.capture import read_logits
from mhex.capture.batch import kept_tokens, tells_padding
from mhex.capture.hooks import unfollow_calls
from mhex.errors import ArgumentError, UnsupportedModelError
from mhex.heads.call_record import HeadReading, decided
from mhex.heads.explainer_block import (
    Coupling,
    ExplainerBlock,
    channel_axis,
    class_scores,
    gated_sum,
    pooled_sum,
    pooled_target,
)
from mhex.heads.heads import PREFIX, Heads, Source, required_heads
from mhex.heads.losses import running_sum
from mhex.heads.predictors import call_model, watched
from mhex.heads.wiring.graft import kind_of_unit, plant, ungraft
from mhex.heads.wiring.residual import Junction, closing_norm, survey
from mhex.inputs.data import unlabelled

Gate = Literal["dynamic"] | Tensor | None
HeadForm = Literal["folded", "exact"] | None
Reads = Literal["hidden", "u", "gated"]
_M = TypeVar("_M", bound=nn.Module)


class FoldedBlock(nn.Module):
    """A gate and perhaps a head on one residual connection: mean, ReLU, matrix product, sigmoid, multiplication.

    The matrices of `block` are copied, and `prefix_tokens` left out of the pooling. The gate is the block's own
    (`"dynamic"`), fixed factors (C,), or None for 1; unless it `flows`, only a head that couples `"separate"` reads it.
    The head is `"folded"` (both matrices multiplied into one, (n, C)), `"exact"` (computed as in the block) or None.
    """

    factors: Tensor | None
    intercept: Tensor | None

    def __init__(
        self, block: ExplainerBlock, prefix_tokens: int, gate: Gate, head: HeadForm = None, flows: bool = True
    ) -> None:
        super().__init__()
        self.channels, self.relu, self.gate_target = block.channels, block.relu, block.gate_target
        self.channels_last, self.branch_first = block.channels_last, block.branch_first
        self.prefix_tokens, self.flows = prefix_tokens, flows
        self.offset, self.scale = float(1 - block.strength), float(block.strength * block.kappa)
        shared: Reads = "hidden" if head == "folded" else "u"
        reads: dict[Coupling, Reads] = {"shared": shared, "separate": "gated", "head_only": "hidden"}
        self.reads = None if head is None else reads[block.coupling]
        self.computes_gate = isinstance(gate, str) and (flows or self.reads == "gated")
        gated = self.computes_gate or self.reads == "u"
        self.w1 = _linear(block.w1.weight) if block.w1 is not None and gated else None
        exact = block.w2 if head == "exact" else None
        matrix = None if head is None else block.equivalent_matrix() if exact is None else exact.weight
        self.w2 = None if matrix is None else _linear(matrix)
        intercept = None if head is None or block.intercept is None else block.intercept.detach().clone()
        self.register_buffer("factors", gate.detach()[None].clone() if isinstance(gate, Tensor) else None)
        self.register_buffer("intercept", intercept)
        self.sink: list[Tensor] | None = None  # of a copy that lives for one call, see `Folded`

    def forward(self, x: Tensor, r: Tensor, masks: Mapping[str, Any]) -> Tensor:
        """Join a shortcut and a branch as `ExplainerBlock` does; `masks` are those of the unit, by name."""
        axis, device = channel_axis(x, self.channels, self.channels_last), x.device.type
        keep = self._keep(x, masks)
        # Sums in full precision; entered only where autocast is on, so that it leaves no mark in an exported graph.
        autocast = torch.is_autocast_enabled(device)
        with torch.autocast(device, enabled=False) if autocast else nullcontext():
            _, hidden = pooled_sum(x, r, axis, keep, self.relu)
            u = None if self.w1 is None else F.linear(hidden, self.w1.weight.to(hidden.dtype))
            gate = self.factors
            if self.computes_gate and u is not None:
                gate = self.offset + self.scale * torch.sigmoid(u)
            if self.sink is not None and self.w2 is not None:
                features = u if self.reads == "u" and u is not None else hidden
                if self.reads == "gated":
                    features = pooled_target(x, r, axis, keep, self.gate_target)
                    features = features if gate is None else gate.to(features.dtype) * features
                self.sink.append(class_scores(features, self.w2, self.intercept))
        return gated_sum(gate if self.flows else None, x, r, axis, self.gate_target, self.branch_first)

    def _keep(self, x: Tensor, masks: Mapping[str, Any]) -> Tensor | None:
        """Weights (B, T) of the tokens in the pooling; None for all alike."""
        if x.dim() != 3:
            return None
        keep, _ = kept_tokens(masks, {}, x.shape[0], x.shape[1])
        if not self.prefix_tokens:
            return keep
        real = (torch.arange(x.shape[1], device=x.device) >= self.prefix_tokens).expand(x.shape[0], -1)
        return real if keep is None else keep & real


class Folded(nn.Module):
    """A model whose class scores come from its heads, `FoldedBlock` modules in `host` with the names `speaking`.

    What a head says, deep inside the model, must come out, and nothing is kept on the modules for that: every call
    makes shallow copies of the modules on the way to the heads (not of their weights) and hands them one list.
    """

    def __init__(self, host: nn.Module, speaking: Sequence[str], heads: Heads, source: Source) -> None:
        super().__init__()
        self.host, self.speaking, self.num_classes = host, tuple(speaking), heads.settings.num_classes
        self.decay = heads.decay if source == "sum" else None  # of the running sum; None for the last head alone
        self.joined = heads.joined  # whether the host's own classifier is a term of that sum
        self.ending = heads.ending  # how the host makes probabilities of its logits; None if it returns logits

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Class scores (B, n) of inputs as the host takes them."""
        scores: list[Tensor] = []
        output = _with_sink(self.host, [name.split(".") for name in self.speaking], scores)(*args, **kwargs)
        if self.decay is None:
            return scores[-1]
        return running_sum([*scores, *(self._classifier(output) if self.joined else [])], self.decay)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """The class of a folded model exists in the process that made it only: a pickle makes it again."""
        reduced = cast(tuple[Any, ...], super().__reduce_ex__(protocol))
        return _blank, (kind_of_unit(self.host),), *reduced[2:]

    def _classifier(self, output: Any) -> list[Tensor]:
        """Class scores of the host's own classifier, if it has as many."""
        try:
            scores = read_logits(output)
        except UnsupportedModelError:
            return []
        scores = scores if self.ending is None else self.ending.logits(scores)
        return [scores] if scores.shape[1] == self.num_classes else []


def _taking(host: type[nn.Module]) -> type[Folded]:
    """A class whose forward has the arguments of the host's, because exporters ask for them by name."""

    def forward(self: Folded, *args: Any, **kwargs: Any) -> Tensor:
        return Folded.forward(self, *args, **kwargs)

    signature = inspect.signature(host.forward).replace(return_annotation=Tensor)
    forward.__signature__ = signature  # type: ignore[attr-defined]
    return type(Folded.__name__, (Folded,), {"forward": forward, "__module__": Folded.__module__})


def _blank(host: type[nn.Module]) -> Folded:
    kind = _taking(host)
    return kind.__new__(kind)


def _with_sink(module: _M, paths: Sequence[Sequence[str]], sink: list[Tensor]) -> _M:
    """A shallow copy of a module in which the blocks at `paths` write to `sink`; the module stays as it is."""
    twin = object.__new__(type(module))
    twin.__dict__.update(module.__dict__)
    if paths == [[]]:
        twin.sink = sink  # type: ignore[assignment]
        return twin
    children = dict(module._modules)
    for name in dict.fromkeys(path[0] for path in paths):
        child = cast(nn.Module, children[name])
        children[name] = _with_sink(child, [path[1:] for path in paths if path[0] == name], sink)
    twin.__dict__["_modules"] = children
    return twin


def _linear(weight: Tensor) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    layer.weight = nn.Parameter(weight.detach().clone(), requires_grad=False)
    return layer


@dataclass(frozen=True)
class Change:
    """How far class scores moved on some data."""

    samples: int  # how many were compared
    max_change: float  # largest change of a class score
    mean_change: float  # mean change of a class score, without its sign
    top1_agreement: float  # part of the samples whose predicted class stayed; for several labels, of the decisions


@dataclass(frozen=True)
class StaticFoldReport:
    """What fixed gates changed."""

    calibration: Change  # on the data that the gates were averaged over
    test: Change | None  # on other data, if there was any; the honest number
    spread: dict[str, float]  # largest deviation of a gate's channel, by block: what was thrown away

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values."""
        return asdict(self)

    def __str__(self) -> str:
        lines = [
            f"{name}: class scores of {c.samples} samples moved by at most {c.max_change:.3g}, by "
            f"{c.mean_change:.3g} on average; {c.top1_agreement:.1%} of the predictions stayed."
            for name, c in (("Calibration data", self.calibration), ("Other data", self.test))
            if c is not None
        ]
        return "\n".join(lines)


def fold_static(
    model: nn.Module, heads: Heads, source: Source, data: Any, test: Any = None
) -> tuple[nn.Module, StaticFoldReport]:
    """Fold with every gate fixed at its mean over some data; see `Scaffold.fold_static`."""
    means, spread = _gate_means(model, data)
    folded = fold_model(model, heads, source, means)
    calibration = _change(model, heads, source, folded, data)
    change = None if test is None else _change(model, heads, source, folded, test)
    return folded, StaticFoldReport(calibration, change, spread)


def _gate_means(model: nn.Module, data: Any) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Mean over samples of every gate, (C,), and the largest deviation from it, by name of the block."""
    count = 0
    sums: dict[str, Tensor] = {}
    squares: dict[str, Tensor] = {}
    with watched(model) as run:
        for inputs in unlabelled(data):
            gates = {name: block.gate.double() for name, block in run(inputs).blocks.items()}
            count += next(iter(gates.values())).shape[0]
            for name, gate in gates.items():
                sums[name] = sums.get(name, 0) + gate.sum(0)
                squares[name] = squares.get(name, 0) + gate.square().sum(0)
    if not count:
        raise ArgumentError("Expected some data to average the gates over, but the loader was empty (or used up).")
    means = {name: total / count for name, total in sums.items()}
    variances = {name: squares[name] / count - mean.square() for name, mean in means.items()}
    spread = {name: float(variance.clamp_min(0).sqrt().max()) for name, variance in variances.items()}
    return {name: mean.float() for name, mean in means.items()}, spread


def _change(model: nn.Module, heads: Heads, source: Source, folded: nn.Module, data: Any) -> Change:
    before: list[Tensor] = []
    after: list[Tensor] = []
    with watched(model) as run:
        for inputs in unlabelled(data):
            before.append(HeadReading(run(inputs), heads).scores(source).double())
            logits = read_logits(call_model(folded, inputs))
            ending = heads.ending if source == "classifier" else None
            after.append((logits if ending is None else ending.logits(logits)).double())
    if not before:
        raise ArgumentError("Expected a loader that can be gone through again, but it gave nothing this time.")
    first, second = torch.cat(before), torch.cat(after)
    moved = (second - first).abs()
    agree = decided(second, heads.settings.multi_label) == decided(first, heads.settings.multi_label)
    return Change(len(first), float(moved.max()), float(moved.mean()), float(agree.double().mean()))


def fold_model(
    model: nn.Module, heads: Heads, source: Source, factors: Mapping[str, Tensor] | None = None
) -> nn.Module:
    """The module of `Scaffold.fold`; `factors` (C,) by name of a junction take the place of its gate."""
    last = heads.last_name() if source == "last_head" else None
    if heads.settings.exclude_special and not heads.prefix_tokens:
        raise ArgumentError("Units of a folded model do not see the token ids; attach with exclude_special=False.")
    needed = heads.names if source == "sum" else () if last is None else (last,)
    if needed:
        heads.check_whole(f"{source!r} cannot predict", needed)
    host = without_heads(copy.deepcopy(model))
    junctions = [junction for junction in survey(host).junctions if junction.name in heads.places]
    _check_masks(host, heads, junctions)
    joins: dict[Junction, nn.Module] = {}
    prefix = heads.prefix_tokens if heads.settings.exclude_special else 0
    for junction in junctions:
        block = heads[junction.name]
        gate: Gate = "dynamic" if factors is None else factors[junction.name]
        if block.gate_state() in ("none", "off"):
            gate = None
        if junction.name == last:  # nothing reads what flows on past the last head
            joins[junction] = FoldedBlock(block, prefix, gate, "folded", flows=False)
        elif source == "sum":
            joins[junction] = FoldedBlock(block, prefix, gate, "exact" if factors is None else "folded")
        elif isinstance(gate, str) or (gate is not None and not _absorb(host, junction, gate, block)):
            joins[junction] = FoldedBlock(block, prefix, gate)
    names = plant(host, joins)
    if source != "classifier":
        speaking = [names[junction.name] for junction in joins if source == "sum" or junction.name == last]
        host = _taking(type(host))(host, speaking, heads, source)
    return host.requires_grad_(False).eval()


def without_heads(model: nn.Module) -> nn.Module:
    """Take the heads off a model, which keeps its weights and loses its gates."""
    ungraft(model)
    unfollow_calls(model, required_heads(model))
    del model._modules[PREFIX]
    return model


def _check_masks(host: nn.Module, heads: Heads, junctions: Sequence[Junction]) -> None:
    """A folded unit sees its own arguments alone, so it must be given the mask of padding if the host takes one."""
    for junction in junctions if heads.mask_places else []:
        arguments = inspect.signature(type(host.get_submodule(junction.unit)).forward).parameters
        if junction.kind == "token" and not tells_padding(arguments):
            words = f"In a folded model {junction.name} sees its own arguments alone"
            masks = ", ".join(heads.mask_places)
            raise ArgumentError(
                f"{words}: hand {masks} to it in the model's forward, or leave it out with where=[...]."
            )


def _absorb(host: nn.Module, junction: Junction, gate: Tensor, block: ExplainerBlock) -> bool:
    """Multiply fixed gates into the batch norm that ends a shortcut; False if there is none."""
    if block.gate_target == "sum" or (norm := closing_norm(host, junction)) is None:
        return False
    for parameter in (norm.weight, norm.bias):
        parameter.data = parameter.data * gate.to(parameter)
    return True
