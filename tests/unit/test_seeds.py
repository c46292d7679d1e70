"""Seeds: any whole number is one, and what is none is refused with the same sentence everywhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import mhex
from mhex.errors import ArgumentTypeError
from mhex.judge.controls import control
from mhex.metrics import all_metrics
from mhex.metrics.deletion import Deletion
from mhex.metrics.randomization import Randomization
from mhex.perturb import PerturbationSweep, Subject
from mhex.perturb.masking import MaskedPass
from mhex.stats.intervals import resampled
from mhex.stats.paired_tests import sign_flip
from mhex.tuning import tune_sigma
from support.method_races import GRADIENT, Linear, images, run
from support.models import FAMILIES

WRONG = ["a", "0", 1.5, 2.0, None, True, [0], float("nan")]
RIGHT = [-1, 2**70, -(2**70), np.int64(2**62), np.uint8(3)]
RACE = {"methods": [GRADIENT, ("rise", {"n": 2})], "images": 6}


def summary(rows: torch.Tensor) -> torch.Tensor:
    return rows.mean(-2)


DOORS: dict[str, Callable[[Any], Any]] = {
    "explain": lambda seed: mhex.explain(Linear(), images(1), "rise", seed=seed, n=2),
    "evaluate": lambda seed: mhex.evaluate(Linear(), images(2), ["smoothgrad"], ["compactness", "deletion"], seed=seed),
    "recommend": lambda seed: run(seed=seed, **RACE),
    "metric": lambda seed: Deletion(seed=seed),
    "bootstrap of a metric": lambda seed: Deletion(bootstrap_seed=seed),
    "randomization": lambda seed: mhex.evaluate(
        Linear(), images(2), ["input-x-gradient"], [("randomization", {"seed": seed})]
    ),
    "sweep": lambda seed: PerturbationSweep(seed=seed),
    "masked pass": lambda seed: MaskedPass(seed=seed),
    "control": lambda seed: control("random", Subject(Linear(), images(2)), seed),
    "resamples": lambda seed: resampled(torch.rand(9, 1), summary, 3, seed),
    "sign flips": lambda seed: sign_flip(torch.linspace(-1, 2, 40), seed, 9),
    "tune_sigma": lambda seed: tune_sigma(
        FAMILIES["timm_vit"].model(), FAMILIES["timm_vit"].inputs(1), sigmas=(0.0, 0.1), n=1, seed=seed
    ),
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("seed", WRONG, ids=repr)
def test_what_is_no_seed_is_refused_in_one_sentence(door: str, seed: Any) -> None:
    with pytest.raises(ArgumentTypeError, match=r"Expected (bootstrap_)?seed to be a whole number, such as 0, but got"):
        DOORS[door](seed)


@pytest.mark.filterwarnings("ignore::mhex.errors.MhexWarning")
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("seed", RIGHT, ids=repr)
def test_every_whole_number_is_a_seed(door: str, seed: Any) -> None:
    DOORS[door](seed)


def test_seeds_of_numpy_are_those_of_python() -> None:
    assert Deletion(seed=np.int64(3)).protocol == Deletion(seed=3).protocol
    assert repr(Randomization(seed=np.int64(3)).protocol.seed) == "3"
    explanations = [DOORS["explain"](seed) for seed in (3, np.int64(3), 4)]
    assert explanations[0].scores.equal(explanations[1].scores)
    assert not explanations[0].scores.equal(explanations[2].scores)


def test_metrics_with_a_seed_check_it() -> None:
    seeded = [spec for spec in all_metrics().values() if hasattr(spec.presets["default"], "seed")]
    assert len(seeded) > 10
    for spec in seeded:
        with pytest.raises(ArgumentTypeError, match="Expected seed to be a whole number, such as 0, but got 'a'"):
            spec.metric(seed="a")
