"""Everything that is hung into a model for a while: hooks, other forwards, and a tap that sees function calls.

Fused attention, residual additions and functional activations are no modules, so hooks miss them. A torch function
mode sees every one of them, on this thread only, and needs no patching.
"""

from collections.abc import Callable, Iterable
from contextlib import ExitStack, nullcontext
from functools import partial
from threading import get_ident
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.module import _global_forward_hooks, _global_forward_hooks_with_kwargs, _global_forward_pre_hooks
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

from mhex.capture.anatomy import Guest
from mhex.capture.attention import multi_head_attention
from mhex.capture.operations import RuledPass
from mhex.capture.threads import of_this_thread
from mhex.errors import CaptureError

See = Callable[[Tensor], Tensor]
Arguments = tuple[tuple[Any, ...], dict[str, Any]]
SDPA = F.scaled_dot_product_attention


def hook_each(
    stack: ExitStack, modules: Iterable[nn.Module | None], before: See | None = None, after: See | None = None
) -> None:
    """Hook every distinct module once, for the time of `stack`; None among them is passed over."""
    # `before` sees the first tensor argument, `after` the output (of a tuple, its first item); what they return
    # replaces it.
    for module in dict.fromkeys(m for m in modules if m is not None):
        if before is not None:
            hook = of_this_thread(partial(_change_input, before))
            stack.callback(module.register_forward_pre_hook(hook, with_kwargs=True).remove)
        if after is not None:
            stack.callback(module.register_forward_hook(of_this_thread(partial(_change_output, after))).remove)


