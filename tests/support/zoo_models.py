"""Small random-weight stand-ins for what users bring: a zoo, and Hugging Face folders."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import timm
import torch
from safetensors.torch import save_file

from support.tiny_bert import new_bert

CLASSES = ["Bengal", "Egyptian Mau", "Siamese", "Beagle", "Pug", "Samoyed"]
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "fine", "dull", "film", "##s", "."]
NETWORKS: dict[str, tuple[str, dict[str, Any]]] = {
    "pets-vit": (
        "vit_tiny_patch16_224",
        {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 2, "num_classes": 6},
    ),
    "pets-resnet10t": ("resnet10t", {"channels": (8, 8, 16, 16), "stem_width": 8, "num_classes": 6}),
}

SMALLEST = (
    "vit_tiny_patch16_224",
    {"img_size": 8, "patch_size": 8, "embed_dim": 4, "depth": 1, "num_heads": 1, "num_classes": 6},
)


def write_resident(
    folder: Path, name: str, network: tuple[str, dict[str, Any]] | None = None, **changes: Any
) -> torch.nn.Module:
    """Write weights and card of a resident; returns the model with the weights as they were stored, rounded to half."""
    folder.mkdir(parents=True, exist_ok=True)
    architecture, arguments = network or NETWORKS[name]
    torch.manual_seed(3)
    model = timm.create_model(architecture, pretrained=False, **arguments).eval()
    half = {key: t.half() if t.is_floating_point() else t for key, t in model.state_dict().items()}
    save_file({key: t.contiguous() for key, t in half.items()}, folder / f"{name}.safetensors")
    model.load_state_dict({key: t.float() if t.is_floating_point() else t for key, t in half.items()})
    card = {
        "name": name,
        "title": f"A stand-in for {name}",
        "modality": "image",
        "architecture": architecture,
        "arguments": arguments,
        "classes": CLASSES,
        "groups": {"cat": CLASSES[:3], "dog": CLASSES[3:]},
        "preprocess": {"size": 32, "interpolation": "bicubic", "mean": MEAN, "std": STD},
        "data": {"name": "made-up <pets>", "licence": "CC BY-SA 4.0"},
        "recipe": {"epochs": 0},
        "accuracy": {"breed": 0.1667, "cat_dog": 0.5, "split": "test", "images": 12},
        "parameters": sum(p.numel() for p in model.parameters()),
        "licence": "Apache-2.0. More words.",
    }
    (folder / f"{name}.json").write_text(json.dumps({**card, **changes}), encoding="utf-8")
    return model


def write_zoo(folder: Path) -> Path:
    for name in NETWORKS:
        write_resident(folder, name)
    return folder


def write_demo_zoo(folder: Path) -> Path:
    """`write_zoo`, heads for its residual network, and a classifier with heads on the real MiniLM."""
    import mhex
    from mhex.zoo.hugging_face import load_classifier, minilm_folder

    write_zoo(folder)
    card = json.loads((folder / "pets-resnet10t.json").read_text(encoding="utf-8"))
    network = write_resident(folder, "pets-resnet10t")
    heads = {"where": "all", "preset": "probe", "coupling": "head_only", "relu": "pre"}
    accuracy = {**card["accuracy"], "heads": [0.1, 0.2, 0.3, 0.4]}
    changes = {"base": "pets-resnet10t", "heads": heads, "accuracy": accuracy}
    _write_headed(folder, "pets-mhex-resnet10t", network, {**card, **changes}, lambda name: name.startswith("mhex."))
    topics = ["World", "Sports", "Business", "Sci/Tech"]
    reader, _ = load_classifier(minilm_folder(), topics, "text")
    heads = {"where": "first3", "preset": "probe", "exclude_special": True}
    accuracy = {"topic": 0.25, "heads": [0.1, 0.2, 0.3], "split": "test", "texts": 12}
    changes = {"source": "minilm", "modality": "text", "classes": topics, "heads": heads, "accuracy": accuracy}
    changes["arguments"] = {"num_classes": len(topics)}
    learned = ("mhex.", "classifier.", "bert.pooler.")
    _write_headed(folder, "agnews-mhex-minilm", reader, {**card, **changes}, lambda name: name.startswith(learned))
    assert mhex.load("zoo:agnews-mhex-minilm", folder=folder).class_names == topics
    return folder


def _write_headed(
    folder: Path, name: str, model: torch.nn.Module, card: dict[str, Any], kept: Callable[[str], bool]
) -> None:
    import mhex

    torch.manual_seed(6)
    scaffold = mhex.attach(model, len(card["classes"]), **card["heads"])
    with torch.no_grad():
        for parameter in scaffold.head_parameters():
            parameter.normal_()
    state = {key: t.half().contiguous() for key, t in model.state_dict().items() if kept(key)}
    save_file(state, folder / f"{name}.safetensors")
    card = {**card, "name": name, "title": f"A stand-in for {name}"}
    (folder / f"{name}.json").write_text(json.dumps(card), encoding="utf-8")


def write_bert(folder: Path, layers: int = 2, width: int = 16) -> Path:
    from transformers import BertTokenizerFast

    folder.mkdir(parents=True)
    torch.manual_seed(4)
    names = {"id2label": {0: "bad", 1: "so so", 2: "good"}, "label2id": {"bad": 0, "so so": 1, "good": 2}}
    new_bert(len(WORDS), 3, 24, layers, width, hidden_size=width, **names).half().save_pretrained(folder)
    vocabulary = {word: number for number, word in enumerate(WORDS)}
    BertTokenizerFast(vocab=vocabulary, do_lower_case=True).save_pretrained(folder)
    return folder


def write_hf_vit(folder: Path, layers: int = 2, width: int = 16, **processor: Any) -> Path:
    from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessor

    torch.manual_seed(5)
    config = ViTConfig(
        image_size=32,
        patch_size=8,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=2,
        intermediate_size=width,
        id2label={0: "cat", 1: "dog"},
        label2id={"cat": 0, "dog": 1},
    )
    ViTForImageClassification(config).save_pretrained(folder)
    ViTImageProcessor(size={"height": 32, "width": 32}, **processor).save_pretrained(folder)
    return folder
