"""Cosines of an image part by part."""

import pytest
import torch

from mhex.errors import ArgumentError
from mhex.heads.collaboration import cell_masks
from support.collaboration import Net, with_heads
from support.snapshot import Snapshot


@pytest.fixture
def scaffold():
    return with_heads(Net(units=5))


@pytest.fixture
def batch():
    return torch.randn(2, 3, 9, 11, dtype=torch.float64) + 1, torch.tensor([0, 3])


def by_loops(scaffold, x, y, grid, mode, count):
    """The definition, cell by cell."""
    height, width = x.shape[2:]
    raw = torch.zeros(len(x), grid, grid, dtype=torch.float64)
    for b in range(len(x)):
        mean = x[b].mean((1, 2), keepdim=True).expand_as(x[b])
        for i in range(grid):
            for j in range(grid):
                rows = slice(i * height // grid, (i + 1) * height // grid)
                columns = slice(j * width // grid, (j + 1) * width // grid)
                copy = (mean if mode == "keep" else x[b]).clone()
                copy[:, rows, columns] = (x[b] if mode == "keep" else mean)[:, rows, columns]
                q = scaffold.collaboration(copy[None], y[b : b + 1]).cosine[0, -count:].sum()
                if mode == "occlude":
                    q = scaffold.collaboration(x[b : b + 1], y[b : b + 1]).cosine[0, -count:].sum() - q
                raw[b, i, j] = q
    return raw


@pytest.mark.parametrize("mode", ["keep", "occlude"])
@pytest.mark.parametrize(("blocks", "count"), [("all", 4), ("last3", 3)])
def test_maps_against_the_definition(scaffold, batch, mode, blocks, count):
    x, y = batch
    found = scaffold.confidence_map(x, y, grid=3, mode=mode, blocks=blocks, chunk=4)
    expected = by_loops(scaffold, x, y, 3, mode, count)
    torch.testing.assert_close(found.raw, expected, rtol=0, atol=1e-10)
    low, high = expected.amin((1, 2), keepdim=True), expected.amax((1, 2), keepdim=True)
    torch.testing.assert_close(found.map, (expected - low) / (high - low), rtol=0, atol=1e-9)
    assert found.blocks == scaffold.names[:-1][-count:]


def test_shape_range_and_one_by_one(scaffold, batch):
    x, y = batch
    snapshot = Snapshot(scaffold.model)
    found = scaffold.confidence_map(x, y, progress=True)
    snapshot.check()
    assert found.map.shape == found.raw.shape == (2, 7, 7)
    assert found.map.amin((1, 2)).tolist() == [0, 0]
    assert found.map.amax((1, 2)).tolist() == [1, 1]
    alone = torch.cat([scaffold.confidence_map(x[i : i + 1], y[i : i + 1]).raw for i in range(2)])
    torch.testing.assert_close(found.raw, alone, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("height", "width", "grid"), [(7, 7, 7), (224, 224, 7), (10, 13, 4), (5, 9, 1)])
def test_cells_partition_the_image(height, width, grid):
    masks = cell_masks(height, width, grid)
    assert masks.shape == (grid * grid, height, width)
    assert (masks.sum(0) == 1).all()
    assert masks.flatten(1).any(1).all()


def test_a_fixed_gate_gives_a_map_of_zeros(batch):
    found = with_heads(Net(), preset="probe").confidence_map(*batch, grid=2)
    assert not found.map.any()
    assert not found.raw.any()


def test_pixel_values(batch):
    class Named(Net):
        def forward(self, pixel_values, scale):
            assert len(scale) in (1, len(pixel_values))
            return super().forward(pixel_values * scale[:, None, None, None])

    x, y = batch
    scaffold = with_heads(Named())
    scale = torch.tensor([1.0, 2.0], dtype=torch.float64)
    found = scaffold.confidence_map({"pixel_values": x, "scale": scale}, y, grid=2, chunk=3)
    alone = [
        scaffold.confidence_map({"pixel_values": x[i : i + 1], "scale": scale[i : i + 1]}, y[i : i + 1], grid=2).raw
        for i in range(2)
    ]
    torch.testing.assert_close(found.raw, torch.cat(alone), rtol=0, atol=1e-12)


def test_refusals(scaffold, batch):
    x, y = batch
    with pytest.raises(ArgumentError, match="for texts there is"):
        scaffold.confidence_map({"input_ids": torch.ones(2, 4, dtype=torch.long)}, y)
    with pytest.raises(ArgumentError, match="from 1 to 9"):
        scaffold.confidence_map(x, y, grid=10)
    with pytest.raises(ArgumentError, match="Unknown mode"):
        scaffold.confidence_map(x, y, mode="remove")
    with pytest.raises(ArgumentError, match="Unknown choice of blocks"):
        scaffold.confidence_map(x, y, blocks="first3")
    with pytest.raises(ArgumentError, match="at most 4"):
        scaffold.confidence_map(x, y, blocks="last5")
    with pytest.raises(ArgumentError, match="beside a batch"):
        scaffold.confidence_map(x)
