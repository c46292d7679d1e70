"""Photos of ImageNet by synset, with several classes, and names of the same object."""

import io
import json

import numpy as np
import pytest
import torch
from PIL import Image

from mhex.errors import ArgumentError
from mhex.lab.datasets import (
    DataFormatError,
    DataMissingError,
    imagenet_synsets,
    load_imagenet_multi,
    load_photos,
    same_object,
)

SUNGLASS, SUNGLASSES, CAT = 836, 837, 281


def png(value):
    buffer = io.BytesIO()
    Image.fromarray(np.full((8, 8, 3), value, np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


def test_synsets_in_their_usual_order():
    synsets = imagenet_synsets()
    assert len(synsets) == 1000
    assert list(synsets)[:2] == ["n01440764", "n01443537"]
    assert synsets["n01440764"].startswith("tench")
    assert list(synsets) == sorted(synsets)


def test_photos_have_labels_of_imagenet(write):
    write("photos.parquet", [{"name": "n01443537_goldfish", "image": png(3)}, {"name": "n01440764_t", "image": png(4)}])
    found = load_photos()
    assert found.labels.tolist() == [1, 0]
    assert found.classes[1] == "n01443537"
    with pytest.raises(ArgumentError, match="'train'"):
        load_photos("train")
    write("photos.parquet", [{"name": "goldfish", "image": png(3)}])
    with pytest.raises(DataFormatError, match="'goldfish'"):
        load_photos()


def test_names_of_the_same_object():
    same = same_object(["sunglass", "sunglasses, dark glasses, shades", "tabby, tabby cat", "maillot", "suit, maillot"])
    assert same.tolist() == [
        [True, True, False, False, False],
        [True, True, False, False, False],
        [False, False, True, False, False],
        [False, False, False, True, True],
        [False, False, False, True, True],
    ]


def test_names_by_vectors_of_a_model():
    vectors = {"screen": [1.0, 0.0], "monitor": [0.9, 0.1], "dog": [0.0, 1.0], "hound": [0.0, 5.0]}
    same = same_object(
        ["screen, dog", "monitor", "hound"], 0.9, lambda names: torch.tensor([vectors[n] for n in names])
    )
    assert same.tolist() == [[True, True, True], [True, True, False], [True, False, True]]
    with pytest.raises(ArgumentError, match="each of 2 names"):
        same_object(["a", "b"], embed=lambda names: torch.zeros(3, 4))
    with pytest.raises(ArgumentError, match=r"0\.\.1"):
        same_object(["a"], 2)


@pytest.fixture
def annotated(folder):
    def write(labels, flat=False, file="real.json"):
        for k in range(len(labels)):
            place = folder / "imagenet" / "val" / ("" if flat else f"n{k % 2}")
            place.mkdir(parents=True, exist_ok=True)
            (place / f"ILSVRC2012_val_{k + 1:08d}.JPEG").write_bytes(png(10 * k))
        (folder / "imagenet" / file).write_text(json.dumps(labels), encoding="utf-8")

    return write


@pytest.mark.parametrize("flat", [True, False])
def test_photos_of_two_objects(annotated, flat):
    annotated([[CAT], [SUNGLASS, SUNGLASSES], [SUNGLASS, SUNGLASSES, CAT], [], [CAT, SUNGLASS]], flat)
    found = load_imagenet_multi(side=8)
    assert found.names == ("ILSVRC2012_val_00000003", "ILSVRC2012_val_00000005")
    assert (found.labels.tolist(), found.second_labels.tolist()) == ([SUNGLASS, CAT], [CAT, SUNGLASS])
    assert found.present[0] == (SUNGLASS, SUNGLASSES, CAT)
    item = found.items()[1]
    assert (item["label"], item["other"], item["image"].getpixel((0, 0))) == (CAT, SUNGLASS, (40, 40, 40))
    assert load_imagenet_multi(single=True).second_labels.tolist() == [-1, -1, CAT, SUNGLASS]
    assert load_imagenet_multi(threshold=1.0).second_labels.tolist() == [SUNGLASSES, SUNGLASSES, SUNGLASS]


def test_other_annotations_name_their_photos(annotated, folder):
    annotated([[]] * 3)
    told = {"ILSVRC2012_val_00000002.JPEG": ["n02123045", SUNGLASS], "ILSVRC2012_val_00000099": [1, 2]}
    (folder / "imagenet" / "more.json").write_text(json.dumps(told), encoding="utf-8")
    found = load_imagenet_multi(file="more.json")
    assert (found.names, found.labels.tolist()) == (("ILSVRC2012_val_00000002",), [CAT])


def test_annotations_that_are_not_what_they_should_be(annotated, folder):
    annotated([[CAT, 1000]])
    with pytest.raises(DataFormatError, match=r"0\.\.999.*1000"):
        load_imagenet_multi()
    annotated([CAT])
    with pytest.raises(DataFormatError, match="list of lists"):
        load_imagenet_multi()
    annotated([[CAT]])
    with pytest.raises(DataMissingError, match=r"real\.json.*place"):
        load_imagenet_multi()
    (folder / "imagenet" / "real.json").write_text("[[", encoding="utf-8")
    with pytest.raises(DataFormatError, match="not JSON"):
        load_imagenet_multi()
