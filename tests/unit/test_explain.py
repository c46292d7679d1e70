"""`mhex.explain`: what does not depend on a method or a family."""

import pytest
import torch

import mhex
from mhex.errors import ArgumentError
from support.models import FAMILIES

CNN = FAMILIES["plain_cnn"]


def test_class_names_must_fit_the_outputs():
    x = CNN.inputs(1)
    with pytest.raises(ArgumentError, match=r"7 class names.*but got 3"):
        mhex.explain(CNN.model(), x, "gradcam", class_names=["a", "b", "c"])
    named = mhex.explain(CNN.model(), x, "gradcam", "e", class_names=list("abcdefg"))
    assert named.target.tolist() == [4]
    assert named.target_names(0) == ["e"]


def test_a_bundle_brings_its_own_names_and_preprocessing():
    from PIL import Image

    bundle = mhex.Bundle("toy", CNN.model(torch.float32), lambda photo: torch.rand(3, 32, 48), None, list("abcdefg"))
    e = mhex.explain(bundle, Image.new("RGB", (9, 7)), "gradcam", ["a", "g"])
    assert e.class_names == list("abcdefg")
    assert e.target.tolist() == [[0, 6]]


def test_cost_counts_passes():
    e = mhex.explain(FAMILIES["timm_vit"].model(), FAMILIES["timm_vit"].inputs(2), "gae", [0, 1, 2])
    assert (e.cost["forwards"], e.cost["backwards"]) == (1, 3)
    assert e.cost["seconds"] > 0


def test_something_else_than_a_model_is_refused():
    with pytest.raises(TypeError, match="Module or a bundle"):
        mhex.explain("resnet18", torch.rand(1, 3, 8, 8))
