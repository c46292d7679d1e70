"""Threads take turns with a model: while one explains it, others that explain, run or train it wait."""

import inspect
import os
import sys
import threading
import time
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from threading import get_ident
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import _engine_run_backward

from mhex.capture.operations import nodes_below
from mhex.errors import MhexError, ModelInUseError

_FREE = threading.Condition()
_BACKWARD = _engine_run_backward.__code__
_PATIENCE = 60.0  # seconds that a call of another thread may go on
_PAUSE, _GLANCE = 0.0005, 0.05  # seconds between two looks at other threads, and at the one that is waited for
_CALLS = ("_wrapped_call_impl", "_call_impl", "forward")  # of a module, as torch and as models name them
_COMPILER = os.path.join("torch", "_dynamo", "convert_frame.py")
_TRAINED = (
    "Another thread changed the model while it was explained, as training does, so the explanation would be of no one "
    "model; explain between two steps, or explain a copy (copy.deepcopy)."
)


THIS_THREAD = threading.local()  # `records` while a thread records what a GPU does


def is_recording() -> bool:
    """Whether this thread records what a GPU does, so that nothing can be asked of it."""
    return getattr(THIS_THREAD, "records", False)


class _Holds:
    """Which thread explains what: ids of modules and parameters, and the thread that has them."""

    def __init__(self) -> None:
        self.pairs: list[tuple[frozenset[int], int]] = []

    def __contains__(self, key: object) -> bool:
        return any(key in keys for keys, _ in self.pairs)

    def holder(self, key: int) -> int | None:
        """The thread that has this module or parameter; None if nobody has."""
        return next((thread for keys, thread in self.pairs if key in keys), None)

    def is_free(self, keys: frozenset[int], thread: int) -> bool:
        """Whether no other thread has one of these."""
        return all(owner == thread or keys.isdisjoint(taken) for taken, owner in self.pairs)


_HOLDS = _Holds()


class Shared:
    """A setting of the whole process that several threads may want at once: made by the first, undone by the last."""

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


def of_this_thread(hook: Callable[..., Any]) -> Callable[..., Any]:
    """A hook that looks at calls of the thread that made it, and lets those of others pass."""
    thread = get_ident()

    def bound(*args: Any, **kwargs: Any) -> Any:
        return hook(*args, **kwargs) if get_ident() == thread else None

    return bound


@contextmanager
def turn(keys: frozenset[int]) -> Iterator[bool]:
    """Have a model alone, by ids of its parts, once no other thread has one; False inside a turn of this thread."""
    thread = get_ident()
    with _FREE:
        if not _HOLDS.is_free(keys, thread) and any(owner == thread for _, owner in _HOLDS.pairs):
            raise ModelInUseError(  # two such threads could wait for each other
                "Another thread explains a model that is wanted while this thread explains another one."
            )
        _FREE.wait_for(lambda: _HOLDS.is_free(keys, thread))
        fresh = not any(owner == thread and keys <= taken for taken, owner in _HOLDS.pairs)
        pair = (keys, thread)
        if fresh:
            _HOLDS.pairs = [*_HOLDS.pairs, pair]  # others look at the list without a lock
    try:
        yield fresh
    finally:
        if fresh:
            with _FREE:
                _HOLDS.pairs = [other for other in _HOLDS.pairs if other is not pair]
                _FREE.notify_all()


@contextmanager
def others_wait(
    modules: Sequence[nn.Module], parameters: Sequence[nn.Parameter], keys: frozenset[int]
) -> Iterator[None]:
    """Let other threads that run the model, or take gradients of its parameters, wait until the turn is over.

    `keys` are the ids of the model's modules and parameters.
    What they are doing with the model right now is waited for. Threads that begin meanwhile are watched, which costs
    this one nothing; hooks in the model are needed only where there are other threads already. Gradients on other
    devices than the CPU are taken by a thread that this one needs too and must not wait; they would be lost, so that
    is refused, as is a thread that does not come out of the model.
    """
    loss = threading.Event()
    with ExitStack() as stack:
        stack.enter_context(_new_threads_watched())
        if threading.active_count() > 1:
            for module in modules:
                if not isinstance(module, torch.jit.ScriptModule):
                    stack.callback(module.register_forward_pre_hook(_wait_to_run).remove)
            for parameter in parameters:
                if parameter.requires_grad:
                    react = partial(_wait, id(parameter)) if parameter.is_cpu else loss.set
                    _hook_gradient(stack, parameter, react)
            _wait_for_calls(keys)
        yield
    if loss.is_set():
        raise ModelInUseError(_TRAINED)


