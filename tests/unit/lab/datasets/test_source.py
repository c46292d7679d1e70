"""Data sets made of archives as published: samples, labels and splits are those of the split lists."""

from __future__ import annotations

import hashlib
import io
import json
import lzma
import pickle
import tarfile
import zipfile
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import torchvision
from PIL import Image

from mhex.errors import ArgumentError
from mhex.lab.datasets import CATALOGUE, DataFormatError, DataMissingError, data_entry, data_folder
from mhex.lab.datasets.archives import Archive
from mhex.lab.datasets.source import SPLITS_FOLDER, get_data, split_list

BREEDS = {"Birman": (1, 1), "great_dane": (2, 2)}


@pytest.fixture
def downloads(tmp_path_factory):
    """A folder beside the data folder, for archives."""
    return tmp_path_factory.mktemp("downloads")


@pytest.fixture
def lists(tmp_path_factory, monkeypatch):
    """Write a split list in place of the packaged one."""
    place = tmp_path_factory.mktemp("splits")
    monkeypatch.setattr("mhex.lab.datasets.source.SPLITS_FOLDER", place)

    def write(name, pairs):
        text = "".join(f"{key} {split}\n" for key, split in pairs)
        (place / f"{name}.txt.xz").write_bytes(lzma.compress(text.encode()))

    return write


def encode(array, kind):
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, kind)
    return buffer.getvalue()


def write_tar(path, content):
    with tarfile.open(path, "w:gz") as archive:
        for name, data in content.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def write_zip(path, content):
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in content.items():
            archive.writestr(name, data)
    return path


def write_files(folder, content):
    for name, data in content.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def get(name, *paths):
    return get_data(data_entry(name), paths, data_folder())


def grey(height, width, value=120):
    return np.full((height, width, 3), value, dtype=np.uint8)


def blood_photos():
    photo = grey(363, 360, 0)
    photo[81:281, 80:280] = 250  # the middle 200 x 200 pixels
    names = {"basophil": ("BA_2", "BA_1"), "ig": ("MMY_7",), "platelet": ("PLATELET_3", "PLATELET_9")}
    return {
        f"PBC_dataset_normal_DIB/{folder}/{name}.jpg": encode(photo, "JPEG")
        for folder, stems in names.items()
        for name in stems
    }


def test_blood_cells_are_read_from_their_archive(folder, downloads, lists):
    rows = [("BA_1", "test"), ("BA_2", "train"), ("MMY_7", "train"), ("PLATELET_9", "val")]
    lists("blood", rows)
    path, remark = get("blood", write_zip(downloads / "PBC_dataset_normal_DIB.zip", blood_photos()))
    assert path == folder / "blood.parquet"
    assert remark == ""
    loaded = data_entry("blood").load("all")
    assert loaded.names == tuple(name for name, _ in rows)
    assert [loaded.classes[label] for label in loaded.labels] == [
        *("basophil", "basophil", "immature granulocyte", "platelet")
    ]
    assert data_entry("blood").load("train").names == ("BA_2", "MMY_7")
    assert loaded.images.shape == (4, 3, 96, 96)
    assert int(loaded.images.min()) > 245
    assert [entry.name for entry in folder.iterdir()] == ["blood.parquet"]


def test_files_that_lack_listed_samples_are_refused(folder, downloads, lists):
    lists("blood", [("BA_1", "test"), ("BA_3", "train"), ("BA_4", "train")])
    path = write_zip(downloads / "blood.zip", blood_photos())
    with pytest.raises(DataMissingError, match=r"2 of 3 samples .* such as 'BA_3'.*data\.mendeley\.com"):
        get("blood", path)
    assert list(folder.iterdir()) == []


