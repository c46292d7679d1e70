"""Models that are laid out or answer in unusual ways: explained rightly, or refused with a reason."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mhex
from mhex.capture import Anatomy, Batch, Needs, observe
from mhex.capture import Block as CaptureBlock
from mhex.errors import CaptureError, UnsupportedModelError
from support.cases import assert_same
from support.models import FAMILIES, enliven

WIDTH, CLASSES = 16, 5


class Block(nn.Module):
    """A pre-norm block; `how` says what is unusual about it."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Linear(WIDTH, WIDTH)
        if how != "functional norm":
            self.norm = nn.LayerNorm(WIDTH)

    def normed(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, (WIDTH,)) if self.how == "functional norm" else self.norm(x)

    def attend(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, WIDTH // 2)).permute(2, 0, 3, 1, 4)
        return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "writes into its input":  # and has no norm, so that nothing it overwrites is needed again
            x += self.attend(x)
            return x
        x = x + self.attend(self.normed(x))
        return x + self.mlp(self.normed(x)).tanh()


class ViT(nn.Module):
    """Nine patches and a class token."""

    def __init__(self, how: str = "") -> None:
        super().__init__()
        self.how = how
        self.patches = nn.Conv2d(3, WIDTH, 8, stride=8)
        self.class_token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.shift = nn.Parameter(torch.zeros(WIDTH))
        self.blocks = nn.ModuleList([Block(how) for _ in range(3)])
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, images: Tensor) -> object:
        x = torch.cat([self.class_token.expand(len(images), -1, -1), self.patches(images).flatten(2).mT], 1)
        for block in self.blocks:
            x = block(x)
            if self.how == "writes between blocks":
                x += self.shift
        read = x[torch.arange(len(images)), 0] if self.how == "indexed" else x[:, 0]
        scores = self.head(read)
        if self.how == "dictionary":
            return {"logits": scores}
        return 2 * scores if self.how == "scaled" else scores


def vit(how: str = "") -> nn.Module:
    torch.manual_seed(0)
    return enliven(ViT(how)).double().eval()


def images(count: int = 2) -> Tensor:
    return torch.randn(count, 3, 24, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(4))


def by_hand(model: nn.Module, x: Tensor, target: int) -> Tensor:
    """CDAM of a model with one norm per block, at the norm's first use in the last block."""
    kept: list[Tensor] = []
    handle = model.blocks[-1].norm.register_forward_hook(lambda module, args, output: kept.append(output))
    y = model(x)[:, target].sum()
    handle.remove()
    (gradient,) = torch.autograd.grad(y, kept[0])
    return (kept[0] * gradient).sum(-1)[:, 1:].detach().reshape(-1, 3, 3)


@pytest.mark.parametrize("how", ["", "indexed"])
def test_a_norm_used_twice_and_a_head_that_counts_its_inputs(how: str) -> None:
    model, x = vit(how), images()
    wanted = by_hand(model, x, 1)
    assert_same(mhex.explain(model, x, "cdam", 1).scores, wanted, "cdam", 1e-10)
    both = mhex.explain(model, x, "cdam-smooth", [1, 2], n=3, sigma=0.0)
    assert_same(both.scores[:, 0], wanted, "cdam-smooth", 1e-10)
    integrated = mhex.explain(model, x, "cdam-integrated", [1, 2])
    assert float(integrated.diagnostics["completeness_gap"].abs().max()) < 1e-10


def watched(model: nn.Module) -> tuple[Anatomy, Batch, Needs]:
    """All that is needed to observe the model and to replay its last block, whatever a probe thinks of it."""
    blocks = tuple(CaptureBlock(block) for block in model.blocks)
    needs = Needs(keep={"block_input": "last", "tokens": "last"})
    return Anatomy("awkward", "image", blocks, prefix_tokens=1, patch=(8, 8)), Batch("image", (images(),), {}, 2), needs


def test_copies_that_a_head_does_not_answer_for() -> None:
    model = vit("indexed")
    anatomy, batch, needs = watched(model)
    with observe(model, anatomy, batch, needs) as trace:
        stream = trace.blocks[-1].site("block_input")
        assert trace.replay(block_input=stream).logits.shape == (2, CLASSES)
        with pytest.raises(CaptureError, match=r"scores of 4 samples .* the head gave 2"):
            trace.replay(block_input=stream.repeat(2, 1, 1))


