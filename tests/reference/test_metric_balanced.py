"""The metric `balanced` beside the metrics it is made of."""

from __future__ import annotations

import pytest
import torch

import mhex
from mhex.errors import ArgumentError
from mhex.metrics import Case, get_metric
from mhex.metrics.balanced import BalancedProtocol, runner_up
from mhex.perturb import PerturbationSweep, Subject
from mhex.stats.correlation import rank_correlation
from support.tiny_bert import bert, tokenizer
from support.tiny_models import pictures, tiny


def made(method: str, **changes):
    model, x = tiny("vit"), pictures(3)
    subject = Subject(model, x)

    def again(inputs, classes):
        return mhex.explain(model, inputs, method, classes).scores

    metric = get_metric("balanced").metric(reference="zero", steps=4, **changes)
    case = Case(subject, again(x, subject.predicted), subject.predicted, again=again)
    return metric.score(*metric.of(case)), metric, case, again


def test_values_are_those_of_the_definition():
    found, _, case, again = made("gae")
    subject, c = case.subject, case.explained
    d = subject.logits.topk(2).indices[:, 1]
    assert torch.equal(runner_up(subject, c), d)
    maps = {"c": case.saliency, "d": again(subject.batch.pixels, d)}
    sweep = PerturbationSweep("zero", steps=4)

    def between(which, scored):
        result = sweep.ask(subject, maps[which], scored)
        gap = result.curve("lif", "centred-logit") - result.curve("mif", "centred-logit")
        return torch.trapezoid(gap, dx=0.25, dim=1)

    assert torch.allclose(found[:, 0], between("c", c))
    gain = between("c", c) - between("d", c) + between("d", d) - between("c", d)
    assert torch.allclose(found[:, 1], gain / 2)
    assert bool((found[:, 1] != 0).any())


@pytest.mark.parametrize("method", ["rollout", "attention"])
def test_maps_without_a_class_have_exactly_no_class_sensitivity(method):
    found = made(method)[0]
    assert torch.equal(found[:, 1], torch.zeros(3, dtype=torch.float64))
    assert bool((found[:, 0] != 0).any())


def test_stability_is_the_rank_correlation_with_maps_of_noisy_images():
    seen = []

    def again(inputs, classes):
        seen.append(inputs)
        return inputs.mean(1)

    x = pictures(2)
    subject = Subject(tiny("vit"), x)
    found = BalancedProtocol(noise=0.1, draws=2, seed=3).ask(subject, x.mean(1), again)
    assert found.rho.shape == (2, 2)
    for draw, near in enumerate(seen):
        wanted = rank_correlation(x.mean(1).double().flatten(1), near.mean(1).double().flatten(1))
        assert torch.allclose(found.rho[:, draw], wanted)
        spread = (near - x).flatten(1).std(1) / (x.flatten(1).amax(1) - x.flatten(1).amin(1))
        assert torch.allclose(spread, torch.full_like(spread, 0.1), rtol=0.3)
    flat = BalancedProtocol().ask(subject, torch.ones(2, 4, 4), lambda inputs, classes: torch.ones(2, 4, 4))
    assert flat.rho.tolist() == [[0.0], [0.0]]


def test_noise_of_an_image_does_not_depend_on_its_batch():
    x = pictures(3)
    whole = BalancedProtocol().ask(
        Subject(tiny("vit"), x, ids=[4, 5, 6]), x.mean(1), lambda inputs, classes: inputs.mean(1)
    )
    part = BalancedProtocol().ask(
        Subject(tiny("vit"), x[2:], ids=[6]), x[2:].mean(1), lambda inputs, classes: inputs.mean(1)
    )
    assert torch.allclose(whole.rho[2:], part.rho)


def test_texts_have_two_parts():
    data = ["a good seaside film", "bad plot , long play", "good player a b"]
    report = mhex.evaluate(bert(), data, ["gae", "rollout"], ["balanced"], tokenizer=tokenizer())
    rows = report.values("balanced:text")[1]
    assert rows["gae"].shape == (3, 2)
    assert bool(rows["gae"].isfinite().all())
    assert rows["rollout"][:, 1].tolist() == [0.0] * 3
    found = mhex.recommend(bert(), data, 60, methods=["gae", "rollout"], score="balanced", tokenizer=tokenizer())
    assert list(found.table[0].parts) == ["faithfulness", "class_sensitivity"]
    assert {line.method for line in found.table[2:]} == {"control:random", "control:first", "control:last"}


def test_what_would_change_nothing_is_refused():
    with pytest.raises(ArgumentError, match=r"noise=0\.5 would change nothing"):
        get_metric("balanced").metric(draws=0, noise=0.5)
    with pytest.raises(ArgumentError, match="noise above 0"):
        get_metric("balanced").metric(noise=-1.0)
