"""Families of models that are known by their classes: Transformers and CNNs of timm, torchvision and Hugging Face.

An adapter is a function from a model to its `Anatomy`, or None if the model is of another family. To add a family,
write such a function and put it into `ADAPTERS`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from mhex.capture.anatomy import (
    Anatomy,
    Block,
    FeatureLayer,
    Layout,
    Readout,
    first_of,
    is_a,
    is_stock,
    linear_rows,
    name_of,
)

Adapter = Callable[[nn.Module], Anatomy | None]
_HF = "transformers.models"
_CNN: tuple[Layout, str] = ("nchw", "it is a convolutional network without attention")
_SWIN: tuple[Layout, str] = (
    "nhwc",
    "it attends within shifted windows, so its attention maps do not join into one over the image",
)
# Models of stages, for the CAM methods: package, class, name shown, where the last feature maps are (of a sequence, its
# last item), their layout and why attention methods refuse it.
_STAGED = (
    ("torchvision.models", "ResNet", "torchvision ResNet", "layer4", *_CNN),
    ("timm.models", "ResNet", "timm ResNet", "layer4", *_CNN),
    ("torchvision.models", "ConvNeXt", "torchvision ConvNeXt", "features", *_CNN),
    ("timm.models", "ConvNeXt", "timm ConvNeXt", "stages", *_CNN),
    ("torchvision.models", "EfficientNet", "torchvision EfficientNet", "features", *_CNN),
    ("timm.models", "EfficientNet", "timm EfficientNet", "bn2", *_CNN),
    ("torchvision.models", "SwinTransformer", "torchvision Swin Transformer", "features", *_SWIN),
    ("timm.models", "SwinTransformer", "timm Swin Transformer", "layers", *_SWIN),
    ("timm.models", "SwinTransformerV2", "timm Swin Transformer", "layers", *_SWIN),
)
_HF_VISION = ("ViT", "DeiT", "Dinov2", "Dinov2WithRegisters")
_HF_READOUTS: dict[str, Readout] = {  # where it is not the class token
    "DeiTForImageClassificationWithTeacher": "class+distilled",
    "Dinov2ForImageClassification": "class+mean",
    "Dinov2WithRegistersForImageClassification": "class+mean",
}
_HF_TEXT = ("Bert", "Roberta", "DistilBert")
# Modules of blocks by the names that they have had in several versions.
_VISION_PARTS = {
    "attention": ("attention",),
    "norm1": ("layernorm_before", "norm1"),
    "attention_output": ("attention",),
    "mlp_input": ("mlp", "intermediate"),
    "mlp_output": ("mlp", "output"),
    "key_projection": ("attention.k_proj", "attention.attention.key"),
    "value_projection": ("attention.v_proj", "attention.attention.value"),
    "output_projection": ("attention.o_proj", "attention.output.dense"),
}
_TEXT_PARTS = {
    "attention": ("attention.self", "attention"),
    "attention_output": ("attention.output.dense", "attention.out_lin"),
    "mlp_input": ("intermediate", "ffn"),
    "mlp_output": ("output.dense", "ffn"),
    "key_projection": ("attention.self.key", "attention.k_lin"),
    "value_projection": ("attention.self.value", "attention.v_lin"),
    "output_projection": ("attention.output.dense", "attention.out_lin"),
}
_TORCHVISION_PARTS = {
    "attention": ("self_attention",),
    "norm1": ("ln_1",),
    "attention_output": ("self_attention",),  # `out_proj` is never called as a module: only its weight is used
    "mlp_input": ("mlp",),
    "mlp_output": ("mlp",),
    "output_projection": ("self_attention.out_proj",),
}


def known_anatomy(model: nn.Module) -> Anatomy | None:
    """Anatomy of a model of a known family, read from its modules alone; None for other models."""
    return next((anatomy for adapter in ADAPTERS if (anatomy := adapter(model)) is not None), None)


def staged_anatomy(model: nn.Module) -> Anatomy | None:
    """Convolutional classifiers, and Swin Transformers, whose feature maps have channels last."""
    for package, name, family, stage, layout, no_attention in _STAGED:
        if is_a(model, package, name):
            layer, place = first_of(model, stage), stage
            if isinstance(layer, nn.Sequential):
                *_, (number, layer) = layer.named_children()
                place = f"{stage}.{number}"
            size = getattr(getattr(model, "patch_embed", None), "img_size", None)
            return Anatomy(
                family=family,
                modality="image",
                image_size=None if size is None else (int(size[0]), int(size[1])),
                channels=_image_channels(model),
                features=FeatureLayer(layer, layout, place),
                head=_classifier(model),
                no_attention=no_attention,
            )
    return None


def _classifier(model: nn.Module) -> nn.Module | None:
    """The linear layer that gives the class scores; an identity where it was left out; None if there is neither."""
    for name in ("fc", "classifier", "head"):
        if isinstance(part := getattr(model, name, None), nn.Module):
            linear = [m for m in part.modules() if isinstance(m, nn.Linear)]
            empty = getattr(part, "fc", part)
            return linear[-1] if linear else empty if isinstance(empty, nn.Identity) else None
    return None


def _image_channels(model: nn.Module) -> int | None:
    """Input channels of the first convolution, which is where images enter these models."""
    return next((m.in_channels for m in model.modules() if isinstance(m, nn.Conv2d)), None)


def timm_anatomy(model: nn.Module) -> Anatomy | None:
    """Timm's `VisionTransformer`."""
    if not is_a(model, "timm.models", "VisionTransformer"):
        return None
    stock: Any = model
    # Blocks of several attentions side by side (ParallelThingsBlock) cannot be read one by one.
    several = any(isinstance(getattr(module, "attns", None), nn.ModuleList) for module in stock.blocks)
    embed = stock.patch_embed
    rows, columns = embed.feat_ratio(as_scalar=False)  # the patch size, or the stride of a convolutional stem
    image_size = None if getattr(stock, "dynamic_img_size", False) else getattr(embed, "img_size", None)
    return _vision_transformer(
        model,
        () if several else tuple(map(_timm_block, stock.blocks)),
        family="timm Vision Transformer",
        prefix_tokens=stock.num_prefix_tokens,
        readout=_timm_readout(stock),
        patch=(int(rows), int(columns)),
        pads_image=bool(getattr(embed, "dynamic_img_pad", False)),
        image_size=None if image_size is None else tuple(image_size),
        head=stock.head,
        no_attention="its blocks attend several times side by side" if several else "",
    )


