"""The one sweep: units removed step by step, in the order of a map, and what the model says at each step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from mhex._settings import check_choice, check_seed, check_that
from mhex.capture import Batch
from mhex.inputs.words import POOLING, Pooling, Words, check_pooling, check_split
from mhex.perturb.curves import Grid, area, counts, random_counts
from mhex.perturb.references import PIXELS, WORDS, imputed
from mhex.perturb.subject import Change, PassResult, Runner, Subject, column_of
from mhex.perturb.unit_removal import UnitRemoval
from mhex.perturb.units import Tie, Units, generator_for, ranks, removed_words, units_of

Order = Literal["mif", "lif"]
ORDERS: tuple[Order, ...] = ("mif", "lif")
_TABLES = ("z", "norm", "mean", "top", "complement")  # of a result, for each order


@dataclass(frozen=True)
class SweepResult(PassResult):
    """Curves of a batch, over the steps 0 to T; on a random grid, over nothing, m draws and everything removed.

    What the order `"lif"` removes at the points of a random grid is what `"mif"` keeps there, read backwards: levels
    lie closest at the other end, where the most important units go.
    """

    classes: Tensor  # the explained class, the predicted one, the label and another one, (B, 4); -1 where there is none
    removed: Tensor  # units removed at each step, (B, T + 1); on a random grid, by the order "mif"
    units: Tensor  # units of each sample, (B,)
    z: Tensor  # scores of these classes, (orders, B, T + 1, 4), float64
    norm: Tensor  # what makes them log-probabilities, `log p = z - norm`, of the same shape
    mean: Tensor  # mean score of all classes, (orders, B, T + 1)
    top: Tensor  # the class with the highest score, (orders, B, T + 1)
    complement: Tensor  # scores of all other classes together, `log(p / (1 - p)) = z - complement`, shaped like `z`
    weights: Tensor | None = field(default=None, kw_only=True)  # of the points of a random grid, shaped like `removed`

    @classmethod
    def joined(cls, results: Sequence[SweepResult]) -> SweepResult:
        """Curves of the same samples on the same grid, of one sweep made in parts: some orders each."""
        orders = tuple(order for result in results for order in result.runner.orders)
        tables: dict[str, Any] = {name: torch.cat([getattr(part, name) for part in results]) for name in _TABLES}
        return replace(results[0], runner=replace(results[0].runner, orders=orders), **tables)

    def along(self, order: Order) -> SweepResult:
        """The curves of one order alone."""
        place = self._place(order)
        tables = {name: getattr(self, name)[place : place + 1] for name in _TABLES}
        return replace(self, runner=replace(self.runner, orders=(order,)), **tables)

    def every(self, stride: int) -> SweepResult:
        """The same on a coarser grid, of every so many steps."""
        if stride == 1:
            return self
        check_that(self.weights is None, "an even grid where every so many steps are read", "a random one")
        steps = self.runner.steps
        check_that(stride >= 1 and steps % stride == 0, f"a stride that divides the {steps} steps of the sweep", stride)
        tables = {name: getattr(self, name)[:, :, ::stride] for name in _TABLES}
        sweep = replace(self.runner, steps=steps // stride)
        return replace(self, removed=self.removed[:, ::stride], runner=sweep, **tables)

    def curve(self, order: str, output: str = "probability", scored: str = "explained") -> Tensor:
        """What is read along one order, (B, T + 1); NaN without such a class, and of a sample without a unit to remove.

        Args:
            order: `"mif"` or `"lif"`.
            output: A `"probability"`, `"log-probability"` or `"log-odds"`, a `"logit"`, a `"centred-logit"`, less the
                mean of all, or a `"hit"`: whether the class is on top.
            scored: Whose.
        """
        place, column = self._place(order), column_of(scored, self.classes >= 0)
        missing = (self.classes[:, column] < 0)[:, None] | (self.units == 0)[:, None]
        z = self.z[place, ..., column]
        readings = {
            "probability": lambda: (z - self.norm[place, ..., column]).exp(),
            "log-probability": lambda: z - self.norm[place, ..., column],
            "log-odds": lambda: z - self.complement[place, ..., column],
            "logit": lambda: z,
            "centred-logit": lambda: z - self.mean[place],
            "hit": lambda: (self.top[place] == self.classes[:, column, None]).double(),
        }
        check_that(output in readings, f"output to be one of {', '.join(readings)}", repr(output))
        return readings[output]().masked_fill(missing, torch.nan)

    def area(
        self,
        order: str,
        output: str = "probability",
        scored: str = "explained",
        rule: str = "unit",
        inserted: bool = False,
    ) -> Tensor:
        """Area under what is read along one order, (B,); see `curve`, and `mhex.perturb.area` for its rules.

        With `inserted` the curve is read backwards: the most important units are put into the reference.
        """
        curve, weights = self.curve(order, output, scored), self.weights
        if weights is not None and order == "lif":
            weights = weights.flip(1)
        return area(curve.flip(1) if inserted and weights is None else curve, rule, weights)

    def _place(self, order: str) -> int:
        orders: tuple[str, ...] = self.runner.orders
        expectation = f"one of the orders of the sweep, {', '.join(orders)}"
        check_that(order in orders, expectation, repr(order), "; make the sweep with it")
        return orders.index(order)


_NOISE = 1  # purpose of random numbers


@dataclass(frozen=True)
class PerturbationSweep(Runner[SweepResult]):
    """How units are removed: the part of a protocol that decides which passes are made.

    References of images are `"black"`, `"zero"`, `"mean"`, `"blur"`, `"impute"`, or `"drop"` (a plain Vision
    Transformer is not given the patch); of texts `"mask_token"`, `"drop"` (the token is deleted) or `"pad"` (it is not
    attended to). Granularity `"pixel"` ranks the map at the size of the image; `"cell"` its means over 8 x 8 cells, the
    same for all maps, whatever their resolution; `"patch"` the cells of its own grid, or for `"drop"` the patches of
    the model; texts are ranked by `"token"` or `"word"`. A grid has `"even"` steps, alike for all samples; or
    `"random"` levels, drawn for each by (seed, id), for areas from few passes: see `random_counts`.
    """

    reference: str = "black"  # what removed means
    granularity: str = "pixel"
    steps: int = 20  # T, from nothing removed to everything: there are T + 1 points; of a random grid, number of draws
    orders: tuple[Order, ...] = ORDERS  # "mif" removes the most important first, "lif" the least important
    tie: Tie = "random"  # how equal scores are ranked: by (seed, id), or "stable"
    seed: int = 0  # of ties and noise
    sigma: float | None = None  # spread of the blur in pixels; None for a sixteenth of the shorter side
    noise: float = 0.01  # spread of what is added to imputed pixels
    radius: int | None = None  # of the blur's kernel, 2 radius + 1 pixels wide; None for three times the spread
    words: Words = "tokenizer"  # which words are ranked: those of the tokenizer, or those split at "whitespace"
    pooling: Pooling = POOLING  # score of a word: the "max" of the scores of its tokens, or their "sum"
    grid: Grid = "even"

    def __post_init__(self) -> None:
        check_choice("the reference", self.reference, (*PIXELS, *WORDS))
        check_choice("granularity", self.granularity, ("pixel", "cell", "patch", "token", "word"))
        check_choice("tie", self.tie, get_args(Tie))
        check_choice("grid", self.grid, get_args(Grid))
        is_count = isinstance(self.steps, int) and self.steps >= 1
        check_that(is_count, "steps to be a whole number from 1 on", repr(self.steps))
        is_order = bool(self.orders) and all(order in ORDERS for order in self.orders)
        check_that(is_order, "orders 'mif' and 'lif'", repr(self.orders))
        check_seed("seed", self.seed)
        check_split(self.words)
        check_pooling(self.pooling)

    def ask(
        self, subject: Subject, saliency: Tensor, explained: Tensor | None = None, other_class: Tensor | None = None
    ) -> SweepResult:
        """Run the model with units removed.

        Args:
            subject: The samples, whose other passes are shared.
            saliency: Importance for one class of each sample: (B, H, W) or (B, h, w) for images, (B, T) for texts.
            explained: That class, (B,); None for the predicted one.
            other_class: Another class whose outputs are kept, (B,); -1 for none.
        """
        removal = self.ranked(subject, saliency)
        units = removal.units.number
        grid, weights = counts(units, self.steps), None  # (B, T + 1)
        if self.grid == "random":
            grid, weights = random_counts(units, self.steps, self.seed, subject.ids)
        classes = subject.classes(explained, other_class)
        last = torch.tensor([order == "lif" for order in self.orders], device=subject.device)
        backwards = grid if weights is None else (units[:, None] - grid).flip(1)
        number = torch.cat([(backwards if order == "lif" else grid).mT for order in self.orders])
        rows = removal.ask(number, last.repeat_interleave(grid.shape[1]), classes)
        tables = [row.view(len(last), grid.shape[1], *row.shape[1:]).transpose(1, 2) for row in rows]
        return SweepResult(tuple(subject.ids), classes, grid, units, *tables, runner=self, weights=weights)

    def ranked(self, subject: Subject, saliency: Tensor) -> UnitRemoval:
        """Units in the order of their importance."""
        units = units_of(subject, saliency, self.reference, self.granularity, self.words, self.pooling)
        rank = ranks(units.scores, subject.ids, self.seed, self.tie, units.counted)
        drawn = self.reference == "impute"
        # The parts that say what removed means.
        kind = PerturbationSweep(
            self.reference,
            self.granularity,
            seed=self.seed if drawn else 0,
            sigma=self.sigma,
            noise=self.noise if drawn else 0.0,
            radius=self.radius,
            words=self.words,
        )
        return UnitRemoval(subject, units, rank, self._change(subject, units), (kind, units.layout))

    def _change(self, subject: Subject, units: Units) -> Change:
        """From removed units (M, N) of samples (M,) to inputs for the model."""
        spread, pixels = units.spread, subject.main
        if subject.batch.modality == "text":
            return lambda removed, samples: removed_words(subject, self.reference, spread(removed, samples), samples)
        if self.reference == "drop":
            # The position of each patch that stays is its own.
            return lambda removed, samples: replace(subject.variants(pixels, samples), patches=~removed)
        if self.reference == "impute":
            draws = [torch.randn(pixels.shape[1:], generator=generator_for(self.seed, i, _NOISE)) for i in subject.ids]
            noise = torch.stack(draws).to(pixels) * self.noise
        else:
            stand_in = subject.reference(self.reference, self.sigma, self.radius)

        def replaced(removed: Tensor, samples: Tensor) -> Batch:
            mask, clean = spread(removed, samples), pixels[samples]
            value = imputed(clean, mask) + noise[samples] if self.reference == "impute" else stand_in[samples]
            return subject.variants(torch.where(mask[:, None], value, clean), samples, rows=False)

        return replaced
