"""One training loop for every recipe: images or texts, one process or many, from the start or from anywhere."""

import math
import os
import time
from collections.abc import Callable
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedDataParallelKwargs, GradientAccumulationPlugin
from torch import Tensor, nn

from mhex._progress import track
from mhex.errors import ArgumentError, MhexError
from mhex.lab.config.recipe import TrainingRecipe
from mhex.lab.train.checkpoint import Progress, latest_checkpoint, load_checkpoint, save_checkpoint
from mhex.lab.train.evaluate import loss_and_accuracy
from mhex.lab.train.objective import Ensemble, Objective
from mhex.lab.train.optimiser import PROJECTOR, Average, learning_mode, make_optimizer, rate_factor
from mhex.lab.train.samples import Feed, TrainingBatch, derive, epoch_order

LOGS = "tensorboard"
LOGS_PER_EPOCH = 20
# Variables by which accelerate would split a network over processes; checkpoints and heads need it whole.
SHARDED = [f"ACCELERATE_USE_{kind}" for kind in ("FSDP", "DEEPSPEED", "MEGATRON_LM", "PARALLELISM_CONFIG")]


class DivergedError(MhexError, ArithmeticError):
    """The loss is no number any more."""


@dataclass(frozen=True)
class Pace:
    """How often a run writes, and where it talks."""

    steps: int | None = None  # a checkpoint after so many steps; None for none but those by time and epoch
    seconds: float = 600.0  # a checkpoint after so many seconds
    progress: bool = False  # whether to draw a progress bar
    say: Callable[[str], None] = field(default=lambda line: None)  # takes lines about the progress


def make_accelerator(precision: str) -> Accelerator:
    """Make the accelerator of a run, on a GPU where there is one; refuse what the environment cannot do."""
    if sharded := [name for name in SHARDED if os.environ.get(name, "false").lower() in ("true", "1")]:
        words = f"{sharded[0]} is set, and a network is trained whole in every process"
        raise ArgumentError(f"{words}: leave it out, or start with `accelerate launch --multi_gpu`.")
    if precision == "fp16" and not torch.cuda.is_available():
        raise ArgumentError("train.precision: fp16 needs a GPU, and there is none; take bf16, no or auto.")
    if precision == "auto":
        precision = "bf16" if torch.cuda.is_available() else "no"
    # Accelerate keeps the precision of the first run of a process for all later ones, unless it is told to forget it.
    AcceleratorState._reset_state()
    # Which parameters a loss reaches never changes within a run, and a host's classifier may not be among them.
    handlers = [DistributedDataParallelKwargs(static_graph=True)]
    # Named here, since accelerate takes from the environment what nobody names, and the recipe alone decides.
    accelerator = Accelerator(
        mixed_precision=precision,
        gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=1),
        dynamo_backend="no",
        kwargs_handlers=handlers,
    )
    started = int(os.environ.get("WORLD_SIZE", "1"))
    if accelerator.num_processes != started:
        words = f"{started} processes were started, and accelerate knows of {accelerator.num_processes}"
        raise ArgumentError(f"{words}: without GPUs, set ACCELERATE_USE_CPU=true for all of them.")
    return accelerator


