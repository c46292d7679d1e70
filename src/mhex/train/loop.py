"""One training loop for every model of the recipes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from timm.optim import create_optimizer_v2
from timm.utils import ModelEmaV3
from torch import Tensor, nn

from mhex._progress import track
from mhex.errors import ArgumentError
from mhex.train.augment import Augment, augment, mix
from mhex.train.losses import distillation, smoothed_targets, soft_cross_entropy
from mhex.train.view import View


@dataclass(frozen=True)
class Schedule:
    """Settings of one run of the loop.

    Attributes:
        epochs: Passes over the photos.
        batch: Photos per step.
        optimizer: A name that timm's optimizer factory knows, such as ``"adamw"`` or ``"sgd"`` (Nesterov).
        rate: Highest learning rate, reached after the warm-up and lowered along a half cosine to zero.
        decay: Weight decay (not applied to biases, norms and position embeddings).
        warmup: Share of the steps that raise the rate.
        ema: Decay of the running average of the weights, which is what the loop returns.
        smoothing: Amount of label smoothing.
        clip: Largest norm of the gradient.
        distil: Share of the distillation loss, the rest being cross entropy; used when there is a teacher.
        temperature: Temperature of distillation.
        compile: Whether to compile the network; pays for long runs on a GPU.
    """

    epochs: int
    batch: int
    optimizer: str
    rate: float
    decay: float
    warmup: float = 0.05
    ema: float = 0.999
    smoothing: float = 0.1
    clip: float = 1.0
    distil: float = 0.8
    temperature: float = 2.0
    compile: bool = False


class Ensemble(nn.Module):
    """Several networks that answer as one teacher, each through its own view.

    Args:
        members: The networks.
        views: The view of each network.
    """

    def __init__(self, members: Sequence[nn.Module], views: Sequence[View]) -> None:
        super().__init__()
        if len(members) != len(views) or not members:
            raise ArgumentError(f"Each teacher needs a view, and {len(members)} teachers with {len(views)} views came.")
        self.members = nn.ModuleList(members)
        self.views = tuple(views)

    def forward(self, pixels: Tensor) -> Tensor:
        """Mean of the members' logits, (N, C), for pixels (N, 3, H, W) in 0..1."""
        inputs = {view: view(pixels).contiguous(memory_format=torch.channels_last) for view in set(self.views)}
        answers = [member(inputs[view]) for member, view in zip(self.members, self.views, strict=True)]
        return torch.stack(answers).mean(dim=0)


def learning_rate(step: int, steps: int, warmup: float) -> float:
    """Factor of the learning rate: a straight rise over the first ``warmup * steps``, then a half cosine to zero."""
    rise = max(1, round(warmup * steps))
    if step < rise:
        return (step + 1) / rise
    return 0.5 * (1 + math.cos(math.pi * (step - rise) / max(1, steps - rise)))


def batches(count: int, batch: int, steps: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Row numbers of ``steps`` batches, (batch,) each, from one shuffled pass over the photos after the other."""
    waiting = torch.empty(0, dtype=torch.long, device=generator.device)
    for _ in range(steps):
        while len(waiting) < batch:
            waiting = torch.cat([waiting, torch.randperm(count, generator=generator, device=generator.device)])
        yield waiting[:batch]
        waiting = waiting[batch:]


def fit(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    classes: int,
    schedule: Schedule,
    changes: Augment,
    view: View,
    *,
    seed: int,
    teacher: nn.Module | None = None,
    group_of: Sequence[int] | None = None,
    progress: bool = False,
    report: Callable[[str], None] | None = None,
) -> nn.Module:
    """Train a classifier on photos that are held on the device as a whole.

    Args:
        model: The network; it is changed in place and ends with the weights of the last step.
        images: (N, 3, H, W), uint8.
        labels: (N,), int64.
        classes: Number of classes C.
        schedule: Length, optimiser and losses.
        changes: Augmentation.
        view: What the network sees of an augmented photo.
        seed: Seed of everything random in the loop.
        teacher: Takes the same augmented photos, (N, 3, canvas, canvas) in 0..1, and gives logits (N, C).
        group_of: Group of each class, for smoothing within groups.
        progress: Whether to draw a progress bar.
        report: Called with a line about the loss, about twenty times per run.

    Returns:
        The running average of the network, in evaluation mode, on the training device.

    Raises:
        ArgumentError: Photos and labels differ in number.
    """
    if len(images) != len(labels) or len(images) == 0:
        raise ArgumentError(f"Each photo needs one label, and {len(images)} photos with {len(labels)} labels came.")
    accelerator = Accelerator(mixed_precision="bf16" if torch.cuda.is_available() else "no")
    set_seed(seed)
    device = accelerator.device
    generator = torch.Generator(device=device).manual_seed(seed)
    # Convolutions in half precision run on the matrix units without copies only in this layout.
    model = model.to(device, memory_format=torch.channels_last).train()  # type: ignore[call-overload]
    average = ModelEmaV3(model, decay=schedule.ema, use_warmup=True)
    optimizer = create_optimizer_v2(
        model, opt=schedule.optimizer, lr=schedule.rate, weight_decay=schedule.decay, momentum=0.9
    )
    steps = schedule.epochs * max(1, len(images) // schedule.batch)
    rates = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: learning_rate(step, steps, schedule.warmup))
    optimizer = accelerator.prepare_optimizer(optimizer)
    forward = torch.compile(model) if schedule.compile else model
    if teacher is not None:
        teacher = teacher.to(device, memory_format=torch.channels_last).eval()  # type: ignore[call-overload]
    images, labels = images.to(device), labels.to(device)
    table = smoothed_targets(classes, schedule.smoothing, group_of).to(device)
    rows = batches(len(images), schedule.batch, steps, generator)
    for step in track(range(steps), "training", progress):
        chosen = next(rows)
        with torch.no_grad():
            pixels, targets = mix(
                augment(images[chosen], changes, generator), table[labels[chosen]], changes, generator
            )
            inputs = view(pixels).contiguous(memory_format=torch.channels_last)
        with accelerator.autocast():
            logits = forward(inputs)
            with torch.no_grad():
                advice = None if teacher is None else teacher(pixels)
        loss = soft_cross_entropy(logits, targets)
        if advice is not None:
            loss = (1 - schedule.distil) * loss + schedule.distil * distillation(logits, advice, schedule.temperature)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), schedule.clip)
        optimizer.step()
        rates.step()
        optimizer.zero_grad()
        average.update(model, step=step)
        if report is not None and ((step + 1) % max(1, steps // 20) == 0 or step == 0):
            report(f"step {step + 1} of {steps}, loss {loss.item():.4f}")
    shadow: nn.Module = average.module
    return shadow.eval()
