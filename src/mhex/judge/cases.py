"""What metrics are given: a batch of samples, the maps of a method on it, and ways to make other maps."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from mhex._files import write_tensors, writing
from mhex._settings import check_that
from mhex.bundle import Bundle, as_bundle
from mhex.capture import Outputs, unwrap
from mhex.errors import ArgumentError, NotFiniteError, NotFiniteOutputError, some_of, warn
from mhex.explainer import Explainer
from mhex.heads.predictors import check_answering
from mhex.inputs import Prepared, prepare, with_window
from mhex.inputs.data import select
from mhex.inputs.parts import InputParts
from mhex.inputs.prepared import place_of
from mhex.inputs.samples import ClassLabel, Samples, losses_in_words
from mhex.judge.controls import control
from mhex.judge.plan import MethodRun, fingerprint, outputs_of, task_of_subject, tensor_bytes
from mhex.judge.store import CURVES, Parts, SampleKey, SavedMaps
from mhex.metrics.case import Case
from mhex.perturb import Subject
from mhex.targets import names_of, resolve_target

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_MAIN = "main"  # maps that all metrics read
PARTS_BATCH = 64  # inputs without some of their parts that are prepared at once


SoundSamples = tuple[Samples, Prepared]  # samples that can be judged, and their inputs for the explained model


class MapCache:
    """Maps on disk, by fingerprint of the model, task, outputs, method, options, seed, samples and classes."""

    def __init__(self, folder: Path, model: str, task: str, outputs: Outputs = "logits") -> None:
        self.folder, self.model, self.task = folder, model, task if outputs == "logits" else f"{task} by {outputs}"

    def _path(self, method: MethodRun, digests: tuple[str, ...], classes: Tensor, seed: int) -> Path:
        key = repr((self.model, self.task, method.name, method.options_json, seed, digests, classes.tolist()))
        return self.folder / f"{method.name}-{hashlib.sha256(key.encode()).hexdigest()[:24]}.safetensors"

    def get(self, method: MethodRun, digests: tuple[str, ...], classes: Tensor, seed: int) -> Tensor | None:
        """The maps of a batch, by digests of its samples; None if they are not there."""
        path = self._path(method, digests, classes, seed)
        if not path.exists():
            return None
        try:
            tensors = load_file(path)
            scores = tensors.get("scores", torch.empty(0))
            if scores.dim() not in (2, 3) or len(scores) != len(digests) or scores.dtype not in _FLOATS:
                raise SafetensorError(f"it holds no map of each of {len(digests)} samples")
            return scores.to(classes.device)
        except (OSError, SafetensorError) as error:
            damage = f"Expected maps in {str(path)!r}, but the file is damaged ({error})"
            raise ArgumentError(f"{damage}; delete it, and they are made again.") from error

    def put(self, method: MethodRun, digests: tuple[str, ...], classes: Tensor, seed: int, scores: Tensor) -> None:
        """Write the maps of a batch; a file is written whole or not at all."""
        path = self._path(method, digests, classes, seed)
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        write_tensors({"scores": scores, "classes": classes}, path)


def none_judged(lost: Mapping[int, str]) -> str:
    """What is said where all samples are lost."""
    return f"Expected samples that can be judged, but none of {len(lost)} can: {losses_in_words(lost)}."


class Run:
    """A model with the first samples of its data, and what does not change from batch to batch.

    Arguments are those of `mhex.evaluate`; samples that count for no method, and why, are put into `lost`. Batches are
    read until one has samples that can be judged: these are the first.
    """

    needs: frozenset[str] = frozenset()  # of the data beside inputs, by the names of `Samples`
    redraw = False  # whether random maps are drawn anew for changed inputs, as every other map is made anew

    def __init__(
        self,
        model: nn.Module | Bundle,
        batches: Iterator[Samples],
        lost: dict[int, str],
        *,
        target: str | int = "predicted",
        class_names: Sequence[str] | Mapping[int, str] | None = None,
        task: str | None = None,
        outputs: Outputs | None = None,
        evaluator: nn.Module | None = None,
        relabelled: nn.Module | None = None,
        preprocess: Callable[[Any], Tensor] | None = None,
        window: tuple[float, float] | None = None,
        tokenizer: Callable[..., Mapping[str, Any]] | None = None,
        seed: int = 0,
        inner_batch: int | None = None,
    ) -> None:
        bundle = as_bundle(model)
        self.model = unwrap(bundle.model)
        self.relabelled = None if relabelled is None else unwrap(relabelled)
        self.reader = None if evaluator is None else unwrap(evaluator)  # as it was asked for
        self.evaluator = self.model if self.reader is None else self.reader
        models = (relabelled, evaluator, bundle.model)  # in the wrappers that they came in, which may be compiled
        self.entrances = {unwrap(model): model for model in models if model is not None}
        for module in {self.model, self.evaluator} if target == "predicted" else {self.evaluator}:
            check_answering(module, "its outputs are judged")
        self.name, self.lost = bundle.name or type(self.model).__name__, lost
        self.seed, self.inner_batch = seed, inner_batch
        first: SoundSamples | None = None
        for samples in batches:
            self.reading: Any = {
                "preprocess": with_window(preprocess or bundle.preprocess, window, samples.inputs),
                "tokenizer": tokenizer or bundle.tokenizer,
            }
            if (first := self.prepare(samples)) is not None:
                break
        if first is None:
            raise ArgumentError(none_judged(lost))
        self.first, self.prepared = first
        self.subject = Subject(self.entrances[self.model], self.prepared, ids=self.first.ids, outputs=outputs)
        self.task, self.outputs = task_of_subject(self.subject, task), outputs_of(self.subject)
        self.evaluator_outputs = self.outputs
        if self.evaluator is not self.model:
            inputs = self.evaluator_inputs(*first)
            self.evaluator_outputs = outputs_of(Subject(self.entrances[self.evaluator], inputs, **self.reading))
        self._names = bundle.class_names if class_names is None else class_names
        self._data_names: dict[tuple[str, ...], bool] = {}  # classes of data sets: whether the model has their names
        self.target = target if target in ("predicted", "label") else int(self.numbers([target])[0])
        self.skipped: dict[str, set[int]] = {}  # by method, samples whose maps are not finite
        self.cost = {"passes": 0, "saved": 0}  # of metrics; see `Report`
        self._explainers: dict[str, Explainer] = {}  # of the explained model, by method

    def explainer(self, model: nn.Module, method: MethodRun) -> Explainer:
        """A method's explainer: prepared once for the explained model, and anew for others, such as randomised ones."""
        explainer = self._explainers.get(method.label) if model is self.model else None
        if explainer is None:
            options: dict[str, Any] = {**self.reading, "outputs": self.outputs, "task": self.task, "seed": self.seed}
            # A recording would keep the memory of a pass for each method.
            explainer = Explainer(self.entrances[model], method.name, record=False, **options, **method.options)
            if model is self.model:
                self._explainers[method.label] = explainer
        return explainer

    @cached_property
    def class_names(self) -> list[str] | None:
        """Names of all classes, in their order; None if they are not known."""
        return names_of(self.model, self._names, self.subject.raw_logits, "classification")

    def numbers(self, classes: Sequence[int | str]) -> Tensor:
        """Numbers of classes, (n,); a name that the model does not have is refused, with those that are near it."""
        classes = [
            label.classes[label] if isinstance(label, ClassLabel) and self._has_names(label.classes) else label
            for label in classes
        ]
        if classes and all(isinstance(label, ClassLabel) for label in classes):
            return torch.tensor(list(map(int, classes)))
        numbers = resolve_target(list(classes), self.subject.raw_logits, self.class_names).index
        if numbers is None:
            raise ArgumentError(f"Expected class numbers or names, but got {list(classes)!r}.")
        return numbers[0]

    def _has_names(self, classes: tuple[str, ...]) -> bool:
        """Whether each class of a data set has the name of one class of the model; warns once where some have not."""
        if classes not in self._data_names:
            count = Counter(name.casefold() for name in self.class_names or ())
            strange = [repr(name) for name in classes if count[name.casefold()] != 1]
            self._data_names[classes] = not strange
            if strange and count:
                warn(
                    f"The labels of the data are taken as class numbers of the model, since {some_of(strange, 5)} of "
                    f"the data is not the name of one of its classes, such as {(self.class_names or [''])[0]!r}. If "
                    "the numbers are others, give folders or labels the model's class names, or leave the labels out."
                )
        return self._data_names[classes]

    @cached_property
    def description(self) -> str:
        """What makes rows comparable beside what stands in them, in JSON."""
        models = {"model": self.model, "evaluator": self.reader, "relabelled": self.relabelled}
        prints = {name: fingerprint(module) for name, module in models.items()}
        unusual = {} if self.outputs == "logits" else {"outputs": self.outputs}
        return json.dumps({**prints, "target": str(self.target), "task": self.task, **unusual, "seed": self.seed})

    def keep(
        self, folder: Path | None = None, cache: Path | None = None, curves: bool = True, pictures: int = 0
    ) -> None:
        """Keep rows, and curves and maps of the first samples where they are asked for, in memory or in folders."""
        text, names = self.description, self.class_names if pictures else None
        self.parts, self.keep_curves = Parts(folder, text), curves
        self.curves = Parts(folder if curves else None, text, CURVES)
        self.saved_maps = SavedMaps(folder if pictures else None, text, pictures, names)
        self.cache = None if cache is None else MapCache(cache, fingerprint(self.model), self.task, self.outputs)

    def drop(self, method: MethodRun) -> None:
        """Take out all rows, curves and saved maps of a method."""
        for parts in (self.parts, self.curves, self.saved_maps.maps):
            parts.drop(method)
        self.skipped.pop(method.label, None)

    def prepare(self, samples: Samples) -> SoundSamples | None:
        """Samples with their inputs as the explained model takes them; None if none of them can be judged.

        Those that hold NaN or infinity, also by the user's preprocessing, are noted as lost. Photos are preprocessed
        here, and nowhere else.
        """
        with torch.inference_mode(False):
            prepared = prepare(self.model, samples.inputs, ids=samples.ids, fill=True, **self.reading)
        if not prepared.gaps:
            return samples, prepared
        self.lost.update({samples.ids[place]: "the input holds NaN or infinity" for place in prepared.gaps})
        places = [place for place in range(len(samples.ids)) if place not in prepared.gaps]
        return (samples.only(places), prepared_part(prepared, places)) if places else None

    def evaluator_inputs(self, samples: Samples, prepared: Prepared) -> Any:
        """Inputs for the evaluator: those of the explained model where they fit, so that they are prepared once."""
        alike = prepared.batch.modality == "image" and place_of(self.model) == place_of(self.evaluator)
        return prepared if self.evaluator is self.model or alike else samples.inputs


