"""Maps on disk, to be judged again by other metrics."""

from __future__ import annotations

import hashlib
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from mhex._files import write_tensors, writing
from mhex.bench.plan import Judged
from mhex.capture import Outputs
from mhex.errors import ArgumentError


class Cache:
    """Maps by model, task, method, options, seed, samples and classes.

    Args:
        folder: Where they are kept.
        model: Fingerprint of the weights, so that another model's maps are not taken for its own.
        task: What its outputs were taken for.
        outputs: Whether they are logits or probabilities.
    """

    def __init__(self, folder: Path, model: str, task: str, outputs: Outputs = "logits") -> None:
        self.folder, self.model, self.task = folder, model, task if outputs == "logits" else f"{task} by {outputs}"

    def _path(self, method: Judged, inputs: tuple[str, ...], classes: Tensor, seed: int) -> Path:
        told = repr((self.model, self.task, method.name, method.written, seed, inputs, classes.tolist()))
        return self.folder / f"{method.name}-{hashlib.sha256(told.encode()).hexdigest()[:24]}.safetensors"

    def get(self, method: Judged, inputs: tuple[str, ...], classes: Tensor, seed: int) -> Tensor | None:
        """The maps of a batch, by digests of its samples; None if they are not there."""
        path = self._path(method, inputs, classes, seed)
        if not path.exists():
            return None
        try:
            tensors = load_file(path)
            if "scores" not in tensors or len(tensors["scores"]) != len(inputs):
                raise SafetensorError(f"it holds no map of each of {len(inputs)} samples")
            return tensors["scores"].to(classes.device)
        except (OSError, SafetensorError) as error:
            told = f"Expected maps in {str(path)!r}, but the file is damaged ({error})"
            raise ArgumentError(f"{told}; delete it, and they are made again.") from error

    def put(self, method: Judged, inputs: tuple[str, ...], classes: Tensor, seed: int, scores: Tensor) -> None:
        """Keep the maps of a batch; a file is written whole or not at all."""
        path = self._path(method, inputs, classes, seed)
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        write_tensors({"scores": scores, "classes": classes}, path)
