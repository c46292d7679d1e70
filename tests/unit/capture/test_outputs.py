"""Class scores are found in whatever a model returns."""

from collections import namedtuple
from types import SimpleNamespace

import pytest
import torch

from mhex.capture import read_logits
from mhex.errors import UnsupportedModelError

SCORES = torch.rand(3, 4)


@pytest.mark.parametrize(
    "output",
    [
        SCORES,
        (SCORES, torch.rand(3, 9)),
        [torch.tensor(0.3), SCORES],  # a loss first
        {"logits": SCORES, "aux": torch.rand(3, 2)},
        {"out": SCORES},
        {"scores": SCORES},
        SimpleNamespace(logits=SCORES),
        namedtuple("Output", "logits aux")(SCORES, torch.rand(3, 2)),
    ],
    ids=["tensor", "tuple", "loss first", "logits", "out", "other name", "object", "named tuple"],
)
def test_logits_are_found_in_what_models_return(output):
    assert read_logits(output) is SCORES


def test_a_flat_output_is_a_single_column():
    assert read_logits(torch.rand(3)).shape == (3, 1)


@pytest.mark.parametrize("output", [torch.rand(3, 4, 8, 8), torch.randint(5, (3, 4)), None, "scores", (), {"a": 1}])
def test_anything_else_is_refused(output):
    with pytest.raises(UnsupportedModelError, match="class scores"):
        read_logits(output)