def pets_files():
    trimap = np.full((20, 30), 3, dtype=np.uint8)
    trimap[:10] = 1
    names = [f"{breed}_{number}" for breed in BREEDS for number in (1, 2, 10)]
    lines = [f"{name} {' '.join(map(str, BREEDS[name.rpartition('_')[0]]))} 1" for name in names]
    images = {f"images/{name}.jpg": encode(grey(20, 30, 10 * row), "JPEG") for row, name in enumerate(names)}
    maps = {f"annotations/trimaps/{name}.png": encode(trimap, "PNG") for name in names}
    hidden = {f"annotations/trimaps/._{names[0]}.png": b"no picture"}
    return images, {**maps, **hidden, "annotations/list.txt": "\n".join(["#Image CLASS SPECIES ID", *lines]).encode()}


def test_pets_are_read_from_their_archives(folder, downloads, lists):
    rows = [("Birman_1", "trainval"), ("Birman_10", "test"), ("great_dane_2", "trainval")]
    lists("pets", rows)
    images, annotations = pets_files()
    paths = write_tar(downloads / "images.tar.gz", images), write_tar(downloads / "annotations.tar.gz", annotations)
    get("pets", *paths)
    loaded = data_entry("pets").load("all", trimaps=True)
    assert loaded.names == tuple(name for name, _ in rows)
    assert loaded.classes == ("Birman", "great dane")
    assert loaded.labels.tolist() == [0, 0, 1]
    assert loaded.species.tolist() == [0, 0, 1]
    assert loaded.images.shape == (3, 3, 160, 160)
    assert loaded.images[:, 0, 80, 80].tolist() == pytest.approx([0, 20, 40], abs=3)
    assert loaded.trimaps.unique().tolist() == [1, 3]  # no mixture of both
    assert loaded.mask(0)[:80].eq(1).all()
    assert data_entry("pets").load("test").names == ("Birman_10",)


def test_a_folder_may_hold_archives_or_their_content(folder, downloads, lists):
    lists("pets", [("Birman_1", "trainval"), ("great_dane_2", "test")])
    images, annotations = pets_files()
    write_tar(downloads / "images.tar.gz", images)
    write_files(downloads / "elsewhere", annotations)
    get("pets", downloads)
    assert data_entry("pets").load("all").labels.tolist() == [0, 1]


def cifar_records(labels, seed):
    pixels = np.random.default_rng(seed).integers(0, 255, (len(labels), 3072), dtype=np.uint8)
    return pixels, np.concatenate([np.array(labels, dtype=np.uint8)[:, None], pixels], axis=1).tobytes()


def cifar_binary():
    names = [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]
    return {f"cifar-10-batches-bin/{name}": cifar_records([k, 9], k)[1] for k, name in enumerate(names)}


def test_cifar10(folder, downloads):
    get("cifar10", write_tar(downloads / "cifar-10-binary.tar.gz", cifar_binary()))
    entry = data_entry("cifar10")
    assert entry.load("train").labels.tolist() == [0, 9, 1, 9, 2, 9, 3, 9, 4, 9]
    assert entry.load("test").labels.tolist() == [5, 9]
    exact = torch.from_numpy(cifar_records([5, 9], 5)[0].reshape(2, 3, 32, 32))
    image = entry.load("test").images
    assert (image.float() - exact.float()).abs().mean() < 60  # noise, stored as JPEG
    assert torch.stack([image.float().flatten(), exact.float().flatten()]).corrcoef()[0, 1] > 0.5


def write_pickles(folder, monkeypatch, change=b""):
    """The pickled version, with its own checksums in torchvision's lists."""
    listed = []
    for k in range(6):
        pixels = cifar_records([k, 9], k)[0]
        content = pickle.dumps({"data": pixels, "labels": [k, 9]})
        name = f"data_batch_{k + 1}" if k < 5 else "test_batch"
        listed.append([name, hashlib.md5(content).hexdigest()])
        write_files(folder, {f"cifar-10-batches-py/{name}": change or content})
    meta = pickle.dumps({"label_names": []})
    write_files(folder, {"cifar-10-batches-py/batches.meta": meta})
    kind = torchvision.datasets.CIFAR10
    monkeypatch.setattr(kind, "train_list", listed[:5])
    monkeypatch.setattr(kind, "test_list", listed[5:])
    facts = {"filename": "batches.meta", "key": "label_names", "md5": hashlib.md5(meta).hexdigest()}
    monkeypatch.setattr(kind, "meta", facts)


