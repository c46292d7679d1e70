"""Heads on a host that returns probabilities: its classifier is read by its logits."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mhex
from mhex.errors import ArgumentError, MhexWarning
from support.models import FAMILIES

X = FAMILIES["plain_cnn"].inputs(6)


class Host(nn.Module):
    """A residual CNN whose scores go through `end`."""

    def __init__(self, classes: int, end: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Conv2d(3, 6, 3, 2)
        self.unit = Unit()
        self.fc, self.ends = nn.Linear(6, classes), [end]
        self.double().eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.ends[0](self.fc(self.unit(self.stem(x)).mean((2, 3))))


class Unit(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.branch = nn.Conv2d(6, 6, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.branch(x).relu()


def headed(classes: int, end: Callable[[Tensor], Tensor], **options: Any) -> mhex.Scaffold:
    scaffold = mhex.attach(Host(classes, end), classes, preset="probe", **options)
    weights = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in scaffold.head_parameters():
            p.copy_(torch.randn(p.shape, generator=weights, dtype=p.dtype))
    return scaffold


def same(z: Tensor) -> Tensor:
    return z


CASES: dict[str, tuple[int, Callable[[Tensor], Tensor], dict[str, Any], Tensor]] = {
    "softmax": (3, lambda z: z.softmax(1), {}, torch.arange(6) % 3),
    "sigmoids": (3, torch.sigmoid, {"multi_label": True}, (torch.arange(18).view(6, 3) % 2).double()),
    "sigmoid": (1, torch.sigmoid, {"multi_label": True}, (torch.arange(6)[:, None] % 2).double()),
}


@pytest.mark.parametrize("name", CASES)
def test_losses_and_predictions_are_those_of_the_logits(name: str) -> None:
    classes, end, options, labels = CASES[name]
    plain, ended = headed(classes, same, **options), headed(classes, end, **options)
    plain.model(X)
    ended.model(X)
    with pytest.warns(MhexWarning, match=f"ends in a {'softmax' if name == 'softmax' else 'sigmoid'}"):
        loss = ended.loss(labels)
    expected = plain.loss(labels)
    if name == "softmax":  # logits but for a shift, which only the sum of all of them notices
        assert torch.equal(ended.predictions, plain.predictions)
        torch.testing.assert_close(ended.logits.softmax(1), plain.logits.softmax(1))
    else:
        torch.testing.assert_close(ended.logits, plain.logits)
    torch.testing.assert_close(loss, expected)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # told once
        ended.model(X)
        ended.loss(labels)


@pytest.mark.parametrize("name", CASES)
def test_passes_without_a_graph_see_it_too(name: str) -> None:
    classes, end, options, labels = CASES[name]
    plain, ended = headed(classes, same, **options), headed(classes, end, **options)
    with pytest.warns(MhexWarning, match="ends in a"):
        accuracy = ended.head_accuracy((X, labels))
    assert accuracy == plain.head_accuracy((X, labels))
    assert torch.equal(ended.predict(X).argmax(1), plain.predict(X).argmax(1))
    said = headed(classes, end, outputs="probabilities", **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert said.head_accuracy((X, labels)) == accuracy


@pytest.mark.parametrize("name", CASES)
def test_maps_and_folded_sums_are_those_of_the_logits(name: str) -> None:
    classes, end, options, _ = CASES[name]
    plain, ended = headed(classes, same, **options), headed(classes, end, outputs="probabilities", **options)
    e = mhex.explain(ended.model, X, "mhex", 0, outputs="probabilities")
    expected = mhex.explain(plain.model, X, "mhex", 0)
    torch.testing.assert_close(e.scores, expected.scores)
    torch.testing.assert_close(e.probabilities, expected.probabilities)
    if classes > 1:
        folded, whole = ended.fold("sum"), plain.fold("sum")
        torch.testing.assert_close(folded(X).softmax(1), whole(X).softmax(1))


def test_what_is_said_is_kept(tmp_path: Any) -> None:
    scaffold = headed(3, torch.sigmoid, outputs="logits")
    scaffold.save(tmp_path / "heads.safetensors")
    again = mhex.attach(Host(3, torch.sigmoid), weights=tmp_path / "heads.safetensors")
    assert again.settings.outputs == "logits"
    again.model(X)
    torch.testing.assert_close(again.logits, again.model(X))
    assert copy.deepcopy(again.model)(X).shape == (6, 3)
    with pytest.raises(ArgumentError, match="outputs 'logits' or 'probabilities'"):
        mhex.attach(Host(3, same), 3, outputs="shares")  # type: ignore[arg-type]
