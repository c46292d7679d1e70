"""What is not an object's shape or colour decides: a small mark, a texture, or a place."""

import math

import torch

from mhex.lab.truth.scenes import SceneRandom, any_paint, first_signs, paints, place, shape_numbers
from mhex.lab.truth.task import UNKNOWN, LabelledScenes, register_task
from mhex.lab.truth.tasks.objects import KEY_SHAPES

_RIGHT = 0.75  # share of scenes whose object agrees with the mark
_CORNERS = (0, 2, 6, 8)  # cells


@register_task("mark", title="A small mark decides, although an object says mostly the same", classes=KEY_SHAPES)
def mark(draws: SceneRandom, objects: int = 4) -> LabelledScenes:
    """A small coloured square that always tells the class, and a grey object whose shape tells it in 3 of 4 scenes."""
    label = draws.choice(len(KEY_SHAPES))
    wrong = (label + 1 + draws.choice(len(KEY_SHAPES) - 1)) % len(KEY_SHAPES)
    shape = torch.where(draws.uniform(1) < _RIGHT, label, wrong)
    idle = shape_numbers("ring", "bar", "diamond")[draws.choice(3, objects - 2)]
    square = shape_numbers("square").expand(len(draws), 1)
    grey = draws.uniform(objects - 1)[..., None].expand(-1, -1, 3)
    paint = torch.cat([paints("red", "blue", "green", "yellow")[label], grey], 1)
    radius = torch.cat([draws.uniform(1, 0.05, 0.06), draws.uniform(objects - 1, 0.11, 0.14)], 1)
    signs = first_signs(draws, objects, 1, UNKNOWN)
    shapes = torch.cat([square, shape_numbers(*KEY_SHAPES)[shape], idle], 1)
    return LabelledScenes(place(draws, shapes, paint, radius=radius), label[:, 0], signs)


@register_task(
    "texture",
    title="The stripes of a blob without an outline decide",
    classes=("level stripes", "upright stripes", "rising stripes", "falling stripes"),
)
def texture(draws: SceneRandom, objects: int = 4) -> LabelledScenes:
    """One striped blob, whose direction is the label, among blobs without stripes."""
    label = draws.choice(4)
    shape = shape_numbers("blob").expand(len(draws), objects)
    turns = torch.tensor([math.pi / 2, 0.0, math.pi / 4, -math.pi / 4], dtype=torch.float64)
    angle, stripes = torch.zeros(len(draws), objects, dtype=torch.float64), torch.zeros(len(draws), objects)
    angle[:, :1], stripes[:, :1] = turns[label], 4.0
    signs = first_signs(draws, objects, 1)
    paint = 0.3 + 0.7 * any_paint(draws, objects)
    scenes = place(draws, shape, paint, radius=(0.145, 0.155), angle=angle, stripes=stripes.double())
    return LabelledScenes(scenes, label[:, 0], signs)


@register_task(
    "position",
    title="The quarter in which a red object stands decides",
    classes=("upper left", "upper right", "lower left", "lower right"),
)
def position(draws: SceneRandom, objects: int = 4) -> LabelledScenes:
    """A red object in a corner of the scene among objects of other colours."""
    label = draws.choice(4)
    corner = torch.tensor(_CORNERS)[label]
    step = 1 + draws.order(8, objects - 1)  # other cells, counted on from the corner
    paint = torch.cat(
        [paints("red").expand(len(draws), 1, 3), paints("blue", "white", "black")[draws.choice(3, objects - 1)]], 1
    )
    signs = first_signs(draws, objects, 1)
    scenes = place(draws, draws.choice(7, objects), paint, cells=torch.cat([corner, (corner + step) % 9], 1))
    return LabelledScenes(scenes, label[:, 0], signs)
