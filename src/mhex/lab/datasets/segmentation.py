"""Photos with a class for every pixel: PASCAL VOC 2012, CamVid, and ImageNet-Segmentation."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from mhex.errors import ArgumentError, require
from mhex.inputs.photos import MOST_PIXELS
from mhex.lab.datasets import files
from mhex.lab.datasets.archives import Archive
from mhex.lab.datasets.catalogue import register_data
from mhex.lab.datasets.imagenet import synset_places
from mhex.lab.datasets.sets import VOID, PhotoSet, SegmentationSet
from mhex.lab.datasets.source import Originals, Source, copy, encode, read_photo, write_rows

VOC_FOLDER = "VOCdevkit/VOC2012"
VOC_SPLITS = ("train", "val")
VOC_CLASSES = (
    *("background", "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow"),
    *("diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor"),
)
CAMVID_FILE = "camvid.parquet"
CAMVID_CLASSES = (
    *("sky", "building", "pole", "road", "pavement", "tree", "sign", "fence", "car", "pedestrian", "bicyclist"),
)
CAMVID_SIZE, CAMVID_QUALITY = (240, 176), 85  # of the photos in pixels, and of their JPEG
# The colours of the published maps for each of the 11 classes, as this grouping of the 32 published ones has become
# usual; other colours are void.
CAMVID_COLOURS = {
    "sky": ((128, 128, 128),),
    # building, archway, bridge, tunnel, wall
    "building": ((128, 0, 0), (192, 0, 128), (0, 128, 64), (64, 0, 64), (64, 192, 0)),
    "pole": ((192, 192, 128), (0, 0, 64)),  # column or pole, traffic cone
    "road": ((128, 64, 128), (128, 0, 192), (192, 0, 64)),  # road, markings to drive on or not
    "pavement": ((0, 0, 192), (64, 192, 128), (128, 128, 192)),  # sidewalk, parking block, shoulder
    "tree": ((128, 128, 0), (192, 192, 0)),  # tree, other vegetation
    "sign": ((192, 128, 128), (128, 128, 64), (0, 64, 64)),  # sign, text, traffic light
    "fence": ((64, 64, 128),),
    # car, pickup, truck or bus, train, other moving things
    "car": ((64, 0, 128), (64, 128, 192), (192, 128, 192), (192, 64, 128), (128, 64, 64)),
    # pedestrian, child, cart or pram, animal
    "pedestrian": ((64, 64, 0), (192, 128, 64), (64, 0, 192), (64, 128, 64)),
    "bicyclist": ((0, 128, 192), (192, 0, 192)),  # bicyclist, motorcycle
}
SEGMENTATION_FILE = "gtsegs_ijcv.mat"
FIELDS = ("img", "gt", "target")
_DEEPEST = 8  # cells inside each other
_SMALL, _LARGEST = 4096, 3 * MOST_PIXELS  # bytes of an array: of any file, and of a photo that anybody has


@register_data(
    "voc",
    title="PASCAL VOC 2012 segmentation",
    licence="see host.robots.ox.ac.uk/pascal/VOC and the terms of Flickr",
    citation="M. Everingham et al.: The Pascal Visual Object Classes Challenge: A Retrospective. International Journal "
    "of Computer Vision, 2015.",
    form="photos squashed to 224 x 224 pixels, a class of 20 or none for every pixel",
    files="`VOCdevkit/VOC2012/`: `JPEGImages`, `SegmentationClass`, `ImageSets/Segmentation`",
    source=Source(
        "http://host.robots.ox.ac.uk/pascal/VOC/voc2012",
        VOC_FOLDER,
        (Archive("VOCtrainval_11-May-2012.tar"),),
        copy("ImageSets/Segmentation", "JPEGImages", "SegmentationClass"),
    ),
    task="pixels",
    validation=None,
    test="val",
    item_options={"of": "each"},
    judged="masks, two classes",
)
def load_voc(
    split: str = "val", *, limit: int | None = None, side: int = 224, fit: files.Fit = "squash"
) -> SegmentationSet:
    """List PASCAL VOC 2012 segmentation, splits train and val, laid out as published in the data folder.

    Photos are squares of ``side`` pixels, and 255 in their maps marks borders and what is hard to tell.
    """
    root, pairs = files.data_folder(), list[tuple[str, str]]()
    for part in files.split_parts(VOC_SPLITS, split):
        problem = f"ImageSets/Segmentation/{part}.txt is not a text in UTF-8"
        try:
            with files.refuse_damage(problem, files.PUBLISHED, UnicodeDecodeError):
                listed = require("torchvision.datasets").VOCSegmentation(root, "2012", part)
        except (RuntimeError, OSError) as error:  # the folder, or the list of the split, is missing
            raise files.DataMissingError(
                f"PASCAL VOC 2012 is not in {str(root / VOC_FOLDER)!r}, since ImageSets/Segmentation/{part}.txt is "
                "missing: place the folder VOCdevkit there with VOC2012/JPEGImages, SegmentationClass and ImageSets, "
                "as published."
            ) from error
        pairs += zip(listed.images, listed.masks, strict=True)
    pairs = files.evenly_spaced(pairs, limit)
    photos, maps = ([Path(pair[column]) for pair in pairs] for column in range(2))
    files.check_listed([*photos, *maps], "ImageSets/Segmentation")
    images, masks = files.PhotoFiles(photos, side, fit), files.MaskFiles(maps, side, fit, _voc_classes)
    return SegmentationSet(
        images=images, maps=masks, classes=VOC_CLASSES, background=0, split=split, names=images.names
    )


def _voc_classes(values: files.Bytes, name: str) -> files.Bytes:
    wrong = values[(values >= len(VOC_CLASSES)) & (values != VOID)]
    if len(wrong):
        words = f"{name} should hold the classes 0..20 and 255, as a picture with a palette, and {int(wrong[0])} came"
        raise files.wrong_file(words, files.PUBLISHED)
    return np.ascontiguousarray(values)


def _make_camvid(originals: Originals, target: Path) -> str:
    """All frames, with maps in colours (``NAME_L.png``) or maps of 11 classes in folders such as ``trainannot``."""
    photos, maps = originals.photos(lambda path: not _is_map(path)), originals.photos(_is_map)
    maps = {name.removesuffix("_L"): path for name, path in maps.items()}

    def make(row: tuple[str, str, Path]) -> dict[str, object]:
        name, split, path = row
        photo = read_photo(path).resize(CAMVID_SIZE, Image.Resampling.BICUBIC)
        mask = _camvid_classes(maps[name]).resize(CAMVID_SIZE, Image.Resampling.NEAREST)
        return {"name": name, "image": encode(photo, CAMVID_QUALITY), "mask": encode(mask), "split": split}

    rows = originals.by_list("camvid", {name: path for name, path in photos.items() if name in maps})
    write_rows(target, rows, make)
    return ""


def _is_map(path: Path) -> bool:
    return path.stem.endswith("_L") or path.parent.name.endswith("annot")


def _camvid_classes(path: Path) -> Image.Image:
    """A map with a class 0..10 of each pixel, 11 for none."""
    with files.opened_image(path, path.name) as image:
        if image.mode in ("L", "P") and path.parent.name.endswith("annot"):
            return Image.fromarray(np.array(image, dtype=np.uint8))
        colours = np.asarray(image.convert("RGB"), dtype=np.int64) @ [1 << 16, 1 << 8, 1]
    classes = np.full(colours.shape, len(CAMVID_CLASSES), dtype=np.uint8)
    for place, name in enumerate(CAMVID_CLASSES):
        classes[np.isin(colours, [red << 16 | green << 8 | blue for red, green, blue in CAMVID_COLOURS[name]])] = place
    if not (classes < len(CAMVID_CLASSES)).any():
        raise files.wrong_file(f"{path.name} should have the colours of the published classes, and has none of them")
    return Image.fromarray(classes)


@register_data(
    "camvid",
    title="CamVid",
    licence="none named; research use",
    citation="G. J. Brostow, J. Fauqueur, R. Cipolla: Semantic object classes in video: A high-definition ground "
    "truth database. Pattern Recognition Letters, 2009.",
    form="street scenes at half size, a class of 11 for every pixel",
    files="`camvid.parquet`: name, image, mask, split",
    source=Source(
        "http://mi.eng.cam.ac.uk/research/projects/VideoRec/CamVid",
        CAMVID_FILE,
        (Archive("701_StillsRaw_full.zip"), Archive("LabeledApproved_full.zip")),
        _make_camvid,
        "how photos were scaled is not known: here bicubic, without a crop; classes of colours as usually grouped",
    ),
    task="pixels",
    item_options={"of": "each"},
    judged="masks, two classes",
)
def load_camvid(split: str = "train", *, limit: int | None = None) -> SegmentationSet:
    """Load CamVid, (N, 3, 176, 240), from ``camvid.parquet``, splits train, val and test; 255 marks no class."""
    table, _ = files.read_split(CAMVID_FILE, "CamVid", ["name", "image", "mask"], split, limit)
    maps = files.decode_images(table["mask"], "L")
    if int(maps.max()) > len(CAMVID_CLASSES):
        words = f"Masks of {CAMVID_FILE} should hold the classes 0..10 and 11 for none, and {int(maps.max())} came"
        raise files.wrong_file(words)
    maps = maps.masked_fill(maps == len(CAMVID_CLASSES), VOID)
    images, names = files.decode_images(table["image"]), tuple(table["name"])
    return SegmentationSet(images=images, maps=maps, classes=CAMVID_CLASSES, split=split, names=names)


@dataclass(frozen=True, eq=False)
class MatRows:
    """Photos (B, 3, side, side), uint8, or maps (B, side, side) of the MATLAB file, read when they are taken."""

    path: Path  # of MATLAB 7.3, which is HDF5
    numbers: tuple[int, ...]  # of the photos in the file
    field: str  # "img" or "gt"
    side: int  # of the squares in pixels
    fit: files.Fit
    signed: bool = False  # whether 255 becomes -1, int8

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, rows: Tensor) -> Tensor:
        with _opened(self.path) as file:
            squares = np.stack([self._square(file, self.numbers[row]) for row in rows.tolist()])
        return torch.from_numpy(squares.view(np.int8) if self.signed else squares)

    def _square(self, file: Any, number: int) -> files.Array:
        array = _followed(file, file[f"value/{self.field}"][number, 0])
        # MATLAB counts along columns first, so axes come in reverse: (3, W, H), and (W, H) of a grey photo.
        plain = Image.fromarray(np.ascontiguousarray(array.T, dtype=np.uint8))
        if self.field == "img":
            return np.asarray(files.fitted(plain.convert("RGB"), self.side, self.fit)).transpose(2, 0, 1)
        if not set(np.unique(array).tolist()) <= {0, 1, 255}:
            words = f"photo {number} has {np.unique(array).tolist()[:8]}"
            raise files.wrong_file(f"Maps of {self.path.name} should hold 0, 1 and 255, and {words}", files.RIGHT)
        return np.asarray(files.fitted(plain, self.side, self.fit, nearest=True))


@dataclass(frozen=True, eq=False, kw_only=True)
class ImageNetSegmentation(SegmentationSet):
    """Photos with the pixels of one object."""

    images: MatRows
    maps: MatRows  # the pixels of the object
    synsets: tuple[str, ...]  # of the object of each photo

    def labelled(self) -> PhotoSet:
        """The photos whose class is one of the 1000 of ImageNet-1k, with that as their label, and masks."""
        order = synset_places()
        rows = [row for row, name in enumerate(self.synsets) if name in order]
        if not rows:
            raise ArgumentError("None of these photos has a class of ImageNet-1k: take more of them.")
        numbers = tuple(self.images.numbers[row] for row in rows)
        return PhotoSet(
            images=replace(self.images, numbers=numbers),
            labels=torch.tensor([order[self.synsets[row]] for row in rows]),
            classes=tuple(order),
            split=self.split,
            names=tuple(self.names[row] for row in rows),
            masks=replace(self.maps, numbers=numbers, signed=True),
        )


@register_data(
    "imagenet_segmentation",
    title="ImageNet-Segmentation",
    licence="research use, see image-net.org",
    citation="M. Guillaumin, D. Küttel, V. Ferrari: ImageNet Auto-Annotation with Segmentation Propagation. "
    "International Journal of Computer Vision, 2014.",
    form="4,276 photos squashed to 224 x 224 pixels, with the pixels of one object",
    files="`gtsegs_ijcv.mat`; needs `mhex[data]`",
    source=Source("https://calvin-vision.net/bigstuff/proj-imagenet", SEGMENTATION_FILE),
    task="pixels",
    train=None,
    validation=None,
    judged="masks",
)
def load_imagenet_segmentation(
    split: str = "test", *, limit: int | None = None, side: int = 224, fit: files.Fit = "squash"
) -> ImageNetSegmentation:
    """List ImageNet-Segmentation from ``gtsegs_ijcv.mat``, split test; needs h5py (``mhex[data]``).

    Photos are squares of ``side`` pixels, squashed as in the papers or cropped, with the classes background and object;
    `labelled` gives those with a label of ImageNet-1k.
    """
    path = files.data_file(
        SEGMENTATION_FILE, "ImageNet-Segmentation, with the fields value/img, value/gt and value/target"
    )
    files.split_parts(["test"], split)
    with _opened(path) as file:
        if not all(f"value/{field}" in file for field in FIELDS):
            words = f"{path.name} should have the fields {[f'value/{field}' for field in FIELDS]}, and lacks one"
            raise files.wrong_file(words, files.RIGHT)
        rows = tuple(files.pick_rows(["test"] * len(file["value/img"]), split, limit))
        letters = [_followed(file, file["value/target"][row, 0]).flatten().tolist() for row in rows]
        synsets = ["".join(map(chr, codes)) for codes in letters]
    return ImageNetSegmentation(
        images=MatRows(path, rows, "img", side, fit),
        maps=MatRows(path, rows, "gt", side, fit),
        classes=("background", "object"),
        background=0,
        split=split,
        names=tuple(map(str, rows)),
        synsets=tuple(synsets),
    )


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """The open file; every error while it is open means that the file is damaged, whatever h5py calls it."""
    kinds = (OSError, RuntimeError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, MemoryError)
    problem, h5py = f"{path.name} is not a file of MATLAB 7.3 (HDF5), or damaged", require("h5py", "data")
    with files.refuse_damage(problem, "", *kinds), h5py.File(path, "r") as file:
        yield file


def _followed(file: Any, reference: Any) -> files.Array:
    """The array that a reference leads to; a cell of one entry leads on to the array in it."""
    for _ in range(_DEEPEST):
        entry = file[reference]
        if entry.nbytes > max(_SMALL, min(_LARGEST, files.DENSEST * entry.id.get_storage_size())):
            raise ValueError(f"{entry.name} claims {entry.nbytes} bytes, which the file has not got")
        array = np.asarray(entry)
        if array.dtype != object:
            return array
        reference = array.flat[0]
    raise ValueError(f"its cells are nested more than {_DEEPEST} levels deep")
