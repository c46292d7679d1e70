"""Threads take turns with a model: while one explains it, others that explain, run or train it wait."""

from __future__ import annotations

import inspect
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial, wraps
from threading import get_ident
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import _engine_run_backward

from mhex.errors import MhexError, ModelInUseError

_FREE = threading.Condition()
_HOLDERS: dict[int, int] = {}  # the thread that explains, by id of a module or parameter
_BACKWARD = _engine_run_backward.__code__
_PATIENCE = 60.0  # seconds
_PAUSE = 0.0005
_CALLS = ("_call_impl", "forward")  # of a module, as torch and as models name them
_TRAINED = (
    "Another thread changed the model while it was explained, as training does, so the explanation would be of no one "
    "model; explain between two steps, or explain a copy (copy.deepcopy)."
)


@contextmanager
def turn(modules: Sequence[nn.Module], parameters: Sequence[nn.Parameter]) -> Iterator[bool]:
    """Have a model alone; waits while another thread has a part of it.

    Yields:
        False within another turn of this thread with the same model.
    """
    thread = get_ident()
    keys = {id(part) for part in (*modules, *parameters)}
    with _FREE:
        if not _is_free(keys, thread) and thread in _HOLDERS.values():  # two such threads could wait for each other
            raise ModelInUseError(
                "Another thread explains a model that is wanted while this thread explains another one."
            )
        _FREE.wait_for(lambda: _is_free(keys, thread))
        fresh = keys - _HOLDERS.keys()
        _HOLDERS.update(dict.fromkeys(fresh, thread))
    try:
        yield bool(fresh)
    finally:
        with _FREE:
            for key in fresh:
                del _HOLDERS[key]
            _FREE.notify_all()


@contextmanager
def others_wait(modules: Sequence[nn.Module], parameters: Sequence[nn.Parameter]) -> Iterator[None]:
    """Let other threads that run the model, or take gradients of its parameters, wait until the turn is over.

    Only where there are other threads. What they are doing with the model right now is waited for. Gradients on other
    devices than the CPU are taken by a thread that this one needs too and must not wait; they would be lost, so that
    is refused.

    Raises:
        ModelInUseError: Such gradients were taken meanwhile, or another thread does not come out of the model.
    """
    if threading.active_count() == 1:
        yield
        return
    lost = threading.Event()
    with ExitStack() as stack:
        for module in modules:
            if not isinstance(module, torch.jit.ScriptModule):
                stack.callback(module.register_forward_pre_hook(_wait_to_run).remove)
        for parameter in parameters:
            if parameter.requires_grad:
                react = partial(_wait, id(parameter)) if parameter.is_cpu else lost.set
                stack.enter_context(_gradient_hook(parameter, react))
        _wait_for_calls({id(part) for part in (*modules, *parameters)})
        yield
    if lost.is_set():
        raise ModelInUseError(_TRAINED)


@contextmanager
def unchanged(modules: Sequence[nn.Module], parameters: Sequence[nn.Parameter]) -> Iterator[None]:
    """Refuse a result if another thread changed weights or modes meanwhile. To be entered when all is set.

    Raises:
        ModelInUseError: It did; also in the place of an error of torch that came of it.
    """
    if threading.active_count() == 1:
        yield
        return

    def state() -> list[Any]:
        return [(p._version, p.requires_grad) for p in parameters] + [module.training for module in modules]

    before = state()
    try:
        yield
    except (RuntimeError, MhexError) as error:
        if state() != before:
            raise ModelInUseError(_TRAINED) from error
        raise
    if state() != before:
        raise ModelInUseError(_TRAINED)


def of_this_thread(hook: Callable[..., Any]) -> Callable[..., Any]:
    """A hook that looks at calls of the thread that made it, and lets those of others pass."""
    thread = get_ident()

    @wraps(hook)
    def bound(*args: Any, **kwargs: Any) -> Any:
        return hook(*args, **kwargs) if get_ident() == thread else None

    return bound


class Shared:
    """A setting of the whole process that several threads may want at once: made by the first, undone by the last.

    Args:
        make: Makes the context in which the setting holds.
    """

    def __init__(self, make: Callable[[], AbstractContextManager[Any]]) -> None:
        self.make, self.users, self.lock, self.undo = make, 0, threading.Lock(), ExitStack()

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Have the setting for a while."""
        with self.lock:
            if not self.users:
                self.undo.enter_context(self.make())
            self.users += 1
        try:
            yield
        finally:
            with self.lock:
                self.users -= 1
                if not self.users:
                    self.undo.close()


def _is_free(keys: set[int], thread: int) -> bool:
    return all(_HOLDERS.get(key, thread) == thread for key in keys)


def _wait(key: int) -> None:
    thread = get_ident()
    if _HOLDERS.get(key, thread) != thread:
        with _FREE:
            _FREE.wait_for(lambda: _is_free({key}, thread))


def _wait_for_calls(keys: set[int]) -> None:
    """Wait until all other threads are outside of the model and of its backward passes, or wait here themselves."""
    until = time.monotonic() + _PATIENCE
    while any(_is_inside(frame, keys) for thread, frame in sys._current_frames().items() if thread != get_ident()):
        if time.monotonic() > until:
            raise ModelInUseError(
                f"Another thread has run the model for {_PATIENCE:g} seconds without an end; explain a copy "
                "(copy.deepcopy)."
            )
        time.sleep(_PAUSE)


def _is_inside(frame: FrameType | None, keys: set[int]) -> bool:
    """Whether the calls of a thread, the innermost first, are in the model or take gradients of its parameters."""
    while frame is not None:
        code = frame.f_code
        if code in _WAITING:
            return False
        if code is _BACKWARD:
            return _reaches(frame.f_locals.get("t_outputs", ()), keys)
        if code.co_name in _CALLS and id(frame.f_locals.get("self")) in keys:
            return True
        frame = frame.f_back
    return False


def _reaches(outputs: Sequence[Tensor], keys: set[int]) -> bool:
    """Whether gradients of outputs are taken through to one of the parameters."""
    nodes, seen = [output.grad_fn for output in outputs], set()
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if id(getattr(node, "variable", None)) in keys:
            return True
        nodes += [below for below, _ in node.next_functions]
    return False


# Code in which a thread waits for its turn: whatever it does above, it does not go on.
_WAITING = frozenset((_wait.__code__, inspect.unwrap(turn).__code__))


def _wait_to_run(module: nn.Module, args: tuple[Any, ...]) -> None:
    # What a backward pass recomputes may run on a thread of torch that the holder waits for.
    if torch._C._current_graph_task_id() == -1:
        _wait(id(module))


@contextmanager
def _gradient_hook(parameter: nn.Parameter, react: Callable[[], None]) -> Iterator[None]:
    """Call a function before a gradient is added to that of a parameter."""

    def hook(gradient: Tensor) -> None:
        react()

    bare = parameter._backward_hooks is None
    handle = parameter.register_hook(hook)  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        handle.remove()
        if bare:
            parameter._backward_hooks = None
