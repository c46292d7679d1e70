"""Several methods on one input, and the methods that were left out with the reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mhex._progress import watched
from mhex.cli._console import Step
from mhex.errors import CaptureError, MissingExtraError, NotFiniteError, NotFiniteOutputError, UnsupportedModelError

if TYPE_CHECKING:
    from mhex.bundle import Bundle
    from mhex.explanation import Explanation
    from mhex.targets import Target

# Why a method may be passed over where every method was asked for; other errors are mistakes, and are raised.
_CANNOT = (UnsupportedModelError, CaptureError, MissingExtraError)


@dataclass(frozen=True)
class MethodResults:
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
    pass_over: bool = False,
    **shared: Any,
) -> MethodResults:
    """Explain one photo or text by several methods; `pass_over` leaves out those that cannot serve the model."""
    import mhex
    from mhex.explain import AUTO
    from mhex.methods import get_method

    outcome = MethodResults([])
    concepts = any(isinstance(part, mhex.Concept) for part in (target if isinstance(target, list) else [target]))
    for method in methods:
        step(method)
        if pass_over and concepts and method != AUTO and get_method(method).target == "class":
            outcome.left_out[method] = "it explains classes, not concepts"
            continue
        arguments = {"progress": watched(), **shared, **(options or {}).get(method, {})}
        try:
            outcome.explanations.append(mhex.explain(bundle, [item], method, target, **arguments))
        except _CANNOT as error:
            if not pass_over or isinstance(error, NotFiniteOutputError):  # the latter is the same for every method
                raise
            if isinstance(error, NotFiniteError):
                outcome.failed[method] = error
            # Methods that can serve the model are shown beside it anyway, so the short reason is enough.
            outcome.left_out[method] = error.reason if isinstance(error, UnsupportedModelError) else str(error)
    return outcome


def group_by_reason(left_out: Mapping[str, str]) -> dict[str, list[str]]:
    """For each reason the methods left out for it."""
    groups: dict[str, list[str]] = {}
    for name, reason in left_out.items():
        groups.setdefault(reason, []).append(name)
    return groups