def _timm_readout(model: Any) -> Readout:
    if not is_stock(model, "timm.", "forward", "forward_features", "forward_head", "pool"):
        return "measured"
    if is_a(model, "timm.models", "VisionTransformerDistilled"):
        return "class+distilled"
    if model.global_pool == "avg" and getattr(model, "pool_include_prefix", False):
        return "measured"
    readouts: dict[str, Readout] = {"token": "class", "map": "pool", "avg": "mean"}
    return readouts.get(model.global_pool, "measured")


def _timm_block(module: nn.Module) -> Block:
    attention, mlp = getattr(module, "attn", None), getattr(module, "mlp", None)
    # Post-norm blocks call `norm1` on the attention's output, so the block's input is what enters it.
    norm1 = None if is_a(module, "timm.models", "ResPostBlock") else getattr(module, "norm1", None)
    qkv, projection = getattr(attention, "qkv", None), getattr(attention, "proj", None)

    def lacks(*norms: str) -> bool:
        return all(isinstance(getattr(attention, name, nn.Identity()), nn.Identity) for name in norms)

    projections: dict[str, Any] = {}
    if isinstance(qkv, nn.Linear) and isinstance(projection, nn.Linear):
        width = qkv.out_features // 3
        if lacks("q_norm", "k_norm"):
            projections["key_projection"] = linear_rows(qkv, width, 2 * width)
        if lacks("norm"):  # between attention and its output projection it makes them another function than matrices
            projections["value_projection"] = linear_rows(qkv, 2 * width)
            projections["output_projection"] = linear_rows(projection)
    return Block(
        module=module,
        attention=attention if is_stock(module, "timm.", "forward") else None,
        norm1=norm1 or getattr(module, "in_norm", None),  # blocks with attention and MLP side by side
        attention_output=attention,
        mlp_input=mlp,
        mlp_output=mlp,
        attention_scale=_scale(module, "ls1", "gamma"),
        mlp_scale=_scale(module, "ls2", "gamma"),
        **projections,
    )


def torchvision_anatomy(model: nn.Module) -> Anatomy | None:
    """Torchvision's `VisionTransformer`."""
    if not is_a(model, "torchvision.models", "VisionTransformer"):
        return None
    stock: Any = model
    return _vision_transformer(
        model,
        tuple(map(_torchvision_block, stock.encoder.layers)),
        family="torchvision Vision Transformer",
        prefix_tokens=1,
        readout="class" if is_stock(model, "torchvision.", "forward") else "measured",
        patch=(stock.patch_size, stock.patch_size),
        image_size=(stock.image_size, stock.image_size),
        head=first_of(model, "heads"),
    )