def test_writing_between_blocks() -> None:
    """The tokens kept of the last block stay as they were, however often it is replayed; a probe refuses the model."""
    model = vit("writes between blocks")
    anatomy, batch, needs = watched(model)
    with observe(model, anatomy, batch, needs) as trace:
        before = trace.blocks[-1].site("block_input").clone()
        for _ in range(3):
            assert_same(trace.replay().logits, trace.logits, "replay", 1e-12)
        assert torch.equal(trace.blocks[-1].site("block_input"), before)
    with pytest.raises(UnsupportedModelError, match="no block of it calls"):
        mhex.explain(model, images(), "gae")


def test_writing_into_the_input_of_a_block() -> None:
    model, x = vit("writes into its input"), images()
    wanted = mhex.explain(model, x, "cdam", 1).scores
    assert float(wanted.abs().max()) > 0
    assert_same(mhex.explain(model, x, "cdam-smooth", 1, n=3, sigma=0.0).scores, wanted, "cdam-smooth", 1e-10)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
@pytest.mark.parametrize("count", [1, 2])
def test_decoders_that_read_the_last_token(kind: str, count: int) -> None:
    import transformers

    sizes = {"vocab_size": 40, "num_labels": CLASSES, "pad_token_id": 0}
    if kind == "gpt2":
        config = transformers.GPT2Config(n_embd=16, n_layer=3, n_head=2, n_positions=16, **sizes)
        model = transformers.GPT2ForSequenceClassification(config)
    else:
        config = transformers.LlamaConfig(
            hidden_size=16,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            intermediate_size=24,
            **sizes,
        )
        model = transformers.LlamaForSequenceClassification(config)
    model = enliven(model).double().eval()
    ids = torch.randint(3, 40, (count, 6), generator=torch.Generator().manual_seed(1))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    wanted = mhex.explain(model, inputs, "cdam", [0, 3]).scores
    got = mhex.explain(model, inputs, "cdam-smooth", [0, 3], n=4, sigma=0.0).scores
    assert_same(got, wanted, "cdam-smooth", 1e-9)


def test_labels_among_the_inputs() -> None:
    import transformers

    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=3, num_attention_heads=2, intermediate_size=24, image_size=24, patch_size=8
    )
    model = enliven(transformers.ViTForImageClassification(config)).double().eval()
    plain, labelled = {"pixel_values": images()}, {"pixel_values": images(), "labels": torch.tensor([0, 1])}
    wanted = mhex.explain(model, plain, "cdam-smooth", 0, n=3).scores
    assert_same(mhex.explain(model, labelled, "cdam-smooth", 0, n=3).scores, wanted, "cdam-smooth", 1e-10)


@pytest.mark.parametrize("method", ["cdam", "cdam-smooth", "cdam-integrated", "vit-cx"])
def test_a_norm_out_of_sight_is_refused(method: str) -> None:
    with pytest.raises(UnsupportedModelError, match=r"normalised tokens .* does not show.*gae"):
        mhex.explain(vit("functional norm"), images(), method)


def test_methods_that_need_no_norm_serve_all_the_same() -> None:
    assert mhex.explain(vit("functional norm"), images(), "gae").scores.shape == (2, 3, 3)


