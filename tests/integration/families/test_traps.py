"""Plausible models on which a careless explainer is silently wrong: right here, or refused in words."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mhex
from mhex.errors import CaptureError, MhexError
from support.models import CLASSES, FAMILIES, PlainBlock, PlainViT, call, enliven

ATTENTION = ["attention", "rollout", "gae", "attention-gradcam", "attention-flow"]
TEXT = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
        "num_labels": CLASSES, "pad_token_id": 0, "max_position_embeddings": 40}  # fmt: skip


def images(count: int = 2) -> Tensor:
    return FAMILIES["plain_vit"].inputs(count)


def hf(name: str, config: str, **options: Any) -> nn.Module:
    transformers = pytest.importorskip("transformers", reason="the models come from transformers")
    model = getattr(transformers, name)(getattr(transformers, config)(**options))
    return enliven(model).double().eval()


def padded(left: bool = False) -> dict[str, Tensor]:
    ids = torch.tensor([[5, 9, 11, 7, 13, 6], [5, 8, 12, 6, 0, 0]])
    mask = torch.tensor([[1] * 6, [1, 1, 1, 1, 0, 0]])
    if left:
        ids[1], mask[1] = ids[1].roll(2), mask[1].roll(2)
    return {"input_ids": ids, "attention_mask": mask}


def right_or_refused(model: nn.Module, x: Any, method: str, **options: Any) -> mhex.Explanation | None:
    """The explanation, whose logits must be the model's own; None if it was refused."""
    try:
        e = mhex.explain(model, x, method, **options)
    except MhexError:
        return None
    with torch.no_grad():
        torch.testing.assert_close(e.logits, call(model, x))
    return e


@pytest.mark.parametrize("method", [*ATTENTION, "input-x-gradient"])
def test_models_with_their_own_attention_keep_their_masks(method: str) -> None:
    """MPNet knows no other attention than its own; with another mask padding would be attended."""
    model = hf("MPNetForSequenceClassification", "MPNetConfig", **TEXT)
    e = right_or_refused(model, padded(), method, target=0)
    assert (e is None) == (method != "input-x-gradient")
    if e is not None:
        alone = mhex.explain(model, {k: v[1:, :4] for k, v in padded().items()}, method, target=0)
        torch.testing.assert_close(e.scores[1:, :4], alone.scores)


@pytest.mark.parametrize("method", ATTENTION)
def test_queries_that_may_attend_to_nothing(method: str) -> None:
    """Left-padded decoder: rows of padding are masked everywhere, and must not become NaN."""
    model = hf("LlamaForSequenceClassification", "LlamaConfig", **TEXT, num_key_value_heads=2)
    e = right_or_refused(model, padded(left=True), method, target=0)
    assert e is not None, "a decoder that attends through torch's kernel is explained"
    assert torch.isfinite(e.scores).all()
    assert e.scores[1, :2].eq(0).all(), "padding scores 0"
    assert e.scores[1].ne(0).any()


@pytest.mark.parametrize("method", ATTENTION)
def test_unknown_text_models_with_a_written_out_softmax(method: str) -> None:
    """ELECTRA can attend through torch's kernel or write its softmax out: the same explanation, and left as it was."""
    model = hf("ElectraForSequenceClassification", "ElectraConfig", **TEXT, embedding_size=32)
    fused = mhex.explain(model, padded(), method, target=0).scores
    model.set_attn_implementation("eager")
    torch.testing.assert_close(mhex.explain(model, padded(), method, target=0).scores, fused)
    assert model.config._attn_implementation == "eager"


def test_embeddings_of_reshaped_ids_are_found() -> None:
    """GPT-2 reshapes the ids before it looks them up."""
    options = {"vocab_size": 60, "n_embd": 32, "n_layer": 2, "n_head": 4, "num_labels": CLASSES, "pad_token_id": 0}
    model = hf("GPT2ForSequenceClassification", "GPT2Config", **options)
    ids = padded()["input_ids"][:1]
    e = mhex.explain(model, {"input_ids": ids}, "input-x-gradient", 0)
    words = model.get_input_embeddings()(ids).detach().requires_grad_()
    score = model(inputs_embeds=words).logits[:, 0].sum()
    (gradient,) = torch.autograd.grad(score, words)
    expected = (words * gradient).sum(-1).detach()
    torch.testing.assert_close(e.scores[0, 1:-1], expected[0, 1:-1])


class HeadlessBlock(PlainBlock):
    """One head, without an axis for it: (B, N, d)."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm_a(x)).chunk(3, -1)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v))
        return x + self.feed(self.norm_b(x))


class ClassTokenLast(PlainViT):
    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).mT
        x = torch.cat([x, self.prefix_token.expand(len(x), -1, -1)], 1) + self.position_embed
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, -1])


class ResizingViT(PlainViT):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(F.interpolate(x, (32, 48)))


class Views(nn.Module):
    """The mean over the image and its mirror image."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) + self.inner(x.flip(-1))


