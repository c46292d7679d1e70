"""Data in every form that people have it in: items and batches, with a length and without."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import mhex
from mhex.errors import ArgumentError, ArgumentTypeError
from mhex.inputs.data import count_batches, in_batches, length
from mhex.inputs.samples import Samples, in_samples, shuffled
from mhex.judge import evaluation as judging
from support.tiny_models import pictures, tiny

X, Y = pictures(5), torch.tensor([0, 1, 2, 3, 0])
MASKS = torch.ones(5, 4, 4).long()
PHOTOS = [Image.new("L", (4, 4), 20 * n) for n in range(5)]


class Stream(IterableDataset[Any]):
    """Items without a length."""

    def __iter__(self) -> Iterator[Any]:
        return iter(zip(X, Y.tolist(), strict=True))


def told(batches: list[Samples]) -> tuple[list[Any], list[int], list[int]]:
    """Inputs, labels and ids of all samples."""
    inputs = [one for batch in batches for one in batch.inputs]
    labels = [int(one) for batch in batches if batch.label is not None for one in batch.label]
    return inputs, labels, [i for batch in batches for i in batch.ids]


FORMS: dict[str, Any] = {
    "columns": lambda: (X, Y),
    "columns with a list": lambda: (X, Y.tolist()),
    "columns with an array": lambda: (X, Y.numpy()),
    "columns of a dictionary": lambda: {"inputs": X, "label": Y.numpy()},
    "columns with an axis": lambda: (X, Y[:, None].float()),
    "items": lambda: list(zip(X, Y.tolist(), strict=True)),
    "items as lists": lambda: [[x, y] for x, y in zip(X, Y.numpy(), strict=True)],
    "items as dictionaries": lambda: [{"image": x, "label": y} for x, y in zip(X, Y, strict=True)],
    "generator of items": lambda: zip(X, Y.tolist(), strict=True),
    "generator of dictionaries": lambda: ({"image": x, "label": int(y)} for x, y in zip(X, Y, strict=True)),
    "generator of batches": lambda: ((X[n : n + 2], Y[n : n + 2]) for n in (0, 2, 4)),
    "batches with lists of images": lambda: ((list(X[n : n + 2]), Y[n : n + 2]) for n in (0, 2, 4)),
    "list of batches": lambda: [(X[:3], Y[:3]), (X[3:], Y[3:].tolist())],
    "data set": lambda: TensorDataset(X, Y),
    "loader": lambda: DataLoader(TensorDataset(X, Y), batch_size=2),
    "loader of items": lambda: DataLoader(TensorDataset(X, Y), batch_size=None),
    "stream": Stream,
    "loader of a stream": lambda: DataLoader(Stream(), batch_size=2),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("limit", [None, 3, 4, 9])
def test_forms_of_data(form: str, limit: int | None) -> None:
    inputs, labels, ids = told(list(in_samples(FORMS[form](), 2, limit)))
    count = min(5, limit or 5)
    assert ids == list(range(count))
    assert labels == Y[:count].tolist()
    assert torch.equal(torch.stack(inputs), X[:count])


@pytest.mark.parametrize("form", FORMS)
def test_progress_knows_what_can_be_known(form: str) -> None:
    data = FORMS[form]()
    count = count_batches(data, 2)
    if "generator" in form or form in ("batches with lists of images", "stream", "loader of a stream"):
        assert count is None
    elif form == "list of batches":
        assert count == 2
    elif form == "loader of items":
        assert count == 5  # about: they are put together afterwards
    else:
        assert count == 3
        assert count_batches(data, 2, limit=2) == 1


@pytest.mark.parametrize("form", ["generator of items", "stream", "loader of items", "items"])
def test_evaluation_of_streams(form: str) -> None:
    """The same rows as of tensors, under progress bars with and without an end."""
    model = tiny("cnn")
    wanted = mhex.evaluate(model, (X, Y), ["gradcam"], ["compactness", "perturbation-auc:tm"], limit=4, **BLACK)
    found = mhex.evaluate(
        model,
        FORMS[form](),
        ["gradcam"],
        ["compactness", "perturbation-auc:tm"],
        limit=4,
        batch_size=3,
        progress=True,
        **BLACK,
    )
    for metric in wanted.metrics:
        for method in wanted.methods:
            one, other = (report.values(metric)[1][method] for report in (wanted, found))
            assert torch.allclose(one, other, 1e-9, equal_nan=True)


class Grey:
    """Preprocessing that says how colours were normalised."""

    mean, std = (0.5,), (0.2,)

    def __call__(self, photo: Any) -> Tensor:
        return (torch.tensor(np.array(photo))[None].double() / 255 - 0.5) / 0.2


BLACK: Any = {"preprocess": Grey()}


def test_streams_are_read_as_far_as_needed() -> None:
    endless = itertools.count()
    list(in_samples(((X[n % 5], 0) for n in endless), 16, limit=3))
    assert next(endless) == 3
    held = itertools.count()
    batches = in_samples(((X[n % 5], 0) for n in held), 2)
    next(batches)
    assert next(held) <= 3  # not all before the first batch


def test_photos_and_texts_in_streams() -> None:
    photos = ((photo, n) for n, photo in enumerate(PHOTOS))
    assert told(list(in_samples(photos, 2))) == (PHOTOS, [0, 1, 2, 3, 4], [0, 1, 2, 3, 4])
    assert told(list(in_samples(iter(PHOTOS), 2)))[0] == PHOTOS
    assert told(list(in_samples([PHOTOS[:2], PHOTOS[2:]], 2)))[0] == PHOTOS  # batches without labels
    assert told(list(in_samples((PHOTOS, [4, 3, 2, 1, 0]), 2)))[1] == [4, 3, 2, 1, 0]
    texts = ["a b", "c d", "e"]
    assert told(list(in_samples(iter(texts), 2))) == (texts, [], [0, 1, 2])
    assert told(list(in_samples(texts[:2], 2)))[0] == texts[:2]
    assert told(list(in_samples(zip(texts, [1, 0, 1], strict=True), 2))) == (texts, [1, 0, 1], [0, 1, 2])
    assert told(list(in_samples([(["a b", "c d"], torch.tensor([1, 0]))], 2)))[:2] == (texts[:2], [1, 0])


def test_arguments_of_the_model_as_items() -> None:
    items = [{"input_ids": [1, 2, 3], "attention_mask": [1, 1, 1], "label": 1}, {"input_ids": [1, 2], "label": 0}]
    one, two = in_samples(items, 2)
    assert torch.equal(one.inputs["input_ids"], torch.tensor([[1, 2, 3]]))
    assert torch.equal(two.inputs["input_ids"], torch.tensor([[1, 2]]))
    tensors = [{"pixel_values": x, "interpolate_pos_encoding": True} for x in X]
    (batch,) = in_samples(iter(tensors), 8)
    assert torch.equal(batch.inputs["pixel_values"], X)
    assert batch.inputs["interpolate_pos_encoding"] is True


def test_images_of_different_sizes() -> None:
    """Runs of one size are judged together; numbers are those of each image alone."""
    model = nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()).double()
    torch.manual_seed(3)
    images = [torch.randn(1, *size).double() for size in ((6, 6), (6, 6), (8, 5), (6, 6))]
    assert [batch.ids for batch in in_samples(images, 8)] == [(0, 1), (2,), (3,)]
    metric: Any = [("deletion", {"reference": "zero", "steps": 3})]
    report = mhex.evaluate(model, images, ["input-x-gradient"], metric, controls=False)
    found = report.per_image(report.metrics[0])["input-x-gradient"]
    assert found.shape == (4,)
    assert bool(found.isfinite().all())
    first = mhex.evaluate(model, torch.stack(images[:2]), ["input-x-gradient"], metric, controls=False)
    assert torch.allclose(found[:2], first.per_image(report.metrics[0])["input-x-gradient"], 1e-12)
    loader = DataLoader(images, batch_size=4, collate_fn=list)  # type: ignore[arg-type]
    assert [batch.ids for batch in in_samples(loader, 8)] == [(0, 1), (2,), (3,)]


def test_labels_that_are_not_known() -> None:
    items = [(x, None if n == 1 else n) for n, x in enumerate(X)]
    (batch,) = in_samples(items, 8)
    assert batch.label is not None
    assert batch.label.tolist() == [0, -1, 2, 3, 4]
    report = mhex.evaluate(tiny("cnn"), items, ["gradcam"], ["compactness"])
    assert report.rows.num_rows
    with pytest.raises(ArgumentError, match="Expected a label for each sample, but sample 1 has none"):
        mhex.evaluate(tiny("cnn"), items, ["gradcam"], ["perturbation-auc"], **BLACK)
    (batch,) = in_samples([(x, None) for x in X], 8)
    assert batch.label is None


def test_what_is_no_data() -> None:
    model = tiny("cnn")
    for nothing in ((x for x in ()), [], iter([]), X[:0], {"inputs": X[:0]}):
        with pytest.raises(ArgumentError, match="at least one sample, but got empty data; a generator can be read"):
            mhex.evaluate(model, nothing, ["gradcam"], ["compactness"])
    with pytest.raises(ArgumentTypeError, match="Expected a tensor, a dictionary, a list, a data set, a generator"):
        mhex.evaluate(model, 3, ["gradcam"], ["compactness"])
    with pytest.raises(ArgumentError, match="Expected a label for each of 5 samples, but got 6"):
        mhex.evaluate(model, (X, torch.zeros(6).long()), ["gradcam"], ["compactness"])
    with pytest.raises(ArgumentError, match="Expected a label for each of 5 samples, but got 4"):
        mhex.evaluate(model, iter([(X, [1, 2, 3, 4])]), ["gradcam"], ["compactness"])
    with pytest.raises(ArgumentError, match="Expected a mask for each of 5 samples, but got 1"):
        mhex.evaluate(model, {"image": X, "mask": PHOTOS[0]}, ["gradcam"], ["segmentation"])
    with pytest.raises(ArgumentError, match=r"one class number as label of each sample, but got \(5, 7\)"):
        mhex.evaluate(model, (X, torch.zeros(5, 7)), ["gradcam"], ["compactness"])
    with pytest.raises(ArgumentError, match="one class number as label"):
        mhex.evaluate(model, (X, torch.full((5,), 0.4)), ["gradcam"], ["compactness"])
    with pytest.raises(ArgumentTypeError, match="class number or name as label of each sample, but got dict"):
        mhex.evaluate(model, [(x, {"boxes": 1}) for x in X], ["gradcam"], ["compactness"])
    for unknown in ([{"img": x, "label": 1} for x in X], {"img": X, "label": [1] * 5}, iter([{"img": X, "label": X}])):
        with pytest.raises(ArgumentError, match=r"one of the keys inputs, image, .*, but got \['img', 'label'\]"):
            mhex.evaluate(model, unknown, ["gradcam"], ["compactness"])
    with pytest.raises(ArgumentError, match="limit to be a whole number from 1 on, but got 0"):
        mhex.evaluate(model, X, ["gradcam"], ["compactness"], limit=0)


def test_words_and_tiles_that_some_lack() -> None:
    items = [{"text": "a b", "rationale": [0]}, {"text": "c", "rationale": None}]
    (batch,) = in_samples(items, 2)
    assert batch.rationale == [[0], []]
    tiles = [{"image": X[0], "tiles": [0, 1, 2, 3]}, {"image": X[1], "tiles": None}]
    with pytest.raises(ArgumentError, match="tiles"):
        list(in_samples(tiles, 2))
    (batch,) = in_samples(tiles[:1], 2)
    assert batch.tiles is not None
    assert batch.tiles.tolist() == [[0, 1, 2, 3]]
    (batch,) = in_samples([{"image": x, "other": None if n else 2} for n, x in enumerate(X)], 8)
    assert batch.other is not None
    assert batch.other.tolist() == [2, -1, -1, -1, -1]


def test_texts_without_marks_are_skipped() -> None:
    from support.tiny_bert import bert
    from support.tiny_bert import tokenizer as make_tokenizer

    texts, marks = ["the movie was good", "a bad bad film", "good", "a film"], [None, [1, 2], None, [1]]
    model, options = bert(), {"tokenizer": make_tokenizer(), "controls": False}
    items = [{"text": text, "rationale": mark} for text, mark in zip(texts, marks, strict=True)]
    for size in (1, 2, 4):
        report = mhex.evaluate(model, items, ["attention"], ["token-f1"], batch_size=size, **options)
        assert report.values("token-f1")[1]["attention"].isnan().any(1).tolist() == [True, False, True, False]
    with pytest.raises(ArgumentError, match=r"'token-f1' needs a rationale for each sample, .* 'rationale': "):
        mhex.evaluate(model, texts, ["attention"], ["token-f1"], **options)


def test_needs_are_checked_before_the_first_map(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*args: Any, **options: Any) -> None:
        raise AssertionError("a batch was judged")

    monkeypatch.setattr(judging, "judge_batch", never)
    model = tiny("cnn")
    for metrics, words in {
        "deletion:mhex": r"'deletion:mhex' needs a label for each sample, .* give items as \(inputs, label\)",
        "road:road": "'road:road' needs a label",
        "average-drop:mhex": "'average-drop:mhex' needs a label",
        "segmentation": r"'segmentation' needs a mask .* \(image, label, mask\) or \{'image': \.\.\., 'mask'",
        "class-discrimination": "'class-discrimination' needs another class .* 'other'",
        "grid-pointing-game": "'grid-pointing-game' needs the classes of the cells .* 'tiles'",
        "randomization:labels": "permuted labels as relabelled= for 'randomization:labels', but got none",
    }.items():
        with pytest.raises(ArgumentError, match=words):
            mhex.evaluate(model, X, ["gradcam"], [metrics])
    with pytest.raises(ArgumentError, match=r"'saco \(scored=label\)' needs a label"):
        mhex.evaluate(model, X, ["gradcam"], [("saco", {"scored": "label"})])
    with pytest.raises(ArgumentError, match="target='label' needs a label"):
        mhex.evaluate(model, X, ["gradcam"], ["deletion"], target="label")


class Placed(nn.Module):
    """A text classifier that is told the numbers of the positions, which all samples share."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.places, self.last = nn.Embedding(30, 8), nn.Embedding(6, 8), nn.Linear(8, 3)

    def forward(self, input_ids: Tensor, position_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        scores: Tensor = self.last((self.words(input_ids) * self.places(position_ids)).mean(1))
        return scores


SHARED = {"input_ids": torch.arange(30).view(5, 6), "position_ids": torch.arange(5, -1, -1)[None]}


@pytest.mark.parametrize("size", [1, 2, 5])
def test_a_row_that_all_samples_share_is_in_every_batch(size: int) -> None:
    for batches in (in_batches(SHARED, size), (samples.inputs for samples in in_samples(SHARED, size, 4))):
        assert all(batch["position_ids"].equal(SHARED["position_ids"]) for batch in batches)
    metrics: Any = [("deletion", {"reference": "pad", "granularity": "token"})]
    report = mhex.evaluate(Placed(), SHARED, ["input-x-gradient"], metrics, batch_size=size)
    own = {**SHARED, "position_ids": SHARED["position_ids"].expand(5, -1)}
    wanted = mhex.evaluate(Placed(), own, ["input-x-gradient"], metrics)
    for method, values in wanted.values(wanted.metrics[0])[1].items():
        torch.testing.assert_close(report.values(wanted.metrics[0])[1][method], values)


def test_a_shared_row_stays_when_samples_are_shuffled() -> None:
    for data in (SHARED, {"inputs": SHARED, "label": torch.arange(5)}):
        mixed, order = shuffled(data, 0)
        inputs = mixed.get("inputs", mixed)
        assert order != [0, 1, 2, 3, 4]
        assert inputs["input_ids"].equal(SHARED["input_ids"][order])
        assert inputs["position_ids"] is SHARED["position_ids"]


def test_other_numbers_of_rows_are_refused() -> None:
    with pytest.raises(ArgumentError, match="Expected a position_ids for each of 5 samples, but got 2"):
        next(in_samples({**SHARED, "position_ids": torch.zeros(2, 6).long()}, 2))


def test_a_number_in_a_dictionary_of_inputs_has_no_rows():
    assert length({"input_ids": torch.ones(3, 5), "scale": torch.tensor(2.0)}) == 3
