"""The cosine of gate and head against gradients of whole matrices, on a net written out by hand and on stock hosts."""

from __future__ import annotations

from typing import Any

import pytest
import timm
import torch
import torch.nn.functional as F
import torchvision
from torch import Tensor, nn
from torchvision.models.resnet import BasicBlock

from mhex.heads.predictors import watched
from support.collaboration import CLASSES, Net, calm, matrix_cosine, matrix_cosines, matrix_gradients, with_heads
from support.tiny_bert import new_bert

EXACT = {"rtol": 0.0, "atol": 1e-10}


def images(count: int = 3, size: int = 32) -> Tensor:
    return torch.randn(count, 3, size, size, dtype=torch.float64)


def texts() -> dict[str, Tensor]:
    mask = torch.tensor([[1] * 9, [1] * 6 + [0] * 3, [1] * 4 + [0] * 5])
    return {"input_ids": torch.randint(3, 40, (3, 9)) * mask, "attention_mask": mask}


def bert() -> nn.Module:
    return new_bert(40, CLASSES, 16, layers=3, inner=32)


def vit() -> nn.Module:
    return timm.models.VisionTransformer(
        img_size=32, patch_size=8, embed_dim=24, depth=3, num_heads=2, num_classes=CLASSES
    )


HOSTS: dict[str, Any] = {
    "torchvision resnet": lambda: torchvision.models.ResNet(BasicBlock, [1, 1, 1, 1], num_classes=CLASSES),
    "timm resnet18": lambda: timm.create_model("resnet18", num_classes=CLASSES, channels=(64, 16, 24, 32)),
    "timm vit": vit,
    "hf bert": bert,
}


# --- a net written out by hand, with gradients per sample by torch.func ----------------------------------------------


def by_hand(w1: list[Tensor], image: Tensor, label: Tensor, net: Net, w2: list[Tensor]) -> Tensor:
    """Losses (L,) of the heads of one sample; the published gate, x gated and r not."""
    x = F.relu(net.stem(image[None]))
    losses = []
    for unit, first, second in zip(net.units, w1, w2, strict=True):
        norm = unit.norm
        scale = norm.weight / (norm.running_var + norm.eps).sqrt()
        r = (unit.conv(x) - norm.running_mean[:, None, None]) * scale[:, None, None] + norm.bias[:, None, None]
        u = first @ (x + r).mean((2, 3))[0].clamp_min(0)
        losses.append(-(second @ u).log_softmax(0).gather(0, label))
        x = F.relu(u.sigmoid()[:, None, None] * x + r)
    return torch.cat(losses)


def test_cosines_against_vmap_of_grad_by_hand() -> None:
    scaffold = with_heads(Net())
    net = scaffold.model
    w1 = [b.w1.weight.detach().clone() for b in scaffold.heads.blocks]
    w2 = [b.w2.weight.detach().clone() for b in scaffold.heads.blocks]
    x, y = images(4, 8), torch.tensor([0, 4, 2, 2])
    jacobian = torch.func.vmap(torch.func.jacrev(by_hand), in_dims=(None, 0, 0, None, None))(w1, x, y[:, None], net, w2)
    expected = torch.stack(
        [torch.stack([matrix_cosine(j[b, i], j[b, i + 1]) for i, j in enumerate(jacobian[:-1])]) for b in range(4)]
    )
    found = scaffold.collaboration(x, y)
    torch.testing.assert_close(found.cosine, expected, **EXACT)
    assert found.cosine.abs().max() < 0.999  # the case says something
    losses = torch.stack([by_hand(w1, a, b[None], net, w2) for a, b in zip(x, y, strict=True)])
    torch.testing.assert_close(found.losses, losses, **EXACT)
    torch.testing.assert_close(found.p_orig, net(x).softmax(1)[range(4), y], **EXACT)


