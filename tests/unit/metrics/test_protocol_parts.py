"""Every part of every protocol does something, or is refused: no number is printed beside a part that it ignores."""

from __future__ import annotations

import functools
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import torch

from mhex.errors import ArgumentError
from mhex.metrics.aopc import AOPC
from mhex.metrics.average_drop import AverageDrop
from mhex.metrics.compactness import Compactness
from mhex.metrics.comprehensiveness import Comprehensiveness
from mhex.metrics.curve import GridProtocol, SweepProtocol
from mhex.metrics.deletion import Deletion
from mhex.metrics.effective_average_drop import EffectiveAverageDrop
from mhex.metrics.infidelity import Infidelity
from mhex.metrics.insertion import Insertion
from mhex.metrics.log_odds import LogOdds
from mhex.metrics.perturbation_auc import PerturbationAUC
from mhex.metrics.protocols import Protocol
from mhex.metrics.registry import all_metrics, get_metric
from mhex.metrics.road import ROAD
from mhex.metrics.saco import GroupProtocol, SaCo
from mhex.metrics.segmentation import Segmentation
from mhex.metrics.soft_average_drop import SoftAverageDrop
from mhex.perturb import MaskedPass, PerturbationSweep
from mhex.perturb.references import WORDS
from support.nonlinear_models import image_case, parts_case, text_case

CURVES = ("deletion", "insertion", "fidelity", "aopc", "log-odds", "perturbation-auc")
SMALL = {"sizes": (2, 4), "count": 6}
SETTINGS: dict[str, list[dict[str, Any]]] = {  # where something else than the default is needed for a part to matter
    **{name: [{"steps": 10, "reference": "blur"}, {"preset": "text", "steps": 10}] for name in CURVES},
    "road": [{}, {"reference": "blur"}],
    "average-drop": [{}, {"preset": "gradcampp"}, {"reference": "blur"}, {"preset": "text", "fraction": 0.25}],
    "soft-average-drop": [{}, {"reference": "blur"}],
    "effective-average-drop": [{}, {"reference": "blur"}],
    "increase-in-confidence": [{"scored": "label", **more} for more in ({"reference": "blur"}, {"mode": "keep"})],
    "saco": [{"reference": "blur", "groups": 4}, {"preset": "text", "groups": 4}],
    "comprehensiveness": [{}],
    "sufficiency": [{}],
    "box-sensitivity": [SMALL, {**SMALL, "sizes": 2}, {**SMALL, "grid": 6}],
    "class-discrimination": [{"steps": 10, **SMALL}, {"steps": 10, **SMALL, "grid": 6}],
    "infidelity": [{"draws": 5}, {"draws": 5, "preset": "gradient"}],
    "max-sensitivity": [{"draws": 3}],
    "randomization": [{}, {"preset": "logit"}, {"preset": "labels"}],
    "compactness": [{"share": 0.3}],
    "balanced": [{"steps": 10}],
    "token-f1": [{"k": (1, 12)}],
    "agreement": [{"count": 6}, {"preset": "text", "count": 6}],
    "removal": [{"reference": "blur", "count": 6}, {"preset": "text", "count": 6}],
}
OTHERS: dict[str, tuple[Any, ...]] = {  # by part
    "reference": ("black", "zero", "mean", "blur", "impute", "mask_token", "drop", "pad"),
    "steps": (20,),
    "scored": ("explained", "predicted", "label", "other"),
    "area": ("unit", "che", "percent", "left100", "mean11"),
    "granularity": ("pixel", "cell", "patch", "token", "word"),
    "tie": ("random", "stable"),
    "seed": (1,),
    "sigma": (3.0,),
    "hit": ("predicted", "label"),
    "mode": ("remove", "soft-remove", "keep", "soft-keep"),
    "threshold": (0.3,),
    "area_threshold": (0.4,),
    "relative": (False, True),
    "true_odds": (True,),
    "centred": (True,),
    "fraction": (0.6,),
    "rounding": ("up", "down"),
    "most": (1,),
    "groups": (3,),
    "percent": ((10, 50),),
    "sizes": ((2, 3), 3),
    "count": (7,),
    "shape": ("box", "pixels"),
    "grid": (4,),
    "kind": ("square", "gaussian"),
    "draws": (2,),
    "noise": (0.3,),
    "blur": (3.0,),
    "radius": (0.1,),
    "units": ("raw", "model"),
    "sign": ("signed", "absolute"),
    "stages": (1,),
    "share": (0.6,),
    "tolerance": (2,),
    "chosen_on": ("half", "all"),
    "k": ((2,),),
    "channels": ("shared", "own"),
    "words": ("tokenizer", "whitespace"),
    "pooling": ("max", "sum"),
    "references": (("zero", "mean"), ("pad",)),
    "regions": (("zero",), ("pad",)),
    "worth": ("removal", "shapley"),
    "least": (0.95,),
}
OWN: dict[tuple[str, str], tuple[Any, ...]] = {  # by metric and part, where a name has another meaning
    ("segmentation", "threshold"): ("mean", "best"),
    ("compactness", "mode"): ("abs", "paper", "code"),
    ("randomization", "mode"): ("parameters", "logit", "labels"),
    ("token-f1", "mode"): ("signed", "clamp"),
    ("agreement", "sizes"): ((2, 3),),
    ("removal", "sizes"): ((2, 3),),
}
NAMES = sorted(all_metrics())


