"""Areas by random levels: what the estimate is on average, how far it spreads, and what it is beside dense curves."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import mhex
from mhex.errors import ArgumentError, ArgumentTypeError
from mhex.judge.controls import control
from mhex.metrics import Case, get_metric
from mhex.perturb import PerturbationSweep, Subject, area, random_counts, shares
from mhex.stats.intervals import bootstrap
from support.tiny_bert import TEXTS, bert, tokenizer
from support.tiny_models import pictures, tiny

MANY = 20_000
M = 8
AREA_METRICS = ("deletion", "insertion", "perturbation-auc", "fidelity")


def drawn(samples: int = MANY, units: int = 50, strata: int = M, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Shares removed and weights of so many samples, (B, m + 2)."""
    number, weights = random_counts(torch.full((samples,), units), strata, seed, range(samples))
    return number.double() / units, weights


def mean_and_error(values: Tensor) -> tuple[float, float]:
    return float(values.mean()), float(values.std() / len(values) ** 0.5)


@pytest.mark.parametrize("units", [3, 50])  # rounding matters most where units are few
@pytest.mark.parametrize(("start", "slope"), [(0.0, 1.0), (0.9, -0.7)])
def test_linear_curves_are_exact_on_average(units: int, start: float, slope: float) -> None:
    q, weights = drawn(units=units)
    mean, error = mean_and_error(area(start + slope * q, "unit", weights))
    assert error < 1e-3
    assert abs(mean - (start + slope / 2)) < 4 * error


def test_curves_between_counts_are_straight_on_average() -> None:
    """A curve that bends: what is estimated is the trapezoid over every count, not the smooth area, 1/3 here."""
    q, weights = drawn(units=2)
    mean, error = mean_and_error(area(q.square(), "unit", weights))
    assert abs(mean - 0.375) < 4 * error < 0.02


def test_constant_curves_are_exact_by_the_ends() -> None:
    q, weights = drawn(500)
    assert torch.allclose(area(torch.full_like(q, 0.7), "unit", weights), torch.tensor(0.7).double(), atol=1e-12)
    assert torch.allclose(area(torch.full_like(q, 0.7), "percent", weights), torch.tensor(70.0).double(), atol=1e-9)


@pytest.mark.parametrize("strata", [2, 8])
def test_the_spread_of_a_constant_without_the_ends(strata: int) -> None:
    """`f^2 / (3 m^3)`, which is what the control variate takes off."""
    _, weights = drawn(strata=strata)
    variance = float((0.7 * weights[:, :-1].sum(1)).var())
    assert variance == pytest.approx(0.7**2 / (3 * strata**3), rel=0.05)


def test_one_level_in_each_stratum_at_its_mean_share() -> None:
    q, _ = drawn(units=10**9)
    u = q[:, 1:-1].sqrt() * M
    assert torch.equal(u.floor(), torch.arange(8.0).double().expand(MANY, -1))
    assert torch.allclose(q.mean(0), shares(M, "random"), atol=3e-3)
    assert not torch.allclose(q[:, 1:-1].mean(0), shares(7), atol=3e-2)  # nor are they even


@pytest.mark.parametrize("steepness", [3.0, 20.0])
def test_intervals_cover_the_area(steepness: float) -> None:
    """500 data sets of 40 curves `a exp(-s q)`, whose mean area is known, by the bootstrap of every table."""
    sets, images = 500, 40
    generator = torch.Generator().manual_seed(5)
    height, rate = torch.rand(2, sets * images, 1, generator=generator, dtype=torch.float64)
    rate = steepness * (0.5 + rate)
    points = torch.linspace(0.5, 1.5, 2001, dtype=torch.float64) * steepness
    truth = 0.5 * float(((1 - (-points).exp()) / points).mean())
    q, weights = drawn(sets * images, units=10**6)
    values = area(height * torch.exp(-rate * q), "unit", weights).view(sets, images, 1)
    inside = 0
    for number, rows in enumerate(values):
        ends = bootstrap(rows, lambda draws: draws.mean(-2), resamples=300, seed=number)
        inside += bool(ends.low <= truth <= ends.high)
    # 95 % less what any bootstrap of 40 images lacks; the spread of this share is 1 %.
    assert 0.91 <= inside / sets <= 0.98


