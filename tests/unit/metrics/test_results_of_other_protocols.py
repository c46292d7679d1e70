"""Metrics used alone take only what was made as their protocol says, and say which part differs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from mhex.errors import ArgumentError, ArgumentTypeError, MhexWarning
from mhex.metrics.aopc import AOPC
from mhex.metrics.average_drop import AverageDrop
from mhex.metrics.box_sensitivity import BoxProtocol, BoxSensitivity
from mhex.metrics.case import Case
from mhex.metrics.comprehensiveness import ShareProtocol
from mhex.metrics.deletion import Deletion
from mhex.metrics.max_sensitivity import MaxSensitivity, NeighbourProtocol
from mhex.metrics.registry import all_metrics, get_metric
from mhex.perturb import MaskedPass, PerturbationSweep, Subject
from support.nonlinear_models import Curved, image_case, images, text_case

SMALL: dict[str, dict[str, Any]] = {
    "box-sensitivity": {"sizes": (2, 3), "count": 5},
    "class-discrimination": {"sizes": (2, 3), "count": 5, "steps": 5},
    "infidelity": {"draws": 3},
    "max-sensitivity": {"draws": 2},
    "randomization": {"stages": 1},
    "deletion": {"steps": 10},
    "insertion": {"steps": 10},
}
RUN = sorted(name for name, spec in all_metrics().items() if spec.presets["default"].passes)


def other(runner: Any) -> tuple[Any, str]:
    """The same runner with one part changed, and the name of that part."""
    if isinstance(runner, ShareProtocol):
        return replace(runner, percent=(7,)), "percent"
    part = next(name for name in ("seed", "mode") if hasattr(runner, name))
    return replace(runner, **{part: 9 if part == "seed" else "keep"}), part


def own(name: str) -> tuple[Any, Case]:
    metric = get_metric(name).metric(**SMALL.get(name, {}))
    return metric, text_case() if all_metrics()[name].modalities == ("text",) else image_case()


@pytest.mark.parametrize("name", RUN)
def test_what_was_made_otherwise_is_refused(name: str) -> None:
    metric, case = own(name)
    results = metric.of(case)
    metric.update(*results)  # as the protocol says
    place, result = next((n, one) for n, one in enumerate(results) if hasattr(one, "runner"))
    assert type(result.runner) in {type(one) for one in metric.protocol.passes}
    changed, part = other(result.runner)
    wrong = replace(result, runner=changed)
    with pytest.raises(ArgumentError, match=rf"protocol of {type(metric).__name__} says, .*{part}=.* \(not "):
        metric.update(*results[:place], wrong, *results[place + 1 :])
    assert sum(map(len, metric.ids)) == len(case.ids)  # nothing of it was counted


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"reference": "black"}, r"reference='zero' \(not 'black'\)"),
        ({"granularity": "patch"}, r"granularity='pixel' \(not 'patch'\)"),
        ({"tie": "stable"}, r"tie='random' \(not 'stable'\)"),
        ({"steps": 15}, r"steps=20 \(not 15\)"),
        ({"steps": 40, "seed": 1}, r"steps=20 \(not 40\), seed=0 \(not 1\)"),
        ({"reference": "blur", "sigma": 1.0}, r"reference='zero' \(not 'blur'\), sigma=None \(not 1.0\)"),
    ],
)
def test_the_sentence_names_what_differs(parts: dict[str, Any], words: str) -> None:
    case = image_case()
    result = PerturbationSweep("zero", "pixel", 20)(case.subject, None, case.saliency, case.explained)
    with pytest.raises(ArgumentError, match=words):
        Deletion(**{"reference": "zero", "steps": 20, **parts}).update(result)


def test_a_finer_sweep_is_read_on_the_grid_of_the_protocol() -> None:
    case = image_case()
    fine, coarse = (
        PerturbationSweep("zero", "pixel", steps)(case.subject, None, case.saliency, case.explained)
        for steps in (20, 10)
    )
    metrics = [AOPC(reference="zero", steps=10) for _ in range(2)]
    for metric, result in zip(metrics, (fine, coarse), strict=True):
        metric.update(result)
    assert torch.allclose(metrics[0].rows()[1], metrics[1].rows()[1], atol=1e-12)
    assert not torch.allclose(AOPC().score(fine), AOPC().score(coarse))


def test_one_order_is_enough_where_one_is_read() -> None:
    case = image_case()
    sweep = PerturbationSweep("zero", "pixel", 20, orders=("mif",))
    result = sweep(case.subject, None, case.saliency, case.explained)
    Deletion(reference="zero", steps=20).update(result)
    with pytest.raises(ArgumentError, match="one of the orders of the sweep, mif"):
        get_metric("insertion").metric(reference="zero", steps=20).update(result)


def test_results_of_another_runner_are_refused() -> None:
    case = image_case()
    boxes = BoxProtocol("mean", (2,), 4)(case.subject)
    with pytest.raises(ArgumentTypeError, match="results of PerturbationSweep for Deletion, but got BoxProtocol"):
        Deletion().update(boxes)
    with pytest.raises(ArgumentError, match=r"reference='mean' \(not 'blur'\), count=4 \(not 5\)"):
        BoxSensitivity(sizes=(2,), count=5).update(boxes, case.saliency)
    with pytest.raises(ArgumentError, match=r"threshold=0.4 \(not 0.5\)"):
        AverageDrop().update(MaskedPass(threshold=0.4)(case.subject, None, case.saliency))


def test_raw_units_are_never_said_of_others() -> None:
    model, x = Curved(), images(2)

    def again(inputs: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
        return inputs.sum(1)

    with pytest.raises(
        ArgumentError,
        match=r"Expected preprocess= with mean and std for a radius in raw .*give it, or choose units='model'",
    ):
        MaxSensitivity(draws=2).of(Case(Subject(model, x), x.sum(1), again=again))
    with pytest.warns(MhexWarning, match="units of the model"):
        result = NeighbourProtocol(draws=2)(Subject(model, x), None, x.sum(1), again)
    with pytest.raises(ArgumentError, match=r"units='model' \(not 'raw'\)"):
        MaxSensitivity(draws=2).update(result)
    metric = MaxSensitivity(draws=2, units="model")
    metric.update(result)
    assert "units=model" in metric.compute()["protocol"]
