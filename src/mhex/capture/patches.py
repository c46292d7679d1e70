"""Vision Transformers that are not given some of their patches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn

from mhex.capture.adapters import known_anatomy
from mhex.capture.anatomy import Anatomy
from mhex.capture.batch import Batch
from mhex.capture.calling import call
from mhex.capture.hooks import hook_each
from mhex.capture.outputs import read_logits
from mhex.errors import ArgumentError, CaptureError

_OF_CLASS_TOKEN = ("class", "class+distilled")  # something is left to be read without a patch


def plain_vit(model: nn.Module) -> Anatomy:
    """Anatomy of a model whose patches can be left out; other models are refused.

    Args:
        model: The unwrapped module.
    """
    found = known_anatomy(model)
    if found is None or not found.blocks or not found.positions_in_tokens or found.readout not in _OF_CLASS_TOKEN:
        raise ArgumentError(
            "Expected a plain Vision Transformer that reads its class token (of timm, torchvision, or Hugging Face's "
            f"ViT and DeiT) where patches are dropped, but got {type(model).__name__}; hide pixels instead, by the "
            "reference 'black', 'zero', 'mean', 'blur' or 'impute'."
        )
    return found


def logits_of(model: nn.Module, batch: Batch) -> Tensor:
    """Class scores (B, C) of a batch, each sample given the patches alone that the batch keeps.

    Args:
        model: The unwrapped module.
        batch: Inputs. Samples that keep as many patches go through the model together.
    """
    if batch.kept is None:
        return read_logits(call(model, batch), batch.size)
    anatomy, number = plain_vit(model), batch.kept.sum(1)
    parts, rows = [], []
    for count in dict.fromkeys(number.tolist()):
        own = (number == count).nonzero()[:, 0]
        part = batch.variants(batch.pixels[own], own)
        with _left_out(anatomy, batch.kept[own]):
            parts.append(read_logits(call(model, part), len(own)))
        rows.append(own)
    return torch.cat(parts)[torch.cat(rows).argsort()]


@contextmanager
def _left_out(anatomy: Anatomy, kept: Tensor) -> Iterator[None]:
    """While open, the first block gets the tokens before the patches, and of these the kept ones alone.

    Their positions have been added by then, and stay theirs.

    Args:
        anatomy: Of a plain Vision Transformer.
        kept: Bool (B, P), as many in each row.
    """
    prefix = anatomy.prefix_tokens
    always = torch.arange(prefix, device=kept.device).expand(len(kept), -1)
    places = torch.cat([always, prefix + kept.nonzero()[:, 1].view(len(kept), -1)], 1)

    def shorten(tokens: Tensor) -> Tensor:
        if tokens.shape[:2] != (len(kept), prefix + kept.shape[1]):
            raise CaptureError(
                f"Expected {len(kept)} samples of {prefix + kept.shape[1]} tokens before the first block of this "
                f"{anatomy.family}, but saw {tuple(tokens.shape)}: its patches cannot be left out."
            )
        return tokens.gather(1, places[..., None].expand(-1, -1, tokens.shape[2]))

    with ExitStack() as stack:
        hook_each(stack, [anatomy.blocks[0].module], before=shorten)
        yield
