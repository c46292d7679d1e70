"""Families of models that are known by their classes: Transformers and CNNs of timm, torchvision and Hugging Face.

Each function gives the `Anatomy` of a model of its family, and None for other models.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

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

_HF = "transformers.models"
# package, class, name shown, where the last feature maps are (of a sequence, its last item)
_CNNS = (
    ("torchvision.models", "ResNet", "torchvision ResNet", "layer4"),
    ("timm.models", "ResNet", "timm ResNet", "layer4"),
    ("torchvision.models", "ConvNeXt", "torchvision ConvNeXt", "features"),
    ("timm.models", "ConvNeXt", "timm ConvNeXt", "stages"),
    ("torchvision.models", "EfficientNet", "torchvision EfficientNet", "features"),
    ("timm.models", "EfficientNet", "timm EfficientNet", "bn2"),
)
_HF_VISION: dict[str, Readout] = {
    "ViTForImageClassification": "class",
    "DeiTForImageClassification": "class",
    "DeiTForImageClassificationWithTeacher": "class+distilled",
    "Dinov2ForImageClassification": "class+mean",
    "Dinov2WithRegistersForImageClassification": "class+mean",
    # Without a classifier, to be explained by concepts.
    "ViTModel": "class",
    "DeiTModel": "class",
    "Dinov2Model": "class",
    "Dinov2WithRegistersModel": "class",
}
_HF_TEXT = ("Bert", "Roberta", "DistilBert")


def cnn_anatomy(model: nn.Module) -> Anatomy | None:
    """Convolutional classifiers."""
    for package, name, family, stage in _CNNS:
        if is_a(model, package, name):
            layer, place = first_of(model, stage), stage
            if isinstance(layer, nn.Sequential):
                *_, (number, layer) = layer.named_children()
                place = f"{stage}.{number}"
            return Anatomy(
                family=family,
                modality="image",
                channels=_image_channels(model),
                features=FeatureLayer(layer, "nchw", place),
                head=_classifier(model),
                no_attention="it is a convolutional network without attention",
            )
    return None


def swin_anatomy(model: nn.Module) -> Anatomy | None:
    """Swin Transformers of torchvision and timm, for the CAM methods. Their feature maps have channels last."""
    is_timm = is_a(model, "timm.models", "SwinTransformer", "SwinTransformerV2")
    if not is_timm and not is_a(model, "torchvision.models", "SwinTransformer"):
        return None
    stages = "layers" if is_timm else "features"
    *_, (number, last) = first_of(model, stages).named_children()
    size = getattr(getattr(model, "patch_embed", None), "img_size", None)
    return Anatomy(
        family=f"{'timm' if is_timm else 'torchvision'} Swin Transformer",
        modality="image",
        image_size=None if size is None else (int(size[0]), int(size[1])),
        channels=_image_channels(model),
        features=FeatureLayer(last, "nhwc", f"{stages}.{number}"),
        head=_classifier(model),
        no_attention="it attends within shifted windows, so its attention maps do not join into one over the image",
    )


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
    blocks = () if several else tuple(map(_timm_block, stock.blocks))
    embed = stock.patch_embed
    rows, columns = embed.feat_ratio(as_scalar=False)  # the patch size, or the stride of a convolutional stem
    image_size = None if getattr(stock, "dynamic_img_size", False) else getattr(embed, "img_size", None)
    return Anatomy(
        family="timm Vision Transformer",
        modality="image",
        positions_in_tokens=True,
        blocks=blocks,
        prefix_tokens=stock.num_prefix_tokens,
        readout=_timm_readout(stock),
        patch=(int(rows), int(columns)),
        pads_image=bool(getattr(embed, "dynamic_img_pad", False)),
        image_size=None if image_size is None else tuple(image_size),
        channels=_image_channels(model),
        features=_last_norm(model, blocks),
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

    key: Projection | None = None
    value: Projection | None = None
    output: Projection | None = None
    if isinstance(qkv, nn.Linear) and isinstance(projection, nn.Linear):
        width = qkv.out_features // 3
        key = linear_rows(qkv, width, 2 * width) if lacks("q_norm", "k_norm") else None
        # A norm between attention and its output projection makes them another function than the two matrices.
        value, output = (linear_rows(qkv, 2 * width), linear_rows(projection)) if lacks("norm") else (None, None)
    return Block(
        module=module,
        norm1=norm1 or getattr(module, "in_norm", None),  # blocks with attention and MLP side by side
        attention_output=attention,
        mlp_input=mlp,
        mlp_output=mlp,
        key_projection=key,
        value_projection=value,
        output_projection=output,
        attention_scale=_scale(module, "ls1", "gamma"),
        mlp_scale=_scale(module, "ls2", "gamma"),
    )


def torchvision_anatomy(model: nn.Module) -> Anatomy | None:
    """Torchvision's `VisionTransformer`."""
    if not is_a(model, "torchvision.models", "VisionTransformer"):
        return None
    blocks = tuple(map(_torchvision_block, first_of(model, "encoder.layers").children()))
    stock: Any = model
    return Anatomy(
        family="torchvision Vision Transformer",
        modality="image",
        positions_in_tokens=True,
        blocks=blocks,
        prefix_tokens=1,
        readout="class" if is_stock(model, "torchvision.", "forward") else "measured",
        patch=(stock.patch_size, stock.patch_size),
        image_size=(stock.image_size, stock.image_size),
        channels=_image_channels(model),
        features=_last_norm(model, blocks),
        head=first_of(model, "heads"),
    )


