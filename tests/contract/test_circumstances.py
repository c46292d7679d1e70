"""States in which users bring their models and call the library: all must give the plain answer."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mhex
from mhex.registry import Method
from support.cases import (
    CORE,
    METHODS,
    PERTURBING,
    RELEVANCE,
    SHARES,
    assert_same,
    cases,
    explain,
    one_per_family,
    serving,
)
from support.formulas_classics import plus_plus, principal
from support.models import CLASSES, FAMILIES, Family, PlainCNN, PlainViT, call, enliven, with_heads
from support.snapshot import Snapshot

# Methods of every kind of pass, for what does not depend on what they do with it: a graph from attention, feature maps
# or the input on, relevance, replays of the tail, whole passes without a gradient, and heads.
KINDS_OF_PASS = ("gae", "gradcam", "input-x-gradient", "lrp", "cdam-smooth", "occlusion", "mhex")


def is_kind_of_pass(method: Method, family: Family) -> bool:
    return method.name in KINDS_OF_PASS


@cases(CORE, where=is_kind_of_pass, cover=True)
def test_frozen_parameters_change_nothing(method: str, family: Family) -> None:
    model, inputs = family.fresh(), family.inputs(2)
    model.requires_grad_(False)
    assert_same(explain(model, inputs, method).scores, explain(family.model(), inputs, method).scores, method)
    assert not any(p.requires_grad for p in model.parameters())


@one_per_family()
def test_models_in_train_mode_are_explained_in_evaluation_mode(method: str, family: Family) -> None:
    """Explained in evaluation mode, whatever the mode before; statistics of batch norm do not move."""
    model, inputs = family.fresh(), family.inputs(3)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.5
    model.train()
    before = Snapshot(model)
    trained = explain(model, inputs, method)
    before.check()
    assert_same(trained.scores, explain(family.model(), inputs, method).scores, method)


@pytest.mark.parametrize("method", KINDS_OF_PASS)
def test_train_mode_with_every_kind_of_dropout(method: str) -> None:
    from timm.models.vision_transformer import VisionTransformer

    drops = dict.fromkeys(("drop_rate", "pos_drop_rate", "proj_drop_rate", "attn_drop_rate", "drop_path_rate"), 0.4)
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 4, "num_classes": CLASSES}
    dropping = enliven(VisionTransformer(**sizes, **drops)).double().train()
    plain = enliven(VisionTransformer(**sizes)).double().eval()
    if "heads" in METHODS[method].needs.keep:
        dropping, plain = (enliven(with_heads(model)) for model in (dropping, plain))
    images = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    assert not torch.equal(dropping(images), dropping(images)), "the model must be random for this test"
    assert_same(explain(dropping, images, method).scores, explain(plain, images, method).scores, method)


class OutOfPlaceCNN(PlainCNN):
    """The same function as `PlainCNN` without writing in place and without a module used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.first(x)))
        x = F.relu(self.second(x))
        x = self.last(self.third(x) + x)
        return self.head(self.drop(x.mean((2, 3))))


@cases(["plain_cnn", "plain_cnn_heads"])
def test_writing_in_place_and_shared_modules(method: str, family: Family) -> None:
    model = OutOfPlaceCNN().double().eval()
    model = with_heads(model) if family.heads else model
    model.load_state_dict(family.model().state_dict())
    inputs = family.inputs(3)
    assert_same(explain(family.model(), inputs, method).scores, explain(model, inputs, method).scores, method)


def reads_once(method: Method, family: Family) -> bool:
    """Whether the method reads feature maps and runs nothing else."""
    return "features" in method.needs.keep and method.name not in PERTURBING


