"""The promise that a model is left as it was found, also after an error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from mhex.errors import CaptureError


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
def untouched(model: nn.Module, attention: bool = False) -> Iterator[None]:
    """Prepare `model` for explaining and put everything back on leaving.

    Inside: evaluation mode, frozen parameters, autocast and inference mode off, gradients on, no activation
    checkpointing, no compiled submodules. Restored: all of these and the state of the random generators.
    Parameters' `.grad` is never written, because gradients are taken with `torch.autograd.grad` for the tensors
    asked for.

    Args:
        model: The unwrapped module.
        attention: Whether attention must be seen. If so, blocks that write out their softmax use torch's
            `scaled_dot_product_attention` meanwhile, which computes the same.
    """
    parameters = list(model.parameters())
    if any(p.is_inference() for p in parameters):
        raise CaptureError(
            "The model's parameters were made under torch.inference_mode, so no gradient can be taken through it; "
            "build or load the model outside of inference_mode."
        )
    device = parameters[0].device if parameters else torch.device("cpu")
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        stack.enter_context(torch.autocast(device.type, enabled=False))
        if device.type != "cpu":
            stack.enter_context(torch.autocast("cpu", enabled=False))
        stack.enter_context(torch.random.fork_rng(devices=[device] if device.type == "cuda" else []))
        for parameter in parameters:
            if parameter.requires_grad:
                stack.callback(parameter.requires_grad_, True)
                parameter.requires_grad_(False)
        for module in model.modules():
            _swap(stack, module, "training", False)
            _swap(stack, module, "grad_checkpointing", False)
            _swap(stack, module, "_compiled_call_impl", None)
            if attention:
                _swap(stack, module, "fused_attn", True)  # timm
        if any(isinstance(getattr(module, "_orig_mod", None), nn.Module) for module in model.modules()):
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        if attention:
            _use_sdpa(stack, model)
        yield


def _swap(stack: ExitStack, module: nn.Module, name: str, value: Any) -> None:
    """Set an existing instance attribute for the time of `stack`."""
    missing = object()
    old = module.__dict__.get(name, missing)
    if old is missing or old is value:
        return
    stack.callback(setattr, module, name, old)
    setattr(module, name, value)


def _use_sdpa(stack: ExitStack, model: nn.Module) -> None:
    """Let Hugging Face models on another attention back-end use `sdpa` for the time of `stack`."""
    configs = {id(c): c for m in model.modules() if (c := getattr(m, "config", None)) is not None}
    for config in configs.values():
        old = getattr(config, "_attn_implementation_internal", None)
        if isinstance(old, str) and old != "sdpa":
            stack.callback(setattr, config, "_attn_implementation_internal", old)
            config._attn_implementation_internal = "sdpa"
