"""Methods that find out while they run that they cannot explain a model: passed over among all, refused by name."""

import pytest
import timm
import torch

import mhex
from mhex.errors import ArgumentError, MhexWarning, UnsupportedModelError
from mhex.methods import all_methods

LARGE = torch.rand(2, 3, 72, 72)  # 82 tokens, of which attention-flow takes at most 64


@pytest.fixture
def vit(monkeypatch):
    """A small Vision Transformer, with two methods to choose from."""
    entries = {name: spec for name, spec in all_methods().items() if name in ("attention", "attention-flow")}
    monkeypatch.setattr("mhex.judge.plan.all_methods", lambda: entries)
    torch.manual_seed(0)
    shape = {"img_size": 72, "patch_size": 8, "embed_dim": 8, "depth": 1, "num_heads": 2, "num_classes": 3}
    return timm.create_model("vit_tiny_patch16_224", **shape).eval()


def test_among_all_a_method_that_cannot_is_left_out_with_a_warning(vit):
    with pytest.warns(MhexWarning, match="left out. attention-flow: .*64 tokens"):
        report = mhex.evaluate(vit, LARGE, "all", ["compactness"], batch_size=1, controls=False)
    assert report.methods == ["attention"]
    assert report.per_image("compactness")["attention"].isfinite().all()


def test_by_name_it_is_refused(vit):
    with pytest.raises(UnsupportedModelError, match="64 tokens"):
        mhex.evaluate(vit, LARGE, ["attention", "attention-flow"], ["compactness"], controls=False)


def test_all_without_any_that_can_is_refused(vit, monkeypatch):
    entries = {"attention-flow": all_methods()["attention-flow"]}
    monkeypatch.setattr("mhex.judge.plan.all_methods", lambda: entries)
    with pytest.warns(MhexWarning), pytest.raises(ArgumentError, match="a method that can"):
        mhex.evaluate(vit, LARGE, "all", ["compactness"], controls=False)
