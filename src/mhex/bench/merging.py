"""Rows of several reports as one: samples are known by what they are, and whatever cannot be right is refused."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mhex.bench.plan import label
from mhex.errors import ArgumentError

Row = Mapping[str, Any]
Sample = tuple[int, str]  # number and digest

_SAME, _NOTHING = 1e-3, 1e-6  # an image in another batch or on another device gives values that differ by rounding


def merged(reports: Sequence[Sequence[Row]]) -> list[dict[str, Any]]:
    """Rows of all reports, each once.

    A sample is known by its number and by its digest (input, label, mask and what else the data says of it): ties,
    boxes and noise are drawn by the number, and what was drawn in another way cannot be paired. Samples of other data
    are never paired, also where they have the same number: they stay samples of their own.

    Args:
        reports: Rows of each, with the columns of `mhex.bench.store`.
    """
    _check_runs(row for rows in reports for row in rows)
    _check_settings(row for rows in reports for row in rows)
    left = [(rows, {(row["image"], row["input"]) for row in rows}) for rows in reports]
    samples: set[Sample] = set()
    kept: dict[tuple[Any, ...], dict[str, Any]] = {}
    while left:
        # What has samples in common comes first, so that the order in which reports are given does not matter.
        rows, own = left.pop(next((k for k, (_, one) in enumerate(left) if one & samples), 0))
        if samples:
            _check_numbers(samples, own)
            _check_methods(kept.values(), rows, samples, own)
        samples |= own
        for row in rows:
            key = tuple(row[name] for name in ("image", "input", "method", "options", "metric", "column"))
            _check_value(kept.setdefault(key, dict(row)), row)
    return list(kept.values())


def _check_runs(rows: Iterable[Row]) -> None:
    """All rows are of one model, task, target and seed."""
    runs = [json.loads(told) for told in dict.fromkeys(row["run"] for row in rows)]
    for one in runs[1:]:
        differ = sorted(name for name in {*one, *runs[0]} if one.get(name) != runs[0].get(name))
        if differ:
            told = "; ".join(f"{name} {runs[0].get(name)} and {one.get(name)}" for name in differ)
            raise ArgumentError(f"Expected reports of one model, task, target and seed, but they differ: {told}.")


def _check_settings(rows: Iterable[Row]) -> None:
    """A metric of one name is measured in one way."""
    known: dict[str, tuple[Any, str]] = {}
    for name, settings, protocol in dict.fromkeys((row["metric"], row["settings"], row["protocol"]) for row in rows):
        told = (json.loads(settings), protocol)
        if known.setdefault(name, told) != told:
            raise ArgumentError(
                f"Expected {name!r} to be measured in one way, but its settings differ between the reports: "
                f"{known[name][1]}; and {protocol}. Leave it out of one of them with only(metrics=...)."
            )


def _check_numbers(known: set[Sample], own: set[Sample]) -> None:
    """Where both are of the same data, as what they share shows, a number must not stand for two samples."""
    common = known & own
    wrong = sorted({image for image, _ in known - common} & {image for image, _ in own - common})
    if common and wrong:
        raise ArgumentError(
            f"Expected the same samples in both reports, but {len(wrong)} of them differ, such as image {wrong[0]}, "
            "while others are the same. Input, label, mask and whatever else the data says of a sample must be equal: "
            "judge all methods on the same data."
        )


def _check_methods(kept: Iterable[Row], rows: Sequence[Row], known: set[Sample], own: set[Sample]) -> None:
    """Without a common sample, more samples of the same methods are welcome, and other methods cannot be compared."""
    if known & own:
        return
    same = {digest for _, digest in known} & {digest for _, digest in own}
    before, now = _methods(kept), _methods(rows)
    for metric in before.keys() & now.keys():
        if alone := sorted(before[metric] ^ now[metric]):
            why = (
                f"the {len(same)} that they share have other numbers, by which ties, boxes and noise are drawn"
                if same
                else "input, label, mask and whatever else the data says of a sample must be equal"
            )
            raise ArgumentError(
                f"Expected reports of the same samples, or of the same methods, but they have no sample in common, and "
                f"only one of them has {alone[0]!r} for {metric!r}: {why}. Judge all methods on the same data, in the "
                "same order."
            )


def _methods(rows: Iterable[Row]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for metric, name, options in dict.fromkeys((row["metric"], row["method"], row["options"]) for row in rows):
        found.setdefault(metric, set()).add(label(name, options))
    return found


def _check_value(kept: Row, row: Row) -> None:
    first, second = (math.nan if one["value"] is None else one["value"] for one in (kept, row))
    if math.isnan(first) and math.isnan(second):
        return
    if not math.isclose(first, second, rel_tol=_SAME, abs_tol=_NOTHING):
        raise ArgumentError(
            f"Expected one value of {row['metric']!r} ({row['column']}) for {label(row['method'], row['options'])!r} "
            f"on image {row['image']}, but the reports have {first:g} and {second:g}. They number samples differently, "
            "by which ties and boxes are drawn, or one of them is of another version."
        )
