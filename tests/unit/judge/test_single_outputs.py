"""Models that return probabilities where logits are expected."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn

import mhex
from mhex.errors import MhexWarning
from mhex.perturb import Subject

X = torch.randn(6, 1, 2, 2, generator=torch.Generator().manual_seed(0))


class Table(nn.Module):
    """Outputs that are given, whatever the image is; a sample is known by its first pixel."""

    def __init__(self, outputs: Tensor) -> None:
        super().__init__()
        self.outputs = nn.Parameter(outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.outputs[x[:, 0, 0, 0].long()]


def subject(outputs: Tensor) -> Subject:
    images = torch.arange(float(len(outputs))).view(-1, 1, 1, 1).expand(-1, 1, 2, 2)
    return Subject(Table(outputs), images)


TOLD = {
    "many classes, all rare": torch.linspace(0.01, 0.3, 14)[None],
    "trained, two classes": torch.tensor([[0.9, 0.2], [0.1, 0.8], [0.7, 0.6], [0.3, 0.3]]),
    "trained, one output": torch.tensor([0.01, 0.9, 0.99, 0.2, 0.4, 0.6, 0.95, 0.05])[:, None],
    "hard": torch.eye(4)[:, [0, 0, 1, 2]],
}
LOGITS = {
    "untrained, few classes, one sign": torch.rand(8, 3, generator=torch.Generator().manual_seed(1)) * 0.2 + 0.1,
    "one below 0": TOLD["trained, two classes"] - 0.11,
    "one above 1": TOLD["trained, two classes"] + 0.11,
    "too few numbers": torch.tensor([[0.9, 0.2], [0.1, 0.8]]),
}


@pytest.mark.parametrize("name", TOLD)
def test_sigmoids_are_told_of(name: str) -> None:
    with pytest.warns(MhexWarning, match="between 0 and 1, as probabilities do"):
        assert subject(TOLD[name]).logits.shape == TOLD[name].shape


@pytest.mark.parametrize("name", LOGITS)
def test_logits_raise_no_warning(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert subject(LOGITS[name]).logits.shape == LOGITS[name].shape


def test_an_evaluation_warns_once() -> None:
    torch.manual_seed(2)
    model = nn.Sequential(nn.Conv2d(1, 9, 2), nn.Flatten(), nn.Linear(9, 9), nn.Sigmoid())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        mhex.evaluate(model, X, ["input-x-gradient"], ["compactness", "average-drop"], batch_size=2)
    assert len([one for one in caught if "sigmoid" in str(one.message)]) == 1
