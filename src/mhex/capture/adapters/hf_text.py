"""Hugging Face text encoders: BERT, RoBERTa and DistilBERT sequence classifiers."""

from __future__ import annotations

from typing import Any

from torch import nn

from mhex.capture.anatomy import Anatomy, Block, first_of, is_a, is_stock, linear_rows

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
