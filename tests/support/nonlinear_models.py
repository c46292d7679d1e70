"""A small network that is not linear, its gradients as maps, and cases in which every part of a protocol matters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from mhex.inputs.parts import InputParts
from mhex.metrics.case import Case
from mhex.perturb import Subject
from support.tiny_bert import TEXTS, bert, scores_of, tokenizer


class Curved(nn.Module):
    """A convolution, a norm, and a parameter of its own."""

    def __init__(self, channels: int = 2, side: int = 6, classes: int = 3, seed: int = 0) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.conv = nn.Conv2d(channels, 4, 3, padding=1)
            self.norm = nn.BatchNorm2d(4)
            self.head = nn.Linear(4 * side * side, classes)
        self.shift = nn.Parameter(torch.arange(4.0).view(1, 4, 1, 1) / 10)
        self.double().eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.norm(self.conv(x)) + self.shift).flatten(1))


class Normalised:
    """A preprocess whose mean and spread can be found."""

    mean, std = (0.5, 0.5), (0.25, 0.5)

    def __call__(self, picture: Any) -> Tensor:
        raise NotImplementedError


def gradient(model: nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
    def again(inputs: Tensor, classes: Tensor) -> Tensor:
        x = inputs.detach().clone().requires_grad_()
        return torch.autograd.grad(model(x).gather(1, classes[:, None]).sum(), x)[0].sum(1)

    return again


def input_x_gradient(model: nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
    def again(inputs: Tensor, classes: Tensor) -> Tensor:
        with torch.enable_grad():
            x = inputs.detach().clone().requires_grad_()
            scores = model(x).gather(1, classes[:, None]).sum()
            return (torch.autograd.grad(scores, x)[0] * x.detach()).sum(1)

    return again


def images(count: int = 3, channels: int = 2, side: int = 6, seed: int = 0) -> Tensor:
    return torch.rand(count, channels, side, side, generator=torch.Generator().manual_seed(seed)).double()


def image_case() -> Case:
    """Explained, predicted and labelled classes differ; maps are coarse and have ties; nothing is missing."""
    count, side = 12, 12
    model, second = (Curved(side=side, classes=4, seed=seed) for seed in (0, 1))
    for one in (model, second):
        one.requires_grad_(False).head.weight.mul_(6)
    x = 4 * images(count, side=side) - 1
    own = Subject(model, x).predicted
    subject = Subject(model, x, label=(own + torch.arange(count) % 2) % 4, ids=range(3, 15), preprocess=Normalised())

    def coarse(of: nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
        def again(inputs: Tensor, classes: Tensor) -> Tensor:
            found = nn.functional.avg_pool2d(input_x_gradient(of)(inputs, classes), 3)
            return (found / found.std() * 2).round()

        return again

    explained, other = (own + 2) % 4, (own + 3) % 4
    mask = torch.randint(-1, 2, (count, side, side), generator=torch.Generator().manual_seed(5))
    again = coarse(model)
    return Case(
        subject,
        again(x, explained),
        explained,
        mask=mask,
        tiles=torch.stack([explained, other, own, (own + 1) % 4], 1),
        again=again,
        other_class=other,
        other=lambda: Case(subject, again(x, other), other, other_class=explained),
        relabelled=coarse(second),
    )


def _four_parts(side: int) -> Tensor:
    masks = torch.zeros(4, side, side, dtype=torch.bool)
    masks[0, :5, :5], masks[1, :5, 5:], masks[2, 5:, :7], masks[3, 5:, 7:] = True, True, True, True
    return masks


class Meeting(nn.Module):
    """A small network, and for each class a pair of four parts that count together alone."""

    def __init__(self, network: nn.Module, side: int) -> None:
        super().__init__()
        self.network, self.masks = network, _four_parts(side)

    def forward(self, x: Tensor) -> Tensor:
        means = torch.stack([x.abs()[:, :, mask].mean((1, 2)) for mask in self.masks], 1)
        return self.network(x) + 2 * torch.minimum(means, means.roll(1, 1))


def parts_case() -> Case:
    """Images without labels, whose four unequal parts can be taken away; a part may matter beside another alone."""
    whole = image_case()
    x, side = whole.subject.batch.pixels, 12
    masks, model = _four_parts(side), Meeting(whole.subject.model, side)
    parts = [
        InputParts(masks, None, lambda numbers, image=image: image.masked_fill(masks[list(numbers)].any(0), 0.0))
        for image in x
    ]
    subject = Subject(model, x, ids=range(3, 15))
    return Case(subject, whole.saliency, parts=parts, answers=lambda inputs: model(torch.stack(inputs)))


def text_case() -> Case:
    """The same of texts."""
    texts = [" ".join(text.split()[turn:] + text.split()[:turn]) for text in TEXTS for turn in range(4)]
    texts = [text.replace(" ,", ",").replace(" .", ".") for text in texts]  # two words to a tokenizer
    own = Subject(bert(), texts, tokenizer=tokenizer()).predicted
    label = (own + torch.arange(len(texts)) % 2) % 3
    subject = Subject(bert(), texts, label=label, ids=range(3, 3 + len(texts)), tokenizer=tokenizer())
    maps = (scores_of(texts) * 3).round() - 1
    return Case(
        subject,
        maps,
        (own + 2) % 3,
        rationale=[[n % 5, n % 3] if len(text.split()) > 4 else [n % 2] for n, text in enumerate(texts)],
    )
