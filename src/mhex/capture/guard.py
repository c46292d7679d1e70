"""Two promises: a model is left as it was, also after an error, and an error that is the model's own says so."""

import inspect
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from mhex.capture.anatomy import GUEST, guests
from mhex.capture.batch import Batch
from mhex.capture.inventory import Inventory, inventory_of
from mhex.capture.outputs import SECTION, find_scores
from mhex.capture.precision import float32_arithmetic, user_precision
from mhex.capture.threads import Shared, is_recording, others_wait, turn, unchanged
from mhex.capture.wrappers import entrances
from mhex.errors import CaptureError, MhexError, UnsupportedModelError

# What layers raise for values, shapes and types that they cannot take. Errors of a class of the user's own pass.
_ERRORS = (RuntimeError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError, AssertionError)
_PASSING = (MhexError, torch.OutOfMemoryError, torch.AcceleratorError)  # these say themselves what is wrong


@contextmanager
def model_failures(model: nn.Module, batch: Batch) -> Iterator[None]:
    """While open, an error that the bare model raises for the batch too becomes an UnsupportedModelError that says so.

    The bare model is called, and a gradient is taken through it. Any other error is left as it is, and so are running
    out of memory and faults of a device.
    """
    try:
        yield
    except _ERRORS as error:
        if not isinstance(error, _PASSING) and not is_recording():
            _check_bare_pass(model, batch)
            _check_bare_gradient(model, batch, type(error))
        raise


def _check_bare_pass(model: nn.Module, batch: Batch) -> None:
    batch = batch.copied()
    try:
        with untouched(model), torch.no_grad(), user_precision():
            model(*batch.args, **batch.kwargs)
    except _PASSING:
        raise
    except _ERRORS as error:
        raise UnsupportedModelError(
            f"{name_of_class(model)} itself fails when it is called with {_in_words(batch)} ({_cause(error)}); "
            f"{_remedy(model)}."
        ) from error


def _in_words(batch: Batch) -> str:
    tensors = {"images": batch.pixels, **batch.kwargs} if batch.modality == "image" else batch.kwargs
    shapes = {name: tuple(x.shape) for name, x in tensors.items() if isinstance(x, Tensor)}
    return " and ".join(f"{name} of shape {shape}" for name, shape in shapes.items())


def call_compiled(form: Callable[..., Any], model: nn.Module, batch: Batch) -> Any:
    """What the compiled form of a guarded model returns for a batch; an error of the compiler says so."""
    try:
        return form(*batch.args, **batch.kwargs)
    except torch._dynamo.exc.TorchDynamoException as error:
        _check_bare_pass(model, batch)
        cause = _cause(getattr(error, "inner_exception", error))
        raise UnsupportedModelError(
            f"{name_of_class(model)} runs by itself, but torch.compile fails when it is called with "
            f"{_in_words(batch)} ({cause}); give the model that is not compiled."
        ) from error


def _check_bare_gradient(model: nn.Module, batch: Batch, kind: type[Exception]) -> None:
    """Refuse a model through which the gradient of all scores, for images or embeddings, fails with such an error."""
    batch = batch.copied()
    with untouched(model), ExitStack() as stack:
        sources = [m.weight for m in model.modules() if isinstance(m, nn.Embedding) and m.weight.is_floating_point()]
        _swap(stack, sources, "requires_grad", True, of_instance=False)
        if batch.modality == "image":
            sources.append(batch.pixels.detach().requires_grad_())
            batch = batch.with_input(sources[-1].clone())  # the model may write into it
        try:
            with user_precision():
                scores = find_scores(model(*batch.args, **batch.kwargs))
            if scores is not None and scores.requires_grad:
                torch.autograd.grad(scores.sum(), sources, allow_unused=True)
        except _PASSING:
            raise
        except _ERRORS as error:
            if type(error) is not kind:
                return
            reason = f"its own operations refuse to be differentiated ({_cause(error)})"
            raise UnsupportedModelError(
                f"No gradient can be taken through {name_of_class(model)}: {reason}; choose a method without "
                "gradients, such as occlusion or rise.",
                reason,
            ) from error


def _cause(error: BaseException) -> str:
    words = next(iter(str(error).splitlines()), "").strip().rstrip(".")[:200]
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


def _remedy(model: nn.Module) -> str:
    """What the user can do, by what the model takes."""
    names: Container[str] = (
        () if isinstance(model, torch.jit.ScriptModule) else inspect.signature(type(model).forward).parameters
    )
    if "input_ids" in names and "pixel_values" in names:
        return (
            "it reads images and texts together: wrap it in a module that holds the one fixed, takes the other and "
            f"returns scores of shape (batch, classes), see {SECTION}"
        )
    if "decoder_input_ids" in names:
        return (
            "it generates text: wrap it in a module that returns the scores of one next word, of shape (batch, words), "
            f"see {SECTION}"
        )
    return "check that it takes these inputs by itself, and batches of any size, a single sample too"


def name_of_class(model: nn.Module) -> str:
    """The model's class, for messages; that of TorchScript is the class that it was made from."""
    if isinstance(model, torch.jit.ScriptModule):
        return f"TorchScript {getattr(model, 'original_name', '')}".strip()
    return type(model).__name__


