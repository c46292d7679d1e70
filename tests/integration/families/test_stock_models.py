"""Models of three libraries, each explained by every method that serves it and refused in one sentence by the others.

What is seen must be what `docs/support.json` says, from which `docs/support.md` is made. After a change that is meant,
`MHEX_SUPPORT=write python -m pytest tests/integration/families/test_stock_models.py -m "slow or not slow"` writes it.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mhex.errors import MhexError, NotFiniteError, UnsupportedModelError
from support.cases import COARSE, METHODS, RELEVANCE, explain, named_methods
from support.stock_models import STOCK_MODELS, TORCHVISION, StockModel

RESULTS = Path(__file__).parents[3] / "docs" / "support.json"
LOOKED_AT = [name for name in METHODS if name != "mhex"]  # which serves whatever carries its heads, and nothing else
# Kinds that the contract tests have no family of, and a network of convolutions; the others are slow.
USUAL = ("timm:dinov3", "timm:resnet", "transformers:llama", "torch:lstm")
# Where the maps of half precision are compared with those of float32, and how alike they must be.
ALIKE = {"timm:vit": 0.9, "timm:resnet": 0.9, "transformers:bert": 0.9}
SMOOTH = ("gae", "rollout", "input-x-gradient", "layercam", "occlusion", "cdam")

pytestmark = pytest.mark.filterwarnings("ignore::mhex.errors.MhexWarning")


def each() -> pytest.MarkDecorator:
    marks = {name: () if name in USUAL else pytest.mark.slow for name in STOCK_MODELS}
    return pytest.mark.parametrize("stock", [pytest.param(STOCK_MODELS[n], id=n, marks=marks[n]) for n in STOCK_MODELS])


@each()
def test_explained_or_refused_in_one_sentence(stock: StockModel) -> None:
    seen = observed(stock)
    stored = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    if os.environ.get("MHEX_SUPPORT") == "write":
        stored = {name: stored[name] for name in STOCK_MODELS if name in stored and name != stock.name}
        stored[stock.name] = seen
        text = json.dumps({name: stored[name] for name in STOCK_MODELS if name in stored}, indent=1)
        RESULTS.write_text(text + "\n", encoding="utf-8")
    assert stored[stock.name] == seen


def test_every_stored_result_is_of_a_listed_model() -> None:
    assert list(json.loads(RESULTS.read_text(encoding="utf-8"))) == list(STOCK_MODELS)


def test_no_classifier_of_torchvision_is_left_out() -> None:
    models = pytest.importorskip("torchvision").models
    names = models.list_models(module=models)
    assert [name for name in names if not name.startswith(tuple(TORCHVISION))] == []


def observed(stock: StockModel) -> dict[str, Any]:
    """Which methods serve a model and why the others do not; those that half precision alone stops, by themselves."""
    model, three, one = stock.model(), stock.inputs(3), stock.inputs(1)
    maps: dict[str, Tensor] = {}
    refusals: dict[str, list[str]] = {}
    claimed: set[str] = set()
    for method in LOOKED_AT:
        try:
            maps[method] = explain(model, three, method, target=1).scores
        except MhexError as error:
            claimed |= note(refusals, method, error)
            continue
        if method not in RELEVANCE:
            assert_same_row(maps[method][:1], explain(model, one, method, target=1).scores, method)
    assert claimed <= maps.keys(), f"refusals name methods that refuse: {claimed - maps.keys()}"
    model = stock.model().double()  # a new one each time: some models remember tables that they made in a pass
    for method in maps.keys() & set(RELEVANCE):  # in float32 rounding may decide them: they divide by sums near 0
        row, alone = (explain(model, wide(inputs), method, target=1).scores[:1] for inputs in (three, one))
        assert_same_row(row, alone, method)
    model = stock.model().bfloat16()
    coarse: dict[str, list[str]] = {}
    for method in maps:
        try:
            half = explain(model, three, method, target=1).scores
        except MhexError as error:
            note(coarse, method, error)
            continue
        assert half.shape == maps[method].shape
        if stock.name in ALIKE and method in SMOOTH:
            pair = torch.stack([half.flatten(), maps[method].flatten()])
            assert float(torch.corrcoef(pair)[0, 1]) > ALIKE[stock.name], method
    return {"serves": list(maps), "refuses": refusals, "bfloat16": coarse}


def note(refusals: dict[str, list[str]], method: str, error: MhexError) -> set[str]:
    """Note a refusal by its reason, which must be a sentence; the methods that it names as able."""
    message = str(error)
    assert not isinstance(error, NotFiniteError), f"{method}: {message}"
    assert re.fullmatch(r"\w[^\n]*\.", message), f"{method}: a sentence, please: {message!r}"
    reason = error.reason if isinstance(error, UnsupportedModelError) else message
    # Neither how often an operation is met nor the name of a class says more of the family.
    reason = re.sub(r"this [\w. ]+ does not show", "this model does not show", re.sub(r" \(\d+ times\)", "", reason))
    refusals.setdefault(reason, []).append(method)
    return named_methods(message)[0] if "Methods that can" in message else set()


def wide(inputs: Any) -> Any:
    return inputs.double() if isinstance(inputs, Tensor) else inputs


def assert_same_row(row: Tensor, alone: Tensor, method: str) -> None:
    """A sample in a batch has the map that it has alone, up to rounding."""
    assert row.shape == alone.shape
    assert bool(torch.isfinite(alone).all())
    # Scores that cancel exactly are rounding alone, so they are compared with what is no longer small.
    allowed = max(2e-3 * max(float(alone.abs().max()), 1e-3), COARSE.get(method, 0.0))
    error = float((row - alone).abs().max())
    assert error <= allowed, f"{method}: batch and single sample differ by {error:.3g}, allowed {allowed:.3g}"
