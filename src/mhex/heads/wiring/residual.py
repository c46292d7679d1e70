"""Which residual connections of a model get heads."""

import operator
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from torch import fx, nn

from mhex.errors import ArgumentError, ArgumentTypeError, UnsupportedModelError, some_of, unknown_name, warn
from mhex.heads.wiring.channels import CONVOLUTIONS, channels_of, input_width, is_layer, keeps_width, positions
from mhex.heads.wiring.graph import ADDITIONS, UNTRACEABLE, adds_in_python, ancestors, module_of, trace_unit

ROOT = "(model)"  # name of a unit that is the whole model; no module can have it
_STRIDED = CONVOLUTIONS | nn.MaxPool2d | nn.AvgPool2d  # layers that may shrink a map
_PLACEMENTS = ("all", "downsample", "projection", "attention+mlp", "first3")


@dataclass(frozen=True)
class Meeting:
    """A residual addition of a traced forward."""

    addition: str  # name of the node
    shortcut: str  # name of the node of the operand that is carried past the branch
    branch: str  # name of the node of the other operand
    channels: int  # width C of the sum
    channels_last: bool  # True for (B, H, W, C) and (B, T, C), False for (B, C, H, W)
    branch_first: bool  # True for `branch + shortcut`, False for `shortcut + branch`
    projection: bool  # whether the shortcut has layers of its own
    strided: bool  # whether the shortcut shrinks the map
    normed: bool  # whether the sum is read by a layer norm alone, as in post-norm Transformers


@dataclass(frozen=True)
class Junction:
    """A place where a shortcut and a residual branch meet."""

    name: str  # dotted name of the unit; of several additions in one unit, the earlier ones carry a suffix
    unit: str  # dotted name of the unit inside the model; empty for the model itself
    meeting: Meeting  # where in the unit's forward
    number: int  # which of the residual additions of its unit, counted from 0
    kind: str  # "map" in convolutional units, "token" in units without a convolution
    last: bool  # whether it is the last addition of its unit


@dataclass(frozen=True)
class Survey:
    """The residual additions of a model."""

    junctions: list[Junction]  # every residual addition that can carry a head, inner modules first
    left_out: dict[str, str]  # units that cannot, by name, and why, in words that follow the name


def meetings(unit: nn.Module, graph: fx.Graph) -> tuple[list[Meeting], list[str]]:
    """Residual additions of a traced forward, in order of execution, and why others cannot carry a head, in words."""
    results: list[Meeting | str] = []
    for node in graph.nodes:
        if node.target == "add_" and not node.users:
            results.append("adds in place where nothing reads the result (o.add_(x) by itself); write o = o + x")
        elif _is_addition(node) and (result := _meeting(unit, node)) is not None:
            results.append(result)
    return [r for r in results if isinstance(r, Meeting)], [r for r in results if isinstance(r, str)]


def _is_addition(node: fx.Node) -> bool:
    is_call = node.op in ("call_function", "call_method") and node.target in ADDITIONS
    return is_call and len(node.args) == 2 and not node.kwargs and all(isinstance(a, fx.Node) for a in node.args)


def _meeting(unit: nn.Module, addition: fx.Node) -> Meeting | str | None:
    """The residual addition at a node, why it cannot carry a head, or None if it is no such addition."""
    a, b = (arg for arg in addition.args if isinstance(arg, fx.Node))
    above_a, above_b = ancestors(a), ancestors(b)
    own_a, own_b, common = above_a - above_b, above_b - above_a, above_a & above_b
    size_a, size_b, nodes = _size(unit, own_a), _size(unit, own_b), list(addition.graph.nodes)
    fork = next((node for node in reversed(nodes) if node in common and node.op != "get_attr"), None)
    stream = next(node for node in nodes if node.op == "placeholder")
    if max(size_a, size_b)[0] == 0 or fork is None or stream not in ancestors(fork) or not _closes(fork, addition):
        return None
    if fork not in (a, b) and any(fork in _terms(operand, addition) for operand in (a, b)):
        return "adds a shortcut and two branches in a row, so no branch is the one; write x + (a(x) + b(x))"
    if size_a == size_b:  # neither has more to it than the other: no shortcut
        return None
    shortcut, branch, passed = (a, b, own_a) if size_a < size_b else (b, a, own_b)
    sources = positions(unit, shortcut)
    if not sources or any(node.op != "placeholder" or "cls" in node.name for node in sources):
        return "adds tensors whose positions are not those of its input (attention pooling, class attention)"
    if addition.target in (operator.iadd, "add_") and a.op == "placeholder":
        return "writes the sum into its own input (x += ...), which its caller may still read; write x = x + ..."
    usable = [guess for guess in channels_of(unit, branch) if guess.usable]
    width = _width(unit, shortcut, fork)
    channels = next((guess for guess in usable if guess.width == width), next(iter(usable), None))
    if channels is None:
        return "has its channels on another axis than (B, C, H, W) or (B, T, C), or moves axes by einsum and the like"
    if any(isinstance(m, nn.MultiheadAttention) and not m.batch_first for m in unit.modules()):
        return "attends with batch_first=False, so its first axis is not that of the samples"
    layers = [layer for module in _called(unit, passed) for layer in module.modules()]
    return Meeting(
        addition.name,
        shortcut.name,
        branch.name,
        channels.width,
        channels.last,
        branch_first=branch is a,
        projection=any(is_layer(layer) for layer in layers),
        strided=any(isinstance(layer, _STRIDED) and np.max(layer.stride) > 1 for layer in layers),
        normed=all(isinstance(module_of(unit, user), nn.LayerNorm) for user in addition.users),
    )


