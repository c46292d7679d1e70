"""Closed-form heads against solutions written out with all rows in memory, float64."""

import pytest
import torch

from mhex.heads.fit.logistic import STRENGTHS as LOGISTIC_STRENGTHS
from mhex.heads.fit.logistic import LogisticProblem, Options, fit_logistic, fitted_scale
from mhex.heads.fit.ridge import STRENGTHS, Moments, fit_ridge, held_out_errors, solve
from support.learnable_heads import features, pictures, probe


def rows(count=60, channels=9, classes=4, seed=0, binary=False, rare=False):
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(classes, channels, generator=generator, dtype=torch.float64)
    noise = torch.randn(count, channels, generator=generator, dtype=torch.float64)
    if binary:
        y = (torch.rand(count, classes, generator=generator) < torch.linspace(0.1, 0.6, classes)).double()
    else:
        label = torch.arange(count) % classes
        if rare:
            label[label == 1] = torch.where(torch.arange(int((label == 1).sum())) < 3, 1, 0)
        y = torch.nn.functional.one_hot(label, classes).double()
    return torch.relu(y @ centres + noise * torch.linspace(0.5, 2, channels) + 1), y


def moments(h, y):
    total = Moments.empty(h.shape[1], y.shape[1], h.device)
    for start in range(0, len(h), 7):
        total.add(h[start : start + 7], y[start : start + 7])
    return total


def explicit(h, target, weights, penalty, intercept):
    """Weighted ridge with an unpenalised column of ones."""
    if intercept:
        h = torch.cat([h, torch.ones(len(h), 1, dtype=h.dtype)], 1)
    matrix = (h.T * weights) @ h + penalty * torch.eye(h.shape[1], dtype=h.dtype)
    if intercept:
        matrix[-1, -1] -= penalty
    found = torch.linalg.inv(matrix) @ (h.T * weights) @ target
    return (found[:-1].T, found[-1]) if intercept else (found.T, torch.zeros(target.shape[1], dtype=h.dtype))


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("strength", [1e-4, 1.0])
def test_ridge_is_the_explicit_solution(intercept, binary, strength):
    h, y = rows(binary=binary)
    head = solve(moments(h, y), strength, Options(binary, intercept, balance=False))
    penalty = strength * h.var(0, correction=0).mean() * len(h)
    weight, bias = explicit(h, 2 * y - 1 if binary else y, torch.ones(len(h)).double(), penalty, intercept)
    torch.testing.assert_close(head.weight, weight, rtol=0, atol=1e-8)
    torch.testing.assert_close(head.bias, bias, rtol=0, atol=1e-8)


@pytest.mark.parametrize("intercept", [True, False])
def test_balanced_ridge_has_equal_classes_around_the_common_covariance(intercept):
    h, y = rows(rare=True)
    head = solve(moments(h, y), 0.1, Options(False, intercept, balance=True))
    means = torch.stack([h[y[:, c] > 0].mean(0) for c in range(4)])
    within = (h - y @ means).T @ (h - y @ means) / len(h)
    # The same as plain ridge on rows that realise these moments: around each mean, plus and minus the root.
    root = torch.linalg.cholesky(within) * 9**0.5
    made = torch.cat([mean + sign * root.T for mean in means for sign in (1, -1)])
    target = torch.eye(4).double().repeat_interleave(18, 0)
    penalty = 0.1 * h.var(0, correction=0).mean()
    weight, bias = explicit(made, target, torch.full((72,), 1 / 72).double(), penalty, intercept)
    torch.testing.assert_close(head.weight, weight, rtol=0, atol=1e-8)
    torch.testing.assert_close(head.bias, bias, rtol=0, atol=1e-8)


