"""Choosing the noise of smooth CDAM: the fidelity behind it against a formula, and the choice itself."""

import pytest
import torch
from torch import nn

import mhex
from mhex.errors import MhexWarning
from mhex.tuning import SigmaStudy, _blur, _fidelity, tune_sigma
from support.models import FAMILIES

VIT = FAMILIES["timm_vit"]


def test_fidelity_of_an_additive_model():
    """20 patches, one removed at a time: A_LIF - A_MIF = 100/d sum_k a_(k) (d + 1 - 2k), a the effect of a patch."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 40, 3)).double()
    images = torch.randn(2, 3, 32, 40, dtype=torch.float64)
    weight = model[1].weight[1].detach().reshape(3, 32, 40)
    effect = (weight * (images - _blur(images))).sum(1)
    scores = effect.unfold(1, 8, 8).unfold(2, 8, 8).sum((3, 4))  # (2, 4, 5)
    e = mhex.Explanation(scores, torch.tensor([1, 1]), model(images).detach(), None, "ideal", size=(32, 40))
    ordered = scores.flatten(1).sort(descending=True).values
    wanted = 100 / 20 * (ordered * (21 - 2 * torch.arange(1, 21))).sum(1)
    torch.testing.assert_close(_fidelity(model, images, e, e.target, seed=0), wanted)
    backwards = mhex.Explanation(-scores, e.target, e.logits, None, "worst", size=(32, 40))
    torch.testing.assert_close(_fidelity(model, images, backwards, e.target, seed=0), -wanted)


def test_blur_keeps_constants_and_means():
    flat = torch.full((1, 3, 32, 48), 0.7, dtype=torch.float64)
    torch.testing.assert_close(_blur(flat), flat)
    spot = torch.zeros(1, 1, 65, 65, dtype=torch.float64)
    spot[..., 32, 32] = 1
    blurred = _blur(spot)
    assert float(blurred.sum()) == pytest.approx(1, abs=1e-6)
    torch.testing.assert_close(blurred, blurred.mT)
    variance = (blurred[0, 0].sum(0) * (torch.arange(65) - 32) ** 2).sum()
    assert float(variance) ** 0.5 == pytest.approx(65 / 16, rel=0.03)


def test_levels_are_judged_and_the_best_is_chosen():
    images = VIT.inputs(5)
    study = tune_sigma(VIT.model(), images, (0.0, 0.3, 5.0), n=4, batch_size=5)
    assert study.fidelity.shape == (3, 5)
    assert study.sigma == (0.0, 0.3, 5.0)[int(study.fidelity.mean(1).argmax())]
    plain = mhex.explain(VIT.model(), images, "cdam")
    torch.testing.assert_close(study.fidelity[0], _fidelity(VIT.model(), images, plain, plain.target, seed=0))
    again = tune_sigma(VIT.model(), torch.utils.data.DataLoader(images, batch_size=2), (0.0, 0.3, 5.0), n=4)
    torch.testing.assert_close(again.fidelity, study.fidelity)
    table = study.table().splitlines()
    assert len(table) == 5
    assert sum("(best)" in line for line in table) == 1


def test_best_level_at_the_end_is_a_warning(monkeypatch):
    values = iter([torch.zeros(2), torch.ones(2)])
    monkeypatch.setattr("mhex.tuning._fidelity", lambda *_: next(values))
    with pytest.warns(MhexWarning, match="try larger ones"):
        assert tune_sigma(VIT.model(), VIT.inputs(2), (0.1, 0.2), n=1).sigma == 0.2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sigmas": ()}, "different levels"),
        ({"sigmas": 0.1}, "different levels"),
        ({"sigmas": "abc"}, "different levels"),
        ({"batch_size": 0}, "batch_size to be a whole number from 1 to 1000000"),
        ({"sigmas": (0.1, 0.1)}, "different levels"),
        ({"target": [0, 1]}, "one class"),
        ({"images": VIT.inputs(1)[:0]}, "at least one image"),
    ],
)
def test_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        tune_sigma(VIT.model(), **{"images": VIT.inputs(2), "n": 1, **arguments})


def test_texts_are_refused():
    bert = FAMILIES["hf_bert"]
    with pytest.raises(ValueError, match="blurring patches"):
        tune_sigma(bert.model(), bert.inputs(2), n=1)


def test_table_of_one_image_has_no_error():
    assert "nan" in SigmaStudy(0.1, (0.1,), torch.ones(1, 1)).table()


def test_a_class_of_each_image_and_by_name():
    images, labels = VIT.inputs(5), torch.tensor([0, 1, 2, 3, 0])
    study = tune_sigma(VIT.model(), images, (0.0, 2.0), n=2, target=labels, batch_size=2)
    whole = tune_sigma(VIT.model(), images, (0.0, 2.0), n=2, target=labels, batch_size=5)
    torch.testing.assert_close(study.fidelity, whole.fidelity)
    names = [f"kind {i}" for i in range(7)]
    named = tune_sigma(VIT.model(), images, (0.0, 2.0), n=2, target="kind 3", class_names=names)
    torch.testing.assert_close(named.fidelity, tune_sigma(VIT.model(), images, (0.0, 2.0), n=2, target=3).fidelity)
