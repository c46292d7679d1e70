"""Models of no known family: what can be read off a forward pass is explained, the rest is refused in words.

A wrong answer that looks like one is the danger here, so every case says what the right answer would be.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mhex.errors import MhexError
from support.cases import METHODS, assert_same, explain
from support.models import CLASSES, FAMILIES, EncoderViT, PlainBlock, PlainViT, enliven

ATTENTION = [name for name, method in METHODS.items() if method.needs.blocks]
# Unknown models show neither their MLPs nor their projections: what is left of a method that reads them.
LEFT: dict[str, dict[str, Any]] = {"tokentm": {"ffn": False, "weights": "none"}}
MAPS = [name for name, method in METHODS.items() if "features" in method.needs.keep]


def images(count: int = 2) -> Tensor:
    return FAMILIES["plain_vit"].inputs(count)


class HeadNormBlock(PlainBlock):
    """Queries and keys are normalised by modules, whose outputs (B, H, N, d) have four axes but are no maps."""

    def __init__(self) -> None:
        super().__init__()
        self.query_norm, self.key_norm = nn.LayerNorm(8), nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm_a(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        z = F.scaled_dot_product_attention(self.query_norm(q), self.key_norm(k), v)
        x = x + self.out(z.transpose(1, 2).flatten(2))
        return x + self.feed(self.norm_b(x))


class WrittenOutBlock(PlainBlock):
    """The softmax is written out and passes through a dropout module: (B, H, N, N) is no map either."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm_a(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        z = self.drop((q @ k.mT / 8**0.5).softmax(-1)) @ v
        x = x + self.out(z.transpose(1, 2).flatten(2))
        return x + self.feed(self.norm_b(x))


def made_of(block: Callable[[], nn.Module]) -> nn.Module:
    model = PlainViT(blocks=2)
    model.blocks = nn.ModuleList([block() for _ in range(2)])
    return enliven(model).double().eval()


@pytest.mark.parametrize("block", [HeadNormBlock, WrittenOutBlock])
@pytest.mark.parametrize("method", MAPS)
def test_tensors_of_heads_are_not_taken_for_maps(method: str, block: Callable[[], nn.Module]) -> None:
    try:
        e = explain(made_of(block), images(), method, target=0)
    except MhexError:
        return  # refusing is right as well
    assert e.options["layer"] == "patches"
    assert e.scores.shape == (2, 4, 6)


@pytest.mark.parametrize("method", MAPS)
def test_a_layer_that_is_named(method: str) -> None:
    """Which tensors of an unknown Transformer are maps is not known, but the user may say so."""
    model = FAMILIES["plain_vit"].model()
    with pytest.raises(MhexError, match="layer="):
        explain(model, images(), method, target=0)
    maps = explain(model, images(), method, target=0, layer="patches")
    tokens = explain(model, images(), method, target=0, layer="blocks.2.norm_a")
    assert maps.scores.shape == tokens.scores.shape == (2, 4, 6)
    kept: list[Tensor] = []
    handle = model.blocks[2].norm_a.register_forward_hook(lambda module, args, output: kept.append(output))
    y = model(images())[:, 0].sum()
    handle.remove()
    (gradient,) = torch.autograd.grad(y, kept[0])
    grids = [t[:, 1:].mT.unflatten(-1, (4, 6)) for t in (kept[0].detach(), gradient)]
    weight = grids[1].mean((2, 3), keepdim=True) if method == "gradcam" else grids[1].clamp_min(0)
    if method in ("gradcam", "layercam"):
        assert_same(tokens.scores, (weight * grids[0]).sum(1).clamp_min(0), method)


@pytest.mark.parametrize("method", ATTENTION)
def test_attention_that_is_written_out_is_refused(method: str) -> None:
    with pytest.raises(MhexError, match="scaled_dot_product_attention"):
        explain(made_of(WrittenOutBlock), images(), method)


