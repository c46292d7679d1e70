"""What `mhex.explain` returns: scores and everything needed to read, draw and save them."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from os import PathLike
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mhex._files import read_tensors, write_tensors
from mhex._settings import check_that
from mhex.capture import Modality
from mhex.errors import ArgumentError, unknown_name
from mhex.inputs.photos import LARGEST, drawn_photo
from mhex.inputs.words import POOLING, Pooling, clean, pool_runs, word_runs
from mhex.targets import Task

Normalisation = Literal["auto", "minmax", "percentile", "relu_max", "none"]
_PERCENTILES = (0.01, 0.99)
_PICTURES = (".png", ".jpg", ".jpeg", ".pdf", ".svg", ".webp")


def normalize(scores: Tensor, how: Normalisation, signed: bool, counted: Tensor | None = None) -> Tensor:
    """Each row of scores (..., P) scaled by itself as `Explanation.normalized` says; rows without spread become zero.

    Of texts, `counted` (..., P) is True where scores count; elsewhere the result is 0.
    """
    if how not in get_args(Normalisation):
        raise unknown_name("normalisation", str(how), get_args(Normalisation))
    if how == "none":
        return scores
    zero = torch.zeros_like(scores[..., :1])
    if how == "auto":
        # Unsigned text scores are 0 at special tokens and padding and non-negative elsewhere: 0 is their floor.
        low = zero if signed or counted is not None else scores.amin(-1, keepdim=True)
        return _spanned(scores, low, (scores.abs() if signed else scores).amax(-1, keepdim=True))
    if how == "percentile":
        low, high = _percentiles(scores, counted)
    else:
        lowest, highest = (scores if counted is None else scores.where(counted, end) for end in (torch.inf, -torch.inf))
        low = zero if how == "relu_max" else lowest.amin(-1, keepdim=True)
        high = highest.amax(-1, keepdim=True)
    scaled = _spanned(scores, low, high).clamp(0, 1)
    return scaled if counted is None else scaled.where(counted, 0.0)


def _spanned(scores: Tensor, low: Tensor, high: Tensor) -> Tensor:
    span = high - low
    # Of a row in which nothing counts, the ends are infinite.
    return torch.where((span > 0) & span.isfinite(), (scores - low) / span, 0.0)


def _percentiles(scores: Tensor, counted: Tensor | None) -> tuple[Tensor, Tensor]:
    """Ends (..., 1); row by row, because rows of text differ in length and `quantile` limits the size of a tensor."""
    rows = scores.reshape(-1, scores.shape[-1])
    masks = torch.ones_like(rows, dtype=torch.bool) if counted is None else counted.reshape(rows.shape)
    shares = torch.tensor(_PERCENTILES, dtype=rows.dtype, device=rows.device)
    parts = [row[mask] for row, mask in zip(rows, masks, strict=True)]
    pairs = [part.quantile(shares) if part.numel() else torch.zeros_like(shares) for part in parts]
    ends = torch.stack(pairs).reshape(*scores.shape[:-1], 2)
    return ends[..., :1], ends[..., 1:]


@dataclass(eq=False)
class Explanation:
    """Scores of a batch for one target, or for K targets at once.

    Attributes:
        scores: Raw scores on the native grid: (B, h, w) for images, (B, T) for text; (B, K, ...) for K targets.
            Special tokens and padding of text score 0.
        target: Class or output explained, (B,), or (B, K); None if the target was a concept or a function, or if there
            was none, because the model has no classifier and the method looks at no target.
        logits: The model's scores, (B, C); of a model that returns probabilities, what they are made of.
        probabilities: Softmax of the logits, (B, C); a single output becomes the two classes 0 and 1. None for
            regressions and models without a classifier. Of a model that returns probabilities, these.
        values: The score that was explained, (B,) or (B, K): a logit, an output, the similarity to a concept.
        method: Name of the method.
        auto: True if mhex chose the method, as `method="auto"` asks for.
        options: All its options; and `outputs`, if the model was seen to return probabilities.
        seed: Seed of its random numbers.
        signed: True if negative scores speak against the target.
        class_specific: False if the method does not look at the target: its scores are the same for every one.
        task: `"classification"`, `"multi-label"` or `"regression"`.
        named: Names of targets that are no classes: concepts.
        modality: `"image"` or `"text"`.
        size: Height and width of the input image; None for text.
        class_names: Names of the classes, if known.
        pictures: The images given, for drawing: PIL images or the tensor (B, C, H, W).
        tokens: The tokens of each text, padding left out.
        words: For each token the index of its word, None at special tokens.
        lengths: How many tokens each text had before it was cut to what the model takes; None if not known.
        real: Text: bool (B, T), False at padding.
        special: Text: scores of class and separator tokens, (B, T) or (B, K, T), 0 elsewhere.
        scored: Text: bool (B, T), True at tokens that are neither special nor padding.
        layers: Maps of single layers by name, each on its own grid, from methods that were asked for them: (B, h, w) or
            (B, T), or with the axis of K targets; of text, with the scores of special tokens.
        diagnostics: What a method found out about its own result, per sample (B,), or with the axis of K targets.
        cost: `forwards`, `backwards` and `seconds` spent on the batch; `tails`, passes and gradients of the last block.
        ids: Text: ids of the tokens, (B, T); None if the model took embeddings.
    """

    scores: Tensor
    target: Tensor | None
    logits: Tensor
    probabilities: Tensor | None
    method: str
    values: Tensor | None = None
    options: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    signed: bool = False
    class_specific: bool = True
    task: Task = "classification"
    named: list[str] | None = None
    modality: Modality = "image"
    size: tuple[int, int] | None = None
    class_names: list[str] | None = None
    pictures: Any = None
    tokens: list[list[str]] | None = None
    words: list[list[int | None]] | None = None
    lengths: list[int] | None = None
    real: Tensor | None = None
    special: Tensor | None = None
    scored: Tensor | None = None
    layers: dict[str, Tensor] = field(default_factory=dict)
    diagnostics: dict[str, Tensor] = field(default_factory=dict)
    cost: dict[str, float] = field(default_factory=dict)
    auto: bool = False
    ids: Tensor | None = None

    @property
    def several(self) -> bool:
        """True if the scores have an axis of K targets."""
        return self.scores.dim() == (4 if self.modality == "image" else 3)

    def by_layer(self) -> dict[str, Explanation]:
        """The map of each layer as an explanation of its own, by name, to be drawn or saved; empty without `layers`.

        Example:
            >>> import mhex, mhex.viz
            >>> e = mhex.explain(model, images, method="mhex", per_layer=True)  # doctest: +SKIP
            >>> mhex.viz.comparison([*e.by_layer().values(), e], labels=[*e.layers, "all"])  # doctest: +SKIP
        """
        if self.scored is None or self.real is None:
            return {name: replace(self, scores=scores, layers={}) for name, scores in self.layers.items()}
        words, special = self.scored, self.real & ~self.scored
        if self.several:
            words, special = words[:, None], special[:, None]
        return {
            name: replace(self, scores=scores.where(words, 0.0), special=scores.where(special, 0.0), layers={})
            for name, scores in self.layers.items()
        }

    def map(self, size: tuple[int, int] | None = None) -> Tensor:
        """Scores at the size of the input image, bilinear and signed: (B, H, W) or (B, K, H, W); text as it is.

        Args:
            size: Another height and width.
        """
        if self.modality == "text":
            return self.scores
        size = size or self.size
        maps = self.scores if self.several else self.scores[:, None]
        if size is not None and tuple(maps.shape[-2:]) != tuple(size):
            maps = F.interpolate(maps, size=tuple(size), mode="bilinear", align_corners=False)
        return maps if self.several else maps[:, 0]

    def normalized(self, how: Normalisation = "auto", size: tuple[int, int] | None = None) -> Tensor:
        """The map scaled per sample and target; a constant image map becomes zero, never NaN.

        Args:
            how: `"auto"`: to [0, 1] if unsigned, by the largest absolute value if signed, so that 0 stays 0; unsigned
                text scores are divided by the largest one. `"minmax"`: smallest value to 0, largest to 1.
                `"percentile"`: the same after clipping to the percentiles 1 and 99. `"relu_max"`: what speaks for the
                class, divided by its largest value. `"none"`: as it is. Special tokens and padding are left out, and 0.
            size: Height and width other than the input's.
        """
        maps = self.map(size)
        flat = maps.flatten(-2) if self.modality == "image" else maps
        valid = None
        if self.modality == "text":
            valid = torch.ones_like(flat, dtype=torch.bool)
            if (mask := self.real if self.scored is None else self.scored) is not None:
                valid &= mask[:, None] if self.several else mask
        return normalize(flat, how, self.signed, valid).reshape(maps.shape)

    def target_names(self, sample: int) -> list[str]:
        """What each target of a sample is called."""
        if self.target is None:
            return self.named or ["custom target"]
        return [self._class_name(number) for number in self.target[sample].reshape(-1).tolist()]

    def _class_name(self, number: int) -> str:
        if self.class_names and 0 <= number < len(self.class_names):
            return self.class_names[number]
        return f"{'output' if self.task == 'regression' else 'class'} {number}"

    def prediction(self, sample: int) -> tuple[str, float] | None:
        """The most probable class of a sample and its probability, whatever the target; None without probabilities."""
        if self.probabilities is None:
            return None
        number = int(self.probabilities[sample].argmax())
        probability = float(self.probabilities[sample, number])
        return (self._class_name(number), probability) if math.isfinite(probability) else None

    def cut(self, sample: int) -> str:
        """`"cut after 512 of 10,782 tokens"` of a text that was cut to what the model takes; empty for others."""
        if self.lengths is None or self.real is None:
            return ""
        length_read, length = int(self.real[sample].sum()), self.lengths[sample]
        return f"cut after {length_read:,} of {length:,} tokens" if length > length_read else ""

    def target_probabilities(self, sample: int) -> list[float | None]:
        """Probability of each target of a sample; None for a target that has none."""
        if self.target is None or self.probabilities is None:
            return [None] * len(self.target_names(sample))
        return [float(self.probabilities[sample, i]) for i in self.target[sample].reshape(-1).tolist()]

    def target_values(self, sample: int) -> list[float]:
        """The score explained, for each target of a sample: a logit, an output, the similarity to a concept."""
        if self.values is None:
            raise ArgumentError("The values of targets are known only of what mhex.explain returned.")
        values: list[float] = self.values[sample].reshape(-1).tolist()
        return values

    def token_scores(self, sample: int = 0, target: int = 0) -> list[tuple[str, float]]:
        """Tokens of a text and their scores, padding left out; tokens are numbered if their names are not known."""
        if self.real is None:
            raise ArgumentError("Tokens are known only for texts.")
        scores = self.scores[sample, target] if self.several else self.scores[sample]
        values: list[float] = scores[self.real[sample]].tolist()
        names = self.tokens[sample] if self.tokens is not None else [str(i) for i in range(len(values))]
        return list(zip(names, values, strict=True))

    def word_scores(self, sample: int = 0, target: int = 0, pooling: Pooling = POOLING) -> list[tuple[str, float]]:
        """Words of a text, as the tokenizer splits it, and their scores.

        Args:
            sample: Which text of the batch.
            target: Which of several targets.
            pooling: `"max"` takes the highest score of a word's tokens, as pictures and metrics of words do by
                default, `"sum"` adds them up.
        """
        if self.tokens is None or self.words is None:
            raise ArgumentError(
                "Words are known only for texts given as strings, or tokenized by a fast tokenizer, with tokenizer=."
            )
        names, values = zip(*self.token_scores(sample, target), strict=True)
        runs = [run for run in word_runs(self.words[sample]) if self.words[sample][run[0]] is not None]
        scores = pool_runs(values, runs, pooling)
        return [(clean(names[start:end]), score) for (start, end), score in zip(runs, scores, strict=True)]

    def save(self, path: str | PathLike[str], *, progress: bool | None = None) -> Path:
        """Save by the suffix: a picture (`.png`, `.jpg`, `.pdf`, `.svg`), HTML (`.html`) or data (`.safetensors`).

        A picture and a page show the first samples of a batch. Data hold the input images as they are drawn, at most
        640 pixels wide and high; without them if `pictures` is None.

        Args:
            path: A file; or, for a picture of each sample, a folder (`"maps/"`, with files `0000.png` and so on) or a
                name with `{sample}` in it (`"maps/{sample}.jpg"`), whose folder is made if it is missing.
            progress: Whether to draw a progress bar of the samples; None for one in a terminal or a notebook.

        Returns:
            The file, or the folder of the files.
        """
        check_that(os.fspath(path) != "", "a file or a folder to save to", "an empty name")
        folder = os.fspath(path).endswith(("/", os.sep))
        path = Path(path)
        if folder or path.is_dir():
            path /= "{sample}.png"
        if "{" in path.name:
            fits = "{" not in path.name.replace("{sample}", "") and path.suffix.lower() in _PICTURES
            check_that(fits, f"{{sample}} alone in braces, before {', '.join(_PICTURES)}", repr(path.name))
            from mhex.viz.figures import save_samples

            save_samples(self, path, progress)
            return path.parent
        suffix = path.suffix.lower()
        if suffix == ".safetensors":
            _write(self, path)
        elif suffix in (".html", *_PICTURES):
            from mhex import viz

            save = viz.save_html if suffix == ".html" else viz.save_figure
            save(self, path)
        else:
            raise ArgumentError(
                f"Expected a file ending in {', '.join((*_PICTURES, '.html', '.safetensors'))}, but got {path.name!r}."
            )
        return path

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Explanation:
        """Read back what `save("....safetensors")` wrote; input images come back as PIL images, as they are drawn."""
        return cls(**_read(path))

    def show(self, samples: Sequence[int] | None = None, targets: Sequence[int] | None = None) -> Any:
        """Draw the explanation as a matplotlib figure; notebooks display it.

        Args:
            samples: Which samples of the batch; None for the first ones.
            targets: Which of several targets; None for the first ones.
        """
        from mhex.viz import figure

        return figure(self, samples=samples, targets=targets)

    def to_html(self) -> str:
        """A self-contained piece of HTML: overlays for images, highlighted tokens for text."""
        from mhex.viz import to_html

        return to_html(self)

    _repr_html_ = to_html  # what notebooks display

    def __repr__(self) -> str:
        shape = "x".join(map(str, self.scores.shape))
        return f"Explanation(method={self.method!r}, scores={shape}, modality={self.modality!r}, signed={self.signed})"


_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_TENSORS: dict[str, tuple[torch.dtype, ...]] = {  # with their kinds
    **dict.fromkeys(("scores", "logits", "probabilities", "values", "special"), _FLOATS),
    **dict.fromkeys(("target", "ids"), (torch.int64, torch.int32)),
    **dict.fromkeys(("real", "scored"), (torch.bool,)),
}
_GROUPS = ("layers", "diagnostics", "pictures")  # in a file, their names are prefixes; pictures are (H, W, 3) uint8
_REQUIRED = ("method", "options", "seed", "signed", "class_specific", "task", "named", "modality", "cost")
_HEADER = (*_REQUIRED, "auto", "size", "class_names", "tokens", "words", "lengths")  # as JSON
_LONGEST = 2**16  # side of an image


def _write(explanation: Explanation, path: Path) -> None:
    """Write the fields of an explanation, pictures as they are drawn."""
    tensors = {name: tensor for name in _TENSORS if (tensor := getattr(explanation, name)) is not None}
    groups = {"layers": explanation.layers, "diagnostics": explanation.diagnostics}
    pictures = [] if explanation.pictures is None else list(explanation.pictures)
    groups["pictures"] = {str(n): torch.from_numpy(np.array(drawn_photo(p))) for n, p in enumerate(pictures)}
    tensors |= {f"{group}.{name}": tensor for group in _GROUPS for name, tensor in groups[group].items()}
    write_tensors(tensors, path, {name: json.dumps(getattr(explanation, name), default=str) for name in _HEADER})


def _read(path: str | PathLike[str]) -> dict[str, Any]:
    """The fields of an explanation, as `_write` wrote them."""
    tensors, metadata = read_tensors(path, "Explanation.save")
    if "scores" not in tensors or "method" not in metadata:
        raise ArgumentError(f"Expected a file written by Explanation.save, but {path} holds {sorted(tensors)}.")
    fields = _read_header(metadata, path)
    for group in _GROUPS:
        names = [name for name in tensors if name.startswith(f"{group}.")]
        fields[group] = {name.removeprefix(f"{group}."): tensors.pop(name) for name in names}
    _check_tensors(tensors, fields["modality"], path)
    _check_lists(fields, tensors, path)
    fields["pictures"] = _read_pictures(fields["pictures"], len(tensors["scores"]), path)
    return {"target": None, "probabilities": None, **tensors, **fields}


def _read_header(metadata: Mapping[str, str], path: str | PathLike[str]) -> dict[str, Any]:
    """The fields that are no tensors, each checked by the type that it has in `Explanation`."""
    from pydantic import ValidationError

    if strange := {*metadata} - {*_HEADER}:
        raise ArgumentError(
            f"Expected a file written by Explanation.save of this version, but {path} also holds {sorted(strange)}; "
            "it may be of a newer one."
        )
    if missing := [name for name in _REQUIRED if name not in metadata]:
        raise ArgumentError(f"Expected {', '.join(missing)} in the header of {path}, but it is damaged: none is there.")
    fields, adapters = {}, _adapters()
    for name, text in metadata.items():
        try:
            fields[name] = adapters[name].validate_json(text, strict=True)
        except ValidationError as error:
            reason = error.errors()[0]["msg"]
            raise ArgumentError(f"Expected {name} in the header of {path}, but it is damaged: {reason}.") from error
    if not all(1 <= side <= _LONGEST for side in fields.get("size") or ()):
        raise ArgumentError(f"Expected sides from 1 to {_LONGEST} in the header of {path}, but got {fields['size']}.")
    return fields


@cache
def _adapters() -> dict[str, Any]:
    """What checks the fields of a header, by their types in `Explanation`."""
    from pydantic import TypeAdapter

    hints = get_type_hints(Explanation)
    return {name: TypeAdapter(hints[name]) for name in _HEADER}


def _check_tensors(tensors: Mapping[str, Tensor], modality: str, path: str | PathLike[str]) -> None:
    scores, axes = tensors["scores"], 2 if modality == "text" else 3
    wrong = [name for name, tensor in tensors.items() if tensor.dtype not in _TENSORS.get(name, ())]
    wrong += [name for name, tensor in tensors.items() if tensor.shape[:1] != scores.shape[:1] or not tensor.numel()]
    by_token = {"real": (*scores.shape[:1], *scores.shape[-1:]), "special": tuple(scores.shape)}
    shapes = {**by_token, "scored": by_token["real"]}
    wrong += [name for name, shape in shapes.items() if name in tensors and tuple(tensors[name].shape) != shape]
    wrong += [name for name in ("logits", "probabilities") if name in tensors and tensors[name].dim() != 2]
    if not wrong and {"probabilities", "target"} <= tensors.keys():
        target, classes = tensors["target"], tensors["probabilities"].shape[1]
        wrong += ["target"] if target.min() < 0 or target.max() >= classes else []
    if wrong or "logits" not in tensors or scores.dim() not in (axes, axes + 1):
        entries = {name: f"{tuple(tensor.shape)} {tensor.dtype}" for name, tensor in tensors.items()}
        raise ArgumentError(
            f"Expected the tensors of an explanation in {path}, with as many samples, but got {entries}."
        )


def _check_lists(fields: Mapping[str, Any], tensors: Mapping[str, Tensor], path: str | PathLike[str]) -> None:
    """What is said of each text, or of each of its tokens, fits the tensors."""
    counts = (
        tensors["real"].sum(1).tolist() if "real" in tensors else [tensors["scores"].shape[-1]] * len(tensors["scores"])
    )
    for name in ("tokens", "words", "lengths"):
        entries = fields.get(name)
        fits = entries is None or len(entries) == len(counts)
        if entries and name != "lengths":
            fits = fits and [len(row) for row in entries] == counts
        if not fits:
            raise ArgumentError(
                f"Expected {name} of each text in the header of {path}, but they do not fit its scores."
            )


def _read_pictures(pixels: dict[str, Tensor], count: int, path: str | PathLike[str]) -> list[Any] | None:
    """A PIL image for each sample; None from files without them."""
    from PIL import Image

    if not pixels:
        return None
    names = [str(number) for number in range(count)]
    for name in names:
        shape = tuple(pixels[name].shape) if name in pixels and pixels[name].dtype == torch.uint8 else ()
        if len(pixels) != count or len(shape) != 3 or shape[2] != 3 or not all(1 <= side <= LARGEST for side in shape):
            raise ArgumentError(
                f"Expected a picture (height, width, 3) of at most {LARGEST} pixels, uint8, for each of {count} "
                f"samples, but {path} holds {len(pixels)}, and {shape or 'none'} for sample {name}."
            )
    return [Image.fromarray(pixels[name].numpy()) for name in names]
