"""The one call: explain a model's decision on a batch."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from mhex._settle import (
    check_classifier,
    check_seed,
    check_target,
    feature_layer,
    has_concept,
    is_headless,
    is_regression,
    lacks_classifier,
    names_of,
    task_of,
)
from mhex.auto import AUTO, methods_for
from mhex.bundle import Bundle, as_bundle
from mhex.capture import Anatomy, Batch, Needs, Outputs, Trace, check_outputs, find_anatomy, full, observe, unwrap
from mhex.errors import (
    ArgumentError,
    CaptureError,
    ModelInUseError,
    NotFiniteError,
    NotFiniteOutputError,
    UnsupportedModelError,
)
from mhex.explanation import Explanation
from mhex.inputs import Prepared, check_image, prepare, with_window
from mhex.registry import Method, get_method
from mhex.targets import ResolvedTarget, Target, Task, no_target, probabilities, resolve_target


def explain(
    model: nn.Module | Bundle,
    inputs: Any,
    method: str = "auto",
    target: Target = None,
    *,
    preprocess: Callable[[Any], Tensor] | None = None,
    window: tuple[float, float] | None = None,
    tokenizer: Callable[..., Mapping[str, Any]] | None = None,
    class_names: Sequence[str] | Mapping[int, str] | None = None,
    task: Task | None = None,
    outputs: Outputs | None = None,
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
        method: A name from `mhex.list_methods()`; or `"auto"` for the one that our benchmarks speak for, given the kind
            of the model (docs/explain.md has the table). `Explanation.method` names it.
        target: None for the predicted class; a class number or name; a tensor (B,) with one class per sample; a list
            of classes or `"top5"` for several at once; a `mhex.Concept`, or a list of them; a function from logits
            (B, C) to scores (B,). Of a regression: outputs in place of classes, by default all of them.
        preprocess: From a PIL image to a tensor (C, H, W).
        window: Of photos, or of a tensor of whole numbers: the value that becomes black and the one that becomes
            white. It is needed where a photo of more than 8 bits does not say them itself; `preprocess` is then given
            upright photos in 8-bit RGB.
        tokenizer: A Hugging Face tokenizer.
        class_names: Names of the model's outputs; taken from the model's own configuration where it has one.
        task: `"classification"`, `"multi-label"` (each class has its own sigmoid) or `"regression"` (outputs are
            values: no probabilities, and a single output is explained as it is). By default what the model's
            configuration says; multi-label if the model ends in a sigmoid over several outputs; else classification.
        outputs: What the model returns: `"logits"`, or `"probabilities"`, whose logits are explained. By default it is
            recognised by the model's last operation, and by its outputs where that does not tell.
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
    bundle = as_bundle(model)
    inner = unwrap(bundle.model)
    if method == AUTO:
        if options:
            raise ArgumentError(
                f"Expected a method beside the option {', '.join(map(repr, options))}, because options are those of "
                "one method: name it with method=."
            )
        shared = {"task": task, "outputs": outputs, "class_names": class_names, "seed": seed, "progress": progress}
        with torch.inference_mode(False):
            reading = with_window(preprocess or bundle.preprocess, window, inputs)
            prepared = prepare(inner, inputs, reading, tokenizer or bundle.tokenizer)
            return _automatic(bundle, prepared, target, shared)
    spec = get_method(method)
    settings = spec.check_options(options)
    check_target(spec, target)
    check_outputs(outputs)
    with torch.inference_mode(False):
        if isinstance(inputs, Prepared):
            prepared = inputs
        else:
            reading = with_window(preprocess or bundle.preprocess, window, inputs)
            prepared = prepare(inner, inputs, reading, tokenizer or bundle.tokenizer)
        anatomy, needs = _anatomy(inner, prepared.batch, spec, settings, target)
        headless = not spec.class_specific and target is None and is_headless(inner, anatomy)
        if has_concept(target) or headless:
            needs = needs.with_latent()
        elif "heads" not in needs.keep and not callable(target):
            check_classifier(inner, anatomy, spec)
        if "layer" in settings and anatomy.features is not None:
            settings["layer"] = anatomy.features.name
        rules = None if spec.rules is None else spec.rules(settings, anatomy)
        bare = headless or (has_concept(target) and lacks_classifier(anatomy))
        read = "logits" if is_regression(inner, task, outputs) or bare else outputs
        with observe(inner, anatomy, prepared.batch, needs, rules, progress, read) as trace:
            trace.seed = check_seed(seed)
            _check_finite(trace.logits)
            sort = task_of(inner, task, trace)
            class_names = bundle.class_names if class_names is None else class_names
            names = None if bare else names_of(inner, class_names, trace.logits, sort)
            resolved = no_target(sort) if headless else resolve_target(target, trace.logits, names, sort)
            for block in trace.blocks:
                block.targets = resolved.count
            own = {name: value for name, value in settings.items() if name != "layer"}
            values = resolved.scores(trace.outcome).detach()
            scores, special = _scores(spec, trace, resolved, own)
            if not bool(torch.isfinite(scores).all()):
                raise NotFiniteError(
                    f"Method {spec.name!r} gave scores that are not finite on this model, {_bad_samples(scores)}.",
                    scores if resolved.several else scores[:, 0],
                )
            logits, cost = trace.logits.detach(), dict(trace.cost)
            settings |= trace.chosen
            if trace.anatomy.ending is not None:
                settings["outputs"] = "probabilities"
            signed = spec.signed if trace.signed is None else trace.signed
            layers, diagnostics = dict(trace.layers), dict(trace.diagnostics)
    batch, chosen = prepared.batch, resolved.index
    keep: Any = slice(None) if resolved.several else 0  # of the axis of targets
    return Explanation(
        scores=scores[:, keep],
        target=None if chosen is None else chosen[:, keep],
        logits=logits,
        probabilities=None if bare or sort == "regression" else probabilities(logits, sort == "multi-label"),
        method=spec.name,
        values=None if headless else values[:, keep],
        options=settings,
        seed=seed,
        signed=signed,
        class_specific=spec.class_specific,
        task=sort,
        named=list(resolved.names) or None,
        modality=batch.modality,
        size=(int(batch.pixels.shape[-2]), int(batch.pixels.shape[-1])) if batch.modality == "image" else None,
        class_names=names,
        pictures=prepared.pictures,
        tokens=prepared.tokens,
        words=prepared.words,
        lengths=prepared.lengths,
        real=batch.real,
        special=None if special is None else special[:, keep],
        scored=None if batch.special is None else ~batch.special,
        layers={name: one[:, keep] for name, one in layers.items()},
        diagnostics={name: one[:, keep] for name, one in diagnostics.items()},
        cost={**cost, "seconds": time.perf_counter() - started},
    )


def _automatic(bundle: Bundle, prepared: Prepared, target: Target, shared: Mapping[str, Any]) -> Explanation:
    """Explain by the first method of the model's row in the table that can."""
    model = unwrap(bundle.model)
    *methods, last = methods_for(model, find_anatomy(model, prepared.batch), target)
    for spec in methods:
        try:
            return replace(explain(bundle, prepared, spec.name, target, **shared), auto=True)
        except (NotFiniteOutputError, ModelInUseError):
            raise  # no other method would do better
        except (UnsupportedModelError, CaptureError):
            continue
    return replace(explain(bundle, prepared, last.name, target, **shared), auto=True)


