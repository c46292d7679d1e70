"""torchvision's VisionTransformer."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from mhex.capture.anatomy import Anatomy, Block, FeatureLayer, first_of, is_a, linear_rows, name_of


def anatomy(model: nn.Module) -> Anatomy | None:
    """Anatomy of a torchvision `VisionTransformer`, or None."""
    if not is_a(model, "torchvision.models", "VisionTransformer"):
        return None
    blocks = tuple(_block(layer) for layer in first_of(model, ("encoder.layers",)).children())
    patch, size = int(model.patch_size), int(model.image_size)  # type: ignore[arg-type]
    first = first_of(blocks[-1].module, ("ln_1",))
    stem = next(m for m in first_of(model, ("conv_proj",)).modules() if isinstance(m, nn.Conv2d))
    return Anatomy(
        family="torchvision Vision Transformer",
        modality="image",
        blocks=blocks,
        prefix_tokens=1,
        readout="class",
        patch=(patch, patch),
        image_size=(size, size),
        channels=stem.in_channels,
        features=FeatureLayer(first, "tokens", name_of(model, first)),
        head=first_of(model, ("heads",)),
    )


def _block(layer: nn.Module) -> Block:
    attention = first_of(layer, ("self_attention",))
    return Block(
        module=layer,
        norm1=first_of(layer, ("ln_1",)),
        attention_output=attention,  # `out_proj` is never called as a module: only its weight is used
        mlp_input=first_of(layer, ("mlp",)),
        mlp_output=first_of(layer, ("mlp",)),
        value_projection=_packed_value(attention),
        output_projection=linear_rows(first_of(attention, ("out_proj",))),
    )


def _packed_value(attention: nn.Module) -> Callable[[], tuple[Tensor, Tensor | None]]:
    def read() -> tuple[Tensor, Tensor | None]:
        weight: Tensor = attention.in_proj_weight  # type: ignore[assignment]
        bias = attention.in_proj_bias
        return weight.detach().chunk(3)[2], bias.detach().chunk(3)[2] if isinstance(bias, Tensor) else None

    return read
