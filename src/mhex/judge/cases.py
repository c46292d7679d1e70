"""What metrics are given: the maps of a method on a batch, and ways to make others."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from mhex._files import write_tensors, writing
from mhex.capture import Outputs
from mhex.errors import ArgumentError, NotFiniteError, NotFiniteOutputError
from mhex.explain import explain
from mhex.inputs.data import select
from mhex.inputs.samples import Samples
from mhex.judge.controls import control
from mhex.judge.plan import Judged
from mhex.judge.rows import Gaps
from mhex.judge.saved_maps import Shown
from mhex.judge.store import Parts
from mhex.metrics.case import Case
from mhex.perturb import Subject
from mhex.targets import Task


class Cache:
    """Maps by model, task, method, options, seed, samples and classes.

    Args:
        folder: Where they are kept.
        model: Fingerprint of the weights, so that another model's maps are not taken for its own.
        task: What its outputs were taken for.
        outputs: Whether they are logits or probabilities.
    """

    def __init__(self, folder: Path, model: str, task: str, outputs: Outputs = "logits") -> None:
        self.folder, self.model, self.task = folder, model, task if outputs == "logits" else f"{task} by {outputs}"

    def _path(self, method: Judged, inputs: tuple[str, ...], classes: Tensor, seed: int) -> Path:
        told = repr((self.model, self.task, method.name, method.written, seed, inputs, classes.tolist()))
        return self.folder / f"{method.name}-{hashlib.sha256(told.encode()).hexdigest()[:24]}.safetensors"

    def get(self, method: Judged, inputs: tuple[str, ...], classes: Tensor, seed: int) -> Tensor | None:
        """The maps of a batch, by digests of its samples; None if they are not there."""
        path = self._path(method, inputs, classes, seed)
        if not path.exists():
            return None
        try:
            tensors = load_file(path)
            if "scores" not in tensors or len(tensors["scores"]) != len(inputs):
                raise SafetensorError(f"it holds no map of each of {len(inputs)} samples")
            return tensors["scores"].to(classes.device)
        except (OSError, SafetensorError) as error:
            told = f"Expected maps in {str(path)!r}, but the file is damaged ({error})"
            raise ArgumentError(f"{told}; delete it, and they are made again.") from error

    def put(self, method: Judged, inputs: tuple[str, ...], classes: Tensor, seed: int, scores: Tensor) -> None:
        """Keep the maps of a batch; a file is written whole or not at all."""
        path = self._path(method, inputs, classes, seed)
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        write_tensors({"scores": scores, "classes": classes}, path)


@dataclass(frozen=True)
class Run:
    """What does not change from batch to batch."""

    model: nn.Module
    evaluator: nn.Module
    relabelled: nn.Module | None
    preprocess: Callable[[Any], Tensor] | None
    tokenizer: Callable[..., Mapping[str, Any]] | None
    target: str | int
    seed: int
    inner_batch: int | None
    cache: Cache | None
    parts: Parts
    task: Task
    outputs: Outputs = "logits"  # of the model and the relabelled one
    curves: Parts | None = None
    shown: Shown | None = None
    needs: frozenset[str] = frozenset()  # of the data beside inputs, by the names of `Samples`
    redraw: bool = False  # whether random maps are drawn anew for changed inputs, as every other map is made anew
    skipped: dict[str, set[int]] = field(default_factory=dict)  # by method, samples whose maps are not finite
    lost: dict[int, str] = field(default_factory=dict)  # samples that count for no method, and why


def digests(samples: Samples, subject: Subject) -> tuple[str, ...]:
    """A short name for each sample and what the data says of it, so that other data are not taken for these."""
    real = subject.batch.real
    found = []
    for n in range(len(samples.ids)):
        own = subject.main[n] if real is None else subject.main[n][real[n]]
        mixed = hashlib.sha256(own.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
        beside = (samples.label, samples.mask, samples.rationale, samples.other, samples.tiles)
        for value in beside:
            told = None if value is None else value[n]
            mixed.update(repr(told.tolist() if isinstance(told, Tensor) else told).encode())
        found.append(mixed.hexdigest()[:16])
    return tuple(found)


def prepare_case(run: Run, samples: Samples, subject: Subject) -> None:
    """Make what the cases of all methods share: outputs, masks at the size that the model sees, classes to explain."""
    _ = subject.logits
    if "mask" in run.needs:
        _masks(run, samples, subject)
    _explained(run, samples, subject)


def case_of(run: Run, samples: Samples, marks: tuple[str, ...], method: Judged, subject: Subject, gaps: Gaps) -> Case:
    """The map of a method, or a control, for the class that is explained; what is not finite is noted as a gap."""
    mask = _masks(run, samples, subject) if "mask" in run.needs else None
    classes = _explained(run, samples, subject)
    maps = gaps.own(_maps(run, marks, method, subject, samples.inputs, classes))
    other_class = None if samples.other is None else samples.other.to(classes.device)
    if other_class is None and "other" in run.needs:
        other_class = torch.full_like(classes, -1)

    def remade(model: nn.Module, inputs: Any, classes: Tensor) -> Tensor:
        try:
            return _fresh(run, model, method, subject, inputs, classes)
        except NotFiniteOutputError:
            return torch.full_like(maps, torch.nan)

    case = Case(
        subject,
        maps,
        classes,
        mask=mask,
        rationale=[[] for _ in samples.ids] if samples.rationale is None else samples.rationale,
        tiles=samples.tiles,
        again=lambda inputs, classes: gaps.again(remade(run.model, inputs, classes), case),
        other_class=other_class,
        model=None if run.evaluator is run.model else run.model,
    )
    if (relabelled := run.relabelled) is not None:
        case.relabelled = lambda inputs, classes: gaps.again(remade(relabelled, inputs, classes), case)
    if other_class is not None:
        for_other = torch.where(other_class < 0, classes, other_class)
        case.other = lambda: Case(
            subject,
            gaps.again(_maps(run, marks, method, subject, samples.inputs, for_other), case),
            for_other,
            other_class=classes,
        )
    return case


def _masks(run: Run, samples: Samples, subject: Subject) -> Tensor:
    """Masks at the size that the model sees, (B, H, W), int8, once for all methods; -1 all over where there is none."""
    if "masks" not in subject.shared:
        size = (int(subject.batch.pixels.shape[-2]), int(subject.batch.pixels.shape[-1]))
        found = torch.full((len(samples.ids), *size), -1, dtype=torch.int8)
        for n, mask in enumerate(samples.mask or ()):
            if mask is not None:
                found[n] = _at_size(run, samples, mask, size)
        subject.shared["masks"] = found.to(subject.device)
    masks: Tensor = subject.shared["masks"]
    return masks


def _at_size(run: Run, samples: Samples, mask: Tensor, size: tuple[int, int]) -> Tensor:
    """A mask (h, w) at another size, each pixel one of its own: maps that are there already stay as they are."""
    if tuple(mask.shape) == size:
        return mask
    if not isinstance(samples.inputs, (Tensor, Mapping)) and not getattr(run.preprocess, "whole_photo", False):
        raise ArgumentError(
            f"Expected masks of the size that the model sees, {size}, but got {tuple(mask.shape)}: preprocessing "
            "does not say that it crops nothing, so it is not known where they lie. Give masks after it."
        )
    return F.interpolate(mask[None, None].float(), size=size, mode="nearest-exact")[0, 0].to(mask)


def _explained(run: Run, samples: Samples, subject: Subject) -> Tensor:
    """The class that is explained of each sample, (B,), once for all methods."""
    if "explained" not in subject.shared:
        subject.shared["explained"] = _chosen(run, samples, subject)
    classes: Tensor = subject.shared["explained"]
    return classes


def _chosen(run: Run, samples: Samples, subject: Subject) -> Tensor:
    if run.target == "label":
        label = samples.label
        assert label is not None  # checked for each batch
        return label.to(subject.device)
    if isinstance(run.target, int):
        return torch.full_like(subject.predicted, run.target)
    if run.evaluator is run.model:
        return subject.predicted
    return _explained_model(run, samples, subject).predicted


def _explained_model(run: Run, samples: Samples, subject: Subject) -> Subject:
    """The samples as the explained model sees them, which is the subject itself unless another model is read."""
    if run.evaluator is run.model:
        return subject
    if "explained model" not in subject.shared:
        subject.shared["explained model"] = Subject(
            run.model, samples.inputs, preprocess=run.preprocess, tokenizer=run.tokenizer, outputs=run.outputs
        )
    explained: Subject = subject.shared["explained model"]
    return explained


def finite_of(run: Run, samples: Samples, subject: Subject) -> Tensor:
    """Whether the models' outputs are finite for each sample, bool (B,)."""
    return subject.finite & _explained_model(run, samples, subject).finite


