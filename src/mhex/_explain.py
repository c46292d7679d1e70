"""The one call: explain a model's decision on a batch."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from mhex.bundle import Bundle
from mhex.capture import Anatomy, Batch, FeatureLayer, Trace, find_anatomy, name_of, observe, unwrap
from mhex.errors import ArgumentError, ArgumentTypeError, CaptureError, UnsupportedModelError, unknown_name
from mhex.explanation import Explanation
from mhex.inputs import check_image, prepare
from mhex.registry import Method, get_method
from mhex.targets import ResolvedTarget, Target, probabilities, resolve_target


def explain(
    model: nn.Module | Bundle,
    inputs: Any,
    method: str = "gae",
    target: Target = None,
    *,
    preprocess: Callable[[Any], Tensor] | None = None,
    tokenizer: Callable[..., Mapping[str, Any]] | None = None,
    class_names: Sequence[str] | Mapping[int, str] | None = None,
    seed: int = 0,
    progress: bool = False,
    **options: Any,
) -> Explanation:
    """Explain why `model` gives `target` its score on each sample of a batch.

    The model is run in evaluation mode and left exactly as it was. Several targets share one forward pass.

    Args:
        model: A classifier, unmodified; wrappers of `torch.compile` and `DataParallel` are looked through. Or a
            bundle from `mhex.load`, which brings its own preprocessing and class names.
        inputs: A batch: a normalised image tensor (B, C, H, W); PIL images with `preprocess`; a dictionary of
            tokenizer outputs, or of `pixel_values`; strings with `tokenizer`.
        method: A name from `mhex.list_methods()`.
        target: None for the predicted class; a class number or name; a tensor (B,) with one class per sample; a list
            of classes or `"top5"` for several at once; a function from logits (B, C) to scores (B,).
        preprocess: From a PIL image to a tensor (C, H, W).
        tokenizer: A Hugging Face tokenizer.
        class_names: Names of the model's outputs; taken from the model's own configuration where it has one.
        seed: For methods that draw random numbers; the global generators are left alone.
        progress: Draw progress bars for long work.
        options: Options of the method; `mhex.list_methods()` lists them.

    Returns:
        The explanation: scores on the model's native grid, and everything needed to repeat or draw them.

    Example:
        >>> import torch, torchvision, mhex
        >>> model = torchvision.models.resnet18()
        >>> mhex.explain(model, torch.rand(2, 3, 64, 64), method="gradcam", target=[3, 7]).scores.shape
        torch.Size([2, 2, 2, 2])
    """
    started = time.perf_counter()
    if isinstance(model, Bundle):
        preprocess = preprocess or model.preprocess
        tokenizer = tokenizer or model.tokenizer
        class_names = class_names or model.class_names
        model = model.model
    if not isinstance(model, nn.Module):
        raise ArgumentTypeError(
            f"Expected a torch.nn.Module or a bundle from mhex.load, but got {type(model).__name__}."
        )
    inner = unwrap(model)
    spec = get_method(method)
    settings = spec.check_options(options)
    if spec.target == "class" and callable(target):
        raise ArgumentError(
            f"Method {spec.name!r} explains classes: expected a class number or name as target, but got a function."
        )
    with torch.inference_mode(False):
        prepared = prepare(inner, inputs, preprocess, tokenizer)
        anatomy = _anatomy(inner, prepared.batch, spec, settings.get("layer"))
        if "layer" in settings and anatomy.features is not None:
            settings["layer"] = anatomy.features.name
        with observe(inner, anatomy, prepared.batch, spec.needs, progress=progress) as trace:
            _check_finite(trace.logits)
            names = _names(inner, class_names, trace.logits)
            resolved = resolve_target(target, trace.logits, names)
            for block in trace.blocks:
                block.targets = resolved.count
            own = {name: value for name, value in settings.items() if name != "layer"}
            scores, special = _scores(spec, trace, resolved, own)
            if not bool(torch.isfinite(scores).all()):
                raise CaptureError(f"Method {spec.name!r} gave scores that are not finite on this model and batch.")
            logits, cost = trace.logits.detach(), dict(trace.cost)
            settings |= trace.chosen
            layers = dict(trace.layers)
            multi_label = _is_multi_label(inner) or (trace.sighting is not None and trace.sighting.multi_label)
    batch, chosen = prepared.batch, resolved.index
    keep: Any = slice(None) if resolved.several else 0  # of the axis of targets
    return Explanation(
        scores=scores[:, keep],
        target=None if chosen is None else chosen[:, keep],
        logits=logits,
        probabilities=probabilities(logits, multi_label),
        method=spec.name,
        options=settings,
        seed=seed,
        signed=spec.signed,
        modality=batch.modality,
        size=(int(batch.pixels.shape[-2]), int(batch.pixels.shape[-1])) if batch.modality == "image" else None,
        class_names=names,
        pictures=prepared.pictures,
        tokens=prepared.tokens,
        words=prepared.words,
        real=batch.real,
        special=None if special is None else special[:, keep],
        scored=None if batch.special is None else ~batch.special,
        layers={name: one[:, keep] for name, one in layers.items()},
        cost={**cost, "seconds": time.perf_counter() - started},
    )


def _is_multi_label(model: nn.Module) -> bool:
    """What a Hugging Face configuration says of its outputs."""
    return getattr(getattr(model, "config", None), "problem_type", None) == "multi_label_classification"


def _anatomy(model: nn.Module, batch: Batch, spec: Method, layer: str | nn.Module | None) -> Anatomy:
    """Anatomy of the model, checked against the method and the batch, with the feature layer that the user chose."""
    anatomy = find_anatomy(model, batch, attention=spec.needs.blocks)
    if anatomy.modality != batch.modality:
        raise ArgumentError(
            f"Expected {anatomy.modality} inputs for this {anatomy.family}, but got {batch.modality} inputs."
        )
    if layer is not None:
        anatomy = replace(anatomy, features=_feature_layer(model, layer))
    spec.check_serves(anatomy)
    if batch.modality == "image":
        check_image(batch, anatomy)
    spec.check_serves(anatomy, batch.tokens(anatomy))
    return anatomy


def _feature_layer(model: nn.Module, layer: str | nn.Module) -> FeatureLayer:
    """The layer that the user named."""
    modules = dict(model.named_modules())
    if isinstance(layer, str) and layer not in modules:
        raise unknown_name("layer", layer, [name for name in modules if name])
    chosen = modules[layer] if isinstance(layer, str) else layer
    if not isinstance(chosen, nn.Module) or chosen not in modules.values():
        raise ArgumentTypeError(
            f"Expected layer= to be the name of a submodule or a submodule, but got {type(layer).__name__}."
        )
    return FeatureLayer(chosen, None, name_of(model, chosen))


def _names(model: nn.Module, given: Sequence[str] | Mapping[int, str] | None, logits: Tensor) -> list[str] | None:
    """Class names given by the user, or those that a Hugging Face configuration carries."""
    classes = max(2, logits.shape[1])
    if isinstance(given, Mapping):  # as in Hugging Face configurations, number -> name
        given = [str(given[i]) for i in sorted(given)]
    if isinstance(given, str):
        raise ArgumentTypeError("Expected a list of class names, but got a single string.")
    if given is not None:
        if len(given) == logits.shape[1] == 1:  # the one output speaks for its class, and against it
            return [f"not {given[0]}", str(given[0])]
        if len(given) != classes:
            raise ArgumentError(f"Expected {classes} class names, one per output of the model, but got {len(given)}.")
        return [str(name) for name in given]
    labels = getattr(getattr(model, "config", None), "id2label", None)
    if not isinstance(labels, Mapping) or len(labels) != classes:
        return None
    return [str(labels[i]) for i in sorted(labels)]


def _check_finite(logits: Tensor) -> None:
    if not bool(torch.isfinite(logits).all()):
        raise UnsupportedModelError("The model's scores are not finite on this batch, so there is nothing to explain.")


def _scores(
    spec: Method, trace: Trace, target: ResolvedTarget, options: Mapping[str, Any]
) -> tuple[Tensor, Tensor | None]:
    """Placed scores (B, K, ...) of all targets, and for text the scores (B, K, T) of special tokens."""
    if spec.target == "class":
        assert target.index is not None  # functions are refused before the pass
        rows = list(spec.function(trace, target.index, **options).unbind(1))
    elif spec.class_specific:
        rows = [spec.function(trace, target.score(trace.logits, k), **options) for k in range(target.count)]
    else:
        rows = [spec.function(trace, **options)] * target.count
    rows = [row.detach().to(torch.promote_types(row.dtype, torch.float32)) for row in rows]
    placed = torch.stack([trace.place(row) for row in rows], 1)
    if trace.batch.special is None or trace.batch.real is None:
        return placed, None
    outside = trace.batch.special & trace.batch.real
    return placed, torch.stack([row.where(outside, 0.0) for row in rows], 1)
