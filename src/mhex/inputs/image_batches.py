"""Batches of images, from tensors and from photos, with the range and the normalisation of their values."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mhex._settings import check_that
from mhex.capture import Anatomy, Batch
from mhex.errors import ArgumentError, ArgumentTypeError, MhexError, warn
from mhex.inputs.photos import BROKEN, Window, check_fit, check_window, is_deep, scaled, upright_rgb, window_hint
from mhex.inputs.prepared import WHOLE_NUMBERS, Prepared, check_batch, filled, finite, place_of


@dataclass(frozen=True)
class Ranged:
    """A preprocessing, and the range with which the photos in 8-bit RGB are made that it is given."""

    preprocess: Callable[[Any], Tensor] | None  # from a PIL image to a tensor (C, H, W); None where tensors are given
    window: Window  # values that become black and white

    @property
    def whole_photo(self) -> bool:
        """Whether nothing is cropped."""
        return bool(getattr(self.preprocess, "whole_photo", False))


def with_window(preprocess: Callable[[Any], Tensor] | None, window: Any, inputs: Any) -> Any:
    """What `prepare` takes as preprocessing: with the range that the user asks for, and as it is without one.

    All are as for `mhex.explain`. A range is refused beside inputs that none can be applied to.
    """
    ends = check_window(window)
    if ends is None:
        return preprocess
    pixels = inputs.get("pixel_values") if isinstance(inputs, Mapping) else inputs
    first = pixels[0] if isinstance(pixels, (list, tuple)) and pixels else pixels
    if first is None or isinstance(first, str) or (isinstance(first, Tensor) and first.is_floating_point()):
        kind = "a floating-point tensor, taken as it is" if isinstance(first, Tensor) else "texts"
        raise ArgumentError(f"Expected photos or whole numbers beside window=, but got {kind}; leave window= out.")
    return Ranged(preprocess, ends)


def image_batch(
    model: nn.Module,
    x: Any,
    kwargs: dict[str, Any],
    pictures: Any = None,
    preprocess: Any = None,
    ids: Any = None,
    fill: bool = False,
    check_later: bool = False,
) -> Prepared:
    """A batch from a normalised image tensor (B, C, H, W), or from whole numbers with a range in `preprocess`.

    `kwargs` are handed on to the model, and `pictures` are drawn; None for the images. Where it is known how colours
    from 0 to 1 were normalised, `preprocess` has `mean` and `std`, as those of mhex and torchvision's presets have, or
    is a sequence of `transforms` of which one has them. `ids` are the images' numbers, for messages; `fill` and
    `check_later` are as for `prepare`.
    """
    if not isinstance(x, Tensor):
        raise ArgumentTypeError(f"Expected an image tensor, but got {type(x).__name__}.")
    for name, value in {"images": x, **kwargs}.items():
        if isinstance(value, Tensor):
            check_batch(value, str(name))
    single = x.dim() == 3 and x.shape[1] > 1  # sound is (batch, 1, time)
    hint = "; add a batch axis with x[None]" if single else "; sound, video and tables of numbers are not explained"
    check_that(x.dim() == 4, "images of shape (batch, channels, height, width)", tuple(x.shape), hint)
    check_that(x.numel() > 0, "at least one sample", "an empty batch")
    if not x.is_floating_point() or x.dtype == torch.float4_e2m1fn_x2:  # of which an entry holds two numbers
        x = _normalised(x, preprocess, ids)
    device, dtype = place_of(model)
    unchecked = check_later and not fill and x.is_cuda and not x.is_inference()
    x, gaps = filled(x, model) if fill else (x, ())
    x = x.detach() if unchecked else finite(x, "images", ids)
    pixels = x.to(device, dtype)
    if dtype != x.dtype and not unchecked:
        pixels = finite(pixels, f"images in the model's {dtype}", ids)
    arguments = {name: value for name, value in kwargs.items() if name != "labels"}
    scale = _scale(preprocess, x.shape[1], pixels.device)
    batch = Batch("image", (pixels,), arguments, x.shape[0], scale=scale)
    return Prepared(batch, pictures=x if pictures is None else pictures, gaps=gaps, unchecked=unchecked)


def photo_batch(model: nn.Module, pictures: list[Any], preprocess: Any, ids: Sequence[int], fill: bool) -> Prepared:
    """A batch from PIL images, each handed to `preprocess` as it is, which turns it into a tensor (C, H, W).

    With a range, `preprocess` is handed upright photos in 8-bit RGB. `ids` are the photos' numbers, for messages;
    `fill` is as for `prepare`.
    """
    ranged = isinstance(preprocess, Ranged)
    window, prepare = (preprocess.window, preprocess.preprocess) if ranged else (None, preprocess)
    right = "preprocess= beside photos, which turns one into a tensor (C, H, W) as in training"
    check_that(prepare is not None, right, "none", "; a model of texts takes texts")
    if not callable(prepare):
        raise ArgumentTypeError(f"Expected preprocess to be a function, but got {type(prepare).__name__}.")
    # Photos are drawn only if the map lies on the whole of them; otherwise what the model saw is drawn.
    uncropped = getattr(prepare, "whole_photo", False)
    if window is None and not uncropped and any(map(is_deep, pictures)):
        warn(  # the same words for every batch, so that they are shown once
            "Photos of more than 8 bits are given to your preprocess= as they are, and PIL's convert('RGB') cuts them "
            "off at 255. If it is made for 8 bits, say window=(black, white), such as window=(0, 4095)."
        )
    names = [f"Photo {number}" for number in ids]
    photos = [_decoded(*pair, window, uncropped) for pair in zip(pictures, names, strict=True)]
    tensors = [prepare(photo) for photo in photos]
    for name, tensor in zip(names, tensors, strict=True):
        if not isinstance(tensor, Tensor) or tensor.dim() != 3:
            actual = tuple(tensor.shape) if isinstance(tensor, Tensor) else type(tensor).__name__
            raise ArgumentTypeError(f"Expected a tensor (C, H, W) of preprocess=, but got {actual} for {name.lower()}.")
    shapes = sorted({tuple(tensor.shape) for tensor in tensors})
    check_that(len(shapes) == 1, "images of one shape of preprocess=", shapes, "; resize in it")
    x = torch.stack(tensors)
    scale = preprocess if x.is_floating_point() else None
    return image_batch(model, x, {}, photos if uncropped else x, scale, ids, fill)


def _decoded(picture: Any, name: str, window: Window | None, uncropped: bool) -> Any:
    """A photo that is read completely; as people see it where mhex or a range decides how it is seen."""
    check_that(0 not in picture.size, f"pixels in {name.lower()}", f"{picture.width}x{picture.height} of them")
    try:
        if uncropped or window is not None:
            return upright_rgb(picture, window, name)
        picture.load()
    except MhexError:
        raise
    except BROKEN as error:
        reason = str(error).rstrip(".") or type(error).__name__
        raise ArgumentError(f"{name} cannot be read: it is damaged or cut off ({reason}).") from error
    return picture


def _normalised(x: Tensor, preprocess: Any, ids: Sequence[int] | None) -> Tensor:
    """Whole numbers (B, C, H, W) as the network wants them: scaled by the range, then normalised."""
    if x.dtype not in (torch.bool, *WHOLE_NUMBERS):
        raise ArgumentTypeError(f"Expected images of real numbers, but got {x.dtype}; convert them to float32.")
    values, scale = x.double(), _scale(preprocess, x.shape[1], x.device)
    low, high = float(values.min()), float(values.max())
    if not isinstance(preprocess, Ranged) or scale is None:
        raise ArgumentTypeError(
            f"Expected floating-point images, normalised as in training, but got {x.dtype} from {low:g} to {high:g}; "
            f"convert them, or {window_hint(low, high)}, with a preprocess= that has the mean and std of training."
        )
    mean, std = (part.view(-1, 1, 1) for part in scale)
    light: Tensor = scaled(values, preprocess.window)
    for place, number in enumerate(range(len(x)) if ids is None else ids):
        check_fit(values[place].cpu().numpy(), light[place].cpu().numpy(), preprocess.window, f"Image {number}")
    return ((light - mean) / std).float()


def _scale(preprocess: Any, channels: int, device: torch.device) -> tuple[Tensor, Tensor] | None:
    """Mean and standard deviation, (C,), float64, of the normalisation, where the preprocessing says them."""
    if isinstance(preprocess, Ranged):
        preprocess = preprocess.preprocess
    steps = [preprocess, *(getattr(preprocess, "transforms", None) or ())]
    pairs = [(getattr(step, "mean", None), getattr(step, "std", None)) for step in steps]
    scales = [(mean, std) for mean, std in pairs if mean is not None and std is not None]
    if len(scales) != 1:
        return None
    mean, std = (torch.as_tensor(values, dtype=torch.float64, device=device).flatten() for values in scales[0])
    return (mean, std) if len(mean) == len(std) == channels else None


def check_image(batch: Batch, anatomy: Anatomy) -> None:
    """Refuse images that the model cannot take, before it runs."""
    _, channels, height, width = batch.pixels.shape
    right = anatomy.channels in (None, channels)
    check_that(right, f"images of {anatomy.channels} channels for this {anatomy.family}", channels)
    fits_any_size = batch.kwargs.get("interpolate_pos_encoding") is True
    fits = fits_any_size or anatomy.image_size in (None, (height, width))
    expectation = f"images of {'x'.join(map(str, anatomy.image_size or ()))} pixels for this {anatomy.family}"
    check_that(fits, expectation, f"{height}x{width}", "; resize them")
    rows, columns = anatomy.patch or (1, 1)
    whole = anatomy.pads_image or not (height % rows or width % columns)
    expectation = f"image sides that are multiples of the patch size {rows}x{columns}"
    check_that(whole, expectation, f"{height}x{width}", "; resize them")
