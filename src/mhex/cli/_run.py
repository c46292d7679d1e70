"""Several methods on one input, and the methods left out with the reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mhex._progress import watched
from mhex.cli._console import Step
from mhex.errors import CaptureError, MissingExtraError, NotFiniteError, NotFiniteOutputError, UnsupportedModelError

if TYPE_CHECKING:
    from mhex.bundle import Bundle
    from mhex.capture import Outputs
    from mhex.explanation import Explanation
    from mhex.targets import Target, Task

# Why a method may be passed over where every method was asked for; other errors are mistakes, and are told.
_CANNOT = (UnsupportedModelError, CaptureError, MissingExtraError)


@dataclass(frozen=True)
class Outcome:
    """Explanations of one input, and for each method left out the reason; `failed` are those that gave no number."""

    explanations: list[Explanation]
    left_out: dict[str, str] = field(default_factory=dict)
    failed: dict[str, NotFiniteError] = field(default_factory=dict)


def explain_by(
    bundle: Bundle,
    item: Any,
    methods: Sequence[str],
    target: Target,
    step: Step,
    *,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    task: Task | None = None,
    outputs: Outputs | None = None,
    seed: int = 0,
    pass_over: bool = False,
) -> Outcome:
    """Explain one photo or text by several methods.

    Args:
        bundle: The model.
        item: A PIL image or a string.
        methods: Names.
        target: As for `mhex.explain`.
        step: Told each method as it begins.
        options: By method.
        task: As for `mhex.explain`.
        outputs: As for `mhex.explain`.
        seed: For methods that draw random numbers.
        pass_over: Leave out methods that cannot serve the model, instead of raising.
    """
    import mhex
    from mhex.explain import AUTO
    from mhex.methods import get_method

    outcome = Outcome([])
    shared: dict[str, Any] = {"task": task, "outputs": outputs, "seed": seed, "progress": watched()}
    for method in methods:
        step(method)
        if pass_over and method != AUTO and get_method(method).target == "class" and _concepts(target):
            outcome.left_out[method] = "it explains classes, not concepts"
            continue
        own = dict((options or {}).get(method, {}))
        try:
            outcome.explanations.append(mhex.explain(bundle, [item], method, target, **shared, **own))
        except _CANNOT as error:
            if not pass_over or isinstance(error, NotFiniteOutputError):  # the latter is the same for every method
                raise
            if isinstance(error, NotFiniteError):
                outcome.failed[method] = error
            # What can serve the model instead is shown beside it anyway.
            outcome.left_out[method] = error.reason if isinstance(error, UnsupportedModelError) else str(error)
    return outcome


def _concepts(target: Target) -> bool:
    from mhex import Concept

    return any(isinstance(one, Concept) for one in (target if isinstance(target, list) else [target]))


def group_by_reason(left_out: Mapping[str, str]) -> dict[str, list[str]]:
    """For each reason the methods left out for it."""
    groups: dict[str, list[str]] = {}
    for name, reason in left_out.items():
        groups.setdefault(reason, []).append(name)
    return groups
