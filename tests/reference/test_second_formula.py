"""Every method against its formula written a second time, in float64, on every family it serves."""

from __future__ import annotations

import pytest
import torch

import support.formulas_classics
import support.formulas_lrp
import support.formulas_tokens  # noqa: F401 (all register their formulas)
from support.cases import METHODS, assert_same, cases, explain
from support.formulas import FORMULAS, view
from support.models import Family


def test_every_method_has_a_second_formula() -> None:
    missing = METHODS.keys() - FORMULAS.keys()
    assert not missing, f"write them in tests/support/formulas*.py, with @formula(...): {sorted(missing)}"


# Families on which methods that take long to check are checked in the default run.
_RULED = ("lrp", "partial-lrp", "transformer-attribution", "conservative-lrp", "attnlrp", "abslrp", "guided-backprop")
_LONG = {
    **dict.fromkeys(_RULED, ("timm_map", "hf_bert", "tv_efficientnet", "plain_cnn")),
    "attention-flow": ("timm_registers", "hf_bert", "tv_vit"),
    "vit-cx": ("timm_deit_distilled", "hf_dinov2", "tv_vit", "plain_vit_shared"),
    **dict.fromkeys(("gradcam++", "scorecam", "eigencam"), ("timm_vit", "timm_swin", "tv_convnext", "plain_cnn")),
    **dict.fromkeys(
        ("smoothgrad", "integrated-gradients", "occlusion", "rise"),
        ("timm_vit", "timm_registers", "hf_bert", "hf_roberta", "encoder_text", "plain_cnn"),
    ),
    "shap": ("timm_registers", "hf_bert", "encoder_text", "plain_cnn"),
}
# Relevance is divided by sums of either sign that may be as small as the stabiliser, 1e-6, block after block: rounding
# grows by as much. A stabiliser in a wrong place shows in the sixth digit.
_TOLERANCE = {"lrp": 1e-8, "conservative-lrp": 1e-10}


def _slow_to_check(method: str, family: Family) -> bool:
    return family.name not in _LONG.get(method, (family.name,))


@cases(where=lambda method, family: method.name in FORMULAS and not _slow_to_check(method.name, family))
def test_agrees(method: str, family: Family) -> None:
    # Of ruled passes, whose programs take long to trace, the one sample: padded, if it is a text.
    _compare(method, family, samples=(0,) if method in _RULED else (0, 1, 2))


@pytest.mark.slow
@cases(where=lambda method, family: method.name in FORMULAS and _slow_to_check(method.name, family))
def test_agrees_slowly(method: str, family: Family) -> None:
    _compare(method, family, samples=(0, 2) if method in _RULED else (1,))


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