@contextmanager
def unchanged(modules: Sequence[nn.Module], parameters: Sequence[nn.Parameter]) -> Iterator[None]:
    """Refuse a result, or an error of torch, if another thread changed weights or modes; entered when all is set."""

    def state() -> tuple[int, ...]:  # versions only grow
        frozen = sum([p.requires_grad for p in parameters])
        return sum([p._version for p in parameters]), frozen, sum([m.training for m in modules])

    before = state()
    try:
        yield
    except (RuntimeError, MhexError) as error:
        if state() != before:
            raise ModelInUseError(_TRAINED) from error
        raise
    if state() != before:
        raise ModelInUseError(_TRAINED)


@contextmanager
def _watching() -> Iterator[None]:
    before = threading.getprofile()
    threading.setprofile(partial(_watch, before))
    try:
        yield
    finally:
        threading.setprofile(before)


_new_threads_watched = Shared(_watching)


def _watch(before: Any, frame: FrameType, event: str, argument: Any) -> None:
    """Profile function of a thread that began while a model was explained: it waits before it uses that model."""
    # The profile function that the user has set, `before`, comes when the explanation is over.
    if not _HOLDS.pairs:
        sys.setprofile(before)
    elif event == "call" and (key := _part_used(frame, _HOLDS)) is not None:
        _wait(key)


def _wait(key: int) -> None:
    """Wait while another thread explains a part of a model, unless that thread itself waits for others in the model."""
    thread = get_ident()
    if _HOLDS.holder(key) in (None, thread):
        return
    with _FREE:
        while not _FREE.wait_for(lambda: _HOLDS.holder(key) in (None, thread), _GLANCE):
            frame = sys._current_frames().get(_HOLDS.holder(key) or thread)
            waits = frame is not None and frame.f_code.co_filename == threading.__file__
            if waits and _is_inside(frame, _HOLDS) and not _compiles(frame):
                return  # the model hands parts of its work to threads


def _wait_for_calls(keys: Container[int]) -> None:
    """Wait until all other threads are outside of the model and of its backward passes, or wait here themselves."""
    until = time.monotonic() + _PATIENCE
    while any(_is_inside(frame, keys) for thread, frame in sys._current_frames().items() if thread != get_ident()):
        if time.monotonic() > until:
            raise ModelInUseError(
                f"Another thread has run the model for {_PATIENCE:g} seconds without an end; explain a copy "
                "(copy.deepcopy)."
            )
        time.sleep(_PAUSE)


def _is_inside(frame: FrameType | None, keys: Container[int]) -> bool:
    """Whether the calls of a thread, the innermost first, are in the model or take gradients of its parameters."""
    while frame is not None and frame.f_code not in _WAITING:
        if _part_used(frame, keys) is not None:
            return True
        if frame.f_code is _BACKWARD:
            return False
        frame = frame.f_back
    return False


def _compiles(frame: FrameType | None) -> bool:
    """Whether a thread is in a compiler of models, which has threads of its own."""
    while frame is not None and not frame.f_code.co_filename.endswith(_COMPILER):
        frame = frame.f_back
    return frame is not None


def _part_used(frame: FrameType, keys: Container[int]) -> int | None:
    """The module that a call runs, or a parameter that it takes gradients of, if it is among `keys`."""
    if frame.f_code is not _BACKWARD:
        key = id(frame.f_locals.get("self")) if frame.f_code.co_name in _CALLS else None
        return key if key in keys else None
    leaves = (id(getattr(node, "variable", None)) for node in nodes_below(frame.f_locals.get("t_outputs", ())))
    return next((leaf for leaf in leaves if leaf in keys), None)


# Code in which a thread waits for its turn: whatever it does above, it does not go on.
_WAITING = frozenset((_wait.__code__, inspect.unwrap(turn).__code__))


def _wait_to_run(module: nn.Module, args: tuple[Any, ...]) -> None:
    # What a backward pass recomputes may run on a thread of torch that the holder waits for. Compiled code outlives the
    # hooks, so it is compiled without them, and waited for where it is called.
    if not torch.compiler.is_dynamo_compiling() and torch._C._current_graph_task_id() == -1:
        _wait(id(module))


def _hook_gradient(stack: ExitStack, parameter: nn.Parameter, react: Callable[[], None]) -> None:
    """Call a function before a gradient is added to that of a parameter, for the time of `stack`."""
    if parameter._backward_hooks is None:
        stack.callback(setattr, parameter, "_backward_hooks", None)
    handle = parameter.register_hook(lambda gradient: react())  # type: ignore[no-untyped-call]
    stack.callback(handle.remove)
