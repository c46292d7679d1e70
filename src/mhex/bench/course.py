"""How far the evaluations of a folder have come: which were broken off, and which samples were lost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mhex.bench.plan import label
from mhex.bench.samples import losses_in_words

Call = Mapping[str, Any]


def broken_off(calls: Sequence[Call], rows: Any) -> str:
    """A sentence on calls that did not come to their end; empty if all did, or if that was not written down.

    Args:
        calls: As `mhex.bench.about` reads them.
        rows: An arrow table of the rows that there are.
    """
    for call in calls:
        if "done" not in call or call["done"] is not None or any(_covers(other, call) for other in calls):
            continue
        whole, begun = _counts(call, rows)
        wanted = call.get("samples")
        if wanted is not None and whole >= wanted:
            continue
        methods, metrics = len(call.get("methods", [])), len(call.get("metrics", []))
        of = f"of {wanted} samples" if wanted is not None else f"of {begun} samples so far"
        return (
            f"Broken off, or still running: {whole} {of} {'is' if whole == 1 else 'are'} judged by all of {methods} "
            f"{'method' if methods == 1 else 'methods and controls'} and {metrics} "
            f"{'metric' if metrics == 1 else 'metrics'}. The same call goes on from there."
        )
    return ""


def lost_in(calls: Iterable[Call]) -> dict[int, str]:
    """Samples that could not be judged, and why, by the last call that says so."""
    lost: dict[int, str] = {}
    for call in calls:
        lost |= {int(number): str(reason) for number, reason in (call.get("lost") or {}).items()}
    return lost


def remarks(broken: str, lost: Mapping[int, str]) -> list[str]:
    """Sentences that belong above or below every table of a report."""
    count = f"{len(lost)} {'sample' if len(lost) == 1 else 'samples'}"
    losses = f"Not judged: {count} ({losses_in_words(lost)})." if lost else ""
    return [sentence for sentence in (broken, losses) if sentence]


def _covers(other: Call, call: Call) -> bool:
    """Whether another call came to its end, and did all that this one was to do."""
    if other.get("done") is None or (call.get("samples") or 0) > other["done"]:
        return False
    return all(set(call.get(key, [])) <= set(other.get(key, [])) for key in ("methods", "metrics"))


def _counts(call: Call, rows: Any) -> tuple[int, int]:
    """Samples that have all methods and metrics of a call, and those that have any."""
    names = ("image", "input", "method", "options", "metric")
    cells: dict[tuple[Any, Any], set[tuple[str, str]]] = {}
    for image, mark, method, options, metric in zip(*(rows.column(name).to_pylist() for name in names), strict=True):
        cells.setdefault((image, mark), set()).add((label(method, options), metric))
    wanted = {(method, metric) for method in call["methods"] for metric in call["metrics"]}
    return sum(wanted <= there for there in cells.values()), len(cells)
