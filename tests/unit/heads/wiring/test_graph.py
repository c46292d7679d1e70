"""What is read off a forward before it is traced, and what tracing leaves behind."""

import random
from collections import Counter

import numpy as np
import pytest
import timm
import torch
from torch import fx, nn

import mhex
from mhex.heads.wiring import graph
from mhex.heads.wiring.graph import compared_arguments, compared_with_none, trace_unit
from support.residual_units import Unit


class Masked(Unit):
    """Compares two of its arguments with None."""

    def forward(self, x, attention_mask=None, *, scale=None, offset=None):
        y = self.body(x)
        if attention_mask is not None:
            y = y * attention_mask
        return x + (y if scale is None else y * scale)


CODE = {
    "3.11": [("LOAD_FAST", "mask"), ("POP_JUMP_FORWARD_IF_NONE", 8)],
    "3.12": [("LOAD_FAST", "mask"), ("POP_JUMP_IF_NOT_NONE", 8)],
    "far": [("LOAD_FAST", "mask"), ("EXTENDED_ARG", 1), ("POP_JUMP_IF_NONE", 300)],
    "value": [("LOAD_FAST", "mask"), ("LOAD_CONST", None), ("IS_OP", 1)],
    "3.13": [("LOAD_FAST_LOAD_FAST", ("x", "mask")), ("POP_JUMP_IF_NONE", 8)],
    "3.13 value": [("LOAD_FAST_LOAD_FAST", ("x", "mask")), ("LOAD_CONST", None), ("IS_OP", 0)],
    "3.14": [("LOAD_FAST_BORROW", "mask"), ("POP_JUMP_IF_NONE", 8), ("NOT_TAKEN", None)],
    "3.14 pair": [("LOAD_FAST_BORROW_LOAD_FAST_BORROW", ("x", "mask")), ("POP_JUMP_IF_NOT_NONE", 8)],
    "checked": [("LOAD_FAST_CHECK", "mask"), ("POP_JUMP_IF_NONE", 8)],
}


@pytest.mark.parametrize("version", CODE)
def test_tests_for_none_in_every_byte_code(version):
    assert compared_with_none([("RESUME", 0), *CODE[version]]) == {"mask"}


@pytest.mark.parametrize(
    "code",
    [
        [("LOAD_FAST", "mask"), ("POP_JUMP_IF_FALSE", 8)],
        [("LOAD_FAST", "mask"), ("LOAD_CONST", 0), ("IS_OP", 0)],
        [("LOAD_FAST", "x"), ("LOAD_FAST", "mask"), ("CALL", 1), ("POP_JUMP_IF_NONE", 8)],
        [("LOAD_GLOBAL", "mask"), ("POP_JUMP_IF_NONE", 8)],
        [("STORE_FAST", "mask"), ("LOAD_CONST", None), ("IS_OP", 0)],
    ],
)
def test_other_code_tests_nothing(code):
    assert compared_with_none(code) == set()


def test_arguments_of_this_python():
    assert compared_arguments(Masked()) == ["attention_mask", "scale"]


def test_far_jumps():
    """A long forward jumps further than one byte reaches."""
    body = "\n".join(f"        y = y * {i}.5 + x * {i}.25" for i in range(200))
    space = {"nn": nn}
    source = f"class Long(nn.Module):\n    def forward(self, x, mask=None):\n        y = x\n        if mask is not None:\n{body.replace('        y', '            y')}\n        return y\n"  # noqa: E501
    exec(source, space)
    assert compared_arguments(space["Long"]()) == ["mask"]


def test_tracing_leaves_the_unit_as_it_was():
    unit = Masked().train()
    before = dict(vars(unit))
    graph = trace_unit(unit, training=False, present=["attention_mask"])
    assert "attention_mask" in [node.target for node in graph.nodes if node.users]
    assert dict(vars(unit)) == before
    assert unit.training


class Hoarding(Unit):
    """Keeps what it computed in a table or in a list."""

    def __init__(self, where):
        super().__init__()
        self.where, self.table, self.list = where, {"old": 1}, [2]

    def forward(self, x):
        y = self.body(x)
        if self.where == "table":
            self.table[str(x.device)] = y
        elif self.where == "changed":
            self.table["old"] = y
        elif self.where == "list":
            self.list.append(y)
        return x + y


@pytest.mark.parametrize("where", ["table", "changed", "list"])
def test_tracing_leaves_what_a_unit_keeps_in_tables_and_lists(where):
    unit, name = Hoarding(where), "list" if where == "list" else "table"
    with pytest.raises(fx.proxy.TraceError, match=f"its forward writes to self.{name}"):
        trace_unit(unit, training=False)
    assert (unit.table, unit.list) == ({"old": 1}, [2])
    trace_unit(Hoarding("nowhere"), training=False)


class Dicing(Unit):
    """Draws a number in its forward, which tracing would fix for ever."""

    def __init__(self, draw):
        super().__init__()
        self.draw = draw

    def forward(self, x):
        return x + self.body(x) * self.draw()


DRAWS = {"python": random.random, "numpy": np.random.rand, "torch": lambda: float(torch.rand(()))}


@pytest.mark.parametrize("kind", DRAWS)
def test_units_that_draw_numbers_are_refused_and_generators_are_put_back(kind):
    def states():
        return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()

    unit = Dicing(DRAWS[kind])
    before = states()
    with pytest.raises(fx.proxy.TraceError, match="its forward draws random numbers itself"):
        trace_unit(unit, training=False)
    assert states() == before
    trace_unit(Dicing(lambda: 0.5), training=False)


def test_tracing_leaves_no_proxies_in_caches_of_attention():
    """Attention of timm keeps its biases in a table by the name of the device."""
    model = timm.create_model("levit_128s", num_classes=4, img_size=64).eval()
    before = {name: dict(module.attention_bias_cache) for name, module in model.named_modules() if is_caching(module)}
    mhex.attach(model, 4)
    caches = {name: module.attention_bias_cache for name, module in model.named_modules() if is_caching(module)}
    assert len(before) > 3
    assert caches == before


def is_caching(module):
    return hasattr(module, "attention_bias_cache")


def test_a_unit_is_traced_few_times(monkeypatch):
    """Twice to find it, and twice to rewrite it for each mode; heads cost once, but large models have many units."""
    counts = Counter()
    traced = graph._traced
    monkeypatch.setattr(graph, "_traced", lambda unit, *rest: counts.update([id(unit)]) or traced(unit, *rest))
    model = nn.Sequential(Unit(), Unit())
    mhex.attach(model, 4, where="all")
    assert set(counts.values()) == {6}
