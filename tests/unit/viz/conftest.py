"""Hand-made explanations: what is drawn is known to the pixel and to the word."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from PIL import Image

from mhex.explanation import Explanation

NAMES = ["tabby", "Egyptian cat", "great white shark, white shark, man-eater", "zebra"]
Make = Callable[..., Explanation]


def image_explanation(scores: torch.Tensor, **changes: Any) -> Explanation:
    """An explanation of grey photos: class 0 has probability 0.83, class 1 0.169, class 2 0.001, class 3 0."""
    batch = scores.shape[0]
    probabilities = torch.tensor([[0.83, 0.169, 0.001, 0.0]]).repeat(batch, 1)
    count = scores.shape[1] if scores.dim() == 4 else 1
    target = torch.arange(count).repeat(batch, 1)
    fields: dict[str, Any] = {
        "scores": scores,
        "target": target if scores.dim() == 4 else target[:, 0],
        "logits": probabilities.clamp(min=1e-9).log(),
        "probabilities": probabilities,
        "method": "gae",
        "size": (64, 64),
        "class_names": NAMES,
        "pictures": [Image.new("RGB", (120, 80), (128, 128, 128))] * batch,
    }
    return Explanation(**{**fields, **changes})


def text_explanation(
    tokens: list[str] | None,
    scores: list[float],
    words: list[int | None] | None = None,
    left: bool = False,
    **changes: Any,
) -> Explanation:
    """An explanation of one text for class 1, probability 0.7; scores beyond the tokens are padding, left or right."""
    count = len(scores) - 1 if tokens is None else len(tokens)
    padding = [False] * (len(scores) - count)
    probabilities = torch.tensor([[0.3, 0.7]])
    fields: dict[str, Any] = {
        "scores": torch.tensor([scores]),
        "target": torch.tensor([1]),
        "logits": probabilities.log(),
        "probabilities": probabilities,
        "method": "gae",
        "modality": "text",
        "class_names": ["negative", "positive"],
        "tokens": None if tokens is None else [tokens],
        "real": torch.tensor([padding + [True] * count if left else [True] * count + padding]),
        "words": None if words is None else [words],
    }
    return Explanation(**{**fields, **changes})


@pytest.fixture
def image() -> Make:
    return image_explanation


@pytest.fixture
def text() -> Make:
    return text_explanation


@pytest.fixture
def corner() -> torch.Tensor:
    """Scores (1, 8, 8) of 1 in the upper left quarter and 0 elsewhere."""
    scores = torch.zeros(1, 8, 8)
    scores[:, :4, :4] = 1
    return scores
