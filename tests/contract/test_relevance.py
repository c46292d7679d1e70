"""What users of the LRP family may rely on beside numbers: models are left alone, and refusals are sentences."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mhex
from mhex.errors import ArgumentError, CaptureError, MhexError, UnsupportedModelError
from support.cases import METHODS, assert_same
from support.models import CLASSES, FAMILIES, call, enliven
from support.snapshot import Snapshot
from support.tiny_models import Tiny, TinyBlock, pictures, tiny

RULED = tuple(name for name, method in METHODS.items() if method.rules is not None)
ON_CNN = ("lrp", "conservative-lrp", "attnlrp", "abslrp", "guided-backprop")
PAIRS = [*((m, "plain_cnn") for m in ON_CNN), *((m, "timm_vit") for m in RULED if m != "guided-backprop")]
every_pair = pytest.mark.parametrize(("method", "name"), PAIRS)


def training_gradients(model: nn.Module, inputs: Tensor) -> dict[str, Tensor]:
    model.zero_grad(set_to_none=True)
    loss = nn.functional.cross_entropy(call(model, inputs), torch.tensor([1, 4]))
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters()}


class Boom(Exception):
    """Raised in the middle of a pass."""


@every_pair
@pytest.mark.parametrize("fails", ["", "forward", "backward"])
def test_training_goes_on_as_before(method: str, name: str, fails: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients of a training step, and weights, are bit for bit those from before: rules act on their own pass."""
    model, inputs = FAMILIES[name].fresh(), FAMILIES[name].inputs(2)
    wanted = training_gradients(model, inputs)
    model.zero_grad(set_to_none=True)
    before = Snapshot(model)

    def boom(*_: Any, **__: Any) -> Any:
        raise Boom

    if fails == "forward":
        handle = model.head.register_forward_hook(boom)
        with pytest.raises(Boom):
            mhex.explain(model, inputs, method, target=1)
        handle.remove()
    elif fails == "backward":
        monkeypatch.setattr(torch.autograd, "grad", boom)
        with pytest.raises(Boom):
            mhex.explain(model, inputs, method, target=1)
        monkeypatch.undo()
    else:
        mhex.explain(model, inputs, method, target=1)
    before.check()
    for parameter, gradient in training_gradients(model, inputs).items():
        assert torch.equal(gradient, wanted[parameter]), parameter


@every_pair
def test_the_rules_keep_the_scores(method: str, name: str) -> None:
    model, inputs = FAMILIES[name].model(), FAMILIES[name].inputs(2)
    assert torch.allclose(mhex.explain(model, inputs, method).logits, call(model, inputs).detach(), 1e-12, 1e-12)


def test_inputs_are_left_alone() -> None:
    """The first layer writes in place into what it is given."""
    model = nn.Sequential(nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(16, CLASSES)).double()
    x = pictures()
    kept = x.clone()
    for method in ON_CNN:
        mhex.explain(model, x, method, target=1)
        assert torch.equal(x, kept)


class Writing(Tiny):
    """A Transformer that writes in place wherever it can, down to its answer."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([WritingBlock(False, False) for _ in range(2)])

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        y.mul_(2)  # and not `y *= 2`, which binds the name anew
        return y


class WritingBlock(TinyBlock):
    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.norm1(x))
        y = self.feed(self.norm2(x))
        y.add_(x)
        return y


class Twin(Tiny):
    """The same out of place."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 2


@pytest.mark.parametrize("method", [m for m in RULED if m != "guided-backprop"])
def test_models_that_write_in_place(method: str) -> None:
    writing = enliven(Writing()).double().eval()
    twin = Twin().double().eval()
    twin.load_state_dict(writing.state_dict())
    got, wanted = (mhex.explain(model, pictures(), method, target=[1, 3]) for model in (writing, twin))
    assert torch.equal(got.logits, twin(pictures()))
    assert_same(got.scores, wanted.scores, method, 1e-12)
    for name, one in wanted.diagnostics.items():
        assert torch.allclose(got.diagnostics[name], one, 1e-9, 1e-12), name


class Doubled(nn.Module):
    """The latent vector is written into before the classifier reads it, or not."""

    def __init__(self, writes: bool) -> None:
        super().__init__()
        self.writes, self.body, self.head = writes, nn.Linear(16, 6), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(x.flatten(1))
        if not self.writes:
            return self.head(x * 2)
        x.mul_(2)
        return self.head(x)


