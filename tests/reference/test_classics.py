"""Closed forms of the methods that change the input or read feature maps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import timm
import torch
from torch import Tensor, nn

import mhex
from mhex.errors import ArgumentError, MhexWarning, UnsupportedModelError
from mhex.methods.eigencam import _first_component
from support.cases import assert_same, explain
from support.formulas import feature_maps, view
from support.formulas_classics import blurred, rise_mask, scorecam_of
from support.models import FAMILIES, call

VIT, BERT, CNN = FAMILIES["timm_vit"], FAMILIES["hf_bert"], FAMILIES["plain_cnn"]
PATHS = ("smoothgrad", "integrated-gradients")
HIDING = ("occlusion", "rise", "shap")


class Linear(nn.Module):
    """y_k = sum w_k x + b_k over all pixels."""

    def __init__(self, size: tuple[int, int] = (8, 12)) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.weight = nn.Parameter(torch.randn(2, 3, *size, generator=generator, dtype=torch.float64))
        self.bias = nn.Parameter(torch.tensor([0.5, -2.0], dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("kchw,bchw->bk", self.weight, x) + self.bias


class Blind(nn.Module):
    """Answers the same whatever it sees, though gradients pass."""

    def __init__(self) -> None:
        super().__init__()
        self.own = nn.Parameter(torch.tensor([1.0, 3.0, -1.0], dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return self.own + 0 * x.flatten(1).sum(1, keepdim=True)


def pictures(count: int = 2, size: tuple[int, int] = (8, 12)) -> Tensor:
    return torch.randn(count, 3, *size, dtype=torch.float64, generator=torch.Generator().manual_seed(8))


# --- gradients along a path ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sigma", [0, 0.3, 5.0])
def test_smoothgrad_of_a_linear_model(sigma: float) -> None:
    """The gradient is the same everywhere, so noise changes nothing."""
    model, x = Linear(), pictures()
    got = mhex.explain(model, x, "smoothgrad", [0, 1], sigma=sigma, n=3).scores
    wanted = model.weight.sum(1).detach().expand(2, -1, -1, -1)
    assert_same(got, wanted, "smoothgrad", 1e-12)
    times = mhex.explain(model, x, "smoothgrad", 1, sigma=sigma, n=3, times_input=True).scores
    assert_same(times, (model.weight[1] * x).sum(1).detach(), "smoothgrad", 1e-12)


@pytest.mark.parametrize("family", [VIT, BERT, CNN], ids=lambda family: family.name)
def test_smoothgrad_without_noise_is_the_gradient(family: Any) -> None:
    inputs = family.inputs(2)
    got = mhex.explain(family.model(), inputs, "smoothgrad", 2, sigma=0, n=2, times_input=True).scores
    assert_same(got, mhex.explain(family.model(), inputs, "input-x-gradient", 2).scores, "smoothgrad", 1e-11)


def test_padding_does_not_change_the_noise_of_a_text() -> None:
    """The embedding of the padding token lies far outside of the range of all words, and is no part of any text."""
    model = BERT.fresh()
    table = model.get_input_embeddings().weight
    inputs = BERT.inputs(3)
    short = int(inputs["attention_mask"].sum(1).argmin())
    length = int(inputs["attention_mask"][short].sum())
    assert length < inputs["input_ids"].shape[1]
    padding = ~inputs["attention_mask"].bool()
    (number,) = inputs["input_ids"][padding].unique().tolist()
    table.data[number] = 50.0
    alone = {name: value[short : short + 1, :length] for name, value in inputs.items()}
    batched, single = (mhex.explain(model, x, "smoothgrad", 1, n=3).scores for x in (inputs, alone))
    assert_same(batched[short : short + 1, :length], single, "smoothgrad", 1e-9)


def test_gradients_of_words_alone_say_nothing_before_a_norm() -> None:
    """The layer norm after BERT's embeddings does not notice what all entries share: gradients sum to zero."""
    assert mhex.explain(BERT.model(), BERT.inputs(2), "smoothgrad", n=2).options["times_input"]
    alone = mhex.explain(BERT.model(), BERT.inputs(2), "smoothgrad", n=2, times_input=False)
    assert float(alone.scores.abs().max()) < 1e-12
    assert not mhex.explain(VIT.model(), VIT.inputs(1), "smoothgrad", n=1).options["times_input"]