def _width(unit: nn.Module, shortcut: fx.Node, fork: fx.Node) -> int | None:
    """C, as the shortcut's own layers or a layer that reads the fork say; None if there is none of either."""
    if shortcut is not fork:
        return next((guess.width for guess in channels_of(unit, shortcut) if guess.usable), None)
    return next((width for reader in _called(unit, fork.users) if (width := input_width(reader))), None)


def _called(unit: nn.Module, nodes: Iterable[fx.Node]) -> list[nn.Module]:
    return [module for node in nodes if (module := module_of(unit, node)) is not None]


def _terms(node: fx.Node, user: fx.Node) -> set[fx.Node]:
    """What a sum that only `user` reads is the sum of; nothing for other nodes."""
    if not _is_addition(node) or set(node.users) != {user}:
        return set()
    return set(node.all_input_nodes).union(*(_terms(operand, node) for operand in node.all_input_nodes))


def _closes(fork: fx.Node, addition: fx.Node) -> bool:
    """True if every way from the fork to the output leads through the addition."""
    reached = {fork}
    for node in addition.graph.nodes:  # in order of execution
        if node is not addition and not reached.isdisjoint(node.all_input_nodes):
            reached.add(node)
    return all(node.op != "output" for node in reached)


def _size(unit: nn.Module, nodes: set[fx.Node]) -> tuple[int, int]:
    """Numbers of layers and of parameters of the modules that these nodes call."""
    modules = _called(unit, nodes)
    layers = [layer for module in modules for layer in module.modules() if is_layer(layer)]
    return len(layers), sum(p.numel() for module in modules for p in module.parameters())


def survey(model: nn.Module) -> Survey:
    """Every residual addition of a model, and units where no head can be placed; a model without any is refused."""
    junctions: list[Junction] = []
    failed: dict[str, str] = {}
    refused: dict[str, str] = {}
    looked: dict[str, str] = {}
    for name, module in _inner_first(model, "", set()):
        if not adds_in_python(module):
            continue
        met: list[Meeting] = []
        reasons: list[str] = []
        if "forward" in vars(module):
            failed[name] = "has a forward of its own instance (set by hand or by a library), which heads would not see"
        else:
            try:
                met, reasons = meetings(module, trace_unit(module, training=False))
            except UNTRACEABLE as error:
                failed[name] = f"cannot be traced ({first_line(error)})"
        kind = kind_of(module)
        for number, meeting in enumerate(met):
            last = number == len(met) - 1
            suffix = "" if last else (":attention" if kind == "token" and len(met) == 2 else f":{number + 1}")
            junctions.append(Junction((name or ROOT) + suffix, name, meeting, number, kind, last))
        if reasons:
            refused[name] = reasons[0]
        if why := failed.get(name) or refused.get(name) or ("" if met else "adds, but past no layers"):
            looked.setdefault(type(module).__name__, why)
    if not junctions:
        remarks = "; ".join(f"{kind}: {why}" for kind, why in looked.items()) or "no module of it adds two tensors"
        raise UnsupportedModelError(
            f"Expected a network with residual connections, but found none in {type(model).__name__}: {remarks}. "
            "Heads sit where a shortcut is added to a branch; write each such addition in the forward of a submodule."
        )
    units = {junction.unit for junction in junctions}
    failed = {name: why for name, why in failed.items() if _may_be_unit(model.get_submodule(name), name, units)}
    left_out = {name or ROOT: why for name, why in {**failed, **refused}.items() if name not in units}
    return Survey(junctions, left_out)


