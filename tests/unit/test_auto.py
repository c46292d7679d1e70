"""The default method: it serves every model, and says which it is."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import mhex
from mhex.auto import TABLE, kind_of
from mhex.capture import find_anatomy
from mhex.errors import ArgumentError, MhexWarning, ModelInUseError, UnsupportedModelError
from mhex.inputs import prepare
from mhex.inputs.preprocess import Preprocess
from mhex.methods import all_methods, get_method
from support.models import FAMILIES, enliven, with_heads

IMAGES = torch.randn(2, 3, 24, 24, generator=torch.Generator().manual_seed(0))


def test_every_row_names_methods_and_ends_in_some_that_ask_for_little() -> None:
    assert {name for row in TABLE.values() for name in row} <= set(all_methods())
    for kind in ("heads", "convolutions", "blocks", "text", "other", "concept"):
        assert TABLE[kind][-2:] == ("input-x-gradient", "occlusion")  # type: ignore[index]


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_has_the_first_method_of_its_row(name: str) -> None:
    family = FAMILIES[name]
    kind = "text" if family.modality == "text" else "blocks" if family.blocks else "convolutions"
    if family.heads and kind == "convolutions":
        kind = "heads"
    batch = prepare(family.model(), family.inputs(1), None, None).batch
    anatomy = find_anatomy(family.model(), batch)
    assert kind_of(family.model(), anatomy, None) == kind
    assert get_method(TABLE[kind][0]).refusal(anatomy) == ""  # type: ignore[index]


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("timm_vit", "conservative-lrp"),
        ("timm_avg", "conservative-lrp"),
        ("hf_bert", "conservative-lrp"),
        ("timm_resnet", "gradcam"),
        ("timm_swin", "gradcam"),
        ("plain_cnn_heads", "mhex"),
        ("timm_vit_heads", "conservative-lrp"),
    ],
)
def test_the_default_is_the_method_by_its_name(name: str, method: str) -> None:
    family = FAMILIES[name]
    e = mhex.explain(family.model(), family.inputs(2), target=[0, 1])
    assert (e.method, e.auto) == (method, True)
    plain = mhex.explain(family.model(), family.inputs(2), method, [0, 1])
    assert not plain.auto
    torch.testing.assert_close(e.scores, plain.scores)
    assert e.options == plain.options


class Odd(nn.Module):
    """An image classifier without feature maps, attention or operations that relevance rules know."""

    def __init__(self, cut: bool = False) -> None:
        super().__init__()
        self.fc, self.cut = nn.Linear(3 * 24 * 24, 5), cut

    def forward(self, x: Tensor) -> Tensor:
        x = torch.sinh(x.flatten(1))
        return self.fc(x.detach() if self.cut else x)


def test_models_that_the_first_methods_refuse_are_explained_by_the_next() -> None:
    assert mhex.explain(Odd(), IMAGES).method == "input-x-gradient"
    assert mhex.explain(Odd(cut=True), IMAGES).method == "occlusion"  # no gradient


def test_a_transformer_with_an_operation_without_a_rule_is_explained_by_gae(monkeypatch: pytest.MonkeyPatch) -> None:
    family = FAMILIES["timm_vit"]
    model = family.fresh()
    head = model.head.forward
    model.head.forward = lambda x: head(torch.sinh(x))
    with pytest.warns(
        MhexWarning, match=r"^method='auto' took 'gae', because 'conservative-lrp' cannot .*sinh"
    ) as told:
        e = mhex.explain(model, family.inputs(2))
    assert (e.method, e.auto) == ("gae", True)
    assert [record.filename for record in told] == [__file__]  # the user's line, not one of the library
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert mhex.explain(family.model(), family.inputs(2)).method == "conservative-lrp"  # nothing to be told


def test_half_precision_is_served() -> None:
    for name in ("timm_vit", "plain_cnn"):
        family = FAMILIES[name]
        model = family.fresh().to(torch.bfloat16)
        e = mhex.explain(model, family.inputs(2).to(torch.bfloat16))
        assert bool(e.scores.isfinite().all())


def test_heads_that_say_nothing_yet_are_not_asked() -> None:
    model = FAMILIES["plain_cnn"].fresh()
    mhex.attach(model, 7)  # its equivalent matrices are 0
    assert mhex.explain(model, FAMILIES["plain_cnn"].inputs(1)).method == "gradcam"
    assert mhex.explain(enliven(with_heads(FAMILIES["plain_cnn"].fresh())), IMAGES.double()).method == "mhex"


def test_concepts_and_functions_have_defaults_too() -> None:
    for name, method in (("timm_vit", "cdam"), ("plain_cnn", "gradcam"), ("plain_cnn_heads", "gradcam")):
        family = FAMILIES[name]
        concept = mhex.Concept.from_examples(family.model(), family.inputs(2))
        assert mhex.explain(family.model(), family.inputs(2), target=concept).method == method
    for name, method in (("timm_vit", "conservative-lrp"), ("plain_cnn_heads", "gradcam")):
        family = FAMILIES[name]
        e = mhex.explain(family.model(), family.inputs(2), target=lambda z: z[:, 0] - z[:, 1])
        assert (e.method, e.target) == (method, None)


def test_options_need_a_method() -> None:
    family = FAMILIES["timm_vit"]
    with pytest.raises(ArgumentError, match=r"method beside the option 'start_block'.*name it with method="):
        mhex.explain(family.model(), family.inputs(1), start_block=2)
    with pytest.raises(ArgumentError, match=r"no argument 'methd'\. Did you mean method=\?"):
        mhex.explain(family.model(), family.inputs(1), methd="gradcam")
    with pytest.raises(ArgumentError, match=r"no argument 'classnames'\. Did you mean class_names=\?"):
        mhex.explain(family.model(), family.inputs(1), "gae", classnames=["cat"])
    with pytest.raises(ArgumentError, match=r"no option 'start'.*start_block=1"):
        mhex.explain(family.model(), family.inputs(1), "rollout", start=2)
    with pytest.raises(ArgumentError, match=r"'auto' is for mhex\.explain"):
        mhex.evaluate(family.model(), family.inputs(1), ["auto"], ["compactness"])


def backbone(name: str) -> tuple[nn.Module, Any]:
    if name == "timm ViT":
        timm = pytest.importorskip("timm")
        return timm.create_model("vit_tiny_patch16_224", num_classes=0, img_size=24, patch_size=8, depth=2), IMAGES
    if name in ("timm ResNet", "timm ConvNeXt"):
        timm = pytest.importorskip("timm")
        kind = {"timm ResNet": "resnet10t", "timm ConvNeXt": "test_convnext"}[name]
        return timm.create_model(kind, num_classes=0), IMAGES.repeat(1, 1, 3, 3)[..., :64, :64]
    family = FAMILIES[name]
    model = family.model()
    return model.base_model, family.inputs(2)


@pytest.mark.parametrize(
    ("name", "methods"),
    [
        ("timm ViT", ("attention", "rollout", "eigencam")),
        ("timm ResNet", ("eigencam",)),
        ("timm ConvNeXt", ("eigencam",)),
        ("hf_vit", ("attention", "rollout")),
        ("hf_bert", ("attention", "rollout")),
    ],
)
def test_backbones_without_a_classifier(name: str, methods: tuple[str, ...]) -> None:
    model, x = backbone(name)
    model = model.eval()
    for method in (*methods, "auto"):
        e = mhex.explain(model, x, method)
        assert (e.target, e.probabilities, e.values) == (None, None, None)
        assert e.target_names(0) == ["no target"]
        assert e.target_probabilities(0) == [None]
        assert e.scores.shape[0] == 2
    assert e.method == ("eigencam" if name in ("timm ResNet", "timm ConvNeXt") else "rollout")
    for method in (methods[0], "input-x-gradient"):
        with pytest.raises(UnsupportedModelError, match="classifier"):
            mhex.explain(model, x, method, 3)
    with pytest.raises(UnsupportedModelError, match="classifier"):
        mhex.explain(model, x, "input-x-gradient")


def test_an_explanation_without_a_target_is_drawn_and_saved(tmp_path: Any) -> None:
    model, x = backbone("timm ViT")
    e = mhex.explain(model.eval(), x)
    e.save(tmp_path / "e.png")
    e.save(tmp_path / "e.html")
    e.save(tmp_path / "e.safetensors")
    again = mhex.Explanation.load(tmp_path / "e.safetensors")
    assert (again.method, again.auto, again.target, again.values) == ("rollout", True, None, None)


def test_a_model_that_is_in_use_is_no_reason_for_another_method(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def refuse(*args: Any, **options: Any) -> Any:
        calls.append(1)
        raise ModelInUseError("Another thread changed the model.")

    monkeypatch.setattr(sys.modules["mhex.explainer"], "observe", refuse)
    with pytest.raises(ModelInUseError):
        mhex.explain(FAMILIES["timm_resnet"].model(), FAMILIES["timm_resnet"].inputs(1))
    assert len(calls) == 1


def test_the_default_sees_photos_through_the_window() -> None:
    """A photo of 12 bits, explained with and without the name of the method."""
    family = FAMILIES["timm_resnet"]
    size = family.inputs(1).shape[-2:]
    values = torch.arange(size[0] * size[1]).reshape(size) % 4096
    photo = Image.fromarray(values.numpy().astype(np.uint16))
    preprocess = Preprocess(*size, (0.5, 0.5, 0.5), (0.2, 0.2, 0.2))
    options: Any = {"preprocess": preprocess, "window": (0, 4095)}
    named = mhex.explain(family.model(), [photo], "gradcam", **options)
    torch.testing.assert_close(mhex.explain(family.model(), [photo], **options).logits, named.logits)
    with pytest.raises(ArgumentError, match="window"):
        mhex.explain(family.model(), [photo], preprocess=preprocess, window="bad")
