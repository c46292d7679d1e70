"""The samples of a recipe, to learn from, to choose by and to judge by, in the form that its network takes."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mhex.errors import ArgumentError
from mhex.inputs.preprocess import Preprocess
from mhex.lab.config.recipe import RecipeAugment, TrainingRecipe
from mhex.lab.datasets import PhotoSet, TextSet, data_entry
from mhex.lab.datasets.catalogue import AnySet
from mhex.lab.train.augment import augment, draw, mix

Inputs = Tensor | dict[str, Tensor]


def derive(seed: int, *place: int | str) -> int:
    """Give a seed of its own to a place in the run, such as ``derive(seed, "order", epoch)``; in 0..2^63 - 1."""
    words = "/".join(map(str, (seed, *place))).encode()
    return int.from_bytes(hashlib.blake2b(words, digest_size=8).digest(), "big") >> 1


def generator_for(device: torch.device | str, seed: int, *place: int | str) -> torch.Generator:
    """Make a generator on a device, seeded for a place in the run."""
    return torch.Generator(device=device).manual_seed(derive(seed, *place))


def epoch_order(count: int, batch: int, seed: int, epoch: int) -> Tensor:
    """Draw the rows of the batches of one epoch: (steps, batch), int64, on the CPU.

    Samples that fill no batch are left out; where there are fewer samples than one batch takes, they are repeated.
    """
    generator = generator_for("cpu", seed, "order", epoch)
    passes = [torch.randperm(count, generator=generator) for _ in range(max(1, -(-batch // count)))]
    steps = max(1, count // batch)
    return torch.cat(passes)[: steps * batch].view(steps, batch)


def held_out(count: int, share: float, name: str) -> Tensor:
    """Choose the samples that are held out: ``share`` of them, rounded down, drawn at random; (N,), bool.

    Evenly spaced ones would all be of a kind where the order of the samples has a period. The name of the data alone
    seeds the draw, so that a network never learned what one that starts from it is chosen by; a smaller share is part
    of a larger one.
    """
    order = torch.randperm(count, generator=generator_for("cpu", 0, "held out", name))
    mask = torch.zeros(count, dtype=torch.bool)
    mask[order[: int(share * count + 1e-9)]] = True  # a share of 0.29 of 100 should be 29, whatever floats say
    return mask


@dataclass(frozen=True)
class TrainingBatch:
    """What one process learns from in one step."""

    inputs: Inputs  # what the model takes: a tensor (B, 3, S, S), or token numbers and mask (B, T) by name
    targets: Tensor  # class probabilities, (B, C)
    pixels: Tensor | None = None  # the images as teachers take them, (B, 3, S, S) in 0..1; None for texts


class Feed(ABC):
    """Samples with labels (N,), in a form that a model takes."""

    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    @abstractmethod
    def plain(self, rows: Tensor) -> Inputs:
        """Give the samples of some rows (B,) as they are."""

    @abstractmethod
    def varied(self, rows: Tensor, part: slice, table: Tensor, seed: int, step: int) -> TrainingBatch:
        """Give a part of the batch of some rows, with what is random drawn for the whole batch.

        The rows lie on the CPU, the target of each class, (C, C), on the device; the step is counted from 0.
        """


class FeedBatches:
    """The samples of a feed with their labels, as often as wanted; process ``place`` of ``of`` gets its share."""

    def __init__(self, feed: Feed, place: int = 0, of: int = 1, *, size: int = 64) -> None:
        self.feed, self.rows = feed, torch.split(torch.arange(len(feed)), size)[place::of]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[tuple[Any, Tensor]]:
        for rows in self.rows:
            yield self.feed.plain(rows), self.feed.labels[rows.to(self.feed.labels.device)]


class ImageFeed(Feed):
    """Some rows of a set of images, as bytes on the device; photos in files are decoded when they are taken."""

    def __init__(
        self, images: PhotoSet, view: Preprocess, changes: RecipeAugment | None, device: torch.device, rows: Tensor
    ) -> None:
        self._pick: Callable[[Tensor], Tensor]
        if isinstance(photos := images.images, Tensor):
            pixels = photos[rows].to(device)
            self._pick = lambda places: pixels[places.to(device)]
        else:
            self._pick = lambda places: photos[rows[places.cpu()]].to(device)
        self.labels = images.labels[rows].to(device)
        self.view, self.device = view, device
        self.changes = changes and changes.model_copy(update={"canvas": changes.canvas or view.height})

    def plain(self, rows: Tensor) -> Tensor:
        """Give images (B, 3, S, S), normalised and unchanged."""
        return self.view(self._pick(rows)).contiguous(memory_format=torch.channels_last)

    @torch.no_grad()
    def varied(self, rows: Tensor, part: slice, table: Tensor, seed: int, step: int) -> TrainingBatch:
        """Give the images of a part of the batch, changed and mixed with others of the whole batch."""
        changes, labels = self.changes, self.labels[rows.to(self.device)]
        targets = table[labels[part]]
        if changes is None:
            pixels = self._pick(rows[part]).float() / 255
        else:
            every = draw(len(rows), changes, generator_for(self.device, seed, "augment", step))
            draws = every.take(part)
            pixels = augment(self._pick(rows[part]), draws, changes.canvas)
            if changes.cutmix + changes.mixup > 0:
                if len(pixels) == len(rows):
                    partners = pixels[draws.partner]
                else:  # the partner may belong to another process: it is made here once more
                    photos = self._pick(rows[draws.partner.cpu()])
                    partners = augment(photos, every.take(draws.partner), changes.canvas)
                pixels, targets = mix(pixels, partners, targets, table[labels[draws.partner]], draws)
        inputs = self.view(pixels).contiguous(memory_format=torch.channels_last)
        return TrainingBatch(inputs, targets, pixels)


class TwoViews(ImageFeed):
    """Two views of each image in place of one, and no labels."""

    def varied(self, rows: Tensor, part: slice, table: Tensor, seed: int, step: int) -> TrainingBatch:
        """Give one view of all images of a part, then the other, (2 B, 3, S, S); the targets are empty, (2 B, 0)."""
        if self.changes is None:
            raise ArgumentError("Two views of an image should differ, and the feed changes nothing: give it changes.")
        varied, seeds = super().varied, [derive(seed, "view", place) for place in range(2)]
        views: list[Any] = [varied(rows, part, table, view_seed, step).inputs for view_seed in seeds]
        return TrainingBatch(torch.cat(views), table.new_zeros(2 * len(views[0]), 0))


class TextFeed(Feed):
    """Some rows of a set of texts, tokenised once; each batch is padded to its own longest."""

    def __init__(self, texts: TextSet, tokenizer: Any, length: int, device: torch.device, rows: Tensor) -> None:
        encoded = tokenizer([texts.texts[row] for row in rows.tolist()], truncation=True, max_length=length)
        self.ids = [torch.tensor(numbers) for numbers in encoded["input_ids"]]
        self.padding = tokenizer.pad_token_id
        if self.padding is None:
            raise ArgumentError(f"{type(tokenizer).__name__} has no padding token: choose a tokenizer that has one.")
        self.labels, self.device = texts.labels[rows].to(device), device

    def plain(self, rows: Tensor) -> dict[str, Tensor]:
        """Give token numbers and mask, (B, T) each."""
        texts = [self.ids[row] for row in rows.tolist()]
        ids = torch.nn.utils.rnn.pad_sequence(texts, batch_first=True, padding_value=self.padding)
        # A text may hold the padding token itself, so the mask follows the lengths.
        lengths = torch.tensor([len(numbers) for numbers in texts])
        mask = (torch.arange(ids.shape[1])[None] < lengths[:, None]).long()
        return {"input_ids": ids.to(self.device), "attention_mask": mask.to(self.device)}

    def varied(self, rows: Tensor, part: slice, table: Tensor, seed: int, step: int) -> TrainingBatch:
        """Give the texts of a part of the batch; nothing about them is random."""
        return TrainingBatch(self.plain(rows[part]), table[self.labels[rows[part].to(self.device)]])


@dataclass(frozen=True)
class RecipeSamples:
    """Training samples and, apart from them, those to choose by."""

    train: AnySet
    rows: Tensor  # of the set to learn from, (N,), int64
    validation: AnySet | None = None
    validation_rows: Tensor | None = None  # of the set to choose by, (M,), int64


def load_samples(recipe: TrainingRecipe) -> RecipeSamples:
    """Load what a recipe learns from and chooses by; what it is judged by stays unread."""
    part, entry = recipe.data, data_entry(recipe.data.name)
    validation = entry.validation if part.validation is None else part.validation
    train = entry.load(part.split or entry.train, limit=part.limit)
    rows = torch.arange(len(train))
    if not validation:
        return RecipeSamples(train, rows)
    if isinstance(validation, str):
        data = entry.load(validation, limit=part.limit)
        return RecipeSamples(train, rows, data, torch.arange(len(data)))
    mask = held_out(len(train), validation, part.name)
    if mask.all() or not mask.any():
        words = f"data.validation: {validation} of {len(train)} samples leaves nothing to choose by or to learn"
        raise ArgumentError(f"{words}; take another share, or more samples.")
    return RecipeSamples(train, rows[~mask], train, rows[mask])


def load_test(recipe: TrainingRecipe, limit: int | None = None) -> AnySet:
    """Load what a recipe is judged by, or only a few samples of it, which shows that they are there."""
    samples: AnySet = data_entry(recipe.data.name).load(judging_split(recipe), limit=limit or recipe.data.limit)
    return samples


def judging_split(recipe: TrainingRecipe) -> str:
    """Give the name of the split that a recipe is judged by."""
    return recipe.data.test or data_entry(recipe.data.name).test


def make_feed(
    recipe: TrainingRecipe,
    samples: AnySet,
    tokenizer: Any,
    device: torch.device,
    rows: Tensor | None = None,
    *,
    vary: bool = False,
) -> Feed:
    """Put samples, or some rows of them, on a device in the form that the recipe's network takes.

    With `vary`, images are changed at random, and where the recipe reads no labels, come in two views.
    """
    rows = torch.arange(len(samples)) if rows is None else rows
    if isinstance(samples, TextSet):
        return TextFeed(samples, tokenizer, recipe.data.length or 0, device, rows)
    kind = TwoViews if vary and recipe.unlabelled is not None else ImageFeed
    return kind(samples, recipe.view, recipe.augment if vary else None, device, rows)
