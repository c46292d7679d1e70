"""Operations by name: the torch functions that are one operation, what rules do with it, and where tensors come from.

Attention is a function, in one call or written out, and its projections are layers like all others. A tensor that only
norms, scalings and moves separate from a layer carries a mark of it, and attention notes in the marks of its arguments
that these layers project into it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Function = Callable[..., Any]
Carry = Callable[[Tensor, Tensor, tuple[Tensor, ...]], Sequence[Tensor]]  # one backward pass

_NAMED: dict[str, tuple[Function, ...]] = {
    "attention": (F.scaled_dot_product_attention,),
    "linear": (F.linear, torch.addmm),
    "convolution": (F.conv1d, F.conv2d, F.conv3d),
    "layer_norm": (F.layer_norm, torch.layer_norm),
    "rms_norm": (F.rms_norm, torch.rms_norm),
    "group_norm": (F.group_norm, torch.group_norm),
    "batch_norm": (F.batch_norm,),
    "softmax": (F.softmax, torch.softmax, Tensor.softmax),
    "activation": (
        *(F.gelu, F.silu, F.relu, F.relu6, F.leaky_relu, F.elu, F.mish, F.hardswish, F.hardtanh, F.tanh),
        *(torch.relu, torch.tanh, Tensor.relu, Tensor.tanh),
    ),
    "length": (torch.rsqrt, Tensor.rsqrt),  # of norms that are written out
    "gate": (F.sigmoid, F.hardsigmoid, torch.sigmoid, Tensor.sigmoid),
    "add": (torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__),
    "subtract": (torch.sub, Tensor.sub, torch.subtract, Tensor.subtract, Tensor.__sub__, Tensor.__rsub__, torch.rsub),
    "multiply": (torch.mul, Tensor.mul, torch.multiply, Tensor.multiply, Tensor.__mul__, Tensor.__rmul__),
    "divide": (
        *(torch.div, Tensor.div, torch.divide, Tensor.divide, torch.true_divide, Tensor.true_divide),
        Tensor.__truediv__,
    ),
    "negate": (torch.neg, Tensor.neg, torch.negative, Tensor.negative, Tensor.__neg__),
    "matmul": (
        *(torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm, Tensor.bmm, torch.mm, Tensor.mm, torch.einsum),
    ),
    "pool": (  # linear, without a weight
        *(torch.mean, Tensor.mean, torch.sum, Tensor.sum, F.interpolate),
        *(F.avg_pool1d, F.avg_pool2d, F.avg_pool3d),
        *(F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d),
    ),
    "concatenate": (torch.cat, torch.concat, torch.concatenate),
}
OPERATIONS: dict[Function, str] = {function: name for name, forms in _NAMED.items() for function in forms}
# A linear operation's gradient times its input is its relevance already.
LINEAR = frozenset(("linear", "convolution", "batch_norm", "add", "subtract", "negate", "pool", "concatenate"))

# Written in place, they would change what rules keep for the way back: the same out of place stands in.
OUT_OF_PLACE: dict[Function, Function] = {
    F.leaky_relu_: F.leaky_relu,
    F.elu_: F.elu,
    F.hardtanh_: F.hardtanh,
    Tensor.neg_: torch.neg,
    **dict.fromkeys((torch.relu_, Tensor.relu_), torch.relu),
    **dict.fromkeys((torch.tanh_, Tensor.tanh_), torch.tanh),
    **dict.fromkeys((torch.sigmoid_, Tensor.sigmoid_), torch.sigmoid),
    Tensor.masked_fill_: Tensor.masked_fill,
    **dict.fromkeys((Tensor.add_, Tensor.__iadd__), torch.add),
    **dict.fromkeys((Tensor.sub_, Tensor.subtract_, Tensor.__isub__), torch.sub),
    **dict.fromkeys((Tensor.mul_, Tensor.multiply_, Tensor.__imul__), torch.mul),
    **dict.fromkeys((Tensor.div_, Tensor.divide_, Tensor.true_divide_, Tensor.__itruediv__), torch.div),
}


def writes(function: Function) -> bool:
    """Whether a function writes into its first argument, and nothing out of place stands in for it."""
    name = getattr(function, "__name__", "")
    by_name = name.endswith("_") and not name.endswith("__") and name not in ("requires_grad_", "detach_")
    return function not in OUT_OF_PLACE and (by_name or name == "__setitem__")


# Functions of many forms, by their names: those with a bend have no rule, the others move numbers around.
_BENT = {
    *("selu", "celu", "softplus", "prelu", "rrelu", "glu", "threshold", "logsigmoid", "softsign", "tanhshrink"),
    *("hardshrink", "softshrink", "clamp", "clamp_min", "clamp_max", "clip", "maximum", "minimum", "fmax", "fmin"),
}
_ROUTES = {
    *("reshape", "view", "reshape_as", "view_as", "flatten", "unflatten", "permute", "transpose", "swapaxes"),
    *("movedim", "t", "contiguous", "clone", "squeeze", "unsqueeze", "expand", "expand_as", "repeat", "tile"),
    *("repeat_interleave", "chunk", "split", "tensor_split", "unbind", "stack", "select", "narrow", "gather"),
    *("index_select", "flip", "roll", "rot90", "pad", "unfold", "pixel_shuffle", "pixel_unshuffle"),
    *("channel_shuffle", "masked_fill", "max_pool1d", "max_pool2d", "max_pool3d", "adaptive_max_pool1d"),
    *("adaptive_max_pool2d", "amax", "dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout"),
    *("feature_alpha_dropout", "to", "type_as", "type", "float", "double", "half", "bfloat16", "detach"),
    *("requires_grad_", "__getitem__", "__get__"),
}


def name_of_operation(function: Function) -> str:
    """Name of an operation, `"route"` for one that moves numbers, `"bent"` or empty for one without rules."""
    if function in OPERATIONS:
        return OPERATIONS[function]
    name = getattr(function, "__name__", "")
    return "route" if name in _ROUTES else "bent" if name.removesuffix("_") in _BENT else ""


class RuledPass(Protocol):
    """What the rules of relevance propagation do in one observed pass; `mhex.relevance.Flow` has the meanings."""

    sequence_first: bool
    turned: bool
    everywhere: bool
    splits: bool
    needs_float32: bool

    def __call__(self, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any: ...
    def straight(self) -> AbstractContextManager[None]: ...
    def current(self, value: Any) -> Any: ...
    def settled(self, output: Any) -> Any: ...
    def finish(self, *outputs: Tensor) -> None: ...
    def see_as_one(self, stack: ExitStack) -> None: ...
    def propagate(
        self,
        y: Tensor,
        sources: Sequence[Tensor | None],
        tensors: tuple[Tensor, ...],
        carry: Carry,
        signed: bool,
        of_class: bool,
    ) -> tuple[list[Tensor], dict[str, Tensor]]: ...


class Rules(Protocol):
    """Relevance rules, as `mhex.relevance.Composite` has them: operations with another backward."""

    @property
    def partial(self) -> bool: ...
    def begin(self, model: nn.Module, size: int) -> RuledPass: ...


_ORIGIN = "_mhex_origin"  # an attribute of the tensors of a pass
# Operations after which a tensor still comes from the same layers.
_KEEPING = frozenset(
    ["route", "concatenate", "layer_norm", "rms_norm", "batch_norm", "multiply", "divide", "negate", "add", "subtract"]
)
_FOLLOWED = _KEEPING | {"attention", "matmul", "softmax"}


@dataclass(eq=False)
class Mark:
    """A layer of the pass; `projects` is True if its output goes into attention as queries, keys or values."""

    projects: bool = False


@dataclass(frozen=True)
class Origin:
    """The layers that a tensor comes from: from them alone, as a softmax of their products, or from attention."""

    layers: frozenset[Mark]
    kind: Literal["layers", "weights", "attention"] = "layers"


def origin_of(x: Any) -> Origin | None:
    """The layers that a tensor comes from; None if other operations lie between."""
    origin: Origin | None = getattr(x, _ORIGIN, None)
    return origin


def is_from(x: Any, kind: str) -> bool:
    """Whether a tensor has an origin of this kind."""
    origin = origin_of(x)
    return origin is not None and origin.kind == kind


def mark(x: Any, origin: Origin | None) -> None:
    """Write down the origin of a tensor, or of each of several."""
    for tensor in tensors_in((x,)):
        setattr(tensor, _ORIGIN, origin)


def follow(name: str, args: tuple[Any, ...], result: Any) -> None:
    """Mark the result of an operation, from the marks of its arguments."""
    if name not in _FOLLOWED:
        return
    inputs = [x for x in tensors_in(args) if x.requires_grad or name not in _KEEPING or origin_of(x) is not None]
    origins = [origin_of(x) for x in inputs]
    layers = frozenset[Mark]().union(*(origin.layers for origin in origins if origin is not None))
    if name == "attention" or (name == "matmul" and any(is_from(x, "weights") for x in inputs)):
        for layer in layers:
            layer.projects = True
        mark(result, Origin(frozenset(), "attention"))
    elif name == "softmax":
        mark(result, Origin(layers, "weights"))
    elif name == "matmul":
        if None not in origins:
            mark(result, Origin(layers))
    elif inputs and all(origin is not None and origin == origins[0] for origin in origins):
        mark(result, origins[0])


def nodes_below(outputs: Iterable[Tensor]) -> Iterator[Any]:
    """All nodes of the graph that a backward pass from these tensors goes through."""
    nodes, visits = [output.grad_fn for output in outputs], set()
    while nodes:
        node = nodes.pop()
        if node is not None and node not in visits:
            visits.add(node)
            yield node
            nodes += [below for below, _ in node.next_functions]


def tensors_in(values: Iterable[Any]) -> Iterator[Tensor]:
    """The tensors among values, and in lists and tuples among them."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors_in(value)
