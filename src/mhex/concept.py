"""Concepts: what example inputs have in common for a model, as a target of explanations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mhex._files import read_tensors, write_tensors
from mhex._progress import track
from mhex._settings import check_count, check_that
from mhex.bundle import Bundle, as_bundle
from mhex.capture import Needs, Outcome, find_anatomy, full, observe, unwrap
from mhex.errors import ArgumentError, ArgumentTypeError
from mhex.inputs import in_batches, prepare, with_window

Similarity = Literal["dot", "cosine", "l2"]
_FORMAT = "mhex concept 1"


@dataclass(frozen=True, eq=False)
class Concept:
    """A direction in the latent space of a model: the mean latent vector of examples that the user chose.

    As `target` of `mhex.explain` it asks what makes the latent vector `l` of an input like that of the examples `l_c`:
    the score is `g(l, l_c)`. It needs no classifier, so that self-supervised backbones can be explained. The latent
    vector is what the classifier reads (after the final norm); of text, the last hidden state of the class token.

    Brocki, Binda & Chung, Class-Discriminative Attention Maps for Vision Transformers, 2023, arXiv:2312.02364.

    Attributes:
        latent: `l_c`, (D,).
        name: What the examples show.
        similarity: `g`: `"dot"` product, `"cosine"`, or `"l2"`, the distance with a minus sign, so that positive
            scores speak for the concept with all three.
        examples: How many there were; 0 if unknown.

    Example:
        >>> cats = mhex.Concept.from_examples(backbone, cat_images, name="cat")  # doctest: +SKIP
        >>> mhex.explain(backbone, images, method="cdam", target=cats)  # doctest: +SKIP
    """

    latent: Tensor = field(repr=False)
    name: str = "concept"
    similarity: Similarity = "dot"
    examples: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.latent, Tensor) or self.latent.dim() != 1 or not self.latent.is_floating_point():
            actual = tuple(self.latent.shape) if isinstance(self.latent, Tensor) else type(self.latent).__name__
            raise ArgumentTypeError(
                f"Expected the latent vector of a concept as a floating-point tensor (D,), but got {actual}."
            )
        if not bool(torch.isfinite(self.latent).all()) or not bool(self.latent.any()):
            raise ArgumentError("Expected a latent vector that is finite and not zero: the examples say nothing.")
        check_that(self.similarity in get_args(Similarity), "similarity 'dot', 'cosine' or 'l2'", repr(self.similarity))

    @classmethod
    def from_examples(
        cls,
        model: nn.Module | Bundle,
        inputs: Any,
        *,
        name: str = "concept",
        similarity: Similarity = "dot",
        preprocess: Callable[[Any], Tensor] | None = None,
        window: tuple[float, float] | None = None,
        tokenizer: Callable[..., Mapping[str, Any]] | None = None,
        batch_size: int = 32,
        progress: bool = False,
    ) -> Concept:
        """The mean latent vector of some examples (the paper takes 30 images per class).

        Args:
            model: A backbone or classifier, unmodified, or a bundle from `mhex.load`.
            inputs: What `mhex.explain` takes, or a loader that gives batches of that, alone or first in tuples.
            name: What the examples show.
            similarity: How an input is compared with them.
            preprocess: From a PIL image to a tensor (C, H, W).
            window: As for `mhex.explain`.
            tokenizer: A Hugging Face tokenizer.
            batch_size: The most examples at once; the result does not depend on it.
            progress: Draw a progress bar.
        """
        bundle = as_bundle(model)
        preprocess, tokenizer = preprocess or bundle.preprocess, tokenizer or bundle.tokenizer
        check_count("batch_size", batch_size)
        inner, anatomy = unwrap(bundle.model), None
        total, count = torch.zeros((), dtype=torch.float64), 0
        needs = Needs(keep={"latent": "last"})
        with torch.inference_mode(False):
            for part in track(in_batches(inputs, batch_size), f"concept {name}", progress):
                ids = range(count, count + len(part)) if isinstance(part, (list, tuple)) else None
                batch = prepare(inner, part, with_window(preprocess, window, part), tokenizer, ids).batch
                anatomy = anatomy or find_anatomy(inner, batch, attention=False)
                with observe(inner, anatomy, batch, needs) as trace:
                    total = total + trace.latent.double().sum(0).cpu()
                    dtype = torch.promote_types(trace.latent.dtype, torch.float32)
                count += batch.size
        check_that(count > 0, "at least one example of the concept", "none")
        return cls((total / count).to(dtype), name, similarity, count)

    @property
    def label(self) -> str:
        """Its name, and how it is compared if not by the dot product."""
        return self.name if self.similarity == "dot" else f"{self.name} ({self.similarity})"

    def compared_by(self, similarity: Similarity) -> Concept:
        """The same examples, compared in another way."""
        return replace(self, similarity=similarity)

    def score(self, outcome: Outcome) -> Tensor:
        """`g(l, l_c)` of each sample, (B,), in at least float32, after a pass in which the latent vector was kept."""
        if outcome.latent is None:
            raise ArgumentError("Expected a pass in which the latent vector was kept; add it to the method's Needs.")
        if outcome.latent.shape[1:] != self.latent.shape:
            raise ArgumentError(
                f"Expected a concept of this model, whose latent vectors have {outcome.latent.shape[1]} entries, but "
                f"{self.name!r} has {len(self.latent)}; make it with Concept.from_examples on the same model."
            )
        latent = full(outcome.latent)
        mean = self.latent.to(latent)
        if self.similarity == "dot":
            return latent @ mean
        if self.similarity == "cosine":
            return F.cosine_similarity(latent, mean[None], dim=1)
        distance: Tensor = torch.linalg.vector_norm(latent - mean, dim=1)
        return -distance

    def save(self, path: str | PathLike[str]) -> None:
        """Write a safetensors file."""
        check_that(Path(path).suffix == ".safetensors", "a file ending in .safetensors", repr(Path(path).name))
        header = {"format": _FORMAT, "name": self.name, "similarity": self.similarity, "examples": str(self.examples)}
        write_tensors({"latent": self.latent}, path, header)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Concept:
        """Read what `save` wrote."""
        tensors, header = read_tensors(path, "Concept.save")
        if header.get("format") != _FORMAT or "latent" not in tensors:
            raise ArgumentError(f"Expected a file written by Concept.save, but {path} is another one.")
        latent = tensors["latent"]
        complete = {"name", "similarity", "examples"} <= header.keys() and header["examples"].isdecimal()
        right = f"the name, the similarity, the number of examples and the latent vector of a concept in {path}"
        got = f"{header} and a tensor of shape {tuple(latent.shape)}"
        check_that(complete and latent.dim() == 1 and latent.is_floating_point(), right, got, "; make it again")
        similarity: Any = header["similarity"]
        return cls(latent, header["name"], similarity, int(header["examples"][:18]))
