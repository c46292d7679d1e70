"""One batch and one map of it, with everything that metrics ask for and may share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from torch import Tensor, nn

from mhex.errors import ArgumentError
from mhex.inputs.parts import InputParts
from mhex.perturb import ORDERS, Order, PerturbationSweep, Runner, Subject, SweepResult

T = TypeVar("T")


@dataclass(eq=False)
class Case:
    """What is judged: maps of a batch for one class each."""

    subject: Subject  # the samples and their model; what does not depend on maps is shared by all cases of it
    saliency: Tensor  # maps at their own resolution: (B, h, w), or (B, T) for texts
    explained: Tensor | None = None  # the class of each, (B,); None for the predicted one
    mask: Tensor | None = None  # segmentation of images, (B, H, W): 1 at the object, 0 elsewhere, -1 to be ignored
    rationale: Sequence[Any] | None = None  # words of texts that people marked; see `mhex.inputs.masks.FORMS`
    tiles: Tensor | None = None  # class of each cell of mosaics, (B, n * n), row by row; see `grid_pointing_game`
    parts: Sequence[InputParts | None] | None = None  # what can be taken away from each sample; masks at its own size
    answers: Callable[[list[Any]], Tensor] | None = None  # from other inputs in the form of the data to logits (M, C)
    # From inputs as for `mhex.explain` and classes (B,) to maps by the same method with the same options.
    again: Callable[..., Tensor] | None = None
    other_class: Tensor | None = None  # another class that is in each image, (B,), -1 where there is none
    # Makes the case of the maps for that class, with both classes exchanged; any class will do where there is no other.
    other: Callable[[], Case] | None = None
    relabelled: Callable[..., Tensor] | None = None  # as `again`, by a model that was trained on permuted labels
    model: nn.Module | None = None  # the explained model, where outputs of another one are read
    # What was asked of `once` since this set was last made empty, by name, with all that it is made of.
    used: set[Any] = field(default_factory=set, repr=False)
    making: Any = field(default=None, repr=False)  # name of what `once` is making
    _done: dict[Any, Any] = field(default_factory=dict, repr=False)
    _within: dict[Any, set[Any]] = field(default_factory=dict, repr=False)

    @property
    def ids(self) -> list[int]:
        return self.subject.ids

    def sweep(self, request: PerturbationSweep) -> SweepResult:
        """Curves of its orders, each from a sweep made before where one has all of the points."""
        curves = self._curves(request)
        missing = tuple(order for order in request.orders if order not in curves)
        if missing:
            runner = replace(request, orders=missing)
            result = runner.ask(self.subject, self.saliency, self.explained, self.other_class)
            for order in missing:
                curves[order] = self._sweeps(request)[order, request.steps] = result.along(order)
        return SweepResult.joined([curves[order] for order in request.orders])

    def plan(self, sweeps: list[PerturbationSweep]) -> None:
        """Make the finest of each kind and order first, so that the others are read off it."""
        orders: dict[PerturbationSweep, set[Order]] = {}
        for sweep in sweeps:
            orders.setdefault(replace(sweep, orders=ORDERS), set()).update(sweep.orders)
        for kind in sorted(orders, key=lambda sweep: -sweep.steps):
            self.sweep(replace(kind, orders=tuple(order for order in ORDERS if order in orders[kind])))

    def _curves(self, request: PerturbationSweep) -> dict[Order, SweepResult]:
        """Curves made so far that have all points of those requested, on the grid of these."""
        return {
            order: result.every(steps // request.steps)
            for (order, steps), result in self._sweeps(request).items()
            if order in request.orders
            and steps % request.steps == 0
            and (request.grid == "even" or steps == request.steps)
        }

    def _sweeps(self, request: PerturbationSweep) -> dict[tuple[Order, int], SweepResult]:
        """Curves made so far that differ from those requested by their order and steps alone."""
        sweeps: dict[tuple[Order, int], SweepResult]
        sweeps = self._done.setdefault(("sweep", replace(request, steps=1, orders=ORDERS)), {})
        return sweeps

    def passes(self, runner: Runner[T], *args: Any) -> T:
        """Result of a runner that takes the map and, by default, its class alone; made once."""
        return self.once(runner, lambda: runner.ask(self.subject, self.saliency, *(args or (self.explained,))))

    def once(self, name: Any, make: Callable[[], T]) -> T:
        """What several metrics of this case share."""
        if name not in self._done:
            outside = self.used, self.making
            self.used, self.making = set(), name
            try:
                self._done[name] = make()
            finally:
                self._within[name] = self.used
                self.used, self.making = outside
        self.used |= {name, *self._within[name]}
        result: T = self._done[name]
        return result

    def needs(self, name: str, words: str) -> Any:
        """A part of the case that a metric cannot do without; an error says in these words what is missing."""
        value = getattr(self, name)
        if value is None:
            raise ArgumentError(f"Expected {words}, but none was given.")
        return value