@pytest.mark.parametrize("intercept", [True, False])
def test_balanced_yes_or_no_has_equal_halves(intercept):
    h, y = rows(binary=True)
    head = solve(moments(h, y), 0.1, Options(True, intercept, balance=True))
    penalty = 0.1 * h.var(0, correction=0).mean()
    for k in range(4):
        yes = y[:, k] > 0.5
        means = torch.stack([h[~yes].mean(0), h[yes].mean(0)])
        off = h - means[yes.long()]
        root = torch.linalg.cholesky(off.T @ off / len(h)) * 9**0.5
        made = torch.cat([mean + sign * root.T for mean in means for sign in (1, -1)])
        target = torch.tensor([-1.0, 1.0]).double().repeat_interleave(18)[:, None]
        weight, bias = explicit(made, target, torch.full((36,), 1 / 36).double(), penalty, intercept)
        torch.testing.assert_close(head.weight[k : k + 1], weight, rtol=0, atol=1e-8)
        torch.testing.assert_close(head.bias[k : k + 1], bias, rtol=0, atol=1e-8)


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("binary", [True, False])
def test_held_out_errors_are_those_of_the_rows(intercept, binary):
    h, y = rows(binary=binary)
    other, labels = rows(count=23, seed=5, binary=binary)
    options = Options(binary, intercept, balance=False)
    errors = held_out_errors(moments(h, y), moments(other, labels), STRENGTHS, options)
    for strength, error in zip(STRENGTHS, errors, strict=True):
        off = solve(moments(h, y), strength, options)(other) - (2 * labels - 1 if binary else labels)
        torch.testing.assert_close(error, off.square().sum(1).mean(), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("balance", [True, False])
@pytest.mark.parametrize("binary", [True, False])
def test_logistic_ends_where_nothing_pulls(intercept, balance, binary):
    h, y = rows(binary=binary)
    head = LogisticProblem(h, y, Options(binary, intercept, balance)).solve(0.01)
    weight, bias = head.weight.clone().requires_grad_(), head.bias.clone().requires_grad_()
    scores = h @ weight.T + bias
    if binary:
        share = y.mean(0)
        weights = torch.where(y > 0.5, 0.5 / share, 0.5 / (1 - share)) if balance else torch.ones_like(y)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(scores, y, weights, reduction="sum") / len(y)
    else:
        each = torch.nn.functional.cross_entropy(scores, y.argmax(1), reduction="none")
        weights = (1 / (4 * y.mean(0)))[y.argmax(1)] if balance else torch.ones(len(y))
        loss = (weights * each).mean()
    loss = loss + 0.01 * h.var(0, correction=0).mean() / 2 * weight.square().sum()
    slopes = torch.autograd.grad(loss, [weight, bias])
    assert slopes[0].abs().max() < 1e-5
    assert slopes[1].abs().max() < (1e-5 if intercept else torch.inf)
    assert intercept or not head.bias.any()


def test_a_class_without_rows_does_not_weaken_the_others():
    """Balanced classes weigh the same, and all of them together 1, whatever classes there might have been."""
    h, y = rows()
    present = torch.tensor([True, True, False, True])
    h, y = h[y[:, 2] == 0], y[y[:, 2] == 0]
    wide = LogisticProblem(h, y, Options(False)).solve(0.01)
    alone = LogisticProblem(h, y[:, present], Options(False)).solve(0.01)
    torch.testing.assert_close(wide.weight[present], alone.weight, atol=1e-6, rtol=0)
    torch.testing.assert_close(wide.bias[present], alone.bias, atol=1e-6, rtol=0)
    assert not wide.weight[2].any()


def test_logistic_by_hand_and_refit_on_all_rows():
    h, y = rows()
    held = torch.arange(len(h)) % 5 == 1
    outcome = fit_logistic(h, y, held, Options(False, strength=0.3))
    both = LogisticProblem(h, y, Options(False)).solve(0.3)
    torch.testing.assert_close(outcome.head.weight, both.weight, atol=1e-5, rtol=0)
    torch.testing.assert_close(outcome.trial, LogisticProblem(h[~held], y[~held], Options(False)).solve(0.3)(h[held]))


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("binary", [True, False])
def test_ridge_chooses_a_strength_and_keeps_its_penalty_on_all_rows(intercept, binary):
    """The penalty beside the sum of squared errors is that of the rows it was chosen on; only the errors are more."""
    h, y = rows(binary=binary)
    h = h + 3 * torch.randn(h.shape, generator=torch.Generator().manual_seed(1), dtype=h.dtype).abs()  # a strong one
    held = torch.arange(len(h)) % 3 == 1
    target = 2 * y - 1 if binary else y
    ones = torch.ones(len(h)).double()

    def by_hand(chosen, strength, count):
        variance = h[chosen].var(0, correction=0).mean()
        return explicit(h[chosen], target[chosen], ones[chosen], strength * variance * count, intercept)

    errors = []
    for strength in STRENGTHS:
        weight, bias = by_hand(~held, strength, int((~held).sum()))
        errors.append(float((h[held] @ weight.T + bias - target[held]).square().sum()))
    best = STRENGTHS[errors.index(min(errors))]
    assert STRENGTHS[4] < best < STRENGTHS[-1]  # so that a third more of it must show
    options = Options(binary, intercept, balance=False)
    outcome = fit_ridge(moments(h[~held], y[~held]), moments(h[held], y[held]), h[held], y[held], options)
    assert outcome.chosen
    assert outcome.strength == pytest.approx(best * float((~held).sum()) / len(h))
    weight, _ = by_hand(slice(None), best, int((~held).sum()))
    found = outcome.head.weight
    torch.testing.assert_close(found / found.norm(), weight / weight.norm(), rtol=0, atol=1e-8)


@pytest.mark.parametrize("binary", [True, False])
def test_logistic_chooses_a_strength_and_keeps_its_penalty_on_all_rows(binary):
    h, y = rows(binary=binary)
    held = torch.arange(len(h)) % 3 == 1
    options = Options(binary, balance=False)
    outcome = fit_logistic(h, y, held, options)
    share = float((~held).sum()) / len(h)
    losses = {}
    for strength in LOGISTIC_STRENGTHS:
        scores = LogisticProblem(h[~held], y[~held], options).solve(strength)(h[held])
        if binary:
            loss = torch.nn.functional.binary_cross_entropy_with_logits(scores, y[held])
        else:
            loss = torch.nn.functional.cross_entropy(scores, y[held])
        losses[strength] = float(loss)
    best = min(losses, key=losses.get)
    assert outcome.chosen
    assert outcome.strength == pytest.approx(best * share)
    weight, bias = outcome.head.weight.clone().requires_grad_(), outcome.head.bias.clone().requires_grad_()
    scores = h @ weight.T + bias
    if binary:
        loss = torch.nn.functional.binary_cross_entropy_with_logits(scores, y, reduction="sum")
    else:
        loss = torch.nn.functional.cross_entropy(scores, y, reduction="sum")
    penalty = best * float((~held).sum()) * h.var(0, correction=0).mean() / 2 * weight.square().sum()
    slopes = torch.autograd.grad((loss + penalty) / len(h), [weight, bias])
    assert max(float(slope.abs().max()) for slope in slopes) < 1e-5


def test_scale_is_where_the_loss_is_least():
    h, y = rows()
    scores = solve(moments(h, y), 0.1, Options(False))(h)
    scale = fitted_scale(scores, y, Options(False, balance=False))
    blurred = y * (1 - 1 / 62) + 1 / 62 / 4
    grid = torch.linspace(0.8, 1.2, 401).double() * scale
    losses = torch.stack([torch.nn.functional.cross_entropy(scores * a, blurred) for a in grid])
    assert abs(float(grid[losses.argmin()]) / scale - 1) < 0.003


def test_whole_fit_against_all_rows_in_memory():
    scaffold = probe()
    x, y = pictures(90)
    scaffold.fit((x, y), intercept=True, strength=0.05, batch_size=7)
    target = torch.nn.functional.one_hot(y, 3).double()
    held = (torch.arange(90) // 3) % 5 == 1  # classes come in turn
    for name, h in features(scaffold, x).items():
        alive = h.amax(0) > h.amin(0)
        centred, wanted = h[:, alive] - h[:, alive].mean(0), target - target.mean(0)
        scatter = centred.T @ centred + 0.05 * h[:, alive].var(0, correction=0).mean() * 90 * torch.eye(
            int(alive.sum())
        )
        weight = torch.zeros(3, 12).double()
        weight[:, alive] = torch.linalg.solve(scatter, centred.T @ wanted).T
        found = scaffold.equivalent_matrix(name)
        scale = found.norm() / weight.norm()
        torch.testing.assert_close(found, scale * weight, rtol=0, atol=1e-8 * float(scale))
        bias = scaffold.heads[name].intercept
        torch.testing.assert_close(
            bias, scale * (target.mean(0) - weight @ h.mean(0)), rtol=0, atol=1e-8 * float(scale)
        )
        assert scale > 1
        assert int(held.sum()) == 18