def _change_input(change: See, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
    if args and isinstance(args[0], Tensor):
        return (change(args[0]), *args[1:]), kwargs
    for name, value in kwargs.items():
        if isinstance(value, Tensor):
            return args, {**kwargs, name: change(value)}
    raise CaptureError(f"Expected {type(module).__name__} to be called with a tensor, but it was not.")


def _change_output(change: See, module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
    if isinstance(output, Tensor):
        return change(output)
    if isinstance(output, tuple) and output and isinstance(output[0], Tensor):
        return (change(output[0]), *output[1:])
    raise CaptureError(f"Expected {type(module).__name__} to return a tensor, but it returned {type(output).__name__}.")


def see_each(stack: ExitStack, modules: Iterable[nn.Module], see: Callable[[Tensor], None]) -> None:
    """Show what modules return, where that is a tensor or a tuple that begins with one, for the time of `stack`."""

    def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        first = output[0] if isinstance(output, tuple) and output else output
        if isinstance(first, Tensor):
            see(first)

    for module in modules:
        stack.callback(module.register_forward_hook(of_this_thread(hook)).remove)


def on_gradient(tensor: Tensor, change: Callable[[Tensor], Tensor | None]) -> RemovableHandle:
    """Show a tensor's gradient on its way back; what `change` returns takes its place, unless it is None."""
    handle: RemovableHandle = tensor.register_hook(change)  # type: ignore[no-untyped-call]
    return handle


def straighten_norms(stack: ExitStack, modules: Iterable[nn.Module]) -> None:
    """Let the batch norms among `modules` have inputs and gradients of the usual layout, for the time of `stack`."""
    # On a CPU, the gradient of torch's batch norm is wrong where maps of one sample were tokens before, or become
    # tokens after it: one of the two is laid out with channels last then, and taken for one with channels first.
    for module in modules:
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            stack.callback(module.register_forward_pre_hook(_straight_input).remove)
            stack.callback(module.register_forward_hook(_straight_gradient).remove)


def _straight_input(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
    x = args[0] if args else None
    if isinstance(x, Tensor) and x.dim() == 4 and len(x) == 1 and not x.is_contiguous():
        return (x.contiguous(), *args[1:])
    return None


def _straight_gradient(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
    if isinstance(output, Tensor) and output.requires_grad and output.dim() == 4 and len(output) == 1:
        on_gradient(output, Tensor.contiguous)


def before_call(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
    """What the forward hooks before a call make of its arguments, where the module's code runs without a call of it."""
    for key, hook in (*_global_forward_pre_hooks.items(), *module._forward_pre_hooks.items()):
        if key in module._forward_pre_hooks_with_kwargs:
            if (arguments := hook(module, args, kwargs)) is not None:
                args, kwargs = arguments
        elif (changed := hook(module, args)) is not None:
            args = changed if isinstance(changed, tuple) else (changed,)
    return args, kwargs


def after_call(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
    """What the forward hooks after a call make of its output; see `before_call`."""
    for key, hook in (*_global_forward_hooks.items(), *module._forward_hooks.items()):
        takes_keywords = key in module._forward_hooks_with_kwargs or key in _global_forward_hooks_with_kwargs
        changed = hook(module, args, kwargs, output) if takes_keywords else hook(module, args, output)
        output = output if changed is None else changed
    return output


def replace_forward(stack: ExitStack, module: nn.Module, stand_in: Callable[..., Any]) -> None:
    """Let this thread call `stand_in` in place of a module's forward, for the time of `stack`."""
    placed = _StandIn(module, stand_in)
    stack.callback(placed.remove)
    module.forward = placed


class _StandIn:
    """What is called in place of a module's forward; other threads call the forward that was there before."""

    def __init__(self, module: nn.Module, call: Callable[..., Any]) -> None:
        self.module, self.call, self.forward, self.over = module, call, module.forward, False
        self.before: Callable[..., Any] | None = module.__dict__.get("forward")  # None for the method of the class
        self.thread = get_ident()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        forward = self.call if get_ident() == self.thread and not self.over else self.forward
        return forward(*args, **kwargs)

    def remove(self) -> None:
        """Put back what stood there, and nothing whose time is over, in whatever order several of them end."""
        self.over = True
        if self.module.__dict__.get("forward") is not self:
            return
        before = self.before
        while isinstance(before, _StandIn) and before.over:
            before = before.before
        if before is None:
            del self.module.forward
        else:
            self.module.forward = before


def follow_calls(model: nn.Module, guest: Guest) -> None:
    """Tell `guest` of every call of the model, and of every state that is loaded into it."""
    model.register_forward_pre_hook(guest.begin, with_kwargs=True, prepend=True)
    model.register_forward_hook(guest.finish, with_kwargs=True, always_call=True)
    model.register_load_state_dict_post_hook(guest.loaded)  # type: ignore[no-untyped-call]


def unfollow_calls(model: nn.Module, guest: Guest) -> None:
    """Undo `follow_calls`."""
    kinds: tuple[tuple[dict[int, Any], ...], ...] = (
        (model._forward_pre_hooks, model._forward_pre_hooks_with_kwargs),
        (model._forward_hooks, model._forward_hooks_with_kwargs, model._forward_hooks_always_called),
        (model._load_state_dict_post_hooks,),
    )
    for hooks, *marks in kinds:
        for key in [key for key, hook in hooks.items() if getattr(hook, "__self__", None) is guest]:
            for entries in (hooks, *marks):
                entries.pop(key, None)


class FunctionTap(TorchFunctionMode):
    """Routes operations to their rules, if there are any, and attention to `on_attention(attend, *args, **kwargs)`."""

    def __init__(self, on_attention: Callable[..., Any], flow: RuledPass | None = None) -> None:
        super().__init__()
        self.on_attention = on_attention
        self.flow = flow

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.multi_head_attention_forward:
            # The mode is off while it handles a call; entering it again shows the calls inside.
            with self, self.flow.straight() if self.flow is not None else nullcontext():
                return multi_head_attention(*args, **kwargs)
        if func is SDPA:  # the fused kernel, or the rule that stands for it
            attend = SDPA if self.flow is None else lambda *a, **k: self.flow(SDPA, a, k)
            return self.on_attention(attend, *args, **kwargs)
        return func(*args, **kwargs) if self.flow is None else self.flow(func, args, kwargs)
