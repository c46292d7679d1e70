"""Randomisation: does the map change when the model forgets what it learned, or another class is asked for?"""

from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mhex._progress import track
from mhex._settings import check_choice, check_that
from mhex.capture import unwrap
from mhex.metrics import Case, PerImage, Protocol, register_metric
from mhex.metrics.max_sensitivity import explain_again
from mhex.perturb import PassResult, Runner, Subject, check_images, check_map, counts, generator_for
from mhex.stats.correlation import rank_correlation


def layers_with_weights(model: nn.Module) -> list[nn.Module]:
    """Modules with parameters of their own, in the order in which the model holds them: from input to output."""
    return [m for m in model.modules() if any(p is not None for p in m._parameters.values())]


@contextmanager
def restored(model: nn.Module) -> Iterator[None]:
    """On leaving, every parameter and buffer is the object that it was, and holds what it held."""
    tables = [table for m in model.modules() for table in (m._parameters, m._buffers)]
    before = [(table, dict(table)) for table in tables]
    tensors = {id(t): t for _, entries in before for t in entries.values() if t is not None}
    copies = {number: tensor.detach().clone() for number, tensor in tensors.items()}
    try:
        yield
    finally:
        with torch.no_grad():
            for table, entries in before:
                table.clear()
                table.update(entries)  # type: ignore[arg-type]
            for number, tensor in tensors.items():
                tensor.copy_(copies[number])


def randomize(layer: nn.Module, seed: int) -> None:
    """Give a layer's own parameters new random values, in place; the global generators are left alone.

    By the layer's own initialiser, `reset_parameters`, where it has one. Else, as for class tokens and position
    embeddings that a model holds itself, the numbers of each parameter are shuffled. Layers inside of it are left
    alone, unless its initialiser renews them.
    """
    parameters = [p for p in layer._parameters.values() if p is not None]
    devices = sorted({p.device.index for p in parameters if p.device.type == "cuda"})
    with torch.random.fork_rng(devices=devices), torch.no_grad():
        torch.manual_seed(seed % 2**63)
        for name in ("reset_parameters", "_reset_parameters"):  # the second is that of torch's attention
            initialise = getattr(layer, name, None)
            if callable(initialise):
                initialise()
                return
        for parameter in parameters:
            order = torch.randperm(parameter.numel()).to(parameter.device)
            parameter.copy_(parameter.flatten()[order].view_as(parameter))


_CLASS, _INPUT = 4, 5  # purposes of random numbers
Sign = Literal["signed", "absolute"]
_PAIRS = 10  # of unrelated weights, for the baseline
_SPREAD = 1_000_003  # seeds and layers do not meet


@dataclass(frozen=True)
class RandomizedResult(PassResult):
    """Rank correlations with the map of the model as it is, of maps and of their absolute values.

    The baseline is what two models with nothing in common would reach by multiplying their gradients with this input.
    """

    rho: Tensor  # (B, L, 2), L the number of layers renewed so far, or 1; NaN where a map is constant
    baseline: Tensor  # (B, 2)

    def of(self, sign: str) -> tuple[Tensor, Tensor]:
        """Correlations (B, L) and baseline (B,) of `"signed"` maps, or of their `"absolute"` values."""
        check_choice("sign", sign, get_args(Sign))
        column = get_args(Sign).index(sign)
        return self.rho[..., column], self.baseline[:, column]


