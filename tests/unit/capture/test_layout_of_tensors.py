"""Feature maps are told from other tensors by the aspect ratio of the image."""

import pytest
import torch

from mhex.capture.anatomy import layout_of


@pytest.mark.parametrize(
    ("shape", "image", "layout"),
    [
        ((2, 64, 4, 6), (32, 48), "nchw"),
        ((2, 4, 6, 64), (32, 48), "nhwc"),
        ((2, 8, 12, 16), (32, 48), "nhwc"),  # 12 x 16 has nearly the right ratio, 8 x 12 exactly
        ((2, 512, 7, 7), (224, 224), "nchw"),
        ((2, 7, 7, 768), (224, 224), "nhwc"),
        ((2, 7, 7, 7), (224, 224), "nchw"),  # no telling: channels first is the rule in torch
        ((2, 32, 7, 9), (50, 70), "nchw"),  # odd sizes, rounded at every stride
        ((2, 12, 197, 64), (224, 224), None),  # heads
        ((2, 512, 1, 1), (224, 224), None),  # pooled
    ],
)
def test_layout(shape, image, layout):
    assert layout_of(torch.Size(shape), torch.Size((2, 3, *image))) == layout
