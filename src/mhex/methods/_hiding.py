"""Inputs with parts hidden, and the scores of many of them: what the perturbation methods share."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mhex.capture import Anatomy, Needs, Outcome, Trace
from mhex.errors import ArgumentError
from mhex.targets import ResolvedTarget

Fill = str | float | Tensor | None
Hide = Callable[[Tensor, Tensor], Tensor]  # from masks (M, ...) and the numbers of samples (M,) to inputs
Run = Callable[[Tensor, Tensor], Outcome]  # the same to what the model answers
_LARGEST = 1e30  # of a number that stands for pixels
_REAL = (  # kinds of numbers that every device converts
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.bool),
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
)


def scored_variants(
    trace: Trace,
    target: ResolvedTarget,
    count: int,
    make: Callable[[int, int], Tensor],
    again: Run,
    words: str,
    batch_size: int | None,
    shares: bool = False,
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Scores of so many variants of every sample, a few at a time.

    `make` goes from the first number and the one after the last to what these variants have in common, (V, ...), and
    `again` runs the model on that with a row for each input (M, ...) and the numbers of samples (M,). Probabilities are
    read with `shares`, where a target has some.

    Yields:
        The first number, what `make` made, and scores (V, B, K): zero where a sample is not in this part.
    """
    size, read = trace.batch.size, target.shares if shares else target.scores

    def run(start: int, stop: int) -> tuple[Tensor, Tensor]:
        jobs = torch.arange(start, stop, device=trace.logits.device)
        first, last = start // size, (stop - 1) // size + 1
        common, numbers, samples = make(first, last), jobs // size - first, jobs % size
        scores = read(again(common[numbers], samples), samples).detach()
        table = scores.new_zeros(last - first, size, target.count)
        table[numbers, samples] = scores
        return common, table

    for start, _, (common, table) in trace.chunks(count * size, run, words, batch_size):
        yield start // size, common, table
    trace.cost["forwards"] += count


def all_scores(
    trace: Trace, target: ResolvedTarget, masks: Tensor, again: Run, words: str, batch_size: int | None
) -> Tensor:
    """Scores of every sample seen through each of the masks (V, ...), (V, B, K); arguments as `scored_variants`."""
    parts = scored_variants(trace, target, len(masks), lambda a, b: masks[a:b], again, words, batch_size)
    scores = target.scores(trace.outcome).detach().new_zeros(len(masks), trace.batch.size, target.count)
    for first, _, table in parts:
        scores[first : first + len(table)] += table
    return scores


def run_hidden(trace: Trace, hide: Hide) -> Run:
    """Runs the model on samples (M,) seen through masks (M, ...)."""
    return lambda masks, samples: trace.rerun(hide(masks, samples), samples)


def hidden_pixels(trace: Trace, fill: Tensor) -> Hide:
    """From masks (M, H, W), True at what is hidden, to images with `fill` (B, C, H, W) there."""
    pixels = trace.batch.pixels
    return lambda masks, samples: torch.where(masks[:, None], fill[samples], pixels[samples])


def words_kept(options: Mapping[str, Any], anatomy: Anatomy) -> Needs:
    """Keeps word embeddings where it is known which layer gives them, so that they can stand for hidden words."""
    return Needs(keep={"input": "last"}) if anatomy.embedding is not None else Needs()


