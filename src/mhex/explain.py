"""The one call: explain a model's decision on a batch."""

import difflib
import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from mhex._settings import check_seed
from mhex.bundle import Bundle, as_bundle
from mhex.capture import (
    Anatomy,
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
    warn,
)
from mhex.explanation import Explanation
from mhex.inputs import Prepared, check_image, prepare, with_window
from mhex.methods import get_method
from mhex.registry import Method
from mhex.targets import ResolvedTarget, Target, Task, names_of, no_target, probabilities, resolve_target, usual_task

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
    spec = None if method == AUTO else get_method(method)
    _check_argument_names(options, spec)
    if spec is None and options:
        raise ArgumentError(
            f"Expected a method beside the option {', '.join(map(repr, options))}, because options are those of one "
            "method: name it with method=."
        )
    settings = {} if spec is None else spec.check_options(options)
    if spec is not None and spec.target == "class" and (callable(target) or has_concept(target)):
        kind = "a concept" if has_concept(target) else "a function"
        raise ArgumentError(
            f"Method {spec.name!r} explains classes: expected a class number or name as target, but got {kind}."
        )
    check_outputs(outputs)
    seed = check_seed("seed", seed)
    with torch.inference_mode(False):
        if not isinstance(inputs, Prepared):
            reading = with_window(preprocess or bundle.preprocess, window, inputs)
            inputs = prepare(inner, inputs, reading, tokenizer or bundle.tokenizer)
        names = bundle.class_names if class_names is None else class_names
        question = _Question(inner, inputs, target, names, task, outputs, seed, progress)
        explanation = _chosen(question) if spec is None else _explained(question, spec, settings)
    explanation.cost["seconds"] = time.perf_counter() - started
    return explanation


def _check_argument_names(options: Mapping[str, Any], spec: Method | None) -> None:
    """Refuse an option that looks like a misspelled argument of `explain`."""
    arguments = [name for name in inspect.signature(explain).parameters if name != "options"]
    existing = {} if spec is None else spec.options
    for name in options:
        near = [] if name in existing else difflib.get_close_matches(name, [*existing, *arguments], n=1, cutoff=0.8)
        if near and near[0] in arguments:
            raise ArgumentError(f"mhex.explain has no argument {name!r}. Did you mean {near[0]}=?")


@dataclass(frozen=True)
class _Question:
    """What is asked of whichever method answers; see `explain`."""

    model: nn.Module
    prepared: Prepared
    target: Target
    class_names: Sequence[str] | Mapping[int, str] | None
    task: Task | None
    outputs: Outputs | None
    seed: int
    progress: bool


def has_concept(target: Any) -> bool:
    """Whether a target is a concept, or a list with one."""
    return any(isinstance(item, Concept) for item in (target if isinstance(target, (list, tuple)) else [target]))


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
    if target is None and _is_headless(model, anatomy):
        return "headless"
    if anatomy.modality == "text":
        return "text"
    return "blocks" if anatomy.blocks else "convolutions" if anatomy.features is not None else "other"


def _chosen(question: _Question) -> Explanation:
    """Explain by the first method of the model's row in the table that can."""
    anatomy = find_anatomy(question.model, question.prepared.batch)
    names = TABLE[kind_of(question.model, anatomy, question.target)]
    reason = ""
    for name in names:
        spec = get_method(name)
        try:
            explanation = _explained(question, spec, dict(spec.options))
            break
        except (UnsupportedModelError, CaptureError) as error:
            if name == names[-1] or isinstance(error, (NotFiniteOutputError, ModelInUseError)):
                raise  # no other method would do better
            why = error.reason if isinstance(error, UnsupportedModelError) else str(error)
            reason = reason or f"{name!r} cannot explain this model: {why.rstrip('.')}"
    if reason:
        warn(f"method='auto' took {explanation.method!r}, because {reason}.")
    return replace(explanation, auto=True)


def _explained(question: _Question, spec: Method, settings: dict[str, Any]) -> Explanation:
    """Explain by one method; the settings, all its options, are filled with what the pass decided."""
    model, batch, target = question.model, question.prepared.batch, question.target
    anatomy, needs = _anatomy(question, spec, settings)
    headless = not spec.class_specific and target is None and _is_headless(model, anatomy)
    if has_concept(target) or headless:
        needs = needs.with_latent()
    elif "heads" not in needs.keep and not callable(target):
        _check_classifier(model, anatomy, spec)
    if "layer" in settings and anatomy.features is not None:
        settings["layer"] = anatomy.features.name
    rules = None if spec.rules is None else spec.rules(settings, anatomy)
    # The model ends in its latent vector; timm puts an identity in the place of a classifier left out.
    lacks_classifier = anatomy.head is None or isinstance(anatomy.head, nn.Identity)
    bare = headless or (has_concept(target) and lacks_classifier)
    read = "logits" if _is_regression(question) or bare else question.outputs
    with observe(model, anatomy, batch, needs, rules, question.progress, read) as trace:
        trace.seed = question.seed
        finite = torch.isfinite(trace.logits.detach()).flatten(1).all(1)
        if not bool(finite.all()):
            raise NotFiniteOutputError((~finite).nonzero()[:, 0].tolist(), len(finite))
        several = trace.sighting is not None and trace.sighting.multi_label
        several = several or has_sigmoids(trace.anatomy.ending, trace.logits)
        task = question.task or usual_task(model, several)
        names = None if bare else names_of(model, question.class_names, trace.logits, task)
        resolved = no_target(task) if headless else resolve_target(target, trace.logits, names, task)
        for block in trace.blocks:
            block.targets = resolved.count
        values = resolved.scores(trace.outcome).detach()
        scores, special = _scores(spec, trace, resolved, {k: v for k, v in settings.items() if k != "layer"})
        keep: Any = slice(None) if resolved.several else 0  # of the axis of targets
        bad = (~torch.isfinite(scores).flatten(1).all(1)).nonzero()[:, 0].tolist()
        if bad:
            samples = f"{'sample' if len(bad) == 1 else 'samples'} {', '.join(map(str, bad))}"
            raise NotFiniteError(
                f"Method {spec.name!r} gave scores that are not finite on this model, for {samples} of this batch of "
                f"{len(scores)}.",
                scores[:, keep],
            )
        logits = trace.logits.detach()
        settings |= trace.chosen
        if trace.anatomy.ending is not None:
            settings["outputs"] = "probabilities"
        return Explanation(
            scores=scores[:, keep],
            target=None if resolved.index is None else resolved.index[:, keep],
            logits=logits,
            probabilities=None if bare or task == "regression" else probabilities(logits, task == "multi-label"),
            method=spec.name,
            values=None if headless else values[:, keep],
            options=settings,
            seed=question.seed,
            signed=spec.signed if trace.signed is None else trace.signed,
            class_specific=spec.class_specific,
            task=task,
            named=list(resolved.names) or None,
            modality=batch.modality,
            size=(int(batch.pixels.shape[-2]), int(batch.pixels.shape[-1])) if batch.modality == "image" else None,
            class_names=names,
            pictures=question.prepared.pictures,
            tokens=question.prepared.tokens,
            words=question.prepared.words,
            lengths=question.prepared.lengths,
            ids=batch.kwargs.get("input_ids"),
            real=batch.real,
            special=None if special is None else special[:, keep],
            scored=None if batch.special is None else ~batch.special,
            layers={name: layer[:, keep] for name, layer in trace.layers.items()},
            diagnostics={name: finding[:, keep] for name, finding in trace.diagnostics.items()},
            cost=dict(trace.cost),
        )