def subject_of(x: Tensor | None = None, ids: Any = None) -> Subject:
    x = pictures(6) if x is None else x
    return Subject(tiny("cnn"), x, torch.arange(len(x)) % 3, ids, preprocess=SimpleNamespace(mean=[0.4], std=[0.5]))


def maps(count: int = 6, seed: int = 8) -> Tensor:
    return torch.randn(count, 4, 4, generator=torch.Generator().manual_seed(seed))


def test_draws_are_the_same_for_all_maps_and_both_orders() -> None:
    sweep = PerturbationSweep("zero", "pixel", M, grid="random", seed=3)
    first, second = (sweep(subject_of(), None, maps(seed=seed)) for seed in (1, 2))
    assert torch.equal(first.removed, second.removed)
    assert torch.equal(first.weights, second.weights)
    assert not torch.equal(first.z, second.z)
    # The order from the other end removes what the first one keeps: nothing and everything change places.
    opposite = sweep(subject_of(), None, -maps(seed=1))
    assert torch.allclose(opposite.curve("mif", "logit")[:, [0, -1]], first.curve("lif", "logit")[:, [0, -1]])
    other = PerturbationSweep("zero", "pixel", M, grid="random", seed=4)(subject_of(), None, maps(seed=1))
    assert not torch.equal(other.removed, first.removed)


def test_the_order_from_the_other_end_keeps_what_is_drawn() -> None:
    """Levels `1 - u^2`: along a map, the least important first is the most important first of the opposite map."""
    x, saliency = pictures(3), maps(3)
    subject, sweep = subject_of(x), PerturbationSweep("zero", "patch", M, grid="random")
    result = sweep(subject, None, saliency)
    every = PerturbationSweep("zero", "patch", 16)(subject_of(x), None, saliency)  # all counts of 16 cells
    amount = (16 - result.removed).flip(1)
    for order, number in (("mif", result.removed), ("lif", amount)):
        wanted = every.curve(order, "logit").gather(1, number)
        assert torch.allclose(result.curve(order, "logit"), wanted, atol=1e-6), order
    estimate = (result.curve("lif", "logit") * result.weights.flip(1)).sum(1)
    assert torch.allclose(result.area("lif", "logit"), estimate)
    assert float(result.weights[:, -1].abs().min()) > 0  # the weight of the clean pass there
    assert subject.passes == 3 + sum(len(pair) for pair in different_counts(result))


def different_counts(result: Any) -> list[set[tuple[int, int]]]:
    """Of each sample, the passes that are not the clean one: (0, n) by the first order, (1, n) by the second."""
    ends = [set(row) - {0, 16} for row in result.removed.tolist()]
    return [{(0, n) for n in row} | {(1, 16 - n) for n in row} | {(0, 16)} for row in ends]


@pytest.mark.parametrize("name", AREA_METRICS)
def test_estimates_agree_with_dense_areas(name: str) -> None:
    """Over 60 seeds, within their own standard error; the dense grid has every count."""
    spec = get_metric(name)
    x = pictures(4)
    changes = {"reference": "zero", "granularity": "patch"}
    case = Case(subject_of(x), maps(4))
    dense = spec.metric("default", **changes, steps=16)
    wanted = dense.score(*dense.of(case))
    estimates = []
    for seed in range(60):
        quick = spec.metric("quick", **changes, seed=seed)
        assert quick.protocol.steps == M
        estimates.append(quick.score(*quick.of(case)))
    table = torch.stack(estimates).flatten(1)
    error = table.std(0) / len(table) ** 0.5
    gap = (table.mean(0) - wanted.flatten()).abs()
    assert bool((gap <= 4 * error + 1e-6).all()), gap / error
    assert float(error.max()) > 0


def test_texts_of_few_tokens() -> None:
    """What is estimated is the trapezoid over every count of each text."""
    model, words = bert(), tokenizer()
    subject = Subject(model, TEXTS, tokenizer=words)
    saliency = control("random", subject)
    case = Case(subject, saliency)
    every = PerturbationSweep("drop", "token", 60)(subject, None, saliency)
    wanted = torch.trapezoid(every.curve("mif"), every.removed / every.units[:, None], dim=1)
    table = []
    for seed in range(60):
        metric = get_metric("deletion").metric("quick-text", seed=seed, tie="stable")
        table.append(metric.score(*metric.of(case)))
    table = torch.stack(table)
    error = table.std(0) / len(table) ** 0.5
    assert bool(((table.mean(0) - wanted).abs() <= 4 * error + 1e-6).all())