@pytest.mark.parametrize("name", ["timm_vit", "hf_bert", "hf_roberta", "encoder_text", "tv_swin"])
def test_integrated_gradients_add_up(name: str) -> None:
    family = FAMILIES[name]
    inputs = family.inputs(3)
    model = family.model()
    e = mhex.explain(model, inputs, "integrated-gradients", [1, 4], steps=200)
    if family.size is not None:
        change = call(model, inputs) - call(model, torch.zeros_like(inputs))
        total = e.scores.sum((2, 3))
    else:
        layer = model.get_input_embeddings()
        handle = layer.register_forward_hook(lambda module, args, output: torch.zeros_like(output))
        nothing = call(model, inputs)
        handle.remove()
        change = call(model, inputs) - nothing
        total = e.scores.sum(2) + e.special.sum(2)
    change = change[:, [1, 4]].detach()
    assert float((total - change).abs().max()) <= 2e-3 * float(change.abs().max())
    torch.testing.assert_close(e.diagnostics["completeness_gap"], total - change, rtol=1e-9, atol=1e-10)


def test_nothing_between_the_baseline_and_itself() -> None:
    x = VIT.inputs(2)
    e = mhex.explain(VIT.model(), x, "integrated-gradients", 1, baseline=x, steps=3)
    assert float(e.scores.abs().max()) == 0
    assert float(e.diagnostics["completeness_gap"].abs().max()) < 1e-12
    assert e.options["baseline"] == "tensor"


class Scaled:
    """A preprocessing that says how it normalises."""

    mean, std = (0.5, 0.4, 0.3), (0.2, 0.25, 0.1)

    def __call__(self, picture: Any) -> Tensor:
        pixels = torch.from_numpy(np.array(picture)).permute(2, 0, 1).float() / 255
        return (pixels - torch.tensor(self.mean)[:, None, None]) / torch.tensor(self.std)[:, None, None]


class Steps:
    """A sequence of transforms of which one normalises."""

    transforms = (object(), Scaled())

    def __call__(self, picture: Any) -> Tensor:
        return self.transforms[1](picture)


@pytest.mark.parametrize("preprocess", [Scaled(), Steps()], ids=["itself", "a step of it"])
def test_black_is_black_before_it_is_normalised(preprocess: Any) -> None:
    from PIL import Image

    model = Linear()
    drawn = np.random.default_rng(0).integers(0, 255, (8, 12, 3), dtype=np.uint8)
    x = Scaled()(Image.fromarray(drawn))[None].double()
    black = Scaled()(Image.new("RGB", (12, 8)))[None].double()
    wanted = (model.weight[1] * (x - black)).sum(1).detach()
    for inputs in (Image.fromarray(drawn), x):
        e = mhex.explain(model, inputs, "integrated-gradients", 1, preprocess=preprocess, steps=2)
        assert e.options["baseline"] == "black"
        assert_same(e.scores, wanted, "integrated-gradients", 1e-6)
    grey = mhex.explain(model, x, "integrated-gradients", 1, preprocess=preprocess, steps=2, baseline="mean")
    assert_same(grey.scores, (model.weight[1] * x).sum(1).detach(), "integrated-gradients", 1e-12)
    unknown = mhex.explain(model, x, "integrated-gradients", 1, steps=2)
    assert unknown.options["baseline"] == "mean"
    assert torch.equal(unknown.scores, grey.scores)
    with pytest.raises(ArgumentError, match="how colours were normalised"):
        mhex.explain(model, x, "integrated-gradients", 1, baseline="black")


def test_bundles_know_their_black() -> None:
    bundle = mhex.load("timm:resnet10t")
    e = mhex.explain(bundle, torch.rand(1, 3, 32, 32), "integrated-gradients", 1, steps=1)
    assert e.options["baseline"] == "black"


def test_baselines_of_texts() -> None:
    inputs, model = BERT.inputs(3), BERT.model()
    words = model.get_input_embeddings()
    empty = words(torch.tensor([0])).detach()
    by_name = mhex.explain(model, inputs, "integrated-gradients", 2, baseline="pad", steps=4)
    by_value = mhex.explain(model, inputs, "integrated-gradients", 2, baseline=empty[0], steps=4)
    assert_same(by_name.scores, by_value.scores, "integrated-gradients", 1e-12)
    zero = mhex.explain(model, inputs, "integrated-gradients", 2, steps=4)
    assert zero.options["baseline"] == "zero"
    text = FAMILIES["encoder_text"]
    with pytest.raises(ArgumentError, match="padding token for baseline='pad'"):
        mhex.explain(text.model(), text.inputs(1), "integrated-gradients", baseline="pad")


