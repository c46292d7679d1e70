"""What a step minimises: the seam between the loop, a model, its explainer heads and its teachers."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn import functional

from mhex._settings import check_that
from mhex.inputs.preprocess import Preprocess
from mhex.lab.config.recipe import RecipeDistillation, RecipeHeads, RecipeUnlabelled
from mhex.lab.train.optimiser import PROJECTOR
from mhex.lab.train.samples import Inputs


def smoothed_targets(classes: int, amount: float, group_of: Sequence[int] | None = None) -> Tensor:
    """Make the table of label smoothing, (C, C): row c is the target of a photo of class c, and sums to one.

    The amount is the share of the probability that is spread, in [0, 1); where classes have groups, over the classes of
    the same group alone, so that smoothing never says a cat might be a dog.
    """
    check_that(0 <= amount < 1, "an amount of label smoothing in [0, 1)", amount)
    groups = torch.zeros(classes) if group_of is None else torch.tensor(list(group_of))
    check_that(len(groups) == classes, f"group_of to name the group of each of the {classes} classes", len(groups))
    peers = (groups[:, None] == groups[None, :]).float()
    return (1 - amount) * torch.eye(classes) + amount * peers / peers.sum(dim=1, keepdim=True)


def distillation(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Give the Kullback-Leibler divergence of the student's logits (N, C) from the teacher's (Hinton et al. 2015)."""
    # The temperature divides both; its square multiplies the mean over the batch, which keeps gradients of one size.
    check_that(temperature > 0, "a positive temperature of distillation", temperature)
    target = functional.log_softmax(teacher.float() / temperature, dim=1)
    answer = functional.log_softmax(student.float() / temperature, dim=1)
    return functional.kl_div(answer, target, reduction="batchmean", log_target=True) * temperature**2


def logits_of(model: nn.Module, inputs: Inputs) -> Tensor:
    """Give a model's logits (B, C), whether it returns a tensor or, as in Hugging Face, something with ``logits``."""
    output = model(**inputs) if isinstance(inputs, dict) else model(inputs)
    logits: Tensor = output if isinstance(output, Tensor) else output.logits
    return logits


