"""torchvision's VisionTransformer."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from mhex.capture.adapters.cnn import image_channels
from mhex.capture.anatomy import (
    Anatomy,
    Block,
    FeatureLayer,
    Projection,
    first_of,
    is_a,
    is_stock,
    linear_rows,
    name_of,
)


def torchvision_anatomy(model: nn.Module) -> Anatomy | None:
    """Anatomy of a torchvision `VisionTransformer`, or None."""
    if not is_a(model, "torchvision.models", "VisionTransformer"):
        return None
    blocks = tuple(_torchvision_block(layer) for layer in first_of(model, ("encoder.layers",)).children())
    stock: Any = model
    norm = first_of(blocks[-1].module, ("ln_1",))
    return Anatomy(
        family="torchvision Vision Transformer",
        modality="image",
        positions_in_tokens=True,
        blocks=blocks,
        prefix_tokens=1,
        readout="class" if is_stock(model, "torchvision.", "forward") else "measured",
        patch=(stock.patch_size, stock.patch_size),
        image_size=(stock.image_size, stock.image_size),
        channels=image_channels(model),
        features=FeatureLayer(norm, "tokens", name_of(model, norm)),
        head=first_of(model, ("heads",)),
    )


def _torchvision_block(layer: nn.Module) -> Block:
    attention = first_of(layer, ("self_attention",))
    return Block(
        module=layer,
        norm1=first_of(layer, ("ln_1",)),
        attention_output=attention,  # `out_proj` is never called as a module: only its weight is used
        mlp_input=first_of(layer, ("mlp",)),
        mlp_output=first_of(layer, ("mlp",)),
        key_projection=_packed(attention, 1),
        value_projection=_packed(attention, 2),
        output_projection=linear_rows(first_of(attention, ("out_proj",))),
    )


def _packed(attention: nn.Module, part: int) -> Projection:
    """Of queries (0), keys (1) or values (2)."""

    def read() -> tuple[Tensor, Tensor | None]:
        stock: Any = attention
        bias = stock.in_proj_bias
        return stock.in_proj_weight.detach().chunk(3)[part], None if bias is None else bias.detach().chunk(3)[part]

    return read