@pytest.mark.parametrize("method", PATHS)
@pytest.mark.parametrize("family", [VIT, BERT], ids=lambda family: family.name)
def test_paths_do_not_depend_on_the_batch_size(method: str, family: Any) -> None:
    whole = explain(family.model(), family.inputs(3), method, target=[0, 4])
    for size in (1, 2, 5):
        part = explain(family.model(), family.inputs(3), method, target=[0, 4], batch_size=size)
        assert_same(part.scores, whole.scores, method, 1e-11)
        assert part.cost["forwards"] == whole.cost["forwards"]
        assert part.cost["backwards"] == whole.cost["backwards"]


# --- feature maps ----------------------------------------------------------------------------------------------------


class Maps(nn.Module):
    """The image is its own feature map; the classifier reads the mean of each channel."""

    def __init__(self, weight: list[list[float]]) -> None:
        super().__init__()
        self.maps = nn.Identity()
        self.head = nn.Linear(3, len(weight), bias=False, dtype=torch.float64)
        self.head.weight.data = torch.tensor(weight, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.maps(x).mean((2, 3)))


def test_gradcam_plus_plus_without_a_gradient() -> None:
    model = Maps([[0.0, 0, 0], [1, 2, 3]])
    assert float(mhex.explain(model, pictures(), "gradcam++", 0, layer="maps").scores.abs().max()) == 0
    negative = mhex.explain(Maps([[-1.0, -2, -3], [1, 2, 3]]), pictures(), "gradcam++", 0, layer="maps").scores
    assert float(negative.abs().max()) == 0


def test_gradcam_plus_plus_by_hand() -> None:
    """The gradient is w / 96 at all 96 places of a channel."""
    x, weight = pictures(1).abs(), torch.tensor([1.0, -2, 3], dtype=torch.float64)
    got = mhex.explain(Maps([weight.tolist()] * 2), x, "gradcam++", 0, layer="maps").scores[0]
    wanted = torch.zeros_like(got)
    for w, channel in zip((weight / 96).tolist(), x[0], strict=True):
        if w > 0:
            wanted += 96 * w * w**2 / (2 * w**2 + w**3 * channel.sum() + 1e-6) * channel
    assert_same(got, wanted, "gradcam++", 1e-12)


@pytest.mark.parametrize("sign", [1, -1])
def test_eigencam_of_one_pattern(sign: int) -> None:
    """Channels that are multiples of one map: that map without its mean, where it is above it."""
    pattern = torch.rand(8, 12, dtype=torch.float64) ** 3
    x = torch.stack([2 * pattern, -1 * pattern + 3, 0.5 * pattern])[None] * sign
    got = mhex.explain(Maps([[1.0, 1, 1]] * 2), x, "eigencam", layer="maps").scores[0]
    wanted = (pattern - pattern.mean()) * (4 + 1 + 0.25) ** 0.5
    assert abs(float(wanted.min())) < float(wanted.max())
    assert_same(got, wanted.clamp_min(0), "eigencam", 1e-12)


@pytest.mark.parametrize("name", ["timm_vit", "plain_cnn"])
def test_eigencam_without_centring(name: str) -> None:
    """By a singular value decomposition of the features as they are; on a ViT it is another map than with centring."""
    family = FAMILIES[name]
    model, images = family.model(), family.inputs(2)
    got = mhex.explain(model, images, "eigencam", center=False).scores
    for n in range(2):
        maps, _ = feature_maps(view(family, model, family.sample(images, n)), 0)
        left, sizes, _ = np.linalg.svd(maps.flatten(1).T.numpy())
        wanted = torch.from_numpy(left[:, 0] * sizes[0]).reshape(maps.shape[1:])
        wanted = wanted if abs(float(wanted.min())) < float(wanted.max()) else -wanted
        assert_same(got[n], wanted.clamp_min(0), "eigencam", 1e-9)
    centred = mhex.explain(model, images, "eigencam").scores
    assert float((centred - got).abs().max()) > 0.1 * float(got.max())
    torch.testing.assert_close(mhex.explain(model, images, "eigencam", center=True).scores, centred)


def test_eigencam_of_maps_that_do_not_vary() -> None:
    flat = mhex.explain(Maps([[1.0, 1, 1]] * 2), torch.full((2, 3, 8, 12), 0.3), "eigencam", layer="maps").scores
    assert float(flat.abs().max()) < 1e-12


