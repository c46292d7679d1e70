"""Any other model: one forward pass of the first sample is watched to see where its features and attention are."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from mhex.capture.adapters.cnn import image_channels
from mhex.capture.anatomy import Anatomy, Block, FeatureLayer
from mhex.capture.batch import Batch
from mhex.capture.guard import untouched
from mhex.capture.tap import FunctionTap


def anatomy(model: nn.Module, batch: Batch) -> Anatomy:
    """What a forward pass shows of an unknown model.

    Blocks are the numbered children (of a `ModuleList` or `Sequential`) inside which attention ran, provided that
    each ran it once. The patch grid comes from a convolution whose kernel equals its stride. How the head reads the
    tokens is measured for each batch. The features of the CAM methods are the last maps of more than one pixel.
    """
    seen = _Probe(model)
    seen.run(_first_sample(batch))
    names = {module: name for name, module in model.named_modules()}
    blocks = seen.attending_blocks()
    stock: Any = model
    found = Anatomy(
        family=type(model).__name__,
        modality=batch.modality,
        channels=image_channels(model) if batch.modality == "image" else None,
        features=None if seen.maps is None else FeatureLayer(seen.maps, "nchw", names[seen.maps]),
        embedding=stock.get_input_embeddings() if hasattr(model, "get_input_embeddings") else seen.embedding,
        no_attention="no block of it calls torch's scaled_dot_product_attention exactly once",
    )
    if not blocks:
        return found
    prefix, patch = (1, None) if batch.modality == "text" else seen.patches(batch.pixels)
    if batch.modality == "image" and patch is None:
        return replace(found, no_attention="its tokens cannot be told apart into a patch grid and prefix tokens")
    return replace(
        found,
        blocks=tuple(Block(module) for module in blocks),
        prefix_tokens=prefix,
        readout="measured",
        patch=patch,
        no_attention="",
    )


def _first_sample(batch: Batch) -> Batch:
    def first(value: Any) -> Any:
        return value[:1] if isinstance(value, Tensor) and value.dim() and value.shape[0] == batch.size else value

    return replace(batch, args=tuple(map(first, batch.args)), kwargs={k: first(v) for k, v in batch.kwargs.items()})


class _Probe:
    """Notes, during one pass, which modules ran when, where attention was called and which maps were made."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.running: list[nn.Module] = []
        self.calls: dict[nn.Module, int] = {}
        # For every attention: the numbered modules around it, outermost first, each with its call; the number of keys.
        self.attended: list[tuple[list[tuple[nn.Module, int]], int]] = []
        self.maps: nn.Module | None = None
        self.patch_convolution: nn.Conv2d | None = None
        self.ids: Tensor | None = None
        self.embedding: nn.Embedding | None = None
        self.numbered = {
            child
            for parent in model.modules()
            if isinstance(parent, (nn.ModuleList, nn.Sequential))
            for child in parent.children()
        }

    def run(self, batch: Batch) -> None:
        self.ids = batch.kwargs.get("input_ids")
        with ExitStack() as stack:
            stack.enter_context(untouched(self.model))
            for module in self.model.modules():
                stack.callback(module.register_forward_pre_hook(self._enter).remove)
                stack.callback(module.register_forward_hook(self._leave).remove)
            stack.enter_context(torch.no_grad())
            stack.enter_context(FunctionTap(self._attend, {}))
            self.model(*batch.args, **batch.kwargs)

    def _enter(self, module: nn.Module, args: Any) -> None:
        self.running.append(module)
        self.calls[module] = self.calls.get(module, 0) + 1

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        self.running.pop()
        if isinstance(output, Tensor) and output.dim() == 4 and min(output.shape[-2:]) > 1:
            self.maps = module
        if isinstance(module, nn.Embedding) and args and args[0] is self.ids:
            self.embedding = module
        if isinstance(module, nn.Conv2d) and self.patch_convolution is None and module.kernel_size == module.stride:
            self.patch_convolution = module

    def _attend(self, attend: Any, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        around = [(m, self.calls[m]) for m in self.running if m in self.numbered]
        self.attended.append((around, key.shape[-2]))
        result: Tensor = attend(query, key, value, *args, **kwargs)
        return result

    def attending_blocks(self) -> list[nn.Module]:
        """The blocks in order of execution: the outermost numbered modules each call of which attended once."""
        inside = [around for around, _ in self.attended if around]
        lengths = {length for around, length in self.attended if around}
        for depth in range(min(map(len, inside), default=0)):
            calls = [around[depth] for around in inside]
            if len(set(calls)) == len(calls) and len(lengths) == 1:
                return [module for module, _ in calls]
        return []

    def patches(self, pixels: Tensor) -> tuple[int, tuple[int, int] | None]:
        """Number of prefix tokens and the patch size; (0, None) if tokens and patches do not fit together."""
        if self.patch_convolution is None:
            return 0, None
        height, width = self.patch_convolution.kernel_size[0], self.patch_convolution.kernel_size[1]
        count = (pixels.shape[-2] // height) * (pixels.shape[-1] // width)
        prefix = self.attended[0][1] - count
        return (prefix, (height, width)) if 0 <= prefix < count else (0, None)
