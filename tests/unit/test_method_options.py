"""Options of the methods do what they say."""

import inspect
import warnings

import numpy as np
import pytest
import torch

import mhex
from mhex.capture import Needs, find_anatomy, observe
from mhex.inputs import prepare
from mhex.methods import all_methods
from support.models import FAMILIES

VIT, BERT = FAMILIES["timm_vit"], FAMILIES["hf_bert"]


def attentions(family, inputs):
    """A of every block, (B, H, N, N)."""
    batch = prepare(family.model(), inputs).batch
    needs = Needs(keep={"attention": "all"})
    with observe(family.model(), find_anatomy(family.model(), batch), batch, needs) as trace:
        return [block.attention() for block in trace.blocks]


def test_no_option_is_called_like_an_argument_of_explain():
    taken = set(inspect.signature(mhex.explain).parameters)
    assert {spec.name for spec in all_methods().values() if taken & set(spec.options)} == set()


def test_heads_average_to_the_mean():
    x = VIT.inputs(2)
    heads = [mhex.explain(VIT.model(), x, method="attention", head=h).scores for h in range(4)]
    torch.testing.assert_close(torch.stack(heads).mean(0), mhex.explain(VIT.model(), x, method="attention").scores)
    with pytest.raises(ValueError, match="head from 0 to 3"):
        mhex.explain(VIT.model(), x, method="attention", head=4)


