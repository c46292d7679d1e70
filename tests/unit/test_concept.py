"""Concepts: the mean latent vector of examples, and how inputs are compared with it."""

from typing import Any

import pytest
import torch
from PIL import Image
from torch import nn

import mhex
from mhex import Concept
from mhex.capture import Outcome
from mhex.errors import ArgumentError, ArgumentTypeError, MhexError, UnsupportedModelError
from support.models import FAMILIES, call
from support.snapshot import Snapshot
from support.zoo_models import write_bert

# Where the latent vector can be seen from outside: the module that it enters, all tokens or one vector.
READERS = {
    "timm_vit": "head",
    "timm_registers": "head",
    "timm_avg": "head",
    "timm_deit_distilled": "head",
    "hf_vit": "classifier",
    "hf_deit": "classifier",
    "hf_dinov2": "classifier",
    "hf_bert": "bert.pooler",
    "hf_roberta": "classifier",
    "hf_distilbert": "pre_classifier",
    "tv_vit": "heads",
    "tv_resnet": "fc",
    "timm_resnet": "fc",
    "tv_convnext": "classifier.2",
    "timm_swin": "head.fc",
    "plain_cnn": "head",
    "plain_vit": "head",
}


def seen(model: nn.Module, reader: str, inputs: Any) -> torch.Tensor:
    """Latent vectors of a plain call, by a hook of our own."""
    kept: list[torch.Tensor] = []
    handle = model.get_submodule(reader).register_forward_pre_hook(lambda _, args: kept.append(args[0]))
    with torch.no_grad():
        call(model, inputs)
    handle.remove()
    return kept[-1][:, 0] if kept[-1].dim() == 3 else kept[-1]


@pytest.mark.parametrize("name", READERS)
def test_the_mean_of_the_latent_vectors(name):
    family = FAMILIES[name]
    model, inputs = family.model(), family.inputs(5)
    wanted = seen(model, READERS[name], inputs).mean(0)
    concept = Concept.from_examples(model, inputs, name="some")
    assert (concept.name, concept.examples, concept.similarity) == ("some", 5, "dot")
    torch.testing.assert_close(concept.latent, wanted, rtol=1e-12, atol=1e-12)
    for size in (1, 2, 5):
        again = Concept.from_examples(model, inputs, batch_size=size)
        torch.testing.assert_close(again.latent, wanted, rtol=1e-12, atol=1e-12)
        assert again.examples == 5


@pytest.mark.parametrize("name", ["timm_vit", "hf_bert", "tv_resnet"])
def test_making_one_leaves_the_model_as_it_was(name):
    model = FAMILIES[name].fresh()
    model.train()
    inputs = FAMILIES[name].inputs(3)
    with torch.no_grad():
        call(model.eval(), inputs)
    model.train()
    before = Snapshot(model)
    Concept.from_examples(model, inputs, batch_size=2)
    before.check()


def test_concepts_are_made_from_loaders_of_every_kind():
    family = FAMILIES["timm_vit"]
    model, x = family.model(), family.inputs(5)
    wanted = Concept.from_examples(model, x).latent
    labelled = torch.utils.data.TensorDataset(x, torch.arange(5))
    for given in (
        torch.utils.data.DataLoader(labelled, batch_size=2),  # tuples, images first
        torch.utils.data.DataLoader(x, batch_size=3),
        (part for part in x.split(2)),
        [{"pixel_values": x[:2], "labels": torch.arange(2)}, {"pixel_values": x[2:]}].__iter__(),
    ):
        got = Concept.from_examples(model, given)
        torch.testing.assert_close(got.latent, wanted, rtol=1e-12, atol=1e-12)
        assert got.examples == 5


def test_dictionaries_of_tokens():
    family = FAMILIES["hf_bert"]
    model, inputs = family.model(), family.inputs(5)
    wanted = seen(model, "bert.pooler", inputs).mean(0)
    torch.testing.assert_close(Concept.from_examples(model, inputs, batch_size=2).latent, wanted)
    labelled = ({**family.sample(inputs, n), "labels": torch.tensor([1])} for n in range(5))
    torch.testing.assert_close(Concept.from_examples(model, labelled).latent, wanted)


def test_photos_and_bundles():
    model = FAMILIES["timm_vit"].model(torch.float32)
    photos = [Image.effect_noise((48, 32), sigma).convert("RGB") for sigma in (20, 60, 90)]

    def preprocess(photo: Image.Image) -> torch.Tensor:
        return torch.tensor(list(photo.getdata()), dtype=torch.float32).T.reshape(3, 32, 48) / 255

    wanted = seen(model, "head", torch.stack([preprocess(photo) for photo in photos])).mean(0)
    got = Concept.from_examples(model, photos, preprocess=preprocess, batch_size=2)
    torch.testing.assert_close(got.latent, wanted)
    bundle = mhex.Bundle("toy", model, preprocess, None, None)
    assert Concept.from_examples(bundle, photos).latent.allclose(got.latent)


