"""Small stock hosts for the heads, with and without them, and inputs. Every host has four classes.

Attaching traces and rewrites every residual unit, which takes about a second for a ResNet; a copy of a model that has
its heads takes milliseconds. So tests of anything but attaching itself take a copy from `attached`.
"""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Callable
from typing import Any

import timm
import torch
import torchvision
import transformers
from torch import Tensor, nn
from torchvision.models.resnet import BasicBlock, Bottleneck, ResNet

import mhex
from support.models import call, enliven

CLASSES = 4
_TEXT = {"hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 24}
_SMALL = {"vocab_size": 50, "num_labels": CLASSES}


class PlainUnit(nn.Module):
    """A residual unit that no library knows: pre-activation, addition written in place, another closing activation."""

    def __init__(self, channels: int, out: int, stride: int = 1) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(channels, out, 3, stride, 1), nn.BatchNorm2d(out))
        self.skip = nn.Conv2d(channels, out, 1, stride) if stride > 1 or channels != out else None
        self.act = nn.SiLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        out = self.body(x)
        out += x if self.skip is None else self.skip(x)
        return self.act(out)


class PlainNet(nn.Module):
    """A residual CNN of one's own, with one addition in its own forward."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.units = nn.Sequential(PlainUnit(8, 8), PlainUnit(8, 12, 2))
        self.last = nn.Conv2d(12, 12, 3, padding=1)
        self.head = nn.Linear(12, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.units(self.stem(x))
        x = torch.relu(x + self.last(x))
        return self.head(x.mean((2, 3)))


def _text(kind: str) -> nn.Module:
    if kind == "DistilBert":
        config = transformers.DistilBertConfig(dim=16, n_layers=4, n_heads=2, hidden_dim=24, **_SMALL)
    else:
        config = getattr(transformers, f"{kind}Config")(**_TEXT, **_SMALL)
    model: nn.Module = getattr(transformers, f"{kind}ForSequenceClassification")(config)
    return model


def _vision(kind: str, **more: Any) -> nn.Module:
    config = getattr(transformers, f"{kind}Config")(image_size=32, patch_size=8, num_labels=CLASSES, **_TEXT, **more)
    model: nn.Module = getattr(transformers, f"{kind}ForImageClassification")(config)
    return model


def _convnext() -> nn.Module:
    setting = torchvision.models.convnext.CNBlockConfig
    return torchvision.models.ConvNeXt([setting(8, 12, 1), setting(12, None, 2)], num_classes=CLASSES)


def _timm(name: str, **options: Any) -> nn.Module:
    model: nn.Module = timm.create_model(name, num_classes=CLASSES, **options)
    return model


def _resnet(block: type[BasicBlock] | type[Bottleneck], depths: list[int]) -> nn.Module:
    """torchvision's ResNet with narrow stages, which the library itself has no option for."""
    model = ResNet(block, depths, num_classes=CLASSES)
    width = model.inplanes = 16
    model.conv1, model.bn1 = nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width)
    planes = 16 if block is BasicBlock else 8
    for stage, depth in enumerate(depths, 1):
        setattr(model, f"layer{stage}", model._make_layer(block, planes, depth, 1 if stage == 1 else 2))
        planes += 8
    model.fc = nn.Linear(model.inplanes, CLASSES)
    return model