def _torchvision_block(layer: nn.Module) -> Block:
    attention: Any = first_of(layer, "self_attention")

    def packed(part: int) -> Projection:
        """The projection of queries (0), keys (1) or values (2)."""

        def read() -> tuple[Tensor, Tensor | None]:
            weight, bias = attention.in_proj_weight, attention.in_proj_bias
            return weight.detach().chunk(3)[part], None if bias is None else bias.detach().chunk(3)[part]

        return read

    return Block(
        module=layer,
        norm1=first_of(layer, "ln_1"),
        attention_output=attention,  # `out_proj` is never called as a module: only its weight is used
        mlp_input=first_of(layer, "mlp"),
        mlp_output=first_of(layer, "mlp"),
        key_projection=packed(1),
        value_projection=packed(2),
        output_projection=linear_rows(first_of(attention, "out_proj")),
    )


def vision_anatomy(model: nn.Module) -> Anatomy | None:
    """Hugging Face's ViT, DeiT (with and without teacher) and DINOv2 (with and without registers)."""
    if not is_a(model, _HF, *_HF_VISION):
        return None
    readout = next(readout for name, readout in _HF_VISION.items() if is_a(model, _HF, name))
    # DINOv2 fits its position embeddings to any image.
    interpolates = is_a(model, _HF, *(name for name in _HF_VISION if name.startswith("Dinov2")))
    bare = is_a(model, _HF, *(name for name in _HF_VISION if name.endswith("Model")))
    backbone = model if bare else first_of(model, "vit", "deit", "dinov2", "dinov2_with_registers")
    blocks = tuple(map(_vision_block, first_of(backbone, "layers", "encoder.layer", "encoder.layers").children()))
    embeddings = first_of(backbone, "embeddings")
    learned = (getattr(embeddings, name, None) for name in ("cls_token", "distillation_token", "register_tokens"))
    config: Any = model.config
    return Anatomy(
        family=f"Hugging Face {type(model).__name__}",
        modality="image",
        positions_in_tokens=True,
        blocks=blocks,
        prefix_tokens=sum(tokens.shape[1] for tokens in learned if isinstance(tokens, Tensor)),
        readout=readout if is_stock(model, "transformers.", "forward") else "measured",
        patch=_pair(config.patch_size),
        image_size=None if interpolates else _pair(config.image_size),
        channels=config.num_channels,
        features=_last_norm(model, blocks),
        head=None if bare else first_of(model, "classifier", "cls_classifier"),
    )


def _vision_block(layer: nn.Module) -> Block:
    attention = first_of(layer, "attention")
    return Block(
        module=layer,
        norm1=first_of(layer, "layernorm_before", "norm1"),
        attention_output=attention,
        mlp_input=first_of(layer, "mlp", "intermediate"),
        mlp_output=first_of(layer, "mlp", "output"),
        key_projection=linear_rows(first_of(attention, "k_proj", "attention.key")),
        value_projection=linear_rows(first_of(attention, "v_proj", "attention.value")),
        output_projection=linear_rows(first_of(attention, "o_proj", "output.dense")),
        attention_scale=_scale(layer, "layer_scale1", "lambda1"),
        mlp_scale=_scale(layer, "layer_scale2", "lambda1"),
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
        blocks=tuple(map(_text_block, layers.children())),
        prefix_tokens=1,
        readout="class" if is_stock(model, "transformers.", "forward") else "measured",
        embedding=stock.get_input_embeddings(),
        # The last hidden state of the class token enters the pooler (BERT) or the classification head.
        head=None if bare else first_of(model, "pre_classifier", "bert.pooler", "classifier"),
    )


def _text_block(layer: nn.Module) -> Block:
    output = first_of(layer, "attention.output.dense", "attention.out_lin")
    return Block(
        module=layer,
        attention_output=output,
        mlp_input=first_of(layer, "intermediate", "ffn"),
        mlp_output=first_of(layer, "output.dense", "ffn"),
        key_projection=linear_rows(first_of(layer, "attention.self.key", "attention.k_lin")),
        value_projection=linear_rows(first_of(layer, "attention.self.value", "attention.v_lin")),
        output_projection=linear_rows(output),
    )


def _last_norm(model: nn.Module, blocks: Sequence[Block]) -> FeatureLayer | None:
    """The norm before the last attention, which CAM methods read."""
    norm = blocks[-1].norm1 if blocks else None
    return None if norm is None else FeatureLayer(norm, "tokens", name_of(model, norm))


def _scale(layer: nn.Module, name: str, factor: str) -> Tensor | None:
    scale = getattr(getattr(layer, name, None), factor, None)
    return scale.detach() if isinstance(scale, Tensor) else None


def _pair(value: int | Sequence[int]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])
