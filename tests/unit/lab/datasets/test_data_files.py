"""The loaders of pets and CIFAR-10, and their words when something is missing."""

import io

import numpy as np
import pyarrow
import pytest
import torch
from PIL import Image
from pyarrow import parquet

from mhex.errors import ArgumentError, MhexError
from mhex.lab.datasets import DataFormatError, DataMissingError, data_file, data_folder, load_cifar10, load_pets
from mhex.lab.datasets.files import decode_images, pick_rows, read_columns


def test_no_variable_says_what_to_set(monkeypatch):
    monkeypatch.delenv("MHEX_DATA", raising=False)
    with pytest.raises(FileNotFoundError, match="set the environment variable MHEX_DATA"):
        data_folder()
    with pytest.raises(DataMissingError, match=r"pets\.parquet .*MHEX_DATA"):
        load_pets()


def test_wrong_folder_and_missing_file_are_named(folder, monkeypatch):
    with pytest.raises(DataMissingError, match=r"cifar10\.parquet .*place it there"):
        load_cifar10()
    monkeypatch.setenv("MHEX_DATA", str(folder / "nowhere"))
    with pytest.raises(DataMissingError, match=r"nowhere.*not a folder"):
        data_file("x.parquet", "anything")
    assert issubclass(DataMissingError, MhexError)


def test_pets_splits_labels_and_names(write, rows):
    write("pets.parquet", rows)
    train, test = load_pets("trainval"), load_pets("test")
    assert (len(train), len(test), len(load_pets("all"))) == (9, 3, 12)
    assert train.images.shape == (9, 3, 12, 12)
    assert train.images.dtype == torch.uint8
    assert train.labels.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert test.species.tolist() == [0, 1, 0]
    assert test.images[:, 0, 0, 0].tolist() == [60, 140, 220]
    assert test.names == ("Birman_10", "great_dane_10", "Maine_Coon_10")
    assert train.classes == ("Birman", "great dane", "Maine Coon")
    assert train.groups == {"cat": ["Birman", "Maine Coon"], "dog": ["great dane"]}


def test_pets_trimaps_on_request_only(write, rows):
    write("pets.parquet", rows)
    assert load_pets("test").trimaps is None
    trimaps = load_pets("test", trimaps=True).trimaps
    assert trimaps.shape == (3, 12, 12)
    assert (trimaps == 1).sum().item() == 3 * 36


def test_pets_class_names_do_not_depend_on_the_split(write, rows):
    write("pets.parquet", [row for row in rows if row["breed"] < 2 or row["split"] == "trainval"])
    assert load_pets("test").classes == load_pets("trainval").classes


def test_pets_with_two_names_for_a_breed_are_refused(write, rows):
    rows[1]["name"] = "Siamese_8"
    write("pets.parquet", rows)
    with pytest.raises(DataFormatError, match="breed 0 has both"):
        load_pets()


def test_pets_with_a_gap_in_the_breeds_are_refused(write, rows):
    write("pets.parquet", [row for row in rows if row["breed"] != 1])
    with pytest.raises(DataFormatError, match="without gaps"):
        load_pets()


def test_missing_column_is_named(write, rows):
    write("pets.parquet", [{key: value for key, value in row.items() if key != "species"} for row in rows])
    with pytest.raises(DataFormatError, match="lacks \\['species'\\]"):
        load_pets()


def test_cifar_labels_and_their_range(write, rows):
    small = [{"image": row["image"], "label": row["breed"] + 7, "split": "train"} for row in rows]
    write("cifar10.parquet", small)
    cifar = load_cifar10()
    assert len(cifar) == 12
    assert cifar.classes[int(cifar.labels[0])] == "horse"
    small[3]["label"] = 10
    write("cifar10.parquet", small)
    with pytest.raises(DataFormatError, match=r"0\.\.9"):
        load_cifar10()


def test_rows_of_a_split_are_spread_evenly():
    splits = ["a", "b"] * 10
    assert pick_rows(splits, "b") == list(range(1, 20, 2))
    assert pick_rows(splits, "a", limit=5) == [0, 4, 8, 12, 16]
    assert pick_rows(splits, "all", limit=100) == list(range(20))
    with pytest.raises(ArgumentError, match=r"'a', 'b', 'all'.*'c'"):
        pick_rows(splits, "c")
    with pytest.raises(ArgumentError, match="positive"):
        pick_rows(splits, "a", limit=0)


def test_images_keep_their_order_and_must_share_a_size():
    def png(side, value):
        buffer = io.BytesIO()
        Image.fromarray(np.full((side, side, 3), value, dtype=np.uint8)).save(buffer, "PNG")
        return buffer.getvalue()

    many = decode_images([png(2, value) for value in range(200)])
    assert many[:, 1, 1, 1].tolist() == list(range(200))
    with pytest.raises(DataFormatError, match="one size"):
        decode_images([png(2, 0), png(3, 0)])
    with pytest.raises(ArgumentError, match="no images"):
        decode_images([])


def test_a_table_whose_column_is_named_in_no_text_is_refused(tmp_path):
    path = tmp_path / "damaged.parquet"
    parquet.write_table(pyarrow.table({"imaxyz": [1, 2]}), path)
    path.write_bytes(path.read_bytes().replace(b"imaxyz", b"ima\xe5yz"))
    with pytest.raises(MhexError, match="damaged"):
        read_columns(path, ["image"])


def test_a_column_that_is_there_twice(folder):
    table = pyarrow.table({"name": ["a"], "label": [1]})
    parquet.write_table(table.append_column("label", table.column("label")), folder / "twice.parquet")
    with pytest.raises(DataFormatError, match=r"has \['label'\] twice"):
        read_columns(folder / "twice.parquet", ["name", "label"])
    assert read_columns(folder / "twice.parquet", ["name"]) == {"name": ["a"]}
