"""Hugging Face vision Transformers: ViT, DeiT (with and without teacher), DINOv2 (with and without registers)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from mhex.capture.anatomy import Anatomy, Block, FeatureLayer, Readout, first_of, is_a, is_stock, linear_rows, name_of

_CLASSES = (
    "BertForSequenceClassification",
    "RobertaForSequenceClassification",
    "DistilBertForSequenceClassification",
)
_BARE = ("BertModel", "RobertaModel", "DistilBertModel")  # without a classifier, to be explained by concepts


def text_anatomy(model: nn.Module) -> Anatomy | None:
    """Anatomy of a BERT-like sequence classifier, or of one without its classifier, or None."""
    if not is_a(model, "transformers.models", *_CLASSES, *_BARE):
        return None
    stock: Any = model
    bare = is_a(model, "transformers.models", *_BARE)
    distilled = is_a(model, "transformers.models", "DistilBertForSequenceClassification", "DistilBertModel")
    backbone = model if bare else first_of(model, ("bert", "roberta", "distilbert"))
    layers = first_of(backbone, ("encoder.layer", "transformer.layer", "layers"))
    return Anatomy(
        family=f"Hugging Face {type(model).__name__}",
        modality="text",
        blocks=tuple((_distilbert_block if distilled else _bert_block)(layer) for layer in layers.children()),
        prefix_tokens=1,
        readout="class" if is_stock(model, "transformers.", "forward") else "measured",
        embedding=stock.get_input_embeddings(),
        # The last hidden state of the class token enters the pooler (BERT) or the classification head.
        head=None if bare else first_of(model, ("pre_classifier", "bert.pooler", "classifier")),
    )


def _bert_block(layer: nn.Module) -> Block:
    return Block(
        module=layer,
        attention_output=first_of(layer, ("attention.output.dense",)),
        mlp_input=first_of(layer, ("intermediate",)),
        mlp_output=first_of(layer, ("output.dense",)),
        key_projection=linear_rows(first_of(layer, ("attention.self.key",))),
        value_projection=linear_rows(first_of(layer, ("attention.self.value",))),
        output_projection=linear_rows(first_of(layer, ("attention.output.dense",))),
    )


def _distilbert_block(layer: nn.Module) -> Block:
    return Block(
        module=layer,
        attention_output=first_of(layer, ("attention.out_lin",)),
        mlp_input=first_of(layer, ("ffn",)),
        mlp_output=first_of(layer, ("ffn",)),
        key_projection=linear_rows(first_of(layer, ("attention.k_lin",))),
        value_projection=linear_rows(first_of(layer, ("attention.v_lin",))),
        output_projection=linear_rows(first_of(layer, ("attention.out_lin",))),
    )


_READOUTS: dict[str, Readout] = {
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


def vision_anatomy(model: nn.Module) -> Anatomy | None:
    """Anatomy of a Hugging Face ViT-like image classifier, or of one without its classifier, or None."""
    if not is_a(model, "transformers.models", *_READOUTS):
        return None
    readout = next(r for name, r in _READOUTS.items() if is_a(model, "transformers.models", name))
    # DINOv2 fits its position embeddings to any image.
    interpolates = is_a(model, "transformers.models", *(name for name in _READOUTS if name.startswith("Dinov2")))
    if not is_stock(model, "transformers.", "forward"):
        readout = "measured"
    bare = is_a(model, "transformers.models", *(name for name in _READOUTS if name.endswith("Model")))
    backbone = model if bare else first_of(model, ("vit", "deit", "dinov2", "dinov2_with_registers"))
    layers = first_of(backbone, ("layers", "encoder.layer", "encoder.layers"))
    blocks = tuple(_block(layer) for layer in layers.children())
    embeddings = first_of(backbone, ("embeddings",))
    config: Any = model.config
    norm = blocks[-1].norm1
    return Anatomy(
        family=f"Hugging Face {type(model).__name__}",
        modality="image",
        positions_in_tokens=True,
        blocks=blocks,
        prefix_tokens=_prefix_tokens(embeddings),
        readout=readout,
        patch=_pair(config.patch_size),
        image_size=None if interpolates else _pair(config.image_size),
        channels=config.num_channels,
        features=None if norm is None else FeatureLayer(norm, "tokens", name_of(model, norm)),
        head=None if bare else first_of(model, ("classifier", "cls_classifier")),
    )


def _prefix_tokens(embeddings: nn.Module) -> int:
    """Class, distillation and register tokens, counted from the learned parameters."""
    names = ("cls_token", "distillation_token", "register_tokens")
    return sum(t.shape[1] for name in names if isinstance(t := getattr(embeddings, name, None), Tensor))


def _block(layer: nn.Module) -> Block:
    attention = first_of(layer, ("attention",))
    mlp = first_of(layer, ("mlp", "output"))
    return Block(
        module=layer,
        norm1=first_of(layer, ("layernorm_before", "norm1")),
        attention_output=attention,
        mlp_input=first_of(layer, ("mlp", "intermediate")),
        mlp_output=mlp,
        key_projection=linear_rows(first_of(attention, ("k_proj", "attention.key"))),
        value_projection=linear_rows(first_of(attention, ("v_proj", "attention.value"))),
        output_projection=linear_rows(first_of(attention, ("o_proj", "output.dense"))),
        attention_scale=_scale(layer, "layer_scale1"),
        mlp_scale=_scale(layer, "layer_scale2"),
    )


def _scale(layer: nn.Module, name: str) -> Tensor | None:
    factor = getattr(getattr(layer, name, None), "lambda1", None)
    return factor.detach() if isinstance(factor, Tensor) else None


def _pair(value: int | Sequence[int]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])