class SampleBatch:
    """Samples with all that methods share; the evaluator sees them as `subject`, the explained model as `explained`."""

    def __init__(self, run: Run, samples: Samples, prepared: Prepared, progress: bool = False) -> None:
        self.run, self.samples, self.prepared, self.progress = run, samples, prepared, progress
        self.subject = Subject(
            run.entrances[run.evaluator],
            run.evaluator_inputs(samples, prepared),
            samples.label,
            samples.ids,
            **run.reading,
            multi_label=run.task == "multi-label",
            outputs=run.evaluator_outputs,
            batch_size=run.inner_batch,
            progress=progress,
        )
        self.explained = self.subject
        if run.evaluator is not run.model:
            self.explained = Subject(run.entrances[run.model], self.prepared, ids=samples.ids, outputs=run.outputs)
        self.digests = digests(samples, self.subject)
        self.keys: list[SampleKey] = list(zip(samples.ids, self.digests, strict=True))

    @cached_property
    def finite(self) -> list[bool]:
        """Whether the models' outputs are finite for each sample."""
        return list((self.subject.finite & self.explained.finite).tolist())

    @cached_property
    def sound(self) -> SampleBatch | None:
        """The samples for which the models' outputs are finite; None if there are none."""
        if all(self.finite):
            return self
        places = [place for place, finite in enumerate(self.finite) if finite]
        samples, prepared = self.samples.only(places), prepared_part(self.prepared, places)
        return SampleBatch(self.run, samples, prepared, self.progress) if places else None

    @cached_property
    def classes(self) -> Tensor:
        """The class that is explained of each sample, (B,)."""
        if self.run.target == "label" and self.samples.label is not None:
            return self.samples.label.to(self.subject.device)
        if isinstance(self.run.target, int):
            return torch.full_like(self.subject.predicted, self.run.target)
        return self.explained.predicted

    @cached_property
    def masks(self) -> Tensor | None:
        """Masks at the size that the model sees, (B, H, W), int8, -1 all over where there is none; None if not needed.

        Pixels of a mask stay as they are, so that the classes in it do.
        """
        if "mask" not in self.run.needs:
            return None
        size = self._check_size([mask for mask in self.samples.mask or () if mask is not None])
        masks = torch.full((len(self.samples.ids), *size), -1, dtype=torch.int8)
        for n, mask in enumerate(self.samples.mask or ()):
            if mask is not None:
                masks[n] = F.interpolate(mask[None, None].float(), size=size, mode="nearest-exact")[0, 0].to(mask)
        return masks.to(self.subject.device)

    @cached_property
    def parts(self) -> list[InputParts | None] | None:
        """Parts of each sample, with masks at the size that the model sees; None if not needed."""
        if "parts" not in self.run.needs:
            return None
        parts = self.samples.parts or [None] * len(self.samples.ids)
        masks = [value.masks for value in parts if value is not None and value.masks is not None]
        if not masks:
            return parts
        size = self._check_size(masks)
        samples = self.samples
        images = [None] * len(parts) if isinstance(samples.inputs, Mapping) else samples.inputs
        rows = zip(parts, images, samples.ids, strict=True)
        return [None if part is None else part.of(image, size, number) for part, image, number in rows]

    def _check_size(self, masks: Sequence[Tensor]) -> tuple[int, int]:
        """The size that the model sees, (H, W); masks of another one are refused if the preprocessing may crop."""
        height, width = self.subject.batch.pixels.shape[-2:]
        size = (int(height), int(width))
        crops = not isinstance(self.samples.inputs, (Tensor, Mapping))
        if crops and not getattr(self.run.reading["preprocess"], "whole_photo", False):
            for mask in masks:
                advice = "; give masks after preprocessing, because it does not say that it crops nothing"
                shape = tuple(mask.shape[-2:])
                check_that(shape == size, f"masks of the size that the model sees, {size}", shape, advice)
        return size

    def logits(self, inputs: list[Any]) -> Tensor:
        """Logits (M, C) of the evaluator for other inputs in the form of the samples."""
        run, chunks = self.run, []
        for start in range(0, len(inputs), PARTS_BATCH):
            chunk: Any = inputs[start : start + PARTS_BATCH]
            chunk = torch.stack(chunk) if isinstance(chunk[0], Tensor) else chunk
            subject = Subject(
                run.entrances[run.evaluator],
                chunk,
                **run.reading,
                multi_label=run.task == "multi-label",
                outputs=run.evaluator_outputs,
                batch_size=run.inner_batch,
            )
            chunks.append(subject.logits)
            self.subject.passes += subject.passes
        return torch.cat(chunks)


