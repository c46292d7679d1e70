"""The loaders of blood cells, MedMNIST, AG News and ImageNet on small made-up files, and the table of all."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

from mhex.errors import ArgumentError
from mhex.lab.datasets import (
    CATALOGUE,
    DataFormatError,
    DataMissingError,
    data_entry,
    load_ag_news,
    load_blood,
    load_imagenet,
    load_medmnist,
    load_pneumonia,
)


def png(value, side=6):
    buffer = io.BytesIO()
    Image.fromarray(np.full((side, side, 3), value, dtype=np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture
def blood(write):
    def write_blood(labels):
        splits = ("train", "val", "test")
        rows = [
            {
                "name": f"C_{k}",
                "image": png(10 * k),
                "label": label,
                "split": splits[k % 3],
            }
            for k, label in enumerate(labels)
        ]
        write("blood.parquet", rows)

    return write_blood


@pytest.fixture
def archive(folder):
    def write_archive(name="pneumoniamnist", colour=False, **changes):
        counts = {"train": 5, "val": 2, "test": 3}
        shape = (4, 4, 3) if colour else (4, 4)
        arrays = {
            f"{split}_images": np.arange(count, dtype=np.uint8).reshape(-1, *[1] * len(shape))
            * np.ones(shape, np.uint8)
            for split, count in counts.items()
        }
        arrays |= {f"{split}_labels": np.arange(count).reshape(-1, 1) % 2 for split, count in counts.items()}
        arrays |= changes
        np.savez(folder / f"{name}.npz", **{key: value for key, value in arrays.items() if value is not None})

    return write_archive


def test_blood_splits_and_labels(blood):
    blood([0, 1, 2, 7, 4, 5])
    train = load_blood()
    assert train.images.shape == (2, 3, 6, 6)
    assert train.labels.tolist() == [0, 7]
    assert train.names == ("C_0", "C_3")
    assert train.classes[7] == "platelet"
    assert train.groups == {}
    assert load_blood("test").images[:, 1, 0, 0].tolist() == [20, 50]
    assert len(load_blood("all", limit=4)) == 4


def test_blood_refuses_a_ninth_class(blood):
    blood([0, 8])
    with pytest.raises(DataFormatError, match=r"0\.\.7.*0\.\.8"):
        load_blood("all")


def test_grey_images_get_three_equal_channels(archive):
    archive()
    train = load_pneumonia("train")
    assert train.images.shape == (5, 3, 4, 4)
    assert torch.equal(train.images[:, 0], train.images[:, 2])
    assert train.images[3].unique().tolist() == [3]
    assert train.labels.tolist() == [0, 1, 0, 1, 0]
    assert train.classes == ("normal", "pneumonia")
    everything = load_pneumonia("all")
    assert len(everything) == 10
    assert everything.names[5] == "val-0"


def test_colour_images_are_put_channels_first(archive):
    images = np.zeros((2, 4, 4, 3), np.uint8)
    images[..., 1] = 200
    archive("pathmnist", colour=True, val_images=images, val_labels=np.array([[8], [0]]))
    val = load_medmnist("pathmnist", "val")
    assert val.images[0, :, 0, 0].tolist() == [0, 200, 0]
    assert val.labels.tolist() == [8, 0]


def test_archives_that_are_not_what_they_should_be(archive, folder):
    archive(train_labels=None)
    with pytest.raises(DataFormatError, match=r"lacks \['train_labels'\]"):
        load_pneumonia()
    archive(train_images=np.zeros((5, 4, 4), np.float32))
    with pytest.raises(DataFormatError, match="uint8"):
        load_pneumonia()
    archive(train_labels=np.zeros((4, 1), int))
    with pytest.raises(DataFormatError, match="one label each"):
        load_pneumonia()
    archive(train_labels=np.full((5, 1), 2))
    with pytest.raises(DataFormatError, match=r"0\.\.1"):
        load_pneumonia()
    (folder / "pneumoniamnist.npz").write_bytes(b"PK\x03\x04 broken")
    with pytest.raises(DataFormatError, match="damaged"):
        load_pneumonia()
    with pytest.raises(ArgumentError, match="'pathmnist'"):
        load_medmnist("pathmnst")
    archive()
    with pytest.raises(ArgumentError, match="'trian'"):
        load_pneumonia("trian")


def test_pickled_archives_are_never_opened(archive):
    archive(train_labels=np.array([{}] * 5, dtype=object))
    with pytest.raises(DataFormatError, match="not a numpy archive, or damaged"):
        load_pneumonia()


def test_news_are_title_and_text(write):
    rows = [
        {"label": k % 4, "title": f"T{k}", "text": f"x{k}", "split": "train" if k < 6 else "test"} for k in range(8)
    ]
    write("ag_news.parquet", rows)
    train = load_ag_news()
    assert train.texts[:2] == ("T0 x0", "T1 x1")
    assert train.labels.tolist() == [0, 1, 2, 3, 0, 1]
    assert train.classes[int(train.labels[3])] == "Sci/Tech"
    with pytest.raises(ArgumentError, match="'val'"):
        load_ag_news("val")
    write("ag_news.parquet", [{**row, "label": row["label"] + 1} for row in rows])
    with pytest.raises(DataFormatError, match=r"0\.\.3"):
        load_ag_news()


def test_damaged_parquet_files_are_told(folder, write):
    (folder / "ag_news.parquet").write_bytes(b"nothing")
    with pytest.raises(DataFormatError, match=r"ag_news\.parquet is not a parquet file, or damaged"):
        load_ag_news()
    write("blood.parquet", [{"name": "a", "image": b"no image", "label": 0, "split": "train"}])
    with pytest.raises(DataFormatError, match="cannot be decoded"):
        load_blood()


def test_imagenet_is_cut_to_squares_when_taken(folder):
    for split, count in (("train", 3), ("val", 1)):
        for place, synset in enumerate(("n01", "n02")):
            (folder / "imagenet" / split / synset).mkdir(parents=True)
            for k in range(count):
                photo = np.zeros((20, 40, 3), np.uint8)
                photo[:, 10:30] = 100 * place + k  # the middle square
                Image.fromarray(photo).save(folder / "imagenet" / split / synset / f"{synset}_{k}.png")
    train = load_imagenet(side=8)
    assert train.classes == ("n01", "n02")
    assert train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    taken = train.images[torch.tensor([5, 0, 1])]
    assert taken.shape == (3, 3, 8, 8)
    assert taken.dtype == torch.uint8
    assert taken[:, 0, 4, 4].tolist() == [102, 0, 1]
    assert len(load_imagenet("val")) == 2


@pytest.mark.parametrize("name", [name for name, entry in CATALOGUE.items() if entry.files != "nothing"])
def test_missing_data_say_what_to_place(name, folder):
    entry = data_entry(name)
    with pytest.raises(DataMissingError, match="place"):
        entry.load(entry.train or entry.test, limit=2)


def test_unknown_data_sets_offer_near_names():
    with pytest.raises(ArgumentError, match=r"data set 'bloood'.*'blood'"):
        data_entry("bloood")