HOSTS: dict[str, Callable[[], nn.Module]] = {
    "tv_resnet18": lambda: _resnet(BasicBlock, [2, 2, 2, 2]),
    "tv_resnet50": lambda: _resnet(Bottleneck, [3, 4, 6, 3]),
    "tv_bottlenecks": lambda: _resnet(Bottleneck, [2, 1, 2, 1]),  # units of a ResNet-50, and few of them
    "timm_resnet18": lambda: _timm("resnet18", channels=(64, 16, 24, 32)),
    "timm_resnet50": lambda: _timm("resnet50", channels=(8, 8, 16, 16)),
    "timm_bottlenecks": lambda: _timm("resnet50", channels=(8, 8, 16, 16), layers=(2, 1, 2, 1)),
    "timm_resnet18d": lambda: _timm("resnet18d", channels=(64, 16, 24, 32), drop_path_rate=0.2),
    "timm_seresnet": lambda: _timm("seresnet18", channels=(64, 16, 24, 32)),
    "tv_convnext": _convnext,
    "timm_convnext": lambda: _timm("convnext_atto", dims=(8, 8, 12, 12)),
    "timm_vit": lambda: _timm("vit_tiny_patch16_224", img_size=32, patch_size=8, embed_dim=16, depth=4, num_heads=2),
    "tv_vit": lambda: torchvision.models.VisionTransformer(32, 8, 3, 2, 16, 24, num_classes=CLASSES),
    "hf_vit": lambda: _vision("ViT"),
    "hf_dinov2": lambda: _vision("Dinov2"),
    "hf_bert": lambda: _text("Bert"),
    "hf_roberta": lambda: _text("Roberta"),
    "hf_distilbert": lambda: _text("DistilBert"),
    "mobilenet": lambda: torchvision.models.mobilenet_v2(num_classes=CLASSES, width_mult=0.25),
    "plain": PlainNet,
}
TEXTS = ("hf_bert", "hf_roberta", "hf_distilbert")
# What the invariants of the method are checked on.
MAIN = ("tv_resnet18", "timm_resnet18", "tv_bottlenecks", "timm_bottlenecks", "hf_bert", "timm_vit")
_COPIED: dict[Any, nn.Module] = {}


@functools.cache
def _built(name: str) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return enliven(HOSTS[name]()).eval()


def host(name: str, dtype: torch.dtype = torch.float32) -> nn.Module:
    """A host of one's own in evaluation mode with lively random weights, the same every time."""
    return copy.deepcopy(_built(name)).to(dtype)


def attached(name: str, classes: int = CLASSES, dtype: torch.dtype = torch.float32, **options: Any) -> mhex.Scaffold:
    """Heads on a host of one's own, as `mhex.attach` gives them with these options."""
    scaffold = copied(lambda: host(name), name, classes, **options)
    scaffold.model.to(dtype)
    return scaffold


def copied(build: Callable[[], nn.Module], name: Any, classes: int, **options: Any) -> mhex.Scaffold:
    """Heads on a model of one's own: it is a copy of one that was attached to once.

    Args:
        build: Makes the model.
        name: Tells models apart that `build` makes.
        classes: As for `mhex.attach`.
        **options: As for `mhex.attach`.
    """
    key = (name, classes, *sorted((option, repr(value)) for option, value in options.items()))
    if key not in _COPIED:
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            torch.manual_seed(0)
            warnings.simplefilter("ignore", mhex.errors.MhexWarning)  # heads larger than their host are fine here
            _COPIED[key] = mhex.attach(build(), classes, **options).model
    return mhex.Scaffold(copy.deepcopy(_COPIED[key]))


def inputs(name: str, count: int = 3, dtype: torch.dtype = torch.float32) -> Any:
    """A batch: images, or token ids of several lengths with their mask."""
    generator = torch.Generator().manual_seed(3)
    if name not in TEXTS:
        return torch.randn(count, 3, 32, 32, generator=generator).to(dtype)
    lengths = [9, 5, 7, 3][:count]
    ids = torch.randint(3, 50, (count, max(lengths)), generator=generator)
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    ids[:, 0] = 1
    ids[torch.arange(count), torch.tensor(lengths) - 1] = 2
    return {"input_ids": ids.where(mask, 0), "attention_mask": mask.long()}


def run(model: nn.Module, batch: Any) -> Tensor:
    """Class scores of a call without a graph."""
    with torch.no_grad():
        return call(model, batch)


@torch.no_grad()
def stir(scaffold: Any, seed: int = 5, size: float = 1.0) -> Any:
    """Give the heads lively random weights, as training would; gates then differ from 1 where the preset allows."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in scaffold.head_parameters():
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        parameter.copy_(size * noise / parameter.shape[1] ** 0.5)
    return scaffold
