"""timm Vision Transformers: ViT, DeiT (distilled too), registers, average-pooled and attention-pooled heads."""

from __future__ import annotations

from torch import Tensor, nn

from mhex.capture.anatomy import Anatomy, Block, FeatureLayer, Projection, Readout, is_a, linear_rows, name_of


def anatomy(model: nn.Module) -> Anatomy | None:
    """Anatomy of a timm `VisionTransformer`, or None."""
    if not is_a(model, "timm.models", "VisionTransformer"):
        return None
    blocks = tuple(_block(module) for module in model.blocks)  # type: ignore[union-attr]
    embed = model.patch_embed
    image_size = getattr(embed, "img_size", None)
    patch: tuple[int, int] = tuple(embed.patch_size)  # type: ignore[arg-type,assignment,union-attr]
    first = blocks[-1].norm1
    return Anatomy(
        family="timm Vision Transformer",
        modality="image",
        blocks=blocks,
        prefix_tokens=int(model.num_prefix_tokens),  # type: ignore[arg-type]
        readout=_readout(model),
        patch=patch,
        pads_image=bool(getattr(embed, "dynamic_img_pad", False)),
        image_size=None if image_size is None or getattr(model, "dynamic_img_size", False) else tuple(image_size),
        channels=int(embed.proj.in_channels),  # type: ignore[union-attr,arg-type]
        features=None if first is None else FeatureLayer(first, "tokens", name_of(model, first)),
        head=model.head if isinstance(model.head, nn.Module) else None,
    )


def _readout(model: nn.Module) -> Readout:
    if is_a(model, "timm.models", "VisionTransformerDistilled"):
        return "class+distilled"
    pool = str(model.global_pool)
    if pool == "avg" and not getattr(model, "pool_include_prefix", False):
        return "mean"
    return {"token": "class", "map": "pool"}.get(pool, "measured")  # type: ignore[return-value]


def _block(module: nn.Module) -> Block:
    norm1 = getattr(module, "norm1", None)
    attention = getattr(module, "attn", None)
    mlp = getattr(module, "mlp", None)
    # Blocks that scale a residual branch do so in `ls1` and `ls2`; their output is what joins the stream.
    value, output = _projections(attention)
    return Block(
        module=module,
        norm1=norm1,
        attention_output=attention,
        mlp_input=mlp,
        mlp_output=mlp,
        value_projection=value,
        output_projection=output,
        attention_scale=_gamma(module, "ls1"),
        mlp_scale=_gamma(module, "ls2"),
    )


def _projections(attention: nn.Module | None) -> tuple[Projection | None, Projection | None]:
    qkv, projection = getattr(attention, "qkv", None), getattr(attention, "proj", None)
    if not isinstance(qkv, nn.Linear) or not isinstance(projection, nn.Linear):
        return None, None
    return linear_rows(qkv, 2 * qkv.out_features // 3), linear_rows(projection)


def _gamma(module: nn.Module, name: str) -> Tensor | None:
    gamma = getattr(getattr(module, name, None), "gamma", None)
    return gamma.detach() if isinstance(gamma, Tensor) else None
