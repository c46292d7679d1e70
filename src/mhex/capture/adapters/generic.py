"""Any other model: one forward pass of the first sample is watched to see where its features and attention are."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from mhex.capture.anatomy import Anatomy, Block, FeatureLayer, Layout, layout_of, name_of
from mhex.capture.batch import Batch
from mhex.capture.guard import untouched
from mhex.capture.tap import FunctionTap
from mhex.errors import ArgumentError

# Modules whose outputs of four axes are feature maps. Dropout and LayerNorm are not among them: Transformers use them
# on attention matrices and heads, which have four axes too.
_SPATIAL = (
    nn.Conv2d,
    nn.ConvTranspose2d,
    nn.BatchNorm2d,
    nn.GroupNorm,
    nn.MaxPool2d,
    nn.AvgPool2d,
    nn.AdaptiveAvgPool2d,
    nn.AdaptiveMaxPool2d,
    nn.ReLU,
    nn.ReLU6,
    nn.LeakyReLU,
    nn.ELU,
    nn.GELU,
    nn.SiLU,
    nn.Hardswish,
)


def anatomy(model: nn.Module, batch: Batch) -> Anatomy:
    """What a forward pass shows of an unknown model.

    Blocks are the numbered children (of a `ModuleList` or `Sequential`) inside which attention ran, provided that
    each call ran it once and over all tokens. The patch grid comes from a convolution whose kernel equals its stride.
    How the head reads the tokens is measured for each batch. The features of the CAM methods are the last maps of
    more than one pixel that come out of a module with convolutions; a Transformer of unknown make has none by default.
    """
    seen = _Probe(model, batch)
    seen.run()
    stock: Any = model
    found = Anatomy(
        family=type(model).__name__,
        modality=batch.modality,
        channels=None if seen.first_convolution is None else seen.first_convolution.in_channels,
        features=None if seen.maps is None else FeatureLayer(*seen.maps, name_of(model, seen.maps[0])),
        embedding=stock.get_input_embeddings() if hasattr(model, "get_input_embeddings") else seen.embedding,
        no_attention="no block of it calls torch's scaled_dot_product_attention exactly once, over all tokens",
    )
    blocks = seen.attending_blocks()
    if not blocks:
        return found
    prefix, patch = (1, None) if batch.modality == "text" else seen.patches()
    if batch.modality == "image" and patch is None:
        return replace(found, no_attention="its tokens cannot be told apart into a patch grid and prefix tokens")
    return replace(
        found,
        blocks=tuple(Block(module) for module in blocks),
        prefix_tokens=prefix,
        readout="measured",
        patch=patch,
        sequence_first=seen.sequence_first(blocks[-1]),
        features=None,
        no_attention="",
    )


def _first_sample(batch: Batch) -> Batch:
    def first(value: Any) -> Any:
        return value[:1] if isinstance(value, Tensor) and value.dim() and value.shape[0] == batch.size else value

    return replace(batch, args=tuple(map(first, batch.args)), kwargs={k: first(v) for k, v in batch.kwargs.items()})


class _Probe:
    """Notes, during one pass, which modules ran when, where attention was called and which maps were made."""

    def __init__(self, model: nn.Module, batch: Batch) -> None:
        self.model = model
        self.batch = _first_sample(batch)
        self.running: list[nn.Module] = []
        self.calls: dict[nn.Module, int] = {}
        self.shapes: dict[nn.Module, torch.Size] = {}  # of outputs
        # For every attention: the numbered modules around it, outermost first, each with its call; shape of q k^T.
        self.attended: list[tuple[list[tuple[nn.Module, int]], tuple[int, int, int]]] = []
        self.maps: tuple[nn.Module, Layout] | None = None
        self.first_convolution: nn.Conv2d | None = None
        self.patch_convolution: nn.Conv2d | None = None
        self.embedding: nn.Embedding | None = None
        lists = [m for m in model.modules() if isinstance(m, (nn.ModuleList, nn.Sequential))]
        self.numbered = {child for parent in lists for child in parent.children()}
        self.spatial = {m for m in model.modules() if any(isinstance(part, _SPATIAL) for part in m.modules())}

    def run(self) -> None:
        with ExitStack() as stack:
            stack.enter_context(untouched(self.model))
            for module in self.model.modules():
                stack.callback(module.register_forward_pre_hook(self._enter).remove)
                stack.callback(module.register_forward_hook(self._leave).remove)
            stack.enter_context(torch.no_grad())
            stack.enter_context(FunctionTap(self._attend, {}))
            self.model(*self.batch.args, **self.batch.kwargs)

    def _enter(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        self.running.append(module)
        self.calls[module] = self.calls.get(module, 0) + 1
        if self.first_convolution is None and isinstance(module, nn.Conv2d) and self.batch.modality == "image":
            self.first_convolution = module
            if args and args[0].shape[1] != module.in_channels:
                raise ArgumentError(
                    f"Expected images of {module.in_channels} channels for this {type(self.model).__name__}, "
                    f"but got {args[0].shape[1]}."
                )

    def _leave(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        self.running.pop()
        if isinstance(output, Tensor):
            self.shapes[module] = output.shape
            if self.batch.modality == "image" and module in self.spatial and output.dim() == 4:
                layout = layout_of(output.shape, self.batch.pixels.shape)
                self.maps = self.maps if layout is None else (module, layout)
        if isinstance(module, nn.Embedding) and args and args[0] is self.batch.kwargs.get("input_ids"):
            self.embedding = module
        if isinstance(module, nn.Conv2d) and self.patch_convolution is None and module.kernel_size == module.stride:
            self.patch_convolution = module

    def _attend(self, attend: Any, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        around = [(m, self.calls[m]) for m in self.running if m in self.numbered]
        self.attended.append((around, (query.shape[0], query.shape[-2], key.shape[-2])))
        result: Tensor = attend(query, key, value, *args, **kwargs)
        return result

    def attending_blocks(self) -> list[nn.Module]:
        """The blocks in order of execution: the outermost numbered modules each call of which attended once."""
        inside = [around for around, _ in self.attended if around]
        shapes = {shape for around, shape in self.attended if around}
        # One sample, the same tokens throughout, every token a query: no windows, no late class token.
        if len(shapes) != 1 or (shape := next(iter(shapes)))[0] != 1 or shape[1] != shape[2]:
            return []
        for depth in range(min(map(len, inside))):
            calls = [around[depth] for around in inside]
            modules = [module for module, _ in calls]
            if len(set(calls)) == len(calls) and all(self._is_stream(m, shape[2]) for m in modules):
                return modules
        return []

    def _is_stream(self, module: nn.Module, tokens: int) -> bool:
        return tuple(self.shapes.get(module, ()))[:2] in ((1, tokens), (tokens, 1))

    def sequence_first(self, module: nn.Module) -> bool:
        """True if the block's output is (N, B, D); the one sample of this pass tells the two axes apart."""
        return self.shapes[module][0] != 1

    def patches(self) -> tuple[int, tuple[int, int] | None]:
        """Number of prefix tokens and the patch size; (0, None) if tokens and patches do not fit together."""
        if self.patch_convolution is None:
            return 0, None
        height, width = self.patch_convolution.kernel_size[0], self.patch_convolution.kernel_size[1]
        count = (self.batch.pixels.shape[-2] // height) * (self.batch.pixels.shape[-1] // width)
        prefix = next(shape[2] for around, shape in self.attended if around) - count
        return (prefix, (height, width)) if 0 <= prefix < count else (0, None)
