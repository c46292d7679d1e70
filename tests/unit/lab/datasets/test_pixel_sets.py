"""Sets with a class for every pixel: PASCAL VOC, CamVid and ImageNet-Segmentation."""

import io
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from mhex.errors import ArgumentError, MissingExtraError
from mhex.lab.datasets import (
    DataFormatError,
    DataMissingError,
    data_entry,
    load_camvid,
    load_imagenet_segmentation,
    load_pets,
    load_voc,
)


def encode(array, kind):
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, kind)
    return buffer.getvalue()


def palette(values):
    picture = Image.fromarray(values).convert("P")
    picture.putdata(values.flatten().tolist())
    picture.putpalette([k * 37 % 256 for k in range(768)])  # colours must not be taken for classes
    return picture


@pytest.fixture
def voc(folder):
    root = folder / "VOCdevkit" / "VOC2012"
    for name in ("JPEGImages", "SegmentationClass", "ImageSets/Segmentation"):
        (root / name).mkdir(parents=True)

    def add(name, values):
        values = np.asarray(values, np.uint8)
        photo = np.zeros((*values.shape, 3), np.uint8)
        photo[values == 8] = (200, 0, 0)
        Image.fromarray(photo).save(root / "JPEGImages" / f"{name}.jpg", quality=95)
        palette(values).save(root / "SegmentationClass" / f"{name}.png")

    scene = np.zeros((20, 40))
    scene[:, :20] = 8  # cat
    scene[:10, 30:] = 12  # dog
    scene[:, 20] = 255
    add("2007_1", scene)
    add("2007_2", np.full((20, 40), 15))
    add("2007_3", np.zeros((20, 40)))
    (root / "ImageSets/Segmentation/val.txt").write_text("2007_1\n2007_2\n", encoding="utf-8")
    (root / "ImageSets/Segmentation/train.txt").write_text("2007_3\n", encoding="utf-8")
    return root, add


def test_voc_maps_are_places_in_the_palette(voc):
    val = load_voc(side=40)
    assert val.names == ("2007_1", "2007_2")
    maps = val.maps[torch.tensor([0, 1])]
    assert maps.shape == (2, 40, 40)
    assert maps[0].unique().tolist() == [0, 8, 12, 255]
    assert val.images[torch.tensor([0])][0, 0, 20, 5] > 150
    assert len(load_voc("all")) == 3
    cropped = load_voc(side=20, fit="crop").maps[torch.tensor([0])]
    assert cropped[0].unique().tolist() == [0, 8, 255]  # the dog is outside of the middle


def test_voc_items(voc):
    val = load_voc(side=40)
    everything = val.items()
    assert everything[0].keys() == {"image", "mask"}
    assert everything[0]["image"].size == (40, 40)
    assert (everything[0]["mask"] == 1).sum() == 20 * 40 + 10 * 20
    assert (everything[0]["mask"] == -1).sum() == 40
    each = val.items("each")
    assert [(item["label"], item["other"]) for item in each] == [(8, 12), (12, 8), (15, -1)]
    assert [int((item["mask"] == 1).sum()) for item in each] == [800, 200, 1600]
    dogs = val.items("dog", labels=["person", "dog"])
    assert [item["label"] for item in dogs] == [1]
    assert [item["label"] for item in val.items("each", labels=["person", "dog"])] == [1, 0]
    with pytest.raises(ArgumentError, match="'dog'"):
        val.items("dgo")


def test_voc_that_is_not_what_it_should_be(voc):
    root, add = voc
    add("2007_2", np.full((20, 40), 21))
    with pytest.raises(DataFormatError, match=r"2007_2\.png.*21"):
        load_voc().maps[torch.tensor([1])]
    (root / "SegmentationClass" / "2007_1.png").unlink()
    with pytest.raises(DataMissingError, match=r"2007_1\.png"):
        load_voc()
    (root / "ImageSets/Segmentation/val.txt").unlink()
    with pytest.raises(DataMissingError, match=r"val\.txt.*VOCdevkit"):
        load_voc()


def test_camvid_void_and_classes(write):
    mask = np.full((6, 8), 11, np.uint8)
    mask[:3] = 0
    mask[3, :2] = 8
    photo = encode(np.zeros((6, 8, 3), np.uint8), "PNG")
    row = {"name": "a", "image": photo, "mask": encode(mask, "PNG"), "split": "test"}
    write("camvid.parquet", [row])
    test = load_camvid("test")
    assert test.maps.unique().tolist() == [0, 8, 255]
    items = test.items("car")
    assert items[0]["label"] == 8
    assert [int((items[0]["mask"] == value).sum()) for value in (1, 0, -1)] == [2, 24, 22]
    assert [item["other"] for item in data_entry("camvid").items()] == [8, 0]
    with pytest.raises(ArgumentError, match="name of a class"):
        test.items()
    write("camvid.parquet", [{**row, "mask": encode(mask + 1, "PNG")}])
    with pytest.raises(DataFormatError, match=r"0\.\.10.*12"):
        load_camvid("test")


def test_borders_of_pets_are_ignored(write, rows):
    trimap = np.full((12, 12), 2, np.uint8)
    trimap[3:9, 3:9] = 3
    trimap[4:8, 4:8] = 1
    for row in rows:
        row["trimap"] = encode(trimap, "PNG")
    write("pets.parquet", rows)
    item = data_entry("pets").items()[1]
    assert (item["label"], item["image"].size) == (1, (12, 12))
    assert [int((item["mask"] == value).sum()) for value in (1, 0, -1)] == [16, 108, 20]
    assert item["image"].getpixel((0, 0)) == (140, 140, 140)
    assert load_pets("test").items()[0].keys() == {"image", "label"}
    rows[3]["trimap"] = encode(trimap + 1, "PNG")
    write("pets.parquet", rows)
    with pytest.raises(DataFormatError, match=r"1\.\.4"):
        load_pets("test", trimaps=True)


