"""Every mistake is answered by an error of the library that says what was wanted, and the model is left alone."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import mhex
from mhex.errors import MhexError, UnsupportedModelError
from support.cases import METHODS, anatomy_of, named_methods, serving
from support.models import CLASSES, FAMILIES, LONGEST_TEXT, VOCABULARY, Family, PlainViT, enliven
from support.snapshot import Snapshot

NAMES = ["tabby cat", "tiger cat", "beagle", "pug", "magpie", "robin", "goldfish"]
IMAGE_FAMILIES = [f for f in FAMILIES.values() if f.size is not None]
TEXT_FAMILIES = [f for f in FAMILIES.values() if f.size is None]
SOME = [
    FAMILIES[name] for name in ("timm_vit", "hf_vit", "tv_vit", "timm_resnet", "timm_swin", "plain_cnn", "plain_vit")
]


def by_name(families: list[Family]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("family", families, ids=[f.name for f in families])


def check_refused(model: nn.Module, inputs: Any, *words: str, method: Any = "input-x-gradient", **options: Any) -> str:
    """The message of the refusal, which holds all of `words` and leaves the model as it was."""
    before = Snapshot(model)
    message = refusal(model, inputs, *words, method=method, **options)
    before.check()
    return message


def refusal(model: nn.Module, inputs: Any, *words: str, method: Any, **options: Any) -> str:
    """The message of the refusal, which holds all of `words`."""
    with pytest.raises(MhexError) as caught:
        mhex.explain(model, inputs, method=method, **options)
    assert isinstance(caught.value, (ValueError, TypeError, UnsupportedModelError)), type(caught.value)
    message = str(caught.value)
    assert re.match(r"[A-Z].*[.?]$", message, re.DOTALL), f"a sentence, please: {message!r}"
    missing = [word for word in words if word.lower() not in message.lower()]
    assert not missing, f"{missing} not in {message!r}"
    return message


# --- images ----------------------------------------------------------------------------------------------------------


@by_name(IMAGE_FAMILIES)
def test_empty_batches_of_images_are_refused(family: Family) -> None:
    check_refused(family.model(), torch.zeros(0, 3, *family.size), "at least one sample")
    check_refused(family.model(), [], "at least one sample")


@by_name(SOME)
def test_images_without_four_axes_are_refused(family: Family) -> None:
    check_refused(family.model(), torch.zeros(3, *family.size), "(batch, channels, height, width)", "x[None]")
    check_refused(family.model(), torch.zeros(1, 1, 3, *family.size), "(batch, channels, height, width)")
    check_refused(family.model(), torch.zeros(4, 5), "(batch, channels, height, width)")


@by_name(IMAGE_FAMILIES)
@pytest.mark.parametrize("channels", [1, 4])
def test_wrong_number_of_channels(family: Family, channels: int) -> None:
    check_refused(family.model(), torch.zeros(2, channels, *family.size), "3 channels", f"got {channels}")


@by_name([f for f in IMAGE_FAMILIES if f.other_size is None and not f.name.startswith(("plain", "encoder"))])
def test_wrong_image_size(family: Family) -> None:
    wanted = "x".join(map(str, family.size))
    check_refused(family.model(), torch.zeros(2, 3, 64, 64), wanted, "64x64", "resize")
    if family.size[0] != family.size[1]:
        check_refused(family.model(), torch.zeros(2, 3, family.size[1], family.size[0]), wanted)


@by_name([f for f in IMAGE_FAMILIES if f.other_size is not None and f.blocks])
def test_image_that_is_no_whole_number_of_patches(family: Family) -> None:
    check_refused(family.model(), torch.zeros(2, 3, 36, 24), "8x8", "36x24")


@by_name(SOME)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_images_that_are_not_finite_are_refused(family: Family, value: float) -> None:
    images = family.inputs(2)
    images[1, 2, 3, 4] = value
    check_refused(family.model(), images, "finite", "NaN")


@by_name(SOME)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.bool])
def test_images_of_whole_numbers_are_refused(family: Family, dtype: torch.dtype) -> None:
    check_refused(family.model(), torch.ones(2, 3, *family.size).to(dtype), "floating-point", "preprocess")


@by_name(SOME)
def test_arrays_and_other_things(family: Family) -> None:
    for inputs in (np.zeros((2, 3, *family.size)), None, 3, object(), [torch.zeros(3, *family.size)], {"images": 1}):
        check_refused(family.model(), inputs, "expected")
    check_refused(family.model(), {"pixel_values": [1, 2]}, "tensor")


@by_name(SOME)
def test_photos_without_preprocess(family: Family) -> None:
    from PIL import Image

    photo = Image.new("RGB", (20, 10))
    check_refused(family.model(), photo, "preprocess=")
    check_refused(family.model(), [photo, photo], "preprocess=")
    check_refused(family.model(), [photo, "a word"], "expected")


def test_preprocess_that_gives_several_sizes() -> None:
    from PIL import Image

    photos = [Image.new("RGB", (20, 10)), Image.new("RGB", (10, 20))]

    def keep_size(photo: Any) -> Tensor:
        return torch.zeros(3, photo.height, photo.width)

    check_refused(FAMILIES["plain_cnn"].model(), photos, "one shape", preprocess=keep_size)


def test_preprocess_that_gives_no_tensor() -> None:
    from PIL import Image

    check_refused(FAMILIES["plain_cnn"].model(), Image.new("RGB", (8, 8)), "tensor", preprocess=lambda photo: photo)


# --- text ------------------------------------------------------------------------------------------------------------


@by_name(TEXT_FAMILIES)
def test_empty_text_batch(family: Family) -> None:
    ids = torch.zeros(0, 4, dtype=torch.long)
    check_refused(family.model(), {"input_ids": ids, "attention_mask": ids}, "at least one")
    ids = torch.zeros(2, 0, dtype=torch.long)
    check_refused(family.model(), {"input_ids": ids, "attention_mask": ids}, "at least one")


@by_name(TEXT_FAMILIES)
def test_strings_without_tokenizer(family: Family) -> None:
    check_refused(family.model(), "a word", "tokenizer=")
    check_refused(family.model(), ["a word", "two words"], "tokenizer=")


@by_name([f for f in TEXT_FAMILIES if f.name.startswith("hf")])
def test_text_that_is_too_long(family: Family) -> None:
    ids = torch.full((1, LONGEST_TEXT + 1), 5)
    message = check_refused(family.model(), {"input_ids": ids}, "at most", "truncate")
    assert str(LONGEST_TEXT) in message
    assert mhex.explain(family.model(), {"input_ids": ids[:, :-1]}, "gae").scores.shape == (1, LONGEST_TEXT)


@by_name([f for f in TEXT_FAMILIES if f.name.startswith("hf")])
@pytest.mark.parametrize("wrong", [-1, VOCABULARY, 10**6])
def test_ids_outside_of_the_vocabulary(family: Family, wrong: int) -> None:
    inputs = family.inputs(2)
    inputs["input_ids"][0, 2] = wrong
    check_refused(family.model(), inputs, f"0 to {VOCABULARY - 1}", "tokenizer")


MALFORMED: dict[str, tuple[Callable[[Tensor, Tensor], dict[str, Any]], str]] = {
    "lists": (lambda ids, mask: {"input_ids": ids.tolist(), "attention_mask": mask}, "return_tensors"),
    "one_axis": (lambda ids, mask: {"input_ids": ids[0], "attention_mask": mask}, "(batch, tokens)"),
    "all_masked": (lambda ids, mask: {"input_ids": ids, "attention_mask": 0 * mask}, "attention mask"),
    "none": (lambda ids, mask: {"input_ids": None, "attention_mask": mask}, "input_ids"),
    "short_mask": (lambda ids, mask: {"input_ids": ids, "attention_mask": mask[:, :-1]}, "attention_mask"),
    "mask_alone": (lambda ids, mask: {"attention_mask": mask}, "input_ids"),
}


@by_name(TEXT_FAMILIES)
@pytest.mark.parametrize("kind", MALFORMED)
def test_malformed_token_inputs(family: Family, kind: str) -> None:
    change, word = MALFORMED[kind]
    check_refused(family.model(), change(**dict(zip(("ids", "mask"), family.inputs(2).values(), strict=True))), word)


def test_embeddings_that_are_not_finite() -> None:
    family = FAMILIES["hf_bert"]
    embeddings = torch.full((1, 4, 32), float("nan"))
    check_refused(family.model(), {"inputs_embeds": embeddings}, "finite")


@by_name([f for f in IMAGE_FAMILIES if f.name.startswith(("timm", "hf", "tv"))])
def test_text_given_to_an_image_model(family: Family) -> None:
    check_refused(family.model(), FAMILIES["hf_bert"].inputs(2), "image", "text")
    check_refused(family.model(), torch.ones(2, 5, dtype=torch.long), "image", "text")


@by_name([f for f in TEXT_FAMILIES if f.name.startswith("hf")])
def test_images_given_to_a_text_model(family: Family) -> None:
    check_refused(family.model(), torch.zeros(2, 3, 32, 32), "image", "text")
    check_refused(family.model(), {"pixel_values": torch.zeros(2, 3, 32, 32)}, "image", "text")


# --- targets ---------------------------------------------------------------------------------------------------------


@by_name([FAMILIES[name] for name in ("timm_vit", "hf_bert", "plain_cnn")])
@pytest.mark.parametrize(
    "target", [CLASSES, -1, 10**9, [0, CLASSES], torch.tensor([0, CLASSES]), f"top{CLASSES + 1}", "top0"]
)
def test_class_out_of_range(family: Family, target: Any) -> None:
    assert re.search(
        r"\b[67]\b", check_refused(family.model(), family.inputs(2), "expected", target=target, class_names=NAMES)
    )


@by_name([FAMILIES[name] for name in ("timm_vit", "hf_bert", "plain_cnn")])
@pytest.mark.parametrize(
    "target",
    [
        pytest.param(torch.tensor([0, 1, 2]), id="too_long"),
        pytest.param(torch.zeros(2, 1, 1, dtype=torch.long), id="three_axes"),
        pytest.param(torch.zeros(2, 0, dtype=torch.long), id="no_class"),
        pytest.param(torch.tensor([0.0, 1.0]), id="floats"),
        pytest.param(torch.tensor([True, False]), id="bools"),
        pytest.param(np.array([0, 1, 2]), id="array"),
        pytest.param([], id="empty_list"),
        pytest.param(1.5, id="float"),
        pytest.param(True, id="bool"),
        pytest.param({"a": 1}, id="dictionary"),
        pytest.param([[0, 1]], id="nested"),
        pytest.param(lambda logits: logits, id="function_2d"),
        pytest.param(lambda logits: 3, id="function_number"),
        pytest.param(lambda logits: logits[:1, 0], id="function_short"),
        pytest.param(lambda logits: logits.detach()[:, 0], id="function_detached"),
        pytest.param(lambda logits: logits[:, 0] * float("nan"), id="function_nan"),
    ],
)
def test_malformed_targets_are_refused(family: Family, target: Any) -> None:
    check_refused(family.model(), family.inputs(2), target=target)


@by_name([FAMILIES[name] for name in ("timm_vit", "hf_bert", "plain_cnn")])
def test_unknown_class_name(family: Family) -> None:
    message = check_refused(family.model(), family.inputs(2), "tigr cat", target="tigr cat", class_names=NAMES)
    assert "'tiger cat'" in message
    check_refused(family.model(), family.inputs(2), "zebra", target=["pug", "zebra"], class_names=NAMES)


def test_class_name_of_a_model_without_names() -> None:
    check_refused(FAMILIES["timm_vit"].model(), FAMILIES["timm_vit"].inputs(2), "class_names=", target="pug")


# --- methods and options ---------------------------------------------------------------------------------------------


@by_name(list(FAMILIES.values()))
def test_method_that_cannot_serve_the_model(family: Family) -> None:
    serve, model, inputs = serving(family.name), family.model(), family.inputs(2)
    before = Snapshot(model)
    for method in METHODS.keys() - set(serve):
        words = [method]
        if METHODS[method].needs.blocks and family.size is not None and not family.blocks:
            words += ["Swin", "window", "gradcam"] if "swin" in family.name else ["attention", "gradcam"]
        message = refusal(model, inputs, *words, method=method)
        sure, unsure = named_methods(message)
        conditional = {name for name in serve if METHODS[name].condition(anatomy_of(family.name))}
        assert sure == set(serve) - conditional, "the refusal names the methods that can"
        assert unsure == conditional, "and those that know it after a pass alone, or need an option"
    before.check()


def test_too_many_tokens() -> None:
    limited = {name: m.max_tokens for name, m in METHODS.items() if m.max_tokens is not None}
    model = enliven(PlainViT()).double().eval()
    model.position_embed = nn.Parameter(torch.zeros(1, 1 + 12 * 12, 32, dtype=torch.float64))
    images = torch.randn(1, 3, 96, 96, dtype=torch.float64)
    for method, most in limited.items():
        assert most < 145
        check_refused(model, images, str(most), "145", method=method)


def test_unknown_methods_are_refused() -> None:
    family = FAMILIES["timm_vit"]
    assert "'gae'" in check_refused(family.model(), family.inputs(1), method="GAE ")
    assert "'rollout'" in check_refused(family.model(), family.inputs(1), method="roll-out")
    assert "gradcam" in check_refused(family.model(), family.inputs(1), method="zzzzzz")
    check_refused(family.model(), family.inputs(1), "None", method=None)


@pytest.mark.parametrize("method", METHODS)
def test_unknown_options_are_refused(method: str) -> None:
    name = next(n for n in FAMILIES if method in serving(n))
    check_refused(FAMILIES[name].model(), FAMILIES[name].inputs(1), "frobnicate", method, method=method, frobnicate=3)


@pytest.mark.parametrize("method", [m for m in METHODS if "start_block" in METHODS[m].options])
@pytest.mark.parametrize("value", [0, 4, -1, "first", 1.5, None])
def test_start_block_outside_of_the_model(method: str, value: Any) -> None:
    family = FAMILIES["timm_vit"]
    check_refused(family.model(), family.inputs(1), "start_block", "3", method=method, start_block=value)


@pytest.mark.parametrize("method", [m for m in METHODS if "layer" in METHODS[m].options])
def test_layers_that_do_not_exist_or_are_no_maps_are_refused(method: str) -> None:
    family = FAMILIES["tv_resnet"]
    message = check_refused(family.model(), family.inputs(1), "layer5", method=method, layer="layer5")
    assert "'layer4'" in message
    check_refused(family.model(), family.inputs(1), "layer", method=method, layer=3)
    check_refused(family.model(), family.inputs(1), "layer", method=method, layer=nn.Conv2d(3, 3, 1))
    with pytest.raises(MhexError, match="feature maps"):
        mhex.explain(family.model(), family.inputs(1), method=method, layer="fc")


# --- models ----------------------------------------------------------------------------------------------------------


def test_not_a_model() -> None:
    for thing in (lambda x: x, None, "timm:vit", PlainViT):
        with pytest.raises(TypeError, match=r"torch\.nn\.Module") as caught:
            mhex.explain(thing, torch.zeros(1, 3, 32, 48))  # type: ignore[arg-type]
        assert isinstance(caught.value, MhexError)


class Answering(nn.Module):
    """Returns something that holds no class scores."""

    def __init__(self, answer: Any) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 4, 3)
        self.answer = answer

    def forward(self, x: Tensor) -> Any:
        return self.answer(self.layer(x))


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(lambda y: y, id="maps"),
        pytest.param(lambda y: y.mean(), id="scalar"),
        pytest.param(lambda y: None, id="none"),
        pytest.param(lambda y: "dog", id="string"),
        pytest.param(lambda y: {}, id="empty"),
        pytest.param(lambda y: (y,), id="tuple"),
        pytest.param(lambda y: {"logits": y}, id="dictionary"),
        pytest.param(lambda y: y.mean((2, 3)).argmax(1), id="indices"),
        pytest.param(lambda y: y.mean((2, 3)) > 0, id="bools"),
        pytest.param(lambda y: y.mean((2, 3)).detach().numpy(), id="array"),
        pytest.param(lambda y: y.mean((0, 2, 3)), id="no_batch"),
        pytest.param(lambda y: y.mean((2, 3))[:, :0], id="no_classes"),
        pytest.param(lambda y: y.mean((2, 3))[:1], id="short"),
    ],
)
@pytest.mark.parametrize("method", ["input-x-gradient", "gradcam"])
def test_model_that_returns_no_class_scores(answer: Any, method: str) -> None:
    check_refused(Answering(answer).eval(), torch.randn(3, 3, 8, 8), "class scores", method=method)


def test_model_whose_scores_are_not_finite() -> None:
    model = Answering(lambda y: y.mean((2, 3)) * float("inf")).eval()
    check_refused(model, torch.randn(2, 3, 8, 8), "finite", method="input-x-gradient")


def test_text_model_that_does_not_name_its_embedding() -> None:
    """Input x gradient needs the embedding: it is found by itself, or the model is refused before it runs."""

    class Hidden(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = FAMILIES["encoder_text"].fresh()
            self.config = self.inner.config  # names the special tokens

        def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
            return self.inner(input_ids, attention_mask)

    inputs = FAMILIES["encoder_text"].inputs(2)
    wanted = mhex.explain(FAMILIES["encoder_text"].model(), inputs, "input-x-gradient").scores
    try:
        got = mhex.explain(Hidden().eval(), inputs, "input-x-gradient").scores
    except UnsupportedModelError:
        return
    assert torch.allclose(got, wanted, rtol=1e-9)
    assert mhex.explain(Hidden().eval(), inputs, "gae").scores.shape == (2, 8)


def test_parameters_made_under_inference_mode() -> None:
    with torch.inference_mode():
        model = PlainViT().eval()
    with pytest.raises(MhexError, match="inference_mode"):
        mhex.explain(model, torch.randn(1, 3, 32, 48), "gae")
