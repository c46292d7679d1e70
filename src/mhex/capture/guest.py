"""What lives in a model beside its own modules: heads that a user attached, known here by what they can do only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn

GUEST = "mhex"  # name of the guest inside its host


class Sighting(Protocol):
    """What a guest saw in one call of its host."""

    @property
    def logits(self) -> Tensor:
        """Class scores (B, n) of what predicts: the host's own classifier, or heads that stand for it."""

    @property
    def multi_label(self) -> bool:
        """Whether a sample may have several classes."""


@runtime_checkable
class Guest(Protocol):
    """What lives in a grafted model and wants to know of its calls."""

    def begin(self, host: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """A call of the model begins."""

    def finish(self, host: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any) -> None:
        """It is over; after an error, `output` is None."""

    def loaded(self, host: nn.Module, keys: Any) -> None:
        """A state was loaded into the model; `keys` lists what was missing and what was left over."""

    def recording(self, host: nn.Module) -> AbstractContextManager[None]:
        """Keep everything that is seen in calls of `host` that this thread makes meanwhile."""

    def aside(self) -> AbstractContextManager[None]:
        """What was seen before is put aside meanwhile, and nothing of what is seen meanwhile is kept."""

    def sighting(self) -> Sighting:
        """What was seen in the last call of this thread."""


def guests(modules: Iterable[nn.Module]) -> list[tuple[nn.Module, Guest]]:
    """Hosts among `modules`, each with its guest."""
    # TorchScript, whose children are no dictionary, carries none.
    found = ((m, m._modules.get(GUEST)) for m in modules if isinstance(m._modules, dict))
    return [(host, guest) for host, guest in found if guest is not None and isinstance(guest, Guest)]
