"""Agreement with captum, pytorch-grad-cam and shap where they compute the same, to a relative 1e-5."""

from __future__ import annotations

import copy
import functools
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mhex
from reference.test_outside_packages import SUBJECTS, LogitsOnly, model_of, scaled, to_maps
from support.formulas_classics import blurred
from support.formulas_tokens import drawn
from support.models import FAMILIES, Family, call

MODELS = [pytest.param("tv_resnet", marks=pytest.mark.slow), "timm_vit", "plain_cnn", "timm_swin"]


def captum() -> Any:
    return pytest.importorskip("captum.attr", reason="captum is not installed (extra 'dev')")


def close(got: Tensor, wanted: Tensor, tolerance: float = 1e-5) -> None:
    assert got.shape == wanted.shape
    assert float(wanted.abs().max()) > 0
    assert float((got.double() - wanted.double()).abs().max()) <= tolerance * float(wanted.abs().max())


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("steps", [5, pytest.param(50, marks=pytest.mark.slow)])
def test_integrated_gradients_of_captum(name: str, steps: int) -> None:
    family = FAMILIES[name]
    model, images = family.model(), family.inputs(2)
    start = 0.1 * torch.ones_like(images)
    for rule, theirs in (("gauss", "gausslegendre"), ("midpoint", "riemann_middle"), ("right", "riemann_right")):
        wanted = captum().IntegratedGradients(model).attribute(images, start, 3, n_steps=steps, method=theirs).sum(1)
        got = mhex.explain(model, images, "integrated-gradients", 3, steps=steps, rule=rule, baseline=start)
        close(got.scores, wanted.detach())  # captum rounds its weights to float32


@pytest.mark.parametrize("name", ["hf_bert", "hf_distilbert"])
def test_integrated_gradients_of_words_of_captum(name: str) -> None:
    family = FAMILIES[name]
    model, inputs = family.model(), family.inputs(3)

    def forward(ids: Tensor, mask: Tensor) -> Tensor:
        return call(model, {"input_ids": ids, "attention_mask": mask})

    theirs = captum().LayerIntegratedGradients(forward, model.get_input_embeddings())
    pad = torch.zeros_like(inputs["input_ids"])
    wanted = theirs.attribute(
        inputs["input_ids"], pad, additional_forward_args=(inputs["attention_mask"],), target=3, n_steps=20
    ).sum(-1)
    got = mhex.explain(model, inputs, "integrated-gradients", 3, baseline="pad", steps=20)
    close(got.scores + got.special, wanted.detach() * inputs["attention_mask"])


@pytest.mark.parametrize("name", MODELS)
def test_smoothgrad_of_captum(name: str) -> None:
    """With the same noise, which captum takes from its own generator."""
    family = FAMILIES[name]
    model, images = family.model(), family.inputs(2)
    level = 0.2 * (images.amax((1, 2, 3), keepdim=True) - images.amin((1, 2, 3), keepdim=True))
    saliency = captum().Saliency(model)
    noisy = [(images + level * drawn(r, *images.shape[1:], seed=4)).requires_grad_() for r in range(4)]
    wanted = sum(saliency.attribute(x, target=2, abs=False) for x in noisy).sum(1).detach() / 4
    close(mhex.explain(model, images, "smoothgrad", 2, n=4, sigma=0.2, seed=4).scores, wanted, 1e-9)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("window", "stride"), [((8, 8), (8, 8)), ((11, 13), (7, 9))])
def test_occlusion_of_captum(name: str, window: tuple[int, int], stride: tuple[int, int]) -> None:
    family = FAMILIES[name]
    model, images = family.model(), family.inputs(2)
    wanted = (
        captum()
        .Occlusion(model)
        .attribute(images, (3, *window), strides=(3, *stride), target=3, baselines=0.25, perturbations_per_eval=8)
    )[:, 0]
    got = mhex.explain(model, images, "occlusion", 3, patch=window, stride=stride, fill=0.25).scores
    if window == stride:
        wanted = wanted[:, :: window[0], :: window[1]]
    close(got, wanted)  # captum answers in float32


