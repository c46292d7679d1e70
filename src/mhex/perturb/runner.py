"""What all runners share: how they are called."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from torch import Tensor, nn

from mhex.errors import ArgumentError
from mhex.perturb.subject import OPTIONS, Subject

Result_co = TypeVar("Result_co", covariant=True)


class Runner(ABC, Generic[Result_co]):
    """A way of changing samples and asking the model about them. `ask` says what it takes beside the samples."""

    @abstractmethod
    def ask(self, subject: Subject, *args: Any, **kwargs: Any) -> Result_co:
        """Make the passes."""

    def __call__(
        self,
        model: nn.Module | Subject,
        x: Any = None,
        *args: Any,
        label: Tensor | Sequence[int] | None = None,
        ids: Sequence[int] | Tensor | None = None,
        **kwargs: Any,
    ) -> Result_co:
        """Make the passes.

        Args:
            model: A classifier that returns logits; or a `Subject`, whose other passes are shared (then `x`, `label`,
                `ids` and options are those of it).
            x: Inputs as for `mhex.explain`.
            args: What `ask` takes beside the samples.
            label: Class by the data set, (B,).
            ids: Number of each sample in its data set.
            kwargs: What `ask` takes, by name; and options of `Subject`.
        """
        options = {name: kwargs.pop(name) for name in OPTIONS if name in kwargs}
        if not isinstance(model, Subject):
            return self.ask(Subject(model, x, label, ids, **options), *args, **kwargs)
        if options or any(one is not None for one in (x, label, ids)):
            raise ArgumentError("Expected inputs, labels, ids and options with a model; a Subject has its own.")
        return self.ask(model, *args, **kwargs)
