"""The picture of the rooms on docs/architecture.md, drawn from the imports of the source."""

from __future__ import annotations

import ast
import io
from pathlib import Path

from matplotlib import rc_context
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

import mhex

FLOORS = (
    ("cli",),
    ("recommend", "lab"),
    ("judge",),
    ("metrics", "methods", "heads", "zoo"),
    ("perturb", "stats", "relevance", "viz"),
    ("inputs", "capture"),
)
WIDTH, HEIGHT, BOX = 10.0, 7.4, (1.7, 0.62)


def room_edges(source: Path) -> set[tuple[str, str]]:
    """Which room imports which, lazy and type-only imports included."""
    rooms = {room for floor in FLOORS for room in floor}
    edges = set()
    for path in source.rglob("*.py"):
        room = path.relative_to(source).parts[0]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            modules = []
            if isinstance(node, ast.ImportFrom) and node.module == "mhex":
                modules = [mhex._HOMES.get(alias.name, f"mhex.{alias.name}") for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                modules = [node.module or ""]
            elif isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "mhex":
                modules = [mhex._HOMES.get(node.attr, f"mhex.{node.attr}")]
            edges |= {(room, module.split(".")[1]) for module in modules if module.startswith("mhex.")}
    return {(source, target) for source, target in edges if source != target and {source, target} <= rooms}


def without_shortcuts(edges: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Edges that do not follow from a path over other rooms."""
    below: dict[str, set[str]] = {}
    for importer, imported in edges:
        below.setdefault(importer, set()).add(imported)

    def reach(room: str) -> set[str]:
        return set().union(*({target} | reach(target) for target in below.get(room, set())))

    return {
        (importer, imported)
        for importer, imported in edges
        if not any(imported in reach(room) for room in below[importer] - {imported})
    }


def picture(source: Path) -> str:
    """An SVG: a box for each room, one floor above the other, and arrows for imports that do not follow from others."""
    figure = Figure((WIDTH, HEIGHT))
    canvas = FigureCanvasSVG(figure)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, WIDTH), ylim=(0, HEIGHT))
    axes.axis("off")
    places = {}
    for level, floor in enumerate(FLOORS):
        for number, room in enumerate(floor):
            x = WIDTH * (number + 1) / (len(floor) + 1)
            places[room] = (x, HEIGHT - 0.7 - level * (HEIGHT - 1.4) / (len(FLOORS) - 1))
    boxes = {}
    for room, (x, y) in places.items():
        corner, colours = (x - BOX[0] / 2, y - BOX[1] / 2), {"facecolor": "#eef3f8", "edgecolor": "#33526e"}
        boxes[room] = axes.add_patch(FancyBboxPatch(corner, *BOX, boxstyle="round,pad=0.02", **colours))
        axes.text(x, y, room, ha="center", va="center", fontsize=13, color="#14283a")
    for importer, imported in sorted(without_shortcuts(room_edges(source))):
        axes.add_patch(
            FancyArrowPatch(
                places[importer],
                places[imported],
                patchA=boxes[importer],
                patchB=boxes[imported],
                shrinkA=1,
                shrinkB=1,
                arrowstyle="-|>",
                mutation_scale=12,
                color="#6b7d8f",
            )
        )
    buffer = io.StringIO()
    with rc_context({"svg.hashsalt": "mhex", "svg.fonttype": "none"}):
        canvas.print_svg(buffer, metadata={"Date": None, "Creator": None})
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"
