"""Photos and tables of one's own, and lung nodules, which come as such a table."""

import csv

import numpy as np
import pytest
import torch
from PIL import Image

from mhex.errors import ArgumentError
from mhex.lab.datasets import (
    DataFormatError,
    DataMissingError,
    PhotoSet,
    TextSet,
    data_entry,
    load_csv,
    load_folder,
    load_lidc,
    load_lidc_biomarkers,
)
from mhex.lab.datasets.lidc import drawn_splits


def save(path, value, shape=(10, 20, 3), **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full(shape, value, np.uint8)).save(path, **options)


def write_csv(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream).writerows(rows)


def test_photos_without_folders_of_classes_are_told_apart_from_none(tmp_path):
    with pytest.raises(DataMissingError, match="There are no photos"):
        load_folder(tmp_path)
    save(tmp_path / "a.png", 1)
    with pytest.raises(DataMissingError, match="None of the photos is in a folder of its class"):
        load_folder(tmp_path)


def test_a_folder_for_each_class(tmp_path):
    for place, name in enumerate(("ant", "bee")):
        for k in range(3):
            save(tmp_path / name / f"{name}{k}.png", 50 * place + k)
    (tmp_path / "ant" / "notes.txt").write_text("no photo", encoding="utf-8")
    found = load_folder(tmp_path, side=8)
    assert found.classes == ("ant", "bee")
    assert found.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert found.images[torch.tensor([4])].unique().tolist() == [51]
    assert load_folder(tmp_path, limit=2).names == ("ant0", "bee0")
    with pytest.raises(ArgumentError, match="'train'"):
        load_folder(tmp_path, "train")
    with pytest.raises(DataMissingError, match="CLASS/photo"):
        load_folder(tmp_path / "nowhere")
    with pytest.raises(ArgumentError, match="'crop' or 'squash'"):
        load_folder(tmp_path, fit="stretch")


def test_folders_of_splits_share_their_classes(tmp_path):
    save(tmp_path / "train" / "bee" / "1.png", 1)
    save(tmp_path / "train" / "ant" / "2.png", 2)
    save(tmp_path / "test" / "bee" / "3.png", 3)
    test = load_folder(tmp_path, "test")
    assert (test.classes, test.labels.tolist()) == (("ant", "bee"), [1])
    assert len(load_folder(tmp_path)) == 3
    with pytest.raises(ArgumentError, match=r"'train', 'test', 'all'.*'val'"):
        load_folder(tmp_path, "val")


def test_masks_beside_a_folder_are_cut_as_the_photos(tmp_path):
    save(tmp_path / "photos" / "ant" / "a.jpg", 9)
    mask = np.zeros((10, 20), np.uint8)
    mask[:5, 5:15] = 255
    path = tmp_path / "masks" / "ant" / "a.png"
    path.parent.mkdir(parents=True)
    Image.fromarray(mask).save(path)
    item = load_folder(tmp_path / "photos", masks=tmp_path / "masks", side=10).items()[0]
    assert item["mask"].tolist() == [[1] * 10] * 5 + [[0] * 10] * 5
    squashed = load_folder(tmp_path / "photos", masks=tmp_path / "masks", side=20, fit="squash").items()[0]
    assert int(squashed["mask"].sum()) == 100
    path.unlink()
    with pytest.raises(DataMissingError, match=r"a\.png"):
        load_folder(tmp_path / "photos", masks=tmp_path / "masks")


def test_own_photos_are_turned_as_the_camera_says(tmp_path):
    photo = np.zeros((10, 10, 3), np.uint8)
    photo[:5] = 250  # bright above
    exif = Image.Exif()
    exif[0x0112] = 3  # upside down
    path = tmp_path / "ant" / "a.jpg"
    path.parent.mkdir()
    Image.fromarray(photo).save(path, exif=exif, quality=95)
    pixels = load_folder(tmp_path, side=10).images[torch.tensor([0])][0, 0]
    assert pixels[1, 1] < 50 < 200 < pixels[8, 8]