def test_blocks_side_by_side() -> None:
    from timm.models import vision_transformer as timm_vit

    sizes = {"img_size": 24, "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2, "num_classes": CLASSES}
    model = enliven(timm_vit.VisionTransformer(**sizes, block_fn=timm_vit.ParallelScalingBlock)).double().eval()
    kept: list[Tensor] = []
    handle = model.blocks[-1].in_norm.register_forward_hook(lambda module, args, output: kept.append(output))
    y = model(images())[:, 1].sum()
    handle.remove()
    (gradient,) = torch.autograd.grad(y, kept[0])
    wanted = (kept[0] * gradient).sum(-1)[:, 1:].detach().reshape(-1, 3, 3)
    assert_same(mhex.explain(model, images(), "cdam", 1).scores, wanted, "cdam", 1e-10)
    several = timm_vit.VisionTransformer(**sizes, block_fn=timm_vit.ParallelThingsBlock).eval()
    for method in ("gae", "cdam", "gradtoken"):
        with pytest.raises(UnsupportedModelError, match=r"several times side by side.*input-x-gradient"):
            mhex.explain(several, images().float(), method)


def test_a_norm_before_the_output_projection() -> None:
    """Value and output projection are then not what the attention branch computes."""
    from timm.models import vision_transformer as timm_vit

    model = timm_vit.VisionTransformer(
        img_size=24, patch_size=8, embed_dim=16, depth=2, num_heads=2, num_classes=CLASSES, scale_attn_norm=True
    ).eval()
    with pytest.raises(UnsupportedModelError, match="value projection"):
        mhex.explain(model, images().float(), "tokentm")
    assert mhex.explain(model, images().float(), "tokentm", weights="none").scores.shape == (2, 3, 3)


@pytest.mark.parametrize(("how", "width"), [("", WIDTH), ("dictionary", WIDTH), ("scaled", None)])
def test_latent_of_an_unknown_classifier(how: str, width: int | None) -> None:
    if width is None:
        with pytest.raises(UnsupportedModelError, match="wrap the model"):
            mhex.Concept.from_examples(vit(how), images())
    else:
        assert mhex.Concept.from_examples(vit(how), images()).latent.shape == (width,)


def test_bare_backbones_of_other_families() -> None:
    import transformers

    config = transformers.ElectraConfig(
        vocab_size=40,
        embedding_size=16,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
    )
    model = enliven(transformers.ElectraModel(config)).double().eval()
    ids = torch.randint(3, 40, (2, 7), generator=torch.Generator().manual_seed(1))
    concept = mhex.Concept.from_examples(model, {"input_ids": ids})
    for method in ("cdam", "gae"):  # one that asks for the read-out, one that does not
        e = mhex.explain(model, {"input_ids": ids}, method, concept)
        assert float(e.scores.abs().max()) > 0
    assert mhex.explain(model, {"input_ids": ids}, "cdam", concept).cost["forwards"] == 1


@pytest.mark.parametrize("known", [False, True], ids=["unknown", "timm"])
def test_functions_of_single_samples(known: bool) -> None:
    """A function that knows its samples: each copy and each variant is given to it in the sample's place."""
    family = FAMILIES["timm_vit"]  # of a known family, several variants are replayed in one pass
    model, x = (family.model(), family.inputs(3)) if known else (vit(), images(3))
    weights = torch.randn(3, 7 if known else CLASSES, dtype=torch.float64)
    own = {"cdam-smooth": {"n": 3}, "cdam-integrated": {"steps": 3}, "vit-cx": {"max_masks": 3, "batch_size": 4}}
    for method, options in own.items():
        together = mhex.explain(model, x, method, lambda logits: (logits * weights).sum(1), **options).scores
        for n in range(3):
            alone = mhex.explain(model, x[n : n + 1], method, lambda y, n=n: (y * weights[n]).sum(1), **options).scores
            assert_same(together[n : n + 1], alone, method, 1e-9)


def test_negative_scores_keep_their_map() -> None:
    """An output shifted down by a constant has the map of ViT-CX shifted with it, and not cut off."""
    model, x = vit(), images()
    options = {"max_masks": 4, "noise": 0.0, "task": "regression"}
    high = mhex.explain(model, x, "vit-cx", lambda y: y[:, 1] + 100, **options)
    low = mhex.explain(model, x, "vit-cx", lambda y: y[:, 1] - 100, **options)
    assert high.signed and low.signed  # noqa: PT018
    assert float(low.scores.max()) < 0 < float(high.scores.min())
    assert not mhex.explain(model, x, "vit-cx", 1, max_masks=4).signed


def test_masked_pairs_score_nothing_with_agcam() -> None:
    """A patch that nobody may attend to, itself excepted, cannot matter for the class token."""

    class Hidden(Block):
        def attend(self, x: Tensor) -> Tensor:
            q, k, v = self.qkv(x).unflatten(-1, (3, 2, WIDTH // 2)).permute(2, 0, 3, 1, 4)
            mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool)
            mask[:, 5] = False
            mask[5, 5] = True
            z = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            return self.proj(z.transpose(1, 2).flatten(2))

    model = vit()
    model.blocks = nn.ModuleList([Hidden("") for _ in range(3)])
    model = enliven(model).double()
    for method in ("agcam", "gae", "cdam"):
        scores = mhex.explain(model, images(), method, [0, 1, 2]).scores.flatten(2)
        assert float(scores[..., 4].abs().max()) == 0
        assert float(scores.abs().max()) > 0