def _maps(run: Run, marks: tuple[str, ...], method: Judged, subject: Subject, inputs: Any, classes: Tensor) -> Tensor:
    """Maps of a method for a class of each sample, from the cache where they are there."""
    if run.cache is None or method.control:
        return _fresh(run, run.model, method, subject, inputs, classes)
    found = run.cache.get(method, marks, classes, run.seed)
    if found is None:
        found = _fresh(run, run.model, method, subject, inputs, classes)
        run.cache.put(method, marks, classes, run.seed, found)
    return found


def _fresh(run: Run, model: nn.Module, method: Judged, subject: Subject, inputs: Any, classes: Tensor) -> Tensor:
    """The same, made now, of any inputs and model; they may hold NaN or infinity."""
    options: dict[str, Any] = {"preprocess": run.preprocess, "tokenizer": run.tokenizer}
    if method.control:
        other = isinstance(inputs, Tensor) or (isinstance(inputs, Mapping) and "pixel_values" in inputs)
        seen = Subject(model, inputs, ids=subject.ids, outputs=run.outputs, **options) if other else subject
        anew = run.redraw and not torch.equal(seen.main, subject.main)
        return control(method.control, seen, _seed_of(seen, run.seed) if anew else run.seed)
    options |= {"task": run.task, "outputs": run.outputs, "seed": run.seed, **method.options}
    return _scores(model, inputs, method.name, classes, options)


def _scores(model: nn.Module, inputs: Any, method: str, classes: Tensor, options: Mapping[str, Any]) -> Tensor:
    """Maps (B, ...) of a method; NaN for samples that have none."""
    try:
        return explain(model, inputs, method, classes, **options).scores
    except NotFiniteError as error:
        scores: Tensor = error.scores
        return scores
    except NotFiniteOutputError as error:
        # Such as of inputs with noise, or for a model that is not the one whose outputs were looked at before.
        rest = [place for place in range(error.count) if place not in error.samples]
        if not rest:
            raise
        part = _scores(model, select(inputs, rest), method, classes[rest], options)
        whole = part.new_full((error.count, *part.shape[1:]), torch.nan)
        whole[rest] = part
        return whole


def _seed_of(subject: Subject, seed: int) -> int:
    """A seed of these very inputs."""
    told = subject.main.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
    return int(hashlib.sha256(repr(seed).encode() + told).hexdigest()[:12], 16)
