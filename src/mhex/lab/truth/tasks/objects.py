"""One object decides by its shape or its colour; and scenes with the objects of two classes."""

import torch

from mhex.lab.truth.scenes import SceneRandom, any_paint, first_signs, paints, place, shape_numbers
from mhex.lab.truth.task import UNKNOWN, LabelledScenes, register_task

KEY_SHAPES = ("disc", "square", "triangle", "cross")
KEY_COLOURS = ("red", "blue", "green", "yellow")
_IDLE_SHAPES = ("ring", "bar", "diamond")
_IDLE_COLOURS = ("white", "black", "violet", "brown")


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
