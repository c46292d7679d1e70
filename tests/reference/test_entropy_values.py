"""What a ReLU does to the entropy of a normal variable: closed forms against numerical integration, in nats.

They correct the published values 1.0724 and 0.3466, which use the density given T > 0 without its weight of one half.
Nothing in the library reports them: the difference changes its sign with the unit of T, so it is no evidence.
"""

import math

import pytest
from scipy.integrate import quad
from scipy.stats import norm


def entropy_of_density(density, low, high):
    def term(t):
        p = density(t)
        return -p * math.log(p) if p > 0 else 0.0

    return quad(term, low, high, epsabs=1e-12)[0]


def entropies(scale):
    """Of T and of ReLU(T), by integration; the latter has an atom of one half at 0."""
    density = norm(scale=scale).pdf
    positive = entropy_of_density(density, 0, 20 * scale)
    return 2 * positive, -0.5 * math.log(0.5) + positive


def test_entropy_of_a_rectified_normal_variable():
    before, after = entropies(1.0)
    assert before == pytest.approx(0.5 * math.log(2 * math.pi * math.e), abs=1e-9)
    assert after == pytest.approx(0.5 * math.log(2) + 0.25 * math.log(2 * math.pi * math.e), abs=1e-9)
    assert before - after == pytest.approx(0.25 * math.log(math.pi * math.e / 2), abs=1e-9)
    assert round(after, 4) == 1.0560
    assert round(before - after, 4) == 0.3629
    half_normal = entropy_of_density(lambda t: 2 * norm.pdf(t), 0, 20)
    assert half_normal == pytest.approx(before - math.log(2), abs=1e-9)
    assert round(half_normal, 4) == 0.7258


@pytest.mark.parametrize("scale", [0.3, 2 / math.sqrt(2 * math.pi * math.e), 2.0])
def test_the_difference_depends_on_the_unit(scale):
    before, after = entropies(scale)
    closed = 0.25 * math.log(2 * math.pi * math.e * scale**2) - 0.5 * math.log(2)
    assert before - after == pytest.approx(closed, abs=1e-9)
    critical = 2 / math.sqrt(2 * math.pi * math.e)
    assert scale == critical or (closed > 0) == (scale > critical)