# --- stock hosts -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", HOSTS)
def test_cosines_of_stock_hosts_against_whole_matrices(host: str) -> None:
    scaffold = with_heads(HOSTS[host]())
    y = torch.tensor([3, 0, 4])
    inputs = texts() if host == "hf bert" else images()
    if isinstance(inputs, Tensor):
        samples: list[Any] = [inputs[i : i + 1] for i in range(3)]
    else:  # alone, and without their padding
        lengths = inputs["attention_mask"].sum(1).tolist()
        samples = [{k: v[i : i + 1, : lengths[i]] for k, v in inputs.items()} for i in range(3)]
    calm(scaffold, inputs)
    found = scaffold.collaboration(inputs, y, chunk=2)
    assert found.cosine.shape == (3, len(scaffold.names) - 1)
    torch.testing.assert_close(found.cosine, matrix_cosines(scaffold, samples, y), **EXACT)
    alone = torch.cat([scaffold.collaboration(s, y[i : i + 1]).cosine for i, s in enumerate(samples)])
    torch.testing.assert_close(found.cosine, alone, **EXACT)


@pytest.mark.parametrize("gate_target", ["shortcut", "sum"])
@pytest.mark.parametrize("relu", ["post", "pre"])
@pytest.mark.parametrize("preset", ["paper", "identity", "warmup"])
def test_cosines_of_every_kind_of_gate(gate_target: Any, relu: Any, preset: Any) -> None:
    scaffold = with_heads(Net(), gate_target=gate_target, relu=relu, preset=preset)
    scaffold.ramp(1, 20)  # a warm-up half way
    x, y = images(3, 8), torch.tensor([1, 2, 3])
    expected = matrix_cosines(scaffold, list(x[:, None]), y)
    torch.testing.assert_close(scaffold.collaboration(x, y).cosine, expected, **EXACT)


@pytest.mark.parametrize("classes", [1, CLASSES])
def test_cosines_of_several_labels(classes: int) -> None:
    scaffold = with_heads(Net(classes), classes, multi_label=True)
    x, y = images(3, 8), torch.randint(2, (3, classes)).double()
    found = scaffold.collaboration(x, y)
    torch.testing.assert_close(found.cosine, matrix_cosines(scaffold, list(x[:, None]), y, binary=True), **EXACT)
    chance = scaffold.model(x).sigmoid()
    torch.testing.assert_close(found.p_orig, torch.where(y == 1, chance, 1 - chance).mean(1), **EXACT)


def test_cosines_of_class_probabilities() -> None:
    scaffold = with_heads(Net())
    x, y = images(3, 8), torch.rand(3, CLASSES).double().softmax(1).float()
    found = scaffold.collaboration(x, y)
    torch.testing.assert_close(found.cosine, matrix_cosines(scaffold, list(x[:, None]), y), **EXACT)


# --- what the closed form rests on -----------------------------------------------------------------------------------


def test_gradients_have_rank_one() -> None:
    scaffold = with_heads(Net())
    x, y = images(1, 8), torch.tensor([2])
    pairs = matrix_gradients(scaffold, x, y)
    with watched(scaffold.model) as run:
        seen = run(x).blocks
    for (own, after), name in zip(pairs, scaffold.names, strict=False):
        h = seen[name].features[0]
        error = seen[name].logits[0].softmax(0) - F.one_hot(y[0], CLASSES)
        expected = torch.outer(scaffold.heads[name].w2.weight.T @ error, h)
        torch.testing.assert_close(own, expected, rtol=1e-10, atol=1e-12)
        assert torch.linalg.matrix_rank(own) == torch.linalg.matrix_rank(after) == 1
        assert h.any()


def test_no_loss_reaches_a_later_gate() -> None:
    scaffold = with_heads(Net())
    y = torch.tensor([2])
    scaffold.model(images(1, 8))
    losses = [F.cross_entropy(scores, y) for scores in scaffold.head_logits.values()]
    matrices = [scaffold.heads[name].w1.weight for name in scaffold.names]
    for m, loss in enumerate(losses):
        gradients = torch.autograd.grad(loss, matrices, retain_graph=True, allow_unused=True)
        assert [g is not None for g in gradients] == [number <= m for number in range(len(matrices))]
    with watched(scaffold.model, nudge=True, graph=True) as run:
        last = list(run(images(1, 8)).blocks.values())[-1]
        assert torch.autograd.grad(last.logits.sum(), last.gate, allow_unused=True) == (None,)