def settings_of(name: str) -> list[dict[str, Any]]:
    return SETTINGS.get(name, [{}])


def parts_of(protocol: Protocol) -> list[str]:
    return [f.name for f in fields(protocol)]


def values_of(name: str, part: str, protocol: Protocol) -> tuple[Any, ...]:
    """Other values of a part."""
    found = OWN.get((name, part), OTHERS.get(part, ()))
    if isinstance(protocol, SweepProtocol):
        found = {"radius": (1,), "orders": (("mif",),)}.get(part, found)
    if isinstance(protocol, GridProtocol):
        found = {"grid": ("even", "random")}.get(part, found)
    assert found, f"say in this file which other value {part!r} of {name} may have"
    return tuple(value for value in found if value != getattr(protocol, part))


@functools.cache
def judged(name: str, given: tuple[tuple[str, Any], ...]) -> tuple[int, list[float]]:
    """Passes of a metric on the small example, and the numbers of all images, or those of the data set."""
    metric = get_metric(name).metric(resamples=2, **dict(given))
    protocol = metric.protocol
    reference = getattr(protocol, "reference", None) or getattr(protocol, "references", (None,))[0]
    text = name == "token-f1" or reference in WORDS
    case = parts_case() if name.startswith("truth-") else text_case() if text else image_case()
    metric.update(*metric.of(case))
    found = metric.compute()
    assert found["n"] > 1
    rows = metric.rows()[1].flatten().tolist()
    return case.subject.passes, rows if metric.additive else [one["value"] for one in found["all"].values()]


def outcome(name: str, setting: dict[str, Any], part: str, value: Any) -> str:
    """Whether a changed part is refused, changes something, or is ignored."""
    try:
        get_metric(name).metric(**{**setting, part: value})
        before, after = (judged(name, tuple({**setting, **new}.items())) for new in ({}, {part: value}))
    except ArgumentError as error:
        return "refused" if part in str(error) or repr(value) in str(error) else f"refused without a reason: {error}"
    same = before[0] == after[0] and before[1] == pytest.approx(after[1], rel=1e-9, abs=1e-12, nan_ok=True)
    return "ignored" if same else "changed"


@pytest.mark.parametrize("name", NAMES)
def test_a_changed_part_changes_something_or_is_refused(name: str) -> None:
    changed: set[str] = set()
    parts: set[str] = set()
    for setting in settings_of(name):
        protocol = get_metric(name).metric(**setting).protocol
        parts |= set(parts_of(protocol))
        for part in parts_of(protocol):
            for value in values_of(name, part, protocol):
                found = outcome(name, setting, part, value)
                assert found in ("changed", "refused"), f"{part}={value!r} beside {setting} is {found}"
                changed |= {part} if found == "changed" else set()
    assert changed == parts  # none is refused in all settings


