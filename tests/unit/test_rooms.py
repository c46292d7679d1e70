"""The house keeps its order: hooks in one room, nobody calls upward."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "mhex"
FILES = sorted(SOURCE.rglob("*.py"))
MAY_USE = {  # room -> rooms and top-level files that it may import
    "capture": {"capture", "errors", "_progress", "_optional"},
    "methods": {"capture", "heads", "methods", "registry", "targets", "errors", "_optional"},
    "heads": {
        "capture",
        "heads",
        "viz",
        "errors",
        *("_correlation", "_files", "_json", "_misfit", "_optional", "_printable", "_progress", "_schema"),
    },  # its results draw themselves
    "inputs": {"capture", "inputs", "errors", "_photo"},
    "perturb": {"capture", "inputs", "perturb", "errors", "_correlation", "_progress", "_words"},
    "metrics": {"inputs", "metrics", "perturb", "errors", "_correlation", "_words"},
    "bench": {
        *("bench", "capture", "heads", "inputs", "metrics", "perturb", "registry", "bundle", "errors"),
        *("_explain", "_files", "_json", "_printable", "_progress", "_schema", "_settle", "targets"),
        *("data", "zoo", "train"),  # suites name data and models, and are read as strictly as recipes
        *("explanation", "viz", "_markup", "_photo"),  # pages of reports
    },
    "viz": {"viz", "inputs", "errors", "_files", "_printable"},
    "data": {"data", "errors", "_json", "_optional", "_photo"},
}


def imports(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
        yield from (name.split(".")[1] for name in names if name.startswith("mhex."))


@pytest.mark.parametrize("room", MAY_USE)
def test_nobody_calls_upward(room):
    files = sorted((SOURCE / room).rglob("*.py"))
    assert files, f"the room {room} is empty"
    wrong = {(str(f.relative_to(SOURCE)), used) for f in files for used in imports(f) if used not in MAY_USE[room]}
    assert not wrong


@pytest.mark.parametrize("word", ["register_forward", "register_full_backward", "TorchFunctionMode", "register_hook"])
def test_hooks_live_only_in_capture(word):
    users = {f.relative_to(SOURCE).parts[0] for f in FILES if word in f.read_text(encoding="utf-8")}
    assert users <= {"capture"}


def test_gradients_never_fill_grad():
    users = [f.name for f in FILES if ".backward(" in f.read_text(encoding="utf-8") and "train" not in f.parts]
    assert users == []
