"""A method prepared for a model: what depends on the model and the options alone is checked once, not per batch."""

import difflib
import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, get_args

import torch
from torch import Tensor, nn

from mhex._settings import check_seed
from mhex.auto import AUTO, TABLE, has_concept, is_headless, kind_of
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
from mhex.capture.cuda_graph import (
    Recordings,
    has_hooks,
    random_state,
    settings_of_arithmetic,
    tensors_of,
    with_tensors,
)
from mhex.capture.inventory import inventory_of
from mhex.capture.operations import Rules
from mhex.capture.threads import is_recording, turn
from mhex.capture.wrappers import compiled_form
from mhex.errors import (
    ArgumentError,
    ArgumentTypeError,
    CaptureError,
    MhexError,
    ModelInUseError,
    NotFiniteOutputError,
    StaleError,
    UnsupportedModelError,
    unknown_name,
    warn,
)
from mhex.explanation import Explanation
from mhex.findings import Findings, check_outputs_finite, sums_of
from mhex.inputs import Prepared, check_image, prepare, with_window
from mhex.inputs.prepared import finite
from mhex.methods import get_method
from mhex.registry import Method
from mhex.targets import ResolvedTarget, Target, Task, names_of, no_target, resolve_target, usual_task


class Explainer:
    """Explains batch after batch of one model by one method.

    Options, names and the model's anatomy are checked and prepared once. A model that changes between two calls (other
    modules, another device or dtype, heads attached) is noticed, and prepared for again. An explainer may be used by
    several threads, holds no hook in the model between calls, and can be pickled where the model can.

    Args:
        model: As for `mhex.explain`, like everything else but the inputs and the target.
        method: A name from `mhex.list_methods()`, or `"auto"`.
        seed: For methods that draw random numbers.
        progress: Draw progress bars for long work.
        record: On a GPU, record the work for the third batch of a shape as a CUDA graph, which later batches of that
            shape replay: small batches then take a fraction of the time. A recording keeps the memory of one pass.
            Models with hooks, and methods of several passes, are never recorded. False for models whose forward does
            something that a GPU does not see, such as counting its calls.
        preprocess: From a PIL image to a tensor (C, H, W).
        window: Values of photos that become black and white.
        tokenizer: A Hugging Face tokenizer.
        class_names: Names of the model's outputs.
        task: `"classification"`, `"multi-label"` or `"regression"`.
        outputs: `"logits"` or `"probabilities"`.
        options: Options of the method.

    Example:
        >>> import torch, torchvision, mhex
        >>> explainer = mhex.Explainer(torchvision.models.resnet18(), "gradcam")
        >>> [tuple(explainer(batch).scores.shape) for batch in torch.rand(3, 2, 3, 64, 64)]
        [(2, 2, 2), (2, 2, 2), (2, 2, 2)]
    """

    def __init__(
        self,
        model: nn.Module | Bundle,
        method: str = AUTO,
        *,
        seed: int = 0,
        progress: bool = False,
        record: bool = True,
        preprocess: Callable[[Any], Tensor] | None = None,
        window: tuple[float, float] | None = None,
        tokenizer: Callable[..., Mapping[str, Any]] | None = None,
        class_names: Sequence[str] | Mapping[int, str] | None = None,
        task: Task | None = None,
        outputs: Outputs | None = None,
        **options: Any,
    ) -> None:
        bundle = as_bundle(model)
        self.model, self._entrance = unwrap(bundle.model), bundle.model
        self.method = method
        spec = None if method == AUTO else get_method(method)
        _check_argument_names(options, spec)
        if spec is None and options:
            raise ArgumentError(
                f"Expected a method beside the option {', '.join(map(repr, options))}, because options are those of "
                "one method: name it with method=."
            )
        self.options = {} if spec is None else spec.check_options(options)
        check_outputs(outputs)
        if task is not None and task not in get_args(Task):
            raise ArgumentError(f"Expected task {' or '.join(map(repr, get_args(Task)))}, but got {task!r}.")
        self.preprocess, self.window = preprocess or bundle.preprocess, window
        self.tokenizer = tokenizer or bundle.tokenizer
        self.class_names = bundle.class_names if class_names is None else class_names
        self.task, self.outputs, self.seed, self.progress = task, outputs, check_seed("seed", seed), progress
        self.record = record
        self._preparations: dict[Any, _Preparation] = {}
        self._recordings: Recordings[Findings] = Recordings()

    def __call__(self, inputs: Any, target: Target = None) -> Explanation:
        """Explain a batch; inputs and target are those of `mhex.explain`."""
        started = time.perf_counter()
        spec = None if self.method == AUTO else get_method(self.method)
        if spec is not None and spec.target == "class" and (callable(target) or has_concept(target)):
            kind = "a concept" if has_concept(target) else "a function"
            raise ArgumentError(
                f"Method {spec.name!r} explains classes: expected a class number or name as target, but got {kind}."
            )
        with torch.inference_mode(False):
            if not isinstance(inputs, Prepared):
                reading = with_window(self.preprocess, self.window, inputs)
                inputs = prepare(self.model, inputs, reading, self.tokenizer, check_later=True)
            if spec is None:
                explanation = self._explained_by_table(inputs, target)
            else:
                explanation = self._explained(spec, dict(self.options), inputs, target)
        explanation.cost["seconds"] = time.perf_counter() - started
        return explanation

    def forget(self) -> None:
        """Forget what was prepared and recorded, and give the memory of recordings back."""
        self._preparations.clear()
        self._recordings.clear()

    def __getstate__(self) -> dict[str, Any]:
        dropped = ("_entrance", "_preparations", "_recordings")
        return {name: value for name, value in vars(self).items() if name not in dropped}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _entrance=state["model"], _preparations={}, _recordings=Recordings())

    def _explained_by_table(self, prepared: Prepared, target: Target) -> Explanation:
        """Explain by the first method of the model's row in the table that can."""
        anatomy = find_anatomy(self.model, prepared.batch)
        names = TABLE[kind_of(self.model, anatomy, target)]
        reason = ""
        for name in names:
            spec = get_method(name)
            try:
                explanation = self._explained(spec, dict(spec.options), prepared, target)
                break
            except (UnsupportedModelError, CaptureError) as error:
                if name == names[-1] or isinstance(error, (NotFiniteOutputError, ModelInUseError)):
                    raise  # no other method would do better
                why = error.reason if isinstance(error, UnsupportedModelError) else str(error)
                reason = reason or f"{name!r} cannot explain this model: {why.rstrip('.')}"
        if reason:
            warn(f"method='auto' took {explanation.method!r}, because {reason}.")
        return replace(explanation, auto=True)

    def _explained(self, spec: Method, settings: dict[str, Any], prepared: Prepared, target: Target) -> Explanation:
        """Explain by one method; the settings, all its options, are filled with what the pass decided."""
        preparation = self._prepare(spec, settings, prepared, target)
        answer = self._replayed(preparation, settings, prepared, target)
        if answer is None:
            answer = self._answer(preparation, dict(settings), prepared, target)
        explanation = answer.explanation(prepared, self.seed)  # before the check, which waits for the device
        try:
            answer.check(prepared)
        except StaleError:
            self._recordings.clear()
            answer = self._answer(preparation, settings, prepared, target)
            answer.check(prepared)
            explanation = answer.explanation(prepared, self.seed)
        return explanation

    def _prepare(self, spec: Method, settings: Mapping[str, Any], prepared: Prepared, target: Target) -> "_Preparation":
        """What the method needs on this model, from an earlier call if the model and the kind of batch are the same."""
        batch, concept = prepared.batch, has_concept(target)
        anatomy = find_anatomy(self.model, batch, attention=spec.needs.blocks or spec.rules is not None)
        if batch.modality == "image":
            check_image(batch, anatomy)
        key = (spec.name, callable(target), concept, target is None, batch.tokens(anatomy))
        preparation = self._preparations.get(key)
        if preparation is None or preparation.found is not anatomy:
            preparation = _prepared(self, spec, settings, anatomy, key[-1], target)
            if len(self._preparations) >= _MOST:
                self._preparations.clear()
            self._preparations[key] = preparation
        if preparation.asks_classifier:  # heads may have been told to answer since
            _check_classifier(self.model, preparation.anatomy, spec)
        return preparation

    def _replayed(
        self, preparation: "_Preparation", settings: dict[str, Any], prepared: Prepared, target: Target
    ) -> Findings | None:
        """The answer of a recorded pass; None where there is none."""
        batch, model, template = prepared.batch, self.model, preparation.answers.get(prepared.batch.modality)
        inventory = inventory_of(model, check=False)  # its anatomy was just asked for
        if template is None or inventory.device.type != "cuda" or not self.record or has_hooks(model, inventory):
            return None
        inputs, resolved = tensors_of(batch), None
        if target is not None and not (isinstance(target, str) and target.startswith("top")):
            resolved = resolve_target(
                target, template.logits[:1].expand(batch.size, -1), template.class_names, template.task
            )
            if resolved.index is None:
                return None
            inputs["target"] = resolved.index
        shapes = tuple((name, tensor.shape, tensor.dtype) for name, tensor in inputs.items())
        arguments: dict[Any, Any] = {**dict(enumerate(batch.args)), **batch.kwargs}
        others = repr({name: value for name, value in arguments.items() if not isinstance(value, Tensor)})
        several = None if resolved is None else resolved.several
        asked = str(target) if resolved is None else ""  # None, or "top5"
        key = (
            preparation.spec.name,
            shapes,
            repr(others),
            several,
            asked,
            prepared.unchecked,
            *settings_of_arithmetic(),
        )

        def work(tensors: dict[str, Tensor]) -> tuple[dict[str, Tensor], Findings]:
            index = tensors.get("target")
            known = None if index is None or resolved is None else replace(resolved, index=index)
            same = replace(prepared, batch=with_tensors(batch, tensors))
            answer = self._answer(preparation, dict(settings), same, target, known)
            return answer.tensors(), answer

        recording = self._recordings.get(key, model, inventory, work, inputs)
        if recording is None:
            return None
        with turn(inventory.keys):
            tensors, answer = recording(inputs)
        return answer.with_tensors(tensors)

    def _answer(
        self,
        preparation: "_Preparation",
        settings: dict[str, Any],
        prepared: Prepared,
        target: Target,
        resolved: ResolvedTarget | None = None,
    ) -> Findings:
        """Run the model and the method once; a target may be resolved already."""
        spec, anatomy, headless = preparation.spec, preparation.anatomy, preparation.headless
        batch, model, bare = prepared.batch, self.model, preparation.bare
        if "layer" in settings and anatomy.features is not None:
            settings["layer"] = anatomy.features.name
        read = "logits" if preparation.values or bare else self.outputs
        compiled = None if is_recording() else compiled_form(self._entrance)
        needs, rules = preparation.needs, preparation.rules
        inventory = inventory_of(model, check=False)  # its anatomy was just asked for
        recordable = self.record and inventory.device.type == "cuda" and not is_recording()
        seeds = random_state(model) if recordable else b""
        with observe(model, anatomy, batch, needs, rules, self.progress, read, compiled, check=False) as trace:
            trace.seed = self.seed
            several = trace.sighting is not None and trace.sighting.multi_label
            several = several or has_sigmoids(trace.anatomy.ending, trace.logits)
            task = self.task or usual_task(model, several)
            names = None if bare else names_of(model, self.class_names, trace.logits, task)
            try:
                if resolved is None:
                    resolved = no_target(task) if headless else resolve_target(target, trace.logits, names, task)
                trace.of_class = resolved.index is not None
                for block in trace.blocks:
                    block.targets = resolved.count
                values = resolved.scores(trace.outcome)
                options = {name: value for name, value in settings.items() if name != "layer"}
                scores, special = _scores(spec, trace, resolved, values, options)
            except MhexError as error:
                if prepared.unchecked:
                    finite(batch.pixels, "images")
                check_outputs_finite(trace.logits, error)
                raise
            settings |= trace.chosen
            if trace.anatomy.ending is not None:
                settings["outputs"] = "probabilities"
            answer = Findings(
                spec=spec,
                settings=settings,
                resolved=resolved,
                scores=scores,
                special=special,
                logits=trace.logits.detach(),
                values=None if headless else values.detach(),
                layers=dict(trace.layers),
                diagnostics=dict(trace.diagnostics),
                signed=spec.signed if trace.signed is None else trace.signed,
                task=task,
                class_names=names,
                bare=bare,
                cost=dict(trace.cost),
                sums=sums_of(prepared, trace.logits.detach(), scores, [flag for flag, _ in trace.checks]),
                reactions=[react for _, react in trace.checks],
            )
            known = read == "logits" or inventory.knows(("logits", "heads" in preparation.needs.keep))
            few = recordable and known and not trace.is_random and trace.cost["forwards"] <= _FEW
            if few and random_state(model) == seeds:
                preparation.answers[batch.modality] = answer.template()
        return answer