@pytest.mark.parametrize("most", [None, 1, 5, 1000])
def test_scorecam_with_fewer_channels(most: int | None) -> None:
    got = mhex.explain(CNN.model(), CNN.inputs(2), "scorecam", 3, max_channels=most)
    for n in range(2):
        wanted = scorecam_of(view(CNN, CNN.model(), CNN.inputs(2)[n : n + 1]), 3, most)
        assert_same(got.scores[n], wanted, "scorecam", 1e-10)
    channels = 12
    assert got.cost["forwards"] == 1 + min(most or channels, channels)


# --- hiding ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("window", [4, (2, 3), (8, 12), 1])
def test_occlusion_of_an_additive_model(window: Any) -> None:
    """With zeros in its place, a window loses exactly what it gave."""
    model, x = Linear(), pictures()
    got = mhex.explain(model, x, "occlusion", [0, 1], patch=window, fill="zero").scores
    height, width = (window, window) if isinstance(window, int) else window
    given = torch.einsum("kchw,bchw->bkhw", model.weight, x).detach()
    wanted = given.unflatten(3, (-1, width)).unflatten(2, (-1, height)).sum((3, 5))
    assert_same(got, wanted, "occlusion", 1e-11)


def test_windows_that_overlap_or_reach_over_the_edge() -> None:
    """Each pixel has the mean of the windows that cover it; the last ones are cut off."""
    model, x = Linear(), pictures(1)
    given = (model.weight[1] * x[0]).sum(0).detach()
    for window, stride in ((3, 2), (5, 5), (7, 1), ((8, 5), (8, 4))):
        (high, wide), (down, right) = ((w, w) if isinstance(w, int) else w for w in (window, stride))
        total, cover = torch.zeros_like(given), torch.zeros_like(given)
        for top in [down * i for i in range(8) if down * (i - 1) + high < 8]:
            for left in [right * i for i in range(12) if right * (i - 1) + wide < 12]:
                part = (slice(top, top + high), slice(left, left + wide))
                total[part] += given[part].sum()
                cover[part] += 1
        got = mhex.explain(model, x, "occlusion", 1, patch=window, stride=stride, fill=0.0).scores[0]
        assert float(cover.min()) > 0
        assert_same(got, total / cover, "occlusion", 1e-11)