def digests(samples: Samples, subject: Subject) -> tuple[str, ...]:
    """A short name for each sample and what the data says of it, by which samples of different data are kept apart."""
    real, texts = subject.batch.real, []
    for n in range(len(samples.ids)):
        digest = hashlib.sha256(tensor_bytes(subject.main[n] if real is None else subject.main[n][real[n]]))
        for column in (samples.label, samples.mask, samples.rationale, samples.other, samples.tiles):
            value = None if column is None else column[n]
            digest.update(repr(value.tolist() if isinstance(value, Tensor) else value).encode())
        if samples.parts is not None and (parts := samples.parts[n]) is not None:  # rows from before parts stay known
            digest.update(parts.digest.encode())
        texts.append(digest.hexdigest()[:16])
    return tuple(texts)


def prepared_part(prepared: Prepared, places: Sequence[int]) -> Prepared:
    """The samples at some places of a prepared batch."""
    batch = prepared.batch
    args = tuple(select(dict(enumerate(batch.args)), places, batch.size).values())
    roles = {name: select(getattr(batch, name), places) for name in ("real", "special", "patches")}
    kwargs = select(batch.kwargs, places, batch.size)
    small = replace(batch, args=args, kwargs=kwargs, size=len(places), **roles)
    lists = {
        name: select(value, places)
        for name, value in vars(prepared).items()
        if name not in ("batch", "gaps", "unchecked")
    }
    gaps = tuple(place for place, number in enumerate(places) if number in prepared.gaps)
    return replace(prepared, batch=small, gaps=gaps, **lists)