@pytest.mark.parametrize("name", NAMES)
def test_presets_are_accepted_and_print_what_they_read(name: str) -> None:
    for preset, protocol in all_metrics()[name].presets.items():
        made = get_metric(name).metric(preset).protocol
        assert made == protocol
        printed = [part.split("=")[0] for part in str(made).split(", ") if "=" in part]
        assert printed == [part for part in parts_of(made) if part not in made.idle]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: PerturbationAUC(scored="explained"), "no part 'scored'"),
        (lambda: AOPC(area="percent"), "no part 'area'"),
        (lambda: LogOdds(area="percent"), "no part 'area'"),
        (lambda: ROAD(area="percent"), "no part 'area'"),
        (lambda: SoftAverageDrop(relative=False), "no part 'relative'"),
        (lambda: SoftAverageDrop(mode="soft-keep"), "no part 'mode'"),
        (lambda: EffectiveAverageDrop(mode="keep"), "no part 'mode'"),
        (lambda: AverageDrop("gradcampp", threshold=0.3), r"threshold=0.3 would change nothing: .* Leave it at 0.5"),
        (lambda: AverageDrop(reference="drop"), "preset 'text'"),
        (lambda: AverageDrop("text", mode="soft-keep"), "mode 'remove' or 'keep'"),
        (lambda: Insertion("rise", reference="mean"), "sigma=5.0 would change nothing: it is the blur's"),
        (lambda: Insertion(area="thirds"), "Expected area 'unit'"),
        (lambda: Insertion(area="che", steps=15), "multiple of 10 steps"),
        (lambda: Insertion(scored="other"), "scored to be one of 'explained', 'predicted', 'label'"),
        (lambda: Insertion(reference="drop"), "Expected granularity 'token', 'word' or 'patch'"),
        (
            lambda: Deletion("text", reference="black"),
            "with the reference 'black', but got 'token'; mask_token, drop, pad are of texts",
        ),
        (
            lambda: SaCo("text", reference="blur"),
            "granularity 'pixel', 'cell' or 'patch' with the reference 'blur', but got 'token'",
        ),
        (lambda: SaCo(reference="grey"), "reference to be one of .* but got 'grey'"),
        (lambda: SaCo(tie="first"), "Expected tie to be 'random' or 'stable', but got 'first'"),
        (lambda: Insertion(tie="first"), "Expected tie to be 'random' or 'stable', but got 'first'"),
        (lambda: Comprehensiveness(tie="first"), "Expected tie to be 'random' or 'stable', but got 'first'"),
        (lambda: GroupProtocol("grey"), "reference to be one of"),
        (lambda: GroupProtocol(tie="first"), "Expected tie"),
        (lambda: PerturbationSweep(tie="first"), "Expected tie"),  # type: ignore[arg-type]
        (lambda: MaskedPass(reference="impute"), "reference to be one of"),
        (lambda: AverageDrop("text", fraction=0.0), "fraction to be above 0 and at most 1, but got 0.0"),
        (lambda: AverageDrop("text", fraction=1.5), "fraction to be above 0 and at most 1, but got 1.5"),
        (lambda: Compactness(share=-0.1), "share to be from 0 to 1, but got -0.1"),
        (lambda: Compactness(share=5), "share to be from 0 to 1, but got 5"),
        (lambda: Infidelity(sigma=0.2), "kind is 'square'"),
        (lambda: Infidelity("gradient", reference="mean"), "kind is 'gaussian'"),
    ],
)
def test_the_sentence_says_what_to_do(make: Any, words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        make()


def test_a_seed_is_never_refused() -> None:
    """A run gives its own to every metric, whether it draws or not."""
    assert Segmentation("gt", seed=3).protocol.seed == 3
    assert AOPC(tie="stable", seed=3).protocol.seed == 3


def test_what_is_not_read_is_not_printed() -> None:
    assert str(Infidelity("gradient").protocol) == "kind=gaussian, sigma=0.1, draws=100, seed=0, channels=shared"
    assert "sigma" not in str(Insertion().protocol)
    assert "sigma=5" in str(Insertion("rise").protocol)


@pytest.mark.parametrize("name", ["segmentation", "randomization"])
def test_seeds_of_numpy_are_numbers(name: str) -> None:
    """Sums of seeds have more digits than numpy's own numbers."""
    values = []
    for seed in (1, np.int64(1)):
        metric = get_metric(name).metric(seed=seed)
        metric.update(*metric.of(image_case()))
        values.append(metric.rows()[1])
    assert torch.equal(*values)


def test_whole_numbers_beyond_those_of_torch() -> None:
    metric = EffectiveAverageDrop(area_threshold=10**30)
    metric.update(*metric.of(image_case()))
    assert not metric.rows()[1][:, 1].any()  # nothing of a map is above that


@pytest.mark.parametrize("name", ["box-sensitivity", "class-discrimination"])
def test_a_grid_has_cells(name: str) -> None:
    with pytest.raises(ArgumentError, match="a grid of at least 1 cell"):
        get_metric(name).metric("cdam", grid=0)