FEW = ("resnet18", "timm_convnext", "timm_vit", "timm_swin")


def their_cam(kind: str, model: nn.Module, family: Family, images: Tensor, target: int) -> Tensor:
    package = pytest.importorskip("pytorch_grad_cam", reason="grad-cam is not installed (extra 'dev')")
    from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

    layer = model.model.get_submodule(family.features)
    reshape = None if family.layout == "nchw" else functools.partial(to_maps, family)
    with getattr(package, kind)(model=model, target_layers=[layer], reshape_transform=reshape) as cam:
        cam.batch_size = 32
        grid = cam.get_cam_image

        def kept(*args: Any, **kwargs: Any) -> Any:
            kept.maps = grid(*args, **kwargs)
            return kept.maps

        cam.get_cam_image = kept
        cam(input_tensor=images, targets=[ClassifierOutputTarget(target)] * len(images))
    return torch.as_tensor(kept.maps)


@pytest.mark.parametrize("name", FEW)
def test_gradcam_plus_plus_of_pytorch_grad_cam(name: str) -> None:
    family = SUBJECTS[name]
    model, images = copy.deepcopy(model_of(family)).double(), family.inputs(3)
    wanted = their_cam("GradCAMPlusPlus", LogitsOnly(model), family, images, 2).clamp_min(0)
    close(mhex.explain(model, images, "gradcam++", 2).scores, wanted)


@pytest.mark.parametrize("name", FEW)
def test_eigencam_of_pytorch_grad_cam(name: str) -> None:
    """Up to the sign, which is arbitrary there: ours is the one whose largest value is above zero."""
    family = SUBJECTS[name]
    model, images = copy.deepcopy(model_of(family)).double(), family.inputs(3)
    wanted = their_cam("EigenCAM", LogitsOnly(model), family, images, 2)
    signs = torch.where(wanted.amin((1, 2)).abs() > wanted.amax((1, 2)).abs(), -1.0, 1.0)
    close(mhex.explain(model, images, "eigencam").scores, (signs[:, None, None] * wanted).clamp_min(0))


@pytest.mark.parametrize("name", [pytest.param("resnet18", marks=pytest.mark.slow), *FEW[1:]])
def test_scorecam_of_pytorch_grad_cam(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It enlarges maps with their corners on the corners of the image, so ours do here too."""
    family = SUBJECTS[name]
    model, images = model_of(family), family.inputs(2, torch.float32)
    wanted = their_cam("ScoreCAM", LogitsOnly(model), family, images, 2).clamp_min(0)
    own = F.interpolate
    monkeypatch.setattr(
        "mhex.methods.scorecam.F.interpolate", lambda *args, **kwargs: own(*args, **{**kwargs, "align_corners": True})
    )
    close(mhex.explain(model, images, "scorecam", 2).scores, wanted)
    assert float(scaled(wanted).max()) == 1


@pytest.mark.parametrize("evaluations", [30, pytest.param(400, marks=pytest.mark.slow)])
def test_shap_of_its_own_image_masker(evaluations: int) -> None:
    """Raw pixels, height x width x colours, each colour a feature of its own; a background that was blurred before."""
    shap = pytest.importorskip("shap", reason="shap is not installed")
    family = FAMILIES["timm_vit"]
    model, images = family.model(), family.inputs(2)

    def probabilities(pictures: Any) -> Any:
        with torch.no_grad():
            return call(model, torch.as_tensor(pictures).permute(0, 3, 1, 2)).softmax(1)[:, [4]].numpy()

    got = mhex.explain(model, images, "shap", [1, 4], max_evals=evaluations, seed=3)
    for n, image in enumerate(images):
        np.random.seed(3)
        background = blurred(image).permute(1, 2, 0).numpy()
        masker = shap.maskers.Image(background, (*family.size, 3))
        explainer = shap.PartitionExplainer(probabilities, masker)
        theirs = explainer(image.permute(1, 2, 0).numpy()[None], max_evals=evaluations, batch_size=32, silent=True)
        close(got.scores[n, 1], torch.as_tensor(theirs.values[0]).sum((2, 3)), 1e-9)