def _anatomy(question: _Question, spec: Method, settings: Mapping[str, Any]) -> tuple[Anatomy, Needs]:
    """Anatomy of the model and what the method reads of it, checked against each other and against the batch."""
    model, batch = question.model, question.prepared.batch
    anatomy = find_anatomy(model, batch, attention=spec.needs.blocks or spec.rules is not None)
    if (layer := settings.get("layer")) is not None:
        modules = dict(model.named_modules())
        if isinstance(layer, str) and layer not in modules:
            raise unknown_name("layer", layer, [name for name in modules if name])
        module = modules[layer] if isinstance(layer, str) else layer
        if not isinstance(module, nn.Module) or module not in modules.values():
            raise ArgumentTypeError(
                f"Expected layer= to be the name of a submodule or a submodule, but got {type(layer).__name__}."
            )
        anatomy = replace(anatomy, features=FeatureLayer(module, None, name_of(model, module)))
    needs = spec.needs_with(settings, anatomy)
    if batch.modality == "image":
        check_image(batch, anatomy)
    classes = not callable(question.target) and not has_concept(question.target)
    spec.check_serves(anatomy, batch.tokens(anatomy), needs, classes)
    return anatomy, needs


def _is_headless(model: nn.Module, anatomy: Anatomy) -> bool:
    """True of a backbone by its make: timm's with an identity for a classifier, or a `...Model` of Hugging Face."""
    if isinstance(anatomy.head, nn.Identity):
        return True
    kind = type(model)
    return anatomy.head is None and kind.__module__.startswith("transformers.") and kind.__name__.endswith("Model")


def _check_classifier(model: nn.Module, anatomy: Anatomy, spec: Method) -> None:
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


def _is_regression(question: _Question) -> bool:
    """Whether outputs are values, which are never probabilities; an unknown task is refused."""
    if question.task is not None and question.task not in get_args(Task):
        raise ArgumentError(f"Expected task {' or '.join(map(repr, get_args(Task)))}, but got {question.task!r}.")
    values = (question.task or usual_task(question.model, False)) == "regression"
    if values and question.outputs == "probabilities":
        raise ArgumentError("Expected probabilities, as outputs= says, but outputs of a regression are values.")
    return values


def _scores(
    spec: Method, trace: Trace, target: ResolvedTarget, options: Mapping[str, Any]
) -> tuple[Tensor, Tensor | None]:
    """Placed scores (B, K, ...) of all targets, and for text the scores (B, K, T) of special tokens."""
    if spec.target in ("class", "scores"):
        rows = list(spec.function(trace, target if spec.target == "scores" else target.index, **options).unbind(1))
    elif spec.class_specific:
        rows = _scores_by_target(spec, trace, target, options)
    else:
        rows = [spec.function(trace, **options)] * target.count
    rows = [full(row.detach()) for row in rows]
    placed = torch.stack([trace.place(row) for row in rows], 1)
    if trace.batch.special is None or trace.batch.real is None:
        return placed, None
    outside = trace.batch.special & trace.batch.real
    return placed, torch.stack([row.where(outside, 0.0) for row in rows], 1)


def _scores_by_target(spec: Method, trace: Trace, target: ResolvedTarget, options: Mapping[str, Any]) -> list[Tensor]:
    """Scores (B, ...) of each target; what the method says beside them is joined along the axis of targets."""
    rows: list[Tensor] = []
    beside: dict[tuple[str, str], list[Tensor]] = {}
    for k in range(target.count):
        rows.append(spec.function(trace, target.score(trace.outcome, k), **options))
        for name, scores in trace.layers.items():
            beside.setdefault(("layers", name), []).append(trace.on_grid(scores.detach()))
        for name, finding in trace.diagnostics.items():
            beside.setdefault(("diagnostics", name), []).append(finding.detach())
    for (group, name), parts in beside.items():
        getattr(trace, group)[name] = torch.stack(parts, 1)
    return rows
