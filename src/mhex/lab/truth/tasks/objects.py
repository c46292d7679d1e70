"""Tasks of scenes, decided by the shape or colour of an object, a mark, a texture, a place, or several objects."""

import math

import torch

from mhex.lab.truth.scenes import SceneRandom, any_paint, first_signs, paints, place, shape_numbers
from mhex.lab.truth.task import UNKNOWN, LabelledScenes, register_task

KEY_SHAPES = ("disc", "square", "triangle", "cross")
KEY_COLOURS = ("red", "blue", "green", "yellow")
_IDLE_SHAPES = ("ring", "bar", "diamond")
_IDLE_COLOURS = ("white", "black", "violet", "brown")
_PAIR = ("disc", "square")
_RIGHT = 0.75  # share of scenes whose object agrees with the mark
_CORNERS = (0, 2, 6, 8)  # cells


@register_task("objects", title="One of several objects decides, by its shape; colours say nothing", classes=KEY_SHAPES)
def key_shape(draws: SceneRandom, objects: int = 5) -> LabelledScenes:
    """One disc, square, triangle or cross among rings, bars and diamonds."""
    label = draws.choice(len(KEY_SHAPES))
    idle = shape_numbers(*_IDLE_SHAPES)[draws.choice(len(_IDLE_SHAPES), objects - 1)]
    shape = torch.cat([shape_numbers(*KEY_SHAPES)[label], idle], 1)
    return LabelledScenes(place(draws, shape, any_paint(draws, objects)), label[:, 0], first_signs(draws, objects, 1))


@register_task(
    "colour",
    title="One of several objects decides, by its colour; shapes say nothing",
    classes=KEY_COLOURS,
    family="objects",
)
def key_colour(draws: SceneRandom, objects: int = 5) -> LabelledScenes:
    """One red, blue, green or yellow object among white, black, violet and brown ones."""
    label = draws.choice(len(KEY_COLOURS))
    idle = paints(*_IDLE_COLOURS)[draws.choice(len(_IDLE_COLOURS), objects - 1)]
    paint = torch.cat([paints(*KEY_COLOURS)[label], idle], 1)
    shape = draws.choice(len(KEY_SHAPES) + len(_IDLE_SHAPES), objects)
    return LabelledScenes(place(draws, shape, paint), label[:, 0], first_signs(draws, objects, 1))


@register_task(
    "two-classes", title="Objects of two classes in one scene", classes=KEY_SHAPES, learnable=False, network="objects"
)
def two_classes(draws: SceneRandom, objects: int = 5) -> LabelledScenes:
    """Two different ones of disc, square, triangle and cross among rings, bars and diamonds; the first is the label."""
    classes = draws.order(len(KEY_SHAPES), 2)
    idle = shape_numbers(*_IDLE_SHAPES)[draws.choice(len(_IDLE_SHAPES), objects - 2)]
    shape = torch.cat([shape_numbers(*KEY_SHAPES)[classes], idle], 1)
    signs = first_signs(draws, objects, 1, UNKNOWN)  # whether the second class speaks against the first is not known
    return LabelledScenes(place(draws, shape, any_paint(draws, objects)), classes[:, 0], signs, classes[:, 1])


@register_task("mark", title="A small mark decides, although an object says mostly the same", classes=KEY_SHAPES)
def mark(draws: SceneRandom, objects: int = 4) -> LabelledScenes:
    """A small coloured square that always tells the class, and a grey object whose shape tells it in 3 of 4 scenes."""
    label = draws.choice(len(KEY_SHAPES))
    wrong = (label + 1 + draws.choice(len(KEY_SHAPES) - 1)) % len(KEY_SHAPES)
    shape = torch.where(draws.uniform(1) < _RIGHT, label, wrong)
    idle = shape_numbers(*_IDLE_SHAPES)[draws.choice(3, objects - 2)]
    square = shape_numbers("square").expand(len(draws), 1)
    grey = draws.uniform(objects - 1)[..., None].expand(-1, -1, 3)
    paint = torch.cat([paints(*KEY_COLOURS)[label], grey], 1)
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


@register_task(
    "conjunction",
    title="The shapes of a red and of a blue object decide together",
    classes=tuple(f"red {first} and blue {second}" for first in _PAIR for second in _PAIR),
)
def conjunction(draws: SceneRandom, objects: int = 5) -> LabelledScenes:
    """A red and a blue object, each a disc or a square, among others; neither alone says the class."""
    keys = draws.choice(2, 2)
    idle = draws.choice(len(_IDLE_COLOURS), objects - 2)
    shape = torch.cat([shape_numbers(*_PAIR)[keys], shape_numbers(*_PAIR)[draws.choice(2, objects - 2)]], 1)
    pair = paints("red", "blue").expand(len(draws), 2, 3)
    paint = torch.cat([pair, paints(*_IDLE_COLOURS)[idle]], 1)
    return LabelledScenes(place(draws, shape, paint), 2 * keys[:, 0] + keys[:, 1], first_signs(draws, objects, 1, 1))


@register_task("count", title="The colour of most objects decides", classes=("red", "blue"))
def count(draws: SceneRandom, objects: int = 6) -> LabelledScenes:
    """Red and blue objects, more of the label's colour (of six objects 4 to 1), and a white one."""
    label = draws.choice(2)[:, 0]
    fewer = 1 + draws.choice(max(1, (objects - 1) // 2 - 1))  # (N, 1)
    number = torch.arange(objects)
    minority = number < fewer
    idle = (number == objects - 1).expand_as(minority)
    side = torch.where(minority, 1 - label[:, None], label[:, None])
    paint = torch.where(idle[..., None], paints("white")[0], paints("red", "blue")[side])
    signs = torch.where(idle, 0, torch.where(minority, -1, 1))
    return LabelledScenes(place(draws, draws.choice(7, objects), paint, radius=(0.11, 0.13)), label, signs)


@register_task(
    "against",
    title="The larger of two coloured objects decides, and the smaller speaks against it",
    classes=KEY_COLOURS,
)
def against(draws: SceneRandom, objects: int = 4) -> LabelledScenes:
    """Two objects of different key colours, the larger of which is the label, among white, black and violet ones."""
    classes = draws.order(4, 2)
    paint = torch.cat([paints(*KEY_COLOURS)[classes], paints(*_IDLE_COLOURS)[draws.choice(3, objects - 2)]], 1)
    radius = draws.uniform(objects, 0.09, 0.13)
    radius[:, 0], radius[:, 1] = 0.145, 0.075
    shape = shape_numbers("disc", "square", "diamond")[draws.choice(3, objects)]
    return LabelledScenes(place(draws, shape, paint, radius=radius), classes[:, 0], first_signs(draws, objects, 1, -1))
