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

    A sample is known by its digest (input, label, mask and what else the data says of it), whatever its number is in a
    report; in the result it has the number of the first report that has it. Samples of other data are never paired,
    also where they have the same number: they stay samples of their own.

    Args:
        reports: Rows of each, with the columns of `mhex.bench.store`.
    """
    _check_runs(row for rows in reports for row in rows)
    _check_settings(row for rows in reports for row in rows)
    samples: set[Sample] = set()
    kept: dict[tuple[Any, ...], dict[str, Any]] = {}
    for rows in reports:
        own = {(row["image"], row["input"]) for row in rows}
        if samples:
            common = {digest for _, digest in samples} & {digest for _, digest in own}
            _check_numbers(samples, own, common)
            _check_methods(kept.values(), rows, common)
        number = _numbers(samples, own)
        samples |= {(number[sample], sample[1]) for sample in own}
        for row in rows:
            row = {**row, "image": number[row["image"], row["input"]]}
            key = tuple(row[name] for name in ("image", "input", "method", "options", "metric", "column"))
            _check_value(kept.setdefault(key, row), row)
    return list(kept.values())


def _check_runs(rows: Iterable[Row]) -> None:
    """All rows are of one model, target and seed."""
    runs = [json.loads(told) for told in dict.fromkeys(row["run"] for row in rows)]
    for one in runs[1:]:
        differ = sorted(name for name in {*one, *runs[0]} if one.get(name) != runs[0].get(name))
        if differ:
            told = "; ".join(f"{name} {runs[0].get(name)} and {one.get(name)}" for name in differ)
            raise ArgumentError(f"Expected reports of one model, target and seed, but they differ: {told}.")


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


def _check_numbers(known: set[Sample], own: set[Sample], common: set[str]) -> None:
    """Where both number the same data, as most of what they share shows, a number must not stand for two samples."""
    if not common or 2 * len(known & own) < len(common):
        return
    before, now = ({image for image, digest in part if digest not in common} for part in (known, own))
    wrong = sorted(before & now)
    if wrong:
        raise ArgumentError(
            f"Expected the same samples in both reports, but {len(wrong)} of them differ, such as image {wrong[0]}, "
            "while others are the same. Input, label, mask and whatever else the data says of a sample must be equal: "
            "judge all methods on the same data."
        )


def _check_methods(kept: Iterable[Row], rows: Sequence[Row], common: set[str]) -> None:
    """Without a common sample, more samples of the same methods are welcome, and other methods cannot be compared."""
    if common:
        return
    before, now = _methods(kept), _methods(rows)
    for metric in before.keys() & now.keys():
        if alone := sorted(before[metric] ^ now[metric]):
            raise ArgumentError(
                f"Expected reports of the same samples, or of the same methods, but they have no sample in common, and "
                f"only one of them has {alone[0]!r} for {metric!r}. Input, label, mask and whatever else the data says "
                "of a sample must be equal: judge all methods on the same data."
            )


def _methods(rows: Iterable[Row]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for metric, name, options in dict.fromkeys((row["metric"], row["method"], row["options"]) for row in rows):
        found.setdefault(metric, set()).add(label(name, options))
    return found


def _numbers(known: set[Sample], own: set[Sample]) -> dict[Sample, int]:
    """The number that each sample gets; of samples that are there more than once, each is paired with one other."""
    free: dict[str, list[int]] = {}
    for image, digest in sorted(known - own):
        free.setdefault(digest, []).append(image)
    found = {sample: sample[0] for sample in known & own}
    for image, digest in sorted(own - known):
        there = free.get(digest)
        found[image, digest] = there.pop(0) if there else image
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