def test_deep_photos_need_a_range(tmp_path):
    path, row = tmp_path / "ant" / "a.png", torch.tensor([0])
    path.parent.mkdir()
    Image.fromarray(np.full((4, 4), 2048, np.uint16)).save(path)
    write_csv(tmp_path / "own.csv", [["path", "label"], ["ant/a.png", "ant"]])
    for load, source in ((load_folder, tmp_path), (load_csv, tmp_path / "own.csv")):
        with pytest.raises(ArgumentError, match=r"a\.png holds grey values.*window=\(0, 4095\)"):
            load(source).images[row]
        assert load(source, window=(0, 4095)).images[row].unique().tolist() == [128]
    with pytest.raises(ArgumentError, match="two numbers"):
        load_folder(tmp_path, window=12)
    write_csv(tmp_path / "own.csv", [["text", "label"], ["a", "ant"]])
    with pytest.raises(ArgumentError, match="window is for photos"):
        load_csv(tmp_path / "own.csv", window=(0, 4095))


def test_own_photos_are_seen_as_mhex_explain_sees_them(tmp_path):
    path = tmp_path / "ant" / "a.png"
    path.parent.mkdir()
    Image.new("RGBA", (4, 4), (255, 0, 0, 0)).save(path)  # nothing but transparency
    assert load_folder(tmp_path).images[torch.tensor([0])].unique().tolist() == [255]


def test_tables_of_photos(tmp_path):
    for k in range(3):
        save(tmp_path / "in" / f"{k}.png", 40 * k)
    save(tmp_path / "in" / "m.png", 255, (10, 20))
    rows = [["path", "label", "split", "mask"]]
    rows += [[f"in/{k}.png", "cat" if k else "dog", "test" if k else "train", "in/m.png"] for k in range(3)]
    write_csv(tmp_path / "own.csv", rows)
    test = load_csv(tmp_path / "own.csv", "test")
    assert isinstance(test, PhotoSet)
    assert (test.classes, test.labels.tolist()) == (("cat", "dog"), [0, 0])
    item = test.items()[1]
    assert item["image"].getpixel((0, 0)) == (80, 80, 80)
    assert item["mask"].unique().tolist() == [1]
    assert load_csv(tmp_path / "own.csv", classes=["dog", "fox", "cat"]).labels.tolist() == [0, 2, 2]
    with pytest.raises(ArgumentError, match="'cat'"):
        load_csv(tmp_path / "own.csv", classes=["dog"])
    (tmp_path / "in" / "2.png").unlink()
    with pytest.raises(DataMissingError, match=r"2\.png"):
        load_csv(tmp_path / "own.csv")


def test_tables_of_texts(tmp_path):
    path = tmp_path / "own.csv"
    write_csv(path, [["said", "label"], ["yes, please", 2], ["no", 10], ["", 0]])
    found = load_csv(path, text="said")
    assert isinstance(found, TextSet)
    assert found.texts == ("yes, please", "no", "")
    assert (found.labels.tolist(), len(found.classes)) == ([2, 10, 0], 11)
    with pytest.raises(DataFormatError, match="'said'"):
        load_csv(path)
    with pytest.raises(ArgumentError, match="no column 'split'"):
        load_csv(path, "test", text="said")
    with pytest.raises(DataFormatError, match=r"'topic'.*'said', 'label'"):
        load_csv(path, text="said", label="topic")
    write_csv(path, [["text", "label"], ["a", "x"], ["b"]])
    with pytest.raises(DataFormatError, match="row 3"):
        load_csv(path)
    write_csv(path, [["text", "label"], ["a", ""]])
    with pytest.raises(DataFormatError, match="row 2 has none"):
        load_csv(path)


@pytest.mark.parametrize("name", ["99999999999", "9" * 5000, "\u00b2"])
def test_classes_that_look_like_numbers_are_names(tmp_path, name):
    """Of a number, all below it are classes too."""
    write_csv(tmp_path / "own.csv", [["text", "label"], ["a", name], ["b", "1"]])
    data = load_csv(tmp_path / "own.csv")
    assert (data.classes, data.labels.tolist()) == (("1", name), [1, 0])


