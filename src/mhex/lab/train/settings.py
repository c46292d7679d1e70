"""The machine a run has, and the pace at which it writes and talks."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedDataParallelKwargs, GradientAccumulationPlugin

from mhex.errors import ArgumentError

# Variables by which accelerate would split a network over processes; checkpoints and heads need it whole.
SHARDED = (
    "ACCELERATE_USE_FSDP",
    "ACCELERATE_USE_DEEPSPEED",
    "ACCELERATE_USE_MEGATRON_LM",
    "ACCELERATE_USE_PARALLELISM_CONFIG",
)


@dataclass(frozen=True)
class Pace:
    """How often a run writes, and where it talks.

    Attributes:
        steps: A checkpoint after so many steps; None for none but those by time and epoch.
        seconds: A checkpoint after so many seconds.
        progress: Whether to draw a progress bar.
        say: Takes lines about the progress.
    """

    steps: int | None = None
    seconds: float = 600.0
    progress: bool = False
    say: Callable[[str], None] = field(default=lambda line: None)


def make_accelerator(precision: str) -> Accelerator:
    """The accelerator of a run, on a GPU where there is one.

    Args:
        precision: ``"auto"``, ``"no"``, ``"bf16"`` or ``"fp16"``.

    Raises:
        ArgumentError: fp16 was asked for without a GPU, the environment asks for a way of sharing the network between
            processes that is not supported, or the started processes do not know of each other.
    """
    if sharded := [name for name in SHARDED if os.environ.get(name, "false").lower() in ("true", "1")]:
        raise ArgumentError(
            f"{sharded[0]} is set, and a network is trained whole in every process: leave it out, or start with "
            "`accelerate launch --multi_gpu`."
        )
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
        raise ArgumentError(
            f"{started} processes were started, and accelerate knows of {accelerator.num_processes}: each would train "
            "alone and write into the same folder. Without GPUs, set ACCELERATE_USE_CPU=true for all of them."
        )
    return accelerator
