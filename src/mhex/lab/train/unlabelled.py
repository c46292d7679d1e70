"""Learning without labels: two views of each image, a projector, and the loss of SimCLR (Chen et al. 2020)."""

from __future__ import annotations

import torch
from torch import Tensor, distributed, nn
from torch.nn import functional

from mhex.errors import ArgumentError
from mhex.lab.config.recipe import UnlabelledPart
from mhex.lab.train.objective import Objective, logits_of
from mhex.lab.train.optimiser import PROJECTOR
from mhex.lab.train.samples import Batch, ImageFeed, Inputs, derive


class TwoViews:
    """Two views of each image in place of one, and no labels.

    Args:
        feed: Gives one view of each.

    Raises:
        ArgumentError: The feed changes nothing about its images.
    """

    def __init__(self, feed: ImageFeed) -> None:
        if feed.changes is None:
            raise ArgumentError("Two views of an image should differ, and the feed changes nothing: give it changes.")
        self.feed = feed
        self.labels = feed.labels

    def __len__(self) -> int:
        return len(self.feed)

    def plain(self, rows: Tensor) -> Tensor:
        """Images (B, 3, S, S), normalised and unchanged."""
        return self.feed.plain(rows)

    def varied(self, rows: Tensor, part: slice, table: Tensor, seed: int, step: int) -> Batch:
        """Views of a part of the batch, each drawn for the whole batch with a seed of its own.

        Returns:
            Inputs (2 B, 3, S, S), first one view of all images, then the other. The targets are empty, (2 B, 0).
        """
        made: list[Tensor] = []
        for place in range(2):
            inputs = self.feed.varied(rows, part, table, derive(seed, "view", place), step).inputs
            assert isinstance(inputs, Tensor)  # images are tensors
            made.append(inputs)
        views = torch.cat(made)
        return Batch(views, table.new_zeros(len(views), 0))


class ContrastObjective(Objective):
    """A network without a classifier that learns which views show the same image; see `Objective`.

    The projector becomes a part of the network under a name of its own, so that optimiser, average and checkpoint have
    it; what a run writes in the end leaves it out.

    Args:
        model: From images to features (N, D); changed in place.
        features: Width of the features, D.
        part: Settings of projector and loss.
        compile: Whether to compile the network.
    """

    def __init__(self, model: nn.Module, features: int, part: UnlabelledPart, *, compile: bool = False) -> None:
        projector = nn.Sequential(
            nn.Linear(features, part.hidden), nn.GELU(), nn.Linear(part.hidden, part.width, bias=False)
        )
        model.add_module(PROJECTOR.rstrip("."), projector)
        super().__init__(model, compile=compile)
        self.temperature = part.temperature
        self._projector = (projector,)  # in a tuple: its parameters are the model's already

    def forward(self, inputs: Inputs, targets: Tensor, advice: Tensor | None = None) -> Tensor:
        """The loss of a batch, a scalar: which of all other views shows the same image?

        Args:
            inputs: As `TwoViews` gives them.
            targets: Not read.
            advice: Not read.
        """
        places = functional.normalize(self._projector[0](logits_of(self._callable[0], inputs)).float(), dim=1)
        return contrast(places, self.temperature)


def contrast(places: Tensor, temperature: float) -> Tensor:
    """Cross entropy of finding the other view of an image among the views of the whole batch, of all processes.

    Args:
        places: Directions of this process's views, (2 B, K), rows of length one: first one view of all images, then
            the other.
        temperature: Divides the cosines.

    Returns:
        Mean over this process's views, a scalar in float32. Its mean over the processes is that of the whole batch.
    """
    shares, rank = [places], 0
    if distributed.is_initialized() and distributed.get_world_size() > 1:
        from torch.distributed.nn.functional import all_gather

        rank = distributed.get_rank()
        # With gradients for the views of the others too.
        shares = list(all_gather(places))  # type: ignore[no-untyped-call]
    own = torch.arange(len(places), device=places.device)
    first = rank * len(places)
    # Cosines divided by a small temperature need more digits than half precision has.
    with torch.autocast(places.device.type, enabled=False):
        scores = places @ torch.cat(shares).T / temperature
    # A view is no answer to itself.
    scores = scores.masked_fill(functional.one_hot(own + first, scores.shape[1]).bool(), -torch.inf)
    return functional.cross_entropy(scores, own.roll(len(places) // 2) + first)
