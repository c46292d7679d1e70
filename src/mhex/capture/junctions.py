"""All residual connections of a model, by name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from mhex.capture.layers import is_layer, is_map_layer, keeps_width
from mhex.capture.residual import Meeting, meetings
from mhex.capture.unit_graph import UNTRACEABLE, adds_in_python, trace_unit
from mhex.errors import UnsupportedModelError

ROOT = "(model)"  # name of a unit that is the whole model; no module can have it


@dataclass(frozen=True)
class Junction:
    """A place where a shortcut and a residual branch meet.

    Attributes:
        name: Dotted name of the unit; of several additions in one unit, the earlier ones carry a suffix.
        unit: Dotted name of the unit inside the model; empty for the model itself.
        meeting: Where in the unit's forward.
        number: Which of the residual additions of its unit, counted from 0.
        kind: `"map"` in convolutional units, `"token"` in units without a convolution.
        last: True for the last addition of its unit.
    """

    name: str
    unit: str
    meeting: Meeting
    number: int
    kind: str
    last: bool


@dataclass(frozen=True)
class Survey:
    """What was found in a model.

    Attributes:
        junctions: Every residual addition that can carry a head.
        left_out: Units that cannot, by name, and why, in words that follow the name.
    """

    junctions: list[Junction]
    left_out: dict[str, str]


def find_junctions(model: nn.Module) -> list[Junction]:
    """Every residual addition of the model, in the order in which its modules are written, inner ones first.

    Raises:
        UnsupportedModelError: There is none; the message lists what was looked at.
    """
    return survey(model).junctions


def survey(model: nn.Module) -> Survey:
    """Every residual addition of the model, and the units that have one in which no head can be placed.

    Raises:
        UnsupportedModelError: There is no addition; the message lists what was looked at.
    """
    found: list[Junction] = []
    failed: dict[str, str] = {}
    refused: dict[str, str] = {}
    looked: dict[str, str] = {}
    for name, module in _inner_first(model, "", set()):
        if not adds_in_python(module):
            continue
        if "forward" in vars(module):
            failed[name] = "has a forward of its own instance (set by hand or by a library), which heads would not see"
            looked.setdefault(type(module).__name__, failed[name])
            continue
        try:
            met = meetings(module, trace_unit(module, training=False))
        except UNTRACEABLE as error:
            failed[name] = f"cannot be traced ({first_line(error)})"
            looked.setdefault(type(module).__name__, failed[name])
            continue
        found.extend(_junctions(name, module, met.found))
        if met.refused:
            refused[name] = met.refused[0]
            looked.setdefault(type(module).__name__, met.refused[0])
        elif not met.found:
            looked.setdefault(type(module).__name__, "adds, but past no layers")
    if not found:
        seen = "; ".join(f"{kind}: {why}" for kind, why in looked.items()) or "no module of it adds two tensors"
        raise UnsupportedModelError(
            f"Expected a network with residual connections, but found none in {type(model).__name__}: {seen}. "
            "Heads sit where a shortcut is added to a branch; write each such addition in the forward of a submodule."
        )
    units = {junction.unit for junction in found}
    failed = {name: why for name, why in failed.items() if _may_be_unit(model.get_submodule(name), name, units)}
    left_out = {name or ROOT: why for name, why in {**failed, **refused}.items() if name not in units}
    return Survey(found, left_out)


def _junctions(name: str, module: nn.Module, met: list[Meeting]) -> Iterator[Junction]:
    kind = kind_of(module)
    for number, meeting in enumerate(met):
        last = number == len(met) - 1
        suffix = "" if last else (":attention" if kind == "token" and len(met) == 2 else f":{number + 1}")
        yield Junction((name or ROOT) + suffix, name, meeting, number, kind, last)


def _may_be_unit(module: nn.Module, name: str, units: set[str]) -> bool:
    """True for a module that could have a branch, neither holds residual units nor is a part of one.

    What holds units adds other things as a rule (losses), and so does what is inside of them (attention). A branch of
    one layer keeps its width; a single layer that does not is an embedding, to which positions are added.
    """
    around = any(name == unit or name.startswith(f"{unit}.") for unit in units if unit)
    inside = any(unit.startswith(f"{name}.") for unit in units) or not name
    if around or inside:
        return False
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
    return "map" if any(is_map_layer(m) for m in unit.modules()) else "token"


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