@dataclass(frozen=True)
class _Preparation:
    """What one method needs on one model, for one kind of target and length of inputs."""

    spec: Method
    found: Anatomy  # as it was found
    anatomy: Anatomy  # with the layer that the user named
    needs: Needs
    rules: Rules | None
    asks_classifier: bool  # a class is explained, by the model's own classifier
    headless: bool  # no target, because the model has no classifier and the method looks at none
    bare: bool  # the model ends in its latent vector
    values: bool  # outputs are values, which are never probabilities
    answers: dict[str, Findings] = field(default_factory=dict)  # an earlier answer, of methods that can be recorded


def _prepared(
    explainer: Explainer,
    spec: Method,
    settings: Mapping[str, Any],
    anatomy: Anatomy,
    tokens: int | None,
    target: Target,
) -> _Preparation:
    """Check a method, its settings and the kind of target against the anatomy of a model."""
    model, found = explainer.model, anatomy
    if (layer := settings.get("layer")) is not None:
        anatomy = replace(anatomy, features=_layer(model, layer))
    needs = spec.needs_with(settings, anatomy)
    concept = has_concept(target)
    spec.check_serves(anatomy, tokens, needs, classes=not callable(target) and not concept)
    headless = not spec.class_specific and target is None and is_headless(model, anatomy)
    if concept or headless:
        needs = needs.with_latent()
    # The model ends in its latent vector; timm puts an identity in the place of a classifier left out.
    lacks_classifier = anatomy.head is None or isinstance(anatomy.head, nn.Identity)
    values = (explainer.task or usual_task(model, False)) == "regression"
    if values and explainer.outputs == "probabilities":
        raise ArgumentError("Expected probabilities, as outputs= says, but outputs of a regression are values.")
    return _Preparation(
        spec=spec,
        found=found,
        anatomy=anatomy,
        needs=needs,
        rules=None if spec.rules is None else spec.rules(settings, anatomy),
        asks_classifier=not (concept or headless or "heads" in needs.keep or callable(target)),
        headless=headless,
        bare=headless or (concept and lacks_classifier),
        values=values,
    )