@pytest.fixture
def mat(folder):
    """Write the fields of a MATLAB 7.3 file, where axes come in reverse and cells hold references."""
    h5py = pytest.importorskip("h5py")

    def write(photos, name="gtsegs_ijcv.mat", leave=()):
        with h5py.File(folder / name, "w") as file:
            fields = {"img": [], "gt": [], "target": []}
            for k, (photo, mask, synset) in enumerate(photos):
                image = file.create_dataset(f"#refs#/img{k}", data=photo.T)
                inner = file.create_dataset(f"#refs#/map{k}", data=mask.T)
                cell = file.create_dataset(f"#refs#/gt{k}", (1, 1), dtype=h5py.ref_dtype)
                cell[0, 0] = inner.ref
                letters = np.array([[ord(letter)] for letter in synset], np.uint16)
                word = file.create_dataset(f"#refs#/target{k}", data=letters)
                for field, one in (("img", image), ("gt", cell), ("target", word)):
                    fields[field].append(one.ref)
            for field in set(fields) - set(leave):
                column = file.create_dataset(f"value/{field}", (len(photos), 1), dtype=h5py.ref_dtype)
                for k, reference in enumerate(fields[field]):
                    column[k, 0] = reference

    return write


def scene(red, synset, grey=False):
    photo = np.zeros((10, 20, 3), np.uint8)
    photo[:5, :, 0] = red
    mask = np.zeros((10, 20), np.uint8)
    mask[:5, :10] = 1
    return (photo[..., 0] if grey else photo), mask, synset


def test_matlab_photos_stand_upright(mat):
    mat([scene(200, "n01443537"), scene(50, "n99999999"), scene(90, "n01440764", grey=True)])
    found = load_imagenet_segmentation(side=20)
    assert found.synsets == ("n01443537", "n99999999", "n01440764")
    photo = found.images[torch.tensor([1, 0])]
    assert photo.shape == (2, 3, 20, 20)
    assert photo[:, :, 3, 15].tolist() == [[50, 0, 0], [200, 0, 0]]  # up on the right: red, no object
    assert photo[1, :, 15, 3].tolist() == [0, 0, 0]
    assert found.images[torch.tensor([2])][0, :, 3, 3].tolist() == [90, 90, 90]
    items = found.items()
    assert items[0].keys() == {"image", "mask"}
    assert items[0]["mask"][:10, :10].eq(1).all()
    assert int(items[0]["mask"].sum()) == 100
    labelled = found.labelled()
    assert labelled.labels.tolist() == [1, 0]
    assert labelled.items()[1]["mask"].sum() == 100
    assert labelled.items()[1]["image"].getpixel((3, 3)) == (90, 90, 90)
    assert load_imagenet_segmentation(limit=1).synsets == ("n01443537",)


def test_matlab_files_that_are_not_what_they_should_be(mat, folder):
    photo, mask, synset = scene(1, "n01443537")
    mat([(photo, np.where(mask == 1, 255, 0).astype(np.uint8), synset)])
    found = load_imagenet_segmentation(side=20)
    assert found.items()[0]["mask"].unique().tolist() == [-1, 0]
    assert found.labelled().items()[0]["mask"].unique().tolist() == [-1, 0]
    mat([(photo, mask * 3, synset)])
    with pytest.raises(DataFormatError, match=r"0, 1 and 255.*\[0, 3\]"):
        load_imagenet_segmentation().maps[torch.tensor([0])]
    mat([(photo, mask, synset)], leave=("gt",))
    with pytest.raises(DataFormatError, match="value/gt"):
        load_imagenet_segmentation()
    (folder / "gtsegs_ijcv.mat").write_bytes(b"MATLAB 5.0 MAT-file")
    with pytest.raises(DataFormatError, match="HDF5"):
        load_imagenet_segmentation()


def test_a_missing_package_is_named(folder, monkeypatch):
    (folder / "gtsegs_ijcv.mat").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(MissingExtraError, match=r"h5py.*mhex\[data\]"):
        load_imagenet_segmentation()


def test_matlab_cells_that_lead_to_themselves(mat, folder):
    h5py = pytest.importorskip("h5py")
    mat([scene(1, "n01443537")])
    with h5py.File(folder / "gtsegs_ijcv.mat", "a") as file:
        file["#refs#/gt0"][0, 0] = file["#refs#/gt0"].ref
    with pytest.raises(DataFormatError, match="more than 8 levels deep"):
        load_imagenet_segmentation().maps[torch.tensor([0])]


def test_matlab_arrays_that_claim_more_than_the_file_holds(mat, folder):
    h5py = pytest.importorskip("h5py")
    mat([scene(1, "n01443537")])
    with h5py.File(folder / "gtsegs_ijcv.mat", "a") as file:
        huge = file.create_dataset("#refs#/huge", (3, 2**15, 2**15), dtype=np.uint8, chunks=(3, 64, 64))
        file["value/img"][0, 0] = huge.ref
    with pytest.raises(DataFormatError, match="claims 3221225472 bytes, which the file has not got"):
        load_imagenet_segmentation().images[torch.tensor([0])]


def test_lists_of_photos_in_another_encoding(voc):
    (voc[0] / "ImageSets/Segmentation/val.txt").write_bytes(b"\xff\xfe2\x000\x00")
    with pytest.raises(DataFormatError, match=r"val\.txt is not a text in UTF-8"):
        load_voc("val")
