"""Models that answer otherwise than with class scores, and models that show no inside: explained, or one sentence."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.nn.attention.flex_attention import flex_attention

import mhex
from mhex.errors import ArgumentError, ArgumentTypeError, CaptureError, MhexError, MhexWarning, UnsupportedModelError
from support.cases import METHODS, explain, named_methods
from support.models import FAMILIES, PlainCNN, enliven
from support.stock_models import LSTM, STOCK_MODELS

WORDS = 60
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
BERT = {**SIZES, "vocab_size": WORDS, "max_position_embeddings": 40, "pad_token_id": 0}
T5 = {"vocab_size": WORDS, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
IMAGE = {**SIZES, "image_size": 32, "patch_size": 8}
PAGE = Path(__file__).parents[3] / "docs" / "explain.md"


def hf(name: str, config: str, **options: Any) -> nn.Module:
    torch.manual_seed(0)
    return enliven(getattr(transformers, name)(getattr(transformers, config)(**options))).eval()


def gpt2() -> nn.Module:
    sizes = {"vocab_size": WORDS, "n_embd": 32, "n_layer": 2, "n_head": 4, "bos_token_id": 1, "eos_token_id": 2}
    return hf("GPT2LMHeadModel", "GPT2Config", **sizes)


def clip(name: str = "CLIP") -> nn.Module:
    ends = {"bos_token_id": 1, "eos_token_id": 2}
    return hf(f"{name}Model", f"{name}Config", text_config={**BERT, **ends}, vision_config=IMAGE)


def texts(count: int = 2) -> dict[str, Tensor]:
    ids = torch.randint(4, WORDS, (count, 7), generator=torch.Generator().manual_seed(1))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def images(count: int = 2) -> Tensor:
    return torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(1))


def wrapper(name: str) -> type[nn.Module]:
    """A module of the documentation."""
    section = PAGE.read_text(encoding="utf-8").split("## Models that are no classifiers")[1]
    names: dict[str, Any] = {"torch": torch}
    for block in re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL):
        exec(block, names)
    return names[name]


# --- what is returned ------------------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[Any, Any, str]] = {
    "question answering": (
        lambda: hf("BertForQuestionAnswering", "BertConfig", **BERT),
        texts,
        "start_logits of shape",
    ),
    "token classes": (lambda: hf("BertForTokenClassification", "BertConfig", **BERT), texts, r"shape \(2, 7, 2\)"),
    "hidden words": (lambda: hf("BertForMaskedLM", "BertConfig", **BERT), texts, r"shape \(2, 7, 60\)"),
    "gpt2": (gpt2, texts, r"next word, model\(...\)\.logits\[:, -1\]"),
    "llama": (
        lambda: hf("LlamaForCausalLM", "LlamaConfig", **SIZES, vocab_size=WORDS, num_key_value_heads=2),
        texts,
        r"next word, model\(...\)\.logits\[:, -1\]",
    ),
    "t5": (lambda: hf("T5ForConditionalGeneration", "T5Config", **T5), texts, "it generates text: wrap it"),
    "clip": (clip, images, "images and texts together: wrap it"),
    "clip of texts": (clip, texts, "images and texts together: wrap it"),
    "clip of both": (clip, lambda: {**texts(), "pixel_values": images()}, "images and texts together: wrap it"),
    "siglip": (lambda: clip("Siglip"), images, "images and texts together: wrap it"),
    "detection": (
        lambda: hf("YolosForObjectDetection", "YolosConfig", **{**IMAGE, "image_size": [32, 32]}),
        images,
        "boxes those of one",
    ),
    "segmentation": (lambda: nn.Conv2d(3, 5, 3), images, "a segmentation those of one region"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_every_method_with_what_to_do(name: str) -> None:
    build, inputs, words = REFUSED[name]
    model = build()
    for method in ("gae", "input-x-gradient", "gradcam", "occlusion", "lrp"):
        with pytest.raises(UnsupportedModelError, match=words.replace(r"\(2, ", r"\([12], ")) as caught:
            explain(model, inputs(), method)
        assert "'Models that are no classifiers' in docs/explain.md" in str(caught.value)
        assert "Methods that can" not in str(caught.value), "none can"


@pytest.mark.parametrize("method", ["input-x-gradient", "gae", "occlusion"])
def test_next_word_of_a_language_model(method: str) -> None:
    model = wrapper("NextWord")(gpt2())
    e = explain(model, texts(), method, target=[5, 7])
    assert e.scores.shape == (2, 2, 7)
    assert e.logits.shape == (2, WORDS)
    torch.testing.assert_close(e.logits, model.model(**texts()).logits[:, -1].detach())
    assert bool(e.scores.ne(0).any(1).all()), "every word counts, the last one too"
    alone = explain(model, {k: v[1:] for k, v in texts().items()}, method, target=[5, 7])
    torch.testing.assert_close(e.scores[1:], alone.scores)


def test_other_wrappers_of_the_documentation() -> None:
    tagger = hf("BertForTokenClassification", "BertConfig", **BERT)
    assert explain(wrapper("AtToken")(tagger, 3), texts(), "gae").logits.shape == (2, 2)
    reader = hf("BertForQuestionAnswering", "BertConfig", **BERT)
    assert explain(wrapper("AnswerStart")(reader), texts(), "gae").logits.shape == (2, 7)

    class Segmenter(nn.Conv2d):
        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"out": super().forward(x)}

    region = torch.zeros(32, 32, dtype=torch.bool)
    region[:, :4] = True
    e = explain(wrapper("InRegion")(Segmenter(3, 5, 1), region), images(), "input-x-gradient", target=1)
    assert e.logits.shape == (2, 5)
    assert torch.equal(e.scores.ne(0), region.expand(2, 32, 32))
    named = wrapper("ZeroShot")(clip(), texts(4))
    assert explain(named, images(), "input-x-gradient").logits.shape == (2, 4)


# --- models that show no inside --------------------------------------------------------------------------------------


class Around(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


def cnn() -> nn.Module:
    return enliven(PlainCNN()).eval()


SCRIPTS: dict[str, Any] = {
    "traced": lambda: torch.jit.trace(cnn(), images()),
    "scripted": lambda: torch.jit.script(cnn()),
    "frozen": lambda: torch.jit.freeze(torch.jit.script(cnn())),
    "inside": lambda: Around(torch.jit.script(cnn())),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_torchscript(name: str) -> None:
    """Methods that read inputs and scores alone give what they give for the plain model; the others refuse."""
    model, serve = SCRIPTS[name](), set()
    for method in METHODS:
        try:
            e = explain(model, images(), method, target=1)
        except UnsupportedModelError as error:
            sure, unsure = named_methods(str(error))
            continue
        serve.add(method)
        torch.testing.assert_close(e.scores, explain(cnn(), images(), method, target=1).scores)
    assert sure == {"occlusion", "rise", "shap"}
    assert unsure == {"input-x-gradient", "integrated-gradients", "smoothgrad"}, "a script may cut gradients"
    assert serve == sure | unsure


@pytest.mark.parametrize("name", SCRIPTS)
def test_torchscript_is_judged_by_methods_that_serve_it(name: str) -> None:
    model = SCRIPTS[name]()
    tables = [mhex.evaluate(m, images(), ["occlusion"], ["deletion"]) for m in (model, cnn())]
    torch.testing.assert_close(*(table.per_image("deletion")["occlusion"] for table in tables))


@pytest.mark.parametrize("name", ["traced", "inside"])
def test_torchscript_is_recommended_for(name: str) -> None:
    """Methods that must see the inside are left out, with the reason; the others race."""
    methods = [("occlusion", {"patch": 16}), "input-x-gradient"]
    answers = [
        mhex.recommend(model, images().repeat(4, 1, 1, 1), 60, images=8, methods=methods, score="deletion")
        for model in (SCRIPTS[name](), cnn())
    ]
    tables = [{line.method: line.score for line in answer.table} for answer in answers]
    assert tables[0].keys() >= {"input-x-gradient", "occlusion (patch=16)", "control:random"}
    assert tables[0] == pytest.approx(tables[1], abs=1e-5)
    with pytest.raises(UnsupportedModelError, match="does not show its inside"):
        mhex.recommend(SCRIPTS[name](), images(), 60, methods=["lrp"])


def test_recommend_leaves_out_what_must_see_the_inside_of_torchscript() -> None:
    answer = mhex.recommend(SCRIPTS["traced"](), images().repeat(4, 1, 1, 1), 30, images=8, score="deletion")
    assert "does not show its inside" in answer.left_out["lrp"]
    assert {line.method for line in answer.table} & {"input-x-gradient", "integrated-gradients"}


def test_torchscript_in_training_mode_is_run_in_evaluation_mode() -> None:
    model = torch.jit.script(cnn().train())
    e = explain(model, images(), "input-x-gradient", target=1)
    torch.testing.assert_close(e.scores, explain(cnn(), images(), "input-x-gradient", target=1).scores)
    assert model.training
    assert model.drop.training


def test_a_layer_of_torchscript_cannot_be_named() -> None:
    for model, layer in ((torch.jit.script(cnn()), "third"), (Around(torch.jit.script(cnn())), "inner.third")):
        with pytest.raises(UnsupportedModelError, match="does not show its inside"):
            explain(model, images(), "gradcam", layer=layer)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["hf_bert", "tv_vit", "tv_resnet"])
def test_layers_in_int8(name: str) -> None:
    """They pass no gradient on: exactly the methods without one serve, and every refusal names these."""
    family = FAMILIES[name]
    plain, inputs = family.fresh(torch.float32), family.inputs(2, torch.float32)
    model = torch.ao.quantization.quantize_dynamic(plain, {nn.Linear}, dtype=torch.qint8)
    serve, named = set(), []
    for method in METHODS:
        try:
            e = explain(model, inputs, method, target=1)
        except UnsupportedModelError as error:
            named.append(named_methods(str(error)))
            continue
        serve.add(method)
        assert torch.isfinite(e.scores).all()
    assert serve >= {"occlusion", "rise", "shap"}
    assert named
    assert all(one == (serve, set()) for one in named)


def test_flexible_attention_gives_way() -> None:
    """It has no gradient on a CPU; the same explanation as with torch's kernel, and the choice is put back."""
    for model, inputs in (
        (hf("BertForSequenceClassification", "BertConfig", **BERT), texts()),
        (hf("ViTForImageClassification", "ViTConfig", **IMAGE), images()),
    ):
        wanted = explain(model, inputs, "input-x-gradient").scores
        model.config._attn_implementation_internal = "flex_attention"
        torch.testing.assert_close(explain(model, inputs, "input-x-gradient").scores, wanted)
        assert model.config._attn_implementation == "flex_attention"


