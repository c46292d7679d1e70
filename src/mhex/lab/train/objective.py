"""What a step minimises: the seam between the loop, a model, its explainer heads and its teachers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from mhex.errors import ArgumentError
from mhex.inputs.preprocess import Preprocess
from mhex.lab.config.recipe import DistilPart, HeadsPart
from mhex.lab.train.samples import Inputs


def smoothed_targets(classes: int, amount: float, group_of: Sequence[int] | None = None) -> Tensor:
    """Label smoothing as a table: row c is the target of a photo of class c.

    Args:
        classes: Number of classes C.
        amount: Share of the probability that is spread.
        group_of: Group of each class. When given, the share is spread over the classes of the same group alone, so
            that smoothing never says a cat might be a dog.

    Returns:
        (C, C), float32, every row sums to one.

    Raises:
        ArgumentError: The amount is not in [0, 1), or ``group_of`` has the wrong length.
    """
    if not 0 <= amount < 1:
        raise ArgumentError(f"The amount of label smoothing should lie in [0, 1), not {amount}.")
    groups = torch.zeros(classes) if group_of is None else torch.tensor(list(group_of))
    if len(groups) != classes:
        raise ArgumentError(f"group_of should name the group of each of the {classes} classes, not of {len(groups)}.")
    same = (groups[:, None] == groups[None, :]).float()
    return (1 - amount) * torch.eye(classes) + amount * same / same.sum(dim=1, keepdim=True)


def soft_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross entropy against class probabilities.

    Args:
        logits: (N, C).
        targets: Rows that sum to one, (N, C).

    Returns:
        Mean over the batch, a scalar in float32.
    """
    return -(targets * functional.log_softmax(logits.float(), dim=1)).sum(dim=1).mean()