_MOST = 64  # preparations: texts of other lengths need others
_FEW = 3  # passes of a method that can be recorded: it measures the read-out, or takes plain gradients too
_ARGUMENTS = [name for name in inspect.signature(Explainer).parameters if name not in ("options", "self")]


def _check_argument_names(options: Mapping[str, Any], spec: Method | None) -> None:
    """Refuse an option that looks like a misspelled argument of `explain`."""
    existing = {} if spec is None else spec.options
    arguments = [*_ARGUMENTS, "inputs", "target"]
    for name in options:
        near = [] if name in existing else difflib.get_close_matches(name, [*existing, *arguments], n=1, cutoff=0.8)
        if near and near[0] == name:
            raise ArgumentError(
                f"Expected {name}= in the call of the explainer, explainer(inputs, target), not before."
            )
        if near and near[0] in arguments:
            raise ArgumentError(f"mhex.explain has no argument {name!r}. Did you mean {near[0]}=?")


def _layer(model: nn.Module, layer: Any) -> FeatureLayer:
    """The layer that the user named, or gave, as one whose feature maps are read."""
    modules = dict(model.named_modules())
    if isinstance(layer, str) and layer not in modules:
        raise unknown_name("layer", layer, [name for name in modules if name])
    module = modules[layer] if isinstance(layer, str) else layer
    if not isinstance(module, nn.Module) or module not in modules.values():
        raise ArgumentTypeError(
            f"Expected layer= to be the name of a submodule or a submodule, but got {type(layer).__name__}."
        )
    return FeatureLayer(module, None, name_of(model, module))


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


