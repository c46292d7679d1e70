"""Folding: from a model with heads to one that can be shipped."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mhex.capture import Ending, read_logits
from mhex.capture.masks import kept_tokens, tells_padding
from mhex.errors import ArgumentError, CaptureError, UnsupportedModelError, some_of
from mhex.heads.block import Block, GateTarget, channel_axis, gated_sum, pool, pooled_sum
from mhex.heads.call_record import Reading, decided
from mhex.heads.heads import PREFIX, Heads, Source, required_heads
from mhex.heads.losses import running_sum
from mhex.heads.predictors import call_model, watched
from mhex.heads.strip import gate_state, last_of
from mhex.heads.wiring.graft import plant, ungraft, unsettle
from mhex.heads.wiring.residual import Junction, closing_norm, find_junctions
from mhex.inputs.data import unlabelled

Reads = Literal["hidden", "u", "gated"]
_M = TypeVar("_M", bound=nn.Module)


class FoldedBlock(nn.Module):
    """A gate and perhaps a head on one residual connection: mean, ReLU, matrix product, sigmoid, multiplication.

    Args:
        block: Where the matrices come from; they are copied.
        prefix_tokens: Tokens at the start that are left out of the pooling.
        gate: `"dynamic"` for the block's own gate, fixed factors (C,), or None for a gate of 1.
        head: Whether to give class scores too, and how: `"folded"` multiplies both matrices into one (n, C), `"exact"`
            computes as the block did; None for no head.
        flows: Whether the gate acts on what flows on; a head that couples `"separate"` reads it all the same.
    """

    factors: Tensor | None
    intercept: Tensor | None

    def __init__(
        self,
        block: Block,
        prefix_tokens: int = 0,
        gate: Literal["dynamic"] | Tensor | None = "dynamic",
        head: Literal["folded", "exact"] | None = None,
        flows: bool = True,
    ) -> None:
        super().__init__()
        self.channels, self.relu, self.gate_target = block.channels, block.relu, block.gate_target
        self.channels_last, self.branch_first = block.channels_last, block.branch_first
        self.prefix_tokens = prefix_tokens
        self.offset, self.scale = float(1 - block.strength), float(block.strength * block.kappa)
        self.flows = flows
        self.reads: Reads | None = None
        if head is not None:
            shared = {"folded": "hidden", "exact": "u"}[head]
            self.reads = {"shared": shared, "separate": "gated", "head_only": "hidden"}[block.coupling]  # type: ignore[assignment]
        own = isinstance(gate, str) and (flows or self.reads == "gated")
        self.w1 = _linear(block.w1.weight) if block.w1 is not None and (own or self.reads == "u") else None
        self.own = own
        weight = None if head is None else block.equivalent_matrix()
        if head == "exact" and block.w2 is not None:
            weight = block.w2.weight
        self.w2 = None if weight is None else _linear(weight)
        self.register_buffer("factors", gate.detach()[None].clone() if isinstance(gate, Tensor) else None)
        kept = block.intercept if head is not None else None
        self.register_buffer("intercept", None if kept is None else kept.detach().clone())
        self.sink: list[Tensor] | None = None  # of a copy that lives for one call, see `Folded`

    def forward(self, x: Tensor, r: Tensor, masks: Mapping[str, Any]) -> Tensor:
        """Join a shortcut and a branch.

        Args:
            x: Shortcut, (B, C, H, W), (B, H, W, C) or (B, T, C).
            r: Branch, in the same shape.
            masks: Of the unit, by name.

        Returns:
            What flows on instead of `x + r`.
        """
        axis = channel_axis(x, self.channels, self.channels_last)
        keep = self._keep(x, masks)
        with _no_autocast(x):
            _, hidden = pooled_sum(x, r, axis, keep, self.relu)
            u = None if self.w1 is None else F.linear(hidden, self.w1.weight.to(hidden.dtype))
            gate = self.factors
            if self.own and u is not None:
                gate = self.offset + self.scale * torch.sigmoid(u)
            if self.sink is not None and self.w2 is not None:
                self.sink.append(self._scores(self.w2, hidden, u, gate, x, r, axis, keep))
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

    def _scores(
        self,
        w2: nn.Linear,
        hidden: Tensor,
        u: Tensor | None,
        gate: Tensor | None,
        x: Tensor,
        r: Tensor,
        axis: int,
        keep: Tensor | None,
    ) -> Tensor:
        read = hidden
        if self.reads == "u" and u is not None:
            read = u
        elif self.reads == "gated":
            read = pool(x, axis, keep)
            read = read + pool(r, axis, keep) if self.gate_target == "sum" else read
            read = read if gate is None else gate.to(read.dtype) * read
        scores = F.linear(read, w2.weight.to(read.dtype))
        return scores if self.intercept is None else scores + self.intercept.to(scores.dtype)


class Folded(nn.Module):
    """A model whose class scores come from its heads.

    A head sits deep inside the model, and what it says must come out. Nothing is kept on the modules for that: every
    call makes shallow copies of the modules on the way to the heads (not of their weights) and hands them one list.

    Args:
        host: The model, with `FoldedBlock` modules in its units.
        speaking: Dotted names of those with a head.
        num_classes: n.
        decay: Of the running sum of all class scores; None for the last head alone.
        joined: Whether the host's own classifier is a term of that sum.
        ending: How the host makes probabilities of its logits; None if it returns logits.
    """

    def __init__(
        self,
        host: nn.Module,
        speaking: Sequence[str],
        num_classes: int,
        decay: float | None,
        joined: bool,
        ending: Ending | None = None,
    ) -> None:
        super().__init__()
        self.host, self.speaking, self.num_classes = host, tuple(speaking), num_classes
        self.decay, self.joined, self.ending = decay, joined, ending

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Class scores (B, n) of inputs as the host takes them."""
        said: list[Tensor] = []
        output = _with_sink(self.host, [name.split(".") for name in self.speaking], said)(*args, **kwargs)
        if self.decay is None:
            return said[-1]
        return running_sum([*said, *(self._classifier(output) if self.joined else [])], self.decay)

    @classmethod
    def of(
        cls,
        host: nn.Module,
        speaking: Sequence[str],
        num_classes: int,
        decay: float | None,
        joined: bool,
        ending: Ending | None = None,
    ) -> Folded:
        """Like the constructor; the forward says which arguments it takes, as exporters ask for them by name."""
        return _taking(type(host))(host, speaking, num_classes, decay, joined, ending)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """The class of a folded model exists in the process that made it only: a pickle makes it again."""
        own, plain = type(self.host), cast(tuple[Any, ...], super().__reduce_ex__(protocol))
        return _blank, (getattr(own, "_mhex_original", own),), *plain[2:]

    def _classifier(self, output: Any) -> list[Tensor]:
        """Class scores of the host's own classifier, if it has as many."""
        try:
            scores = read_logits(output)
        except UnsupportedModelError:
            return []
        scores = scores if self.ending is None else self.ending.logits(scores)
        return [scores] if scores.shape[1] == self.num_classes else []