def _anatomy(
    model: nn.Module, batch: Batch, spec: Method, settings: Mapping[str, Any], target: Target
) -> tuple[Anatomy, Needs]:
    """Anatomy of the model and what the method reads of it, checked against each other and against the batch."""
    anatomy = find_anatomy(model, batch, attention=spec.needs.blocks or spec.rules is not None)
    if (layer := settings.get("layer")) is not None:
        anatomy = replace(anatomy, features=feature_layer(model, layer))
    needs = spec.needs_with(settings, anatomy)
    if batch.modality == "image":
        check_image(batch, anatomy)
    classes = not callable(target) and not has_concept(target)
    spec.check_serves(anatomy, batch.tokens(anatomy), needs, classes)
    return anatomy, needs


def _check_finite(logits: Tensor) -> None:
    finite = torch.isfinite(logits.detach()).flatten(1).all(1)
    if not bool(finite.all()):
        raise NotFiniteOutputError((~finite).nonzero()[:, 0].tolist(), len(finite))


def _bad_samples(scores: Tensor) -> str:
    bad = (~torch.isfinite(scores).flatten(1).all(1)).nonzero()[:, 0].tolist()
    return f"for {'sample' if len(bad) == 1 else 'samples'} {', '.join(map(str, bad))} of this batch of {len(scores)}"


def _scores(
    spec: Method, trace: Trace, target: ResolvedTarget, options: Mapping[str, Any]
) -> tuple[Tensor, Tensor | None]:
    """Placed scores (B, K, ...) of all targets, and for text the scores (B, K, T) of special tokens."""
    if spec.target in ("class", "scores"):
        rows = list(spec.function(trace, target if spec.target == "scores" else target.index, **options).unbind(1))
    elif spec.class_specific:
        rows = _one_by_one(spec, trace, target, options)
    else:
        rows = [spec.function(trace, **options)] * target.count
    rows = [full(row.detach()) for row in rows]
    placed = torch.stack([trace.place(row) for row in rows], 1)
    if trace.batch.special is None or trace.batch.real is None:
        return placed, None
    outside = trace.batch.special & trace.batch.real
    return placed, torch.stack([row.where(outside, 0.0) for row in rows], 1)


def _one_by_one(spec: Method, trace: Trace, target: ResolvedTarget, options: Mapping[str, Any]) -> list[Tensor]:
    """Scores (B, ...) of each target; what the method says beside them is joined along the axis of targets."""
    rows: list[Tensor] = []
    beside: dict[tuple[str, str], list[Tensor]] = {}
    for k in range(target.count):
        rows.append(spec.function(trace, target.score(trace.outcome, k), **options))
        for name, scores in trace.layers.items():
            beside.setdefault(("layers", name), []).append(trace.on_grid(scores.detach()))
        for name, found in trace.diagnostics.items():
            beside.setdefault(("diagnostics", name), []).append(found.detach())
    for (group, name), parts in beside.items():
        getattr(trace, group)[name] = torch.stack(parts, 1)
    return rows
