"""What a page says of how its numbers were made."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from mhex._markup import escaped
from mhex.bench.runs import Evaluation


def facts(one: Evaluation) -> str:
    """Model, target, task, seed, counts, versions and commands as a table, in HTML."""
    rows = [("model", str(one.told.get("model", "")))]
    rows += [
        (name, str(one.told[name])) for name in ("evaluator", "relabelled") if one.told.get(name) not in (None, "none")
    ]
    rows += [(name, str(one.told.get(name, ""))) for name in ("target", "task", "seed")]
    rows += [("samples", str(one.images)), ("skipped", _skipped(one))]
    if not one.calls:
        rows.append(("versions", "not written down: the rows are of an earlier version"))
    for number, call in enumerate(one.calls, 1):
        rows += _call(call, f" of call {number}" if len(one.calls) > 1 else "")
    body = "".join(f"<tr><td>{escaped(name)}</td><td>{escaped(said)}</td></tr>" for name, said in rows)
    return f"<table>{body}</table>"


def _call(call: Mapping[str, Any], which: str) -> Iterable[tuple[str, str]]:
    for name in ("model", "command", "methods", "metrics", "budget", "batch_size", "versions"):
        said = call.get(name)
        if not said:
            continue
        if isinstance(said, Mapping):
            said = ", ".join(f"{key} {value}" for key, value in said.items())
        elif isinstance(said, list):
            said = ", ".join(map(str, said))
        title = "loaded as" if name == "model" else name.replace("_", " ")
        yield f"{title}{which}", said if isinstance(said, str) else json.dumps(said)


def _skipped(one: Evaluation) -> str:
    """Images that do not count, by method and metric."""
    told = [
        f"{count} of {one.images} for {method} by {metric}"
        for method, by_metric in one.report.skipped().items()
        for metric, count in by_metric.items()
        if count
    ]
    return "; ".join(told) or "none"
