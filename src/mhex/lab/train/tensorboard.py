"""TensorBoard: what a run tells while it goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mhex.errors import require

FOLDER = "tensorboard"


class Diary:
    """Scalars for TensorBoard, written by the main process alone.

    Args:
        out: Folder of the run.
        step: Steps that are done; what was written of later ones before a break is taken back.
        active: Whether to write at all.
    """

    def __init__(self, out: Path, step: int, *, active: bool = True) -> None:
        self._writer: Any = None
        if active:
            require("tensorboard", "train")
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(log_dir=str(out / FOLDER), purge_step=step + 1 if step else None)

    def note(self, step: int, **values: float) -> None:
        """Write values of a step; a name with two underscores gives a group, ``validation__loss``."""
        if self._writer is not None:
            for name, value in values.items():
                self._writer.add_scalar(name.replace("__", "/"), value, step)

    def flush(self) -> None:
        """Have everything written."""
        if self._writer is not None:
            self._writer.flush()

    def close(self) -> None:
        """Finish."""
        if self._writer is not None:
            self._writer.close()
