"""timm models outside of the families that have an adapter: explained rightly or refused, never a stray error."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mhex.errors import MhexError
from support.cases import explain
from support.models import CLASSES, enliven

timm = pytest.importorskip("timm", reason="the models come from timm")

SMALL = {"embed_dim": 48, "depth": 2, "num_heads": 4}
# name, options, image size, patch grid; a grid of None: attention methods must refuse
MODELS: dict[str, tuple[dict[str, Any], int, tuple[int, int] | None]] = {
    "eva02_tiny_patch14_224": ({**SMALL, "img_size": 56}, 56, (4, 4)),
    "vit_small_patch16_dinov3": ({**SMALL, "img_size": 64}, 64, (4, 4)),
    "beit_base_patch16_224": ({**SMALL, "img_size": 64}, 64, (4, 4)),
    "deit3_small_patch16_224": ({**SMALL, "img_size": 64}, 64, (4, 4)),
    "vit_relpos_small_patch16_224": ({**SMALL, "img_size": 64}, 64, (4, 4)),
    "vit_base_patch16_rpn_224": ({**SMALL, "img_size": 64}, 64, (4, 4)),
    "cait_xxs24_224": ({**SMALL, "img_size": 64}, 64, None),
    "samvit_base_patch16_224": ({**SMALL, "img_size": 64}, 64, None),
    "vit_small_patch16_18x2_224": ({**SMALL, "img_size": 64}, 64, None),
    "test_byobnet": ({}, 64, None),
    "test_mambaout": ({}, 64, None),
    "test_nfnet": ({}, 64, None),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("method", ["gae", "rollout", "gradcam", "input-x-gradient"])
def test_explained_or_refused(name: str, method: str) -> None:
    options, size, grid = MODELS[name]
    if name not in timm.list_models():
        pytest.skip(f"this version of timm has no {name}")
    model = enliven(timm.create_model(name, pretrained=False, num_classes=CLASSES, **options)).eval()
    images = torch.randn(2, 3, size, size)
    try:
        e = explain(model, images, method, target=0)
    except MhexError:
        assert method in ("gae", "rollout", "gradcam")
        assert method == "gradcam" or grid is None, "the grid of this model can be read"
        return
    assert torch.isfinite(e.scores).all()
    if method == "input-x-gradient":
        assert e.scores.shape == (2, size, size)
    elif method == "gradcam":
        height, width = e.scores.shape[1:]
        assert height == width, "square images have square maps"
        assert size % height == 0, "a map is a grid of whole cells"
    else:
        assert e.scores.shape == (2, *grid)
    with torch.no_grad():
        assert torch.allclose(e.logits, model(images), atol=1e-4)
