"""A host that stays as it is while its heads train."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch import nn


def freeze(host: nn.Module, parameters: Iterable[tuple[str, nn.Parameter]]) -> tuple[str, ...]:
    """Freeze parameters and hold the running statistics of the norms.

    Args:
        host: The model.
        parameters: Its own, by name.

    Returns:
        Names of those that were trainable; `thaw` takes them back.
    """
    trainable = [(name, parameter) for name, parameter in parameters if parameter.requires_grad]
    for _, parameter in trainable:
        parameter.requires_grad_(False)
    hold_buffers(host)
    return tuple(name for name, _ in trainable)


def thaw(host: nn.Module, names: Iterable[str]) -> None:
    """Undo `freeze`: these parameters train again, and norms are in the mode of the host."""
    for name in names:
        host.get_parameter(name).requires_grad_(True)
    for norm in _running_norms(host):
        norm.training = host.training


def hold_buffers(host: nn.Module) -> None:
    """Put norms with running statistics in evaluation mode, in which their buffers do not move."""
    for norm in _running_norms(host):
        if norm.training:
            norm.training = False


def _running_norms(host: nn.Module) -> Iterator[nn.Module]:
    return (module for module in host.modules() if module._buffers.get("running_mean") is not None)
