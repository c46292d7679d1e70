"""The state of one ruled pass: it hands every operation to its rule.

Rules come in two flows. In the *gradient* flow the backward pass carries a modified gradient, and relevance is the
activation times it; linear operations and those that move numbers around need no rule. In the *relevance* flow it
carries relevance itself, and every operation but the moving ones needs a rule.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from mhex.capture.hooks import replace_forward
from mhex.capture.operations import LINEAR, OPERATIONS, OUT_OF_PLACE, Function, follow, name_of_operation, writes
from mhex.errors import CaptureError, UnsupportedModelError
from mhex.relevance.layers import is_layer
from mhex.relevance.node import any_in_graph, note_uses, overlap, places_below
from mhex.relevance.propagate import relevance_of

if TYPE_CHECKING:
    from mhex.capture.trace import Trace
    from mhex.relevance.affine import Shares
    from mhex.relevance.composite import Composite
    from mhex.relevance.layers import Affine


class Books:
    """Sums over samples, and what was lost on the way.

    Args:
        size: Number of samples B.
        relevance: Whether the backward pass carries relevance itself, or a gradient.
    """

    def __init__(self, size: int, relevance: bool) -> None:
        self.size, self.relevance = size, relevance
        self.sequence_first = False  # tensors of three axes may be laid out (N, B, D)
        self.turned = self.straightened = False  # they are, or are not, where the pass is now
        self.everywhere = False  # the backward pass has reached most tokens
        self.lost: Tensor | None = None

    def incoming(self, carried: Tensor, value: Tensor) -> Tensor:
        """Relevance of a value, from what the backward pass carries to it."""
        return carried if self.relevance else carried * value

    def total(self, tensor: Tensor) -> Tensor:
        """Sum over everything but samples, (B,). Windows of a sample may lie one after the other on the first axis."""
        return self._per_sample(tensor, torch.sum)

    def mass(self, tensor: Tensor) -> Tensor:
        """Sum of absolute values over everything but samples, (B,)."""
        return self._per_sample(tensor.abs(), torch.sum)  # faster than a norm on a CPU

    def _per_sample(self, tensor: Tensor, reduce: Callable[..., Tensor]) -> Tensor:
        if self._second(tensor):
            return reduce(tensor, dim=(0, 2))
        if tensor.dim() == 0 or tensor.shape[0] % self.size:
            raise CaptureError(f"Expected a tensor of {self.size} samples, but saw one of {tuple(tensor.shape)}.")
        tensor = tensor[:, None] if tensor.dim() == 1 else tensor
        rows = reduce(tensor, dim=tuple(range(1, tensor.dim())))
        return rows if rows.shape[0] == self.size else reduce(rows.reshape(self.size, -1), dim=1)

    def spread(self, samples: Tensor, like: Tensor) -> Tensor:
        """One number per sample, (B,), laid out so that it multiplies a tensor."""
        if self._second(like):
            return samples.reshape(1, self.size, *[1] * (like.dim() - 2))
        return samples.repeat_interleave(like.shape[0] // self.size).reshape(-1, *[1] * (like.dim() - 1))

    def _second(self, tensor: Tensor) -> bool:
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
        """Numbers of the tokens that a backward pass has reached, where they are few; None where all are better taken.

        A head that reads the class token sends nothing to the others before the last attention.
        """
        if self.everywhere or self.sequence_first or carried.dim() != 3 or len(carried) != self.size:
            return None
        tokens = carried.any(-1).any(0)
        self.everywhere = 2 * int(tokens.sum()) > len(tokens)
        return None if self.everywhere else tokens.nonzero()[:, 0]

    def settle(self) -> Tensor | None:
        """What was lost since the last time, (B,); None if nothing was."""
        lost, self.lost = self.lost, None
        return lost

    def lose(self, relevance: Tensor) -> None:
        """Note relevance that constants of the model (biases, position embeddings, class tokens) have absorbed."""
        share = self.total(relevance)
        self.lost = share if self.lost is None else self.lost + share


_PASSING = frozenset(("layer_norm", "rms_norm", "group_norm", "softmax", "attention"))


class Flow(Books):
    """One pass under a composite.

    Args:
        composite: The rules.
        size: Number of samples B.
    """

    def __init__(self, composite: Composite, size: int) -> None:
        super().__init__(size, composite.flow == "relevance")
        self.composite = composite
        self.unknown: Counter[str] = Counter()
        self.doubts: dict[Any, str] = {}  # operations without a rule, by their places in the graph
        self.passing: set[Any] = set()  # places of norms and softmax, which pass relevance on
        self.uneven = False  # one of them lies between the input and the scores
        self.met: set[str] = set()  # names of operations
        self.written_out: list[nn.Module] = []  # activations that may be made of small operations
        self.entered = False  # the first layer of the network was met
        self.inside = False  # of an operation that is seen as one
        self.folding: tuple[Tensor, Affine, Callable[[], Shares]] | None = None  # a batch norm may follow that layer
        self.replaced: dict[int, tuple[Tensor, Tensor]] = {}  # tensors that the model believes it has written into
        self.parts: list[tuple[Tensor, Function]] = []  # those of them that are views of others

    def __call__(self, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What stands where the model calls `function`."""
        if self.inside:
            return function(*args, **kwargs)
        if self.composite.partial:
            return self._partly(function, args, kwargs)
        if function in OPERATIONS and not kwargs.keys().isdisjoint(("input", "other", "axis")):
            args, kwargs = _by_place(args, kwargs)
        if function in (torch.addcmul, Tensor.addcmul):
            return self._addcmul(*args, **kwargs)
        if self.replaced:
            args = tuple(map(self.current, args))
            kwargs = {name: self.current(value) for name, value in kwargs.items()}
        if not any_in_graph((*args, *kwargs.values())):
            result = function(*args, **kwargs)
            follow(name_of_operation(OUT_OF_PLACE.get(function, function)), args, result)
            return result
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

    def _partly(self, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Where other operations are meant to keep their gradient, nothing but the rules is different."""
        if "input" in kwargs:
            args, kwargs = _by_place(args, kwargs)
        name = name_of_operation(OUT_OF_PLACE.get(function, function))
        rule = self.composite.rules.get(name)
        if not any_in_graph(args):
            return function(*args, **kwargs)
        self.met.add(name)
        return function(*args, **kwargs) if rule is None else rule(self, function, *args, **kwargs)

    def _addcmul(self, input: Tensor, tensor1: Any, tensor2: Any, value: float = 1) -> Any:
        product = self(torch.mul, (tensor1, tensor2), {})
        return self(torch.add, (input, product if value == 1 else self(torch.mul, (product, value), {})), {})

    def as_activation(self, operation: Function, x: Tensor) -> Any:
        """What stands where the model calls an activation that is made of several functions."""
        x = self.current(x)
        if not x.requires_grad:
            return operation(x)
        self.met.add("activation")
        self.inside = True
        try:
            found = self.composite.rules["activation"](self, operation, x)
        finally:
            self.inside = False
        return found

    def apply(self, operation: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
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
        before = _place(args[0]) if args else None
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

    def doubt(self, operation: Function, result: Any, before: Any) -> None:
        """Remember an operation without a rule, which is refused if relevance would have to go through it.

        Hooks of the user may compute what they like from what they are shown.

        Args:
            operation: The function.
            result: What it returned, or wrote into.
            before: Place in the graph of what it was given.
        """
        for tensor in result if isinstance(result, (list, tuple)) else (result,):
            place = _place(tensor)
            if place is not None and place is not before:  # it is, where nothing was done
                self.doubts[place] = getattr(operation, "__name__", str(operation))
                return

    def floor(self, share: float) -> float:
        """Least size of divisors, as a share of the sizes of what they sum up: `share` where it is needed, else 0.

        Norms and softmax that pass relevance on leave some at sums that are close to 0, and without a floor the few
        places that are closest would take most of it. After a ReLU, relevance is in proportion to the sums.
        """
        return share if self.uneven else 0.0

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
        if value is before and value._base is not None and id(value._base) in self.replaced:
            self.unknown["writing into a tensor of which a view is read later"] += 1
        if value is before and self.parts:
            self._check_parts(value)
        return value

    def _check_parts(self, value: Tensor) -> None:
        """A tensor of which a part was written into by way of a view is not what the model believes."""
        base = value._base if value._is_view() else value
        for part, function in self.parts:
            if part is not value and part._base is base and overlap(part, value):
                self.unknown[f"{getattr(function, '__name__', function)} into a part of a tensor"] += 1

    def settled(self, output: Any) -> Any:
        """What the model returns, with what it has written into in it."""
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
        """After the forward pass: report all operations that have no rule, before anything is handed back.

        Args:
            outputs: What relevance may start from.
        """
        self.replaced.clear()
        self.parts.clear()
        self.folding = None
        self.uneven = "length" in self.met
        if self.doubts or self.passing:
            reached = places_below(outputs)
            self.uneven |= not self.passing.isdisjoint(reached)
            met = [name for place, name in self.doubts.items() if place in reached]
            self.doubts.clear()
            self.passing.clear()
            if met and self.composite.partial:
                raise not_guided(met[0])
            self.unknown.update(met)
        if "bent" in self.composite.rules and "gate" in self.met and "relu" not in self.met:
            raise not_guided("sigmoid")  # x * sigmoid(x) is no ReLU
        if self.unknown:
            found = ", ".join(f"{name} ({count} times)" for name, count in sorted(self.unknown.items()))
            reason = f"there is no relevance rule for these operations of the model: {found}"
            raise UnsupportedModelError(
                f"Expected operations with relevance rules, but {reason}; choose a method without rules, such as "
                "integrated-gradients or input-x-gradient.",
                reason,
            )

    def see_whole(self, stack: ExitStack) -> None:
        """Let each activation of `written_out` be one operation of the pass, for the time of `stack`."""
        for module in self.written_out:
            replace_forward(stack, module, partial(self.as_activation, module.forward))

    def propagate(self, trace: Trace, y: Tensor, tensors: tuple[Tensor, ...], signed: bool) -> list[Tensor]:
        """Relevance of kept tensors; see `relevance_of`."""
        return relevance_of(trace, self, y, tensors, signed)

    def check_precision(self, model: nn.Module) -> None:
        """Refuse models of half precision in the relevance flow, where rounding would decide."""
        half = {p.dtype for p in model.parameters()} & {torch.float16, torch.bfloat16}
        if self.relevance and half:
            name = str(half.pop()).removeprefix("torch.")
            reason = f"relevance is divided by sums near 0, for which {name} is too coarse"
            raise UnsupportedModelError(f"Expected a model in float32, because {reason}; give model.float().", reason)


def _place(value: Any) -> Any:
    """Where a tensor lies in the graph; None of what is not in it, or starts it."""
    return value.grad_fn if isinstance(value, Tensor) else None


def _by_place(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Tensors that were given by name, at their place; axes by the name that torch has for them."""
    rest = dict(kwargs)
    args = (*args, *(rest.pop(name) for name in ("input", "other") if name in rest))
    if "axis" in rest:
        rest["dim"] = rest.pop("axis")
    return args, rest


def not_guided(name: str) -> UnsupportedModelError:
    """The error for a network whose activations are no ReLU."""
    reason = f"it is defined for ReLU networks, and this one uses {name}"
    return UnsupportedModelError(
        f"Guided backpropagation cannot explain this model: {reason}; choose smoothgrad or integrated-gradients.",
        reason,
    )