@cases(["tv_resnet", "plain_cnn"], where=reads_once)
@pytest.mark.parametrize("layer", ["in-place", "before in-place"])
def test_chosen_layer_that_is_written_over(method: str, family: Family, layer: str) -> None:
    """The maps are those at the time of the call, though the next operation writes into the same memory."""
    names = {"tv_resnet": ("relu", "bn1"), "plain_cnn": ("relu", "second")}[family.name]
    name = names[layer == "before in-place"]
    model, inputs = family.model(), family.inputs(1)
    kept: list[Tensor] = []

    def keep(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        kept.append(output.clone())
        return kept[-1].clone()

    handle = model.get_submodule(name).register_forward_hook(keep)
    y = call(model, inputs)[:, 2].sum()
    handle.remove()
    (gradient,) = torch.autograd.grad(y, kept[-1])
    maps = kept[-1].detach()
    wanted = {
        "gradcam": lambda: (gradient.mean((2, 3), keepdim=True) * maps).sum(1).clamp_min(0),
        "layercam": lambda: (gradient.clamp_min(0) * maps).sum(1).clamp_min(0),
        "gradcam++": lambda: plus_plus(maps[0], gradient[0])[None],
        "eigencam": lambda: principal(maps[0])[None],
    }[method]()
    assert_same(explain(model, inputs, method, target=2, layer=name).scores, wanted, method)


@pytest.fixture
def _plain_kernels() -> Iterator[None]:
    """Without oneDNN: some virtual machines announce bfloat16 matrix instructions that they cannot run."""
    with torch.backends.mkldnn.flags(enabled=False):
        yield


# Samples at which a method jumps, so that rounding decides: Eigen-CAM turns its map over where its least and greatest
# value are as large, and GradToken cuts off heads below 0, where those of this text are all but 0.
JUMPS = {("eigencam", "timm_swin"): 0, ("gradtoken", "hf_bert"): 0}
# Options with which nothing jumps: all channels, one in each cluster, no noise or much of it.
STEADY: dict[str, dict[str, Any]] = {
    "vit-cx": {"distance": 0, "noise": 0, "max_masks": None, "batch_size": 64},
    "scorecam": {"max_channels": None},
    "smoothgrad": {"n": 30},
}


@pytest.mark.usefixtures("_plain_kernels")
@cases(CORE, cover=True)
@pytest.mark.slow
def test_bfloat16_weights_give_maps_like_those_of_float32(method: str, family: Family) -> None:
    model = family.fresh(torch.float32).to(torch.bfloat16)
    # The float32 model has the same rounded weights, so only the arithmetic differs.
    exact = family.fresh(torch.float32).to(torch.bfloat16).float()
    inputs = family.inputs(3, torch.float32)
    rounded = inputs.bfloat16().float() if isinstance(inputs, Tensor) else inputs
    if method == "gradcam++" and family.layout == "tokens":
        pytest.skip("features of either sign: a weight has no limit where its denominator vanishes")
    options = STEADY.get(method, {})
    got = explain(model, inputs, method, target=1, **options)
    wanted = explain(exact, rounded, method, target=1, **options)
    assert got.scores.dtype == torch.float32, "maps are accumulated in float32"
    assert bool(torch.isfinite(got.scores).all())
    kept = [n for n in range(3) if n != JUMPS.get((method, family.name))]
    pair = torch.stack([got.scores[kept].flatten(), wanted.scores[kept].flatten()]).double()
    assert float(torch.corrcoef(pair)[0, 1]) > 0.97
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}


@contextlib.contextmanager
def _default_dtype_double() -> Any:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


# Modes that have nothing to do with each other share a call.
CALLERS: tuple[tuple[Callable[[], Any], ...], ...] = (
    (torch.no_grad, lambda: torch.device("cpu")),
    (torch.inference_mode, lambda: torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH)),
    (_default_dtype_double, lambda: torch.autograd.detect_anomaly(check_nan=False)),
)


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@cases(("timm_vit", "hf_bert", "plain_cnn"), cover=True)
def test_modes_of_the_caller_change_nothing(method: str, family: Family) -> None:
    # LRP divides by sums near 0: what another kernel rounds otherwise is larger than the tolerance of float32.
    dtype = torch.float64 if method == "lrp" else torch.float32
    model, inputs = family.model(dtype), family.inputs(2, dtype)
    wanted = explain(model, inputs, method)
    for modes in CALLERS:
        with contextlib.ExitStack() as stack:
            for mode in modes:
                stack.enter_context(mode())
            before = Snapshot(model)
            got = explain(model, inputs, method)
            before.check()
        assert got.scores.dtype == wanted.scores.dtype
        assert_same(got.scores, wanted.scores, method, 1e-4)