@pytest.mark.parametrize("method", ["lrp", "conservative-lrp"])
def test_latent_vectors_written_in_place(method: str) -> None:
    writing, twin = (enliven(Doubled(writes)).double().eval() for writes in (True, False))
    concept = mhex.Concept(torch.linspace(-1, 1, 6, dtype=torch.float64))
    got, wanted = (mhex.explain(model, pictures(), method, target=concept) for model in (writing, twin))
    assert_same(got.values, wanted.values, method, 1e-12)
    assert_same(got.scores, wanted.scores, method, 1e-12)


@pytest.mark.parametrize("method", [m for m in RULED if m != "guided-backprop"])
def test_several_targets_have_diagnostics_of_their_own(method: str) -> None:
    model, x = tiny("pre"), pictures()
    together = mhex.explain(model, x, method, target=[1, 3, 5])
    for k, target in enumerate((1, 3, 5)):
        alone = mhex.explain(model, x, method, target=target)
        assert_same(together.scores[:, k], alone.scores, method, 1e-12)
        for name, one in alone.diagnostics.items():
            assert torch.allclose(together.diagnostics[name][:, k], one, 1e-9, 1e-12), name


# --- hooks of the user -----------------------------------------------------------------------------------------------

KEPT: list[Any] = []


def _look(module: nn.Module, args: Any, output: Tensor) -> None:
    """What packages and users do in hooks: copies to other devices, numbers, and statistics of all kinds."""
    KEPT.append(output.cpu().detach())
    KEPT.append(torch.empty_like(output).copy_(output))
    KEPT.append(float(torch.sin(output).cumsum(1).logsumexp(1).sum()))
    KEPT.append(torch.nn.functional.softplus(output.softmax(-1)).amax())
    if output.requires_grad:
        output.register_hook(lambda gradient: KEPT.append(gradient.cpu()))


@every_pair
def test_what_hooks_compute_is_no_part_of_the_model(method: str, name: str) -> None:
    model, inputs = FAMILIES[name].fresh(), FAMILIES[name].inputs(2)
    wanted = mhex.explain(model, inputs, method, target=1).scores
    for module in model.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear, nn.LayerNorm)):
            module.register_forward_hook(_look)
    KEPT.clear()
    assert_same(mhex.explain(model, inputs, method, target=1).scores, wanted, method, 1e-12)
    assert KEPT


def test_pytorch_grad_cam_may_be_watching() -> None:
    package = pytest.importorskip("pytorch_grad_cam", reason="grad-cam is not installed (extra 'dev')")
    model, inputs = FAMILIES["tv_resnet"].fresh(), FAMILIES["tv_resnet"].inputs(2)
    wanted = [mhex.explain(model, inputs, method, target=1).scores for method in ON_CNN]
    cam = package.GradCAM(model=model, target_layers=[model.layer4])
    for method, scores in zip(ON_CNN, wanted, strict=True):
        assert_same(mhex.explain(model, inputs, method, target=1).scores, scores, method, 1e-12)
    cam.activations_and_grads.release()


class Changed(nn.Module):
    """A model whose first layer is followed by something."""

    def __init__(self, change: Any) -> None:
        super().__init__()
        self.layer, self.head, self.change = nn.Linear(16, 8), nn.Linear(8, CLASSES), change

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.change(self.layer(x.flatten(1))))


@pytest.mark.parametrize("method", ["lrp", "attnlrp", "abslrp"])
def test_what_a_hook_returns_is_a_part_of_the_model(method: str) -> None:
    """Its operations have rules like all others, and those that have none are refused."""
    twin, hooked = (enliven(Changed(change)).double().eval() for change in (lambda x: x * 2 + 1, lambda x: x))
    handle = hooked.layer.register_forward_hook(lambda module, args, output: output * 2 + 1)
    wanted = mhex.explain(twin, pictures(), method, target=1).scores
    assert_same(mhex.explain(hooked, pictures(), method, target=1).scores, wanted, method, 1e-12)
    handle.remove()
    hooked.layer.register_forward_hook(lambda module, args, output: torch.sin(output))
    with pytest.raises(UnsupportedModelError, match=r"sin \(1 times\)"):
        mhex.explain(hooked, pictures(), method, target=1)


