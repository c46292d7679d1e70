"""Whatever a part of a protocol is given, the metric says a number or a sentence, and soon."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
import torch
from hypothesis import strategies as st

from mhex.metrics.registry import all_metrics
from mhex.perturb.references import WORDS
from support.argument_values import COUNTS, answer, anything, search
from support.nonlinear_models import image_case, text_case

METRICS = all_metrics()
EDGES = (-1, 0, 1, 2, 3, 10, 0.5, -0.5, 1e-300, 1e300, float("nan"), float("inf"), 10**9, 10**30, "x", "", None, True)
NAMES = ("black", "zero", "mean", "blur", "drop", "pad", "mask_token", "impute", "pixel", "patch", "token", "word")
MORE = ("remove", "keep", "soft-keep", "explained", "predicted", "label", "unit", "che", "stable", "sum", "own", "best")
SMALL = {"steps": 10, "draws": 2, "count": 4, "groups": 3, "sizes": (2, 3), "stages": 1}  # so that a metric is cheap
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::RuntimeWarning")


def parts_of(name: str, preset: str) -> list[str]:
    return [field.name for field in fields(METRICS[name].presets[preset])]


@st.composite
def changes(draw: st.DrawFn, name: str) -> tuple[str, dict[str, Any]]:
    """A preset, and other values of one part of it, or of two."""
    preset = draw(st.sampled_from(sorted(METRICS[name].presets)))
    parts = parts_of(name, preset)
    if not parts:
        return preset, {}
    value = st.one_of(st.sampled_from(EDGES), st.sampled_from((*NAMES, *MORE)), anything)
    return preset, draw(st.dictionaries(st.sampled_from(parts), value, min_size=1, max_size=2))


@COUNTS
@pytest.mark.parametrize("name", METRICS)
def test_any_part_of_a_protocol_is_used_or_refused(name: str, factor: int) -> None:
    def body(case: tuple[str, dict[str, Any]]) -> None:
        preset, changed = case
        metric = answer(METRICS[name].metric, preset, **changed)
        if metric is not None:
            assert all(getattr(metric.protocol, part) is not None or changed[part] is None for part in changed)
            assert hash(metric.protocol) == hash(metric.protocol)
            assert str(metric.protocol) is not None

    search(body, changes(name), 30 * factor)


@COUNTS
@pytest.mark.parametrize("name", METRICS)
def test_any_accepted_protocol_gives_numbers(name: str, factor: int) -> None:
    """Of a small example, with parts that are accepted."""

    def body(case: tuple[str, dict[str, Any]]) -> None:
        preset, changed = case
        small = {part: value for part, value in SMALL.items() if part in parts_of(name, preset)}
        metric = answer(METRICS[name].metric, preset, resamples=2, **{**small, **changed})
        if metric is None or much(metric.protocol):
            return
        text = METRICS[name].modalities == ("text",) or getattr(metric.protocol, "reference", None) in WORDS
        sample = text_case() if text else image_case()
        parts = answer(metric.of, sample)
        if parts is not None:
            metric.update(*parts)
            assert metric.compute()["n"] >= 0
            values = metric.rows()[1]
            assert values.dtype == torch.float64
            assert not bool(values.isinf().any())

    search(body, changes(name), 2 * factor)


def much(protocol: Any) -> bool:
    """Whether parts ask for many passes, which is work and no fault."""
    sizes = [getattr(protocol, part, None) for part in SMALL]
    return any(isinstance(size, int) and size > 20 for size in sizes)


@COUNTS
def test_any_setting_of_intervals_is_used_or_refused(factor: int) -> None:
    """What all metrics are given beside their protocol."""
    part = st.sampled_from(["preset", "confidence", "resamples", "bootstrap_seed", "interval"])
    value = st.one_of(st.sampled_from([*EDGES, "bca", "percentile", "wilson"]), anything)

    def body(changed: dict[str, Any]) -> None:
        metric = answer(METRICS["aopc"].metric, **{"resamples": 2, "steps": 10, **changed})
        if metric is not None:
            metric.update(*metric.of(image_case()))
            assert answer(metric.compute) is None or metric.compute()["n"] > 0

    search(body, st.dictionaries(part, value, min_size=1, max_size=2), 20 * factor)
