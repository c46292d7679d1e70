"""The tensors shown are the ones the architecture is made of: they add up to what the model computes."""

import pytest
import torch

from mhex.capture import Needs, find_anatomy, observe
from mhex.inputs import prepare
from support.models import FAMILIES

SITES = ("block_input", "tokens", "attention", "attention_output", "mlp_input", "mlp_output", "block_output")
PRE_NORM = ["timm_vit", "timm_deit_distilled", "timm_registers", "timm_map", "hf_vit", "hf_deit", "hf_dinov2",
            "hf_dinov2_registers", "tv_vit"]  # fmt: skip
POST_NORM = ["hf_bert", "hf_roberta", "hf_distilbert"]


def watch(name, graph=None):
    model = FAMILIES[name].model()
    batch = prepare(model, FAMILIES[name].inputs()).batch
    anatomy = find_anatomy(model, batch)
    needs = Needs(keep={**dict.fromkeys(SITES, "all"), "latent": "last"}, graph=graph)
    return observe(model, anatomy, batch, needs)


def merged(heads):
    """(B, H, N, d) to (B, N, H d)."""
    return heads.transpose(1, 2).flatten(2)


def linear(x, projection):
    weight, bias = projection()
    return x @ weight.mT + (0 if bias is None else bias)


@pytest.mark.parametrize("name", PRE_NORM + POST_NORM)
def test_projections_of_each_block(name):
    with watch(name, graph="attention") as trace:
        for block in trace.blocks:
            torch.testing.assert_close(
                merged(block.attention_record.value), linear(block.site("tokens"), block.block.value_projection)
            )
            torch.testing.assert_close(
                block.site("attention_output"), linear(merged(block.z), block.block.output_projection)
            )
            torch.testing.assert_close(merged(block.attention() @ block.attention_record.value), merged(block.z))


@pytest.mark.parametrize("name", PRE_NORM)
def test_pre_norm_residuals_add_up(name):
    with watch(name) as trace:
        for block in trace.blocks:
            scales = [1 if s is None else s for s in (block.block.attention_scale, block.block.mlp_scale)]
            stream = block.site("block_input") + scales[0] * block.site("attention_output")
            torch.testing.assert_close(stream + scales[1] * block.site("mlp_output"), block.site("block_output"))
            torch.testing.assert_close(block.block.norm1(block.site("block_input")), block.site("tokens"))


@pytest.mark.parametrize("name", POST_NORM)
def test_post_norm_tokens_are_the_stream(name):
    with watch(name) as trace:
        for lower, block in zip(trace.blocks, trace.blocks[1:], strict=False):
            assert block.site("tokens").equal(block.site("block_input"))
            assert block.site("block_input").equal(lower.site("block_output"))
            added = block.site("block_input") + block.site("attention_output")
            normed = torch.nn.functional.layer_norm(added, added.shape[-1:], eps=1e-12)
            # The first norm's weight and bias stand between: up to them, it is what enters the MLP.
            ours, theirs = normed[0, 0], block.site("mlp_input")[0, 0]
            norm = next(
                m for n, m in block.block.module.named_modules() if n in ("attention.output.LayerNorm", "sa_layer_norm")
            )
            torch.testing.assert_close(ours * norm.weight + norm.bias, theirs)


@pytest.mark.parametrize(("name", "head"), [("timm_vit", "head"), ("hf_vit", "classifier"), ("tv_vit", "heads")])
def test_latent_is_what_the_classifier_reads(name, head):
    with watch(name) as trace:
        latent, logits = trace.latent, trace.logits
    torch.testing.assert_close(FAMILIES[name].model().get_submodule(head)(latent), logits)


@pytest.mark.parametrize("name", POST_NORM)
def test_latent_of_text_is_the_class_token(name):
    with watch(name) as trace:
        assert trace.latent.equal(trace.blocks[-1].site("block_output")[:, 0])


def test_readouts_are_distributions():
    for name in PRE_NORM + POST_NORM:
        with watch(name) as trace:
            assert (trace.readout >= 0).all()
            torch.testing.assert_close(trace.readout.sum(1), torch.ones(5, dtype=torch.float64))


def test_heads_and_blocks_are_seen_in_one_pass():
    family = FAMILIES["timm_vit_heads"]
    model, batch = family.model(), prepare(family.model(), family.inputs()).batch
    needs = Needs(keep={"heads": "all", "tokens": "all"})
    with observe(model, find_anatomy(model, batch), batch, needs) as trace:
        assert list(trace.heads.call.blocks) == list(model.mhex.settings.junctions)
        assert all(block.shows("tokens") and not block.shows("attention") for block in trace.blocks)