class Gaps:
    """Samples of a batch whose maps by one method are NaN or infinite.

    Metrics are given zeros in their place, and what they say of such a sample is taken back. Maps beside the main ones
    are filed by what they were made for, so that a metric loses the samples whose maps it used, whoever asked first.
    """

    def __init__(self, ids: Sequence[int]) -> None:
        self.ids = tuple(ids)
        self.lost: set[int] = set()  # samples that did not count for one of the metrics so far
        self._asking: Hashable = None
        self._bad: dict[Hashable, Tensor] = {}

    def begin(self, label: str, case: Case) -> None:
        """A metric begins; what it asks a case for is noted from here on."""
        self._asking = ("metric", label)
        case.used = set()

    def fill(self, maps: Tensor, case: Case | None = None) -> Tensor:
        """Maps (B, ...) with zeros in the gaps: maps that all metrics read, or what one or several ask a case for."""
        part = _MAIN if case is None else self._asking if case.making is None else ("shared", case.making)
        bad = ~maps.flatten(1).isfinite().all(1)
        if not bool(bad.any()):
            return maps
        self._bad[part] = self._bad.get(part, torch.tensor(False)) | bad.cpu()
        return maps.masked_fill(bad.view(-1, *(1,) * (maps.dim() - 1)), 0.0)

    def of(self, case: Case) -> Tensor:
        """Samples that do not count for the metric that was begun last, bool (B,)."""
        gaps = torch.zeros(len(self.ids), dtype=torch.bool)
        for part in (_MAIN, self._asking, *(("shared", name) for name in case.used)):
            gaps |= self._bad.get(part, torch.tensor(False))
        self.lost |= {i for i, is_gap in zip(self.ids, gaps.tolist(), strict=True) if is_gap}
        return gaps


