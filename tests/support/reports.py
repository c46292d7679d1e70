"""Reports of numbers that a test chooses."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from mhex.judge import Report, store
from mhex.metrics import get_metric


def report_of(
    numbers: Mapping[str, Mapping[str, Tensor]],
    ids: Mapping[int, str] | None = None,
    changes: Mapping[str, Any] | None = None,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    model: str = "net",
) -> Report:
    """A report.

    Args:
        numbers: For each metric and method, values (n,) or numbers (n, J).
        ids: Numbers of the images and their digests; 0, 1, ... and letters if None.
        changes: Parts of the protocols that differ from the usual.
        options: Of methods.
        model: That was judged.
    """
    rows = []
    for name, methods in numbers.items():
        metric = get_metric(name).metric(**(changes or {}))
        settings = json.dumps({"name": name, "preset": "default", "changes": dict(changes or {})})
        for method, table in methods.items():
            table = table[:, None] if table.dim() == 1 else table
            known = {k: f"digest{k}" for k in range(len(table))} if ids is None else ids
            for (image, digest), values in zip(known.items(), table.tolist(), strict=True):
                for column, value in zip(metric.columns, values, strict=True):
                    rows.append(
                        {
                            "run": json.dumps({"model": model, "target": "predicted", "seed": 0}),
                            "image": image,
                            "input": digest,
                            "method": method,
                            "options": json.dumps(dict((options or {}).get(method, {}))),
                            "metric": name,
                            "settings": settings,
                            "protocol": str(metric.protocol),
                            "column": column,
                            "value": value,
                            "seconds": 0.0,
                            "explain_seconds": 0.0,
                        }
                    )
    return Report(store.as_table(rows))


def counts(n: int, seed: int = 0, good: float = 0.0) -> Tensor:
    """Numbers of the segmentation metric for n images, (n, J): objects of 20 to 500 of 1000 pixels."""
    draw = torch.Generator().manual_seed(seed)
    inside = torch.randint(20, 500, (n, 1), generator=draw).double()
    quality = torch.randn(n, 1, generator=draw).double() + good
    level = torch.linspace(-1, 2, 11).double()
    true = (torch.sigmoid(quality - level) * inside).round()
    false = (torch.sigmoid(-1 - level - 0.5 * quality) * (1000 - inside)).round()
    half = (torch.arange(n) % 2)[:, None].double()
    precisions = torch.rand(n, 2, generator=draw).double()
    return torch.cat([precisions, inside, 1000 - inside, half, torch.stack([true, false], -1).flatten(1)], 1)