def distillation(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Kullback-Leibler divergence of the student from the teacher, both softened (Hinton et al. 2015).

    Args:
        student: Logits, (N, C).
        teacher: Logits, (N, C).
        temperature: Divides both; the result is multiplied by its square, which keeps gradients of one size.

    Returns:
        Mean over the batch, a scalar in float32.
    """
    if temperature <= 0:
        raise ArgumentError(f"The temperature of distillation should be positive, not {temperature}.")
    target = functional.log_softmax(teacher.float() / temperature, dim=1)
    answer = functional.log_softmax(student.float() / temperature, dim=1)
    return functional.kl_div(answer, target, reduction="batchmean", log_target=True) * temperature**2


def logits_of(model: nn.Module, inputs: Inputs) -> Tensor:
    """A model's logits (B, C), whether it returns a tensor or, as in Hugging Face, something with ``logits``."""
    output = model(**inputs) if isinstance(inputs, dict) else model(inputs)
    logits: Tensor = output if isinstance(output, Tensor) else output.logits
    return logits


class Objective(nn.Module):
    """A model with its loss as one module, so that every tensor the loss reads lies behind the module's output.

    A data-parallel wrapper looks for used parameters behind the output alone; explainer heads are not in what the model
    returns.

    Args:
        model: The network.
        distil: Share and temperature of the teachers' loss.
        compile: Whether to compile the network.
    """

    def __init__(self, model: nn.Module, distil: DistilPart | None = None, *, compile: bool = False) -> None:
        super().__init__()
        self.model = model
        self.distil = distil
        # In a tuple, so that the compiled form is not a second submodule with the same parameters.
        self._callable: tuple[Any] = (torch.compile(model) if compile else model,)

    def forward(self, inputs: Inputs, targets: Tensor, advice: Tensor | None = None) -> Tensor:
        """The loss of a batch, a scalar.

        Args:
            inputs: What the model takes.
            targets: Class probabilities, (B, C).
            advice: The teachers' logits, (B, C).
        """
        logits = logits_of(self._callable[0], inputs)
        loss = self.supervised(logits, targets)
        if advice is None or self.distil is None:
            return loss
        taught = distillation(self.answer(logits), advice, self.distil.temperature)
        return (1 - self.distil.share) * loss + self.distil.share * taught

    def supervised(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The loss against the labels."""
        return soft_cross_entropy(logits, targets)

    def answer(self, logits: Tensor) -> Tensor:
        """The logits (B, C) that count as the answer, after a forward pass."""
        return logits

    def predict(self, inputs: Inputs) -> Tensor:
        """The answer to a batch, (B, C), in float32."""
        return self.answer(logits_of(self.model, inputs)).float()

    def head_answers(self) -> list[Tensor]:
        """What each explainer head says after a forward pass, (B, C) each; none without heads."""
        return []

    def prepare(self, step: int, steps: int) -> None:
        """Called before each step, counted from 0."""


class HeadsObjective(Objective):
    """A model with explainer heads; see `Objective`.

    Args:
        model: The network, with heads attached.
        scaffold: What `mhex.attach` gave.
        heads: Settings of the loss.
        distil: Share and temperature of the teachers' loss.
    """

    def __init__(self, model: nn.Module, scaffold: Any, heads: HeadsPart, distil: DistilPart | None = None) -> None:
        super().__init__(model, distil)
        self.heads = heads
        self._scaffold = (scaffold,)  # in a tuple: its parameters are the model's already

    def supervised(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The heads' loss against the labels, with the classifier's where the recipe says so."""
        heads = self.heads
        loss: Tensor = self._scaffold[0].loss(
            # Mixed targets may lie above 1 by a rounding error, which heads refuse.
            targets.clamp(0, 1),
            mode=heads.mode,
            reduction=heads.reduction,
            decay=heads.decay,
            classifier=heads.classifier,
        )
        return loss

    def answer(self, logits: Tensor) -> Tensor:
        """The classifier where it learns too; else the last head (`finetune`) or the decayed sum (`pretrain`)."""
        scores: Tensor = self._scaffold[0].logits
        return scores

    def head_answers(self) -> list[Tensor]:
        """What each head said in the last forward pass, from the first block to the last."""
        return list(self._scaffold[0].head_logits.values())

    def prepare(self, step: int, steps: int) -> None:
        """Move the gates of the warm-up preset."""
        self._scaffold[0].ramp(step, steps)


def attach_heads(model: nn.Module, classes: int, heads: HeadsPart) -> Any:
    """Attach explainer heads to a model in place, with the settings of a recipe; those left out are not passed."""
    from mhex import attach

    scaffold = attach(model, classes, **attach_arguments(heads))
    for name, value in answering(heads).items():
        setattr(scaffold.heads, name, value)
    return scaffold


def answering(heads: HeadsPart) -> dict[str, Any]:
    """What decides which part of a model with heads answers, under the names that `mhex.heads` knows it by."""
    return {"mode": heads.mode, "decay": heads.decay, "joined": heads.classifier}


def attach_arguments(heads: HeadsPart) -> dict[str, Any]:
    """The arguments of `mhex.attach` that a recipe gives, as plain values; cards carry them too."""
    optional = {
        "coupling": heads.coupling,
        "gate_target": heads.gate_target,
        "relu": heads.relu,
        "exclude_special": heads.exclude_special,
    }
    where = heads.where if isinstance(heads.where, str) else list(heads.where)
    given = {name: value for name, value in optional.items() if value is not None}
    return {"where": where, "preset": heads.preset, **given}


class Ensemble(nn.Module):
    """Several networks that answer as one teacher, each through its own view.

    Args:
        members: The networks.
        views: The view of each network.
    """

    def __init__(self, members: Sequence[nn.Module], views: Sequence[Preprocess]) -> None:
        super().__init__()
        if len(members) != len(views) or not members:
            raise ArgumentError(f"Each teacher needs a view, and {len(members)} teachers with {len(views)} views came.")
        self.members = nn.ModuleList(members)
        self.views = tuple(views)

    def forward(self, pixels: Tensor) -> Tensor:
        """Mean of the members' logits, (N, C), for pixels (N, 3, H, W) in 0..1."""
        inputs = {view: view(pixels).contiguous(memory_format=torch.channels_last) for view in set(self.views)}
        answers = [logits_of(member, inputs[view]) for member, view in zip(self.members, self.views, strict=True)]
        return torch.stack(answers).mean(dim=0)
