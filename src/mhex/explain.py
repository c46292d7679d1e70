"""The one call: explain a model's decision on a batch."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from mhex.bundle import Bundle, as_bundle
from mhex.capture import (
    Anatomy,
    Batch,
    FeatureLayer,
    Needs,
    Outputs,
    Trace,
    check_outputs,
    find_anatomy,
    full,
    has_sigmoids,
    name_of,
    observe,
    unwrap,
)
from mhex.concept import Concept
from mhex.errors import (
    ArgumentError,
    ArgumentTypeError,
    CaptureError,
    ModelInUseError,
    NotFiniteError,
    NotFiniteOutputError,
    UnsupportedModelError,
    unknown_name,
)
from mhex.explanation import Explanation
from mhex.inputs import Prepared, check_image, prepare, with_window
from mhex.registry import Method, get_method
from mhex.targets import ResolvedTarget, Target, Task, no_target, probabilities, resolve_target


def has_concept(target: Any) -> bool:
    return any(isinstance(one, Concept) for one in (target if isinstance(target, (list, tuple)) else [target]))


def check_target(spec: Method, target: Any) -> None:
    if spec.target == "class" and (callable(target) or has_concept(target)):
        what = "a concept" if has_concept(target) else "a function"
        raise ArgumentError(
            f"Method {spec.name!r} explains classes: expected a class number or name as target, but got {what}."
        )


def lacks_classifier(anatomy: Anatomy) -> bool:
    """True if the model ends in its latent vector; timm puts an identity in the place of a classifier left out."""
    return anatomy.head is None or isinstance(anatomy.head, nn.Identity)


def check_classifier(model: nn.Module, anatomy: Anatomy, spec: Method) -> None:
    """Refuse to explain a class by a classifier that is not there, or that heads answer for."""
    if isinstance(anatomy.head, nn.Identity):
        able = "; or a method that looks at no target, such as rollout or eigencam" if spec.class_specific else ""
        raise UnsupportedModelError(
            f"Expected a classifier, but this {anatomy.family} has none. Give a mhex.Concept as target, or a function "
            f"of what it returns{able}."
        )
    if anatomy.heads:
        from mhex.heads.predictors import check_answering

        check_answering(model, f"method {spec.name!r} explains it", "Choose method='mhex', which reads the heads. ")


def is_headless(model: nn.Module, anatomy: Anatomy) -> bool:
    """True of a backbone by its make: timm's with an identity for a classifier, or a `...Model` of Hugging Face."""
    if isinstance(anatomy.head, nn.Identity):
        return True
    kind = type(model)
    return anatomy.head is None and kind.__module__.startswith("transformers.") and kind.__name__.endswith("Model")


def check_seed(seed: Any) -> int:
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise ArgumentTypeError(f"Expected a whole number as seed, but got {seed!r}.")
    return seed


def task_of(model: nn.Module, given: Task | None, trace: Trace) -> Task:
    """What the model's outputs are: as the user says, or a Hugging Face configuration, or heads, or sigmoids."""
    if given is not None:
        return given
    several = trace.sighting is not None and trace.sighting.multi_label
    return usual_task(model, several or has_sigmoids(trace.anatomy.ending, trace.logits))


def is_regression(model: nn.Module, given: Task | None, outputs: Outputs | None) -> bool:
    """Whether outputs are values, which are never probabilities; a task that there is not is refused."""
    if given is not None and given not in get_args(Task):
        raise ArgumentError(f"Expected task {' or '.join(map(repr, get_args(Task)))}, but got {given!r}.")
    values = (given or usual_task(model, False)) == "regression"
    if values and outputs == "probabilities":
        raise ArgumentError("Expected probabilities, as outputs= says, but outputs of a regression are values.")
    return values


def usual_task(model: nn.Module, several: bool) -> Task:
    """What a Hugging Face configuration says of the outputs, or heads do: whether a sample may have several classes."""
    said = getattr(getattr(model, "config", None), "problem_type", None)
    if said == "multi_label_classification" or several:
        return "multi-label"
    return "regression" if said == "regression" else "classification"