def test_what_is_hidden_by_itself_loses_nothing() -> None:
    x = VIT.inputs(2)
    e = mhex.explain(VIT.model(), x, "occlusion", 2, fill=x)
    assert float(e.scores.abs().max()) < 1e-12
    assert e.options["fill"] == "tensor"
    flat = torch.full((1, 3, 32, 48), 0.7, dtype=torch.float64)
    for fill in ("mean", "blur", 0.7):
        assert float(mhex.explain(VIT.model(), flat, "occlusion", 2, fill=fill).scores.abs().max()) < 1e-12
    ids = torch.tensor([[1, 9, 9, 9, 2]])
    e = mhex.explain(BERT.model(), {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, "occlusion", 2, fill=9)
    assert float(e.scores.abs().max()) < 1e-12


class Means(nn.Module):
    """Colours alone."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :, ::16, ::16].mean((2, 3))


@pytest.mark.parametrize(
    ("size", "window"), [((64, 96), 4), ((224, 224), 16), ((299, 299), 23), ((32, 32), 2), ((31, 53), 2), ((5, 9), 1)]
)
def test_windows_of_models_without_patches(size: tuple[int, int], window: int) -> None:
    e = mhex.explain(Means(), torch.zeros(1, 3, *size), "occlusion", target=0)
    assert e.options["patch"] == [window, window]
    assert e.options["stride"] == [window, window]


def test_windows_of_models_with_patches() -> None:
    e = mhex.explain(VIT.model(), VIT.inputs(1), "occlusion")
    assert e.options["patch"] == [8, 8]
    assert e.scores.shape == (1, 4, 6)


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("timm_vit", "blocks.0"),
        ("timm_registers", "blocks.0"),
        ("timm_avg", "blocks.0"),
        ("hf_deit", "deit.layers.0"),
        ("hf_dinov2", "dinov2.encoder.layer.0"),
        ("tv_vit", "encoder.layers.encoder_layer_0"),
    ],
)
def test_dropped_tokens(name: str, first: str) -> None:
    """Against a hook of our own on the first block, one token at a time."""
    family = FAMILIES[name]
    model, x = family.fresh(), family.inputs(2)
    got = mhex.explain(model, x, "occlusion", [1, 4], drop=True, batch_size=5)
    wanted = torch.empty(2, 2, *family.grid, dtype=torch.float64)
    with torch.no_grad():
        whole = call(model, x)
        for patch in range(family.grid[0] * family.grid[1]):
            place = family.prefix + patch

            def cut(module: nn.Module, args: Any, place: int = place) -> Any:
                return (torch.cat([args[0][:, :place], args[0][:, place + 1 :]], 1), *args[1:])

            handle = model.get_submodule(first).register_forward_pre_hook(cut)
            wanted.flatten(2)[..., patch] = (whole - call(model, x))[:, [1, 4]]
            handle.remove()
    assert_same(got.scores, wanted, "occlusion", 1e-11)
    with pytest.raises(ArgumentError, match="with drop=True"):
        mhex.explain(model, x, "occlusion", drop=True, patch=8)


@pytest.mark.parametrize("name", ["plain_cnn", "hf_bert", "timm_swin"])
def test_only_tokens_can_be_dropped(name: str) -> None:
    with pytest.raises(ArgumentError, match="Vision Transformer of a known family for drop=True"):
        mhex.explain(FAMILIES[name].model(), FAMILIES[name].inputs(1), "occlusion", drop=True)


def test_words_given_as_embeddings_are_hidden_by_a_token() -> None:
    """As where ids are given; without fill=, by zeros."""
    model, inputs = FAMILIES["hf_bert"].model(), dict(FAMILIES["hf_bert"].inputs(2))
    none = {"special_tokens_mask": torch.zeros_like(inputs["input_ids"])}  # it is not guessed from embeddings
    wanted = mhex.explain(model, {**inputs, **none}, "occlusion", 1, fill=7)
    words = model.get_input_embeddings()(inputs.pop("input_ids")).detach()
    assert_same(
        mhex.explain(model, {**inputs, **none, "inputs_embeds": words}, "occlusion", 1, fill=7).scores,
        wanted.scores,
        "occlusion",
    )
    zeros = mhex.explain(model, {**inputs, **none, "inputs_embeds": words}, "occlusion", 1)
    hidden = words.clone()
    hidden[:, 2] = 0
    lost = zeros.logits[:, 1] - model(**inputs, inputs_embeds=hidden).logits[:, 1].detach()
    assert_same(zeros.scores[:, 2], lost, "occlusion")


def test_tokens_are_not_dropped_where_blocks_count_them() -> None:
    """Rotary positions are those of all patches."""
    sizes = {"embed_dim": 32, "depth": 1, "num_heads": 2, "img_size": 28, "num_classes": 3}
    model = timm.create_model("eva02_tiny_patch14_224", **sizes).eval()
    with pytest.raises(UnsupportedModelError, match=r"cannot run with a token less .*hide them by a fill"):
        mhex.explain(model, torch.randn(1, 3, 28, 28), "occlusion", drop=True)


class Cell(nn.Module):
    """The probability of class 1 is the mean of one corner of the image, which holds values from 0 to 1."""

    def forward(self, x: Tensor) -> Tensor:
        seen = x[:, :, :10, 14:28].mean((1, 2, 3))
        return torch.stack([1 - seen, seen], 1).log()


def test_rise_of_a_constant_is_constant() -> None:
    shares = torch.tensor([1.0, 3.0, -1.0]).double().softmax(0)
    got = mhex.explain(Blind(), pictures(2), "rise", [0, 2], n=40).scores
    assert_same(got, shares[[0, 2]][None, :, None, None].expand_as(got), "rise", 1e-12)


def test_rise_finds_the_cell_that_matters() -> None:
    x = torch.full((1, 3, 70, 98), 0.9, dtype=torch.float64)
    got = mhex.explain(Cell(), x, "rise", 1, n=300).scores[0]
    row, column = divmod(int(got.argmax()), 98)
    assert row < 10
    assert 14 <= column < 28
    rest = got.clone()
    rest[:20, 4:38] = 0
    floor = 0.45  # of an even mask, half of what there is
    assert float(got.max()) - floor > 3 * (float(rest.max()) - floor)


@pytest.mark.parametrize("options", [{"p": 0.3}, {"grid": 4}, {"p": 0.8, "grid": 9, "seed": 5}])
def test_masks_of_rise(options: dict[str, Any]) -> None:
    """A model that is shown a white image answers what it is shown of each mask."""

    class Shown(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.stack([x.mean((1, 2, 3)), x[:, 0, 3, 40]], 1)

    masks = [rise_mask(k, (32, 48), **options) for k in range(20)]
    got = mhex.explain(
        Shown(), torch.ones(1, 3, 32, 48, dtype=torch.float64), "rise", task="regression", n=20, **options
    )
    for k, share in enumerate((lambda m: m.mean(), lambda m: m[3, 40])):
        wanted = sum(share(m) * m for m in masks) / sum(masks).clamp_min(1e-300)
        assert_same(got.scores[0, k], wanted, "rise", 1e-6)


def test_masks_of_rise_show_the_chosen_share() -> None:
    share = float(torch.stack([rise_mask(k, (70, 70), p=0.3) for k in range(400)]).mean())
    assert abs(share - 0.3) < 0.01


@pytest.mark.parametrize("method", HIDING)
def test_a_model_that_ignores_its_input(method: str) -> None:
    if method == "rise":
        pytest.skip("its map is the probability itself, see above")
    assert float(explain(Blind(), pictures(2, (32, 48)), method, target=1).scores.abs().max()) == 0


@pytest.mark.parametrize("method", [*HIDING, "scorecam"])
@pytest.mark.parametrize("family", [VIT, BERT], ids=lambda family: family.name)
def test_hiding_does_not_depend_on_the_batch_size(method: str, family: Any) -> None:
    if method == "scorecam" and family is BERT:
        pytest.skip("texts have no feature maps")
    whole = explain(family.model(), family.inputs(3), method, target=[0, 4])
    for size in (1, 2, 5):
        part = explain(family.model(), family.inputs(3), method, target=[0, 4], batch_size=size)
        assert_same(part.scores, whole.scores, method, 1e-11)
        assert part.cost["forwards"] == whole.cost["forwards"]


@pytest.mark.parametrize("method", ["smoothgrad", "rise"])
def test_a_seed_repeats_and_another_one_differs(method: str) -> None:
    first, again, other = (explain(VIT.model(), VIT.inputs(1), method, seed=seed).scores for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert float((first - other).abs().max()) > 1e-4 * float(first.abs().max())


# --- SHAP ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("evaluations", [4, 30, 200])
@pytest.mark.parametrize("family", [VIT, BERT], ids=lambda family: family.name)
def test_shap_adds_up(family: Any, evaluations: int) -> None:
    model, inputs = family.model(), family.inputs(3)
    e = explain(model, inputs, "shap", target=[1, 4], max_evals=evaluations)
    if family is VIT:
        hidden: Any = torch.stack([blurred(x) for x in inputs])
    else:
        special = torch.isin(inputs["input_ids"], torch.tensor([0, 1, 2]))
        hidden = {**inputs, "input_ids": inputs["input_ids"].where(special, 3)}
    with torch.no_grad():
        change = (call(model, inputs).softmax(1) - call(model, hidden).softmax(1))[:, [1, 4]]
    assert_same(e.scores.flatten(2).sum(-1), change, "shap", 1e-12)
    assert float(e.diagnostics["completeness_gap"].abs().max()) < 1e-14


def test_shap_of_a_short_text_is_exact() -> None:
    """Of two words, the mean over both orders."""
    ids = torch.tensor([[1, 20, 30, 2]])
    shown = {(a, b): torch.tensor([[1, 20 if a else 3, 30 if b else 3, 2]]) for a in (0, 1) for b in (0, 1)}
    with torch.no_grad():
        f = {key: float(call(BERT.model(), {"input_ids": one})[0].softmax(0)[4]) for key, one in shown.items()}
    got = mhex.explain(BERT.model(), {"input_ids": ids}, "shap", 4, fill=3).scores[0]
    first = (f[1, 0] - f[0, 0] + f[1, 1] - f[0, 1]) / 2
    second = (f[0, 1] - f[0, 0] + f[1, 1] - f[1, 0]) / 2
    assert got.tolist() == pytest.approx([0, first, second, 0], abs=1e-12)


def test_two_images_of_a_batch_have_backgrounds_of_their_own() -> None:
    """A model that is only asked about the background answers for each image by its own."""
    x = VIT.inputs(20)
    together = explain(VIT.model(), x, "shap", target=2)
    for n in (0, 7, 19):
        assert torch.equal(together.scores[n], explain(VIT.model(), x[n : n + 1], "shap", target=2).scores[0])


@pytest.mark.parametrize("family", [VIT, BERT], ids=["image", "text"])
def test_shap_of_several_targets_is_that_of_each(family: Any) -> None:
    """Each has evaluations of its own; an input that two of them ask for is run once."""
    model, inputs, options = family.model(), family.inputs(2), {"max_evals": 40}
    together = explain(model, inputs, "shap", target=[0, 2, 4], **options)
    alone = [explain(model, inputs, "shap", target=target, **options) for target in (0, 2, 4)]
    for k, single in enumerate(alone):
        assert_same(together.scores[:, k], single.scores, "shap", 1e-9)
    apart = sum(single.cost["forwards"] - 1 for single in alone)
    assert alone[0].cost["forwards"] <= together.cost["forwards"] < 1 + apart


def test_shap_leaves_the_generators_alone() -> None:
    import random

    np.random.seed(5)
    random.seed(5)
    wanted = np.random.rand(), random.random()
    np.random.seed(5)
    random.seed(5)
    first = explain(VIT.model(), VIT.inputs(1), "shap", max_evals=60).scores
    assert (np.random.rand(), random.random()) == wanted
    np.random.seed(77)
    assert torch.equal(explain(VIT.model(), VIT.inputs(1), "shap", max_evals=60).scores, first)


# --- what is refused, and what is settled ----------------------------------------------------------------------------


class Tokenizer:
    """Knows its mask token, and nothing else that is needed here."""

    cls_token_id, sep_token_id, pad_token_id, mask_token_id = 1, 2, 0, 5

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
        return [str(i) for i in ids]


@pytest.mark.parametrize("method", HIDING)
def test_the_token_that_stands_for_hidden_ones(method: str) -> None:
    options = {"rise": {"n": 4}, "shap": {"max_evals": 10}}.get(method, {})
    inputs = BERT.inputs(2)
    by_tokenizer = mhex.explain(BERT.model(), inputs, method, tokenizer=Tokenizer(), **options)
    assert by_tokenizer.options["fill"] == 5
    assert_same(by_tokenizer.scores, mhex.explain(BERT.model(), inputs, method, fill=5, **options).scores, method)
    assert mhex.explain(BERT.model(), inputs, method, **options).options["fill"] == 0, "the padding token"
    words = BERT.model().get_input_embeddings()(inputs["input_ids"]).detach()
    given = {"inputs_embeds": words, "attention_mask": inputs["attention_mask"]}
    assert mhex.explain(BERT.model(), given, method, **options).options["fill"] == "zero"
    text = FAMILIES["encoder_text"]
    with pytest.raises(ArgumentError, match="give tokenizer=, or fill="):
        mhex.explain(text.model(), text.inputs(1), method, **options)
    for wrong in ("mean", -1, 1.5, 60, True):
        with pytest.raises(ArgumentError, match="Expected fill to be"):
            mhex.explain(BERT.model(), inputs, method, fill=wrong, **options)


@pytest.mark.parametrize(
    ("method", "options", "words"),
    [
        ("smoothgrad", {"n": 0}, "Expected n to be"),
        ("smoothgrad", {"sigma": -1}, "Expected sigma"),
        ("smoothgrad", {"times_input": 1}, "True or False"),
        ("integrated-gradients", {"steps": 0}, "Expected steps"),
        ("integrated-gradients", {"rule": "simpson"}, "Expected rule"),
        ("integrated-gradients", {"baseline": "zero"}, "Expected baseline 'auto', 'black', 'mean'"),
        ("integrated-gradients", {"baseline": torch.zeros(4)}, "baseline that fits"),
        ("scorecam", {"max_channels": 0}, "Expected max_channels"),
        ("occlusion", {"patch": 0}, "Expected patch"),
        ("occlusion", {"patch": (4, 4, 4)}, "Expected patch"),
        ("occlusion", {"patch": 50}, "no larger than 32x48"),
        ("occlusion", {"patch": 4, "stride": 5}, "no larger than 4x4"),
        ("occlusion", {"fill": "grey"}, "Expected fill"),
        ("occlusion", {"fill": torch.zeros(5)}, "fill that fits"),
        ("occlusion", {"fill": float("nan")}, "Expected fill"),
        ("rise", {"n": 0}, "Expected n to be"),
        ("rise", {"p": 1.0}, "Expected p"),
        ("rise", {"grid": 0}, "Expected grid"),
        ("rise", {"fill": 3}, "no fill= for images"),
        ("smoothgrad", {"n": 10**9}, "Expected n to be a whole number from 1 to 1000000"),
        ("integrated-gradients", {"steps": 1001}, "at most 1000 steps for rule 'gauss'.*'midpoint'"),
        ("rise", {"grid": 10**5}, "Expected grid to be a whole number from 1 to"),
        ("shap", {"max_evals": 3}, "at least 4, but got 3"),
        ("shap", {"fill": 3}, "no fill= for images"),
        *((m, {"batch_size": 0}, "Expected batch_size") for m in (*PATHS, *HIDING, "scorecam")),
    ],
)
def test_wrong_options_of_hiding_and_path_methods_are_refused(method: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises((ArgumentError, TypeError), match=words):
        mhex.explain(VIT.model(), VIT.inputs(1), method, **options)


def test_windows_are_for_images() -> None:
    with pytest.raises(ArgumentError, match="token by token"):
        mhex.explain(BERT.model(), BERT.inputs(1), "occlusion", patch=2)


class Normed(nn.Module):
    """Word embeddings that enter a layer norm and nothing else, as in DeBERTa."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(5)
        self.words = nn.Embedding.from_pretrained(0.05 * torch.randn(20, 24, generator=generator))
        self.norm = nn.LayerNorm(24, eps=1e-7)
        self.head = nn.Linear(24, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        normed: Tensor = self.norm(self.words(input_ids)).relu()
        return self.head((normed * attention_mask[..., None]).sum(1))


TEXTS = {
    "input_ids": torch.tensor([[3, 4, 5, 6], [7, 8, 0, 0]]),
    "attention_mask": torch.tensor([[1] * 4, [1, 1, 0, 0]]),
}


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("input-x-gradient", {}),
        ("smoothgrad", {"n": 2, "sigma": 0.0}),
        ("smoothgrad", {"n": 2, "times_input": False}),
        ("guided-backprop", {}),
    ],
)
def test_scores_of_rounding_are_told(method: str, options: dict[str, Any]) -> None:
    with pytest.warns(MhexWarning, match=r"next to nothing but rounding.*'occlusion' or 'shap'"):
        mhex.explain(Normed(), TEXTS, method, target=[0, 1], **options)