class Flexible(nn.Module):
    """Calls flexible attention itself, which refuses to be called in a graph on a CPU."""

    def __init__(self) -> None:
        super().__init__()
        self.patch, self.qkv, self.head = nn.Conv2d(3, 16, 8, 8), nn.Linear(16, 48), nn.Linear(16, 5)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return flex_attention(q, k, v)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patch(x).flatten(2).mT
        q, k, v = (part.unflatten(-1, (2, 8)).transpose(1, 2) for part in self.qkv(tokens).chunk(3, -1))
        return self.head((tokens + self.attend(q, k, v).transpose(1, 2).flatten(2)).mean(1))


class OneWay(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> Tensor:
        raise NotImplementedError("no backward here")


class Forwards(Flexible):
    """Refuses in the backward pass."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return OneWay.apply(q + k + v)


@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.parametrize("kind", [Flexible, Forwards])
def test_operations_that_refuse_to_be_differentiated(kind: type[nn.Module]) -> None:
    """Methods with gradients refuse in a sentence, and the automatic choice goes on to one without."""
    torch.manual_seed(0)
    model = kind().eval()
    for method in ("lrp", "input-x-gradient", "integrated-gradients", "smoothgrad"):
        with pytest.raises(UnsupportedModelError, match=r"such as occlusion|relevance rule"):
            explain(model, images(), method)
    with pytest.warns(MhexWarning, match="took 'occlusion'"):
        assert mhex.explain(model, images()).method == "occlusion"


def test_exported_programs() -> None:
    fixed = torch.export.export(cnn(), (images(),))
    with pytest.raises(ArgumentTypeError, match=r"ExportedProgram; give its module\(\)"):
        explain(fixed, images(), "occlusion")
    with pytest.raises(UnsupportedModelError, match="batches of any size"):
        explain(fixed.module(), images(), "occlusion")
    free = torch.export.export(cnn(), (images(),), dynamic_shapes=({0: torch.export.Dim("batch")},)).module()
    for method in ("occlusion", "input-x-gradient"):
        wanted = explain(cnn(), images(), method, target=1).scores
        torch.testing.assert_close(explain(free, images(), method, target=1).scores, wanted)
    with pytest.raises(ArgumentTypeError, match="function; wrap it in a module"):
        explain(lambda x: x, images(), "occlusion")


class Scaled(nn.Conv2d):
    """Reads a number out of its values."""

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return (y / max(float(y.abs().max()), 1)).mean((2, 3))


def test_numbers_read_by_the_model_give_no_warning_of_the_rules() -> None:
    model = Scaled(3, 5, 3).eval()
    always = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", "Converting a tensor")
            assert explain(model, images(), "lrp").scores.ne(0).any()
    finally:
        torch.set_warn_always(always)


@pytest.mark.parametrize("method", ["occlusion", "lrp"])
def test_weights_without_values(method: str) -> None:
    with pytest.raises(CaptureError, match="meta device"):
        explain(cnn().to("meta"), images(), method)
    with pytest.raises(CaptureError, match="meta device"):
        explain(hf("BertForSequenceClassification", "BertConfig", **BERT).to("meta"), texts(), method)


# --- what is given ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(2, 800), (2, 1, 800), (800,), (1, 3, 4, 32, 32)])
def test_sound_and_video_are_out_of_scope(shape: tuple[int, ...]) -> None:
    with pytest.raises(ArgumentError, match="sound, video and tables of numbers are not explained"):
        explain(cnn(), torch.zeros(shape), "occlusion")


def test_one_image_is_told_of_its_batch_axis() -> None:
    with pytest.raises(ArgumentError, match=r"x\[None\]"):
        explain(cnn(), images()[0], "occlusion")
    with pytest.raises(ArgumentError, match="sound is not explained"):
        explain(cnn(), {"input_values": torch.zeros(2, 800)}, "occlusion")


class Failing(nn.Module):
    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.layer, self.error = nn.Linear(3, 2), error

    def forward(self, x: Tensor) -> Tensor:
        raise self.error


@pytest.mark.parametrize("error", [KeyError("mask"), RuntimeError("shapes\nmore"), TypeError(), AssertionError("no")])
def test_an_error_of_the_model_itself_is_told_as_such(error: Exception) -> None:
    with pytest.raises(UnsupportedModelError, match="Failing itself fails") as caught:
        explain(Failing(error), images(), "input-x-gradient")
    assert type(error).__name__ in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is error


def test_errors_that_are_not_of_the_model_pass() -> None:
    for error in (torch.OutOfMemoryError("full"), MhexError("known"), KeyboardInterrupt()):
        with pytest.raises(type(error)) as caught:
            explain(Failing(error), images(), "input-x-gradient")
        assert caught.value is error


# --- methods that can ------------------------------------------------------------------------------------------------


def test_methods_that_can_are_those_that_can_here() -> None:
    """At 65 tokens, without attention-flow; for a function, without the method that explains classes alone."""
    family = FAMILIES["hf_bert"]
    model = hf("BertForSequenceClassification", "BertConfig", **{**BERT, "max_position_embeddings": 80})
    for length in (64, 65):
        ids = torch.randint(3, WORDS, (1, length), generator=torch.Generator().manual_seed(1))
        with pytest.raises(UnsupportedModelError) as caught:
            explain(model, {"input_ids": ids}, "gradcam")
        assert ("attention-flow" in named_methods(str(caught.value))[0]) == (length == 64)
    headed = FAMILIES["hf_bert_heads"].model()
    for target, named in ((1, True), (lambda logits: logits[:, 1], False)):
        with pytest.raises(UnsupportedModelError) as caught:
            explain(headed, family.inputs(2), "gradcam", target=target)
        assert ("mhex" in named_methods(str(caught.value))[0]) == named


def test_methods_with_rules_are_not_promised() -> None:
    """Whether they have a rule for every operation is known after a pass alone, and here they have not."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3), Root(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)).eval()
    with pytest.raises(UnsupportedModelError) as caught:
        explain(model, images(), "gae")
    sure, unsure = named_methods(str(caught.value))
    assert {"lrp", "attnlrp", "abslrp", "conservative-lrp"} <= unsure
    for method in sure:
        assert torch.isfinite(explain(model, images(), method, target=0).scores).all()
    with pytest.raises(UnsupportedModelError, match="no relevance rule"):
        explain(model, images(), "lrp")


class Root(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.special.erfcx(x)


def test_guided_backprop_is_not_for_recurrent_networks() -> None:
    """Their tanh and sigmoid are inside of one operation, which no rule sees."""
    with pytest.raises(UnsupportedModelError, match="ReLU networks, and this one uses LSTM"):
        explain(LSTM().eval(), STOCK_MODELS["torch:lstm"].inputs(2), "guided-backprop")


def test_embeddings_laid_out_otherwise_are_refused() -> None:
    """XLNet embeds (tokens, batch), also where one sample makes the two look alike."""
    xlnet = STOCK_MODELS["transformers:xlnet"]
    for count in (1, 3):
        for method in ("input-x-gradient", "integrated-gradients", "smoothgrad", "conservative-lrp"):
            with pytest.raises(UnsupportedModelError, match=r"word embeddings \(batch, tokens, width\)"):
                explain(xlnet.model(), xlnet.inputs(count), method)
    assert torch.isfinite(explain(xlnet.model(), xlnet.inputs(3), "occlusion").scores).all()
