"""`mhex.explain`: what does not depend on a method or a family."""

import pytest
import torch

import mhex
from mhex.capture import AttentionRecord, Block, BlockTrace
from mhex.errors import ArgumentError, MhexWarning
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


def test_class_names_may_be_numbered():
    named = mhex.explain(CNN.model(), CNN.inputs(1), "gradcam", "c", class_names=dict(enumerate("abcdefg")))
    assert named.target_names(0) == ["c"]
    with pytest.raises(TypeError, match="list of class names"):
        mhex.explain(CNN.model(), CNN.inputs(1), "gradcam", class_names="abcdefg")


def test_photos_reach_the_users_preprocess_as_they_are():
    from PIL import Image

    seen = []

    def grey(photo):
        seen.append(photo.mode)
        return torch.rand(3, 32, 48)

    mhex.explain(CNN.model(torch.float32), Image.new("L", (20, 20)), "gradcam", preprocess=grey)
    assert seen == ["L"]


def test_deep_and_turned_photos_are_seen_as_people_see_them():
    import numpy as np
    from PIL import Image

    from mhex.inputs.preprocess import Preprocess

    squash = Preprocess(8, 8, (0.0,) * 3, (1.0,) * 3)
    ramp = np.linspace(0, 65535, 64).reshape(8, 8)
    deep = squash(Image.fromarray(ramp.astype(np.uint16)))
    assert 0.4 < float(deep.mean()) < 0.6, "16 bits are scaled, not cut off at 255"
    turned = Image.fromarray((ramp / 257).astype(np.uint8)).convert("RGB")
    turned.getexif()[274] = 6
    assert not squash(turned).equal(squash(Image.fromarray(np.asarray(turned))))


def test_probabilities_of_models_that_give_probabilities():
    x = CNN.inputs(2)
    plain, ended = CNN.model(), torch.nn.Sequential(CNN.fresh(), torch.nn.Softmax(-1)).eval()
    expected = mhex.explain(plain, x, "gradcam").probabilities
    with pytest.warns(MhexWarning, match="ends in a softmax"):
        torch.testing.assert_close(mhex.explain(ended, x, "input-x-gradient").probabilities, expected)


def test_multi_label_models_have_a_sigmoid_per_class():
    family = FAMILIES["hf_bert"]
    model = family.fresh()
    model.config.problem_type = "multi_label_classification"
    e = mhex.explain(model, family.inputs(2), "attention")
    torch.testing.assert_close(e.probabilities, e.logits.sigmoid())


def test_scores_are_never_half_precision(monkeypatch):
    from mhex.capture import Needs
    from mhex.registry import METHODS, register

    monkeypatch.setattr(METHODS, "entries", dict(METHODS.entries))

    @register("halved", title="t", paper="p", modalities=("image",), needs=Needs({"features": "last"}),
              signed=False, class_specific=False, passes="F", use="u", avoid="a")  # fmt: skip
    def halved(trace):
        return trace.as_maps(trace.features).mean(1).half()

    assert mhex.explain(CNN.model(), CNN.inputs(1), "halved").scores.dtype == torch.float32


def test_a_misspelt_site_is_told_at_once():
    from mhex.capture import Needs

    with pytest.raises(ArgumentError, match="Did you mean 'tokens'"):
        Needs(keep={"token": "last"})


def test_lists_of_other_things_name_them():
    with pytest.raises(TypeError, match=r"got a list of Tensor; .*join tensors with torch\.stack"):
        mhex.explain(CNN.model(), [torch.rand(3, 8, 8)], "gradcam")
    with pytest.raises(ValueError, match=r"PIL\.Image\.open"):
        mhex.explain(CNN.model(), "cat.png", "gradcam")


def test_long_texts_are_cut_with_a_warning():
    from mhex.errors import MhexWarning
    from support.models import LONGEST_TEXT

    def tokenizer(texts, return_tensors=None, padding=False, truncation=False, max_length=None):
        ids = [[1, *([5] * len(text.split())), 2] for text in texts]
        if return_tensors is None:
            return {"input_ids": ids}
        kept = [[*row[: max_length - 1], 2] if len(row) > max_length else row for row in ids]
        return {"input_ids": torch.tensor(kept)}

    family = FAMILIES["hf_bert"]
    with pytest.warns(MhexWarning, match=f"were cut to {LONGEST_TEXT}"):
        e = mhex.explain(family.model(), "word " * 50, "attention", tokenizer=tokenizer)
    assert e.scores.shape == (1, LONGEST_TEXT)
    assert e.cut(0) == f"cut after {LONGEST_TEXT} of 52 tokens"


def test_fast_tokenizers_say_what_was_cut_also_beside_whole_texts_and_in_dictionaries():
    from mhex.errors import MhexWarning
    from support.tiny_bert import bert, tokenizer

    texts = ["bad plot", "good film " * 30]
    with pytest.warns(MhexWarning, match="of up to 62 tokens were cut to 40") as told:
        e = mhex.explain(bert(), texts, "attention", tokenizer=tokenizer())
    assert [record.filename for record in told] == [__file__]  # once, at the user's line
    encoded = tokenizer()(texts, return_tensors="pt", padding=True, truncation=True, max_length=40)
    for found in (e, mhex.explain(bert(), encoded, "attention", tokenizer=tokenizer())):
        assert (found.cut(0), found.cut(1)) == ("", "cut after 40 of 62 tokens")


def test_explanations_can_be_compared_and_put_into_sets():
    e = mhex.explain(CNN.model(), CNN.inputs(1), "gradcam")
    assert e == e
    assert len({e, e}) == 1


def test_token_ids_without_a_tokenizer_are_words_unless_the_model_names_them():
    model = FAMILIES["hf_bert"].fresh()
    ids = torch.tensor([[5, 6, 7, 8, 5]])
    model.config.pad_token_id = model.config.bos_token_id = model.config.eos_token_id = None
    assert mhex.explain(model, ids, "attention").scored.tolist() == [[True] * 5]
    model.config.bos_token_id, model.config.eos_token_id = 5, 8
    assert mhex.explain(model, ids, "attention").scored.tolist() == [[False, True, True, False, False]]
    marked = {"input_ids": ids, "special_tokens_mask": torch.tensor([[0, 1, 0, 0, 0]])}
    assert mhex.explain(model, marked, "attention").scored.tolist() == [[True, False, True, True, True]]