def test_concepts_of_texts_do_not_depend_on_padding(tmp_path):
    bundle = mhex.load(f"hf:{write_bert(tmp_path / 'bert')}")
    texts = ["a fine film", "dull .", "a dull dull film"]
    tokens = bundle.tokenizer(texts, padding=True, return_tensors="pt")
    wanted = seen(bundle.model, "bert.pooler", dict(tokens)).mean(0)
    for size in (1, 2, 3):  # other padding each time
        got = Concept.from_examples(bundle, texts, batch_size=size)
        torch.testing.assert_close(got.latent, wanted, rtol=1e-5, atol=1e-6)
    plain = Concept.from_examples(bundle.model, texts, tokenizer=bundle.tokenizer)
    torch.testing.assert_close(plain.latent, got.latent, rtol=1e-5, atol=1e-6)


def test_similarities():
    latent = torch.tensor([[1.0, 2.0, 2.0], [0.0, -3.0, 4.0]])
    concept = Concept(torch.tensor([0.0, 3.0, 4.0]))
    outcome = Outcome(torch.zeros(2, 7), latent)
    assert concept.score(outcome).tolist() == [14.0, 7.0]
    torch.testing.assert_close(concept.compared_by("cosine").score(outcome), torch.tensor([14 / (3 * 5), 7 / (5 * 5)]))
    torch.testing.assert_close(concept.compared_by("l2").score(outcome), -torch.tensor([6.0**0.5, 6.0]))
    assert concept.compared_by("l2").examples == concept.examples
    half = Concept(torch.tensor([0.0, 3.0, 4.0]).bfloat16()).score(Outcome(torch.zeros(2, 7), latent.bfloat16()))
    assert half.dtype == torch.float32


def test_half_precision_models_give_full_vectors():
    family = FAMILIES["timm_vit"]
    x = family.inputs(4, torch.bfloat16)
    # Without oneDNN: some virtual machines announce bfloat16 matrix instructions that they cannot run.
    with torch.backends.mkldnn.flags(enabled=False):
        concept = Concept.from_examples(family.fresh(torch.float32).bfloat16(), x)
    assert concept.latent.dtype == torch.float32
    wanted = Concept.from_examples(family.fresh().bfloat16().double(), x.double()).latent
    assert float((concept.latent - wanted).norm() / wanted.norm()) < 0.05


def test_saved_and_loaded(tmp_path):
    before = Concept(torch.randn(8, dtype=torch.float64), "Fell & Pfoten", "cosine", 30)
    before.save(tmp_path / "c.safetensors")
    after = Concept.load(tmp_path / "c.safetensors")
    assert after.latent.equal(before.latent)
    assert after.latent.dtype == torch.float64
    assert (after.name, after.similarity, after.examples) == ("Fell & Pfoten", "cosine", 30)
    with pytest.raises(ArgumentError, match=r"Cannot write to .*: there is no folder"):
        before.save(tmp_path / "nowhere" / "c.safetensors")


def test_loading_something_else(tmp_path):
    from safetensors.torch import save_file

    save_file({"latent": torch.ones(3)}, tmp_path / "other.safetensors")
    (tmp_path / "text.safetensors").write_text("no weights")
    for name, words in (("none", "no file"), ("other", "is another one"), ("text", "is not one")):
        with pytest.raises(ArgumentError, match=words):
            Concept.load(tmp_path / f"{name}.safetensors")


@pytest.mark.parametrize(
    ("latent", "error", "words"),
    [
        (torch.zeros(4), ArgumentError, "not zero"),
        (torch.tensor([1.0, float("nan")]), ArgumentError, "finite"),
        (torch.ones(2, 2), ArgumentTypeError, r"\(D,\), but got \(2, 2\)"),
        (torch.ones(2, dtype=torch.long), ArgumentTypeError, "floating-point"),
        ([1.0, 2.0], ArgumentTypeError, "but got list"),
    ],
)
def test_vectors_that_are_none(latent, error, words):
    with pytest.raises(error, match=words):
        Concept(latent)


def test_an_unknown_similarity_is_refused():
    for make in (lambda: Concept(torch.ones(2), similarity="euclid"), lambda: Concept(torch.ones(2)).compared_by("l1")):
        with pytest.raises(ArgumentError, match="'dot', 'cosine' or 'l2', but got"):
            make()


@pytest.mark.parametrize(
    ("inputs", "options", "words"),
    [
        ([], {}, "at least one example"),
        (iter(()), {}, "at least one example"),
        (torch.zeros(0, 3, 32, 48), {}, "at least one"),
        (FAMILIES["timm_vit"].inputs(2), {"batch_size": 0}, "batch_size to be a whole number from 1 to 1000000"),
        (FAMILIES["timm_vit"].inputs(2), {"similarity": "no"}, "similarity"),
        (["a text"], {}, "tokenizer= beside texts"),
    ],
)
def test_examples_that_are_none(inputs, options, words):
    with pytest.raises(MhexError, match=words):
        Concept.from_examples(FAMILIES["timm_vit"].model(), inputs, **options)


def test_a_name_is_no_model_for_a_concept():
    with pytest.raises(ArgumentTypeError, match=r"torch\.nn\.Module"):
        Concept.from_examples("zoo:pets-vit", torch.rand(1, 3, 32, 48))


def test_a_model_that_gives_no_vector():
    class Dense(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.mean(1, keepdim=True).repeat(1, 4, 1, 1)

    with pytest.raises(UnsupportedModelError, match="latent vector"):
        Concept.from_examples(Dense(), torch.rand(2, 3, 8, 8))