@pytest.mark.parametrize("options", [{"method": "cdam"}, {"method": "cdam-smooth", "n": 2, "sigma": 0.0}])
def test_tokens_that_reach_the_head_by_a_norm_alone(options: dict[str, Any]) -> None:
    with pytest.warns(MhexWarning, match="next to nothing but rounding"):
        mhex.explain(VIT.model(), VIT.inputs(2), target=1, site="block_input", **options)


@pytest.mark.filterwarnings("error::mhex.errors.MhexWarning")
def test_scores_of_more_than_rounding() -> None:
    for family, method in ((BERT, "input-x-gradient"), (BERT, "cdam"), (VIT, "cdam"), (VIT, "input-x-gradient")):
        assert float(mhex.explain(family.model(), family.inputs(2), method, target=1).scores.abs().max()) > 1e-6
    constant = Normed()
    constant.head.weight.data.zero_()
    # Nothing is added up, so nothing cancels.
    assert float(mhex.explain(constant, TEXTS, "input-x-gradient", target=1).scores.abs().max()) == 0


def test_a_gap_that_matters_is_told() -> None:
    with pytest.warns(MhexWarning, match="integrated-gradients do not add up"):
        mhex.explain(VIT.model(), VIT.inputs(2), "integrated-gradients", target=1, steps=1)