def case_of(batch: SampleBatch, method: MethodRun, gaps: Gaps) -> Case:
    """The maps of a method, or a control, for the class that is explained; what is not finite is noted as a gap."""
    run, samples, subject, classes = batch.run, batch.samples, batch.subject, batch.classes
    maps = gaps.fill(_maps(batch, method, classes))
    other_class = None if samples.other is None else samples.other.to(classes.device)
    if other_class is None and "other" in run.needs:
        other_class = torch.full_like(classes, -1)

    def explained_by(model: nn.Module) -> Callable[[Any, Tensor], Tensor]:
        def again(inputs: Any, classes: Tensor) -> Tensor:
            try:
                scores = _new_maps(batch, model, method, inputs, classes)
            except NotFiniteOutputError:
                scores = torch.full_like(maps, torch.nan)
            return gaps.fill(scores, case)

        return again

    case = Case(
        subject,
        maps,
        classes,
        mask=batch.masks,
        rationale=[[] for _ in samples.ids] if samples.rationale is None else samples.rationale,
        tiles=samples.tiles,
        parts=batch.parts,
        answers=batch.logits,
        again=explained_by(run.model),
        other_class=other_class,
        relabelled=None if run.relabelled is None else explained_by(run.relabelled),
        model=None if run.evaluator is run.model else run.model,
    )
    if other_class is not None:
        exchanged = torch.where(other_class < 0, classes, other_class)
        case.other = lambda: Case(
            subject, gaps.fill(_maps(batch, method, exchanged), case), exchanged, other_class=classes
        )
    return case


def _maps(batch: SampleBatch, method: MethodRun, classes: Tensor) -> Tensor:
    """Maps of a method for a class of each sample, from the cache where they are there."""
    run = batch.run
    if run.cache is None or method.control:
        return _new_maps(batch, run.model, method, batch.prepared, classes)
    maps = run.cache.get(method, batch.digests, classes, run.seed)
    if maps is None:
        maps = _new_maps(batch, run.model, method, batch.prepared, classes)
        run.cache.put(method, batch.digests, classes, run.seed, maps)
    return maps


def _new_maps(batch: SampleBatch, model: nn.Module, method: MethodRun, inputs: Any, classes: Tensor) -> Tensor:
    """Maps by any model of its inputs, which may hold NaN or infinity."""
    run, seed = batch.run, batch.run.seed
    if not method.control:
        return _scores(run.explainer(model, method), inputs, classes)
    subject = batch.subject
    if isinstance(inputs, Tensor) or (isinstance(inputs, Mapping) and "pixel_values" in inputs):
        subject = Subject(run.entrances[model], inputs, ids=subject.ids, **run.reading, outputs=run.outputs)
    if run.redraw and not torch.equal(subject.main, batch.subject.main):
        # A seed of these very inputs.
        seed = int(hashlib.sha256(repr(seed).encode() + tensor_bytes(subject.main)).hexdigest()[:12], 16)
    return control(method.control, subject, seed)


def _scores(explainer: Explainer, inputs: Any, classes: Tensor) -> Tensor:
    """Maps (B, ...) of a method; NaN for samples that have none."""
    try:
        return explainer(inputs, classes).scores
    except NotFiniteError as error:
        scores: Tensor = error.scores
        return scores
    except NotFiniteOutputError as error:
        # Such as of inputs with noise, or for a model that is not the one whose outputs were looked at before.
        places = [place for place in range(error.count) if place not in error.samples]
        if not places:
            raise
        chunk = prepared_part(inputs, places) if isinstance(inputs, Prepared) else select(inputs, places, error.count)
        part = _scores(explainer, chunk, classes[places])
        scores = part.new_full((error.count, *part.shape[1:]), torch.nan)
        scores[places] = part
        return scores