def test_cifar10_of_pickles_is_the_same(folder, downloads, monkeypatch):
    get("cifar10", write_tar(downloads / "cifar-10-binary.tar.gz", cifar_binary()))
    binary = (folder / "cifar10.parquet").rename(downloads / "binary.parquet")
    write_pickles(downloads, monkeypatch)
    get("cifar10", downloads)
    assert pq.read_table(folder / "cifar10.parquet").equals(pq.read_table(binary))


def test_pickles_that_are_not_the_published_ones_are_not_opened(folder, downloads, monkeypatch, tmp_path_factory):
    mark = tmp_path_factory.mktemp("mark") / "opened"

    class Trap:
        def __reduce__(self):
            return Path.touch, (mark,)

    write_pickles(downloads, monkeypatch, change=pickle.dumps(Trap()))
    with pytest.raises(DataFormatError, match="published checksums"):
        get("cifar10", downloads)
    assert not mark.exists()


def test_binary_cifar_is_placed(folder, downloads):
    get("cifar10_binary", write_tar(downloads / "cifar-10-binary.tar.gz", cifar_binary()))
    assert data_entry("cifar10_binary").load("test").labels.tolist() == [5, 9]
    with pytest.raises(DataMissingError, match=r"CIFAR-100 should come with train\.bin.*cifar-100-binary\.tar\.gz"):
        get("cifar100", downloads / "cifar-10-binary.tar.gz")


