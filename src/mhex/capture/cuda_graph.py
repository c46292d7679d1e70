"""Recording work on a GPU: batches of the same shape repeat it as one CUDA graph, without the time of the host."""

import threading
import traceback
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from contextlib import ExitStack
from dataclasses import fields, replace
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from mhex.capture.anatomy import Guest
from mhex.capture.batch import Batch
from mhex.capture.guard import untouched
from mhex.capture.inventory import HOOKS, Inventory, inventory_of
from mhex.capture.precision import ambient_precision
from mhex.capture.threads import THIS_THREAD, is_recording

T = TypeVar("T")
Work = Callable[[dict[str, Tensor]], tuple[dict[str, Tensor], T]]
_MOST = 8  # recordings of an explainer: each keeps the memory of a pass
_BEFORE = 2  # batches of a shape that are explained before one is recorded
_MANY = 1000  # kinds of calls that are counted


def tensors_of(batch: Batch) -> dict[str, Tensor]:
    """Everything in a batch that differs from one to the next, by name."""
    parts: dict[str, Any] = {f"args {place}": value for place, value in enumerate(batch.args)}
    parts |= {f"kwargs {name}": value for name, value in batch.kwargs.items()}
    parts |= {field.name: getattr(batch, field.name) for field in fields(batch)}
    return {name: value for name, value in parts.items() if isinstance(value, Tensor)}


def with_tensors(batch: Batch, tensors: Mapping[str, Tensor]) -> Batch:
    """The same batch with these in the place of what `tensors_of` gives."""
    changes: dict[str, Any] = {field.name: tensors[field.name] for field in fields(batch) if field.name in tensors}
    changes["args"] = tuple(tensors.get(f"args {place}", value) for place, value in enumerate(batch.args))
    changes["kwargs"] = {name: tensors.get(f"kwargs {name}", value) for name, value in batch.kwargs.items()}
    return replace(batch, **changes)


def settings_of_arithmetic() -> tuple[Hashable, ...]:
    """Settings of the process that decide how a GPU computes, and so must be those of the recording."""
    backends = torch.backends.cuda.matmul
    tf32 = (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32, torch.backends.cudnn.enabled)
    reduced = (backends.allow_bf16_reduced_precision_reduction, torch.are_deterministic_algorithms_enabled())
    return *ambient_precision(), *tf32, *reduced


def random_state(model: nn.Module) -> bytes:
    """The state of the GPU's generator, which a model that draws random numbers changes; empty on other devices."""
    device = inventory_of(model, check=False).device
    if device.type != "cuda" or is_recording():
        return b""
    return bytes(torch.cuda.get_rng_state(device).tolist())


def has_hooks(model: nn.Module, inventory: Inventory) -> bool:
    """Whether hooks of the user's would not be called if a pass were replayed; those of heads need not be."""
    if torch_module._global_forward_hooks or torch_module._global_forward_pre_hooks or any(inventory.hooks):
        return True
    hooks = (hook for name in HOOKS for hook in getattr(model, name).values())
    return any(not isinstance(getattr(hook, "__self__", None), Guest) for hook in hooks)


class Recording(Generic[T]):
    """Work on tensors of one shape, recorded; calls copy their inputs in, replay, and copy the results out."""

    def __init__(self, work: Work[T], inputs: Mapping[str, Tensor]) -> None:
        self.inputs = {name: tensor.detach().clone() for name, tensor in inputs.items()}
        self.graph, self.lock = torch.cuda.CUDAGraph(), threading.Lock()
        self.done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self.device = next(iter(self.inputs.values())).device
        with ExitStack() as recording, torch.cuda.device(self.device):
            recording.callback(setattr, THIS_THREAD, "records", False)
            THIS_THREAD.records = True
            side, usual = torch.cuda.Stream(), torch.cuda.current_stream()  # type: ignore[no-untyped-call]
            side.wait_stream(usual)
            with torch.cuda.stream(side), ExitStack() as asking:
                # Also after an error: the inputs are given back then, and the work may still be reading them.
                asking.callback(usual.wait_stream, side)
                asking.callback(torch.cuda.set_sync_debug_mode, torch.cuda.get_sync_debug_mode())
                torch.cuda.set_sync_debug_mode("error")  # an operation that would wait for the device is an error
                work(self.inputs)
            with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
                self.outputs, self.facts = work(self.inputs)

    def __call__(self, inputs: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], T]:
        """Results for other inputs of the same shapes, and what else the work returned when it was recorded."""
        with self.lock, torch.cuda.device(self.device):  # another thread may call it, on another stream
            torch.cuda.current_stream().wait_event(self.done)
            for name, tensor in inputs.items():
                self.inputs[name].copy_(tensor, non_blocking=True)
            self.graph.replay()
            outputs = {name: tensor.clone() for name, tensor in self.outputs.items()}
            self.done.record()
        return outputs, self.facts


class Recordings(Generic[T]):
    """Recordings of one explainer, by what is the same in all calls of each."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.calls: Counter[Hashable] = Counter()
        self.refusals: dict[Hashable, str] = {}  # why something was not recorded
        self.graphs: dict[Hashable, Recording[T]] = {}
        self.inventory: Inventory | None = None

    def get(
        self, key: Hashable, model: nn.Module, inventory: Inventory, work: Work[T], inputs: Mapping[str, Tensor]
    ) -> Recording[T] | None:
        """The recording for a key, made if it is time for it; None if there is none."""
        with self.lock:
            if inventory is not self.inventory or len(self.calls) > _MANY:  # the model is another
                self.clear()
                self.inventory = inventory
            self.calls[key] += 1
            due = self.calls[key] > _BEFORE and len(self.graphs) < _MOST
            if due and key not in self.graphs and key not in self.refusals:
                self._record(key, model, work, inputs)
            return self.graphs.get(key)

    def _record(self, key: Hashable, model: nn.Module, work: Work[T], inputs: Mapping[str, Tensor]) -> None:
        try:
            with untouched(model):
                self.graphs[key] = Recording(work, inputs)
        except RuntimeError as error:
            waits = "capture" in str(error) or "synchroniz" in str(error)
            if not waits and not isinstance(error, torch.OutOfMemoryError):
                raise
            places = [frame for frame in traceback.extract_tb(error.__traceback__) if "mhex" in frame.filename]
            self.refusals[key] = f"{str(error).splitlines()[0]}, {places[-1].name} ({places[-1].line})"

    def clear(self) -> None:
        """Forget everything, and give the memory back."""
        for entries in (self.calls, self.refusals, self.graphs):
            entries.clear()