def _torchvision_block(layer: nn.Module) -> Block:
    attention: Any = first_of(layer, "self_attention")
    width = attention.embed_dim
    return replace(
        _block(layer, _TORCHVISION_PARTS),
        key_projection=linear_rows(attention, width, 2 * width, "in_proj_"),
        value_projection=linear_rows(attention, 2 * width, None, "in_proj_"),
    )


def vision_anatomy(model: nn.Module) -> Anatomy | None:
    """Hugging Face's ViT, DeiT (with and without teacher) and DINOv2 (with and without registers)."""
    bare = is_a(model, _HF, *(f"{name}Model" for name in _HF_VISION))  # to be explained by concepts
    if not bare and not is_a(model, _HF, *(f"{name}ForImageClassification" for name in _HF_VISION), *_HF_READOUTS):
        return None
    readout: Readout = next((readout for name, readout in _HF_READOUTS.items() if is_a(model, _HF, name)), "class")
    backbone = model if bare else first_of(model, "vit", "deit", "dinov2", "dinov2_with_registers")
    layers = first_of(backbone, "layers", "encoder.layer", "encoder.layers").children()
    embeddings = first_of(backbone, "embeddings")
    learned = (getattr(embeddings, name, None) for name in ("cls_token", "distillation_token", "register_tokens"))
    config: Any = model.config
    return _vision_transformer(
        model,
        tuple(_block(layer, _VISION_PARTS) for layer in layers),
        family=f"Hugging Face {type(model).__name__}",
        prefix_tokens=sum(tokens.shape[1] for tokens in learned if isinstance(tokens, Tensor)),
        readout=readout if is_stock(model, "transformers.", "forward") else "measured",
        patch=_pair(config.patch_size),
        # DINOv2 fits its position embeddings to any image.
        image_size=None if is_a(backbone, _HF, "Dinov2Model", "Dinov2WithRegistersModel") else _pair(config.image_size),
        head=None if bare else first_of(model, "classifier", "cls_classifier"),
    )


def text_anatomy(model: nn.Module) -> Anatomy | None:
    """Hugging Face's BERT, RoBERTa and DistilBERT: sequence classifiers, and bare ones to be explained by concepts."""
    bare = is_a(model, _HF, *(f"{name}Model" for name in _HF_TEXT))
    if not bare and not is_a(model, _HF, *(f"{name}ForSequenceClassification" for name in _HF_TEXT)):
        return None
    stock: Any = model
    backbone = model if bare else first_of(model, "bert", "roberta", "distilbert")
    layers = first_of(backbone, "encoder.layer", "transformer.layer", "layers")
    return Anatomy(
        family=f"Hugging Face {type(model).__name__}",
        modality="text",
        blocks=tuple(_block(layer, _TEXT_PARTS) for layer in layers.children()),
        prefix_tokens=1,
        readout="class" if is_stock(model, "transformers.", "forward") else "measured",
        embedding=stock.get_input_embeddings(),
        # The last hidden state of the class token enters the pooler (BERT) or the classification head.
        head=None if bare else first_of(model, "pre_classifier", "bert.pooler", "classifier"),
    )


def _block(layer: nn.Module, names: Mapping[str, Sequence[str]]) -> Block:
    """A block whose modules, and linear layers of its projections, are found by their names."""
    parts: dict[str, Any] = {part: first_of(layer, *options) for part, options in names.items()}
    parts |= {part: linear_rows(linear) for part, linear in parts.items() if part.endswith("projection")}
    parts["attention_scale"] = _scale(layer, "layer_scale1", "lambda1")
    parts["mlp_scale"] = _scale(layer, "layer_scale2", "lambda1")
    return Block(layer, **parts)


def _vision_transformer(model: nn.Module, blocks: tuple[Block, ...], **facts: Any) -> Anatomy:
    """A Vision Transformer; the norm before its last attention is what CAM methods read."""
    norm = blocks[-1].norm1 if blocks else None
    return Anatomy(
        modality="image",
        positions_in_tokens=True,
        blocks=blocks,
        channels=_image_channels(model),
        features=None if norm is None else FeatureLayer(norm, "tokens", name_of(model, norm)),
        **facts,
    )


def _scale(layer: nn.Module, name: str, factor: str) -> Tensor | None:
    scale = getattr(getattr(layer, name, None), factor, None)
    return scale.detach() if isinstance(scale, Tensor) else None


def _pair(value: int | Sequence[int]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])


ADAPTERS: tuple[Adapter, ...] = (timm_anatomy, vision_anatomy, text_anatomy, torchvision_anatomy, staged_anatomy)