@pytest.mark.usefixtures("_plain_kernels")
@cases(("timm_vit", "hf_bert", "plain_cnn"), cover=True)
def test_the_model_computes_under_the_autocast_of_the_caller(method: str, family: Family) -> None:
    """Its own passes are those of the caller, and maps are like those of float32, in which all else is computed."""
    model, inputs, options = family.fresh(torch.float32), family.inputs(3, torch.float32), STEADY.get(method, {})
    seen: list[bool] = []
    handle = next(model.children()).register_forward_hook(lambda *_: seen.append(torch.is_autocast_enabled("cpu")))
    wanted = explain(model, inputs, method, target=1, **options)
    assert not any(seen)
    seen.clear()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = explain(model, inputs, method, target=1, **options)
        assert torch.is_autocast_enabled("cpu")
    handle.remove()
    assert seen
    if method == "transformer-attribution":  # a pass of relevance, and one of gradients
        assert seen.count(True) == seen.count(False) == 1
    else:
        assert not any(seen) if method in RELEVANCE else all(seen)  # half precision is too coarse for relevance
    assert got.scores.dtype == torch.float32
    kept = [n for n in range(3) if n != JUMPS.get((method, family.name))]
    pair = torch.stack([got.scores[kept].flatten(), wanted.scores[kept].flatten()]).double()
    assert float(torch.corrcoef(pair)[0, 1]) > 0.97


@cases(CORE, cover=True)
@pytest.mark.slow
def test_inputs_made_under_inference_mode(method: str, family: Family) -> None:
    """Such tensors cannot enter a graph; here they also have another dtype than the weights."""
    model = family.model()
    with torch.inference_mode():
        inputs = family.inputs(2, torch.float32)
        inside = explain(model, inputs, method)
    outside = explain(model, inputs, method)
    wanted = explain(model, family.inputs(2, torch.float32), method)
    assert_same(inside.scores, wanted.scores, method)
    assert_same(outside.scores, wanted.scores, method)


@cases(CORE, where=lambda method, family: family.size is not None and is_kind_of_pass(method, family), cover=True)
def test_layout_of_the_input_in_memory(method: str, family: Family) -> None:
    model, images = family.model(), family.inputs(2)
    wanted = explain(model, images, method).scores
    wide = torch.zeros(2, 3, images.shape[2], 2 * images.shape[3], dtype=images.dtype)
    wide[..., ::2] = images
    for same in (images.to(memory_format=torch.channels_last), wide[..., ::2], images.mT.contiguous().mT):
        assert not same.is_contiguous()
        assert_same(explain(model, same, method).scores, wanted, method)


@cases(CORE, where=is_kind_of_pass, cover=True)
def test_input_that_requires_grad(method: str, family: Family) -> None:
    inputs = family.inputs(2)
    if isinstance(inputs, Tensor):
        leaf = inputs.clone().requires_grad_()
        result = leaf * 1.0  # not a leaf: has a graph of its own
        for given in (leaf, result):
            e = explain(family.model(), given, method)
            assert not e.scores.requires_grad
            assert not e.pictures.requires_grad, "the result must not keep the caller's graph alive"
            assert given.requires_grad
        assert leaf.grad is None
    else:
        embeddings = family.fresh().get_input_embeddings()(inputs["input_ids"])
        if family.name != "encoder_text":
            given = {"inputs_embeds": embeddings, "attention_mask": inputs["attention_mask"]}
            e = explain(family.model(), given, method)
            assert not e.scores.requires_grad
            assert embeddings.requires_grad


WRAPPERS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "compile": lambda model: torch.compile(model, backend="eager"),
    "data_parallel": nn.DataParallel,
    "both": lambda model: nn.DataParallel(torch.compile(model, backend="eager")),
}


@pytest.mark.parametrize("wrapper", WRAPPERS)
@one_per_family(("timm_vit", "hf_bert", "plain_cnn", "encoder_text", "tv_resnet_heads"))
def test_compiled_and_parallel_wrappers_change_nothing(method: str, family: Family, wrapper: str) -> None:
    wrapped = WRAPPERS[wrapper](family.fresh())
    wrapped.train()
    before = Snapshot(wrapped)
    got = explain(wrapped, family.inputs(2), method)
    before.check()
    assert_same(got.scores, explain(family.model(), family.inputs(2), method).scores, method)


