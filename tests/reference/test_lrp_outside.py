"""LRP and guided backpropagation against zennit, captum and pytorch-grad-cam."""

from __future__ import annotations

import copy
import functools
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import mhex
from support.models import CLASSES, FAMILIES, enliven

ZENNIT = "zennit is not installed (extra 'dev')"
CAPTUM = "captum is not installed (extra 'dev')"
GRAD_CAM = "grad-cam is not installed (extra 'dev')"


@functools.cache
def small_cnn() -> nn.Module:
    """Modules only, each used once, as the packages want it; some have biases, and inputs have both signs."""
    layers = [
        *(nn.Conv2d(3, 6, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(6, 8, 3, padding=2, dilation=2, groups=2)),
        *(nn.ReLU(), nn.AvgPool2d(2), nn.Conv2d(8, 8, 3, bias=False), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(8 * 2 * 1, 10), nn.ReLU(), nn.Linear(10, CLASSES)),
    ]
    return enliven(nn.Sequential(*layers)).double().eval().requires_grad_(False)


def pixels(*size: int) -> Tensor:
    return torch.randn(2, 3, *size, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


def resnet(kind: str) -> tuple[nn.Module, Tensor]:
    """torchvision's ResNet code with blocks of either kind; batch norms keep statistics of their own."""
    tv = pytest.importorskip("torchvision.models.resnet", reason="the network comes from torchvision")
    if kind == "basic":
        model = FAMILIES["tv_resnet"].fresh()
    else:
        model = enliven(tv.ResNet(tv.Bottleneck, [1, 1, 1, 1], num_classes=CLASSES, width_per_group=8)).double().eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eps = 0.0  # zennit leaves 1 / sqrt(1 + eps) where it has folded a norm
    return model.requires_grad_(False), pixels(64, 64)


def by_zennit(model: nn.Module, x: Tensor, target: int, rule: Any, first: Any = None, resnet: bool = False) -> Tensor:
    """Relevance of pixels, started with the sign of the target's score, which alpha-beta rules do not take."""
    from zennit.attribution import Gradient
    from zennit.composites import LayerMapComposite, SpecialFirstLayerMapComposite
    from zennit.rules import Norm, Pass
    from zennit.types import Activation, AvgPool, Convolution, Linear

    canonizers: list[Any] = []
    table: list[Any] = [(Activation, Pass()), ((AvgPool,), Norm()), ((Convolution, Linear), rule)]
    if resnet:
        from zennit.layer import Sum
        from zennit.torchvision import ResNetCanonizer

        canonizers, table = [ResNetCanonizer()], [((Sum,), Norm()), *table]
    if first is None:
        composite = LayerMapComposite(table, canonizers=canonizers)
    else:
        composite = SpecialFirstLayerMapComposite(table, [((Convolution,), first)], canonizers=canonizers)
    with Gradient(copy.deepcopy(model), composite) as attributor:
        start = torch.eye(CLASSES, dtype=x.dtype)[[target] * len(x)]
        if type(rule).__name__ != "AlphaBeta":
            start = start * model(x)[:, [target]].sign().detach()
        _, relevance = attributor(x.clone(), start)
    return relevance.sum(1).detach()


def close(got: Tensor, wanted: Tensor, tolerance: float = 1e-5) -> None:
    size = float(wanted.abs().max())
    assert size > 0
    assert float((got - wanted).abs().max()) <= tolerance * size


def rules() -> dict[str, tuple[Any, dict[str, Any]]]:
    zennit = pytest.importorskip("zennit.rules", reason=ZENNIT)
    return {
        "epsilon": (zennit.Epsilon(1e-6), {"rule": "epsilon"}),
        "epsilon-large": (zennit.Epsilon(0.25), {"rule": "epsilon", "epsilon": 0.25}),
        "alpha1": (zennit.AlphaBeta(1.0, 0.0, zero_params="bias"), {"rule": "alphabeta"}),
        "alpha2": (zennit.AlphaBeta(2.0, 1.0, zero_params="bias"), {"rule": "alphabeta", "alpha": 2.0}),
        "gamma": (zennit.Gamma(0.25), {"rule": "gamma"}),
    }


RULES = ("epsilon", "epsilon-large", "alpha1", "alpha2", "gamma")


@pytest.mark.parametrize("name", RULES)
def test_small_cnn_by_zennit(name: str) -> None:
    theirs, options = rules()[name]
    model, x = small_cnn(), pixels(24, 16)
    if name == "epsilon-large":  # their stabiliser of pools is 1e-6 whatever that of layers
        model = nn.Sequential(*[layer for layer in model if not isinstance(layer, (nn.AvgPool2d, nn.MaxPool2d))])
        model[-3] = nn.Linear(8 * 10 * 6, 10, dtype=torch.float64).requires_grad_(False)
    for target in (0, 4):
        ours = mhex.explain(model, x, "lrp", target=target, input_rule="same", **options)
        close(ours.scores, by_zennit(model, x, target, theirs), 1e-9)


def test_box_by_zennit() -> None:
    """Their box is one for the whole batch: one image at a time."""
    zennit = pytest.importorskip("zennit.rules", reason=ZENNIT)
    model, x = small_cnn(), pixels(24, 16)
    ours = mhex.explain(model, x, "lrp", target=1).scores
    for n in range(2):
        one = x[n : n + 1]
        box = zennit.ZBox(one.min(), one.max(), zero_params="bias")
        close(ours[n : n + 1], by_zennit(model, one, 1, zennit.Epsilon(1e-6), box), 1e-9)


@pytest.mark.parametrize("kind", ["basic", pytest.param("bottleneck", marks=pytest.mark.slow)])
def test_resnet_by_zennit(kind: str) -> None:
    """Batch norms folded into convolutions, residual sums by ratio."""
    model, x = resnet(kind)
    for name in ("epsilon", "alpha1", "alpha2", "gamma"):
        theirs, options = rules()[name]
        ours = mhex.explain(model, x, "lrp", target=2, input_rule="same", **options)
        close(ours.scores, by_zennit(model, x, 2, theirs, resnet=True), 1e-9)


@pytest.mark.parametrize("kind", ["basic", pytest.param("bottleneck", marks=pytest.mark.slow)])
def test_resnet_by_default_is_that_of_zennit(kind: str) -> None:
    """No option is given: epsilon rule, residual sums by ratio, and a box of its own for each image."""
    zennit = pytest.importorskip("zennit.rules", reason=ZENNIT)
    model, x = resnet(kind)
    ours = mhex.explain(model, x, "lrp", target=4).scores
    for image, scores in zip(x.split(1), ours.split(1), strict=True):
        box = zennit.ZBox(image.min(), image.max(), zero_params="bias")
        close(scores, by_zennit(model, image, 4, zennit.Epsilon(1e-6), box, resnet=True), 1e-9)
    other = mhex.explain(model, x, "lrp", target=4, residual="renormalised").scores
    assert float((ours - other).abs().max()) > 0.5 * float(ours.abs().max()), "a branch has relevance below 0"


def test_small_cnn_by_captum() -> None:
    """captum starts with the class score, and counts what pools hand down by their own epsilon rule."""
    captum = pytest.importorskip("captum.attr", reason=CAPTUM)
    from captum.attr._utils.lrp_rules import EpsilonRule

    model, x = copy.deepcopy(small_cnn()), pixels(24, 16)
    for layer in model:
        if isinstance(layer, (nn.Conv2d, nn.Linear, nn.AvgPool2d, nn.MaxPool2d, nn.Flatten)):
            layer.rule = EpsilonRule(1e-9)
    wanted = captum.LRP(model).attribute(x.clone(), target=3).sum(1).detach()
    e = mhex.explain(small_cnn(), x, "lrp", target=3, input_rule="same", epsilon=1e-9)
    close(e.scores * e.logits[:, 3, None, None].abs(), wanted)


class _ByGamma(torch.autograd.Function):
    """A layer whose gradient is relevance by zennit's gamma rule, over its input."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: nn.Module, gamma: float) -> Tensor:
        ctx.x, ctx.layer, ctx.gamma = x.detach(), layer, gamma
        ctx.y = layer(x)
        return ctx.y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        from zennit.rules import Gamma

        handle = Gamma(ctx.gamma).register(ctx.layer)
        with torch.enable_grad():
            x = ctx.x.clone().requires_grad_()
            (relevance,) = torch.autograd.grad(ctx.layer(x), x, gradients[0] * ctx.y)
        handle.remove()
        return relevance / ctx.x, None, None


class _Gamma(nn.Module):
    def __init__(self, layer: nn.Module, gamma: float) -> None:
        super().__init__()
        self.layer, self.gamma = layer, gamma

    def forward(self, x: Tensor) -> Tensor:
        return _ByGamma.apply(x, self.layer, self.gamma)


class _Constant(nn.Module):
    """LayerNorm with a constant sigma, GELU with a constant ratio, attention with constant queries and keys."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor, *others: Tensor, **options: Any) -> Any:
        if isinstance(self.inner, nn.MultiheadAttention):
            return self.inner(x.detach(), others[0].detach(), others[1], **options)
        if isinstance(self.inner, nn.GELU):
            return x * (self.inner(x) / x).detach()
        centred = x - x.mean(-1, keepdim=True)
        sigma = (x.var(-1, unbiased=False, keepdim=True) + self.inner.eps).sqrt().detach()
        return centred / sigma * self.inner.weight + self.inner.bias


def test_attnlrp_of_a_vit_is_the_published_recipe() -> None:
    """zennit's gamma rule on the modules that its composites reach in torchvision's ViT, as in the authors' example.

    The projections of attention are not among them: `nn.MultiheadAttention` does not call them as modules.
    """
    pytest.importorskip("zennit", reason=ZENNIT)
    family = FAMILIES["tv_vit"]
    model, x = family.fresh().requires_grad_(False), family.inputs(2)
    ours = mhex.explain(model, x, "attnlrp", target=2).scores
    reached = 0
    for name, module in list(model.named_modules()):
        inside = name.endswith("self_attention.out_proj")
        if isinstance(module, (nn.Linear, nn.Conv2d)) and not inside:
            model.set_submodule(name, _Gamma(module, 0.25 if isinstance(module, nn.Conv2d) else 0.05))
            reached += 1
        elif isinstance(module, (nn.LayerNorm, nn.GELU, nn.MultiheadAttention)):
            model.set_submodule(name, _Constant(module))
    assert reached == 2 + 2 * family.blocks  # patch embedding, head, and the layers of the MLPs
    point = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(model(point)[:, 2].sum(), point)
    close(ours, (x * gradient).sum(1), 1e-9)


def test_projections_are_known_whatever_stands_between_softmax_and_values() -> None:
    class Attention(nn.Module):
        def __init__(self, between: Any) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.embed = nn.Conv2d(3, 8, 4, 4)
            self.q, self.k, self.v, self.out, self.head = (nn.Linear(8, 8) for _ in range(5))
            self.between = between
            self.double().eval()

        def forward(self, x: Tensor) -> Tensor:
            x = self.embed(x).flatten(2).mT
            weights = (self.q(x) @ self.k(x).mT).softmax(-1)
            return self.head((x + self.out(self.between(weights) @ self.v(x))).mean(1))

    x = torch.rand(2, 3, 8, 8, dtype=torch.float64)
    plain = mhex.explain(Attention(lambda weights: weights), x, "attnlrp", 1).scores
    for between in (torch.clone, lambda weights: weights * 1.0, lambda weights: weights.reshape(weights.shape)):
        close(mhex.explain(Attention(between), x, "attnlrp", 1).scores, plain, 1e-9)
    gamma = mhex.explain(Attention(torch.clone), x, "attnlrp", 1, projections="gamma").scores
    assert not torch.allclose(gamma, plain, rtol=1e-3)


def test_conservative_lrp_of_its_paper_detaches_attention_and_norms_alone() -> None:
    """Gradient times input of the same network with constant queries, keys and sigmas; GELU keeps its slope."""
    family = FAMILIES["tv_vit"]
    model, x = family.fresh().requires_grad_(False), family.inputs(2)
    ours, other = (
        mhex.explain(model, x, "conservative-lrp", target=2, level="input", act=act).scores
        for act in ("gradient", "identity")
    )
    for name, module in list(model.named_modules()):
        if isinstance(module, (nn.LayerNorm, nn.MultiheadAttention)):
            model.set_submodule(name, _Constant(module))
    point = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(model(point)[:, 2].sum(), point)
    close(ours, (x * gradient).sum(1), 1e-10)
    assert float((ours - other).abs().max()) > 0.01 * float(ours.abs().max())


def _scaled_gradient(x: Tensor, share: float) -> Tensor:
    return share * x + ((1 - share) * x).detach()


@pytest.mark.parametrize(("method", "shares"), [("attnlrp", (0.25, 0.25, 0.5)), ("conservative-lrp", (0.0, 0.0, 1.0))])
def test_llama_by_its_own_gradient(method: str, shares: tuple[float, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """RMSNorm, SiLU, gated MLPs and rotary embeddings: gradient times input of a model with other gradients.

    The lengths of norms and the ratio of activations are constants, products of activations have half a gradient.
    """
    transformers = pytest.importorskip("transformers", reason="the model comes from transformers")
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4}
    special = {"vocab_size": 20, "num_labels": 3, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    config = transformers.LlamaConfig(**sizes, **special, num_key_value_heads=2)
    model = enliven(transformers.LlamaForSequenceClassification(config)).double().eval().requires_grad_(False)
    text = {"input_ids": torch.tensor([[5, 9, 12, 7, 3, 11]]), "attention_mask": torch.ones(1, 6, dtype=torch.long)}
    options = {"level": "input"} if method == "conservative-lrp" else {}
    ours = mhex.explain(model, text, method, target=1, **options).scores[0]

    llama = transformers.models.llama.modeling_llama
    attend = torch.nn.functional.scaled_dot_product_attention

    def norm(self: Any, x: Tensor) -> Tensor:
        return self.weight * x * (x.float().pow(2).mean(-1, keepdim=True) + self.variance_epsilon).rsqrt().detach()

    def feed(self: Any, x: Tensor) -> Tensor:
        gate = self.gate_proj(x)
        gate = gate * torch.sigmoid(gate).detach()
        return self.down_proj(_scaled_gradient(gate * self.up_proj(x), 0.5))

    def shared(*qkv: Tensor, **settings: Any) -> Tensor:
        return attend(*(_scaled_gradient(x, share) for x, share in zip(qkv, shares, strict=True)), **settings)

    monkeypatch.setattr(llama.LlamaRMSNorm, "forward", norm)
    monkeypatch.setattr(llama.LlamaMLP, "forward", feed)
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", shared)
    words = model.get_input_embeddings()(text["input_ids"]).requires_grad_()
    positions = {"attention_mask": text["attention_mask"], "position_ids": torch.arange(6)[None]}
    hidden = model.model(inputs_embeds=words, **positions).last_hidden_state
    (gradient,) = torch.autograd.grad(model.score(hidden)[0, -1, 1], words)
    close(ours, (words * gradient).sum(-1)[0].detach(), 1e-6)  # its norms compute in float32


@pytest.mark.parametrize("name", ["small_cnn", "resnet", "resnet18"])
def test_guided_backprop_of_captum(name: str) -> None:
    captum = pytest.importorskip("captum.attr", reason=CAPTUM)
    model, x = _relu_network(name)
    wanted = captum.GuidedBackprop(_plain_relus(model)).attribute(x.clone().requires_grad_(), target=4).sum(1).detach()
    close(
        mhex.explain(model, x, "guided-backprop", target=4).scores, wanted, 1e-10 if x.dtype == torch.float64 else 1e-5
    )


@pytest.mark.parametrize("name", ["small_cnn", "resnet"])
def test_guided_backprop_of_pytorch_grad_cam(name: str) -> None:
    package = pytest.importorskip("pytorch_grad_cam", reason=GRAD_CAM)
    model, x = _relu_network(name)
    guided = package.GuidedBackpropReLUModel(model=copy.deepcopy(model), device=torch.device("cpu"))
    for n in range(2):
        theirs = guided(x[n : n + 1].clone(), target_category=4)  # (H, W, C)
        ours = mhex.explain(model, x[n : n + 1], "guided-backprop", target=4).scores[0]
        assert np.abs(theirs.sum(-1) - ours.numpy()).max() <= 1e-6 * np.abs(theirs).max()


def _relu_network(name: str) -> tuple[nn.Module, Tensor]:
    if name == "small_cnn":
        return small_cnn(), pixels(24, 16)
    if name == "resnet":
        return resnet("basic")
    torchvision = pytest.importorskip("torchvision", reason="ResNet-18 comes from torchvision")
    torch.manual_seed(0)
    return torchvision.models.resnet18(num_classes=CLASSES).eval().requires_grad_(False), pixels(48, 48).float()


def _plain_relus(model: nn.Module) -> nn.Module:
    """captum's hooks take neither ReLU in place nor modules that are used twice."""
    plain = copy.deepcopy(model)
    for module in plain.modules():
        if isinstance(module, nn.ReLU):
            module.inplace = False
    return plain