def test_batches_change_nothing() -> None:
    x, saliency = pictures(6), maps()
    sweep = PerturbationSweep("zero", "pixel", M, grid="random", seed=1)
    whole = sweep(subject_of(x), None, saliency)
    for place in range(6):
        part = sweep(subject_of(x[place : place + 1], [place]), None, saliency[place : place + 1])
        for order in ("mif", "lif"):
            assert torch.allclose(part.area(order), whole.area(order)[place : place + 1], atol=1e-6)


def test_a_protocol_by_name_and_by_part() -> None:
    for name in AREA_METRICS:
        spec = get_metric(name)
        quick = spec.metric("quick").protocol
        assert spec.metric(grid="random").protocol == quick
        assert spec.metric("text", grid="random").protocol == spec.metric("quick-text").protocol
        assert (quick.steps, quick.grid) == (M, "random")
        assert spec.metric(grid="random", steps=5).protocol.steps == 5
        assert "grid=random" in str(quick)
        assert "grid" not in str(spec.metric().protocol)  # rows of earlier runs are known by what is printed
    assert get_metric("balanced").metric(grid="random").protocol.sweep.grid == "random"


@pytest.mark.parametrize(
    ("name", "preset", "words"),
    [
        ("aopc", "default", "no part 'grid': this metric reads the points of even steps"),
        ("log-odds", "default", "no part 'grid': this metric reads the points of even steps"),
        ("road", "default", "no part 'grid': this metric reads the points of even steps"),
        ("perturbation-auc", "che", "'che', which speaks of points of an even grid"),
        ("deletion", "mhex", "'left100', which speaks of points of an even grid"),
        ("class-discrimination", "default", "Expected grid to be a whole number"),
        ("saco", "default", "no part 'grid'"),
    ],
)
def test_a_random_grid_is_refused_where_there_is_no_area(name: str, preset: str, words: str) -> None:
    with pytest.raises((ArgumentError, ArgumentTypeError), match=words):
        get_metric(name).metric(preset, grid="random")


def test_random_levels_are_not_read_as_even_steps() -> None:
    sweep = PerturbationSweep("zero", "pixel", M, grid="random")
    result = sweep(subject_of(), None, maps())
    with pytest.raises(ArgumentError, match=r"grid='random' \(not 'even'\)"):
        get_metric("deletion").metric(reference="zero", steps=4).update(result)
    with pytest.raises(ArgumentError, match="an even grid"):
        result.every(2)
    case = Case(subject_of(), maps())
    for steps in (M, 4):
        metric = get_metric("deletion").metric("quick", steps=steps, reference="zero")
        assert metric.of(case)[0].removed.shape == (6, steps + 2)
    assert torch.equal(case.sweep(sweep).removed, result.removed)


def test_reports_keep_and_pool_the_draws() -> None:
    """Curves of a report have a point for each stratum, where the mean over images is that of its draws."""
    metrics = [(name, {"grid": "random", "reference": "zero"}) for name in AREA_METRICS]
    report = mhex.evaluate(tiny("cnn"), (pictures(6), torch.arange(6) % 3), ["gradcam"], metrics, batch_size=4)
    assert "grid=random" in str(report)
    ids, places, curves = report.curves("deletion")
    assert places.tolist() == pytest.approx(shares(M, "random").tolist())
    assert curves["gradcam"].shape == (6, M + 2)
    weights = random_counts(torch.full((6,), 64), M, 0, ids.tolist())[1]
    values = report.per_image("deletion")["gradcam"]
    assert torch.allclose((curves["gradcam"] * weights).sum(1), values, atol=1e-5)
    assert torch.equal(report.curves("insertion")[1], places)
    assert torch.allclose(report.curves("fidelity", "lif")[1], 1 - places.flip(0))
    assert torch.equal(report.curves("fidelity", "mif")[1], places)