@pytest.mark.parametrize("method", ATTENTION)
def test_normalised_heads(method: str) -> None:
    """The same block without the norms' modules: normalisation written as a function."""

    class Functional(HeadNormBlock):
        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.qkv(self.norm_a(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
            q = F.layer_norm(q, (8,), self.query_norm.weight, self.query_norm.bias)
            k = F.layer_norm(k, (8,), self.key_norm.weight, self.key_norm.bias)
            x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
            return x + self.feed(self.norm_b(x))

    wanted = explain(made_of(Functional), images(), method, target=1, **LEFT.get(method, {})).scores
    assert_same(
        explain(made_of(HeadNormBlock), images(), method, target=1, **LEFT.get(method, {})).scores, wanted, method
    )


class ChannelsLast(nn.Module):
    """Feature maps (B, h, w, C), as in many hierarchical Transformers."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 20, 8, stride=8)
        self.mix = nn.Sequential(nn.LayerNorm(20), nn.Linear(20, 20), nn.GELU())
        self.head = nn.Linear(20, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).permute(0, 2, 3, 1)
        return self.head((x + self.mix(x)).mean((1, 2)))


@pytest.mark.parametrize("method", MAPS)
def test_channels_last_maps_are_not_turned_round(method: str) -> None:
    """(B, 4, 6, 20) is a 4 x 6 grid of 20 channels, not 4 channels of 6 x 20."""
    model = enliven(ChannelsLast()).double().eval()
    try:
        e = explain(model, images(), method, target=0)
    except MhexError:
        return
    assert e.scores.shape == (2, 4, 6)


class SequenceFirst(EncoderViT):
    """`nn.TransformerEncoder` in its default layout: (N, B, D)."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 4, 48, dropout=0.1)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).mT
        x = torch.cat([self.prefix_token.expand(len(x), -1, -1), x], 1) + self.position_embed
        return self.head(self.encoder(x.transpose(0, 1))[0])


@pytest.mark.parametrize("count", [1, 2, 25])
@pytest.mark.parametrize("method", ATTENTION)
def test_sequence_first_layout(method: str, count: int) -> None:
    """Right or refused; with 25 samples of 25 tokens a mix-up of the two axes would not even show in the shapes."""
    model = enliven(SequenceFirst()).double().eval()
    twin = EncoderViT().double().eval()
    twin.load_state_dict(model.state_dict())
    wanted = explain(twin, images(count), method, target=1, **LEFT.get(method, {})).scores
    try:
        got = explain(model, images(count), method, target=1, **LEFT.get(method, {})).scores
    except MhexError:
        return
    assert_same(got, wanted, method)


class ClassAttentionViT(PlainViT):
    """The class token joins late and alone asks the patches, as in CaiT: its attention is (B, H, 1, N)."""

    def __init__(self) -> None:
        super().__init__(blocks=2, registers=1)
        self.last = nn.ModuleList([nn.MultiheadAttention(32, 4, batch_first=True)])

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).mT + self.position_embed[:, 1:]
        for block in self.blocks:
            x = block(x)
        cls = self.prefix_token.expand(len(x), -1, -1)
        for layer in self.last:
            cls = cls + layer(cls, x, x, need_weights=False)[0]
        return self.head(self.norm(cls)[:, 0])


class WindowViT(PlainViT):
    """Attention within windows of four patches: batches of windows, (4 B, H, 6, 6), not of images."""

    def __init__(self) -> None:
        super().__init__(blocks=2, registers=0)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).mT + self.position_embed
        for block in self.blocks:
            count = len(x)
            x = block(x.reshape(4 * count, 6, 32)).reshape(count, 24, 32)
        return self.head(self.norm(x).mean(1))


@pytest.mark.parametrize("kind", [ClassAttentionViT, WindowViT])
@pytest.mark.parametrize("method", [m for m in ATTENTION if METHODS[m].needs.keep.get("attention") == "all"])
def test_attention_that_forms_no_square_is_refused(method: str, kind: type[nn.Module]) -> None:
    """Such matrices cannot be multiplied over blocks: an error of the library, no stray shape error, no broadcast."""
    model = enliven(kind()).double().eval()
    with pytest.raises(MhexError):
        explain(model, images(), method)
    assert explain(model, images(), "input-x-gradient").scores.shape == (2, 32, 48)


@pytest.mark.parametrize("method", ATTENTION)
def test_blocks_in_a_sequential(method: str) -> None:
    """Blocks in an `nn.Sequential`, each inside a wrapper: the same model as the plain one."""
    plain = FAMILIES["plain_vit"].model()
    wrapped = FAMILIES["plain_vit"].fresh()
    wrapped.blocks = nn.Sequential(*(nn.Sequential(block) for block in wrapped.blocks))
    wanted = explain(plain, images(), method, target=2, **LEFT.get(method, {})).scores
    assert_same(explain(wrapped, images(), method, target=2, **LEFT.get(method, {})).scores, wanted, method)


@pytest.mark.parametrize(
    ("name", "layer", "grid"),
    [
        ("timm_swin", "patch_embed.proj", (8, 12)),  # channels first, in a model of channels-last stages
        ("timm_swin", "layers.0", (8, 12)),
        ("tv_swin", "features.0.0", (8, 12)),
        ("tv_convnext", "features.7.0.block.0", (2, 3)),
        ("tv_convnext", "features.7.0.block.2", (2, 3)),  # channels last, in a model of channels-first stages
        ("tv_convnext", "features.7.0.block.5", (2, 3)),
        ("timm_convnext", "stages.3.blocks.0.conv_dw", (2, 3)),
    ],
)
@pytest.mark.parametrize("method", MAPS)
def test_a_named_layer_of_another_layout(method: str, name: str, layer: str, grid: tuple[int, int]) -> None:
    """Right or refused: channels taken for rows give a picture that means nothing."""
    family = FAMILIES[name]
    try:
        e = explain(family.model(), family.inputs(2), method, target=0, layer=layer)
    except MhexError:
        return
    assert e.scores.shape == (2, *grid)


@pytest.mark.parametrize("count", [2, 25])
@pytest.mark.parametrize("method", MAPS)
def test_a_named_layer_of_a_sequence_first_model(method: str, count: int) -> None:
    model = enliven(SequenceFirst()).double().eval()
    twin = EncoderViT().double().eval()
    twin.load_state_dict(model.state_dict())
    layer = "encoder.layers.0"
    wanted = explain(twin, images(count), method, target=1, layer=layer).scores
    try:
        got = explain(model, images(count), method, target=1, layer=layer).scores
    except MhexError:
        return
    assert_same(got, wanted, method)
