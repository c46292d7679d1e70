"""Running an observed model again: its tail on other tokens, or the whole of it on other images."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mhex
from mhex.capture import Batch, Needs, find_anatomy, observe
from mhex.errors import ArgumentError, CaptureError
from mhex.inputs import prepare
from support.models import FAMILIES, call
from support.state import Snapshot

VITS = ["timm_vit", "timm_map", "hf_vit", "tv_vit", "plain_vit_shared", "encoder_vit"]
NEEDS = Needs(keep={"block_input": "last", "tokens": "last", "attention": "all", "latent": "last"}, graph="block_input")


def watch(name: str, model: nn.Module | None = None, needs: Needs = NEEDS, count: int = 2) -> Any:
    model = FAMILIES[name].model() if model is None else model
    batch = prepare(model, FAMILIES[name].inputs(count)).batch
    return observe(model, find_anatomy(model, batch), batch, needs)


@pytest.mark.parametrize("name", VITS)
def test_rerun_is_a_plain_call(name: str) -> None:
    """On another number of images, without a graph; what was observed stays as it was."""
    family = FAMILIES[name]
    others = family.inputs(5).flip(0)
    with watch(name) as trace:
        kept = trace.blocks[-1].site("tokens").clone()
        records = [block.record for block in trace.blocks]
        outcome = trace.rerun(others)
        assert torch.equal(trace.blocks[-1].site("tokens"), kept)
        assert [block.record for block in trace.blocks] == records
        assert not outcome.logits.requires_grad
        again = trace.replay()
        torch.testing.assert_close(again.logits, trace.logits, rtol=1e-12, atol=1e-12)
    with torch.no_grad():
        plain = call(family.model(), others)
    torch.testing.assert_close(outcome.logits, plain, rtol=1e-12, atol=1e-12)
    assert outcome.latent is not None
    assert len(outcome.latent) == 5


class Boom(Exception):
    """Raised by the user's own code."""


@pytest.mark.parametrize("kind", ["rerun", "replay"])
def test_an_error_inside_leaves_nothing_behind(kind: str) -> None:
    family = FAMILIES["timm_vit"]
    model = family.fresh()
    failing = False

    def explode(module: nn.Module, args: Any) -> None:
        if failing:
            raise Boom

    model.head.register_forward_pre_hook(explode)
    before = Snapshot(model)
    with watch("timm_vit", model) as trace:
        failing = True
        with pytest.raises(Boom):
            trace.rerun(family.inputs(3)) if kind == "rerun" else trace.replay()
        failing = False
        assert all("forward" not in block.__dict__ for block in model.blocks)
        torch.testing.assert_close(trace.replay().logits, trace.logits)
        torch.testing.assert_close(trace.rerun(family.inputs(3)).logits, call(model, family.inputs(3)))
    before.check()


def test_rerun_is_over_with_the_pass() -> None:
    with watch("timm_vit") as trace:
        pass
    for again in (trace.rerun, trace.replay):
        with pytest.raises(CaptureError, match="only while it is observed"):
            again(FAMILIES["timm_vit"].inputs(1))


def test_images_with_arguments_of_their_own_cannot_be_changed() -> None:
    """A flag is the same for all images; a tensor with one row per image cannot be repeated for changed ones."""
    images = torch.zeros(2, 3, 4, 4)
    flagged = Batch("image", (images,), {"fast": True, "level": torch.tensor(2.0)}, size=2)
    changed = flagged.with_images(torch.ones(5, 3, 4, 4))
    assert changed.size == 5
    assert changed.kwargs == flagged.kwargs
    with pytest.raises(ArgumentError, match="also given labels"):
        Batch("image", (images,), {"labels": torch.tensor([1, 2])}, size=2).with_images(images)
    family = FAMILIES["hf_vit"]
    given = {"pixel_values": family.inputs(2), "labels": torch.tensor([1, 2])}
    assert mhex.explain(family.model(), given, "gae").scores.shape == (2, 4, 6)
    with pytest.raises(ArgumentError, match=r"Expected images alone.*labels"):
        mhex.explain(family.model(), given, "vit-cx", max_masks=2)


HEADS = {"timm_vit": "head", "hf_vit": "classifier", "tv_vit": "heads", "plain_vit_shared": "head"}


@pytest.mark.parametrize("name", HEADS)
def test_latent_of_a_replay(name: str) -> None:
    """It is that of the replayed tokens, in their graph, and not the observed one."""
    with watch(name) as trace:
        same = trace.replay()
        torch.testing.assert_close(same.latent, trace.latent, rtol=1e-12, atol=1e-12)
        other = (0.5 * trace.blocks[-1].site("tokens").detach()).requires_grad_()
        outcome = trace.replay(tokens=other)
        assert outcome.latent is not None
        assert float((outcome.latent - trace.latent).detach().abs().max()) > 1e-3
        torch.testing.assert_close(
            FAMILIES[name].model().get_submodule(HEADS[name])(outcome.latent), outcome.logits, rtol=1e-12, atol=1e-12
        )
        (gradient,) = torch.autograd.grad(outcome.latent.sum(), other)
        assert float(gradient.abs().max()) > 0
        assert trace.outcome.latent is not None


def test_no_latent_where_none_was_asked_for() -> None:
    with watch("timm_vit", needs=Needs(keep={"block_input": "last"})) as trace:
        assert trace.outcome.latent is None
        assert trace.replay().latent is None
        assert trace.rerun(FAMILIES["timm_vit"].inputs(1)).latent is None


@pytest.mark.parametrize("name", ["timm_vit", "hf_bert", "tv_vit", "plain_vit_shared"])
def test_graphs_that_start_in_every_block(name: str) -> None:
    """Every block's z is a leaf, so that no gradient passes through an attention above it."""
    each = Needs(keep={"attention": "all"}, graph="attention", start="each")
    first = Needs(keep={"attention": "all"}, graph="attention")
    with watch(name, needs=each) as trace:
        assert [block.z.is_leaf for block in trace.blocks] == [True] * len(trace.blocks)
        cut = trace.gradient(trace.logits[:, 1], *(block.z for block in trace.blocks))
        logits: Tensor = trace.logits.detach()
    with watch(name, needs=first) as trace:
        assert [block.z.is_leaf for block in trace.blocks] == [True] + [False] * (len(trace.blocks) - 1)
        whole = trace.gradient(trace.logits[:, 1], *(block.z for block in trace.blocks))
        assert torch.equal(trace.logits.detach(), logits)
    torch.testing.assert_close(cut[-1], whole[-1], rtol=1e-12, atol=1e-14)
    assert float((cut[0] - whole[0]).abs().max()) > 0.01 * float(whole[0].abs().max())
