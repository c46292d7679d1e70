"""Two methods against each other."""

import dataclasses

import numpy as np
import pytest
import torch

import mhex
from mhex.viz import save_figure, scatter
from support.models import FAMILIES

VIT, BERT = FAMILIES["timm_vit"], FAMILIES["hf_bert"]


def dots(sheet):
    (axes,) = [a for a in sheet.axes if a.get_label() == "scatter"]
    return np.asarray(axes.collections[0].get_offsets())


def words(sheet):
    return " ".join(text.get_text() for text in sheet.findobj(lambda o: hasattr(o, "get_text")))


def test_every_patch_is_a_dot(tmp_path):
    along, up = (mhex.explain(VIT.model(), VIT.inputs(3), m, target=1) for m in ("attention", "cdam"))
    sheet = scatter(along, up)
    wanted = np.stack([along.scores.flatten().numpy(), up.scores.flatten().numpy()], 1)
    np.testing.assert_allclose(dots(sheet), wanted)
    r = np.corrcoef(wanted.T)[0, 1]
    assert f"Pearson r = {r:.2f} over 72 patches." in words(sheet)
    assert "cdam against attention" in words(sheet)
    assert save_figure(sheet, tmp_path / "scatter.png").stat().st_size > 1000


def test_texts_leave_special_tokens_out():
    along, up = (mhex.explain(BERT.model(), BERT.inputs(3), m, target=[0, 1]) for m in ("attention", "cdam"))
    assert len(dots(scatter(along, up))) == 2 * (6 + 1 + 9)  # of 8, 3 and 11 tokens, without the first and last


def test_constant_scores_have_no_correlation():
    e = mhex.explain(VIT.model(), VIT.inputs(1), "attention")
    flat = dataclasses.replace(e, scores=torch.ones_like(e.scores), method="flat")
    assert "No correlation" in words(scatter(flat, e))


def test_other_grids_are_refused():
    e = mhex.explain(VIT.model(), VIT.inputs(1), "attention")
    other = mhex.explain(VIT.model(), VIT.inputs(1), "input-x-gradient")
    with pytest.raises(ValueError, match="same grid"):
        scatter(e, other)


def test_other_classes_are_refused():
    one, two = (mhex.explain(VIT.model(), VIT.inputs(1), "cdam", target=t) for t in (1, 2))
    with pytest.raises(ValueError, match="same targets"):
        scatter(one, two)