def _taking(host: type[nn.Module]) -> type[Folded]:
    """A class whose forward has the arguments of the host's."""
    own = inspect.signature(host.forward)

    def forward(self: Folded, *args: Any, **kwargs: Any) -> Tensor:
        return Folded.forward(self, *args, **kwargs)

    forward.__signature__ = own.replace(return_annotation=Tensor)  # type: ignore[attr-defined]
    return type(Folded.__name__, (Folded,), {"forward": forward, "__module__": Folded.__module__})


def _blank(host: type[nn.Module]) -> Folded:
    kind = _taking(host)
    return kind.__new__(kind)


def _with_sink(module: _M, paths: Sequence[Sequence[str]], sink: list[Tensor]) -> _M:
    """A shallow copy of a module in which the blocks at `paths` write to `sink`; the module stays as it is."""
    copy = object.__new__(type(module))
    copy.__dict__.update(module.__dict__)
    if paths == [[]]:
        copy.sink = sink  # type: ignore[assignment]
        return copy
    children = dict(module._modules)
    for name in dict.fromkeys(path[0] for path in paths):
        child = children[name]
        assert child is not None
        children[name] = _with_sink(child, [path[1:] for path in paths if path[0] == name], sink)
    copy.__dict__["_modules"] = children
    return copy


def _linear(weight: Tensor) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    layer.weight = nn.Parameter(weight.detach().clone(), requires_grad=False)
    return layer


def _no_autocast(x: Tensor) -> AbstractContextManager[Any]:
    """Sums in full precision; entered only where autocast is on, so that it leaves no mark in an exported graph."""
    kind = x.device.type
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()


@dataclass(frozen=True)
class Change:
    """How far class scores moved on some data.

    Attributes:
        samples: How many were compared.
        max_change: Largest change of a class score.
        mean_change: Mean change of a class score, without its sign.
        top1_agreement: Part of the samples whose predicted class stayed; for several labels, of the decisions.
    """

    samples: int
    max_change: float
    mean_change: float
    top1_agreement: float


@dataclass(frozen=True)
class StaticFoldReport:
    """What fixed gates changed.

    Attributes:
        calibration: On the data that the gates were averaged over.
        test: On other data, if there was any; the honest number.
        spread: Largest standard deviation over the samples of a gate's channel, by name of the block: what was
            thrown away.
    """

    calibration: Change
    test: Change | None
    spread: dict[str, float]

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
    """Fold with every gate fixed at its mean over some data.

    Args:
        model: The host.
        heads: Its heads.
        source: What predicts.
        data: A batch or a loader to average over; it is gone through twice.
        test: Other data on which to measure what changed.
    """
    means, spread = _gate_means(model, data)
    folded = fold(model, heads, source, means)
    calibration = _change(model, heads, source, folded, data)
    return folded, StaticFoldReport(
        calibration, None if test is None else _change(model, heads, source, folded, test), spread
    )


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
    spread = {
        name: float((squares[name] / count - mean.square()).clamp_min(0).sqrt().max()) for name, mean in means.items()
    }
    return {name: mean.float() for name, mean in means.items()}, spread


