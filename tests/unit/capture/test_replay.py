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
from support.snapshot import Snapshot

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
    with pytest.raises(CaptureError, match="only while it is observed"):
        trace.rerun(FAMILIES["timm_vit"].inputs(1))
    with pytest.raises(CaptureError, match="only while it is observed"):
        trace.replay()


def test_arguments_of_their_own_go_with_the_images() -> None:
    """A flag is the same for all images; a tensor with one row per image is repeated, if it is said for which ones."""
    images = torch.zeros(2, 3, 4, 4)
    flagged = Batch("image", (images,), {"fast": True, "level": torch.tensor(2.0)}, size=2)
    changed = flagged.variants(torch.ones(5, 3, 4, 4))
    assert changed.size == 5
    assert changed.kwargs == flagged.kwargs
    with pytest.raises(ArgumentError, match="also given labels"):
        Batch("image", (images,), {"labels": torch.tensor([1, 2])}, size=2).variants(images)
    labelled = Batch("image", (images, torch.tensor([5, 6])), {"labels": torch.tensor([1, 2])}, size=2)
    picked = labelled.variants(torch.ones(3, 3, 4, 4), torch.tensor([1, 0, 1]))
    assert picked.kwargs["labels"].tolist() == [2, 1, 2]
    assert picked.args[1].tolist() == [6, 5, 6]
    with pytest.raises(ArgumentError, match="a sample for each of 3 variants, but got 2"):
        labelled.variants(torch.ones(3, 3, 4, 4), torch.tensor([1, 0]))
    family = FAMILIES["hf_vit"]
    given = {"pixel_values": family.inputs(2), "labels": torch.tensor([1, 2])}
    assert mhex.explain(family.model(), given, "gae").scores.shape == (2, 4, 6)
    alone = mhex.explain(family.model(), family.inputs(2), "vit-cx", max_masks=2).scores
    torch.testing.assert_close(mhex.explain(family.model(), given, "vit-cx", max_masks=2).scores, alone)


TEXTS = ["hf_bert", "hf_roberta", "hf_distilbert", "encoder_text"]
SOME = torch.tensor([2, 0, 2, 1, 0])


@pytest.mark.parametrize("name", TEXTS)
def test_rerun_of_token_ids(name: str) -> None:
    """Masks go with the samples that the variants are of."""
    family = FAMILIES[name]
    inputs = family.inputs(3)
    ids = inputs["input_ids"][SOME].clone()
    ids[:, 1] = torch.arange(3, 8)
    with watch(name, needs=Needs(), count=3) as trace:
        got = trace.rerun(ids, SOME).logits
    with torch.no_grad():
        wanted = call(family.model(), {"input_ids": ids, "attention_mask": inputs["attention_mask"][SOME]})
    torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("given", ["ids", "embeddings"])
@pytest.mark.parametrize("name", TEXTS)
def test_rerun_of_word_embeddings(name: str, given: str) -> None:
    """They stand where the embedding layer's output stood, with a graph if asked for."""
    family = FAMILIES[name]
    model, inputs = family.model(), family.inputs(3)
    words = model.get_input_embeddings()(inputs["input_ids"]).detach()
    if given == "embeddings":
        if name == "encoder_text":
            pytest.skip("this model takes token ids only")
        inputs = {"inputs_embeds": words, "attention_mask": inputs["attention_mask"]}
    batch = prepare(model, inputs).batch
    with observe(model, find_anatomy(model, batch), batch, Needs(keep={"input": "last"})) as trace:
        same = trace.rerun(words[SOME], SOME).logits
        torch.testing.assert_close(same, trace.logits[SOME].detach(), rtol=1e-12, atol=1e-12)
        assert not same.requires_grad
        other = (0.5 * words[SOME]).requires_grad_()
        outcome = trace.rerun(other, SOME, graph=True)
        (gradient,) = torch.autograd.grad(outcome.logits[:, 1].sum(), other)
        assert float(gradient.abs().max()) > 0
        nudged = trace.rerun(other.detach() + 1e-6 * gradient, SOME).logits[:, 1]
        torch.testing.assert_close(
            nudged - outcome.logits[:, 1].detach(), 1e-6 * gradient.square().sum((1, 2)), rtol=1e-2, atol=1e-12
        )
        assert float((outcome.logits.detach() - same).abs().max()) > 1e-3
        assert torch.equal(trace.input, words)


def test_embeddings_must_be_kept_to_be_changed() -> None:
    with watch("hf_bert", needs=Needs()) as trace, pytest.raises(CaptureError, match="'input' is kept"):
        trace.rerun(torch.zeros(2, 8, 32, dtype=torch.float64))


@pytest.mark.parametrize("name", ["timm_vit", "plain_cnn"])
def test_rerun_of_images_with_a_graph(name: str) -> None:
    family = FAMILIES[name]
    x = family.inputs(5).requires_grad_()
    (wanted,) = torch.autograd.grad(call(family.model(), x)[:, 2].sum(), x)
    with watch(name, needs=Needs(keep={"latent": "last"})) as trace:
        outcome = trace.rerun(x, graph=True)
        (got,) = torch.autograd.grad(outcome.logits[:, 2].sum(), x)
        assert outcome.latent is not None
        assert outcome.latent.requires_grad
        assert not trace.rerun(x).logits.requires_grad
    torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-12)


def test_a_model_that_writes_into_its_input_leaves_the_variants() -> None:
    class Writing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(x.mul_(2).mean((2, 3)))

    model, x = Writing(), torch.rand(2, 3, 4, 4)
    batch = prepare(model, x).batch
    with observe(model, find_anatomy(model, batch), batch, Needs()) as trace:
        first, again = trace.rerun(batch.pixels).logits, trace.rerun(batch.pixels).logits
        trace.rerun(x.requires_grad_(), graph=True)
    assert torch.equal(first, again)


@pytest.mark.parametrize("size", [None, 1, 4, 100])
def test_chunks_cover_everything_once(size: int | None) -> None:
    with watch("timm_vit") as trace:
        parts = list(trace.chunks(11, lambda start, stop: stop - start, "words", size))
        assert not list(trace.chunks(0, lambda start, stop: 1, "words", size))
    assert [part[2] for part in parts] == [stop - start for start, stop, _ in parts]
    assert [i for start, stop, _ in parts for i in range(start, stop)] == list(range(11))
    assert max(part[2] for part in parts) <= (size or 256)


def test_chunks_are_halved_where_memory_runs_out() -> None:
    tried = []

    def run(start: int, stop: int) -> int:
        tried.append(stop - start)
        if stop - start > 3:
            raise torch.OutOfMemoryError("out of memory")
        return start

    with watch("timm_vit") as trace:
        parts = [(start, stop) for start, stop, _ in trace.chunks(11, run, "words", 9)]
        assert tried == [9, 4, 2, 2, 2, 2, 2, 1]
        assert [i for part in parts for i in range(*part)] == list(range(11))
        with pytest.raises(torch.OutOfMemoryError):
            list(trace.chunks(2, lambda start, stop: run(0, 9), "words"))


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
