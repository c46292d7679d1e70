"""Every code block on the pages of the metrics runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

import mhex
from mhex.bundle import Bundle
from mhex.inputs import InputParts
from mhex.metrics import list_metrics
from support.models import enliven
from support.tiny_bert import bert, tokenizer

pytestmark = pytest.mark.slow  # some twenty seconds

PAGES = Path(__file__).parents[2] / "docs" / "metrics"
NAMES = [row["name"] for row in list_metrics()]
SIDE, COUNT = 16, 4


class Scaled:
    """A preprocess that says how it normalises."""

    def __init__(self, channels: int) -> None:
        self.mean, self.std = (0.5,) * channels, (0.25,) * channels

    def __call__(self, photo: Any) -> Tensor:
        raise NotImplementedError


class Colour(nn.Module):
    """Sure of the class whose channel is the brightest, so that mosaics can be made of its images."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(6, 6, 2, 2, bias=False) for _ in range(2))
        self.head = nn.Linear(6, 6, bias=False)
        for conv in (self.first, self.second):
            conv.weight.data.copy_((torch.eye(6)[..., None, None] / 4).expand(6, 6, 2, 2))
        self.head.weight.data.copy_(torch.eye(6) * 20)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.second(torch.relu(self.first(x)))).mean((2, 3)))


def vit(seed: int) -> nn.Module:
    small = {"img_size": SIDE, "patch_size": 4, "depth": 1, "embed_dim": 12, "num_heads": 2, "num_classes": 4}
    return enliven(timm.create_model("vit_tiny_patch16_224", **small).requires_grad_(False), seed).eval()


def of_images() -> dict[str, Any]:
    draw = torch.Generator().manual_seed(0)
    model = vit(1)
    images = torch.randn(COUNT, 3, SIDE, SIDE, generator=draw)
    labels, masks = torch.arange(COUNT), torch.randint(0, 2, (COUNT, SIDE, SIDE), generator=draw)
    others = (model(images).argmax(1) + 1) % 4
    strips = torch.eye(4).bool()[:, None].repeat_interleave(SIDE // 4, 2).expand(4, SIDE, SIDE)
    parts = [InputParts(strips, without=[image.masked_fill(strip, 0.0) for strip in strips]) for image in images]
    data = {"inputs": images, "label": labels, "mask": masks, "other": others, "parts": parts}
    given = {"images": images, "labels": labels, "masks": masks, "others": others, "data": data, "parts": parts}
    return {"bundle": Bundle("tiny", model, Scaled(3)), "relabelled": vit(2), **given}


def of_mosaics() -> dict[str, Any]:
    labels = torch.arange(12) % 6
    bright = nn.functional.one_hot(labels, 6).float()[:, :, None, None]
    images = bright * torch.rand(12, 6, SIDE, SIDE, generator=torch.Generator().manual_seed(0)).add(1)
    return {"bundle": Bundle("colour", Colour().eval(), Scaled(6)), "images": images, "labels": labels}


def without_word(text: str, number: int) -> str:
    words = text.split()
    return " ".join(words[:number] + words[number + 1 :])


def of_texts() -> dict[str, Any]:
    texts = ["a good seaside film", "bad plot , long play", "good player a b"]
    rationale, labels = [[1, 2], [0], [0, 1]], torch.tensor([0, 1, 2])
    data = [{"text": t, "rationale": r, "label": n} for n, (t, r) in enumerate(zip(texts, rationale, strict=True))]
    parts = [InputParts(words=((0,), (1,)), without=[without_word(t, n) for n in (0, 1)]) for t in texts]
    given = {"texts": texts, "labels": labels, "rationale": rationale, "data": data, "parts": parts}
    return {"bundle": Bundle("words", bert(), tokenizer=tokenizer()), **given}


def blocks(name: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (PAGES / f"{name}.md").read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", NAMES)
def test_the_blocks_of_a_page_run(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = blocks(name)
    spec = mhex.metrics.get_metric(name)
    assert len(found) >= 1 + len(spec.modalities)
    for block in found:
        text = "tokenizer" in block or (spec.modalities == ("text",) and "evaluate" in block)
        given = of_texts() if text else of_mosaics() if "mosaics" in block else of_images()
        exec(block, given)
        if "metric" in given:
            value = given["metric"].compute()
            assert value["n"] > 0
        if "report" in given:
            assert name in "".join(given["report"].metrics)
            assert name in capsys.readouterr().out


def test_every_preset_is_made_on_its_page() -> None:
    for name in NAMES:
        page = "\n".join(blocks(name))
        for preset in mhex.metrics.get_metric(name).presets:
            assert preset == "default" or f'.metric("{preset}")' in page


def test_what_is_special_is_shown() -> None:
    assert "mosaics(" in "".join(blocks("grid-pointing-game"))
    assert all(f"relabelled={how}" in "".join(blocks("randomization")) for how in ("relabelled", "lambda"))