def feature_layer(model: nn.Module, layer: str | nn.Module) -> FeatureLayer:
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


def names_of(
    model: nn.Module, given: Sequence[str] | Mapping[int, str] | None, logits: Tensor, task: Task
) -> list[str] | None:
    """Names of classes or outputs given by the user, or those that a Hugging Face configuration carries."""
    classes = logits.shape[1] if task == "regression" else max(2, logits.shape[1])
    if isinstance(given, Mapping):  # as in Hugging Face configurations, number -> name
        keys = list(given)
        given = _in_order(given)
        if given is None:
            raise ArgumentError(f"Expected class names by number from 0 to {len(keys) - 1}, but got the keys {keys}.")
    if given is not None:
        # Sets have no order; arrays are lists if they have one axis.
        if isinstance(given, (str, bytes, Set)) or not hasattr(given, "__len__") or getattr(given, "ndim", 1) != 1:
            kind = "a single string" if isinstance(given, str) else type(given).__name__
            raise ArgumentTypeError(f"Expected a list of class names, but got {kind}.")
        if (
            len(given) == logits.shape[1] == 1 and task != "regression"
        ):  # the one output speaks for its class, and against it
            return [f"not {given[0]}", str(given[0])]
        if len(given) != classes:
            raise ArgumentError(f"Expected {classes} class names, one per output of the model, but got {len(given)}.")
        return [str(name) for name in given]
    labels = getattr(getattr(model, "config", None), "id2label", None)
    if not isinstance(labels, Mapping) or len(labels) != classes:
        return None
    return _in_order(labels)


def _in_order(names: Mapping[Any, Any]) -> list[str] | None:
    """Names by the numbers of their classes, which JSON turns into texts; None if these are not 0, 1, 2..."""
    numbers = {str(key): str(name) for key, name in names.items()}
    places = [str(place) for place in range(len(names))]
    return [numbers[place] for place in places] if numbers.keys() == set(places) else None


AUTO = "auto"
Kind = Literal["answering heads", "heads", "convolutions", "blocks", "text", "other", "concept", "headless"]
_ANY = ("input-x-gradient", "occlusion")  # they ask for a gradient, or for nothing but scores

TABLE: dict[Kind, tuple[str, ...]] = {
    "answering heads": ("mhex",),  # the model's own classifier is not trained
    "heads": ("mhex", "gradcam", *_ANY),  # on a network with feature maps
    "convolutions": ("gradcam", *_ANY),
    "blocks": ("conservative-lrp", "gae", *_ANY),  # Vision Transformers
    "text": ("conservative-lrp", "gae", *_ANY),
    "other": _ANY,
    "concept": ("cdam", "gradcam", *_ANY),
    "headless": ("rollout", "eigencam"),  # no target, so the methods that look at none
}


def kind_of(model: nn.Module, anatomy: Anatomy, target: Any) -> Kind:
    """The row of the table for a model and a target."""
    if has_concept(target):
        return "concept"
    if anatomy.heads == 1 and not callable(target):
        from mhex.heads.predictors import answered_by_heads, say_something

        if answered_by_heads(model) is not None:
            return "answering heads"
        if anatomy.modality == "image" and not anatomy.blocks and say_something(model):
            return "heads"
    if target is None and is_headless(model, anatomy):
        return "headless"
    if anatomy.modality == "text":
        return "text"
    return "blocks" if anatomy.blocks else "convolutions" if anatomy.features is not None else "other"


def methods_for(model: nn.Module, anatomy: Anatomy, target: Any) -> list[Method]:
    """Methods in the order in which they are tried.

    Args:
        model: The unwrapped module.
        anatomy: Of the model, with its attention.
        target: As the user gave it.
    """
    return [get_method(name) for name in TABLE[kind_of(model, anatomy, target)]]


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
        ids=batch.kwargs.get("input_ids"),
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