_KERNEL = "_attn_implementation_internal"  # of Hugging Face configurations


@contextmanager
def untouched(model: nn.Module, attention: bool = False, check: bool = True) -> Iterator[Inventory]:
    """Prepare `model` for explaining and put everything back on leaving.

    Inside: evaluation mode, frozen parameters, inference mode off, gradients on, no activation checkpointing, no
    compiled submodules; autocast is off but for calls of the model within `user_precision`. Restored: all of these, the
    state of the random generators and what heads saw in the user's own last call. Other threads that explain, run or
    train the model wait until it is over; weights that change meanwhile are refused. The random generators are those of
    the process: numbers that other threads draw meanwhile are drawn again. Parameters' `.grad` is never written,
    because gradients are taken with `torch.autograd.grad` for the tensors asked for.

    Args:
        model: The unwrapped module.
        attention: Whether attention must be seen. If so, models that can write out their softmax or not use torch's
            `scaled_dot_product_attention` meanwhile, which computes the same.
        check: False if the model was compared with its inventory right before.

    Yields:
        The inventory of the model.
    """
    inventory = inventory_of(model, check)
    everything, parameters = inventory.modules(model), inventory.parameters
    scripted: list[nn.Module] = []
    modules = everything
    if inventory.has_scripts:
        scripted = [m for m in everything if isinstance(m, torch.jit.ScriptModule)]
        modules = [m for m in everything if not isinstance(m, torch.jit.ScriptModule)]
    inventory.fact("weights", partial(_check_weights, parameters))
    device = inventory.device
    with ExitStack() as stack:
        doors = entrances(model)
        keys = inventory.keys.union(map(id, doors)) if doors else inventory.keys
        if stack.enter_context(turn(keys)):
            stack.enter_context(others_wait([*doors, *modules], parameters, keys))
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        stack.enter_context(float32_arithmetic())
        stack.callback(torch.set_rng_state, torch.get_rng_state())
        # While a GPU records, its generator may not be asked; whoever records has put its state aside.
        if device.type == "cuda" and not torch.cuda.is_current_stream_capturing():
            stack.callback(torch.cuda.set_rng_state, torch.cuda.get_rng_state(device), device)
        stack.enter_context(_without_fused_layers())
        for _, guest in guests(modules) if GUEST in inventory.names else ():
            stack.enter_context(guest.aside())
        _swap(stack, parameters, "requires_grad", False, of_instance=False)
        _swap(stack, modules, "training", False)
        _swap(stack, modules, "_compiled_call_impl", None)
        _swap(stack, inventory.having("grad_checkpointing", model), "grad_checkpointing", False)
        _swap(stack, scripted, "training", False, of_instance=False)  # none if they were frozen
        if "_orig_mod" in inventory.names:  # a compiled submodule
            stack.enter_context(_without_compiling())
        stack.enter_context(unchanged(modules, parameters))
        # Hugging Face's choice. Models that know only their own attention build their masks for it: left alone.
        able = [m for m in inventory.having("config", model) if getattr(type(m), "_supports_sdpa", False)]
        configs = list({id(m.config): m.config for m in able if m.config is not None}.values())
        if attention:
            _swap(stack, inventory.having("fused_attn", model), "fused_attn", True)  # timm's choice
        else:  # flexible attention alone must give way: it has no gradient on every device
            configs = [c for c in configs if c.__dict__.get(_KERNEL) == "flex_attention"]
        _swap(stack, configs, _KERNEL, "sdpa")
        yield inventory


def _check_weights(parameters: Sequence[nn.Parameter]) -> None:
    """Refuse weights through which no gradient can be taken, or that have no values."""
    if any(p.is_inference() for p in parameters):
        raise CaptureError(
            "The model's parameters were made under torch.inference_mode, so no gradient can be taken through it; "
            "build or load the model outside of inference_mode."
        )
    if any(p.is_meta for p in parameters):
        raise CaptureError("Some of the model's weights are on the meta device (offloaded?); load them all first.")


@contextmanager
def _slow_path() -> Iterator[None]:
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


# The fused encoder layer of torch rounds otherwise than its parts, and runs only where nothing looks inside.
_without_fused_layers = Shared(_slow_path)
_without_compiling = Shared(partial(torch.compiler.set_stance, "force_eager"))


def _swap(stack: ExitStack, objects: Sequence[object], name: str, value: Any, of_instance: bool = True) -> None:
    """Give an attribute, where it exists, another value for the time of `stack`.

    Asking instances alone for it takes less time.
    """
    if of_instance:
        before = [(o, was) for o in objects if (was := o.__dict__.get(name, value)) != value]
    else:
        before = [(o, was) for o in objects if (was := getattr(o, name, value)) != value]
    if before:
        stack.callback(_put_back, before, name)
        for owner, _ in before:
            setattr(owner, name, value)


def _put_back(before: Sequence[tuple[object, Any]], name: str) -> None:
    for owner, previous in before:
        setattr(owner, name, previous)
