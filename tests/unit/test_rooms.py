"""The rooms of docs/architecture.md: who may import whom, also lazily and for types alone, and hooks in one room."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "mhex"
FILES = sorted(SOURCE.rglob("*.py"))
ROOMS = sorted(path.name for path in SOURCE.iterdir() if (path / "__init__.py").is_file())
# Top-level modules by what they need; the others (errors, registry, bundle, _files...) import no room.
SCORES = {"targets", "concept"}  # what is explained
RESULTS = {"explanation", "findings"}
CALLS = {"explain", "explainer", "auto", "tuning"}
BELOW = {"capture", "inputs"}
LOW = BELOW | {"perturb", "relevance", "stats", "viz"}
MIDDLE = LOW | {"metrics", "methods", "heads", "zoo"} | SCORES | RESULTS | CALLS
MAY_IMPORT = {
    "capture": set(),
    "inputs": {"capture"},
    "stats": set(),
    "viz": BELOW,
    "relevance": {"capture"},
    "perturb": BELOW | {"stats"} | SCORES,
    "metrics": BELOW | {"perturb", "stats", "viz"} | SCORES,
    "methods": BELOW | {"relevance", "perturb", "stats", "heads"} | SCORES,
    "heads": BELOW | {"stats", "viz"},
    "zoo": {"inputs", "heads"},
    "judge": MIDDLE,
    "recommend": MIDDLE | {"judge"},
    "lab": MIDDLE | {"judge", "recommend"},
    "cli": MIDDLE | {"judge", "recommend", "lab", "data"},
    "concept": BELOW,
    "targets": BELOW | {"concept"},
    "findings": BELOW | {"explanation", "targets"},
    "explanation": BELOW | {"viz", "targets"},
    "auto": BELOW | {"heads", "concept"},
    "explainer": BELOW | {"methods", "heads", "auto"} | SCORES | RESULTS,
    "explain": BELOW | {"explainer"} | SCORES | RESULTS,
    "tuning": BELOW | {"perturb", "methods", "heads"} | SCORES | RESULTS | CALLS,
    "data": {"lab"},
    "registry": {"capture"},
    "__main__": {"cli"},
}


def place_of(module: str) -> str:
    """The room of a dotted name, or its top-level module; empty for the package itself."""
    return module.split(".")[1] if module.count(".") else ""


def imports(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Modules of mhex that a file imports, anywhere in it, and the names taken from them."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, []) for alias in node.names if alias.name.startswith("mhex."))
        elif isinstance(node, ast.ImportFrom) and node.module == "mhex":
            yield from ((f"mhex.{alias.name}", []) for alias in node.names if (SOURCE / alias.name).exists())
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("mhex."):
            yield node.module, [alias.name for alias in node.names]


def edges() -> dict[tuple[str, str], list[str]]:
    """Imports between rooms and top-level modules, with the files that have them."""
    table: dict[tuple[str, str], list[str]] = {}
    for path in FILES:
        parts = path.relative_to(SOURCE).with_suffix("").parts
        for module, _ in imports(path):
            if parts[0] not in ("__init__", place_of(module)):
                table.setdefault((parts[0], place_of(module)), []).append("/".join(parts))
    return table


def test_the_table_names_every_room() -> None:
    assert set(ROOMS) <= set(MAY_IMPORT)


def test_nobody_calls_upward() -> None:
    sources = {name.removesuffix(".py") for name in (path.name for path in SOURCE.glob("*.py"))} | set(ROOMS)
    free = {name for name in sources if name.startswith("_") or name in ("errors", "registry", "bundle")}
    wrong = {
        f"{source} -> {target}": sorted(set(files))
        for (source, target), files in edges().items()
        if target not in free and target not in MAY_IMPORT.get(source, set())
    }
    assert wrong == {}


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
