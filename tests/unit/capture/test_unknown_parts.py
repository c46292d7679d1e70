"""Parts of models of no known family that one watched pass finds, and what is refused because it stays hidden."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from mhex.capture import Anatomy, Needs, find_anatomy
from mhex.inputs import prepare
from support.cases import METHODS
from support.models import CLASSES, FAMILIES, EncoderViT, PlainViT, enliven


def anatomy(model: nn.Module, name: str = "plain_vit") -> Anatomy:
    return find_anatomy(model, prepare(model, FAMILIES[name].inputs(1)).batch)


def lively(model: nn.Module) -> nn.Module:
    return enliven(model).double().eval()


@pytest.mark.parametrize("name", ["plain_vit", "plain_vit_shared"])
def test_norm_before_the_attention(name: str) -> None:
    model = FAMILIES[name].model()
    found = anatomy(model, name)
    assert [block.norm1 for block in found.blocks] == [block.norm_a for block in model.blocks]
    assert found.head is model.head


def test_norm_of_encoder_layers() -> None:
    """torch's own layers are post-norm by default, and pre-norm when asked."""
    post, pre = lively(EncoderViT()), EncoderViT()
    layer = nn.TransformerEncoderLayer(32, 4, 48, batch_first=True, norm_first=True)
    pre.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    pre = lively(pre)
    assert [block.norm1 for block in anatomy(post).blocks] == [None, None]
    assert [block.norm1 for block in anatomy(pre).blocks] == [layer.norm1 for layer in pre.encoder.layers]
    assert anatomy(FAMILIES["encoder_text"].model(), "encoder_text").blocks[0].norm1 is None


def test_norm_of_something_else_is_not_taken() -> None:
    """A norm that is given another tensor than the block's input stands somewhere else."""

    class Shifted(PlainViT):
        def __init__(self) -> None:
            super().__init__()
            for block in self.blocks:
                block.norm_a = nn.Sequential(nn.Linear(32, 32), nn.LayerNorm(32))

    assert [block.norm1 for block in anatomy(lively(Shifted())).blocks] == [None] * 3


class Ending(nn.Module):
    """What a plain ViT gives, changed."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.inner, self.scale = PlainViT(), scale

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x)
        return y if self.scale == 1 else self.scale * y


def test_the_classifier_is_the_last_linear_layer_if_it_gives_the_output() -> None:
    """The last linear layer, if what it gives is what the model returns."""
    plain, scaled = lively(Ending(1.0)), lively(Ending(0.5))
    assert anatomy(plain).head is plain.inner.head
    assert anatomy(scaled).head is None
    assert anatomy(FAMILIES["plain_cnn"].model(), "plain_cnn").head is FAMILIES["plain_cnn"].model().head


@pytest.mark.parametrize(
    ("needs", "part"),
    [
        (Needs(keep={"attention_output": "all"}), "the attention output"),
        (Needs(keep={"mlp_input": "last"}), "the MLP input"),
        (Needs(keep={"tokens": "all", "mlp_output": "all"}), "the MLP output"),
        (Needs(keep={"attention": "all"}, projections=True), "the value projection"),
    ],
)
def test_hidden_parts_are_refused(needs: Needs, part: str) -> None:
    refused = METHODS["tokentm"].refusal(anatomy(FAMILIES["plain_vit"].model()), needs=needs)
    assert refused == f"it reads {part} of every block, which this PlainViT does not show"
    known = FAMILIES["timm_vit"]
    assert METHODS["tokentm"].refusal(anatomy(known.model(), "timm_vit"), needs=needs) == ""


def test_packed_projections_that_are_no_linear_layers() -> None:
    """timm's query and value adapters, say: the projections are unknown, and what needs them is refused."""
    from timm.models.vision_transformer import VisionTransformer

    model = VisionTransformer(img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=4, num_classes=CLASSES)
    model.blocks[1].attn.qkv = nn.Sequential(model.blocks[1].attn.qkv, nn.Identity())
    found = find_anatomy(model, prepare(model, torch.randn(1, 3, 32, 32)).batch)
    assert found.blocks[0].value_projection is not None
    assert found.blocks[1].value_projection is None
    assert "value projection" in METHODS["tokentm"].refusal(found)
    assert METHODS["gae"].refusal(found) == ""


@pytest.mark.parametrize(("activation", "name"), [("relu", ""), ("gelu", "gelu")])
def test_the_activation_of_an_encoder_layer_is_named_unless_it_is_relu(activation: str, name: str) -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, activation=activation, batch_first=True)
    model = nn.Sequential(nn.Flatten(2), nn.Linear(16, 8), layer, nn.Flatten(), nn.Linear(24, CLASSES)).eval()
    assert find_anatomy(model, prepare(model, torch.rand(2, 3, 4, 4)).batch).activation == name