@pytest.mark.parametrize(
    ("name", "how"),
    [
        *((name, "compile_in_place") for name in ("timm_vit", "hf_vit", "hf_bert", "plain_cnn", "plain_vit")),
        *((name, "compile_submodule") for name in ("timm_vit", "hf_vit", "hf_bert", "plain_cnn", "plain_vit")),
        *((name, "used_before") for name in ("timm_vit", "plain_cnn")),  # compiles in earnest, which takes seconds
    ],
)
def test_models_compiled_inside_are_explained_alike(name: str, how: str) -> None:
    family = FAMILIES[name]
    method = "input-x-gradient" if name == "plain_cnn" else "gae"
    model, inputs = family.fresh(), family.inputs(2)
    if how == "compile_submodule":
        parent, child = _somewhere_inside(model)
        setattr(parent, child, torch.compile(getattr(parent, child), backend="eager"))
    else:
        model.compile(backend="eager")
        if how == "used_before":
            with torch.no_grad():
                call(model, inputs)
    before = Snapshot(model)
    got = explain(model, inputs, method)
    before.check()
    assert_same(got.scores, explain(family.model(), inputs, method).scores, method)


def _somewhere_inside(model: nn.Module) -> tuple[nn.Module, str]:
    """A parent and the name of its child that is not the outermost layer: something in the first block."""
    for name in ("blocks.0.mlp", "vit.layers.0.mlp", "bert.encoder.layer.0.intermediate", "second", "blocks.0.feed"):
        with contextlib.suppress(AttributeError):
            model.get_submodule(name)
            parent, _, child = name.rpartition(".")
            return model.get_submodule(parent), child
    raise LookupError("no such submodule")


@pytest.mark.parametrize("name", ["timm_vit", "timm_registers", "timm_swin", "hf_vit", "hf_bert", "hf_dinov2"])
def test_activation_checkpointing_changes_nothing(name: str) -> None:
    family = FAMILIES[name]
    method = "input-x-gradient" if name == "timm_swin" else "gae"
    model, inputs = family.fresh(), family.inputs(2)
    if name.startswith("timm"):
        model.set_grad_checkpointing(True)
    else:
        model.gradient_checkpointing_enable()
    model.train()
    before = Snapshot(model)
    got = explain(model, inputs, method)
    before.check()
    assert_same(got.scores, explain(family.model(), inputs, method).scores, method)


class Named(NamedTuple):
    logits: Tensor
    features: Tensor


