"""Inputs at the edge of what is allowed: constant images, one word, other sizes, other numbers of prefix tokens."""

from __future__ import annotations

import pytest
import torch

from support.cases import METHODS, PERTURBING, assert_same, cases, explain, native_grid, serving
from support.models import CLASSES, FAMILIES, Family, PlainViT, call, enliven

NO_PREFIX, ONE, TWO, FIVE = "timm_avg", "timm_vit", "timm_deit_distilled", "timm_registers"


@cases(cover=True)
def test_constant_image_or_one_word(method: str, family: Family) -> None:
    if family.size is not None:
        # Black too: every product with the input is zero, and nothing may be divided by it.
        levels = torch.tensor([0.5, 0.0], dtype=torch.float64)
        inputs = levels[:, None, None, None].expand(2, 3, *family.size)
    else:
        inputs = family.sample(family.inputs(2), 1)  # the text of one word
    e = explain(family.model(), inputs, method)
    assert bool(torch.isfinite(e.scores).all())
    assert bool(torch.isfinite(e.normalized()).all())
    if family.size is None:
        assert e.scores.shape == (1, 3)
        assert e.scores[0, [0, 2]].tolist() == [0, 0]


@cases(where=lambda method, family: family.size is None)
def test_text_without_words(method: str, family: Family) -> None:
    """Only the two special tokens: there is nothing to score, and nothing to divide by."""
    cls, sep, _ = family.special_ids
    ids = torch.tensor([[cls, sep]])
    e = explain(family.model(), {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, method)
    assert e.scores.tolist() == [[0, 0]]
    assert bool(torch.isfinite(e.special).all())


@cases(where=lambda method, family: family.other_size is not None)
def test_another_image_size(method: str, family: Family) -> None:
    """Taller than wide instead of wider than tall, and another number of patches."""
    size, grid = family.other_size
    inputs = family.inputs(2, size=size)
    e = explain(family.model(), inputs, method)
    heads = "heads" in METHODS[method].needs.keep and family.head_grid is not None
    assert e.scores.shape[1:] == (grid if heads else native_grid(method, size, grid, grid if family.blocks else None))
    assert e.map().shape == (2, *size)
    assert_same(e.logits, call(family.model(), inputs).detach(), method, 1e-12)


@pytest.mark.parametrize("method", [m for m in METHODS if METHODS[m].needs.blocks and m not in PERTURBING])
@pytest.mark.parametrize(("name", "prefix"), [(NO_PREFIX, 0), (ONE, 1), (TWO, 2), (FIVE, 5)], ids=["0", "1", "2", "5"])
def test_all_prefix_tokens_are_dropped(method: str, name: str, prefix: int) -> None:
    family = FAMILIES[name]
    assert family.prefix == prefix
    assert int(family.model().num_prefix_tokens) == prefix
    scores = explain(family.model(), family.inputs(1), method).scores
    assert scores.numel() == family.grid[0] * family.grid[1] == family.tokens - prefix


@pytest.mark.parametrize("method", ["attention", "rollout", "gae"])
def test_scores_follow_the_patches(method: str) -> None:
    """Moving the patches of an image about moves the scores with them, when positions have no embedding.

    A transposed or shifted grid passes every test of shapes; this one sees it.
    """
    for name in ("timm_vit", "timm_deit_distilled", "hf_vit", "plain_vit"):
        family = FAMILIES[name]
        model = family.fresh()
        for parameter_name, parameter in model.named_parameters():
            if "pos" in parameter_name:
                parameter.data.zero_()
        images = family.inputs(1)
        cells = images.unfold(2, 8, 8).unfold(3, 8, 8)  # (1, 3, 4, 6, 8, 8)
        turned = cells.flip(2).roll(2, 3).permute(0, 1, 2, 4, 3, 5).reshape(images.shape)
        scores = explain(model, images, method, target=0).scores
        assert_same(explain(model, turned, method, target=0).scores, scores.flip(1).roll(2, 2), method)


def test_interpolated_positions_of_hugging_face_vit() -> None:
    """A model of fixed size that is told to interpolate takes any whole number of patches."""
    from transformers import ViTConfig, ViTForImageClassification

    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    model = enliven(ViTForImageClassification(ViTConfig(**sizes, image_size=32, patch_size=8))).eval()
    inputs = {"pixel_values": torch.randn(2, 3, 40, 24), "interpolate_pos_encoding": True}
    e = explain(model, inputs, "gae")
    assert e.scores.shape == (2, 5, 3)
    assert torch.allclose(e.logits, model(**inputs).logits, atol=1e-5)


def test_padded_patches_of_timm() -> None:
    """timm's `dynamic_img_pad` pads images up to whole patches; the grid counts the padded ones."""
    from timm.models.vision_transformer import VisionTransformer

    model = enliven(
        VisionTransformer(
            img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=4, num_classes=CLASSES,
            dynamic_img_size=True, dynamic_img_pad=True,
        )
    ).eval()  # fmt: skip
    e = explain(model, torch.randn(2, 3, 30, 41), "gae")
    assert e.scores.shape == (2, 4, 6)


def test_unbatched_single_block() -> None:
    """One block only: the last block is the first."""
    model = enliven(PlainViT(blocks=1)).double().eval()
    images = FAMILIES["plain_vit"].inputs(2)
    for method in serving("plain_vit"):
        if METHODS[method].needs.blocks:
            assert bool(torch.isfinite(explain(model, images, method).scores).all())
