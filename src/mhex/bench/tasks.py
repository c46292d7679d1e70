"""What the outputs of a judged model are."""

from __future__ import annotations

from typing import Any

from torch import nn

from mhex._settle import usual_task
from mhex.errors import ArgumentError
from mhex.heads import heads_of
from mhex.targets import Task

_TASKS = ("classification", "multi-label")


def judged_task(model: nn.Module, given: Any) -> Task:
    """The task by which maps are made and outputs are read.

    Args:
        model: Whose configuration or heads say it, where the user does not.
        given: By the user; None if not at all.
    """
    if given is None:
        heads = heads_of(model)
        found = usual_task(model, heads is not None and heads.settings.multi_label)
        if found == "regression":
            raise ArgumentError(
                "Expected a classifier, but the model's configuration says 'regression', and metrics judge classes; "
                "give task='classification' or 'multi-label' if its outputs are scores of classes."
            )
        return found
    if given not in _TASKS:
        why = ", because metrics judge classes" if given == "regression" else ""
        raise ArgumentError(f"Expected task {' or '.join(map(repr, _TASKS))}{why}, but got {given!r}.")
    sort: Task = given
    return sort
