"""Models whose attributions are known in closed form, without training: there every complete method must be exact."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mhex.errors import require
from mhex.explain import explain

_SIDE, _PATCH, _CLASSES, _SAMPLES = 16, 4, 3, 4
_COPIED = 25.0  # by so much the attention score of the copied token is above all others


@dataclass(frozen=True, eq=False)
class ExactCase:
    """A model, inputs for it, and what each unit of them is worth to each class."""

    model: nn.Module
    inputs: Any  # as for `mhex.explain`
    worth: Tensor  # of patches, (B, C, h, w), or of tokens, (B, C, T); float64
    complete: Mapping[str, Mapping[str, Any]]  # options of the methods that must give it

    def error(self, method: str) -> float:
        """The largest difference of the scores of a method from the worth of units, beside the largest worth."""
        options = self.complete[method]
        scores = torch.stack([self._scores(number, method, options) for number in range(self.worth.shape[1])], 1)
        if self.worth.dim() == 4 and scores.shape != self.worth.shape:  # pixels: a patch is worth their sum
            cells = scores.shape[-1] // self.worth.shape[-1]
            scores = cells**2 * F.avg_pool2d(scores, cells)
        return float((scores - self.worth).abs().max() / self.worth.abs().max())

    def _scores(self, number: int, method: str, options: Mapping[str, Any]) -> Tensor:
        def logit(logits: Tensor) -> Tensor:  # a function, because SHAP explains the probability of a class
            return logits[:, number]

        return explain(self.model, self.inputs, method, target=logit, **options).scores.double()


EXACT: dict[str, Callable[[int], ExactCase]] = {}
_GRADIENTS: Mapping[str, Mapping[str, Any]] = {
    "input-x-gradient": {},
    "integrated-gradients": {},
    "conservative-lrp": {},
    "attnlrp": {"gamma_linear": 0.0, "gamma_conv": 0.0},  # the gamma rule prefers positive contributions
}


def _register(make: Callable[[int], ExactCase]) -> Callable[[int], ExactCase]:
    EXACT[make.__name__.replace("_", " ")] = make
    return make


def _images(generator: torch.Generator) -> Tensor:
    """Images of mean 0, so that the reference "mean" is the same as nothing."""
    images = torch.randn(_SAMPLES, 3, _SIDE, _SIDE, generator=generator, dtype=torch.float64)
    return images - images.mean((2, 3), keepdim=True)


def _patch_worth(model: nn.Module, images: Tensor) -> Tensor:
    """What each patch alone makes of each logit, (B, C, h, w): of an additive model without bias, its worth."""
    cells = _SIDE // _PATCH
    worth = torch.zeros(len(images), _CLASSES, cells, cells, dtype=images.dtype)
    for row in range(cells):
        for column in range(cells):
            place = (..., slice(row * _PATCH, (row + 1) * _PATCH), slice(column * _PATCH, (column + 1) * _PATCH))
            alone = torch.zeros_like(images)
            alone[place] = images[place]
            worth[:, :, row, column] = model(alone).detach()
    return worth


def _with_random_weights(model: nn.Module, generator: torch.Generator) -> nn.Module:
    for parameter in model.parameters():
        with torch.no_grad():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) / 4)
    return model.double().eval()


@_register
def linear_model(seed: int = 0) -> ExactCase:
    """`y = W x`: a pixel is worth its weight times its value."""
    generator = torch.Generator().manual_seed(seed)
    images = _images(generator)
    model = _with_random_weights(nn.Sequential(nn.Flatten(), nn.Linear(3 * _SIDE**2, _CLASSES, bias=False)), generator)
    worth = _patch_worth(model, images)
    occlusion = {"patch": _PATCH, "fill": "zero"}
    return ExactCase(model, images, worth, {**_GRADIENTS, "occlusion": occlusion})


class BagOfPatches(nn.Module):
    """`y = sum_p V relu(W p)` over patches `p`, as BagNet (Brendel & Bethge, 2019) has it in large."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, _PATCH, _PATCH, bias=False)
        self.relu = nn.ReLU()
        self.classes = nn.Conv2d(width, _CLASSES, 1, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, C) of images (B, 3, H, W)."""
        logits: Tensor = self.classes(self.relu(self.patches(images))).sum((2, 3))
        return logits


@_register
def bag_of_patches(seed: int = 0) -> ExactCase:
    """An additive model: a patch is worth what it alone makes of a logit."""
    generator = torch.Generator().manual_seed(seed)
    images = _images(generator)
    model = _with_random_weights(BagOfPatches(), generator)
    occlusion = {"patch": _PATCH, "fill": "zero"}
    return ExactCase(model, images, _patch_worth(model, images), {**_GRADIENTS, "occlusion": occlusion})


class BagOfWords(nn.Module):
    """`y = sum_t V e_t` over the embeddings `e` of tokens."""

    def __init__(self, words: int = 20, width: int = 6) -> None:
        super().__init__()
        self.embeddings = nn.Embedding(words, width, padding_idx=0)
        self.classes = nn.Linear(width, _CLASSES, bias=False)

    def get_input_embeddings(self) -> nn.Module:
        """The embeddings, by the name that Hugging Face has for them."""
        return self.embeddings

    def forward(
        self, input_ids: Tensor | None = None, attention_mask: Tensor | None = None, inputs_embeds: Tensor | None = None
    ) -> Tensor:
        """Logits (B, C) of tokens (B, T), or of their embeddings (B, T, D)."""
        embeddings: Tensor = self.embeddings(input_ids) if inputs_embeds is None else inputs_embeds
        embeddings = embeddings if attention_mask is None else embeddings * attention_mask[..., None]
        logits: Tensor = self.classes(embeddings.sum(1))
        return logits


@_register
def bag_of_words(seed: int = 0) -> ExactCase:
    """An additive model of texts: a word is worth its own logits."""
    generator = torch.Generator().manual_seed(seed)
    network = BagOfWords()
    model = _with_random_weights(network, generator)
    with torch.no_grad():
        network.embeddings.weight[0] = 0  # what stands for a hidden word says nothing
    ids = torch.randint(1, 20, (_SAMPLES, 7), generator=generator)
    ids[1, 5:] = 0  # padding
    mask = (ids > 0).long()
    worth = (network.classes(network.embeddings(ids)) * mask[..., None]).mT.detach()
    inputs = {"input_ids": ids, "attention_mask": mask}
    return ExactCase(model, inputs, worth, {**_GRADIENTS, "occlusion": {}, "shap": {"max_evals": 200}})


@_register
def copied_token(seed: int = 0) -> ExactCase:
    """A Vision Transformer of one block that copies one token: only this token has worth.

    The first dimension of a token is 0 but at one patch of each image, where it is large. The class token attends to
    it, and its value, the other dimensions, is what the classifier reads.
    """
    generator = torch.Generator().manual_seed(seed)
    width = 3 * _PATCH**2 + 1
    arguments = {"img_size": _SIDE, "patch_size": _PATCH, "embed_dim": width, "depth": 1, "num_heads": 1}
    model: Any = require("timm").create_model(
        "vit_tiny_patch16_224", num_classes=_CLASSES, norm_layer=nn.Identity, qkv_bias=False, **arguments
    )
    model = model.double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        # A token holds its pixels, and before them their mean colour, which marks the patch to be copied.
        model.patch_embed.proj.weight.view(width, -1)[1:] = torch.eye(width - 1, dtype=torch.float64)
        model.patch_embed.proj.weight.view(width, -1)[0] = 1 / (width - 1)
        block = model.blocks[0]
        model.cls_token[..., 0] = 1.0  # the question: which token has the largest first dimension?
        scale = width**0.5 * _COPIED
        block.attn.qkv.weight[0, 0] = scale
        block.attn.qkv.weight[width, 0] = 1.0
        block.attn.qkv.weight[2 * width + 1 :, 1:] = torch.eye(width - 1, dtype=torch.float64)
        block.attn.proj.weight.copy_(torch.eye(width, dtype=torch.float64))
        model.head.weight[:, 1:] = torch.randn(_CLASSES, width - 1, generator=generator, dtype=torch.float64)
    cells = _SIDE // _PATCH
    places = torch.randint(cells**2, (_SAMPLES,), generator=generator)
    noise = torch.randn(_SAMPLES, cells**2, 3 * _PATCH**2, generator=generator, dtype=torch.float64)
    noise = noise - noise.mean(-1, keepdim=True)  # so that the first dimension of all patches is 0 ...
    noise[torch.arange(_SAMPLES), places] += 2.0  # ... but of one
    images = F.fold(noise.mT, (_SIDE, _SIDE), _PATCH, stride=_PATCH)
    worth = torch.zeros(_SAMPLES, _CLASSES, cells**2, dtype=torch.float64)
    value = noise[torch.arange(_SAMPLES), places]
    worth[torch.arange(_SAMPLES), :, places] = value @ model.head.weight[:, 1:].T.detach()
    # Not of gradients: on the way from nothing, attention changes too.
    complete: dict[str, Mapping[str, Any]] = {"conservative-lrp": {}, "attnlrp": {}, "occlusion": {"fill": "zero"}}
    return ExactCase(model, images, worth.view(_SAMPLES, _CLASSES, cells, cells), complete)
