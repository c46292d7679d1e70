"""How weights change: what learns, the optimiser and its rates, and the running average of the weights."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from mhex.errors import ArgumentError
from mhex.lab.config.recipe import RecipeTraining

HEADS = "mhex."  # prefix of the explainer heads in a model's parameters
PROJECTOR = "projector."  # of what learning without labels adds to a model, and leaves out of its weights


def freeze(model: nn.Module, kind: str, classifier: Sequence[str]) -> None:
    """Let only explainer heads learn (``"host"``), these and the classifier by its prefixes (``"body"``), or all."""
    if kind == "none":
        return
    prefixes = (HEADS, *classifier) if kind == "body" else (HEADS,)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.startswith(prefixes))
    if not any(parameter.requires_grad for parameter in model.parameters()):
        words = f"train.freeze: {kind} leaves nothing to learn in {type(model).__name__}"
        raise ArgumentError(f"{words}: expected parameters under {' or '.join(prefixes)}.")


def learning_mode(model: nn.Module, kind: str) -> None:
    """Put a model into training mode; a frozen one stays in evaluation mode, so that its batch statistics stay."""
    model.train(kind == "none")


def parameter_groups(model: nn.Module, settings: RecipeTraining) -> list[dict[str, Any]]:
    """Group parameters for the optimiser: with and without weight decay, of the host and of the explainer heads.

    Parameters that do not learn are left out; ``no_weight_decay()`` of timm models is heeded.
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


def make_optimizer(model: nn.Module, settings: RecipeTraining) -> torch.optim.Optimizer:
    """Make the optimiser of a recipe with timm's factory, or refuse it where it cannot be made or takes no betas."""
    from timm.optim import create_optimizer_v2

    extra: dict[str, Any] = {} if settings.betas is None else {"betas": settings.betas}
    groups = parameter_groups(model, settings)
    try:
        optimizer: torch.optim.Optimizer = create_optimizer_v2(
            groups, opt=settings.optimizer, lr=settings.rate, momentum=settings.momentum, **extra
        )
    except (AssertionError, ImportError, RuntimeError, TypeError, ValueError) as error:
        words = f"train.optimizer: {settings.optimizer} cannot be made here ({type(error).__name__}: {error})"
        raise ArgumentError(f"{words}: choose another one.") from error
    if extra and "betas" not in optimizer.defaults:  # timm drops what an optimiser does not take
        raise ArgumentError(f"train.betas: the optimizer {settings.optimizer!r} takes no betas; leave them out.")
    for group in optimizer.param_groups:
        group["highest"] = group["lr"]
    return optimizer


# Of the one-cycle policy: the first rate is a 25th of the highest, the last one 10,000 times smaller than the first.
_FIRST = 1 / 25
_LAST = _FIRST / 1e4


def rate_factor(schedule: str, step: int, steps: int, warmup: float, floor: float = 0.0) -> float:
    """Give the factor of the learning rate at a step, from nothing but the step, so that a resumed run has it too.

    After a straight rise over the share ``warmup`` of the steps, the rate falls to ``floor`` along a cosine or a line,
    or stays constant; ``"one-cycle"`` rises and falls along half cosines. Steps are counted from 0.
    """
    rise = round(warmup * steps)
    if schedule == "one-cycle":
        top = max(rise - 1, 0)
        if step < top:
            return _half_cosine(_FIRST, 1.0, step / top)
        return _half_cosine(1.0, max(_LAST, floor), (step - top) / max(1, steps - 1 - top))
    if step < rise:
        return (step + 1) / rise
    share = (step - rise) / max(1, steps - rise)
    if schedule == "cosine":
        return _half_cosine(1.0, floor, share)
    return 1.0 if schedule == "constant" else 1 - (1 - floor) * share


def _half_cosine(begin: float, end: float, done: float) -> float:
    return end + (begin - end) * 0.5 * (1 + math.cos(math.pi * done))


def state_copy(model: nn.Module) -> dict[str, Tensor]:
    """Copy the state of a model."""
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


class Average:
    """Exponential moving average of a model's state, batch statistics too; counters and settings are copied.

    A step keeps the share `decay` of the old average, early ones less, as in timm: 1 - step^(-2/3). Averages of torch
    and timm hold a second model, which the loss of explainer heads would not see.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        # What heads keep beside their weights is the strength of their gates, which a schedule sets.
        self._settings = {name for name, _ in model.named_buffers() if name.startswith(HEADS)}
        self.state = state_copy(model)

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        """Take in the model's state after a step, counted from 0."""
        weight = 1 - (min(self.decay, 1 - step ** (-2 / 3)) if step > 1 else 0.0)
        for name, value in model.state_dict().items():
            average = self.state[name]
            if average.is_floating_point() and name not in self._settings:
                average.lerp_(value.to(average.dtype), weight)
            else:
                average.copy_(value)

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take over a stored average."""
        for name, average in self.state.items():
            average.copy_(state[name])

    @contextmanager
    def inside(self, model: nn.Module) -> Iterator[None]:
        """Put the average into the model for a while."""
        state = state_copy(model)
        model.load_state_dict(self.state)
        try:
            yield
        finally:
            model.load_state_dict(state)
