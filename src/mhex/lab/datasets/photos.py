"""One photo each of some ImageNet classes, for runs at 224 pixels."""

from __future__ import annotations

from mhex.lab.datasets.imagenet import imagenet_synsets
from mhex.lab.datasets.sets import ImageSet, checked_labels, data_file
from mhex.lab.datasets.tables import DataFormatError, decode_images, pick_rows, read_columns

PHOTOS_FILE = "photos.parquet"


def load_photos(split: str = "test", *, limit: int | None = None) -> ImageSet:
    """Load the photos of ``photos.parquet`` in the data folder.

    Args:
        split: ``"test"`` or ``"all"``, which are the same: nothing is learned from these.
        limit: At most so many photos, evenly spaced.

    Returns:
        The photos, (N, 3, 256, 256), with labels among the 1000 synsets of ImageNet-1k in their usual order.

    Raises:
        DataMissingError: The file is missing; the message says what to place where.
        DataFormatError: The file does not hold what it should.
        ArgumentError: The split is unknown or the limit is not positive.
    """
    table = read_columns(
        data_file(PHOTOS_FILE, "photos of ImageNet classes with the columns name, a synset and a word, and image"),
        ["name", "image"],
    )
    rows = pick_rows(["test"] * len(table["name"]), split, limit)
    names = [table["name"][row] for row in rows]
    places = {synset: place for place, synset in enumerate(imagenet_synsets())}
    strange = [name for name in names if name.split("_")[0] not in places]
    if strange:
        raise DataFormatError(
            f"Names in {PHOTOS_FILE} should begin with a synset of ImageNet-1k, such as n01443537_goldfish, and "
            f"{strange[0]!r} came: the file is damaged or of another data set."
        )
    return ImageSet(
        images=decode_images([table["image"][row] for row in rows]),
        labels=checked_labels([places[name.split("_")[0]] for name in names], tuple(places), PHOTOS_FILE),
        classes=tuple(places),
        split=split,
        names=tuple(names),
    )