class Objective(nn.Module):
    """A model with its loss as one module, so that every tensor the loss reads lies behind the module's output.

    A data-parallel wrapper looks for used parameters there alone, and explainer heads are not in a model's output.
    """

    def __init__(self, model: nn.Module, distil: RecipeDistillation | None = None, *, compile: bool = False) -> None:
        super().__init__()
        self.model, self.distil = model, distil
        # In a tuple, so that the compiled form is not a second submodule with the same parameters.
        self._callable: tuple[Any] = (torch.compile(model) if compile else model,)

    def forward(self, inputs: Inputs, targets: Tensor, advice: Tensor | None = None) -> Tensor:
        """Give the loss of a batch, a scalar, for class probabilities (B, C) and the teachers' logits (B, C)."""
        logits = logits_of(self._callable[0], inputs)
        loss = self.supervised(logits, targets)
        if advice is None or self.distil is None:
            return loss
        taught = distillation(self.answer(logits), advice, self.distil.temperature)
        return (1 - self.distil.share) * loss + self.distil.share * taught

    def supervised(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Give the loss against the labels, in float32."""
        return functional.cross_entropy(logits.float(), targets)

    def answer(self, logits: Tensor) -> Tensor:
        """Give the logits (B, C) that count as the answer, after a forward pass."""
        return logits

    def predict(self, inputs: Inputs) -> Tensor:
        """Give the answer to a batch, (B, C), in float32."""
        return self.answer(logits_of(self.model, inputs)).float()

    def head_answers(self) -> list[Tensor]:
        """Give what each explainer head says after a forward pass, (B, C) each; nothing without heads."""
        return []

    def prepare(self, step: int, steps: int) -> None:
        """Get ready for a step, counted from 0."""


class HeadsObjective(Objective):
    """A model with explainer heads and the scaffold that attached them; see `Objective`."""

    def __init__(
        self, model: nn.Module, scaffold: Any, heads: RecipeHeads, distil: RecipeDistillation | None = None
    ) -> None:
        super().__init__(model, distil)
        self.heads, self._scaffold = heads, (scaffold,)  # in a tuple: its parameters are the model's already

    def supervised(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Give the heads' loss against the labels, with the classifier's where the recipe says so."""
        options = self.heads.model_dump(include={"mode", "reduction", "decay", "classifier"})
        # Mixed targets may lie above 1 by a rounding error, which heads refuse.
        loss: Tensor = self._scaffold[0].loss(targets.clamp(0, 1), **options)
        return loss

    def answer(self, logits: Tensor) -> Tensor:
        """Give the classifier's logits where it learns, else the last head's (`finetune`) or the sum (`pretrain`)."""
        scores: Tensor = self._scaffold[0].logits
        return scores

    def head_answers(self) -> list[Tensor]:
        """Give what each head said in the last forward pass, from the first block to the last."""
        return list(self._scaffold[0].head_logits.values())

    def prepare(self, step: int, steps: int) -> None:
        """Move the gates of the warm-up preset."""
        self._scaffold[0].ramp(step, steps)


class Ensemble(nn.Module):
    """Several networks that answer as one teacher, each through its own view."""

    def __init__(self, members: Sequence[nn.Module], views: Sequence[Preprocess]) -> None:
        super().__init__()
        check_that(0 < len(members) == len(views), f"a view for each of {len(members)} teachers", len(views))
        self.members, self.views = nn.ModuleList(members), tuple(views)

    def forward(self, pixels: Tensor) -> Tensor:
        """Give the mean of the members' logits, (N, C), for pixels (N, 3, H, W) in 0..1."""
        inputs = {view: view(pixels).contiguous(memory_format=torch.channels_last) for view in set(self.views)}
        answers = [logits_of(member, inputs[view]) for member, view in zip(self.members, self.views, strict=True)]
        return torch.stack(answers).mean(dim=0)


class ContrastObjective(Objective):
    """A network of features (N, D) that learns which views show the same image; see `Objective`.

    The projector becomes a part of the network under a name of its own, so that optimiser, average and checkpoint have
    it; what a run writes in the end leaves it out.
    """

    def __init__(self, model: nn.Module, features: int, part: RecipeUnlabelled, *, compile: bool = False) -> None:
        first, second = nn.Linear(features, part.hidden), nn.Linear(part.hidden, part.width, bias=False)
        projector = nn.Sequential(first, nn.GELU(), second)
        model.add_module(PROJECTOR.rstrip("."), projector)
        super().__init__(model, compile=compile)
        self.temperature = part.temperature
        self._projector = (projector,)  # in a tuple: its parameters are the model's already

    def forward(self, inputs: Inputs, targets: Tensor, advice: Tensor | None = None) -> Tensor:
        """Give the loss of a batch of views, a scalar: which of all other views shows the same image?"""
        places = functional.normalize(self._projector[0](logits_of(self._callable[0], inputs)).float(), dim=1)
        return contrast(places, self.temperature)


def contrast(places: Tensor, temperature: float) -> Tensor:
    """Give the cross entropy of finding the other view of an image among the views of the batch of all processes.

    Places are directions of this process's views, (2 B, K), rows of length one: first one view of all images, then the
    other. The mean of the scalar over the processes is that of the whole batch.
    """
    shares, rank = [places], 0
    if distributed.is_initialized() and distributed.get_world_size() > 1:
        from torch.distributed.nn.functional import all_gather

        rank = distributed.get_rank()
        # With gradients for the views of the others too.
        shares = list(all_gather(places))  # type: ignore[no-untyped-call]
    rows = torch.arange(len(places), device=places.device)
    first = rank * len(places)
    # Cosines divided by a small temperature need more digits than half precision has.
    with torch.autocast(places.device.type, enabled=False):
        scores = places @ torch.cat(shares).T / temperature
    # A view is no answer to itself.
    scores = scores.masked_fill(functional.one_hot(rows + first, scores.shape[1]).bool(), -torch.inf)
    return functional.cross_entropy(scores, rows.roll(len(places) // 2) + first)
