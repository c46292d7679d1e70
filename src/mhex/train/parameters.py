"""Which parameters learn, how fast, and which of them decay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from mhex.errors import ArgumentError
from mhex.train.recipe import TrainPart

HEADS = "mhex."  # prefix of the explainer heads in a model's parameters
PROJECTOR = "projector."  # of what learning without labels adds to a model, and leaves out of its weights


def freeze(model: nn.Module, kind: str, classifier: Sequence[str]) -> None:
    """Keep part of a model from learning.

    Args:
        model: Changed in place.
        kind: ``"none"``, ``"host"`` (only explainer heads learn) or ``"body"`` (these and the classifier).
        classifier: Prefixes of the classifier's parameters.

    Raises:
        ArgumentError: Nothing would be left to learn.
    """
    if kind == "none":
        return
    kept = (HEADS, *classifier) if kind == "body" else (HEADS,)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.startswith(kept))
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ArgumentError(
            f"train.freeze: {kind} leaves nothing to learn in {type(model).__name__}: expected parameters under "
            f"{' or '.join(kept)}."
        )


def learning_mode(model: nn.Module, kind: str) -> None:
    """Training mode; a frozen model is left in evaluation mode, so that its batch statistics stay as they are."""
    model.train(kind == "none")


def parameter_groups(model: nn.Module, settings: TrainPart) -> list[dict[str, Any]]:
    """Groups for the optimiser: with and without weight decay, of the host and of the explainer heads.

    Args:
        model: Parameters that do not learn are left out; ``no_weight_decay()`` of timm models is heeded.
        settings: Rate, decay and the heads' factor.

    Returns:
        At most four groups with ``params``, ``lr`` and ``weight_decay``; the order is that of the parameters.
    """
    spared = set(model.no_weight_decay()) if hasattr(model, "no_weight_decay") else set()  # type: ignore[operator]
    groups: dict[tuple[bool, bool], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        decays = parameter.ndim > 1 and not name.endswith(".bias") and name not in spared
        groups.setdefault((name.startswith(HEADS), decays), []).append(parameter)
    return [
        {
            "params": parameters,
            "lr": settings.rate * (settings.head_rate if heads else 1.0),
            "weight_decay": settings.decay if decays else 0.0,
        }
        for (heads, decays), parameters in groups.items()
    ]


def make_optimizer(model: nn.Module, settings: TrainPart) -> torch.optim.Optimizer:
    """The optimiser of a recipe, from timm's factory.

    Raises:
        ArgumentError: The optimiser cannot be made on this machine, or takes no betas and some are given.
    """
    from timm.optim import create_optimizer_v2

    extra: dict[str, Any] = {} if settings.betas is None else {"betas": settings.betas}
    groups = parameter_groups(model, settings)
    try:
        optimizer: torch.optim.Optimizer = create_optimizer_v2(
            groups, opt=settings.optimizer, lr=settings.rate, momentum=settings.momentum, **extra
        )
    except (AssertionError, ImportError, RuntimeError, TypeError, ValueError) as error:
        raise ArgumentError(
            f"train.optimizer: {settings.optimizer} cannot be made here ({type(error).__name__}: {error}): choose "
            "another one."
        ) from error
    if extra and "betas" not in optimizer.defaults:  # timm drops what an optimiser does not take
        raise ArgumentError(f"train.betas: the optimizer {settings.optimizer!r} takes no betas; leave them out.")
    for group in optimizer.param_groups:
        group["highest"] = group["lr"]
    return optimizer