# --- strict ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("lrp", {"epsilon": 0.01}),
        ("attnlrp", {"attention": "shared"}),
        ("conservative-lrp", {"act": "gradient"}),
        ("partial-lrp", {"epsilon": 0.01}),
        ("transformer-attribution", {"epsilon": 0.01}),
    ],
)
def test_strict_raises_beyond_the_largest_gap_alone(method: str, options: dict[str, Any]) -> None:
    """Raises beyond `max_gap`, not below it, and not at all unless asked to."""
    model, inputs = FAMILIES["timm_vit"].model(), FAMILIES["timm_vit"].inputs(2)
    gap = float(mhex.explain(model, inputs, method, target=2, **options).diagnostics["conservation_gap"].max())
    assert gap > 1e-6
    mhex.explain(model, inputs, method, target=2, **options, max_gap=gap / 2)
    mhex.explain(model, inputs, method, target=2, **options, max_gap=gap * 1.01, strict=True)
    with pytest.raises(CaptureError, match=r"Expected relevance to be conserved up to .*; leave strict out, or allow"):
        mhex.explain(model, inputs, method, target=2, **options, max_gap=gap * 0.99, strict=True)


def test_strict_is_content_where_biases_took_the_rest() -> None:
    model, inputs = FAMILIES["timm_vit"].model(), FAMILIES["timm_vit"].inputs(2)
    e = mhex.explain(model, inputs, "conservative-lrp", target=2, strict=True, max_gap=1e-9)
    assert float(e.diagnostics["lost_to_biases"].abs().max()) > 0.1


def test_strict_of_several_targets() -> None:
    """The worst of all samples and targets decides."""
    model, x = tiny("pre"), pictures()
    gaps = mhex.explain(model, x, "lrp", target=[0, 1, 2], epsilon=0.01).diagnostics["conservation_gap"]
    assert gaps.shape == (2, 3)
    between = float((gaps.max() + gaps.amax(0).min()) / 2)
    with pytest.raises(CaptureError):
        mhex.explain(model, x, "lrp", target=[0, 1, 2], epsilon=0.01, strict=True, max_gap=between)
    mhex.explain(model, x, "lrp", target=int(gaps.amax(0).argmin()), epsilon=0.01, strict=True, max_gap=between)


# --- refusals --------------------------------------------------------------------------------------------------------