def _may_be_unit(module: nn.Module, name: str, units: set[str]) -> bool:
    """True for a module that could have a branch, neither holds residual units nor is a part of one."""
    # What holds units adds other things as a rule (losses), and so does what is inside of them (attention).
    within = any(name == unit or name.startswith(f"{unit}.") for unit in units if unit)
    if within or not name or any(unit.startswith(f"{name}.") for unit in units):
        return False
    # A branch of one layer keeps its width; one that does not is an embedding, to which positions are added.
    layers = [layer for layer in module.modules() if is_layer(layer)]
    return len(layers) > 1 or any(keeps_width(layer) for layer in layers)


def _inner_first(module: nn.Module, name: str, seen: set[int]) -> Iterator[tuple[str, nn.Module]]:
    if id(module) in seen:
        return
    seen.add(id(module))
    for child, inner in module.named_children():
        yield from _inner_first(inner, f"{name}.{child}".lstrip("."), seen)
    yield name, module


def unit_of(name: str) -> str:
    """Dotted name of the unit of a junction, as `get_submodule` takes it."""
    unit = name.split(":")[0]
    return "" if unit == ROOT else unit


def kind_of(unit: nn.Module) -> str:
    """`"map"` for a unit with convolutions, `"token"` for one without."""
    return "map" if any(isinstance(m, CONVOLUTIONS) for m in unit.modules()) else "token"


def closing_norm(model: nn.Module, junction: Junction) -> nn.modules.batchnorm._BatchNorm | None:
    """The batch norm with scale and shift that ends the shortcut of a junction and is read by nothing else, or None."""
    unit = model.get_submodule(junction.unit)
    graph = trace_unit(unit, training=False)
    node = next(node for node in graph.nodes if node.name == junction.meeting.shortcut)
    if node.op != "call_module" or [user.name for user in node.users] != [junction.meeting.addition]:
        return None
    end = unit.get_submodule(str(node.target))
    while isinstance(end, nn.Sequential) and len(end):
        end = end[-1]
    # A subclass may do more than its affine map, e.g. an activation after it.
    plain = type(end) in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
    return end if plain and isinstance(end, nn.modules.batchnorm._BatchNorm) and end.affine else None


def first_line(error: Exception) -> str:
    """The start of an error's message, to be quoted."""
    return (str(error).splitlines() or [type(error).__name__])[0][:100]


def junctions_at(survey: Survey, where: str | Sequence[str]) -> list[Junction]:
    """The junctions of a placement; see `mhex.attach`."""
    main = [j for j in survey.junctions if j.kind == "map" or j.last]
    if not isinstance(where, str):
        if not isinstance(where, Collection) or isinstance(where, (Mapping, bytes)):
            names = ", ".join(map(repr, _PLACEMENTS))
            raise ArgumentTypeError(f"Expected where to be {names} or a list of connections, but got {where!r}.")
        return junctions_named(survey, where)
    if survey.left_out:
        reasons = some_of([f"{name}: {why}" for name, why in survey.left_out.items()], between="; ")
        warn(f"Some units get no head. {reasons}.")
    choices = {
        "all": main,
        "attention+mlp": [j for j in survey.junctions if j.kind == "token"],
        "downsample": [j for j in main if j.meeting.strided],
        "projection": [j for j in main if j.meeting.projection],
    }
    if where in choices:
        selection = choices[where]
    elif number := re.fullmatch(r"first(\d+)", where):
        selection = main[: (count := int(number.group(1)))]
        if count > len(main):
            warn(f"where={where!r}: the model has {len(main)} residual connections, and all of them get a head.")
    elif where in {j.name for j in survey.junctions} or where in survey.left_out:
        raise ArgumentError(f"Expected names of residual connections in a list: where=[{where!r}], not {where!r}.")
    else:
        raise unknown_name("placement", where, _PLACEMENTS)
    if not selection:
        names = some_of([j.name for j in main])
        raise ArgumentError(f"No residual connection fits where={where!r}; use 'all', or a list out of: {names}.")
    return selection


def junctions_named(survey: Survey, names: Collection[str]) -> list[Junction]:
    """The junctions with these names, in the order of the model."""
    by_name = {j.name: j for j in survey.junctions}
    if not names:
        raise ArgumentError(f"Expected at least one name in where=, out of: {some_of(list(by_name))}.")
    for name in names:
        if name not in by_name and name in survey.left_out:
            raise ArgumentError(f"No head can be placed on {name}: {survey.left_out[name]}.")
        if name not in by_name:
            raise unknown_name("residual connection", str(name), by_name)
    return [j for j in survey.junctions if j.name in set(names)]
