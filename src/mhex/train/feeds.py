"""Samples on the device, ready to be taken batch by batch: images as bytes, texts as token numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from mhex.data import ImageSet, PhotoSet, TextSet
from mhex.errors import ArgumentError
from mhex.train.augment import Augment, augment, draw, mix
from mhex.train.seeds import generator_for
from mhex.train.view import View

Inputs = Tensor | dict[str, Tensor]


@dataclass(frozen=True)
class Batch:
    """What one process learns from in one step.

    Attributes:
        inputs: What the model takes: a tensor (B, 3, S, S), or token numbers and mask (B, T) by name.
        targets: Class probabilities, (B, C).
        pixels: The images as teachers take them, (B, 3, S, S) in 0..1; None for texts.
    """

    inputs: Inputs
    targets: Tensor
    pixels: Tensor | None = None


class Feed(Protocol):
    """Samples with labels, in a form that a model takes."""

    labels: Tensor

    def __len__(self) -> int:
        """Number of samples."""

    def plain(self, rows: Tensor) -> Inputs:
        """The samples of some rows (B,) as they are."""

    def varied(self, rows: Tensor, part: slice, table: Tensor, seed: int, step: int) -> Batch:
        """A part of the batch of some rows, with what is random drawn for the whole batch.

        Args:
            rows: Of the whole batch, on the CPU.
            part: What this process takes of it.
            table: Target of each class, (C, C), on the device.
            seed: Of the run.
            step: Counted from 0.
        """


class ImageFeed:
    """Images as bytes on the device; photos in files are decoded when they are taken.

    Args:
        images: The set.
        view: What the network sees.
        changes: Random changes; None for none.
        device: Where the images lie and batches come out.
        rows: Which images of the set; all by default.
    """

    def __init__(
        self,
        images: ImageSet | PhotoSet,
        view: View,
        changes: Augment | None,
        device: torch.device,
        rows: Tensor | None = None,
    ) -> None:
        chosen = torch.arange(len(images)) if rows is None else rows
        if isinstance(images, ImageSet):
            held = images.images[chosen].to(device)
            self._pick: Callable[[Tensor], Tensor] = lambda wanted: held[wanted.to(device)]
        else:
            files = images.images
            self._pick = lambda wanted: files[chosen[wanted.cpu()]].to(device)
        self.labels = images.labels[chosen].to(device)
        self.view = view
        self.changes = None if changes is None else replace(changes, canvas=changes.canvas or view.size)
        self.device = device

    def __len__(self) -> int:
        return len(self.labels)

    def plain(self, rows: Tensor) -> Tensor:
        """Images (B, 3, S, S), normalised and unchanged."""
        return self.view(self._pick(rows)).contiguous(memory_format=torch.channels_last)

    @torch.no_grad()
    def varied(self, rows: Tensor, part: slice, table: Tensor, seed: int, step: int) -> Batch:
        """Images of a part of the batch, changed and mixed with others of the whole batch."""
        if self.changes is None:
            pixels = self._pick(rows[part]).float() / 255
            return self._batch(pixels, table[self.labels[rows[part].to(self.device)]])
        draws = draw(len(rows), self.changes, generator_for(self.device, seed, "augment", step))
        side, own = self.changes.canvas, draws.take(part)
        labels = self.labels[rows.to(self.device)]
        pixels = augment(self._pick(rows[part]), own, side)
        targets = table[labels[part]]
        if self.changes.cutmix + self.changes.mixup > 0:
            if len(pixels) == len(rows):
                partners = pixels[own.other]
            else:  # the other photo may belong to another process: it is made here once more
                others = own.other.cpu()
                partners = augment(self._pick(rows[others]), draws.take(own.other), side)
            pixels, targets = mix(pixels, partners, targets, table[labels[own.other]], own)
        return self._batch(pixels, targets)

    def _batch(self, pixels: Tensor, targets: Tensor) -> Batch:
        inputs = self.view(pixels).contiguous(memory_format=torch.channels_last)
        return Batch(inputs, targets, pixels)


class TextFeed:
    """Texts, tokenised once; each batch is padded to its own longest.

    Args:
        texts: The set.
        tokenizer: A Hugging Face tokenizer.
        length: Most tokens of a text.
        device: Where batches come out.
        rows: Which texts of the set; all by default.
    """

    def __init__(
        self, texts: TextSet, tokenizer: Any, length: int, device: torch.device, rows: Tensor | None = None
    ) -> None:
        chosen = range(len(texts)) if rows is None else rows.tolist()
        made = tokenizer([texts.texts[row] for row in chosen], truncation=True, max_length=length)
        self.ids = [torch.tensor(numbers) for numbers in made["input_ids"]]
        self.padding = tokenizer.pad_token_id
        if self.padding is None:
            raise ArgumentError(f"{type(tokenizer).__name__} has no padding token: choose a tokenizer that has one.")
        self.labels = texts.labels[torch.as_tensor(list(chosen), dtype=torch.int64)].to(device)
        self.device = device

    def __len__(self) -> int:
        return len(self.ids)

    def plain(self, rows: Tensor) -> dict[str, Tensor]:
        """Token numbers and mask, (B, T) each."""
        taken = [self.ids[row] for row in rows.tolist()]
        ids = torch.nn.utils.rnn.pad_sequence(taken, batch_first=True, padding_value=self.padding)
        # A text may hold the padding token itself, so the mask follows the lengths.
        lengths = torch.tensor([len(numbers) for numbers in taken])
        mask = (torch.arange(ids.shape[1])[None] < lengths[:, None]).long()
        return {"input_ids": ids.to(self.device), "attention_mask": mask.to(self.device)}

    def varied(self, rows: Tensor, part: slice, table: Tensor, seed: int, step: int) -> Batch:
        """Texts of a part of the batch; nothing about them is random."""
        return Batch(self.plain(rows[part]), table[self.labels[rows[part].to(self.device)]])


def row_batches(count: int, batch: int, place: int = 0, of: int = 1) -> Sequence[Tensor]:
    """Rows of a set in batches; process ``place`` of ``of`` gets every so-manieth."""
    return list(torch.split(torch.arange(count), batch))[place::of]
