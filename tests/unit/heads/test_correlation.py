"""Pearson's coefficient with what it is worth, and the study of a data set."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import norm, t
from torch.utils.data import DataLoader, TensorDataset

from mhex.errors import ArgumentError, MhexWarning
from mhex.heads import pearson, study
from support.collaboration import Net, with_heads


def definition(x, y, level):
    """Coefficient, p-value and Fisher's interval, written out."""
    a, b = x - x.mean(), y - y.mean()
    r = (a * b).sum() / math.sqrt((a**2).sum() * (b**2).sum())
    chance = 2 * t.sf(abs(r) * math.sqrt(len(x) - 2) / math.sqrt(1 - r**2), len(x) - 2)
    half = norm.ppf((1 + level) / 2) / math.sqrt(len(x) - 3)
    return r, chance, math.tanh(math.atanh(r) - half), math.tanh(math.atanh(r) + half)


@pytest.mark.parametrize("count", [4, 30, 1000])
@pytest.mark.parametrize("level", [0.95, 0.5])
def test_pearson_against_its_definition(count, level):
    rng = np.random.default_rng(count)
    x = rng.normal(size=count)
    y = 0.3 * x + rng.normal(size=count)
    found = pearson(torch.tensor(x), y.tolist(), level)
    expected = definition(x, y, level)
    assert (found.coefficient, found.p_value, found.low, found.high) == pytest.approx(expected, rel=1e-9)
    assert found.count == count
    assert found.squared == pytest.approx(expected[0] ** 2)
    moved = pearson(5 * x - 3, y, level)
    assert moved.coefficient == pytest.approx(found.coefficient, rel=1e-12)
    assert pearson(-x, y, level).coefficient == pytest.approx(-found.coefficient, rel=1e-12)
    assert pearson(x[::-1], y[::-1], level).coefficient == pytest.approx(found.coefficient, rel=1e-12)
    line = pearson(x, 2 * x, level)
    assert (line.coefficient, line.low, line.high) == pytest.approx((1, 1, 1))


def test_weak_correlations_of_many_samples_have_small_p_values():
    """Of 10,004 samples, as in the published study, r = 0.0196 is on the edge of a p-value of 0.05."""
    rng = np.random.default_rng(0)
    x, noise = rng.normal(size=(2, 10_004))
    x -= x.mean()
    noise -= noise.mean() + x * (noise @ x) / (x @ x)
    x, noise = x / np.linalg.norm(x), noise / np.linalg.norm(noise)
    for r, below in ((0.0195, False), (0.0197, True)):
        found = pearson(x, r * x + math.sqrt(1 - r**2) * noise)
        assert found.coefficient == pytest.approx(r)
        assert (found.p_value < 0.05) == below == (found.low > 0)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("x", "y"),
    [
        ([1.0, 2.0], [2.0, 1.0]),
        ([], []),
        ([0.1] * 5, [1.0, 2.0, 3.0, 4.0, 5.0]),
        ([1.0, 2.0, 3.0], [7.0] * 3),
        ([1e6, 1e6 + 1e-9, 1e6], [1.0, 2.0, 3.0]),
    ],
)
def test_undefined_coefficients_are_nan(x, y):
    with pytest.warns(MhexWarning, match="There is no correlation of x and y"):
        found = pearson(x, y)
    assert all(math.isnan(v) for v in (found.coefficient, found.p_value, found.low, found.high))
    assert found.count == len(x)


def test_pearson_refuses():
    with pytest.raises(ArgumentError, match="as many values of y as of x, 3, but got 2"):
        pearson([1.0, 2, 3], [1.0, 2])
    with pytest.raises(ArgumentError, match="finite values of y, but got 1 of 3"):
        pearson([1.0, 2, 3], [1.0, math.nan, 3])
    with pytest.raises(ArgumentError, match="one value of x per sample"):
        pearson([[1.0]], [1.0])
    with pytest.raises(ArgumentError, match="level"):
        pearson([1.0, 2, 3], [1.0, 2, 3], level=95)


@pytest.fixture
def scaffold():
    return with_heads(Net())


@pytest.fixture
def data():
    return TensorDataset(torch.randn(12, 3, 8, 8, dtype=torch.float64), torch.arange(12) % 5)


def test_a_study_correlates_blocks_with_confidence_and_measures(scaffold, data):
    drops = torch.rand(12)
    found = scaffold.collaboration_study(DataLoader(data, 5), {"SAD": drops}, level=0.9, chunk=4)
    seen = scaffold.collaboration(*data.tensors)
    names = [(row.first, row.second) for row in found.rows]
    first, second = scaffold.names[:2]
    assert names == [(first, "p_orig"), (second, "p_orig"), (first, "SAD"), (second, "SAD"), ("SAD", "p_orig")]
    wanted = [(seen.cosine[:, 0], seen.p_orig), (seen.cosine[:, 1], seen.p_orig)]
    wanted += [(seen.cosine[:, 0], drops), (seen.cosine[:, 1], drops), (drops, seen.p_orig)]
    for row, (a, b) in zip(found.rows, wanted, strict=True):
        r = np.corrcoef(a.numpy(), b.numpy())[0, 1]
        assert row.coefficient == pytest.approx(r, rel=1e-6)
        assert row.low < r < row.high
        assert (row.count, row.level) == (12, 0.9)
    lines = found.table().splitlines()
    assert "90 % interval" in lines[0]
    assert len(lines) == 2 + 5
    assert lines[2].startswith(f"| {first} | p_orig | {found.rows[0].coefficient:.3f} |")
    assert len(study(seen).rows) == 2


def test_study_refuses(scaffold, data):
    drops = torch.rand(12)
    with pytest.raises(ArgumentError, match="shuffles"):
        scaffold.collaboration_study(DataLoader(data, 5, shuffle=True), {"SAD": drops})
    scaffold.collaboration_study(DataLoader(data, 5, shuffle=True))  # the model's own confidence moves along
    with pytest.raises(ArgumentError, match="as many values of SAD"):
        scaffold.collaboration_study(DataLoader(data, 5), {"SAD": drops[:5]})
    with pytest.raises(ArgumentError, match="which are taken"):
        scaffold.collaboration_study(DataLoader(data, 5), {"p_orig": drops})