@pytest.mark.parametrize("method", ["gradcam++", "scorecam", "eigencam"])
def test_models_without_feature_maps_are_told_what_to_do(method: str) -> None:
    with pytest.raises(mhex.errors.UnsupportedModelError, match=r"feature maps.*layer=.*occlusion"):
        mhex.explain(Linear(), pictures(), method)


def test_functions_of_samples() -> None:
    """A function of the user's sees every sample in its place, also where variants of several run together."""
    factors = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    for method in (*PATHS, "occlusion"):
        plain = explain(VIT.model(), VIT.inputs(3), method, target=1).scores
        got = explain(VIT.model(), VIT.inputs(3), method, target=lambda y: y[:, 1] * factors).scores
        assert_same(got, plain * factors[:, None, None], method, 1e-11)


@pytest.mark.parametrize("size", [1e-14, 1.0, 1e12])
@pytest.mark.parametrize("shape", [(2, 9, 20), (2, 20, 9)])
def test_the_first_component_of_features_of_any_size(size: float, shape: tuple[int, ...]) -> None:
    """As by a decomposition in float64; squares of such numbers leave the range of float32."""
    a = torch.randn(shape, generator=torch.Generator().manual_seed(5)) * size
    found = _first_component(a).double()
    left, values, _ = torch.linalg.svd(a.double(), full_matrices=False)
    wanted = left[..., 0] * values[:, :1]
    wanted = wanted * (found * wanted).sum(1, keepdim=True).sign()
    assert float((found - wanted).abs().max()) < 1e-4 * float(wanted.abs().max())
