"""Who answers: a classifier that was left out of the loss of its heads is neither explained nor judged."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mhex
from mhex.errors import MhexError, UnsupportedModelError
from support.models import FAMILIES

CNN = FAMILIES["plain_cnn"]
X = CNN.inputs(4)
LABELS = torch.tensor([0, 1, 2, 3])


def trained_alone(**options: Any) -> tuple[nn.Module, mhex.Scaffold]:
    model = CNN.fresh()
    scaffold = mhex.attach(model, 7, preset="paper")
    model(X)
    scaffold.loss(LABELS, classifier=False, **options)
    return model, scaffold


@pytest.mark.parametrize("mode", ["finetune", "pretrain"])
def test_a_classifier_that_no_loss_has_trained_is_not_explained(mode: str) -> None:
    model, scaffold = trained_alone(mode=mode)
    source = {"finetune": "last_head", "pretrain": "sum"}[mode]
    for target in (None, 3, "top2"):
        with pytest.raises(UnsupportedModelError, match=f"predict_from is '{source}'.*Choose method='mhex'"):
            mhex.explain(model, X, "gradcam", target)
    e = mhex.explain(model, X)
    assert e.method == "mhex"
    torch.testing.assert_close(e.logits, scaffold.predict(X))
    assert mhex.explain(nn.Sequential(model), X).method == "mhex"  # in a wrapper


def test_what_the_message_says_helps() -> None:
    model, scaffold = trained_alone()
    folded = scaffold.fold()
    e = mhex.explain(folded, X, "input-x-gradient")
    torch.testing.assert_close(e.logits, scaffold.predict(X))
    assert mhex.evaluate(folded, X, ["input-x-gradient"], ["compactness"]).methods
    scaffold.predict_from = "classifier"
    assert mhex.explain(model, X, "gradcam").scores.shape[0] == 4
    scaffold.predict_from = None
    scaffold.model(X)
    scaffold.loss(LABELS)
    assert mhex.explain(model, X, "gradcam").scores.shape[0] == 4


def test_it_is_not_judged_either() -> None:
    model, _ = trained_alone()
    plain = CNN.model()
    for call in (
        lambda: mhex.evaluate(model, X, ["mhex"], ["compactness"]),
        lambda: mhex.evaluate(plain, X, ["gradcam"], ["compactness"], evaluator=model),
        lambda: mhex.evaluate(model, X, ["mhex"], ["compactness"], evaluator=plain),
        lambda: mhex.recommend(model, X, 5),
    ):
        with pytest.raises(MhexError, match=r"outputs are judged.*Give scaffold.fold\(\)"):
            call()
    report = mhex.evaluate(model, (X, LABELS), ["mhex"], ["compactness"], evaluator=plain, target="label")
    assert "mhex" in report.methods


def test_targets_that_need_no_classifier_are_explained() -> None:
    model, _ = trained_alone()
    concept = mhex.Concept.from_examples(model, X)
    assert mhex.explain(model, X, "gradcam", concept).scores.shape[0] == 4
    difference = lambda z: z[:, 0] - z[:, 1]  # noqa: E731
    assert mhex.explain(model, X, "gradcam", difference).scores.shape[0] == 4


def test_a_frozen_host_under_probes_answers_itself() -> None:
    model = CNN.fresh()
    scaffold = mhex.attach(model, 7, preset="probe")
    model(X)
    scaffold.loss(LABELS, classifier=False)
    before: Tensor = CNN.model()(X)
    torch.testing.assert_close(mhex.explain(model, X, "gradcam").logits, before.detach())


def test_who_answers_is_saved_with_the_heads(tmp_path: Any) -> None:
    _, scaffold = trained_alone()
    scaffold.save(tmp_path / "heads.safetensors")
    model = CNN.fresh()
    mhex.attach(model, weights=tmp_path / "heads.safetensors")
    with pytest.raises(UnsupportedModelError, match="left out of the loss"):
        mhex.explain(model, X, "gradcam")
