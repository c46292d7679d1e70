"""MedMNIST in every size and kind of label, row by row."""

import io
import zipfile

import numpy as np
import pytest
import torch

from mhex.errors import ArgumentError
from mhex.lab.datasets import DataFormatError, DataMissingError, data_entry, load_medmnist
from mhex.lab.datasets.files import array_rows
from mhex.lab.datasets.medmnist import MEDMNIST_CLASSES, MEDMNIST_TITLES, SIZES


@pytest.fixture
def archive(folder):
    """Write an archive whose image k of a split is a plain k, in colour (k, k + 100, k + 200)."""

    def write(file, labels, side=4, colour=False, packed=True):
        arrays = {}
        for split, values in labels.items():
            count = len(values)
            grey = np.arange(count, dtype=np.uint8)[:, None, None] * np.ones((side, side), np.uint8)
            arrays[f"{split}_images"] = np.stack([grey, grey + 100, grey + 200], 3) if colour else grey
            arrays[f"{split}_labels"] = np.array(values)
        (np.savez_compressed if packed else np.savez)(folder / file, **arrays)

    return write


def splits(labels):
    return {"train": labels, "val": labels[:2], "test": labels[:1]}


@pytest.mark.parametrize("packed", [True, False])
def test_sizes_have_files_of_their_own(archive, packed):
    archive("bloodmnist.npz", splits([[7], [1], [2]]), side=28, colour=True, packed=packed)
    archive("bloodmnist_128.npz", splits([[3], [1], [2], [0]]), side=128, colour=True, packed=packed)
    small, large = load_medmnist("bloodmnist"), load_medmnist("bloodmnist", size=128)
    assert (small.images.shape, large.images.shape) == ((3, 3, 28, 28), (4, 3, 128, 128))
    assert (small.labels.tolist(), large.labels.tolist()) == ([7, 1, 2], [3, 1, 2, 0])
    assert large.images[2, :, 5, 5].tolist() == [2, 102, 202]
    with pytest.raises(DataMissingError, match=r"bloodmnist_64\.npz .*place"):
        load_medmnist("bloodmnist", size=64)
    with pytest.raises(ArgumentError, match=r"28, 64, 128, 224.*32"):
        load_medmnist("bloodmnist", size=32)
    with pytest.raises(ArgumentError, match="bloodmnist"):
        load_medmnist("blodmnist")


def test_limits_skip_rows_over_all_splits(archive):
    archive("octmnist.npz", {"train": [[0]] * 6, "val": [[1]] * 2, "test": [[2]] * 4})
    few = load_medmnist("octmnist", "all", limit=4)
    assert few.names == ("train-0", "train-3", "val-0", "test-1")
    assert few.images[:, 0, 0, 0].tolist() == [0, 3, 0, 1]
    assert few.labels.tolist() == [0, 0, 1, 2]


def test_chest_images_have_several_findings(archive):
    rows = np.zeros((3, 14), int)
    rows[0, [2, 13]] = 1
    archive("chestmnist.npz", splits(rows.tolist()))
    chest = load_medmnist("chestmnist")
    assert chest.labels.shape == (3, 14)
    assert chest.labels.sum(1).tolist() == [2, 0, 0]
    assert [chest.classes[k] for k in chest.labels[0].nonzero()[:, 0]] == ["effusion", "hernia"]
    assert chest.items()[0].keys() == {"image"}
    rows[1, 0] = 2
    archive("chestmnist.npz", splits(rows.tolist()))
    with pytest.raises(DataFormatError, match="0 and 1"):
        load_medmnist("chestmnist")
    archive("chestmnist.npz", splits([[1], [0], [0]]))
    with pytest.raises(DataFormatError, match="14 labels each"):
        load_medmnist("chestmnist")


def test_retina_grades_are_classes_in_order(archive):
    archive("retinamnist.npz", splits([[4], [0], [2]]), colour=True)
    retina = load_medmnist("retinamnist")
    assert retina.labels.tolist() == [4, 0, 2]
    assert retina.classes == ("0", "1", "2", "3", "4")
    assert data_entry("retinamnist").task == "ordered classes"


def test_labels_of_one_axis_are_read(archive):
    archive("breastmnist.npz", splits([1, 0, 1]))
    assert load_medmnist("breastmnist").labels.tolist() == [1, 0, 1]


def test_two_dimensional_collections_are_all_there():
    assert set(MEDMNIST_CLASSES) == {title.lower() for title in MEDMNIST_TITLES}
    counts = {name: len(classes) for name, classes in MEDMNIST_CLASSES.items()}
    assert counts == {
        **{"pathmnist": 9, "chestmnist": 14, "dermamnist": 7, "octmnist": 4, "pneumoniamnist": 2, "retinamnist": 5},
        **{"breastmnist": 2, "bloodmnist": 8, "tissuemnist": 8},
        **{"organamnist": 11, "organcmnist": 11, "organsmnist": 11},
    }


@pytest.mark.parametrize("name", ["pathmnist_64", "organsmnist_224", "pneumoniamnist"])
def test_entries_of_any_size(name, folder):
    with pytest.raises(DataMissingError, match=rf"{name}\.npz"):
        data_entry(name).load("train")
    with pytest.raises(ArgumentError, match="pathmnist"):
        data_entry("pathmnist_65")
    assert SIZES[0] == 28


def test_arrays_stored_by_columns_and_cut_off_ones(folder):
    values = np.arange(24, dtype=np.uint8).reshape(4, 3, 2)
    np.savez(folder / "x.npz", a=np.asfortranarray(values))
    assert torch.equal(torch.from_numpy(array_rows(folder / "x.npz", "a", [1, 3])), torch.from_numpy(values[[1, 3]]))
    with zipfile.ZipFile(folder / "y.npz", "w") as archive:
        whole = io.BytesIO()
        np.save(whole, values)
        archive.writestr("a.npy", whole.getvalue()[:-2])
    assert array_rows(folder / "y.npz", "a", [1]).tolist() == values[[1]].tolist()
    with pytest.raises(DataFormatError, match="ends at row 3"):
        array_rows(folder / "y.npz", "a", [3])


def rewritten(path, change):
    """Write an archive again with its arrays as bytes changed; sums of the archive are right."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, change(content))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda content: content[:8] + b"\x08\x00[[[[[[[[" + content, "numpy archive, or damaged"),
        (lambda content: content.replace(b"(3, ", b"(3000000000, "), r"claims \d+ bytes, which the file has not got"),
    ],
    ids=["a header without an end", "more rows than the file has"],
)
def test_headers_of_arrays_that_are_damaged(archive, folder, change, words):
    archive("pneumoniamnist.npz", {part: [[0], [1], [0]] for part in ("train", "val", "test")}, side=28)
    rewritten(folder / "pneumoniamnist.npz", change)
    with pytest.raises(DataFormatError, match=words):
        load_medmnist("pneumoniamnist")


def test_splits_of_different_sizes(archive, folder):
    archive("pneumoniamnist.npz", splits([[0], [1], [0]]), side=28)
    with np.load(folder / "pneumoniamnist.npz") as arrays:
        np.savez(folder / "pneumoniamnist.npz", **{**arrays, "val_images": np.zeros((2, 14, 28), np.uint8)})
    assert len(load_medmnist("pneumoniamnist", "val")) == 2
    with pytest.raises(DataFormatError, match=r"one size, and \[\(14, 28\), \(28, 28\)\] came"):
        load_medmnist("pneumoniamnist", "all")
