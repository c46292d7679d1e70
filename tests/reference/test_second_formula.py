"""Every method against its formula written a second time, in float64, on every family it serves."""

from __future__ import annotations

import pytest
import torch

import support.formulas_classics
import support.formulas_lrp
import support.formulas_tokens  # noqa: F401 (all register their formulas)
from mhex.registry import Method
from support.cases import EVERYWHERE, METHODS, PERTURBING, assert_same, cases, explain
from support.formulas import FORMULAS, view
from support.models import FAMILIES, Family


def test_every_method_has_a_second_formula() -> None:
    missing = METHODS.keys() - FORMULAS.keys()
    assert not missing, f"write them in tests/support/formulas*.py, with @formula(...): {sorted(missing)}"


def _checked_on(method: Method) -> tuple[str, ...]:
    """Families on which a method is checked in the default run: few where the check takes long."""
    if method.rules is not None:
        return ("timm_map", "hf_bert", "tv_efficientnet", "plain_cnn")
    if method.max_tokens is not None:
        return ("timm_registers", "hf_bert", "tv_vit")
    if "features" in method.needs.keep and method.name not in EVERYWHERE:
        return ("timm_vit", "timm_swin", "tv_convnext", "plain_cnn")
    if method.target == "scores" and not method.needs.blocks:
        return ("timm_vit", "timm_registers", "hf_bert", "hf_roberta", "encoder_text", "plain_cnn")
    if method.name in PERTURBING:
        return ("timm_deit_distilled", "hf_dinov2", "tv_vit", "plain_vit_shared")
    return tuple(FAMILIES)


# Relevance is divided by sums of either sign that may be as small as the stabiliser, 1e-6, block after block: rounding
# grows by as much. A stabiliser in a wrong place shows in the sixth digit.
_TOLERANCE = {"lrp": 1e-8, "conservative-lrp": 1e-10}


def _is_checked(method: Method, family: Family) -> bool:
    return method.name in FORMULAS and family.name in _checked_on(method)


@cases(where=_is_checked)
def test_agrees_with_its_second_formula(method: str, family: Family) -> None:
    # Images are all alike, and that a batch does not mix them is shown in test_one_call.py. Of texts, a padded one and
    # one of a single word; of ruled passes, whose programs take long to trace, the padded one.
    _compare(method, family, samples=(0, 1) if family.size is None and METHODS[method].rules is None else (0,))


@pytest.mark.slow
@cases(where=lambda method, family: method.name in FORMULAS and not _is_checked(method, family))
def test_agrees_with_its_second_formula_elsewhere(method: str, family: Family) -> None:
    _compare(method, family, samples=(0,) if METHODS[method].rules is not None else (1,))


def _compare(method: str, family: Family, samples: tuple[int, ...]) -> None:
    model, inputs = family.model(), family.inputs(3)
    targets = [2, 5]
    got = explain(model, inputs, method, target=targets)
    for n in samples:
        seen = view(family, model, family.sample(inputs, n))
        for k, target in enumerate(targets):
            wanted = FORMULAS[method](seen, target).detach()
            scores = got.scores[n, k]
            if family.size is None:
                assert torch.equal(scores[len(wanted) :], torch.zeros_like(scores[len(wanted) :]))
                scores = scores[: len(wanted)]
            assert_same(scores, wanted, method, _TOLERANCE.get(method, 1e-11))
            if not METHODS[method].class_specific:
                break