def test_names_of_photos_that_no_file_can_have(tmp_path):
    write_csv(tmp_path / "own.csv", [["image", "label"], ["x" * 300, "cat"]])
    with pytest.raises(DataFormatError, match=r"own\.csv names 'x+, which no file can be called"):
        load_csv(tmp_path / "own.csv")


def test_own_data_have_entries(folder):
    save(folder / "mine" / "train" / "ant" / "1.png", 1)
    write_csv(folder / "t.csv", [["text", "label", "split"], ["a", "x", "train"]])
    entry = data_entry("folder:mine")
    assert (entry.kind, len(entry.load(entry.train))) == ("image", 1)
    entry = data_entry("csv:t.csv")
    assert (entry.kind, len(entry.load(entry.train, limit=1))) == ("text", 1)
    assert data_entry(f"csv:{folder / 't.csv'}").learnable
    with pytest.raises(DataMissingError, match=r"u\.csv"):
        data_entry("csv:u.csv")


@pytest.fixture
def nodules(folder):
    def write(ratings, **columns):
        for k in range(len(ratings)):
            save(folder / "lidc" / "crops" / f"{k}.png", k, (6, 6))
        heading = ["image", "malignancy", *columns]
        rows = [[f"crops/{k}.png", rating, *(columns[name][k] for name in columns)] for k, rating in enumerate(ratings)]
        write_csv(folder / "lidc" / "nodules.csv", [heading, *rows])

    return write


def test_nodules_at_three_are_left_out(nodules):
    nodules([1, 3, 4.5, 2.75, 5], split=["train", "train", "train", "test", "test"], spiculation=[1, 2, 3, 4, 5])
    train = load_lidc("train", side=6)
    assert train.labels.tolist() == [0, 1]
    assert train.names == ("crops/0.png", "crops/2.png")
    assert train.images[torch.tensor([1])].unique().tolist() == [2]
    assert load_lidc("test").labels.tolist() == [0, 1]
    higher = load_lidc("all", threshold=4.5)
    assert higher.labels.tolist() == [0, 0, 0, 1]
    assert higher.names == ("crops/0.png", "crops/1.png", "crops/3.png", "crops/4.png")
    values = load_lidc_biomarkers("train", side=6)
    assert values.value_names == ("spiculation",)
    assert values.values.tolist() == [[1.0], [2.0], [3.0]]
    assert values.items()[2]["image"].getpixel((0, 0)) == (2, 2, 2)
    both = load_lidc_biomarkers("test", biomarkers=["malignancy", "spiculation"])
    assert both.values.tolist() == [[2.75, 4.0], [5.0, 5.0]]
    with pytest.raises(ArgumentError, match="'spiculation'"):
        load_lidc_biomarkers(biomarkers=["spicultion"])


def test_nodules_without_splits_are_drawn_in_equal_shares(nodules):
    ratings = [1.5] * 443 + [4.5] * 411 + [3] * 40
    drawn = drawn_splits(ratings)
    assert drawn == drawn_splits(ratings)
    benign, malignant = drawn[:443], drawn[443:854]
    assert [benign.count(name) for name in ("train", "val", "test")] == [321, 56, 66]
    assert [malignant.count(name) for name in ("train", "val", "test")] == [297, 52, 62]
    assert benign != sorted(benign)
    nodules([1] * 20 + [5] * 20 + [3] * 20, margin=[7] * 60)
    told = {name: split for split in ("train", "val", "test") for name in load_lidc_biomarkers(split).names}
    assert len(told) == 60
    assert all(told[name] == split for split in ("train", "val", "test") for name in load_lidc(split).names)


def test_nodules_that_are_not_what_they_should_be(nodules):
    nodules([1, 6])
    with pytest.raises(DataFormatError, match=r"1\.\.5"):
        load_lidc()
    nodules([1, 5], margin=[1, ""])
    with pytest.raises(DataFormatError, match="'margin'"):
        load_lidc_biomarkers("all")
    nodules([1, "nan"])
    with pytest.raises(DataFormatError, match=r"'malignancy' .*nan came"):
        load_lidc()
    nodules([1, 5])
    with pytest.raises(DataFormatError, match="biomarkers"):
        load_lidc_biomarkers("all")