class Loop:
    """A run of a recipe in a folder.

    The objective, which is changed in place, learns from the feed and is chosen by the validation; the table has the
    target of each class, (C, C), and the teacher gives logits (N, C) for the same pixels.
    """

    def __init__(
        self,
        recipe: TrainingRecipe,
        out: Path,
        accelerator: Accelerator,
        objective: Objective,
        feed: Feed,
        validation: Feed | None,
        table: Tensor,
        teacher: Ensemble | None = None,
    ) -> None:
        self.recipe, self.out, self.accelerator = recipe, out, accelerator
        self.feed, self.validation = feed, validation
        settings, device = recipe.training, accelerator.device
        slices = accelerator.num_processes * settings.accumulate
        if settings.batch % slices:
            words = f"processes times train.accumulate, {accelerator.num_processes} x {settings.accumulate}"
            raise ArgumentError(f"train.batch should be a multiple of {words}, not {settings.batch}.")
        self.share = settings.batch // slices
        # Convolutions in half precision run on the matrix units without copies only in this layout.
        self.objective: Objective = objective.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.model: nn.Module = objective.model
        self.table = table.to(device)
        self.teacher = None if teacher is None else teacher.to(device).eval()
        self.optimizer = make_optimizer(self.model, settings)
        self.average = None if settings.ema is None else Average(self.model, settings.ema)
        self.per_epoch = max(1, len(feed) // settings.batch)
        self.steps = settings.epochs * self.per_epoch
        self.progress = Progress()
        self._logs: Any = None  # of the main process while it runs

    def resume(self) -> bool:
        """Take over the newest checkpoint, if there is one."""
        folder = latest_checkpoint(self.out)
        if folder is not None:
            self.progress = load_checkpoint(folder, self.recipe, self.model, self.optimizer, self.average)
        return folder is not None

    def weights(self) -> dict[str, Tensor]:
        """Give what is judged and written: the running average where there is one, else the model's own weights."""
        state = self.model.state_dict() if self.average is None else self.average.state
        return {name: value for name, value in state.items() if not name.startswith(PROJECTOR)}

    @property
    def stopped(self) -> bool:
        """Whether the validation has not improved for as long as the recipe waits."""
        stop = self.recipe.training.early_stopping
        return stop is not None and self.progress.waited >= stop.patience

    def run(self, pace: Pace) -> Progress:
        """Train from where the run stands to its end; the newest checkpoint then holds the best weights."""
        wrapped = self.accelerator.prepare_model(self.objective)
        stepper = self.accelerator.prepare_optimizer(self.optimizer)
        if self.accelerator.scaler is not None and self.progress.scaler:
            self.accelerator.scaler.load_state_dict(self.progress.scaler)
        # Nobody may write before everybody has read the checkpoint.
        self.accelerator.wait_for_everyone()
        main = self.accelerator.is_main_process
        if main:
            from torch.utils.tensorboard import SummaryWriter

            # What was written of later steps before a break is taken back.
            purge = self.progress.step + 1 if self.progress.step else None
            self._logs = SummaryWriter(log_dir=str(self.out / LOGS), purge_step=purge)
        begin, latest_save, before = time.monotonic(), time.monotonic(), self.progress.seconds
        sums = torch.tensor(self.progress.loss_sum, dtype=torch.float64, device=self.accelerator.device)
        remaining = [] if self.stopped else range(self.progress.step, self.steps)
        order, epoch = None, -1
        with self._logs or nullcontext(), closing(track(remaining, "training", pace.progress and main)) as bar:  # type: ignore[type-var]
            for step in bar:
                if order is None or step // self.per_epoch != epoch:
                    epoch = step // self.per_epoch
                    order = epoch_order(len(self.feed), self.recipe.training.batch, self.recipe.seed, epoch)
                    learning_mode(self.model, self.recipe.training.freeze)
                loss = self.step(step, order[step % self.per_epoch], wrapped, stepper)
                sums += loss
                self.progress.step = step + 1
                place = self.progress.step % self.per_epoch
                if place % max(1, self.per_epoch // LOGS_PER_EPOCH) == 0:
                    self._check_loss(loss.item(), step)
                    self._log(loss=loss.item(), rate=self.optimizer.param_groups[0]["lr"])
                ended = place == 0
                waited = time.monotonic() - latest_save > pace.seconds
                due = waited or (pace.steps and self.progress.step % pace.steps == 0)
                if not ended and not (due and main):
                    continue
                self.progress.loss_sum = sums.item()
                self.progress.seconds = before + time.monotonic() - begin
                best = self.end_epoch(epoch, pace) if ended else None
                if ended:
                    sums.zero_()
                if main:
                    self._logs.flush()
                    if self.accelerator.scaler is not None:
                        self.progress.scaler = self.accelerator.scaler.state_dict()
                    parts = (self.progress, self.model, self.optimizer, self.average)
                    save_checkpoint(self.out, self.recipe, *parts, best)
                    latest_save = time.monotonic()
                if self.stopped:
                    break
        self.accelerator.wait_for_everyone()
        return self.progress

    def step(self, step: int, rows: Tensor, wrapped: Any, stepper: Any) -> Tensor:
        """Take a step on this process's part of the batch of some rows; give the loss of the whole batch."""
        settings, seed, rank = self.recipe.training, self.recipe.seed, self.accelerator.process_index
        self.objective.prepare(step, self.steps)
        factor = rate_factor(settings.schedule, step, self.steps, settings.warmup, settings.floor)
        for group in self.optimizer.param_groups:
            group["lr"] = group["highest"] * factor
        total = torch.zeros((), device=self.accelerator.device)
        for piece in range(settings.accumulate):
            begin = (piece * self.accelerator.num_processes + rank) * self.share
            batch = self.feed.varied(rows, slice(begin, begin + self.share), self.table, seed, step)
            torch.manual_seed(derive(seed, "dropout", step, piece, rank))
            # Every slice is summed over the processes: a static graph cannot wait for the last one.
            loss = wrapped(batch.inputs, batch.targets, self.advice(batch)) / settings.accumulate
            self.accelerator.backward(loss)
            total += loss.detach().float()
        if settings.clip is not None:
            self.accelerator.clip_grad_norm_(self.model.parameters(), settings.clip)
        stepper.step()
        stepper.zero_grad()
        if self.average is not None:
            self.average.update(self.model, step)
        reduced: Tensor = self.accelerator.reduce(total, reduction="mean")
        return reduced

    @torch.no_grad()
    def advice(self, batch: TrainingBatch) -> Tensor | None:
        """Ask the teachers about a batch: their logits (B, C), or None where there are none."""
        if self.teacher is None or batch.pixels is None:
            return None
        with self.accelerator.autocast():
            logits: Tensor = self.teacher(batch.pixels)
        return logits

    def end_epoch(self, epoch: int, pace: Pace) -> dict[str, Tensor] | None:
        """Validate, and write the epoch's row; give the weights if they are the best so far."""
        progress = self.progress
        row: dict[str, Any] = {"epoch": epoch + 1, "step": progress.step, "loss": progress.loss_sum / self.per_epoch}
        self._check_loss(row["loss"], progress.step - 1)
        # A loss tells of the weights before its step only.
        state, parameters = self.weights(), dict(self.model.named_parameters())
        finite = torch.stack([value.isfinite().all() for name, value in state.items() if name in parameters]).all()
        words = f"The weights of {self.recipe.name} are no numbers any more after step {progress.step}"
        self._refuse_unless(bool(finite), words)
        best = None
        if self.validation is not None:
            row["validation"] = judged = self.validate(self.validation)
            stop = self.recipe.training.early_stopping
            # Losses are turned round, so that more is better for both.
            score = -judged["loss"] if stop is not None and stop.watch == "loss" else judged["accuracy"]
            progress.waited += 1
            if progress.best is None or score > progress.best:
                progress.best, progress.best_epoch, progress.waited = score, epoch + 1, 0
                best = self.weights()
            self._log(validation__loss=judged["loss"], validation__accuracy=judged["accuracy"])
        self._log(epoch__loss=row["loss"])
        row["seconds"] = round(progress.seconds, 3)
        progress.history.append(row)
        progress.loss_sum = 0.0
        if (epoch + 1) % max(1, self.recipe.training.epochs // 40) == 0 or self.stopped:
            words = f", validation accuracy {row['validation']['accuracy']:.4f}" if "validation" in row else ""
            of = f"{epoch + 1} of {self.recipe.training.epochs}"
            pace.say(f"{self.recipe.name}: epoch {of}, loss {row['loss']:.4f}{words}, {progress.seconds:.0f} s")
        return best

    def validate(self, feed: Feed) -> dict[str, float]:
        """Give loss and accuracy of what would be written, over all processes."""
        accelerator = self.accelerator
        with nullcontext() if self.average is None else self.average.inside(self.model):
            if accelerator.num_processes > 1:  # batch statistics are those of the process that writes
                for buffer in self.model.buffers():
                    torch.distributed.broadcast(buffer, src=0)
            with accelerator.autocast():
                sums = loss_and_accuracy(self.objective, feed, accelerator.process_index, accelerator.num_processes)
        loss, right, count = accelerator.reduce(sums, reduction="sum").tolist()
        return {"loss": loss / count, "accuracy": right / count}

    def _log(self, **values: float) -> None:
        """Write values for TensorBoard; a name with two underscores gives a group, ``validation__loss``."""
        for name, value in values.items() if self._logs else ():
            self._logs.add_scalar(name.replace("__", "/"), value, self.progress.step)

    def _check_loss(self, loss: float, step: int) -> None:
        self._refuse_unless(math.isfinite(loss), f"The loss of {self.recipe.name} is {loss} at step {step + 1}")

    def _refuse_unless(self, finite: bool, words: str) -> None:
        if not finite:
            raise DivergedError(f"{words}: lower train.rate, raise train.warmup or set train.clip.")
