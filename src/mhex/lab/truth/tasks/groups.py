"""Several objects decide together: both of two, the larger number, or the larger of two."""

import torch

from mhex.lab.truth.scenes import SceneRandom, first_signs, paints, place, shape_numbers
from mhex.lab.truth.task import LabelledScenes, register_task

_IDLE = ("white", "black", "violet", "brown")
_PAIR = ("disc", "square")


@register_task(
    "conjunction",
    title="The shapes of a red and of a blue object decide together",
    classes=tuple(f"red {first} and blue {second}" for first in _PAIR for second in _PAIR),
)
def conjunction(draws: SceneRandom, objects: int = 5) -> LabelledScenes:
    """A red and a blue object, each a disc or a square, among others; neither alone says the class."""
    keys = draws.choice(2, 2)
    idle = draws.choice(len(_IDLE), objects - 2)
    shape = torch.cat([shape_numbers(*_PAIR)[keys], shape_numbers(*_PAIR)[draws.choice(2, objects - 2)]], 1)
    pair = paints("red", "blue").expand(len(draws), 2, 3)
    paint = torch.cat([pair, paints(*_IDLE)[idle]], 1)
    return LabelledScenes(place(draws, shape, paint), 2 * keys[:, 0] + keys[:, 1], first_signs(draws, objects, 1, 1))


@register_task("count", title="The colour of most objects decides", classes=("red", "blue"))
def count(draws: SceneRandom, objects: int = 6) -> LabelledScenes:
    """Red and blue objects, one and a half times to three times as many of the label's colour, and one white one."""
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
    classes=("red", "blue", "green", "yellow"),
)
def against(draws: SceneRandom, objects: int = 4) -> LabelledScenes:
    """Two objects of different key colours, the larger of which is the label, among white, black and violet ones."""
    classes = draws.order(4, 2)
    paint = torch.cat(
        [paints("red", "blue", "green", "yellow")[classes], paints(*_IDLE)[draws.choice(3, objects - 2)]], 1
    )
    radius = draws.uniform(objects, 0.09, 0.13)
    radius[:, 0], radius[:, 1] = 0.145, 0.075
    shape = shape_numbers("disc", "square", "diamond")[draws.choice(3, objects)]
    return LabelledScenes(place(draws, shape, paint, radius=radius), classes[:, 0], first_signs(draws, objects, 1, -1))
