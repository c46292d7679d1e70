"""Image tensors and photos."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from mhex._photo import BROKEN, upright_rgb
from mhex.capture import Anatomy, Batch
from mhex.errors import ArgumentError, ArgumentTypeError
from mhex.inputs._common import Prepared, check_batch, finite, place_of


def images(model: nn.Module, x: Any, kwargs: dict[str, Any], pictures: Any = None) -> Prepared:
    """A batch from a normalised image tensor (B, C, H, W); `kwargs` are handed on to the model."""
    if not isinstance(x, Tensor):
        raise ArgumentTypeError(f"Expected an image tensor, but got {type(x).__name__}.")
    for name, value in {"images": x, **kwargs}.items():
        if isinstance(value, Tensor):
            check_batch(value, str(name))
    if x.dim() != 4:
        hint = "; add a batch axis with x[None]" if x.dim() == 3 else ""
        raise ArgumentError(
            f"Expected images of shape (batch, channels, height, width), but got {tuple(x.shape)}{hint}."
        )
    if x.shape[0] == 0:
        raise ArgumentError("Expected at least one sample, but the batch is empty.")
    if not x.numel():
        raise ArgumentError(f"Expected images with channels, rows and columns, but got {tuple(x.shape)}.")
    if not x.is_floating_point() or x.dtype == torch.float4_e2m1fn_x2:  # of which an entry holds two numbers
        raise ArgumentTypeError(
            f"Expected floating-point images, scaled and normalised as in training, but got {x.dtype}; "
            "for raw photos pass PIL images and preprocess=."
        )
    device, dtype = place_of(model)
    x = finite(x, "images")
    pixels = finite(x.to(device, dtype), f"images in the model's {dtype}")
    batch = Batch("image", (pixels,), {name: value for name, value in kwargs.items() if name != "labels"}, x.shape[0])
    return Prepared(batch, pictures=x if pictures is None else pictures)


def photos(model: nn.Module, pictures: list[Any], preprocess: Callable[[Any], Tensor] | None) -> Prepared:
    """A batch from PIL images, each handed to `preprocess` as it is, which turns it into a tensor (C, H, W)."""
    if preprocess is None:
        raise ArgumentError(
            "PIL images were given without preprocess=, which turns one into a tensor (C, H, W) as in training."
        )
    if not callable(preprocess):
        raise ArgumentTypeError(f"Expected preprocess to be a function, but got {type(preprocess).__name__}.")
    # Photos are drawn only if the map lies on the whole of them; otherwise what the model saw is drawn.
    whole = getattr(preprocess, "whole_photo", False)
    pictures = [_readable(picture, n, whole) for n, picture in enumerate(pictures)]
    tensors = [preprocess(picture) for picture in pictures]
    for tensor in tensors:
        if not isinstance(tensor, Tensor) or tensor.dim() != 3:
            got = tuple(tensor.shape) if isinstance(tensor, Tensor) else type(tensor).__name__
            raise ArgumentTypeError(f"Expected preprocess to return a tensor (C, H, W), but it returned {got}.")
    shapes = {tuple(t.shape) for t in tensors}
    if len(shapes) != 1:
        raise ArgumentError(
            f"Expected preprocess to give images of one shape, but it gave {sorted(shapes)}; resize in it."
        )
    return images(model, torch.stack(tensors), {}, pictures if whole else None)


def _readable(picture: Any, place: int, whole: bool) -> Any:
    """A PIL image whose pixels are read, since it may be a file that nobody has looked at yet; upright if `whole`."""
    if 0 in picture.size:
        raise ArgumentError(f"Expected photos with pixels, but photo {place} has {picture.width}x{picture.height}.")
    try:
        picture.load()
        return upright_rgb(picture) if whole else picture
    except BROKEN as error:
        raise ArgumentError(
            f"Expected photos that can be read, but photo {place}, of mode {picture.mode}, cannot: "
            f"{str(error).rstrip('.')}."
        ) from error


def with_scale(prepared: Prepared, preprocess: Any) -> Prepared:
    """The same, and how its colours were normalised, where the preprocessing says so.

    Args:
        prepared: Images.
        preprocess: Has `mean` and `std` for colours from 0 to 1, as those of mhex and torchvision's presets have, or
            is a sequence of `transforms` of which one has them.
    """
    pixels = prepared.batch.pixels
    steps = [preprocess, *(getattr(preprocess, "transforms", None) or ())]
    pairs = [(getattr(step, "mean", None), getattr(step, "std", None)) for step in steps]
    known = [(mean, std) for mean, std in pairs if mean is not None and std is not None]
    if len(known) != 1:
        return prepared
    mean, std = (torch.as_tensor(values, dtype=torch.float64).flatten().to(pixels.device) for values in known[0])
    if len(mean) != pixels.shape[1] or len(std) != pixels.shape[1]:
        return prepared
    return replace(prepared, batch=replace(prepared.batch, scale=(mean, std)))


def check_image(batch: Batch, anatomy: Anatomy) -> None:
    """Refuse images that the model cannot take, before it runs."""
    _, channels, height, width = batch.pixels.shape
    if anatomy.channels is not None and channels != anatomy.channels:
        raise ArgumentError(
            f"Expected images of {anatomy.channels} channels for this {anatomy.family}, but got {channels}."
        )
    fits_any_size = batch.kwargs.get("interpolate_pos_encoding") is True
    if anatomy.image_size is not None and not fits_any_size and (height, width) != anatomy.image_size:
        wanted = "x".join(map(str, anatomy.image_size))
        raise ArgumentError(
            f"Expected images of {wanted} pixels for this {anatomy.family}, but got {height}x{width}; resize them."
        )
    rows, columns = anatomy.patch or (1, 1)
    if not anatomy.pads_image and (height % rows or width % columns):
        raise ArgumentError(
            f"Expected image sides that are multiples of the patch size {rows}x{columns}, but got {height}x{width}; "
            "resize them."
        )
