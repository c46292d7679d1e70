"""Classes by name, as numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

from torch import Tensor, nn

from mhex._settle import names_of
from mhex.targets import resolve_target


class ClassNumbers:
    """Numbers of classes that are given by name or number.

    Args:
        model: Whose configuration may have names.
        names: In the order of the outputs, or by number; None for those of the model.
        logits: Outputs of the model for some samples, (B, C), which say how many classes there are; asked for once, and
            only if a class is given.
    """

    def __init__(
        self,
        model: nn.Module,
        names: Sequence[str] | Mapping[int, str] | None,
        logits: Callable[[], Tensor],
    ) -> None:
        self._model, self._given, self._ask = model, names, logits

    @cached_property
    def _known(self) -> tuple[Tensor, list[str] | None]:
        logits = self._ask()
        return logits, names_of(self._model, self._given, logits, "classification")

    @property
    def names(self) -> list[str] | None:
        """Names of all classes, in their order; None if they are not known."""
        return self._known[1]

    def __call__(self, given: Sequence[int | str]) -> Tensor:
        """Their numbers, (n,); a name that the model does not know is refused, with those that are near it."""
        logits, names = self._known
        found = resolve_target(list(given), logits, names).index
        assert found is not None  # classes alone were given
        return found[0]
