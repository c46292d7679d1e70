"""The state of one ruled pass: it hands every operation to its rule, and relevance from a score to the kept tensors.

Rules come in two flows. In the *gradient* flow the backward pass carries a modified gradient, and relevance is the
activation times it; linear operations and those that move numbers around need no rule. In the *relevance* flow it
carries relevance itself, and every operation but the moving ones needs a rule.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mhex.capture import full
from mhex.capture.hooks import replace_forward
from mhex.capture.inventory import inventory_of
from mhex.capture.operations import (
    LINEAR,
    OPERATIONS,
    OUT_OF_PLACE,
    Carry,
    Function,
    follow,
    name_of_operation,
    nodes_below,
    tensors_in,
    writes,
)
from mhex.capture.precision import HALF, ambient_precision, precision, split_product
from mhex.errors import CaptureError, UnsupportedModelError
from mhex.relevance.arithmetic import in_graph

Rule = Callable[..., Any]
Back = Callable[[Tensor, Tensor], Sequence[Tensor | None]]
_NUMBERS = frozenset((Tensor.item, Tensor.__float__, Tensor.__int__, Tensor.__index__))
_USES = "_mhex_uses"  # an attribute of the tensors of a pass
_PASSING = frozenset(("layer_norm", "rms_norm", "group_norm", "softmax", "attention"))
_WRITTEN_OUT = ("transformers.activations", "timm.layers.activations")  # their GELUs may be made of small operations


def _is_written_out(module: nn.Module) -> bool:
    return type(module).__module__ in _WRITTEN_OUT and "GELU" in type(module).__name__


@dataclass(frozen=True)
class Composite:
    """A variant of relevance propagation."""

    flow: Literal["gradient", "relevance"]  # what the backward pass carries
    # By the name of an operation: called as `rule(flow, operation, *args, **kwargs)` in its place.
    rules: Mapping[str, Rule] = field(default_factory=dict)
    partial: bool = False  # True if operations without a rule are meant to keep their gradient

    def begin(self, model: nn.Module, size: int) -> Flow:
        """The state of a pass of a model over a batch of `size` samples."""
        inventory = inventory_of(model, check=False)  # whoever begins a pass has just compared the two
        return Flow(self, size, inventory.fact("written out", lambda: list(filter(_is_written_out, inventory.below))))


class Flow:
    """One pass under a composite over `size` samples.

    `written_out` are activations that may be made of small operations. Tensors of three axes may be laid out (N, B, D)
    if `sequence_first`; `turned` and `straightened` say that they are, or are not, where the pass is now.
    """

    def __init__(self, composite: Composite, size: int, written_out: Sequence[nn.Module] = ()) -> None:
        self.composite, self.size, self.relevance = composite, size, composite.flow == "relevance"
        self.needs_float32 = self.relevance  # half precision is too coarse: relevance is divided by sums near 0
        self.sequence_first = self.turned = self.straightened = False
        self.everywhere = False  # the backward pass has reached most tokens
        self.splits = False  # matrix products of layers are those of `split_product`
        self.lost: Tensor | None = None  # what constants of the model have absorbed, (B,); None if nothing
        self.unknown: Counter[str] = Counter()
        self.doubts: dict[Any, str] = {}  # operations without a rule, by their nodes of the graph
        self.passing: set[Any] = set()  # nodes of norms and softmax, which pass relevance on
        self.uneven = False  # one of them lies between the input and the scores
        self.met: set[str] = set()  # names of operations
        self.written_out = written_out
        self.entered = False  # the first layer of the network was met
        self.inside = False  # the pass is inside of an operation that is seen as one
        # The output of the last layer, that layer and what chooses its rule, for a batch norm that follows.
        self.folding: tuple[Tensor, Any, Callable[[], Any]] | None = None
        self.replaced: dict[int, tuple[Tensor, Tensor]] = {}  # tensors that the model believes it has written into
        self.parts: list[tuple[Tensor, Function]] = []  # those of them that are views of others

    def node(self, compute: Callable[[], Tensor], back: Back, *inputs: Tensor, counted: bool = True) -> Tensor:
        """The value of `compute()`; `back` hands down to inputs, from what the backward pass carries and the value."""
        # Uses of the value are not counted where the rule only moves numbers: what arrives may meet other relevance
        # later.
        note_uses(inputs)
        value: Tensor = Node.apply(self, compute, back, *inputs)
        if counted:
            setattr(value, _USES, 0)
        return value

    def incoming(self, carried: Tensor, value: Tensor) -> Tensor:
        """Relevance of a value, from what the backward pass carries to it."""
        return carried if self.relevance else carried * value

    def total(self, tensor: Tensor) -> Tensor:
        """Sum over everything but samples, (B,). Windows of a sample may lie one after the other on the first axis."""
        if self._samples_second(tensor):
            return tensor.sum((0, 2))
        if tensor.dim() == 0 or tensor.shape[0] % self.size:
            raise CaptureError(f"Expected a tensor of {self.size} samples, but saw one of {tuple(tensor.shape)}.")
        rows = tensor if tensor.dim() == 1 else tensor.sum(tuple(range(1, tensor.dim())))
        return rows if rows.shape[0] == self.size else rows.reshape(self.size, -1).sum(1)

    def spread(self, samples: Tensor, like: Tensor) -> Tensor:
        """One number per sample, (B,), laid out so that it multiplies a tensor."""
        if self._samples_second(like):
            return samples.reshape(1, self.size, *[1] * (like.dim() - 2))
        return samples.repeat_interleave(like.shape[0] // self.size).reshape(-1, *[1] * (like.dim() - 1))

    def _samples_second(self, tensor: Tensor) -> bool:
        """True of a tensor laid out (N, B, D)."""
        if tensor.dim() != 3 or tensor.shape[1] != self.size or self.size == 1:
            return False
        if self.sequence_first and not self.turned and tensor.shape[0] == self.size and not self.straightened:
            raise CaptureError(
                f"Expected another batch size than {self.size}, because there are as many tokens and the model lays "
                "its tensors out as (tokens, samples, width) in places: samples cannot be told from tokens."
            )
        return self.turned or (not self.straightened and (self.sequence_first or tensor.shape[0] % self.size != 0))

    @contextmanager
    def straight(self) -> Iterator[None]:
        """Inside, tensors are laid out (B, N, D)."""
        before, self.turned, self.straightened = self.turned, False, True
        try:
            yield
        finally:
            self.turned, self.straightened = before, False

    def reached(self, carried: Tensor) -> Tensor | None:
        """Numbers of the tokens that a backward pass has reached, where they are few, as before the last attention."""
        are_tokens = carried.dim() == 3 and len(carried) == self.size and not self.sequence_first
        if self.everywhere or not are_tokens or not carried.is_cpu:  # waiting for a GPU would take longer
            return None
        tokens = carried.any(-1).any(0)
        self.everywhere = 2 * int(tokens.sum()) > len(tokens)
        return None if self.everywhere else tokens.nonzero()[:, 0]

    def floor(self, share: float) -> float:
        """Least size of divisors, as a share of the sizes of what they sum up; 0 where none is needed."""
        # Norms and softmax that pass relevance on leave some at sums that are close to 0, and the few places that are
        # closest would take most of it. After a ReLU, relevance is in proportion to the sums.
        return share if self.uneven else 0.0

    def lose(self, relevance: Tensor) -> None:
        """Note relevance that constants of the model (biases, position embeddings, class tokens) have absorbed."""
        share = self.total(relevance)
        self.lost = share if self.lost is None else self.lost + share

    def settle(self) -> Tensor | None:
        """What was lost since the last time, (B,); None if nothing was."""
        losses, self.lost = self.lost, None
        return losses

    def __call__(self, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What stands where the model calls `function`."""
        if self.inside:
            return function(*args, **kwargs)
        if function in _NUMBERS:  # torch warns of numbers that are read out of a graph
            return function(self.current(args[0]).detach())
        if self.composite.partial:
            return self._keep_gradient(function, args, kwargs)
        if function in OPERATIONS and not kwargs.keys().isdisjoint(("input", "other", "axis")):
            args, kwargs = _by_position(args, kwargs)
        if function in (torch.addcmul, Tensor.addcmul):
            return self._addcmul(*args, **kwargs)
        if self.replaced:
            args = tuple(map(self.current, args))
            kwargs = {name: self.current(value) for name, value in kwargs.items()}
        operation, destination = OUT_OF_PLACE.get(function, function), args[0] if args else None
        into = operation is not function or writes(function) or "out" in kwargs or kwargs.get("inplace")
        # What is written into is no copy; out of place, what stands for it later may be one.
        if self.needs_float32 and not writes(function) and (in_graph(*args) or not into):
            args, kwargs = tuple(map(_widened, args)), {name: _widened(value) for name, value in kwargs.items()}
        if not in_graph(*args, *kwargs.values()):
            result = self.product(function, args, kwargs)
            follow(name_of_operation(operation), args, result)
            return result
        in_place = operation is not function
        if kwargs.get("inplace"):  # torch hands it on by its name, however it was given
            in_place, kwargs = True, {**kwargs, "inplace": False}
        result = self._apply(operation, args, kwargs)
        # Dropout hands back what it is given.
        if in_place and result is not args[0] and isinstance(destination, Tensor):
            self.replaced[id(destination)] = (destination, result)
            if destination._is_view():
                self.parts.append((destination, function))
        return result

    def product(self, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The value of an operation; a linear layer is computed on tensor cores where products are split."""
        if not self.splits or function is not F.linear or args[0].dtype != torch.float32:
            return function(*args, **kwargs)
        return split_product(*args, **kwargs)

    def _keep_gradient(self, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Where other operations are meant to keep their gradient, nothing but the rules is different."""
        if "input" in kwargs:
            args, kwargs = _by_position(args, kwargs)
        if not in_graph(*args):
            return function(*args, **kwargs)
        name = name_of_operation(OUT_OF_PLACE.get(function, function))
        self.met.add(name)
        rule = self.composite.rules.get(name)
        return function(*args, **kwargs) if rule is None else rule(self, function, *args, **kwargs)

    def _addcmul(self, input: Tensor, tensor1: Any, tensor2: Any, value: float = 1) -> Any:
        product = self(torch.mul, (tensor1, tensor2), {})
        return self(torch.add, (input, product if value == 1 else self(torch.mul, (product, value), {})), {})

    def _apply(self, operation: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The operation by its rule, or as it is where that is right already."""
        name = name_of_operation(operation)
        if name == "matmul" and is_layer(operation, args):
            name = "linear"
        self.met.add(name)
        rule = self.composite.rules.get(name)
        if rule is not None:
            result = rule(self, operation, *args, **kwargs)
            if result is not NotImplemented:
                follow(name, args, result)
                if self.relevance and name in _PASSING:
                    self.passing.add(result.grad_fn)
                return result
        note_uses(args)
        before = args[0].grad_fn if args and isinstance(args[0], Tensor) else None
        result = operation(*args, **kwargs)
        follow(name, args, result)
        fine = name == "route" or (name in LINEAR and not self.relevance)
        if writes(operation):
            if before is not None:  # rules may have kept what was there
                self.unknown[operation.__name__] += 1
            self.doubt(operation, args[0], before)
        elif rule is not None or not fine:
            self.doubt(operation, result, before)
        return result

    def see_as_one(self, stack: ExitStack) -> None:
        """Let each activation of `written_out` be one operation of the pass, for the time of `stack`."""
        # `x / 2 (1 + tanh(...))` is a GELU; operation by operation, half of the relevance would go into the tanh.
        for module in self.written_out:
            replace_forward(stack, module, partial(self._as_activation, module.forward))

    def _as_activation(self, operation: Function, x: Tensor) -> Any:
        x = self.current(x)
        if not x.requires_grad:
            return operation(x)
        self.met.add("activation")
        self.inside = True
        try:
            return self.composite.rules["activation"](self, operation, x)
        finally:
            self.inside = False

    def doubt(self, operation: Function, result: Any, before: Any) -> None:
        """Remember an operation without a rule, which is refused if relevance would have to go through its result."""
        # `before` is the node of the graph that made what it was given.
        for tensor in result if isinstance(result, (list, tuple)) else (result,):
            node = tensor.grad_fn if isinstance(tensor, Tensor) else None
            if node is not None and node is not before:  # it is the same where nothing was done
                self.doubts[node] = getattr(operation, "__name__", str(operation))
                return

    def current(self, value: Any) -> Any:
        """What stands for a tensor that the model believes it has written into; other values are returned as such."""
        if isinstance(value, (list, tuple)) and any(isinstance(item, Tensor) for item in value):
            parts = list(map(self.current, value))
            return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
        if not isinstance(value, Tensor):
            return value
        before = value
        while id(value) in self.replaced:
            value = self.replaced[id(value)][1]
        if value is not before:
            return value
        if value._base is not None and id(value._base) in self.replaced:
            self.unknown["writing into a tensor of which a view is read later"] += 1
        # A tensor of which a part was written into by way of a view is not what the model believes.
        base = value._base if value._is_view() else value
        for part, function in self.parts:
            if part is not value and part._base is base and overlap(part, value):
                self.unknown[f"{getattr(function, '__name__', function)} into a part of a tensor"] += 1
        return value

    def settled(self, output: Any) -> Any:
        """What the model returns, where tensors that it has written into are the current ones."""
        if not self.replaced:
            return output
        if isinstance(output, MutableMapping):
            for name, value in output.items():
                if isinstance(value, Tensor):
                    output[name] = self.current(value)
            return output
        if not isinstance(output, tuple) and isinstance(logits := getattr(output, "logits", None), Tensor):
            output.logits = self.current(logits)
            return output
        return self.current(output)

    def finish(self, *outputs: Tensor) -> None:
        """After the forward pass: refuse operations without a rule between the input and the outputs."""
        self.replaced.clear()
        self.parts.clear()
        self.folding = None
        self.uneven = "length" in self.met
        if self.doubts or self.passing:
            reached = set(nodes_below(outputs))
            self.uneven |= not self.passing.isdisjoint(reached)
            unruled = [name for node, name in self.doubts.items() if node in reached]
            self.doubts.clear()
            self.passing.clear()
            if unruled and self.composite.partial:
                raise _not_guided(unruled[0])
            self.unknown.update(unruled)
        if "bent" in self.composite.rules and "gate" in self.met and "relu" not in self.met:
            raise _not_guided("sigmoid")  # x * sigmoid(x) is no ReLU
        if self.unknown:
            names = ", ".join(f"{name} ({count} times)" for name, count in sorted(self.unknown.items()))
            reason = f"there is no relevance rule for these operations of the model: {names}"
            raise UnsupportedModelError(
                f"Expected operations with relevance rules, but {reason}; choose a method without rules, such as "
                "integrated-gradients or input-x-gradient.",
                reason,
            )

    def propagate(
        self,
        y: Tensor,
        sources: Sequence[Tensor | None],
        tensors: tuple[Tensor, ...],
        carry: Carry,
        signed: bool,
        of_class: bool,
    ) -> tuple[list[Tensor], dict[str, Tensor]]:
        """Relevance of kept tensors, and the conservation record of the first one.

        In the gradient flow the score itself is handed down. In the relevance flow each logit starts with its share in
        the score, `o dy/do`, scaled to mass 1: a class with 1, or -1 if its logit is negative, so that scores above 0
        speak for the class. Shares of both signs are handed down one after the other, because sums are renormalised.

        `y` is one score per sample, (B,); `sources` are what relevance may start from: the outputs, or for concepts the
        latent vector. `carry` hands what a tensor starts with to others. Without `signed`, shares are absolute. A score
        `of_class` is one logit, whose share has one sign.
        """
        source, start = _start(y, sources)
        self.settle()
        if not self.relevance:
            gradients = carry(y, torch.ones_like(y), tensors)
            relevances = [full(t.detach()) * full(g) for t, g in zip(tensors, gradients, strict=True)]
            return relevances, _conservation(start, relevances[0], self.settle())
        mass = _per_sample(start.abs().flatten(1).sum(1), start)
        start = start / mass.where(mass > 0, 1.0)
        start = start if signed else start.abs()
        # One pass for samples whose shares have one sign, whichever it is; those with both take part in a second.
        relevances = [torch.zeros_like(full(tensor.detach())) for tensor in tensors]
        losses = start.new_zeros(len(start))
        above, below = start.clamp_min(0), -start.clamp_max(0)
        first = _per_sample(above.flatten(1).any(1), start)
        passes = ((torch.where(first, above, below), torch.where(first, 1, -1)), (below * first, -first.int()))
        # Otherwise one wait for the device.
        needed = [True, False] if of_class else torch.stack([part.any() for part, _ in passes]).tolist()
        for (part, sign), is_needed in zip(passes, needed, strict=True):
            if not is_needed:
                continue
            carried = carry(source, part.to(source.dtype), tensors)
            for relevance, more in zip(relevances, carried, strict=True):
                relevance.add_(full(more) * _per_sample(sign, more))
            if (share := self.settle()) is not None:
                losses += share * sign.flatten()
        return relevances, _conservation(start, relevances[0], losses)


def _start(y: Tensor, sources: Sequence[Tensor | None]) -> tuple[Tensor, Tensor]:
    """Where relevance starts, and shares of it in the score."""
    for source in sources:
        if source is not None and source.requires_grad and y.requires_grad:
            (slope,) = torch.autograd.grad(y.sum(), source, retain_graph=True, allow_unused=True)
            if slope is not None:
                return source, full(source.detach()) * full(slope)
    raise CaptureError(
        "No relevance reaches what the method reads: the pass cuts it (no_grad, quantised layers), or the rules hold "
        "constant what it goes through (sigmoid, or softmax as the output)."
    )


def _per_sample(samples: Tensor, like: Tensor) -> Tensor:
    """One value per sample, laid out so that it multiplies a tensor (B, ...)."""
    return samples.reshape(-1, *[1] * (like.dim() - 1))


def _conservation(start: Tensor, relevance: Tensor, lost: Tensor | None) -> dict[str, Tensor]:
    """Relevance at the score and where it arrived, and what is missing, each (B,).

    `lost_to_biases` is what constants of the model took: biases, position embeddings, class tokens and, where the graph
    starts inside a block, what passes it by. `conservation_gap` is the rest, as a share of what was started with.
    """
    started, size = start.flatten(1).sum(1), start.abs().flatten(1).sum(1)
    arrived = full(relevance).flatten(1).sum(1)
    absorbed = torch.zeros_like(started) if lost is None else full(lost)
    gap = (started - arrived - absorbed).abs() / size.clamp_min(torch.finfo(size.dtype).tiny)
    return {"relevance_in": started, "relevance_out": arrived, "lost_to_biases": absorbed, "conservation_gap": gap}


def _widened(value: Any) -> Any:
    """An argument with all tensors of half precision in float32."""
    if isinstance(value, Tensor):
        if value.dtype not in HALF:
            return value
        # Who asks whether a tensor is learned is told so.
        return nn.Parameter(value.float(), False) if isinstance(value, nn.Parameter) else value.float()
    if isinstance(value, (list, tuple)) and any(isinstance(item, Tensor) and item.dtype in HALF for item in value):
        return type(value)(map(_widened, value))
    return value


def _by_position(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Tensors that were given by name, at their position; axes by the name that torch has for them."""
    options = dict(kwargs)
    args = (*args, *(options.pop(name) for name in ("input", "other") if name in options))
    if "axis" in options:
        options["dim"] = options.pop("axis")
    return args, options


def _not_guided(name: str) -> UnsupportedModelError:
    """The error for a network whose activations are no ReLU."""
    reason = f"it is defined for ReLU networks, and this one uses {name}"
    return UnsupportedModelError(
        f"Guided backpropagation cannot explain this model: {reason}; choose smoothgrad or integrated-gradients.",
        reason,
    )


class Node(torch.autograd.Function):
    """A value with another backward. Its first argument is the `Flow` of the pass."""

    @staticmethod
    def forward(ctx: Any, flow: Any, compute: Callable[[], Tensor], back: Back, *inputs: Tensor) -> Tensor:
        value = compute()
        ctx.flow, ctx.back = flow, back
        ctx.layout, ctx.precision = (flow.turned, flow.straightened), ambient_precision()
        ctx.value = value.detach()  # a second tensor, so that the node does not hold itself
        return value

    @staticmethod
    def backward(ctx: Any, *carried: Tensor) -> tuple[Tensor | None, ...]:
        ctx.flow.turned, ctx.flow.straightened = ctx.layout
        with precision(ctx.precision):  # the same as on the way forward
            return (None, None, None, *ctx.back(carried[0], ctx.value))


def note_uses(inputs: Iterable[Any]) -> None:
    """Count one more use of every result of a rule among the inputs of an operation."""
    for x in tensors_in(inputs):
        if (uses := getattr(x, _USES, None)) is not None:
            setattr(x, _USES, uses + 1)


def used_once(x: Tensor) -> bool:
    """True for the result of a rule that only one operation reads; this is known after the forward pass."""
    return getattr(x, _USES, None) == 1


def overlap(a: Tensor, b: Tensor) -> bool:
    """Whether two views of one tensor have elements in common."""
    places = torch.zeros(a.untyped_storage().nbytes() // a.element_size(), dtype=torch.bool)
    places.as_strided(a.shape, a.stride(), a.storage_offset()).fill_(True)
    return bool(places.as_strided(b.shape, b.stride(), b.storage_offset()).any())


def is_layer(operation: Callable[..., Tensor], args: tuple[Any, ...]) -> bool:
    """True of a matrix product that is a linear layer by another name: rows of the graph, times a constant matrix."""
    if getattr(operation, "__name__", "") not in ("matmul", "__matmul__", "mm") or len(args) != 2:
        return False
    rows, matrix = args
    return bool(rows.requires_grad and rows.dim() > 1 and not matrix.requires_grad and matrix.dim() == 2)
