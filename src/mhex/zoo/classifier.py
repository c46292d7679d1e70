"""A pretrained Hugging Face network with a classifier for other classes, and its tokenizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from mhex._optional import require
from mhex.errors import ArgumentError
from mhex.zoo.hf_folder import broken, load_tokenizer, one_line, quiet


def load_classifier(
    folder: Path, classes: Sequence[str], kind: Literal["image", "text"], arguments: Mapping[str, Any] | None = None
) -> tuple[Any, Any]:
    """Load a local Hugging Face folder as a classifier; a classifier of other classes is replaced by a new one.

    Args:
        folder: With `config.json` and `model.safetensors`; for texts also with a tokenizer.
        classes: Names of the classes.
        kind: What is classified.
        arguments: Entries of the configuration to change.

    Returns:
        The model in float32, and its tokenizer; None for images.

    Raises:
        ArgumentError: The folder cannot be loaded so.
    """
    transformers = require("transformers")
    auto = "AutoModelForImageClassification" if kind == "image" else "AutoModelForSequenceClassification"
    with quiet(transformers):
        try:
            model = getattr(transformers, auto).from_pretrained(
                folder,
                id2label=dict(enumerate(classes)),
                label2id={name: place for place, name in enumerate(classes)},
                ignore_mismatched_sizes=True,
                use_safetensors=True,
                local_files_only=True,
                trust_remote_code=False,
                dtype=torch.float32,
                **(arguments or {}),
            )
        except broken() as error:
            line = one_line(error)
            changed = f" with {dict(arguments)}" if arguments else ""
            raise ArgumentError(f"The folder {folder} cannot be loaded as {auto}{changed}: {line}") from error
        return model, None if kind == "image" else load_tokenizer(transformers, folder)