class Odd(nn.Module):
    """Operations that have no rule, one of them twice, between layers that have one."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(16, 8), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.sin(self.layer(x.flatten(1))).cumsum(1)
        return self.head(torch.sin(x).logsumexp(0, keepdim=True) + x)


@pytest.mark.parametrize("method", [m for m in ON_CNN if m != "guided-backprop"])
def test_unknown_operations_are_named_in_one_sentence(method: str) -> None:
    model = Odd().double()
    before = Snapshot(model)
    with pytest.raises(UnsupportedModelError) as caught:
        mhex.explain(model, pictures(1), method, target=1)
    message = str(caught.value)
    assert "cumsum (1 times), logsumexp (1 times), sin (2 times)" in message
    assert "choose a method without rules, such as integrated-gradients" in message
    assert "\n" not in message
    before.check()


def test_batch_statistics_are_refused() -> None:
    """A norm that uses the statistics of the batch also in evaluation mode ties samples together."""
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3, track_running_stats=False), nn.Flatten(),
                          nn.Linear(12, CLASSES)).double()  # fmt: skip
    alone = nn.Sequential(nn.BatchNorm2d(1, track_running_stats=False), nn.Flatten(), nn.Linear(16, CLASSES)).double()
    for method in ("lrp", "conservative-lrp", "attnlrp", "abslrp"):
        for one in (model, alone):
            with pytest.raises(UnsupportedModelError, match="batch_norm"):
                mhex.explain(one, pictures(), method, target=1)


@pytest.mark.parametrize("name", ["timm_vit", "tv_efficientnet", "hf_bert"])
def test_guided_backprop_is_for_relu_alone(name: str) -> None:
    model, inputs = FAMILIES[name].model(), FAMILIES[name].inputs(1)
    used = "SiLU" if name == "tv_efficientnet" else "GELU"
    wanted = (
        f"defined for ReLU networks, and this one uses {used}(Activation)?. Methods that can: .*integrated-gradients"
    )
    with pytest.raises(UnsupportedModelError, match=wanted):
        mhex.explain(model, inputs, "guided-backprop", target=1)


def test_guided_backprop_of_what_has_no_relu_is_the_gradient() -> None:
    model, x = nn.Sequential(nn.Flatten(), nn.Linear(16, CLASSES)).double(), pictures()
    got = mhex.explain(model, x, "guided-backprop", target=2).scores
    assert torch.allclose(got, model[1].weight.detach()[2].reshape(1, 4, 4).expand(2, 4, 4))
    stopped = nn.Sequential(nn.Flatten(), nn.Linear(16, 1, bias=False), nn.ReLU(), nn.Linear(1, CLASSES)).double()
    stopped[1].weight.data = x[:1].flatten(1).clone()  # the unit is on for the first picture
    stopped[3].weight.data = torch.linspace(-1, 1, CLASSES, dtype=torch.float64)[:, None]
    assert float(mhex.explain(stopped, x[:1], "guided-backprop", target=0).scores.abs().max()) == 0
    assert float(mhex.explain(stopped, x[:1], "guided-backprop", target=6).scores.abs().max()) > 0


def test_tokens_of_a_network_without_tokens() -> None:
    with pytest.raises(ArgumentError, match=r"Expected level='input' for this .*, because it has no blocks of tokens"):
        mhex.explain(FAMILIES["plain_cnn"].model(), FAMILIES["plain_cnn"].inputs(1), "conservative-lrp", level="tokens")


@pytest.mark.parametrize("method", ["partial-lrp", "transformer-attribution"])
def test_attention_of_a_network_without_attention(method: str) -> None:
    with pytest.raises(MhexError, match="attention"):
        mhex.explain(FAMILIES["plain_cnn"].model(), FAMILIES["plain_cnn"].inputs(1), method, target=1)


@pytest.mark.parametrize(
    ("method", "options", "said"),
    [
        ("lrp", {"rule": "zplus"}, "Expected rule to be one of 'epsilon', 'alphabeta', 'gamma', but got 'zplus'"),
        ("lrp", {"residual": "half"}, "Expected residual to be"),
        ("lrp", {"input_rule": "flat"}, "Expected input_rule to be"),
        ("lrp", {"compat": "zennit"}, "Expected compat to be"),
        ("lrp", {"epsilon": -1e-6}, "Expected epsilon to be a number from 0 on, but got -1e-06"),
        ("lrp", {"epsilon": "small"}, "Expected epsilon"),
        ("lrp", {"epsilon": True}, "Expected epsilon"),
        ("lrp", {"gamma": float("nan")}, "Expected gamma"),
        ("lrp", {"alpha": 0.5}, "Expected alpha to be a number from 1 on, but got 0.5"),
        ("lrp", {"floor": -0.1}, "Expected floor to be a number from 0 on, but got -0.1"),
        ("lrp", {"max_gap": -1}, "Expected max_gap"),
        ("conservative-lrp", {"act": "slope"}, "Expected act to be 'identity' or 'gradient'"),
        ("conservative-lrp", {"level": "pixels"}, "Expected level to be"),
        ("attnlrp", {"attention": "both"}, "Expected attention to be"),
        ("attnlrp", {"gamma_linear": -0.1}, "Expected gamma_linear"),
        ("attnlrp", {"gamma_conv": float("inf")}, "Expected gamma_conv"),
        ("attnlrp", {"projections": "box"}, "Expected projections to be 'epsilon' or 'gamma', but got 'box'"),
        ("partial-lrp", {"epsilon": None}, "Expected epsilon"),
        ("partial-lrp", {"compat": "bert"}, "Expected compat to be None or 'chefer-lrp'"),
        ("transformer-attribution", {"compat": "vit"}, "Expected compat to be None or 'bert'"),
        ("transformer-attribution", {"start_block": 9}, "Expected start_block from 1 to 3"),
        ("abslrp", {"epsilon": 1e-6}, "epsilon"),
    ],
)
def test_wrong_options_of_relevance_methods_are_refused(method: str, options: dict[str, Any], said: str) -> None:
    family = FAMILIES["timm_vit"]
    with pytest.raises((ArgumentError, TypeError), match=said):
        mhex.explain(family.model(), family.inputs(1), method, target=1, **options)