@dataclass(frozen=True)
class RandomizationProtocol(Protocol, Runner[RandomizedResult]):
    """What is randomised.

    Mode `"parameters"`: layer after layer from the output to the input, each staying random. `"logit"`: another class,
    drawn at random, is explained. `"labels"`: a model trained on permuted labels is explained.
    """

    mode: Literal["parameters", "logit", "labels"] = "parameters"
    sign: Sign = "signed"  # whether maps are compared as they are, or their absolute values
    seed: int = 0  # of new weights, classes and the baseline
    stages: int | None = None  # layers are renewed in so many parts; None for one layer at a time

    def __post_init__(self) -> None:
        super().__post_init__()
        check_that(self.stages is None or self.stages >= 1, "at least one stage", self.stages)

    @property
    def idle(self) -> dict[str, str]:
        why = f"no layer is renewed, because mode is {self.mode!r}"
        return {} if self.mode == "parameters" else {"stages": why}

    def ask(
        self,
        subject: Subject,
        saliency: Tensor,
        again: Callable[..., Tensor],
        explained: Tensor | None = None,
        explained_model: nn.Module | None = None,
    ) -> RandomizedResult:
        """Randomise and explain again; arguments as for `NeighbourProtocol`.

        For `"labels"` `again` explains the second model; `explained_model` is what it explains else, if not the
        subject's own.
        """
        check_images(subject)
        maps = check_map(subject, saliency).double().flatten(1)
        classes = subject.classes(explained)[:, 0]
        if self.mode == "logit":  # another class for each sample, by (seed, id)
            generators = [generator_for(self.seed, number, _CLASS) for number in subject.ids]
            steps = torch.cat([torch.randint(1, subject.count, (1,), generator=g) for g in generators])
            classes = (classes + steps.to(classes.device)) % subject.count
        changed = subject.model if explained_model is None else unwrap(explained_model)
        correlations = []
        # Closed at once also after an error, so that weights are put back before anybody sees it.
        with closing(self._stages(subject, changed)) as stages:
            for _ in stages:
                new = explain_again(subject, again, subject.batch.pixels, classes, saliency)
                correlations.append(_alike(maps, new))
        rho = torch.stack(correlations, 1)
        return RandomizedResult(tuple(subject.ids), rho, self._baseline(subject, saliency), runner=self)

    def _stages(self, subject: Subject, model: nn.Module) -> Generator[int]:
        """Once after each part of the layers has been renewed; once for the other modes."""
        if self.mode != "parameters":
            yield 0
            return
        layers = layers_with_weights(model)[::-1]
        check_that(bool(layers), "a model with parameters", "nothing to randomise")
        ends = counts(torch.tensor(len(layers)), min(self.stages or len(layers), len(layers))).tolist()
        with restored(model):
            for stage in track(range(1, len(ends)), "layers", subject.progress):
                for n in range(ends[stage - 1], ends[stage]):
                    randomize(layers[n], self.seed * _SPREAD + n)
                yield stage

    def _baseline(self, subject: Subject, saliency: Tensor) -> Tensor:
        """Mean correlation of maps `x w` and `x v` at the size of the maps, `w` and `v` drawn apart; (B, 2)."""
        pixels = subject.batch.pixels.double()
        correlations = []
        for number, image in zip(subject.ids, pixels, strict=True):
            draw = generator_for(self.seed, number, _INPUT)
            weights = torch.randn((2, _PAIRS, *image.shape), generator=draw, dtype=torch.float64).to(image.device)
            maps = F.adaptive_avg_pool2d((image * weights).sum(2), (saliency.shape[-2], saliency.shape[-1]))
            correlations.append(_alike(*maps.flatten(2)).mean(0))
        return torch.stack(correlations)


def _alike(first: Tensor, second: Tensor) -> Tensor:
    """Rank correlations of rows (M, N), with their signs and without: (M, 2)."""
    return torch.stack([rank_correlation(first, second), rank_correlation(first.abs(), second.abs())], -1)


def randomization(result: RandomizedResult, sign: str = "signed") -> Tensor:
    """`rho_l = Spearman(S, S_l)` for each depth, (B, L): NaN where a map is constant.

    What the input alone would give is in `result.baseline`.

    Args:
        result: Result of maps after randomisation.
        sign: Whether `"signed"` maps are compared, or their `"absolute"` values.
    """
    return result.of(sign)[0]


@register_metric(
    "randomization",
    function=randomization,
    title="Does the map change when the model's weights are random, another class is asked for, or labels were "
    "permuted?",
    paper="Adebayo et al., Sanity checks for saliency maps, NeurIPS 2018, arXiv:1810.03292; random logit: Sixt et al., "
    "2020, arXiv:1912.09818",
    passes="E per layer, or per stage (parameters); E (logit, labels)",
    traps="A check to pass, not a ranking: noise passes best. Maps that are multiplied by the input stay alike without "
    "any model, above all their absolute values: read `excess`, which has that part taken off. Maps that do not depend "
    "on the class have 1 for `logit`. Depths whose map is constant do not count, and `constant` is their share.",
    modalities=("image",),
    explains=True,
    presets={
        "default": RandomizationProtocol(),
        "logit": RandomizationProtocol("logit"),
        "labels": RandomizationProtocol("labels"),
    },
)
class Randomization(PerImage):
    """Mean rank correlation (lower is better), the same less the baseline, the baseline, and the share `constant`."""

    columns = ("rho", "excess", "baseline", "constant")
    better = (False, False, None, None)
    protocol: RandomizationProtocol

    def of(self, case: Case) -> tuple[Any, ...]:
        if self.protocol.mode == "labels":
            again = case.needs("relabelled", "maps by a model trained on permuted labels (relabelled=)")
        else:
            again = case.needs("again", "a way to explain again (again=)")
        return (case.passes(*self.protocol.passes, again, case.explained, case.model),)

    def score(self, result: RandomizedResult) -> Tensor:
        """Numbers per image; NaN where no two maps can be compared."""
        rho, baseline = randomization(result, self.protocol.sign), result.of(self.protocol.sign)[1]
        mean = rho.nanmean(1)
        return torch.stack([mean, mean - baseline, baseline, rho.isnan().double().mean(1)], 1)