def _scores(
    spec: Method, trace: Trace, target: ResolvedTarget, values: Tensor, options: Mapping[str, Any]
) -> tuple[Tensor, Tensor | None]:
    """Placed scores (B, K, ...) of all targets, and for text the scores (B, K, T) of special tokens.

    `values` are what the model gave the targets, (B, K), in the graph.
    """
    if spec.target in ("class", "scores"):
        rows = list(spec.function(trace, target if spec.target == "scores" else target.index, **options).unbind(1))
    elif spec.class_specific:
        rows = _scores_by_target(spec, trace, values, options)
    else:
        rows = [spec.function(trace, **options)] * target.count
    rows = [full(row.detach()) for row in rows]
    placed = torch.stack([trace.place(row) for row in rows], 1)
    if trace.batch.special is None or trace.batch.real is None:
        return placed, None
    outside = trace.batch.special & trace.batch.real
    return placed, torch.stack([row.where(outside, 0.0) for row in rows], 1)


def _scores_by_target(spec: Method, trace: Trace, values: Tensor, options: Mapping[str, Any]) -> list[Tensor]:
    """Scores (B, ...) of each target; what the method says beside them is joined along the axis of targets."""
    rows: list[Tensor] = []
    beside: dict[tuple[str, str], list[Tensor]] = {}
    for k in range(values.shape[1]):
        rows.append(spec.function(trace, values[:, k], **options))
        for name, scores in trace.layers.items():
            beside.setdefault(("layers", name), []).append(trace.on_grid(scores.detach()))
        for name, finding in trace.diagnostics.items():
            beside.setdefault(("diagnostics", name), []).append(finding.detach())
    for (group, name), parts in beside.items():
        getattr(trace, group)[name] = torch.stack(parts, 1)
    return rows
