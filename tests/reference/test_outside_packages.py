"""Agreement with other people's implementations, where they come as a package."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from support.cases import explain
from support.models import CLASSES, FAMILIES, Family


@functools.cache
def resnet18() -> nn.Module:
    """The stock network with its own initialisation, and statistics that make every layer matter."""
    torchvision = pytest.importorskip("torchvision", reason="ResNet-18 comes from torchvision")
    torch.manual_seed(0)
    model = torchvision.models.resnet18(num_classes=CLASSES).train()
    with torch.no_grad():
        for _ in range(3):
            model(torch.randn(8, 3, 64, 96))
    return model.eval()


RESNET18 = Family("resnet18", resnet18, size=(64, 96), features="layer4.1", feature_grid=(2, 3))
SUBJECTS = {
    "resnet18": RESNET18,
    **{
        name: FAMILIES[name]
        for name in [
            "tv_convnext",
            "timm_convnext",
            "timm_resnet",
            "tv_efficientnet",
            "timm_efficientnet",
            "timm_swin",
            "tv_swin",
            "timm_vit",
            "timm_registers",
            "timm_deit_distilled",
            "hf_dinov2",
            "tv_vit",
        ]
    },
}
every_subject = pytest.mark.parametrize("family", SUBJECTS.values(), ids=SUBJECTS)


def model_of(family: Family) -> nn.Module:
    return resnet18() if family is RESNET18 else family.model(torch.float32)


class LogitsOnly(nn.Module):
    """Other packages want a plain tensor back."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        output = self.model(x)
        return output if isinstance(output, Tensor) else output.logits


def to_maps(family: Family, tensor: Tensor) -> Tensor:
    """(B, C, h, w) whatever the layout; all prefix tokens dropped, the real grid."""
    if family.layout == "tokens":
        rows, columns = family.grid
        return tensor[:, family.prefix :].reshape(len(tensor), rows, columns, -1).permute(0, 3, 1, 2)
    return tensor.permute(0, 3, 1, 2) if family.layout == "nhwc" else tensor


def scaled(maps: Tensor) -> Tensor:
    """Each map from 0 to 1."""
    low, high = maps.amin((1, 2), keepdim=True), maps.amax((1, 2), keepdim=True)
    return (maps - low) / (high - low).clamp_min(1e-12)


@every_subject
def test_gradcam_of_captum(family: Family) -> None:
    captum = pytest.importorskip("captum.attr", reason="captum is not installed (extra 'dev')")
    if family.layout != "nchw":
        pytest.skip("captum takes the mean over all axes but the second: only channels-first maps are Grad-CAM")
    model, images = model_of(family), family.inputs(3, torch.float32)
    theirs = captum.LayerGradCam(model, model.get_submodule(family.features))
    for target in (1, 4):
        wanted = theirs.attribute(images, target=target, relu_attributions=True)[:, 0].detach()
        ours = explain(model, images, "gradcam", target=target).scores
        assert ours.shape == wanted.shape
        assert float((ours - wanted).abs().max()) <= 1e-4 * float(wanted.abs().max())
        assert float(wanted.abs().max()) > 0


@every_subject
@pytest.mark.parametrize("method", ["gradcam", "layercam"])
def test_cams_of_pytorch_grad_cam(method: str, family: Family) -> None:
    package = pytest.importorskip("pytorch_grad_cam", reason="grad-cam is not installed (extra 'dev')")
    from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

    model, images = LogitsOnly(model_of(family)), family.inputs(3, torch.float32)
    layer = model.model.get_submodule(family.features)
    reshape = None if family.layout == "nchw" else functools.partial(to_maps, family)
    kind: Any = package.GradCAM if method == "gradcam" else package.LayerCAM
    target = 2
    with kind(model=model, target_layers=[layer], reshape_transform=reshape) as cam:
        theirs = cam(input_tensor=images, targets=[ClassifierOutputTarget(target)] * 3)
    ours = explain(model.model, images, method, target=target).scores
    # The package scales each map from 0 to 1, resizes it bilinearly and scales it again.
    resized = F.interpolate(scaled(ours)[:, None], size=family.size, mode="bilinear", align_corners=False)[:, 0]
    assert theirs.shape == resized.shape
    assert np.abs(scaled(resized).numpy() - theirs).max() <= 1e-4
    assert float(ours.abs().max()) > 0


@pytest.mark.parametrize("name", ["tv_resnet", "timm_vit", "plain_cnn", "timm_swin"])
def test_input_x_gradient_of_captum(name: str) -> None:
    captum = pytest.importorskip("captum.attr", reason="captum is not installed (extra 'dev')")
    family = FAMILIES[name]
    model, images = family.model(torch.float32), family.inputs(2, torch.float32)
    wanted = captum.InputXGradient(model).attribute(images.clone().requires_grad_(), target=3).sum(1).detach()
    ours = explain(model, images, "input-x-gradient", target=3).scores
    assert float((ours - wanted).abs().max()) <= 1e-4 * float(wanted.abs().max())


@pytest.mark.parametrize("name", ["hf_bert", "hf_distilbert"])
def test_text_input_x_gradient_of_captum(name: str) -> None:
    """captum's layer version, at the embedding layer."""
    captum = pytest.importorskip("captum.attr", reason="captum is not installed (extra 'dev')")
    family = FAMILIES[name]
    model, inputs = family.model(torch.float32), family.inputs(3)

    def forward(ids: Tensor, mask: Tensor) -> Tensor:
        return model(input_ids=ids, attention_mask=mask).logits

    theirs = captum.LayerGradientXActivation(forward, model.get_input_embeddings())
    wanted = theirs.attribute(inputs["input_ids"], additional_forward_args=(inputs["attention_mask"],), target=3)
    wanted = wanted.sum(-1).detach()
    e = explain(model, inputs, "input-x-gradient", target=3)
    assert float((e.scores + e.special - wanted).abs().max()) <= 1e-4 * float(wanted.abs().max())
