"""What one explained pass gave, before it is an `Explanation`: tensors, and the checks that wait for the device."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mhex.capture import full
from mhex.errors import MhexError, NotFiniteError, NotFiniteOutputError
from mhex.explanation import Explanation
from mhex.inputs import Prepared
from mhex.inputs.prepared import finite, not_finite
from mhex.registry import Method
from mhex.targets import ResolvedTarget, Task, probabilities

_TENSORS = ("scores", "special", "logits", "values", "sums")  # parts of findings that are one tensor, or None


@dataclass(frozen=True)
class Findings:
    """What one pass gave; tensors of targets have an axis K after that of samples."""

    spec: Method
    settings: dict[str, Any]
    resolved: ResolvedTarget
    scores: Tensor  # (B, K, ...)
    special: Tensor | None  # scores of special tokens, (B, K, T)
    logits: Tensor  # (B, C)
    values: Tensor | None  # scores explained, (B, K)
    layers: dict[str, Tensor]
    diagnostics: dict[str, Tensor]
    signed: bool
    task: Task
    class_names: list[str] | None
    bare: bool
    cost: dict[str, float]
    sums: Tensor  # see `sums_of`
    reactions: list[Callable[[], None]]  # what these checks do if their flag is true

    def tensors(self) -> dict[str, Tensor]:
        """What differs from one batch to the next, by name."""
        parts = {name: getattr(self, name) for name in _TENSORS}
        parts |= {f"layers {name}": layer for name, layer in self.layers.items()}
        parts |= {f"diagnostics {name}": finding for name, finding in self.diagnostics.items()}
        parts["index"] = self.resolved.index
        return {name: tensor for name, tensor in parts.items() if tensor is not None}

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> "Findings":
        """The same with these in the place of what `tensors` gives."""
        parts: dict[str, Any] = {name: tensors.get(name) for name in _TENSORS}
        for group in ("layers", "diagnostics"):
            parts[group] = {name: tensors[f"{group} {name}"] for name in getattr(self, group)}
        resolved = replace(self.resolved, index=tensors.get("index"))
        return replace(self, settings=dict(self.settings), resolved=resolved, **parts)

    def template(self) -> "Findings":
        """The same without the tensors of the batch but one row of logits."""
        few = self.logits[:1].clone()
        return replace(self, scores=few, special=None, logits=few, values=None, layers={}, diagnostics={}, reactions=[])

    def check(self, prepared: Prepared) -> None:
        """Refuse inputs, logits and scores that are not finite, and do what the method's own checks ask for."""
        # All are read together: it is the one place where the device is waited for.
        pixels, logits, scores, *flags = self.sums.tolist()
        if not math.isfinite(pixels):
            finite(prepared.batch.pixels, "images")
        if not math.isfinite(logits):
            check_outputs_finite(self.logits)
        for flag, react in zip(flags, self.reactions, strict=True):
            if flag:
                react()
        if not math.isfinite(scores) and (bad := not_finite(self.scores)):
            samples = f"{'sample' if len(bad) == 1 else 'samples'} {', '.join(map(str, bad))}"
            raise NotFiniteError(
                f"Method {self.spec.name!r} gave scores that are not finite on this model, for {samples} of this batch "
                f"of {len(self.scores)}.",
                self.scores[:, self._keep],
            )

    @property
    def _keep(self) -> Any:
        """What results keep of the axis of targets."""
        return slice(None) if self.resolved.several else 0

    def explanation(self, prepared: Prepared, seed: int) -> Explanation:
        """The result, with what is needed to show it."""
        batch, keep, index = prepared.batch, self._keep, self.resolved.index
        no_shares = self.bare or self.task == "regression"
        return Explanation(
            scores=self.scores[:, keep],
            target=None if index is None else index[:, keep],
            logits=self.logits,
            probabilities=None if no_shares else probabilities(self.logits, self.task == "multi-label"),
            method=self.spec.name,
            values=None if self.values is None else self.values[:, keep],
            options=self.settings,
            seed=seed,
            signed=self.signed,
            class_specific=self.spec.class_specific,
            task=self.task,
            named=list(self.resolved.names) or None,
            modality=batch.modality,
            size=(int(batch.pixels.shape[-2]), int(batch.pixels.shape[-1])) if batch.modality == "image" else None,
            class_names=self.class_names,
            pictures=prepared.pictures,
            tokens=prepared.tokens,
            words=prepared.words,
            lengths=prepared.lengths,
            ids=batch.kwargs.get("input_ids"),
            real=batch.real,
            special=None if self.special is None else self.special[:, keep],
            scored=None if batch.special is None else ~batch.special,
            layers={name: layer[:, keep] for name, layer in self.layers.items()},
            diagnostics={name: finding[:, keep] for name, finding in self.diagnostics.items()},
            cost=dict(self.cost),
        )


def sums_of(prepared: Prepared, logits: Tensor, scores: Tensor, checks: Sequence[Tensor]) -> Tensor:
    """Sums, float32, of inputs that were not checked, of logits and of scores; and a method's own checks, 0 or 1.

    A sum is finite if all values are. One that overflows is looked at more closely.
    """
    pixels = prepared.batch.pixels.sum() if prepared.unchecked else logits.new_zeros(())
    return torch.stack([part.float() for part in (pixels, full(logits).sum(), scores.sum(), *checks)])


def check_outputs_finite(logits: Tensor, cause: MhexError | None = None) -> None:
    """Refuse logits (B, C) that are not finite."""
    finite = torch.isfinite(logits.detach()).flatten(1).all(1)
    if not bool(finite.all()):
        raise NotFiniteOutputError((~finite).nonzero()[:, 0].tolist(), len(finite)) from cause
