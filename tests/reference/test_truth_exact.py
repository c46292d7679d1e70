"""Complete methods on models whose attributions are known in closed form."""

import pytest
import torch

from mhex.lab.truth.exact import EXACT

CASES = [(name, method) for name, make in EXACT.items() for method in make(0).complete]


@pytest.mark.parametrize(("name", "method"), CASES)
def test_complete_methods_give_the_worth_of_units(name: str, method: str) -> None:
    assert EXACT[name](3).error(method) < 1e-6


@pytest.mark.parametrize("name", list(EXACT))
def test_worth_of_units_sums_to_the_logits(name: str) -> None:
    case = EXACT[name](1)
    logits = case.model(**case.inputs) if isinstance(case.inputs, dict) else case.model(case.inputs)
    torch.testing.assert_close(case.worth.flatten(2).sum(2), logits.detach(), rtol=0, atol=1e-8)


def test_an_incomplete_method_has_an_error() -> None:
    case = EXACT["bag of patches"](0)
    case.complete["guided-backprop"] = {}  # type: ignore[index]
    assert case.error("guided-backprop") > 0.1
