"""Per family: which methods serve it, what the library finds in it, and the names of its classes."""

from __future__ import annotations

import pytest

from mhex.capture import find_anatomy, known_anatomy
from mhex.inputs import prepare
from support.cases import METHODS, explain, serving
from support.models import CLASSES, FAMILIES, Family

ATTENTION = {"attention", "rollout", "attention-flow", "attention-gradcam", "gae"}
ATTENTION |= {"agcam", "attcat", "cdam", "cdam-integrated", "cdam-smooth", "gradtoken"}
PARTS = {"tokentm"}  # reads MLPs and projections, which unknown models do not show
MASKS = {"vit-cx"}  # hides parts of images
MAPS = {"gradcam", "gradcam++", "layercam", "scorecam", "eigencam"}
INPUT = {"input-x-gradient", "smoothgrad", "integrated-gradients", "occlusion", "rise", "shap"}
HEADS = {"mhex"}
VIT, TEXT = ATTENTION | PARTS | MASKS | MAPS | INPUT, ATTENTION | PARTS | INPUT

# Of the methods named here, exactly these serve the family. Methods that are not named are left to the registry.
TABLE: dict[str, set[str]] = {
    "timm_vit": VIT,
    "timm_vit_dynamic": VIT,
    "timm_deit_distilled": VIT,
    "timm_registers": VIT,
    "timm_avg_class_token": VIT,
    "timm_avg": VIT,
    "timm_map": VIT,
    "hf_vit": VIT,
    "hf_deit": VIT,
    "hf_deit_teacher": VIT,
    "hf_dinov2": VIT,
    "hf_dinov2_registers": VIT,
    "hf_bert": TEXT,
    "hf_roberta": TEXT,
    "hf_distilbert": TEXT,
    "tv_vit": VIT,
    "tv_resnet": MAPS | INPUT,
    "timm_resnet": MAPS | INPUT,
    "tv_convnext": MAPS | INPUT,
    "timm_convnext": MAPS | INPUT,
    "tv_efficientnet": MAPS | INPUT,
    "timm_efficientnet": MAPS | INPUT,
    "timm_swin": MAPS | INPUT,
    "tv_swin": MAPS | INPUT,
    "plain_cnn": MAPS | INPUT,
    "plain_vit": ATTENTION | MASKS | INPUT,
    "plain_vit_shared": ATTENTION | MASKS | INPUT,
    "encoder_vit": ATTENTION | MASKS | INPUT,
    "encoder_text": ATTENTION | INPUT,
    "tv_resnet_heads": MAPS | INPUT | HEADS,
    "timm_convnext_heads": MAPS | INPUT | HEADS,
    "timm_vit_heads": VIT | HEADS,
    "tv_vit_heads": VIT | HEADS,
    "hf_bert_heads": TEXT | HEADS,
    "hf_distilbert_heads": TEXT | HEADS,
    "plain_cnn_heads": MAPS | INPUT | HEADS,
}

every_family = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)


def test_every_family_is_in_the_table() -> None:
    assert TABLE.keys() == FAMILIES.keys()
    assert METHODS.keys() >= VIT | HEADS


@every_family
def test_methods_that_serve_a_family(family: Family) -> None:
    named = VIT | HEADS
    assert named & set(serving(family.name)) == TABLE[family.name]


@every_family
def test_what_is_read_off_a_model_is_what_was_built_into_it(family: Family) -> None:
    """What the library reads off a model is what was built into it."""
    model = family.model()
    batch = prepare(model, family.inputs(2)).batch
    anatomy = find_anatomy(model, batch)
    assert anatomy.modality == family.modality
    assert len(anatomy.blocks) == family.blocks
    stock = not family.name.startswith(("plain", "encoder"))
    assert (known_anatomy(model) is not None) == stock, "stock models are known without running them"
    if family.blocks:
        assert anatomy.prefix_tokens == family.prefix
        assert anatomy.readout == family.readout
    if family.grid is not None:
        assert anatomy.grid(*family.size) == family.grid
    if family.features is not None:
        assert anatomy.features.name == family.features
        assert anatomy.features.module is model.get_submodule(family.features)
    else:
        assert anatomy.features is None
    if family.size is not None:
        assert anatomy.channels == 3


@every_family
def test_class_names_of_the_model(family: Family) -> None:
    """Hugging Face models carry names; others have none unless they are given."""
    e = explain(family.model(), family.inputs(1), "input-x-gradient")
    if family.name.startswith("hf"):
        assert e.class_names == [f"LABEL_{i}" for i in range(CLASSES)]
        by_name = explain(family.model(), family.inputs(1), "input-x-gradient", target="LABEL_2")
        assert by_name.target.tolist() == [2]
    else:
        assert e.class_names is None
