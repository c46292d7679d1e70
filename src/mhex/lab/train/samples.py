"""The samples of a recipe: what to learn from, what to choose by, what to judge by."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from mhex.errors import ArgumentError
from mhex.inputs.preprocess import Preprocess
from mhex.lab.config.recipe import Recipe
from mhex.lab.datasets import ImageSet, PhotoSet, TextSet, data_entry
from mhex.lab.datasets.catalogue import AnySet
from mhex.lab.train.augment import Augment, augment, draw, mix


def derive(seed: int, *place: int | str) -> int:
    """A seed of its own for a place in the run, such as ``derive(seed, "order", epoch)``; in 0..2^63 - 1."""
    words = "/".join(map(str, (seed, *place))).encode()
    return int.from_bytes(hashlib.blake2b(words, digest_size=8).digest(), "big") >> 1


def generator_for(device: torch.device, seed: int, *place: int | str) -> torch.Generator:
    """A generator on a device, seeded for a place in the run."""
    return torch.Generator(device=device).manual_seed(derive(seed, *place))


def epoch_order(count: int, batch: int, seed: int, epoch: int) -> Tensor:
    """Rows of the batches of one epoch.

    Args:
        count: Samples N.
        batch: Samples per step.
        seed: Of the run.
        epoch: Counted from 0.

    Returns:
        (steps, batch), int64, on the CPU. Samples that fill no batch are left out; where there are fewer samples than
        one batch takes, they are repeated.
    """
    generator = generator_for(torch.device("cpu"), seed, "order", epoch)
    if count < batch:
        passes = [torch.randperm(count, generator=generator) for _ in range(-(-batch // count))]
        return torch.cat(passes)[:batch].view(1, batch)
    steps = count // batch
    return torch.randperm(count, generator=generator)[: steps * batch].view(steps, batch)


def held_out(count: int, share: float, name: str) -> Tensor:
    """Which samples are held out: ``share`` of them, rounded down, drawn at random.

    Evenly spaced ones would all be of a kind where the order of the samples has a period. The seed of the run does not
    matter, so that a network never learned what one that starts from it is chosen by; a smaller share is part of a
    larger one.

    Args:
        count: Samples N.
        share: From 0 to below 1.
        name: Of the data.

    Returns:
        (N,), bool, on the CPU.
    """
    order = torch.randperm(count, generator=generator_for(torch.device("cpu"), 0, "held out", name))
    out = torch.zeros(count, dtype=torch.bool)
    out[order[: int(share * count + 1e-9)]] = True  # a share of 0.29 of 100 should be 29, whatever floats say
    return out


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
        view: Preprocess,
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
        self.changes = None if changes is None else replace(changes, canvas=changes.canvas or view.height)
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


@dataclass(frozen=True)
class Samples:
    """Training samples and, apart from them, those to choose by.

    Attributes:
        train: The set to learn from.
        kept: Rows of it that are learned, (N,), int64.
        validation: The set to choose by; None for none.
        chosen: Rows of it, (M,), int64.
    """

    train: AnySet
    kept: Tensor
    validation: AnySet | None = None
    chosen: Tensor | None = None


def load_samples(recipe: Recipe) -> Samples:
    """Load what a recipe learns from and chooses by; what it is judged by stays unread.

    Raises:
        DataMissingError: A file is missing; the message says what to place where.
        ArgumentError: A split is unknown, or nothing is left to learn or to choose by.
    """
    part, entry = recipe.data, data_entry(recipe.data.name)
    wanted = entry.validation if part.validation is None else part.validation
    train = entry.load(part.split or entry.train, limit=part.limit)
    everything = torch.arange(len(train))
    if not wanted:
        return Samples(train, everything)
    if isinstance(wanted, str):
        validation = entry.load(wanted, limit=part.limit)
        return Samples(train, everything, validation, torch.arange(len(validation)))
    out = held_out(len(train), wanted, part.name)
    if out.all() or not out.any():
        raise ArgumentError(
            f"data.validation: a share of {wanted} of {len(train)} samples leaves nothing to choose by, or nothing to "
            "learn; take another share, or more samples."
        )
    return Samples(train, everything[~out], train, everything[out])


def load_test(recipe: Recipe) -> AnySet:
    """Load what a recipe is judged by."""
    judged: AnySet = data_entry(recipe.data.name).load(judging_split(recipe), limit=recipe.data.limit)
    return judged


def check_test(recipe: Recipe) -> None:
    """Read one sample of what a recipe is judged by, so that a wrong name is told before hours of training.

    Raises:
        DataMissingError: A file is missing; the message says what to place where.
        ArgumentError: The split is unknown.
    """
    data_entry(recipe.data.name).load(judging_split(recipe), limit=1)


def judging_split(recipe: Recipe) -> str:
    """Name of the split that a recipe is judged by."""
    return recipe.data.test or data_entry(recipe.data.name).test


def make_feed(
    recipe: Recipe,
    samples: AnySet,
    tokenizer: Any,
    device: torch.device,
    rows: Tensor | None = None,
    *,
    vary: bool = False,
) -> Feed:
    """Put samples on a device in the form that the recipe's network takes.

    Args:
        recipe: Gives view, changes and length.
        samples: A set.
        tokenizer: For texts.
        device: Where batches come out.
        rows: Which samples; all by default.
        vary: Whether to change images at random.
    """
    if isinstance(samples, TextSet):
        return TextFeed(samples, tokenizer, recipe.data.length or 0, device, rows)
    changes = recipe.augment if vary else None
    return ImageFeed(samples, recipe.view, changes, device, rows)