def test_cifar100_is_placed(folder, downloads):
    pixels = cifar_records([0] * 5, 1)[0]
    records = b"".join(bytes([fine // 5, fine]) + pixels[fine % 5].tobytes() for fine in range(100))
    words = {"fine": 100, "coarse": 20}
    names = {
        f"{kind}_label_names.txt": "\n".join(f"{kind}_{k}" for k in range(n)).encode() for kind, n in words.items()
    }
    members = {f"cifar-100-binary/{name}": content for name, content in names.items()}
    members |= {f"cifar-100-binary/{split}.bin": records for split in ("train", "test")}
    get("cifar100", write_tar(downloads / "cifar-100-binary.tar.gz", members))
    loaded = data_entry("cifar100").load("test")
    assert loaded.labels.tolist() == list(range(100))
    assert loaded.classes[7] == "fine_7"
    assert loaded.images[7].equal(torch.from_numpy(pixels[2].reshape(3, 32, 32)))


NEWS = [
    ("3", "Fears", 'A "quoted" text\\'),
    ("4", "Race", " starts with a space"),
    ("1", "Left", "out"),
    ("2", "Win", "x"),
]


def news_csv():
    return "".join(",".join(f'"{cell.replace(chr(34), chr(34) * 2)}"' for cell in row) + "\n" for row in NEWS).encode()


def test_ag_news(folder, downloads, lists):
    keys = [hashlib.sha256(f"{title} {text}".encode()).hexdigest()[:8] for _, title, text in NEWS]
    lists("ag_news", [(keys[0], "train"), (keys[3], "test"), (keys[1], "val")])
    get("ag_news", write_files(downloads, {"ag_news_csv/test.csv": news_csv()}) / "ag_news_csv" / "test.csv")
    table = pq.read_table(folder / "ag_news.parquet").to_pylist()
    assert [(row["title"], row["text"], row["label"], row["split"]) for row in table] == [
        ("Fears", NEWS[0][2], 2, "train"),
        ("Win", "x", 1, "test"),
        ("Race", " starts with a space", 3, "val"),
    ]
    assert data_entry("ag_news").load("val").labels.tolist() == [3]


def test_all_of_ag_news_is_placed(folder, downloads):
    get("ag_news_full", write_tar(downloads / "csv.tgz", {"ag/train.csv": news_csv(), "ag/test.csv": news_csv()}))
    assert data_entry("ag_news_full").load("test").labels.tolist() == [2, 3, 0, 1]


def review(name, label, *spans):
    marks = [[{"start_token": first, "end_token": end, "docid": name}] for first, end in spans]
    return json.dumps({"annotation_id": name, "classification": label, "evidences": marks})


def test_movies(folder, downloads):
    lines = {
        "train": [review("posR_1.txt", "POS", (0, 2)), review("negR_0.txt", "NEG")],
        "val": [review("negR_8.txt", "NEG", (1, 2))],
        "test": [review("posR_9.txt", "POS", (1, 3), (0, 1))],
    }
    content = {f"movies/{part}.jsonl": "\n".join(rows).encode() for part, rows in lines.items()}
    for name in ("posR_1", "negR_0", "negR_8", "posR_9"):
        content[f"movies/docs/{name}.txt"] = f"this is\n{name}".encode()
    get("movies", write_tar(downloads / "movies.tar.gz", content))
    assert [row["id"] for row in pq.read_table(folder / "movies.parquet").to_pylist()] == [
        *("posR_9.txt", "negR_0.txt", "posR_1.txt", "negR_8.txt")
    ]
    train, test = data_entry("movies").load("train"), data_entry("movies").load("test")
    assert train.texts == ("this is negR_0", "this is posR_1")
    assert train.labels.tolist() == [0, 1]
    assert test.rationales == (((0, 1), (1, 3)),)


def test_camvid_of_colours_and_of_classes_are_the_same(folder, downloads, lists):
    lists("camvid", [("Seq_2", "test"), ("Seq_1", "train")])
    colours, classes = np.zeros((720, 960, 3), dtype=np.uint8), np.full((720, 960), 11, dtype=np.uint8)
    for rows, colour, label in (
        *((slice(0, 200), (128, 128, 128), 0), (slice(200, 400), (64, 192, 0), 1)),
        *((slice(400, 600), (128, 0, 192), 3), (slice(600, 700), (192, 0, 192), 10)),
    ):
        colours[rows], classes[rows] = colour, label
    frames = {f"Seq_{number}.png": encode(grey(720, 960, 60 * number), "PNG") for number in (1, 2, 3)}
    stills = write_zip(downloads / "701_StillsRaw_full.zip", {f"701_StillsRaw_full/{n}": d for n, d in frames.items()})
    maps = {f"Seq_{number}_L.png": encode(colours, "PNG") for number in (1, 2, 3)}
    get("camvid", stills, write_zip(downloads / "LabeledApproved_full.zip", maps))
    loaded = data_entry("camvid").load("all")
    assert loaded.names == ("Seq_2", "Seq_1")
    assert loaded.images.shape == (2, 3, 176, 240)
    assert loaded.images[:, 0, 0, 0].tolist() == pytest.approx([120, 60], abs=2)
    assert loaded.maps.unique().tolist() == [0, 1, 3, 10, 255]
    first = pq.read_table(folder / "camvid.parquet")
    (folder / "camvid.parquet").unlink()
    tutorial = downloads / "CamVid"
    write_files(tutorial, {f"train/{name}": data for name, data in frames.items()})
    write_files(tutorial, {f"trainannot/{name}": encode(classes, "PNG") for name in frames})
    get("camvid", tutorial)
    assert pq.read_table(folder / "camvid.parquet").equals(first)


def test_maps_of_other_colours_are_refused(folder, downloads, lists):
    lists("camvid", [("Seq_1", "train")])
    content = {"Seq_1.png": encode(grey(8, 8), "PNG"), "Seq_1_L.png": encode(grey(8, 8, 3), "PNG")}
    with pytest.raises(DataFormatError, match="colours of the published classes"):
        get("camvid", write_files(downloads, content))


def medmnist(path, seed=0, train=5):
    draws = np.random.default_rng(seed)
    arrays = {}
    for part, count in (("train", train), ("val", 2), ("test", 3)):
        arrays[f"{part}_images"] = draws.integers(0, 255, (count, 28, 28), dtype=np.uint8)
        arrays[f"{part}_labels"] = (np.arange(count)[:, None] % 2).astype(np.uint8)
    arrays["train_images"][4] = arrays["train_images"][1]  # one is there twice
    np.savez(path, **arrays)
    return arrays


def test_medmnist_is_placed(folder, downloads):
    arrays = medmnist(downloads / "breastmnist.npz")
    get("breastmnist", downloads / "breastmnist.npz")
    assert data_entry("breastmnist").load("train").images[:, 0].equal(torch.from_numpy(arrays["train_images"]))
    medmnist(downloads / "breastmnist_64.npz")
    get("breastmnist_64", downloads)
    assert (folder / "breastmnist_64.npz").read_bytes() == (downloads / "breastmnist_64.npz").read_bytes()
    np.savez(downloads / "bloodmnist.npz", train_images=np.zeros(3))
    with pytest.raises(DataFormatError, match=r"bloodmnist\.npz should have the arrays"):
        get("bloodmnist", downloads)


def test_pneumonia_keeps_the_listed_images_in_their_order(folder, downloads, lists):
    arrays = medmnist(downloads / "pneumoniamnist.npz")
    order = [4, 0, 1]  # of which the first and the last are equal
    lists("pneumonia", [(f"{zlib.crc32(arrays['train_images'][row].tobytes()):08x}", "train") for row in order])
    _, remark = get("pneumonia", downloads)
    assert remark == ""
    loaded = data_entry("pneumonia").load("train")
    assert loaded.images[:, 0].equal(torch.from_numpy(arrays["train_images"][order]))
    assert loaded.labels.tolist() == [1, 0, 0]
    assert len(data_entry("pneumonia").load("test")) == 3


def test_pneumonia_of_other_images_stays_whole_and_says_so(folder, downloads, lists):
    medmnist(downloads / "pneumoniamnist.npz")
    lists("pneumonia", [("00000000", "train")])
    _, remark = get("pneumonia", downloads)
    assert "1 of 1 listed training images were not found" in remark
    assert len(data_entry("pneumonia").load("train")) == 5


def test_photos_are_read_from_their_archive(folder, downloads, lists):
    lists("photos", [("n01443537_goldfish", "test"), ("n09472597_volcano", "test")])
    photo = grey(300, 500, 10)
    photo[:, 100:400] = 200  # the middle square
    names = ("n01443537_goldfish", "n01440764_tench", "n09472597_volcano")
    content = {f"imagenet-sample-images-master/{name}.JPEG": encode(photo, "JPEG") for name in names}
    get("photos", write_zip(downloads / "imagenet-sample-images-master.zip", content))
    loaded = data_entry("photos").load()
    assert [loaded.classes[label] for label in loaded.labels] == ["n01443537", "n09472597"]
    assert loaded.images.shape == (2, 3, 256, 256)
    assert int(loaded.images[:, :, :, 4:-4].min()) > 190


def test_voc_is_placed(folder, downloads):
    root = "VOCdevkit/VOC2012"
    content = {
        f"{root}/JPEGImages/a.jpg": encode(grey(10, 10), "JPEG"),
        f"{root}/SegmentationClass/a.png": encode(np.ones((10, 10), dtype=np.uint8), "PNG"),
        f"{root}/ImageSets/Segmentation/val.txt": b"a\n",
    }
    get("voc", write_tar(downloads / "VOCtrainval_11-May-2012.tar", content))
    assert data_entry("voc").load("val", side=8).maps[torch.tensor([0])].unique().tolist() == [1]


def test_cora_is_placed_for_others(folder, downloads):
    names = [f"ind.cora.{part}" for part in ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index")]
    content = {f"planetoid-master/data/{name}": name.encode() for name in names}
    get("cora", write_zip(downloads / "planetoid-master.zip", content))
    assert sorted(path.name for path in (folder / "planetoid/Cora/raw").iterdir()) == sorted(names)
    with pytest.raises(ArgumentError, match="torch_geometric"):
        data_entry("cora").load()


def test_archives_are_fetched_and_compared(folder, downloads):
    medmnist(downloads / "breastmnist.npz")
    entry, path = data_entry("breastmnist"), downloads / "breastmnist.npz"
    digest = hashlib.md5(path.read_bytes()).hexdigest()

    def published(url, md5):
        return replace(entry, source=replace(entry.source, archives=(Archive(path.name, url, md5),)))

    with pytest.raises(DataFormatError, match=f"should have the MD5 {'0' * 32}, and has {digest}.*--from"):
        get_data(published(path.as_uri(), "0" * 32), (), folder)
    with pytest.raises(DataMissingError, match=r"breastmnist\.npz was not fetched.*download.*--from"):
        get_data(published((downloads / "no.npz").as_uri(), digest), (), folder)
    assert list(folder.iterdir()) == []
    get_data(published(path.as_uri(), digest), (), folder)
    assert (folder / "breastmnist.npz").read_bytes() == path.read_bytes()


def test_what_cannot_be_got_is_told(folder, downloads, write, rows):
    write("pets.parquet", rows)
    for name, words in {
        "pets": r"pets\.parquet is there already",
        "blood": r"cannot be fetched by a command: download PBC_dataset_normal_DIB\.zip from .*--from",
        "imagenet": r"is not made by a command: get it from https://image-net\.org",
        "truth:count": "nothing to get",
    }.items():
        with pytest.raises(ArgumentError, match=words):
            get(name)
    with pytest.raises(ArgumentError, match=r"no file or folder '.*nowhere\.zip'"):
        get("blood", downloads / "nowhere.zip")


def test_every_published_data_set_says_where_it_comes_from():
    without = {name for name, entry in CATALOGUE.items() if entry.source is None}
    assert all(name.startswith("truth:") for name in without)
    for name, entry in CATALOGUE.items():
        if name not in without:
            assert entry.source.page.startswith("http")
            assert entry.source.target.partition("/")[0] in entry.files + "lidc"
            assert entry.source.make is None or entry.source.archives
            assert all(len(archive.md5) == 32 for archive in entry.source.archives if archive.url)


def test_split_lists_are_small():
    assert sum(path.stat().st_size for path in SPLITS_FOLDER.iterdir()) < 200_000
    assert {path.name.partition(".")[0] for path in SPLITS_FOLDER.iterdir()} == {
        *("ag_news", "blood", "camvid", "pets", "photos", "pneumonia")
    }


@pytest.mark.parametrize("name", ["blood", "camvid", "pets"])
def test_split_lists_are_those_of_the_files(name):
    try:
        path = data_folder() / f"{name}.parquet"
    except DataMissingError:
        pytest.skip("no data folder")
    if not path.is_file():
        pytest.skip(f"{path.name} is not in the data folder")
    table = pq.read_table(path, columns=["name", "split"])
    assert split_list(name) == list(zip(*(table.column(key).to_pylist() for key in ("name", "split")), strict=True))


def test_listed_news_are_those_of_the_file():
    try:
        path = data_folder() / "ag_news.parquet"
    except DataMissingError:
        pytest.skip("no data folder")
    if not path.is_file():
        pytest.skip("ag_news.parquet is not in the data folder")
    rows = pq.read_table(path).to_pylist()
    keys = [hashlib.sha256(f"{row['title']} {row['text']}".encode()).hexdigest()[:8] for row in rows]
    assert split_list("ag_news") == list(zip(keys, (row["split"] for row in rows), strict=True))
