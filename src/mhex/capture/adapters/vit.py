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
    Readout,
    first_of,
    is_a,
    is_stock,
    linear_rows,
    name_of,
)


def timm_anatomy(model: nn.Module) -> Anatomy | None:
    """Anatomy of a timm `VisionTransformer`, or None."""
    if not is_a(model, "timm.models", "VisionTransformer"):
        return None
    stock: Any = model
    # Blocks of several attentions side by side (ParallelThingsBlock) cannot be read one by one.
    several = any(isinstance(getattr(module, "attns", None), nn.ModuleList) for module in stock.blocks)
    blocks = () if several else tuple(_timm_block(module) for module in stock.blocks)
    embed = stock.patch_embed
    rows, columns = embed.feat_ratio(as_scalar=False)  # the patch size, or the stride of a convolutional stem
    image_size = None if getattr(stock, "dynamic_img_size", False) else getattr(embed, "img_size", None)
    norm = blocks[-1].norm1 if blocks else None
    return Anatomy(
        family="timm Vision Transformer",
        modality="image",
        positions_in_tokens=True,
        blocks=blocks,
        prefix_tokens=stock.num_prefix_tokens,
        readout=_readout(model),
        patch=(int(rows), int(columns)),
        pads_image=bool(getattr(embed, "dynamic_img_pad", False)),
        image_size=None if image_size is None else tuple(image_size),
        channels=image_channels(model),
        features=None if norm is None else FeatureLayer(norm, "tokens", f"blocks.{len(blocks) - 1}.norm1"),
        head=stock.head,
        no_attention="its blocks attend several times side by side" if several else "",
    )


def _readout(model: nn.Module) -> Readout:
    if not is_stock(model, "timm.", "forward", "forward_features", "forward_head", "pool"):
        return "measured"
    if is_a(model, "timm.models", "VisionTransformerDistilled"):
        return "class+distilled"
    pool = model.global_pool
    if pool == "token":
        return "class"
    if pool == "map":
        return "pool"
    return "mean" if pool == "avg" and not getattr(model, "pool_include_prefix", False) else "measured"


def _timm_block(module: nn.Module) -> Block:
    attention = getattr(module, "attn", None)
    mlp = getattr(module, "mlp", None)
    key, value, output = _projections(attention)
    # Post-norm blocks call `norm1` on the attention's output, so the block's input is what enters it.
    norm1 = None if is_a(module, "timm.models", "ResPostBlock") else getattr(module, "norm1", None)
    norm1 = norm1 or getattr(module, "in_norm", None)  # blocks with attention and MLP side by side
    return Block(
        module=module,
        norm1=norm1,
        attention_output=attention,
        mlp_input=mlp,
        mlp_output=mlp,
        key_projection=key,
        value_projection=value,
        output_projection=output,
        attention_scale=_gamma(module, "ls1"),
        mlp_scale=_gamma(module, "ls2"),
    )


def _projections(attention: nn.Module | None) -> tuple[Projection | None, Projection | None, Projection | None]:
    """Of keys, values and the output."""
    qkv, projection = getattr(attention, "qkv", None), getattr(attention, "proj", None)
    if not isinstance(qkv, nn.Linear) or not isinstance(projection, nn.Linear):
        return None, None, None
    width = qkv.out_features // 3
    key = linear_rows(qkv, width, 2 * width) if _plain(attention, "q_norm", "k_norm") else None
    # A norm between attention and its output projection makes them another function than the two matrices.
    if not _plain(attention, "norm"):
        return key, None, None
    return key, linear_rows(qkv, 2 * width), linear_rows(projection)


def _plain(attention: nn.Module | None, *norms: str) -> bool:
    """True if none of these norms is there."""
    return all(isinstance(getattr(attention, name, nn.Identity()), nn.Identity) for name in norms)


def _gamma(module: nn.Module, name: str) -> Tensor | None:
    gamma = getattr(getattr(module, name, None), "gamma", None)
    return gamma.detach() if isinstance(gamma, Tensor) else None


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
