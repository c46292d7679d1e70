"""What the outputs of a judged model are."""

from __future__ import annotations

from typing import Any

from mhex._settle import usual_task
from mhex.capture import Outputs, has_sigmoids
from mhex.errors import ArgumentError
from mhex.heads import heads_of
from mhex.perturb import Subject
from mhex.targets import Task

_TASKS = ("classification", "multi-label")


def judged_task(subject: Subject, given: Any) -> Task:
    """The task by which maps are made and outputs are read.

    Args:
        subject: Whose model says it by its configuration, its heads or its end, where the user does not.
        given: By the user; None if not at all.
    """
    if given is None:
        heads = heads_of(subject.model)
        several = heads is not None and heads.settings.multi_label
        found = usual_task(subject.model, several)
        if found == "classification" and has_sigmoids(subject.ending, subject.raw_logits):
            return "multi-label"
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


def outputs_of(subject: Subject) -> Outputs:
    """What a model returns, as the user said or as it was recognised, so that all batches are read alike."""
    return "logits" if subject.ending is None else "probabilities"
