"""The promise that a model is left as it was found, also after an error."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from mhex.errors import CaptureError

# What the attributes of modules are while a model is watched; `fused_attn` is timm's choice of a kernel.
_SETTINGS = {"training": False, "grad_checkpointing": False, "_compiled_call_impl": None, "fused_attn": True}


def unwrap(model: nn.Module) -> nn.Module:
    """The module inside `torch.compile`, `DataParallel` and `DistributedDataParallel` wrappers."""
    while True:
        if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            model = model.module
        elif isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
            model = inner
        else:
            return model


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Prepare `model` for explaining and put everything back on leaving.

    Inside: evaluation mode, frozen parameters, autocast and inference mode off, gradients on, no activation
    checkpointing, no compiled submodules; blocks that write out their softmax use torch's
    `scaled_dot_product_attention`, which computes the same and can be seen. Restored: all of these and the state of
    the random generators. Parameters' `.grad` is never written, because gradients are taken with
    `torch.autograd.grad` for the tensors asked for.
    """
    modules = list(model.modules())  # walked once: it takes a millisecond on a large model
    parameters = [p for module in modules for p in module._parameters.values() if p is not None]
    if any(p.is_inference() for p in parameters):
        raise CaptureError(
            "The model's parameters were made under torch.inference_mode, so no gradient can be taken through it; "
            "build or load the model outside of inference_mode."
        )
    device = parameters[0].device if parameters else torch.device("cpu")
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        for kind in {"cpu", device.type}:
            stack.enter_context(torch.autocast(kind, enabled=False))
        stack.enter_context(torch.random.fork_rng(devices=[device] if device.type == "cuda" else []))
        stack.enter_context(_frozen([p for p in parameters if p.requires_grad]))
        stack.enter_context(_swapped(modules, _SETTINGS))
        if any("_orig_mod" in module._modules for module in modules):  # a compiled submodule
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        # Hugging Face's choice of a kernel; sub-models share or copy the configuration.
        configs = {id(c): c for m in modules if hasattr(c := m.__dict__.get("config"), "_attn_implementation_internal")}
        stack.enter_context(_swapped(list(configs.values()), {"_attn_implementation_internal": "sdpa"}))
        yield


@contextmanager
def _frozen(parameters: list[nn.Parameter]) -> Iterator[None]:
    try:
        for parameter in parameters:
            parameter.requires_grad_(False)
        yield
    finally:
        for parameter in parameters:
            parameter.requires_grad_(True)


@contextmanager
def _swapped(objects: Sequence[object], settings: Mapping[str, Any]) -> Iterator[None]:
    """Give instance attributes that exist other values for a while."""
    before: list[tuple[object, str, Any]] = []
    try:
        for thing in objects:
            own = thing.__dict__
            for name, value in settings.items():
                if name in own and own[name] != value:
                    before.append((thing, name, own[name]))
                    setattr(thing, name, value)
        yield
    finally:
        for thing, name, value in before:
            setattr(thing, name, value)
