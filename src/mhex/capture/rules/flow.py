"""The state of one ruled pass: it hands every operation to its rule, and keeps the books of relevance.

Rules come in two flows. In the *gradient* flow the backward pass carries a modified gradient, and relevance is the
activation times it; linear operations and those that move numbers around need no rule. In the *relevance* flow it
carries relevance itself, and every operation but the moving ones needs a rule.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mhex.capture.rules.layer import is_layer
from mhex.capture.rules.operations import LINEAR, OUT_OF_PLACE, Function, name_of_operation, writes
from mhex.errors import CaptureError, UnsupportedModelError

if TYPE_CHECKING:
    from mhex.capture.rules.affine import Shares
    from mhex.capture.rules.composite import Composite
    from mhex.capture.rules.layer import Affine


class Flow:
    """One pass under a composite.

    Args:
        composite: The rules.
        size: Number of samples B.
    """

    def __init__(self, composite: Composite, size: int) -> None:
        self.composite, self.size = composite, size
        self.turned = False  # tensors of three axes are laid out (N, B, D) where the pass is now
        self.relevance = composite.flow == "relevance"
        self.unknown: Counter[str] = Counter()
        self.lost: Tensor | None = None
        self.entered = False  # the first layer of the network was met
        self.folding: tuple[Tensor, Affine, Shares] | None = None  # the last layer, which a batch norm may follow
        self.replaced: dict[int, tuple[Tensor, Tensor]] = {}  # tensors that the model believes it has written into
        self.parts: list[tuple[Tensor, Function]] = []  # those of them that are views of others

    def __call__(self, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What stands where the model calls `function`."""
        if self.replaced:
            args = tuple(map(self.current, args))
            kwargs = {name: self.current(value) for name, value in kwargs.items()}
        if not _in_graph((*args, *kwargs.values())):
            return function(*args, **kwargs)
        operation = OUT_OF_PLACE.get(function, function)
        written = operation is not function
        if kwargs.get("inplace"):  # torch hands it on by its name, however it was given
            written, kwargs = True, {**kwargs, "inplace": False}
        result = self.apply(operation, args, kwargs)
        if written and result is not args[0]:  # dropout hands back what it is given
            self.replaced[id(args[0])] = (args[0], result)
            if args[0]._is_view():
                self.parts.append((args[0], function))
        return result

    def apply(self, operation: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The operation by its rule, or as it is where that is right already."""
        name = name_of_operation(operation)
        if name == "matmul" and is_layer(operation, args):
            name = "linear"
        rule = self.composite.rules.get(name)
        if rule is not None:
            found = rule(self, operation, *args, **kwargs)
            if found is not NotImplemented:
                return found
        result = operation(*args, **kwargs)
        if writes(operation) and not self.composite.partial:
            self.unknown[operation.__name__] += 1
            return result
        fine = name == "route" or self.composite.partial or (name in LINEAR and not self.relevance)
        if rule is not None or (not fine and _in_graph(result if isinstance(result, tuple) else (result,))):
            self.unknown[getattr(operation, "__name__", str(operation))] += 1
        return result

    def current(self, value: Any) -> Any:
        """What stands for a tensor that the model believes it has written into; of others, they themselves."""
        if isinstance(value, (list, tuple)) and any(isinstance(one, Tensor) for one in value):
            parts = list(map(self.current, value))
            return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
        if not isinstance(value, Tensor):
            return value
        before = value
        while id(value) in self.replaced:
            value = self.replaced[id(value)][1]
        if value is before and self.parts:
            self._check_parts(value)
        return value

    def _check_parts(self, value: Tensor) -> None:
        """A tensor of which a part was written into by way of a view is not what the model believes."""
        base = value._base if value._is_view() else value
        for part, function in self.parts:
            if part is not value and part._base is base and _overlap(part, value):
                self.unknown[f"{getattr(function, '__name__', function)} into a part of a tensor"] += 1

    def settled(self, output: Any) -> Any:
        """What the model returns, with what it has written into in it."""
        if isinstance(output, MutableMapping):
            for name, value in output.items():
                if isinstance(value, Tensor):
                    output[name] = self.current(value)
            return output
        if isinstance(logits := getattr(output, "logits", None), Tensor) and not isinstance(output, tuple):
            output.logits = self.current(logits)
            return output
        return self.current(output)

    def finish(self) -> None:
        """After the forward pass: report all operations that have no rule, before anything is handed back."""
        self.replaced.clear()
        self.parts.clear()
        self.folding = None
        if self.unknown:
            found = ", ".join(f"{name} ({count} times)" for name, count in sorted(self.unknown.items()))
            reason = f"there is no relevance rule for these operations of the model: {found}"
            raise UnsupportedModelError(
                f"Expected operations with relevance rules, but {reason}; choose a method without rules, such as "
                "integrated-gradients or input-x-gradient.",
                reason,
            )

    def incoming(self, carried: Tensor, value: Tensor) -> Tensor:
        """Relevance of a value, from what the backward pass carries to it."""
        return carried if self.relevance else carried * value

    def started(self, latent: Tensor) -> Tensor:
        """A vector whose gradient becomes relevance here, because the score of a concept is told by it."""
        if not self.relevance:
            return latent
        return node(self, latent.clone, lambda carried, value: [carried * value], latent)

    def total(self, tensor: Tensor) -> Tensor:
        """Sum over everything but samples, (B,). Windows of a sample may lie one after the other on the first axis."""
        if self._second(tensor):
            tensor = tensor.transpose(0, 1)
        if tensor.dim() == 0 or tensor.shape[0] % self.size:
            raise CaptureError(f"Expected a tensor of {self.size} samples, but saw one of {tuple(tensor.shape)}.")
        return tensor.reshape(self.size, -1).sum(1)

    def spread(self, samples: Tensor, like: Tensor) -> Tensor:
        """One number per sample, (B,), laid out so that it multiplies a tensor."""
        if self._second(like):
            return samples.reshape(1, self.size, *[1] * (like.dim() - 2))
        return samples.repeat_interleave(like.shape[0] // self.size).reshape(-1, *[1] * (like.dim() - 1))

    def _second(self, tensor: Tensor) -> bool:
        if tensor.dim() != 3 or tensor.shape[1] != self.size:
            return False
        return self.turned or tensor.shape[0] % self.size != 0

    @contextmanager
    def straight(self) -> Iterator[None]:
        """Inside, tensors are laid out (B, N, D)."""
        before, self.turned = self.turned, False
        try:
            yield
        finally:
            self.turned = before

    def lose(self, relevance: Tensor) -> None:
        """Note relevance that constants of the model (biases, position embeddings, class tokens) have absorbed."""
        share = self.total(relevance)
        self.lost = share if self.lost is None else self.lost + share


Back = Callable[[Tensor, Tensor], Sequence[Tensor | None]]


class _Node(torch.autograd.Function):
    """A value with a backward of its own."""

    @staticmethod
    def forward(ctx: Any, flow: Flow, compute: Callable[[], Tensor], back: Back, *_: Tensor) -> Tensor:
        value = compute()
        ctx.flow, ctx.back, ctx.turned = flow, back, flow.turned
        ctx.value = value.detach()  # a second tensor, so that the node does not hold itself
        return value

    @staticmethod
    def backward(ctx: Any, *carried: Tensor) -> tuple[Tensor | None, ...]:
        ctx.flow.turned = ctx.turned
        return (None, None, None, *ctx.back(carried[0], ctx.value))


def node(flow: Flow, compute: Callable[[], Tensor], back: Back, *inputs: Tensor) -> Tensor:
    """The value of `compute()`, with `back` in place of its gradient.

    Args:
        flow: The pass.
        compute: Makes the value, without a graph.
        back: From what the backward pass carries, and the value, to what it hands to each input.
        inputs: Tensors of the graph that the value depends on.
    """
    result: Tensor = _Node.apply(flow, compute, back, *inputs)
    return result


def _in_graph(values: Sequence[Any]) -> bool:
    return any(
        value.requires_grad
        if isinstance(value, Tensor)
        else isinstance(value, (list, tuple)) and any(isinstance(one, Tensor) and one.requires_grad for one in value)
        for value in values
    )


def _overlap(one: Tensor, other: Tensor) -> bool:
    """Whether two views of one tensor have elements in common."""
    places = torch.zeros(one.untyped_storage().nbytes() // one.element_size(), dtype=torch.bool)
    places.as_strided(one.shape, one.stride(), one.storage_offset()).fill_(True)
    return bool(places.as_strided(other.shape, other.stride(), other.storage_offset()).any())


def graph_operands(*values: Any) -> list[int]:
    """Places of the operands that are in the graph."""
    return [place for place, value in enumerate(values) if isinstance(value, Tensor) and value.requires_grad]


def divide(number: Tensor, by: Tensor, epsilon: float) -> Tensor:
    """`number / (by + epsilon sgn(by))` with `sgn(0) = 1`; 0 where the divisor is 0."""
    if epsilon == 0:
        return (number / by).masked_fill(by == 0, 0.0)
    return number / torch.where(by < 0, by - epsilon, by + epsilon)
