"""The rooms of docs/architecture.md: who may import whom, also lazily and for types alone, and hooks in one room."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import mhex

SOURCE = Path(__file__).parents[2] / "src" / "mhex"
FILES = sorted(SOURCE.rglob("*.py"))
ROOMS = sorted(path.name for path in SOURCE.iterdir() if (path / "__init__.py").is_file())
FREE = {"errors", "registry", "bundle"}  # for everyone, as modules with a leading underscore
# What each room and each other top-level module imports from others. An edge more is a decision.
EDGES = {
    "capture": set(),
    "stats": set(),
    "inputs": {"capture"},
    "relevance": {"capture"},
    "viz": {"inputs"},
    "perturb": {"capture", "inputs"},
    "metrics": {"capture", "inputs", "perturb", "stats"},
    "methods": {"capture", "relevance", "heads", "targets"},
    "heads": {"capture", "inputs", "stats", "viz"},
    "zoo": {"inputs", "heads"},
    "judge": {"capture", "inputs", "perturb", "stats", "viz", "metrics", "methods", "heads"}
    | {"targets", "explainer", "explanation"},
    "recommend": {"capture", "inputs", "perturb", "stats", "viz", "metrics", "methods", "judge"},
    "lab": {"capture", "inputs", "perturb", "stats", "viz", "metrics", "methods", "heads", "zoo"}
    | {"judge", "recommend", "explain"},
    "cli": {"capture", "inputs", "viz", "metrics", "methods", "heads", "zoo", "judge", "recommend", "lab"}
    | {"auto", "concept", "targets", "explain", "explanation"},
    "registry": {"capture"},
    "concept": {"capture", "inputs"},
    "targets": {"capture", "inputs", "concept"},
    "auto": {"capture", "heads", "concept"},
    "explanation": {"capture", "inputs", "viz", "targets"},
    "findings": {"capture", "inputs", "explanation", "targets"},
    "explainer": {"capture", "inputs", "methods", "heads", "auto", "targets", "explanation", "findings"},
    "explain": {"capture", "explainer", "explanation", "targets"},
    "tuning": {"capture", "inputs", "perturb", "targets", "explanation", "explain"},
    "data": {"lab"},
    "__main__": {"cli"},
}


def place_of(module: str) -> str:
    """The room of a dotted name, or its top-level module; empty for the package itself."""
    return module.split(".")[1] if module.count(".") else ""


def home(name: str) -> list[str]:
    """The module that a name of the package comes from: a public name, a room or a file; none for `__version__`."""
    module = mhex._HOMES.get(name, f"mhex.{name}")
    places = (SOURCE / place_of(module), SOURCE / f"{place_of(module)}.py")
    return [module] if any(place.exists() for place in places) else []


def imports(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Modules of mhex that a file imports or reads as attributes of the package, and the names taken from them."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, []) for alias in node.names if alias.name.startswith("mhex."))
        elif isinstance(node, ast.ImportFrom) and node.module == "mhex":
            yield from ((module, []) for alias in node.names for module in home(alias.name))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("mhex."):
            yield node.module, [alias.name for alias in node.names]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "mhex":
            yield from ((module, []) for module in home(node.attr))


def edges() -> dict[tuple[str, str], list[str]]:
    """Imports between rooms and top-level modules, with the files that have them."""
    table: dict[tuple[str, str], list[str]] = {}
    for path in FILES:
        parts = path.relative_to(SOURCE).with_suffix("").parts
        for module, _ in imports(path):
            if parts[0] not in ("__init__", place_of(module)):
                table.setdefault((parts[0], place_of(module)), []).append("/".join(parts))
    return table


def test_rooms_import_what_the_table_says_and_nothing_else() -> None:
    present: dict[str, set[str]] = {room: set() for room in ROOMS}
    for source, target in edges():
        if target not in FREE and not target.startswith("_"):
            present.setdefault(source, set()).add(target)
    wrong = {
        f"{source} -> {target}": sorted(set(edges().get((source, target), ["only in the table"])))
        for source in present | EDGES
        for target in present.get(source, set()) ^ EDGES.get(source, set())
    }
    assert wrong == {}


@pytest.mark.parametrize(
    "line", ["from mhex import evaluate", "from mhex import judge", "import mhex; mhex.evaluate", "import mhex.judge"]
)
def test_public_names_count_as_imports_of_their_rooms(line: str, tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text(line, encoding="utf-8")
    assert [place_of(module) for module, _ in imports(tmp_path / "module.py")] == ["judge"]


def test_no_two_rooms_import_each_other() -> None:
    below: dict[str, set[str]] = {}
    for source, target in edges():
        below.setdefault(source, set()).add(target)

    def reach(start: str) -> set[str]:
        reached: set[str] = set()
        waiting = [start]
        while waiting:
            for target in below.get(waiting.pop(), set()) - reached:
                reached.add(target)
                waiting.append(target)
        return reached

    assert [room for room in below if room in reach(room)] == []


def test_no_private_name_crosses_a_room() -> None:
    wrong = []
    for path in FILES:
        room = path.relative_to(SOURCE).with_suffix("").parts[0]
        for module, names in imports(path):
            inner = [*module.split(".")[2:], *names]
            if place_of(module) != room and any(part.startswith("_") for part in inner):
                wrong.append(f"{path.relative_to(SOURCE)}: {module} {names}")
    assert wrong == []


@pytest.mark.parametrize("word", ["register_forward", "register_full_backward", "TorchFunctionMode"])
def test_hooks_live_only_in_capture(word: str) -> None:
    users = {path.relative_to(SOURCE).parts[0] for path in FILES if word in path.read_text(encoding="utf-8")}
    assert users == {"capture"} or (word == "register_full_backward" and not users)


def test_gradients_never_fill_grad() -> None:
    users = [path for path in FILES if ".backward(" in path.read_text(encoding="utf-8") and "train" not in path.parts]
    assert users == []
