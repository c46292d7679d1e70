"""Explaining by concepts: models with and without a classifier, every method, one concept or several."""

import functools
from typing import Any

import pytest
import torch
from torch import nn

import mhex
from mhex import Concept
from mhex.errors import ArgumentError, ArgumentTypeError, UnsupportedModelError
from mhex.registry import Method
from support.cases import METHODS, assert_same, cases, explain, serving
from support.models import CLASSES, FAMILIES, Family
from support.snapshot import Snapshot

SCORE_METHODS = [name for name, method in METHODS.items() if method.target != "class"]
# Families with their classifier's weights, as rows of a linear layer that reads the latent vector.
LINEAR = {
    "timm_vit": "head",
    "hf_vit": "classifier",
    "hf_dinov2": "classifier",
    "tv_vit": "heads.head",
    "tv_resnet": "fc",
}
BARE = ("timm_vit", "timm_avg", "hf_vit", "hf_deit", "hf_dinov2", "hf_bert", "hf_roberta", "hf_distilbert", "tv_resnet")


@functools.cache
def concept(family: str, seed: int = 0, similarity: str = "dot") -> Concept:
    """A direction of our own, in the latent space of a family."""
    width = len(Concept.from_examples(FAMILIES[family].model(), FAMILIES[family].inputs(2)).latent)
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(width, generator=generator, dtype=torch.float64)
    return Concept(drawn, f"concept {seed}", similarity)  # type: ignore[arg-type]


@cases(
    ("timm_vit", "timm_map", "hf_dinov2", "hf_bert", "tv_vit", "timm_resnet", "plain_cnn", "plain_vit"),
    where=lambda method, family: method.target != "class",
    cover=True,
    slow_others=True,
)
def test_a_list_of_concepts_equals_one_at_a_time(method: str, family: Family) -> None:
    model, inputs = family.model(), family.inputs(3)
    both = [concept(family.name, 0), concept(family.name, 1, "cosine")]
    together = explain(model, inputs, method, target=both)
    assert together.several
    assert together.target is None
    assert together.named == ["concept 0", "concept 1 (cosine)"]
    for k, one in enumerate(both):
        alone = explain(model, inputs, method, target=one)
        assert not alone.several
        assert alone.target_names(0) == [one.label]
        assert_same(together.scores[:, k], alone.scores, method)
        torch.testing.assert_close(together.values[:, k], alone.values, rtol=1e-10, atol=1e-12)
        assert [together.target_values(n)[k] for n in range(3)] == pytest.approx(alone.values.tolist())
    assert bool(together.scores.any())
    if METHODS[method].class_specific:
        assert not torch.allclose(together.scores[:, 0], together.scores[:, 1])


