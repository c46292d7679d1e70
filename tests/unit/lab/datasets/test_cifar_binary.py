"""CIFAR-10 and CIFAR-100 in the published binary version."""

import numpy as np
import pytest

from mhex.lab.datasets import DataFormatError, DataMissingError, load_cifar10_binary, load_cifar100


def record(labels, red, green=0, blue=0):
    planes = [np.full(1024, value, np.uint8) for value in (red, green, blue)]
    return np.concatenate([np.array(labels, np.uint8), *planes])


@pytest.fixture
def ten(folder):
    root = folder / "cifar-10-batches-bin"
    root.mkdir()
    for k in range(1, 6):
        np.concatenate([record([k], 10 * k, 1, 2), record([9], 200)]).tofile(root / f"data_batch_{k}.bin")
    tall = record([3], 0)
    tall[1 + 32 * 4 + 7] = 99  # row 4, column 7 of red
    tall.tofile(root / "test_batch.bin")
    return root


def test_records_are_a_label_and_three_planes(ten):
    train, test = load_cifar10_binary("train"), load_cifar10_binary("test")
    assert train.images.shape == (10, 3, 32, 32)
    assert train.labels.tolist() == [1, 9, 2, 9, 3, 9, 4, 9, 5, 9]
    assert train.images[4, :, 3, 3].tolist() == [30, 1, 2]
    assert test.images.nonzero().tolist() == [[0, 0, 4, 7]]
    both = load_cifar10_binary("all")
    assert (both.names[9], both.names[10], len(both)) == ("train-9", "test-0", 11)
    assert load_cifar10_binary("all", limit=2).names == ("train-0", "train-5")


def test_damaged_and_missing_files(ten, folder):
    (ten / "test_batch.bin").write_bytes(b"\0" * 3072)
    with pytest.raises(DataFormatError, match=r"test_batch\.bin.*3073"):
        load_cifar10_binary("test")
    record([10], 0).tofile(ten / "test_batch.bin")
    with pytest.raises(DataFormatError, match=r"0\.\.9"):
        load_cifar10_binary("test")
    (ten / "data_batch_4.bin").unlink()
    with pytest.raises(DataMissingError, match=r"data_batch_4\.bin .*binary version") as told:
        load_cifar10_binary("train")
    assert "pickle" not in str(told.value)


@pytest.mark.parametrize(
    ("pickled", "load"), [("cifar-10-batches-py", load_cifar10_binary), ("cifar-100-python", load_cifar100)]
)
def test_pickled_versions_are_told_and_not_opened(folder, pickled, load):
    (folder / pickled).mkdir()
    with pytest.raises(DataMissingError, match=rf"binary version.*{pickled}.*pickles"):
        load()


@pytest.fixture
def hundred(folder):
    root = folder / "cifar-100-binary"
    root.mkdir()
    (root / "fine_label_names.txt").write_text("apple\nbeaver\nclock\n", encoding="utf-8")
    (root / "coarse_label_names.txt").write_text("fruit\nother\n", encoding="utf-8")

    def write(name, *labels):
        np.concatenate([record(pair, 7) for pair in labels]).tofile(root / name)

    write("train.bin", (1, 2), (0, 0), (1, 1))
    write("test.bin", (0, 0), (1, 2), (1, 1))
    return write


def test_coarse_classes_are_groups(hundred):
    train = load_cifar100("train")
    assert train.labels.tolist() == [2, 0, 1]
    assert train.classes == ("apple", "beaver", "clock")
    assert train.groups == {"fruit": ["apple"], "other": ["beaver", "clock"]}
    assert load_cifar100("all", limit=1).group_of == (0, 1, 1)
    hundred("train.bin", (1, 2), (0, 2), (1, 1), (0, 0))
    with pytest.raises(DataFormatError, match="belong"):
        load_cifar100("train")
    hundred("train.bin", (1, 2), (0, 0))
    with pytest.raises(DataFormatError, match="only 2"):
        load_cifar100("train")


def test_names_of_classes_in_another_encoding(hundred, folder):
    (folder / "cifar-100-binary" / "fine_label_names.txt").write_bytes("käse".encode("latin-1"))
    with pytest.raises(DataFormatError, match=r"fine_label_names\.txt is not a text in UTF-8"):
        load_cifar100("train")
