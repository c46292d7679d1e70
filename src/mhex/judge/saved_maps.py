"""Pictures of the first samples and their maps by every method, kept beside the rows for a page."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mhex._files import read_json
from mhex.errors import ArgumentError, MhexError
from mhex.explanation import Explanation
from mhex.inputs.photos import BROKEN
from mhex.judge.controls import is_control
from mhex.judge.plan import Judged, label
from mhex.judge.store import Kind, Parts, read
from mhex.methods import get_method
from mhex.metrics.case import Case
from mhex.targets import probabilities

_OF = {"run": "string", "image": "int64", "input": "string"}
_SIDE = 256  # the longer one of a kept photo
PHOTOS = Kind("photos", {**_OF, "jpeg": "binary"}, ("image", "input"), "pictures")
# `tokens` is what is said beside scores, in JSON: the predicted class, and of texts the tokens, the words that they
# belong to, and how many there were before the text was cut. Older files have nothing there for images.
MAPS = Kind(
    "maps",
    {
        **{**_OF, "method": "string", "options": "string", "target": "string", "probability": "double"},
        **{"signed": "bool", "height": "int64", "width": "int64", "tokens": "string", "scores": "floats"},
    },
    ("image", "input", "method", "options"),
    "maps",
)


def check_pictures(count: Any, out: Any) -> None:
    """Refuse a number of pictures that is none, and pictures without a folder."""
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise ArgumentError(f"Expected pictures to be a whole number from 0 on, but got {count!r}.")
    if count and out is None:
        raise ArgumentError(f"Expected a folder for {count} pictures, but there is none; give it as out=.")


class Shown:
    """Photos and maps of the first samples of a run.

    Args:
        folder: Of the run; None to keep them in memory alone.
        told: What the run is of, as for `Parts`.
        count: How many samples are kept.
        names: Of the classes, if they are known.
    """

    def __init__(self, folder: Path | None, told: str, count: int, names: Sequence[str] | None) -> None:
        self.count, self.names = count, names
        self.photos, self.maps = Parts(folder, told, PHOTOS), Parts(folder, told, MAPS)

    def lacks(self, ids: Sequence[int], marks: Sequence[str], method: Judged) -> bool:
        """Whether a map of one of these samples is wanted, and not there."""
        own = [(i, mark) for i, mark in zip(ids, marks, strict=True) if i < self.count]
        maps = self.maps.lacks({(*one, method.name, method.written) for one in own})
        return self.photos.lacks(set(own)) or maps

    def keep(self, case: Case, marks: Sequence[str], method: Judged) -> None:
        """Write the maps of a case, and its photos where they are not there yet.

        Args:
            case: Whose maps are drawn.
            marks: Digests of its samples.
            method: That made the maps.
        """
        subject, explained = case.subject, case.explained
        assert explained is not None
        shares = probabilities(subject.logits, subject.multi_label).cpu()
        signed = _is_signed(method, case.saliency)
        photos, maps = [], []
        for n, (image, mark) in enumerate(zip(case.ids, marks, strict=True)):
            if image >= self.count:
                continue
            own, number = {"image": image, "input": mark}, int(explained[n])
            top = int(shares[n].argmax())
            beside: dict[str, Any] = {"predicted": [self._name(top), float(shares[n, top])]}
            scores, real = case.saliency[n].detach().float().cpu(), subject.batch.real
            if real is not None:
                scores = scores[real[n].cpu()][None]
                beside |= _tokens(subject, n)
            if (image, mark) not in self.photos.done:  # once, and not for every method
                photos.append({**own, "jpeg": b"" if real is not None else _jpeg(subject.prepared.pictures[n])})
            maps.append(
                {
                    **own,
                    **{"method": method.name, "options": method.written, "target": self._name(number)},
                    **{"probability": float(shares[n, number]), "tokens": json.dumps(beside), "signed": signed},
                    **{"scores": scores.flatten().tolist(), "height": scores.shape[0], "width": scores.shape[1]},
                }
            )
        self.photos.add(photos)
        self.maps.add(maps)

    def _name(self, number: int) -> str:
        return self.names[number] if self.names and number < len(self.names) else f"class {number}"


def kept(folder: Path) -> dict[int, dict[str, Explanation]]:
    """What a folder keeps to be drawn: by number of the sample, the explanation of each method by its label."""
    return drawn_from(read(folder, PHOTOS), read(folder, MAPS))


def drawn_from(photos: Any, maps: Any) -> dict[int, dict[str, Explanation]]:
    """The same from arrow tables of photos and maps."""
    from PIL import Image

    jpegs = {(row["image"], row["input"]): row["jpeg"] for row in photos.to_pylist()}
    found: dict[int, dict[str, Explanation]] = {}
    for row in maps.to_pylist():
        jpeg = jpegs.get((row["image"], row["input"]))
        try:
            picture = Image.open(io.BytesIO(jpeg), formats=["JPEG"]).convert("RGB") if jpeg else None
            made = _explanation(row, picture)
        except MhexError:
            raise
        except (*BROKEN, RuntimeError, AttributeError, Image.DecompressionBombError) as error:
            raise ArgumentError(
                f"Expected the picture and the map of sample {row['image']} by {row['method']!r}, but they are damaged "
                f"({str(error).rstrip('.')}); delete photos-*.parquet and maps-*.parquet: the same call makes them."
            ) from error
        found.setdefault(row["image"], {})[label(row["method"], row["options"])] = made
    return dict(sorted(found.items()))


def _explanation(row: dict[str, Any], picture: Any) -> Explanation:
    """A map as `mhex.viz` draws it: a batch of one sample with one class."""
    beside = read_json(row["tokens"]) if row["tokens"] else {}
    is_text = "tokens" in beside
    scores = torch.tensor(row["scores"]).view(1, row["height"], row["width"])
    control = is_control(row["method"])
    predicted, probability = beside.get("predicted", ("another class", math.nan))  # older files do not say it
    known = {predicted: probability, row["target"]: row["probability"]}
    share = torch.tensor([list(known.values())])
    made = Explanation(
        scores[0] if is_text else scores,
        target=torch.tensor([list(known).index(row["target"])]),
        logits=share.log(),
        probabilities=share,
        method=label(row["method"], row["options"]),
        signed=row["signed"],
        class_specific=not control and get_method(row["method"]).class_specific,
        modality="text" if is_text else "image",
        size=None if picture is None else (picture.height, picture.width),
        class_names=list(known),
        pictures=None if picture is None else [picture],
    )
    if is_text:
        made.tokens, made.words = [beside["tokens"]], None if beside["words"] is None else [beside["words"]]
        made.real = torch.ones_like(made.scores, dtype=torch.bool)
        made.scored = torch.tensor([beside["scored"]])
        made.lengths = [beside["length"]] if beside.get("length") else None
    return made


def _tokens(subject: Any, n: int) -> dict[str, Any]:
    prepared, batch = subject.prepared, subject.batch
    real = batch.real[n].cpu()
    names = [str(i) for i in range(int(real.sum()))] if prepared.tokens is None else prepared.tokens[n]
    scored = real[real] if batch.special is None else ~batch.special[n].cpu()[real]
    words = None if prepared.words is None else prepared.words[n]
    length = None if prepared.lengths is None else prepared.lengths[n]
    return {"tokens": list(names), "words": words, "scored": scored.tolist(), "length": length}


def _is_signed(method: Judged, maps: Tensor) -> bool:
    """Whether negative scores speak against the class: as the method says, or as some options make it."""
    return (not method.control and get_method(method.name).signed) or bool((maps < 0).any())


def _jpeg(picture: Any) -> bytes:
    """A small copy of a photo, or of a normalised tensor (C, H, W)."""
    from PIL import Image

    from mhex.viz.overlay import picture_pixels

    small = Image.fromarray(picture_pixels(picture))
    small.thumbnail((_SIDE, _SIDE))
    file = io.BytesIO()
    small.save(file, "JPEG", quality=85)
    return file.getvalue()