class Returning(nn.Module):
    """Hands what a model returns through a function, as task-specific code does."""

    def __init__(self, model: nn.Module, shape: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.model, self.shape = model, shape

    def forward(self, x: Tensor) -> Any:
        return self.shape(self.model(x))


def _hf_output(y: Tensor) -> Any:
    from transformers.modeling_outputs import ImageClassifierOutput

    return ImageClassifierOutput(loss=y.sum(), logits=y)


OUTPUTS: dict[str, Callable[[Tensor], Any]] = {
    "tuple": lambda y: (y, y.mean()),
    "loss_first": lambda y: (y.sum(), y),
    "list": lambda y: [y],
    "dictionary": lambda y: {"features": y.new_zeros(len(y), 3, 2, 2), "logits": y},
    "dictionary_out": lambda y: {"out": y, "aux": y * 2},
    "named_tuple": lambda y: Named(y, y * 3),
    "hugging_face": _hf_output,
}


@cases(["plain_cnn", "plain_vit"], cover=True)
def test_scores_are_found_in_whatever_models_return(method: str, family: Family) -> None:
    inputs = family.inputs(2)
    wanted = explain(family.model(), inputs, method)
    outputs = list(OUTPUTS.values())
    # Each way with a method of every kind of pass, and each method with one of the ways.
    for output in outputs if method in KINDS_OF_PASS else outputs[len(method) % len(outputs) :][:1]:
        got = explain(Returning(family.fresh(), output).eval(), inputs, method)
        assert_same(got.scores, wanted.scores, method)
        assert got.target.tolist() == wanted.target.tolist()


@pytest.mark.parametrize("squeezed", [False, True], ids=["(B,1)", "(B,)"])
@pytest.mark.parametrize("method", [m for m in serving("plain_vit") if METHODS[m].class_specific])
@pytest.mark.slow
def test_one_logit_for_two_classes(method: str, squeezed: bool) -> None:
    """Class 1 has the score +logit and class 0 the score -logit, as a head of two opposite logits has."""
    one = FAMILIES["plain_vit"].fresh()
    one.head = nn.Linear(32, 1).double()
    two = FAMILIES["plain_vit"].fresh()
    two.head = nn.Linear(32, 2).double()
    # Two opposite logits count the evidence twice in the softmax; one logit counts it once.
    factor = 0.5 if method in SHARES else 1.0
    with torch.no_grad():
        two.head.weight.copy_(factor * torch.cat([-one.head.weight, one.head.weight]))
        two.head.bias.copy_(factor * torch.cat([-one.head.bias, one.head.bias]))
    inputs = FAMILIES["plain_vit"].inputs(4)
    model = Returning(one, lambda y: y[:, 0]) if squeezed else one
    assert call(one, inputs).shape == (4, 1)
    if method == "abslrp":  # contrasts with other classes, of which a single logit has none: its two are opposites
        maps = explain(model.eval(), inputs, method, target=[0, 1]).scores
        assert_same(maps[:, 0], -maps[:, 1], method)
        return
    # Positive contributions to -logit are not to be had from a rule of positive contributions to the logit.
    for target in (1,) if method in ("partial-lrp", "transformer-attribution") else (0, 1, None, [0, 1]):
        got = explain(model.eval(), inputs, method, target=target)
        wanted = explain(two.eval(), inputs, method, target=target)
        assert_same(got.scores, wanted.scores, method)
        assert torch.equal(got.target, wanted.target)
        assert got.probabilities.shape == (4, 2)
    assert torch.allclose(got.probabilities[:, 1], call(one, inputs)[:, 0].sigmoid())


def test_signed_scores_of_two_opposite_classes() -> None:
    model = FAMILIES["timm_vit"].fresh()
    model.reset_classifier(1)
    model.double().eval()
    maps = explain(model, FAMILIES["timm_vit"].inputs(2), "input-x-gradient", target=[0, 1]).scores
    assert_same(maps[:, 0], -maps[:, 1], "input-x-gradient")


def test_hooks_of_the_user_take_part() -> None:
    """A user's hook that changes the forward pass is part of the model that is explained."""
    family = FAMILIES["timm_vit"]
    model, inputs = family.fresh(), family.inputs(2)
    model.blocks[1].register_forward_hook(lambda module, args, output: output * 0.5)
    e = explain(model, inputs, "gae")
    with torch.no_grad():
        assert_same(e.logits, call(model, inputs), "gae", 1e-12)
    assert float((e.scores - explain(family.model(), inputs, "gae").scores).abs().max()) > 1e-6


@cases(CORE, cover=True)
@pytest.mark.slow
def test_threads_explain_models_of_their_own(method: str, family: Family) -> None:
    """Two threads explain two models at the same time; nothing is shared between them."""
    models, inputs = [family.fresh() for _ in range(2)], family.inputs(2)
    wanted = explain(family.model(), inputs, method).scores
    with ThreadPoolExecutor(2) as pool:
        several = pool.map(lambda model: [explain(model, inputs, method).scores for _ in range(3)], models)
        results = [scores for found in several for scores in found]
    for got in results:
        assert_same(got, wanted, method)


def test_parametrised_weights_change_nothing() -> None:
    model = enliven(PlainViT()).double().eval()
    inputs = FAMILIES["plain_vit"].inputs(2)
    wanted = explain(model, inputs, "gae").scores
    nn.utils.parametrizations.weight_norm(model.blocks[0].qkv)
    nn.utils.parametrizations.weight_norm(model.head)
    before = Snapshot(model)
    assert_same(explain(model, inputs, "gae").scores, wanted, "gae")
    before.check()


def test_a_bundle_stands_for_its_model() -> None:
    family = FAMILIES["timm_vit"]
    names = [f"kind {i}" for i in range(CLASSES)]
    bundle = mhex.Bundle("timm:tiny", family.model(), class_names=names)
    e = explain(bundle, family.inputs(2), "gae", target="kind 2")
    assert e.class_names == names
    assert_same(e.scores, explain(family.model(), family.inputs(2), "gae", target=2).scores, "gae")


def test_a_subclass_of_a_known_family_is_known() -> None:
    from timm.models.vision_transformer import VisionTransformer

    class Mine(VisionTransformer):
        pass

    model = enliven(Mine(img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=4, num_classes=3)).eval()
    assert explain(model, torch.randn(1, 3, 32, 32), "gae").scores.shape == (1, 4, 4)