@pytest.mark.parametrize("fusion", ["mean", "max", "min"])
@pytest.mark.parametrize("ratio", [0.0, 0.4])
def test_rollout_fusion_and_discard(fusion, ratio):
    """Against plain loops over one text that is padded in its batch."""
    inputs = BERT.inputs(3)
    got = mhex.explain(BERT.model(), inputs, method="rollout", head_fusion=fusion, discard_ratio=ratio).scores
    length = int(inputs["attention_mask"][0].sum())
    product = torch.eye(length, dtype=torch.float64)
    for a in attentions(BERT, BERT.sample(inputs, 0)):
        fused = {"mean": a[0].mean(0), "max": a[0].amax(0), "min": a[0].amin(0)}[fusion].clone()
        for flat in sorted(range(length**2), key=lambda i, f=fused: f.flatten()[i].item())[: int(ratio * length**2)]:
            fused[flat // length, flat % length] = 0
        matrix = fused + torch.eye(length)
        for i in range(length):
            matrix[i] /= matrix[i].sum()
        product = matrix @ product
    torch.testing.assert_close(got[0, 1 : length - 1], product[0, 1:-1])


def test_start_block_leaves_lower_blocks_out():
    x = VIT.inputs(2)
    a = attentions(VIT, x)
    last = (a[-1].mean(1) + torch.eye(a[-1].shape[-1])) / 2
    got = mhex.explain(VIT.model(), x, method="rollout", start_block=3).scores.flatten(1)
    torch.testing.assert_close(got, last[:, 0, 1:])
    for method in ("rollout", "gae"):
        with pytest.raises(ValueError, match="start_block from 1 to 3"):
            mhex.explain(VIT.model(), x, method=method, start_block=4)


@pytest.mark.parametrize("option", [{"head_fusion": "median"}, {"discard_ratio": 1.0}, {"discard_ratio": -0.1}])
def test_rollout_refuses_nonsense(option):
    with pytest.raises(ValueError, match="Expected"):
        mhex.explain(VIT.model(), VIT.inputs(1), method="rollout", **option)


def test_layer_can_be_chosen_and_is_recorded():
    family = FAMILIES["tv_resnet"]
    x = family.inputs(2)
    default = mhex.explain(family.model(), x, method="gradcam")
    assert default.options["layer"] == family.features
    by_name = mhex.explain(family.model(), x, method="gradcam", layer="layer2")
    by_module = mhex.explain(family.model(), x, method="gradcam", layer=family.model().layer2)
    assert by_name.scores.equal(by_module.scores)
    assert by_name.scores.shape[-1] > default.scores.shape[-1]
    assert by_module.options["layer"] == "layer2"
    with pytest.raises(ValueError, match="Did you mean 'layer4'"):
        mhex.explain(family.model(), x, method="gradcam", layer="layer_4")
    with pytest.raises(TypeError, match="submodule"):
        mhex.explain(family.model(), x, method="gradcam", layer=3)


def test_closed_form_is_of_the_tokens_alone():
    with pytest.raises(ValueError, match="site 'tokens' with closed_form=True, but got 'block_input'"):
        mhex.explain(VIT.model(), VIT.inputs(1), "cdam", closed_form=True, site="block_input")
    assert mhex.explain(VIT.model(), VIT.inputs(1), "cdam", closed_form=True).options["site"] == "tokens"


def test_start_block_is_checked_where_it_does_not_matter():
    with pytest.raises(ValueError, match="start_block from 1 to 3"):
        mhex.explain(VIT.model(), VIT.inputs(1), "gradtoken", aggregation="none", start_block=99)


@pytest.mark.parametrize("value", ["no", 1, None])
def test_yes_or_no(value):
    with pytest.raises(TypeError, match="True or False for the option 'per_head'"):
        mhex.explain(VIT.model(), VIT.inputs(1), "gradtoken", per_head=value)


@pytest.mark.parametrize(("option", "value"), [("start_block", True), ("start_block", [1]), ("start_block", {})])
def test_options_of_another_kind(option, value):
    with pytest.raises(mhex.errors.MhexError, match=f"Expected {option} to be a number, a text or None, but got"):
        mhex.explain(VIT.model(), VIT.inputs(1), "gae", **{option: value})


def test_numbers_of_numpy_are_numbers():
    e = mhex.explain(VIT.model(), VIT.inputs(1), "gae", start_block=np.int64(2))
    assert type(e.options["start_block"]) is int
    assert e.scores.equal(mhex.explain(VIT.model(), VIT.inputs(1), "gae", start_block=2).scores)
    e = mhex.explain(VIT.model(), VIT.inputs(1), "smoothgrad", n=np.uint8(2), sigma=np.float32(0.5))
    assert (e.options["n"], e.options["sigma"]) == (2, 0.5)


@pytest.mark.parametrize("array", [np.full((3, 2), 9, np.uint8), np.zeros((0, 1), object)])
@pytest.mark.parametrize(("method", "option"), [("integrated-gradients", "baseline"), ("occlusion", "fill")])
def test_arrays_of_numpy_are_no_tensors(method, option, array):
    with pytest.raises(mhex.errors.ArgumentError, match=f"Expected {option} .*a tensor"):
        mhex.explain(VIT.model(), VIT.inputs(1), method, **{option: array})


@pytest.mark.parametrize("form", ["meta", "sparse", "complex", "nested", "fp4"])
@pytest.mark.parametrize(("method", "option"), [("integrated-gradients", "baseline"), ("occlusion", "fill")])
def test_tensors_of_odd_kinds_are_refused(method, option, form):
    x = VIT.inputs(1)
    forms = {"meta": x.to("meta"), "sparse": x.to_sparse(), "complex": x.to(torch.complex64)}
    forms |= {"nested": torch.nested.nested_tensor(list(x)), "fp4": torch.empty(1, dtype=torch.float4_e2m1fn_x2)}
    with pytest.raises(mhex.errors.ArgumentError, match=rf"Expected a {option} that fits .*, of real numbers"):
        mhex.explain(VIT.model(), x, method, **{option: forms[form]})


def test_several_methods_are_no_method():
    with pytest.raises(TypeError, match="name of one method, but got list"):
        mhex.explain(VIT.model(), VIT.inputs(1), ["cdam", "gae"])


def test_a_gap_that_matters_is_told():
    with pytest.warns(mhex.errors.MhexWarning, match="do not add up"):
        mhex.explain(VIT.model(), VIT.inputs(2), "cdam-integrated", target=1, steps=2, site="block_input")
    with warnings.catch_warnings(action="error", category=mhex.errors.MhexWarning):
        mhex.explain(VIT.model(), VIT.inputs(2), "cdam-integrated", target=1)


def test_integrated_cdam_needs_no_gradient_at_its_beginning():
    """At zero tokens a norm after the attention has a gradient that float16 cannot hold: it counts for nothing."""
    model = BERT.fresh(torch.float32)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            parameter.data.zero_()
    e = mhex.explain(model.half(), BERT.inputs(2), "cdam-integrated", target=1)
    assert bool(torch.isfinite(e.scores).all())


def test_unknown_readouts_are_measured_only_where_they_are_asked_for():
    plain = FAMILIES["plain_vit"]
    assert mhex.explain(plain.model(), plain.inputs(1), "cdam").cost["forwards"] == 1
    assert mhex.explain(plain.model(), plain.inputs(1), "gae").cost["forwards"] == 2