def _change(model: nn.Module, heads: Heads, source: Source, folded: nn.Module, data: Any) -> Change:
    samples, largest, total, scores, same, decisions = 0, 0.0, 0.0, 0, 0, 0
    with watched(model) as run:
        for inputs in unlabelled(data):
            before = Reading(run(inputs), heads).scores(source).double()
            after = read_logits(call_model(folded, inputs))
            if source == "classifier" and heads.ending is not None:
                after = heads.ending.logits(after)
            after = after.double()
            moved = (after - before).abs()
            kept = decided(after, heads.settings.multi_label) == decided(before, heads.settings.multi_label)
            samples += before.shape[0]
            largest = max(largest, float(moved.max()))
            total, scores = total + float(moved.sum()), scores + moved.numel()
            same, decisions = same + int(kept.sum()), decisions + kept.numel()
    if not samples:
        raise ArgumentError("Expected a loader that can be gone through again, but it gave nothing this time.")
    return Change(samples, largest, total / scores, same / decisions)


def fold(model: nn.Module, heads: Heads, source: Source, factors: Mapping[str, Tensor] | None = None) -> nn.Module:
    """A self-contained inference module; the model stays as it is.

    Args:
        model: The host.
        heads: Its heads.
        source: What predicts.
        factors: Fixed gates (C,) by name of their junction, instead of those that the heads compute.

    Returns:
        For `"classifier"` a copy of the host with gates in it, which returns what the host returned; otherwise a
        module that returns class scores (B, n).
    """
    last = last_of(heads) if source == "last_head" else None
    _check(heads, source, last)
    host = plain_copy(model)
    _check_masks(host, heads)
    joins: dict[Junction, nn.Module] = {}
    speaking: list[str] = []
    prefix = heads.prefix_tokens if heads.settings.exclude_special else 0
    for junction in find_junctions(host):
        if junction.name not in heads.places:
            continue
        block = heads[junction.name]
        gate: Literal["dynamic"] | Tensor | None = "dynamic" if factors is None else factors[junction.name]
        if gate_state(block) in ("none", "off"):
            gate = None
        if junction.name == last:  # nothing reads what flows on past the last head
            joins[junction] = FoldedBlock(block, prefix, gate, "folded", flows=False)
            speaking.append(junction.name)
        elif source == "sum":
            joins[junction] = FoldedBlock(block, prefix, gate, "exact" if factors is None else "folded")
            speaking.append(junction.name)
        elif gate is not None and not _absorb(host, junction, gate, block.gate_target):
            joins[junction] = FoldedBlock(block, prefix, gate)
    names = plant(host, joins)
    whole = host
    if speaking:
        decay = heads.decay if source == "sum" else None
        ending, parts = heads.ending, [names[name] for name in speaking]
        whole = Folded.of(host, parts, heads.settings.num_classes, decay, heads.joined, ending)
    return whole.requires_grad_(False).eval()


def plain_copy(model: nn.Module) -> nn.Module:
    """A copy of a model without its heads."""
    host = copy.deepcopy(model)
    heads = required_heads(host)
    ungraft(host)
    unsettle(host, heads)
    del host._modules[PREFIX]
    return host


def _check(heads: Heads, source: Source, last: str | None) -> None:
    if heads.settings.exclude_special and not heads.prefix_tokens:
        raise ArgumentError(
            "Heads with exclude_special=True must see the token ids, which do not reach the units of a folded text "
            "model; attach with exclude_special=False."
        )
    wanted = heads.names if source == "sum" else () if last is None else (last,)
    if gone := [name for name in wanted if heads[name].w2 is None]:
        raise CaptureError(f"The heads at {some_of(gone, 3)} were stripped, so {source!r} cannot predict.")


def _check_masks(host: nn.Module, heads: Heads) -> None:
    """A folded unit sees its own arguments alone, so it must be given the mask of padding if the host takes one."""
    for junction in find_junctions(host) if heads.mask_places else []:
        own = inspect.signature(type(host.get_submodule(junction.unit)).forward).parameters
        if junction.name in heads.places and junction.kind == "token" and not tells_padding(own):
            raise ArgumentError(
                f"The model takes {', '.join(heads.mask_places)}, but does not hand it to {junction.name}, which in a "
                "folded model sees its own arguments alone: give the unit's forward an attention_mask, or leave it "
                "out with where=[...]."
            )


def _absorb(host: nn.Module, junction: Junction, gate: Literal["dynamic"] | Tensor, target: GateTarget) -> bool:
    """Multiply fixed gates into the batch norm that ends a shortcut; False if there is nothing to multiply or none."""
    if isinstance(gate, str) or target == "sum" or (norm := closing_norm(host, junction)) is None:
        return False
    for parameter in (norm.weight, norm.bias):
        parameter.data = parameter.data * gate.to(parameter)
    return True