def hidden_tokens(trace: Trace, fill: Fill) -> Hide:
    """From masks (M, T), True at what is hidden, to texts with another word there.

    The word embedding is exchanged and the token ids stay: models look for padding and end tokens among them, to know
    where to read or how to count positions. The ids are exchanged where the embedding layer is not known, or is used
    more than once (by encoder and decoder), or lays words out in its own way; special ones stay there.

    `fill` is the id of the token that stands for hidden ones. None for the tokenizer's mask token, else the padding
    token; where word embeddings were given, zeros. The choice is written into the result.
    """
    if fill is not None and (isinstance(fill, bool) or not isinstance(fill, int) or fill < 0):
        raise ArgumentError(f"Expected fill to be the id of a token for texts, but got {fill!r}.")
    ids = trace.batch.kwargs.get("input_ids")
    if ids is None and fill is None:
        vectors = trace.batch.kwargs["inputs_embeds"]
        trace.chosen["fill"] = "zero"
        return lambda masks, samples: vectors[samples].masked_fill(masks[..., None], 0.0)
    number = trace.batch.mask_id if fill is None else fill
    number = padding_id(trace) if number is None else number
    if number is None:
        raise ArgumentError(
            "Expected to know the token that stands for a hidden one: give tokenizer=, or fill=, the id of the mask "
            "token."
        )
    most = getattr(trace.anatomy.embedding, "num_embeddings", None)
    if isinstance(most, int) and number >= most:
        raise ArgumentError(f"Expected fill to be a token id from 0 to {most - 1}, but got {number}.")
    trace.chosen["fill"] = number
    if ids is not None and not (trace.embeddings == 1 and torch.equal(trace.embed(ids), trace.input)):
        _, special = trace.batch.roles
        words_alone = ~special
        return lambda masks, samples: ids[samples].masked_fill(masks & words_alone[samples], number)
    if "input" not in trace.outer:
        raise ArgumentError("Expected no fill= beside word embeddings: the layer that makes them is not known.")
    words = trace.input.detach()
    vector = trace.embed(torch.tensor([number], device=words.device)).to(words)
    return lambda masks, samples: torch.where(masks[..., None], vector, words[samples])


def padding_id(trace: Trace) -> int | None:
    """The padding token, by the tokenizer, the model's configuration or its embedding layer; None if none says."""
    index = getattr(trace.anatomy.embedding, "padding_idx", None)
    return trace.batch.pad_id if trace.batch.pad_id is not None else index if isinstance(index, int) else None


def filled(trace: Trace, fill: Fill, blur: tuple[int, int]) -> Tensor:
    """What stands for hidden pixels, (B, C, H, W); the choice is written into the result.

    `fill` is `"mean"` (also None) for the mean colour of each image, `"blur"` over boxes of that height and width,
    `"zero"`, a number or a tensor.
    """
    pixels = trace.batch.pixels
    if isinstance(fill, Tensor):
        trace.chosen["fill"] = "tensor"
        is_colour = fill.dim() == 1 and fill.layout is torch.strided
        return expanded("fill", fill[:, None, None] if is_colour else fill, pixels)
    trace.chosen["fill"] = fill = "mean" if fill is None else fill
    if isinstance(fill, (int, float)) and not isinstance(fill, bool) and abs(fill) <= _LARGEST:
        return torch.full_like(pixels, float(fill))
    if not isinstance(fill, str) or fill not in ("mean", "blur", "zero"):  # an array is compared value by value
        raise ArgumentError(f"Expected fill 'mean', 'blur', 'zero', a number or a tensor for images, but got {fill!r}.")
    if fill == "mean":
        return pixels.mean((2, 3), keepdim=True).expand_as(pixels)
    return box_blur(pixels, *blur) if fill == "blur" else torch.zeros_like(pixels)


def expanded(name: str, value: Tensor, like: Tensor) -> Tensor:
    """The tensor that an option is, in the shape, type and device of another; one that does not fit is refused."""
    plain = value.layout is torch.strided and not (value.is_meta or value.is_nested) and value.dtype in _REAL
    # Sizes of nested tensors cannot be asked for.
    sizes = list(zip(reversed(value.shape), reversed(like.shape), strict=False)) if plain else []
    if not plain or value.dim() > like.dim() or any(size not in (1, wanted) for size, wanted in sizes):
        shape = tuple(value.shape) if not value.is_nested else "a nested tensor"
        raise ArgumentError(
            f"Expected a {name} that fits inputs of shape {tuple(like.shape)}, of real numbers, but got {shape}, "
            f"{value.dtype}, on {value.device.type}, {value.layout}."
        )
    return value.detach().to(like).expand_as(like)


def box_blur(pixels: Tensor, height: int, width: int) -> Tensor:
    """Means of images (B, C, H, W) over a box around each pixel; at the border, of the image and its reflection."""
    height, width = min(height, pixels.shape[2]), min(width, pixels.shape[3])
    edges = (width // 2, (width - 1) // 2, height // 2, (height - 1) // 2)
    padded = F.pad(pixels, edges, mode="reflect")
    return F.avg_pool2d(F.avg_pool2d(padded, (height, 1), 1), (1, width), 1)