def input_gradient(model: nn.Module, reader: str, x: torch.Tensor, score: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The score of a plain call's latent vector and its gradient by the input, by a hook of our own."""
    kept: list[torch.Tensor] = []
    x = x.clone().requires_grad_()
    handle = model.get_submodule(reader).register_forward_pre_hook(lambda _, args: kept.append(args[0]))
    model(x)
    handle.remove()
    found = score(kept[-1])
    return found.detach(), torch.autograd.grad(found.sum(), x)[0]


@pytest.mark.parametrize("name", ["timm_vit", "tv_resnet"])
@pytest.mark.parametrize("similarity", ["dot", "cosine", "l2"])
def test_scores_and_gradients_by_hand(name: str, similarity: str) -> None:
    family = FAMILIES[name]
    model, x = family.model(), family.inputs(3)
    target = concept(name, 2, similarity)
    c = target.latent
    formulas = {
        "dot": lambda v: (v * c).sum(1),
        "cosine": lambda v: (v * c).sum(1) / (v.square().sum(1).sqrt() * c.square().sum().sqrt()),
        "l2": lambda v: -(v - c).square().sum(1).sqrt(),
    }
    values, gradient = input_gradient(model, LINEAR[name], x, formulas[similarity])
    e = mhex.explain(model, x, "input-x-gradient", target)
    torch.testing.assert_close(e.values, values, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(e.scores, (x * gradient).sum(1), rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("name", LINEAR)
def test_a_row_of_the_classifier_is_its_class(name: str) -> None:
    """With a linear classifier the logit is the dot product with a row, and a bias that no gradient sees."""
    family = FAMILIES[name]
    model, inputs = family.model(), family.inputs(2)
    rows, bias = model.get_submodule(LINEAR[name]).weight, model.get_submodule(LINEAR[name]).bias
    for method in ("cdam", "gae", "gradtoken", "cdam-integrated") if family.blocks else ("gradcam", "input-x-gradient"):
        by_class = mhex.explain(model, inputs, method, [2, 5])
        by_row = mhex.explain(model, inputs, method, [Concept(rows[k].detach()) for k in (2, 5)])
        assert_same(by_row.scores, by_class.scores, method)
        torch.testing.assert_close(by_row.values + bias[[2, 5]], by_class.values)


def bare(family: Family) -> nn.Module:
    """The same weights without a classifier."""
    model = family.fresh()
    if family.name.startswith("timm"):
        model.reset_classifier(0)  # type: ignore[operator]
        return model
    if family.name.startswith("tv"):
        model.fc = nn.Identity()
        return model
    return model.get_submodule(family.name.removeprefix("hf_"))


def _comparable(method: Method, family: Family) -> bool:
    """The classifier of DINOv2 reads the patches too, so that GAE starts from another row there."""
    known = ("cdam", "cdam-smooth", "cdam-integrated", "gae", "gradtoken", "gradcam")
    return method.name in known and not (family.name == "hf_dinov2" and method.name == "gae")


@cases(BARE, where=_comparable)
def test_backbones_without_a_classifier(method: str, family: Family) -> None:
    model, inputs = bare(family), family.inputs(3)
    made = Concept.from_examples(model, inputs)
    target = on_classifier = concept("hf_vit", 3) if len(made.latent) == 32 else Concept(made.latent)
    with_classifier = Concept.from_examples(family.model(), inputs)
    if family.name == "hf_dinov2":  # its classifier reads the class token and the mean of the patches
        with_classifier = Concept(with_classifier.latent[:32])
        on_classifier = Concept(torch.cat([target.latent, torch.zeros(32)]))
    torch.testing.assert_close(made.latent, with_classifier.latent, rtol=1e-10, atol=1e-12)
    got = explain(model, inputs, method, target=target)
    wanted = explain(family.model(), inputs, method, target=on_classifier)
    assert bool(got.scores.any())
    assert_same(got.scores, wanted.scores, method)
    torch.testing.assert_close(got.values, wanted.values, rtol=1e-10, atol=1e-12)
    assert got.probabilities is None
    if family.name.startswith("hf"):
        assert type(model).__name__.endswith("Model")


def test_the_pooler_of_a_backbone_does_not_matter() -> None:
    from transformers import ViTModel

    plain = bare(FAMILIES["hf_vit"])
    pooled = ViTModel(plain.config, add_pooling_layer=True).double().eval()
    pooled.load_state_dict(plain.state_dict(), strict=False)
    x = FAMILIES["hf_vit"].inputs(2)
    assert_same(
        mhex.explain(pooled, x, "cdam", concept("hf_vit")).scores,
        mhex.explain(plain, x, "cdam", concept("hf_vit")).scores,
        "cdam",
    )


@pytest.mark.parametrize("name", ["hf_vit", "hf_dinov2", "hf_bert", "hf_distilbert"])
@pytest.mark.parametrize("target", [None, 0, "top2"])
def test_a_backbone_has_no_classes(name: str, target: Any) -> None:
    with pytest.raises(UnsupportedModelError, match=r"no classifier\. Give a mhex\.Concept as target"):
        mhex.explain(bare(FAMILIES[name]), FAMILIES[name].inputs(1), "cdam", target)


def test_heads_explain_classes() -> None:
    family = FAMILIES["timm_vit_heads"]
    for target in (concept("timm_vit"), [concept("timm_vit")]):
        with pytest.raises(ArgumentError, match=r"'mhex' explains classes.*but got a concept"):
            mhex.explain(family.model(), family.inputs(1), "mhex", target)


def test_other_methods_explain_concepts_of_models_with_heads() -> None:
    family = FAMILIES["timm_vit_heads"]
    made = Concept.from_examples(family.model(), family.inputs(2))
    e = mhex.explain(family.model(), family.inputs(2), "cdam", made)
    assert bool(e.scores.any())


def test_wrong_concepts() -> None:
    family = FAMILIES["timm_vit"]
    model, x = family.model(), family.inputs(1)
    narrow = Concept(torch.ones(5), "fur")
    with pytest.raises(ArgumentError, match=r"have 32 entries, but 'fur' has 5.*from_examples on the same model"):
        mhex.explain(model, x, "cdam", narrow)
    with pytest.raises(ArgumentTypeError, match="concepts alone, or classes alone"):
        mhex.explain(model, x, "cdam", [concept("timm_vit"), 3])
    with pytest.raises(ArgumentTypeError, match="concepts alone, or classes alone"):
        mhex.explain(model, x, "cdam", [0, concept("timm_vit")])


@pytest.mark.parametrize("method", [name for name in SCORE_METHODS if name in serving("timm_vit")])
def test_the_model_is_left_as_it_was(method: str) -> None:
    family = FAMILIES["timm_vit"]
    model = family.fresh()
    inputs = family.inputs(2)
    model(inputs)
    before = Snapshot(model)
    explain(model, inputs, method, target=[concept("timm_vit"), concept("timm_vit", 1)])
    before.check()
    with pytest.raises(ArgumentError):
        explain(model, inputs, method, target=Concept(torch.ones(5)))
    before.check()


def test_a_classifier_keeps_its_probabilities() -> None:
    family = FAMILIES["timm_vit"]
    e = mhex.explain(family.model(), family.inputs(2), "cdam", concept("timm_vit"))
    assert e.probabilities.shape == (2, CLASSES)
    assert e.target_probabilities(0) == [None]


def test_classes_of_a_backbone_without_a_classifier_are_refused() -> None:
    from timm.models.vision_transformer import VisionTransformer

    model = VisionTransformer(img_size=24, patch_size=8, embed_dim=16, depth=2, num_heads=2, num_classes=0).eval()
    images = torch.randn(2, 3, 24, 24)
    for target in (None, 3, [0, 1]):
        with pytest.raises(UnsupportedModelError, match=r"has none\. Give a mhex\.Concept"):
            mhex.explain(model, images, "cdam", target)
    assert mhex.explain(model, images, "cdam", lambda features: features[:, 3]).scores.shape == (2, 3, 3)