class Ensemble(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.members = nn.ModuleList([PlainViT(2), PlainViT(2)])

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([member(x) for member in self.members]).mean(0)


def headless() -> nn.Module:
    model = PlainViT(2)
    model.blocks = nn.ModuleList([HeadlessBlock() for _ in range(2)])
    return model


@pytest.mark.parametrize("method", [*ATTENTION, "gradcam"])
@pytest.mark.parametrize("build", [headless, ClassTokenLast, Ensemble, lambda: Views(PlainViT(2))])
def test_unknown_transformers_that_are_laid_out_otherwise_are_refused(method: str, build: Any) -> None:
    with pytest.raises(MhexError):
        mhex.explain(enliven(build()).double().eval(), images(), method)


@pytest.mark.parametrize("method", ATTENTION)
def test_a_model_that_resizes_its_input_is_refused(method: str) -> None:
    with pytest.raises(MhexError):
        mhex.explain(enliven(ResizingViT()).double().eval(), torch.randn(2, 3, 24, 40, dtype=torch.float64), method)


def test_views_of_a_cnn_have_no_map_of_the_image() -> None:
    model = Views(FAMILIES["plain_cnn"].fresh()).eval()
    x = FAMILIES["plain_cnn"].inputs(2)
    with pytest.raises(MhexError, match="layer="):
        mhex.explain(model, x, "gradcam")
    assert mhex.explain(model, x, "input-x-gradient").scores.shape == x.shape[::2] + x.shape[3:]


class InPlace(nn.Module):
    """Normalises its input in place, as some preprocessing modules do."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x.sub_(0.5))


@pytest.mark.parametrize("method", ["gradcam", "input-x-gradient"])
def test_the_input_is_not_written_into(method: str) -> None:
    model, x = InPlace(FAMILIES["plain_cnn"].fresh()).eval(), FAMILIES["plain_cnn"].inputs(3)
    before = x.clone()
    e = mhex.explain(model, x, method, target=1)
    assert x.equal(before)
    with torch.no_grad():
        torch.testing.assert_close(e.logits, model(before.clone()))


class Cut(nn.Module):
    """No gradient passes through it."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            return self.inner(x)


def test_a_cut_gradient_is_told_not_drawn_as_zero() -> None:
    with pytest.raises(CaptureError, match="cuts it"):
        mhex.explain(Cut(FAMILIES["plain_cnn"].fresh()).eval(), FAMILIES["plain_cnn"].inputs(2), "input-x-gradient")


def test_a_subclass_with_another_head_is_measured() -> None:
    """The class token's row must not be taken where the head reads the mean of the patches."""
    timm = pytest.importorskip("timm", reason="the model comes from timm")

    class MeanHead(timm.models.vision_transformer.VisionTransformer):
        def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
            return self.head(x[:, 1:].mean(1))

    shape = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 4, "num_classes": CLASSES}
    model = enliven(MeanHead(**shape)).double().eval()
    x = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    stock = timm.models.vision_transformer.VisionTransformer(**shape).double().eval()
    stock.load_state_dict(model.state_dict())
    ours, class_row = (mhex.explain(m, x, "attention").scores for m in (model, stock))
    assert float((ours - class_row).abs().max()) > 0.01 * float(class_row.max())


@pytest.mark.parametrize(
    ("name", "config", "options"),
    [
        ("ConvNextForImageClassification", "ConvNextConfig", {"hidden_sizes": [8, 16, 24, 32], "depths": [1] * 4}),
        ("ResNetForImageClassification", "ResNetConfig", {"hidden_sizes": [8, 16, 24, 32], "depths": [1] * 4,
                                                          "embedding_size": 8, "layer_type": "basic"}),
    ],
)  # fmt: skip
def test_other_image_models_of_hugging_face(name: str, config: str, options: dict[str, Any]) -> None:
    model = hf(name, config, num_labels=CLASSES, **options)
    x = torch.randn(2, 3, 64, 96, dtype=torch.float64)
    assert mhex.explain(model, x, "gradcam", 0).scores.shape == (2, 2, 3)
    leaf = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(model(leaf).logits[:, 0].sum(), leaf)
    torch.testing.assert_close(mhex.explain(model, x, "input-x-gradient", 0).scores, (x * gradient).sum(1))


def test_offloaded_weights_are_refused() -> None:
    model = FAMILIES["plain_cnn"].fresh()
    model.third = model.third.to("meta")
    with pytest.raises(CaptureError, match="meta"):
        mhex.explain(model, FAMILIES["plain_cnn"].inputs(1), "gradcam")
