"""Mosaics, and the grid pointing game on them."""

import pytest
import torch
import torch.nn.functional as F

from mhex.errors import ArgumentError
from mhex.metrics.case import Case
from mhex.metrics.grid_pointing_game import GridPointingGame, grid_pointing_game, mosaics
from mhex.perturb import Subject
from support.maps_and_masks import computed, near


def test_mass_in_the_right_cell_alone_is_one():
    saliency = torch.zeros(3, 4, 4).double()
    saliency[:, :2, 2:] = torch.rand(3, 2, 2).double()
    cells = torch.zeros(3, 4, dtype=torch.bool)
    cells[0, 1] = cells[1, 2] = cells[2, 1] = cells[2, 3] = True
    saliency[:, 3, 0] = -5  # what speaks against the class is not looked at
    near(grid_pointing_game(saliency, cells), [1.0, 0.0, 1.0])


def test_an_even_map_is_at_chance_also_where_a_border_cuts_units():
    cells = torch.eye(9, dtype=torch.bool)
    near(grid_pointing_game(torch.ones(9, 7, 5).double(), cells), [1 / 9] * 9)
    middle = torch.zeros(4, 3, 3).double()
    middle[:, 1, 0] = 1
    near(grid_pointing_game(middle, torch.eye(4, dtype=torch.bool)), [0.5, 0.0, 0.5, 0.0])


class Colour(torch.nn.Module):
    """Sure of the class whose channel is the brightest."""

    def forward(self, x):
        return 20 * x.mean((2, 3))


def coloured(labels, size=8):
    return F.one_hot(torch.as_tensor(labels), 6).float()[:, :, None, None].expand(-1, -1, size, size).clone()


def test_mosaics_are_of_sure_images_of_different_classes():
    labels = torch.tensor([0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5, 0, 0])
    x = coloured(labels)
    x[1] *= 0.1  # not sure
    x[2] = x[3]  # wrong
    subject = Subject(Colour(), x, label=labels, ids=range(100, 114))
    found = mosaics(subject)
    assert len(found) == 2  # of twelve images, four of one class
    assert found.pixels.shape == (len(found), 6, 8, 8)
    used = found.members.flatten().tolist()
    assert len(set(used)) == len(used)
    assert not {101, 102} & set(used)
    for pixels, tiles, members in zip(found.pixels, found.tiles, found.members, strict=True):
        assert len(set(tiles.tolist())) == 4
        assert tiles.tolist() == labels[members - 100].tolist()
        for cell, label in enumerate(tiles.tolist()):
            row, column = 4 * (cell // 2), 4 * (cell % 2)
            assert torch.allclose(pixels[:, row : row + 4, column : column + 4], coloured([label], 4)[0])


def test_mosaics_do_not_depend_on_the_order_of_images():
    labels = torch.arange(24) % 6
    first = mosaics(Subject(Colour(), coloured(labels), label=labels), seed=3)
    turned = torch.arange(23, -1, -1)
    second = mosaics(Subject(Colour(), coloured(labels[turned]), label=labels[turned], ids=turned.tolist()), seed=3)
    assert torch.equal(first.members, second.members)
    assert len(first) == 6
    other = mosaics(Subject(Colour(), coloured(labels), label=labels), seed=4)
    assert not torch.equal(first.members, other.members)


def test_mosaics_as_they_are_and_with_two_of_a_class():
    labels = torch.arange(24) % 6
    subject = Subject(Colour(), coloured(labels), label=labels)
    assert mosaics(subject, shrink=False).pixels.shape[-2:] == (16, 16)
    for tiles in mosaics(subject, each=2).tiles.tolist():
        assert sorted(map(tiles.count, tiles)) == [2, 2, 2, 2]


def test_mosaics_refuse():
    labels = torch.arange(6)
    subject = Subject(Colour(), coloured(labels), label=labels)
    with pytest.raises(ArgumentError, match="each of 9 classes"):
        mosaics(Subject(Colour(), coloured(labels, 9), label=labels), 3)
    with pytest.raises(ArgumentError, match="multiples of 3"):
        mosaics(subject, 3)
    with pytest.raises(ArgumentError, match="n of at least 2"):
        mosaics(subject, 1)
    with pytest.raises(ArgumentError, match="give label="):
        mosaics(Subject(Colour(), coloured(labels)))


def of_class(pixels, classes):
    """The right map: where the channel of the class is bright, on a grid of half the size."""
    maps = pixels[torch.arange(len(pixels)), classes]
    return F.avg_pool2d(maps[:, None], 2)[:, 0]


def mosaic_case(again=of_class):
    labels = torch.arange(24) % 6
    found = mosaics(Subject(Colour(), coloured(labels), label=labels))
    subject = Subject(Colour(), found.pixels, ids=range(len(found)))
    explained = found.tiles[:, 0]
    return Case(subject, again(found.pixels, explained), explained, tiles=found.tiles, again=again)


@pytest.mark.parametrize(("each", "chance"), [(1, 0.25), (2, 0.5)])
def test_grid_pointing_game(each, chance):
    case = mosaic_case()
    if each == 2:
        case.tiles = torch.stack([case.tiles[:, 0], case.tiles[:, 0], case.tiles[:, 3], case.tiles[:, 3]], 1)
    flat = mosaic_case(lambda pixels, classes: torch.ones(len(pixels), 4, 4).double())
    flat.tiles = case.tiles
    if each == 1:
        found = computed(GridPointingGame(), case)
        assert (found["value"], found["n"]) == (1.0, 6)
    assert computed(GridPointingGame(), flat)["value"] == pytest.approx(chance)


def test_cells_that_say_nothing_are_left_out():
    def shy(pixels, classes):
        return of_class(pixels, classes) * (classes > 0).view(-1, 1, 1)

    case = mosaic_case(shy)
    found = computed(GridPointingGame(), case)
    assert found["value"] == 1.0
    wanted = (case.tiles == 0).double().mean()
    assert found["all"]["silent"]["value"] == pytest.approx(float(wanted))
    case.tiles = torch.zeros_like(case.tiles)
    assert computed(GridPointingGame(), case)["n_skipped"] == 6


def test_the_map_that_is_there_is_not_made_again():
    asked = []

    def again(pixels, classes):
        asked.append(classes)
        return of_class(pixels, classes)

    case = mosaic_case(again)
    asked.clear()
    GridPointingGame().of(case)
    assert len(asked) == 3


def test_grids_refuse():
    case = mosaic_case()
    with pytest.raises(ArgumentError, match="mosaics with the class of each cell"):
        GridPointingGame().of(Case(case.subject, case.saliency))
    with pytest.raises(ArgumentError, match="a way to explain other classes"):
        GridPointingGame().of(Case(case.subject, case.saliency, tiles=case.tiles))
    with pytest.raises(ArgumentError, match="cells \\(B, n \\* n\\)"):
        grid_pointing_game(torch.ones(1, 4, 4), torch.ones(1, 3, dtype=torch.bool))
