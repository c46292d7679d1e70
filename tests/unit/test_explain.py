"""`mhex.explain`: what does not depend on a method or a family."""

import pytest
import torch

import mhex
from mhex.capture import AttentionRecord, Block, BlockTrace
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


def test_cost_counts_the_pass_that_measures_the_readout():
    family = FAMILIES["plain_vit"]
    assert mhex.explain(family.model(), family.inputs(1), "attention").cost["forwards"] == 2


class Drawing(torch.nn.Module):
    """Draws random numbers in evaluation mode too."""

    def __init__(self):
        super().__init__()
        self.inner = CNN.fresh()

    def forward(self, x):
        return self.inner(torch.nn.functional.dropout(x, 0.1, training=True))


def test_random_numbers_drawn_by_the_model_are_put_back():
    model, before = Drawing().eval(), torch.get_rng_state()
    mhex.explain(model, CNN.inputs(1), "gradcam")
    assert torch.get_rng_state().equal(before)


@pytest.mark.parametrize(("targets", "tokens", "stored"), [(1, 9, False), (3, 9, True), (3, 33, False)])
def test_attention_is_stored_only_for_several_targets_and_short_sequences(targets, tokens, stored):
    """N up to 4 d may be stored: beyond, it would outgrow the graph of its block."""
    q = torch.randn(1, 2, tokens, 8)
    block = BlockTrace(Block(torch.nn.Identity()))
    block.record = AttentionRecord(q, q, q, None, 1.0, False, None)
    block.targets = targets
    assert (block.attention() is block.attention()) is stored


def test_one_output_with_one_name():
    model = CNN.fresh()
    model.head = torch.nn.Linear(12, 1).double()
    e = mhex.explain(model, CNN.inputs(1), "gradcam", "sick", class_names=["sick"])
    assert e.class_names == ["not sick", "sick"]
    assert e.target.tolist() == [1]


def test_a_photo_is_drawn_only_if_the_model_saw_all_of_it():
    from PIL import Image

    def cropping(photo):
        return torch.rand(3, 32, 48)

    class Whole:
        whole_photo = True

        def __call__(self, photo):
            return torch.rand(3, 32, 48)

    model, photo = CNN.model(torch.float32), Image.new("RGB", (90, 30))
    assert mhex.explain(model, photo, "gradcam", preprocess=Whole()).pictures == [photo]
    assert isinstance(mhex.explain(model, photo, "gradcam", preprocess=cropping).pictures, torch.Tensor)


def test_something_else_than_a_model_is_refused():
    with pytest.raises(TypeError, match="Module or a bundle"):
        mhex.explain("resnet18", torch.rand(1, 3, 8, 8))
