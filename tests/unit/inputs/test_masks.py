"""Masks in every form that people have them in give the same numbers."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

import mhex
from mhex.errors import ArgumentError, ArgumentTypeError, MhexWarning
from mhex.inputs.masks import MaskReader
from mhex.inputs.preprocess import Preprocess
from support.tiny_models import pictures, tiny

METRICS = ["segmentation", "pointing-game", "energy-pointing-game"]
PLAIN = torch.tensor([[0, 1, 1, 0], [0, 1, 0, 0], [0, 0, 0, 0], [1, 1, 1, 0]])
PARTLY = torch.tensor([[0, 1, 1, -1], [0, 1, 0, -1], [0, 0, 0, 0], [1, 1, 1, 0]])
VOC = torch.where(PARTLY == -1, 255, PARTLY * 15)


def paletted(values: Tensor) -> Image.Image:
    image = Image.frombytes("P", (values.shape[1], values.shape[0]), values.numpy().astype(np.uint8).tobytes())
    image.putpalette([7, 77, 177] * 256)  # colours mean nothing
    return image


FORMS: dict[str, Any] = {
    "long": PLAIN,
    "bool": PLAIN.bool(),
    "uint8": PLAIN.to(torch.uint8),
    "float": PLAIN.float(),
    "half": PLAIN.half(),
    "with a channel": PLAIN[None],
    "black and white": (PLAIN * 255).to(torch.uint8),
    "black and white floats": (PLAIN * 255).float(),
    "array": PLAIN.numpy(),
    "bool array": PLAIN.bool().numpy()[None],
    "uint16 array": (PLAIN * 255).numpy().astype(np.uint16),
    "L": Image.fromarray((PLAIN * 255).numpy().astype(np.uint8)),
    "1": Image.fromarray((PLAIN * 255).numpy().astype(np.uint8)).convert("1"),
    "P": paletted(PLAIN),
    "P of a class": paletted(PLAIN * 15),
    "list": PLAIN.tolist(),
}


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_a_mask(form: str) -> None:
    found = MaskReader()(FORMS[form], 0)
    assert found is not None
    assert found.dtype == torch.int8
    assert torch.equal(found.long(), PLAIN)


@pytest.mark.parametrize("form", [PARTLY, VOC, VOC.to(torch.uint8), VOC.numpy().astype(np.uint8), paletted(VOC)])
def test_pixels_that_are_not_labelled(form: Any) -> None:
    found = MaskReader()(form, 0)
    assert found is not None
    assert torch.equal(found.long(), PARTLY)


def test_masks_without_an_object_or_a_background() -> None:
    read = MaskReader()
    assert torch.equal(read(np.full((2, 3), 255, np.uint8), 0), torch.ones(2, 3, dtype=torch.int8))
    assert torch.equal(read(np.zeros((2, 3), np.uint8), 1), torch.zeros(2, 3, dtype=torch.int8))
    assert read(None, 2) is None


def test_several_classes_are_one_object_and_said_to_be_once() -> None:
    several = VOC.clone()
    several[3, 0] = 12
    read = MaskReader()
    with pytest.warns(MhexWarning, match=r"several classes \(12, 15 in that of sample 4\)"):
        found = read(several, 4)
    assert found is not None
    assert torch.equal(found.long(), PARTLY)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read(several, 5)


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (torch.rand(4, 4), r"got 0\.\d+; cut a soft mask"),
        (PLAIN - 2, "got -2"),
        (torch.full((4, 4), torch.nan), "got nan"),
        (PLAIN[None].expand(3, -1, -1), r"\(H, W\) or \(1, H, W\) of sample 3, but got \(3, 4, 4\)"),
        (torch.zeros(0, 4), r"got \(0, 4\)"),
        (PLAIN + 1, "got 1, 2 and no 0"),
        (torch.tensor([[1, 2], [3, 2]]), "got 1, 2, 3 and no 0"),
        (torch.arange(64).view(8, 8), r"got 1, 2, 3, 4, 5, 6 \.\.\.; write masks with 1 at the object"),
    ],
)
def test_what_is_no_mask(mask: Tensor, words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        MaskReader()(mask, 3)


def test_what_is_no_mask_by_its_type() -> None:
    with pytest.raises(ArgumentTypeError, match="got str"):
        MaskReader()("mask.png", 0)
    with pytest.raises(ArgumentTypeError, match="of object"):
        MaskReader()(np.array([[None, 1]]), 0)


def test_255_means_one_thing() -> None:
    read = MaskReader()
    read(FORMS["black and white"], 0)
    with pytest.raises(ArgumentError, match="it is 15 in that of sample 2, and 255 stands alone in that of sample 0"):
        read(VOC, 2)


def masked(masks: Any, **options: Any) -> mhex.Report:
    items = [{"image": x, "mask": mask} for x, mask in zip(pictures(len(masks)), masks, strict=True)]
    return mhex.evaluate(tiny("cnn"), items, ["gradcam"], METRICS, controls=False, **options)


def values(report: mhex.Report) -> list[float]:
    return report.rows.column("value").to_pylist()


@pytest.mark.parametrize("form", ["bool", "with a channel", "black and white", "array", "L", "P of a class"])
def test_numbers_do_not_depend_on_the_form(form: str) -> None:
    assert values(masked([FORMS[form]] * 3)) == values(masked([PLAIN] * 3))


def test_batches_of_masks() -> None:
    x, wanted = pictures(3), values(masked([PLAIN] * 3))
    y = torch.zeros(3).long()
    for masks in (PLAIN.expand(3, 1, 4, 4), (PLAIN * 255).expand(3, 4, 4).numpy(), [FORMS["L"]] * 3):
        for data in ((x, y, masks), {"image": x, "masks": masks}, iter([(x, None, masks)])):
            found = mhex.evaluate(tiny("cnn"), data, ["gradcam"], METRICS, controls=False)
            assert values(found) == wanted


def test_samples_without_a_mask_are_skipped() -> None:
    report = masked([None, PLAIN, None, PLAIN, PLAIN], batch_size=2)
    whole = masked([PLAIN] * 5)
    for metric in METRICS:
        found, wanted = report.values(metric)[1]["gradcam"], whole.values(metric)[1]["gradcam"]
        assert found.isnan().any(1).tolist() == [True, False, True, False, False]
        assert torch.equal(found[[1, 3, 4]], wanted[[1, 3, 4]])
    cell = report.summary()[0]
    assert (cell.n, cell.skipped) == (3, 2)
    alone = masked([None, PLAIN, None, PLAIN, PLAIN], batch_size=1)  # the first batch has none at all
    for metric in METRICS:
        found, wanted = (one.values(metric)[1]["gradcam"] for one in (alone, report))
        assert torch.allclose(found, wanted, 1e-9, equal_nan=True)


def test_no_mask_at_all_is_refused_before_any_pass() -> None:
    with pytest.raises(ArgumentError, match=r"none of the first 3 samples has one; give items as \(image, label, mask"):
        masked([None, None, None], batch_size=1)


def test_photos_and_masks_of_different_sizes() -> None:
    """Each mask lies on its own photo; both are squashed to what the model sees."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())
    sizes = ((8, 8), (16, 8), (12, 20))
    photos = [Image.new("RGB", size, (50 * n, 90, 20)) for n, size in enumerate(sizes)]
    masks = []
    for width, height in sizes:
        mask = np.zeros((height, width), np.uint8)
        mask[: height // 2] = 255
        masks.append(mask)
    options: Any = {"preprocess": Preprocess(8, 8, [0.5] * 3, [0.5] * 3), "controls": True}
    items = [{"image": p, "mask": m} for p, m in zip(photos, masks, strict=True)]
    report = mhex.evaluate(model, items, ["input-x-gradient"], ["energy-pointing-game"], **options)
    half = torch.zeros(8, 8).long()
    half[:4] = 1
    wanted = [{"image": p, "mask": half} for p in photos]
    same = mhex.evaluate(model, wanted, ["input-x-gradient"], ["energy-pointing-game"], **options)
    assert np.array_equal(values(report), values(same), equal_nan=True)  # the photos have no edges
    assert report.per_image("energy-pointing-game")["control:gaussian"].tolist() == pytest.approx([0.5] * 3)


def test_masks_that_nobody_asked_for_are_left_alone() -> None:
    """A photo's mask that cannot be brought to the model's size matters only to metrics that read it."""

    def crop(photo: Any) -> Tensor:
        return torch.zeros(1, 4, 4, dtype=torch.float64)

    items = [{"image": Image.new("L", (9, 9)), "mask": torch.ones(9, 9).long()}]
    report = mhex.evaluate(tiny("cnn"), items, ["gradcam"], ["compactness"], preprocess=crop)
    assert report.rows.num_rows


BORDER = torch.tensor([[255, 255, 255, 255], [255, 0, 0, 255], [255, 0, 0, 255], [255, 255, 255, 255]])


@pytest.mark.parametrize("masks", [(PLAIN, BORDER), (BORDER, PLAIN), (PLAIN * 15, BORDER, PLAIN)])
def test_255_alone_beside_masks_with_another_object(masks: tuple[Tensor, ...]) -> None:
    """A border that is ignored, in an image without the object, is not taken for an object."""
    read = MaskReader()
    told = r"it is 1?[15] in that of sample ., and 255 stands alone in that of sample"
    with pytest.raises(ArgumentError, match=told):
        list(map(read, masks, range(len(masks))))


def test_255_alone_beside_empty_masks_is_the_object() -> None:
    read = MaskReader()
    found = [read(mask, n) for n, mask in enumerate((PLAIN * 0, PLAIN * 255, PLAIN.bool(), PLAIN * 255))]
    assert torch.equal(torch.stack([one for one in found if one is not None][1:]).long(), PLAIN.expand(3, -1, -1))
