"""Items of sets as `mhex.evaluate` takes them, and entries that recipes may not learn from."""

import pytest
import torch

from mhex.errors import ArgumentError
from mhex.inputs.samples import in_samples
from mhex.lab.datasets import CATALOGUE, Items, TextSet, ValueSet, data_entry, register_data


def test_items_are_made_when_they_are_taken():
    taken = []

    def take(place):
        taken.append(place)
        return {"text": str(place), "label": place}

    items = Items(5, take)
    assert len(items) == 5
    assert taken == []
    assert items[-1]["text"] == "4"
    assert [item["label"] for item in items[1:4]] == [1, 2, 3]
    assert len(list(items)) == 5
    with pytest.raises(IndexError, match="5 items"):
        items[5]


def test_photos_and_masks_come_in_batches(write, rows):
    write("pets.parquet", rows)
    first, second = in_samples(data_entry("pets").items(), 2)
    assert [photo.size for photo in first.inputs] == [(12, 12)] * 2
    assert first.label.tolist() == [0, 1]
    assert [mask.shape for mask in first.mask] == [(12, 12)] * 2
    assert torch.stack(list(first.mask)).unique().tolist() == [0, 1]
    assert (second.ids, second.label.tolist()) == ((2,), [2])


def test_texts_and_rationales_come_in_batches():
    texts = TextSet(
        texts=("a b c", "d e"),
        labels=torch.tensor([1, 0]),
        classes=("n", "p"),
        split="test",
        rationales=(((0, 1), (2, 3)), ()),
    )
    (batch,) = in_samples(texts.items(), 8)
    assert batch.inputs == ["a b c", "d e"]
    assert batch.rationale == [[0, 2], []]
    assert batch.label.tolist() == [1, 0]


def test_values_come_without_labels():
    values = ValueSet(
        images=torch.zeros(2, 3, 4, 4, dtype=torch.uint8),
        values=torch.zeros(2, 1),
        value_names=("x",),
        split="test",
        names=("a", "b"),
    )
    (batch,) = in_samples(values.items(), 8)
    assert batch.label is None
    assert len(batch.inputs) == 2


def test_what_a_recipe_can_learn_from():
    assert data_entry("retinamnist").learnable
    refused = {name for name, entry in CATALOGUE.items() if not entry.learnable}
    assert refused == {
        *("chestmnist", "imagenet_multi", "imagenet_segmentation", "photos", "voc", "camvid", "lidc_biomarkers"),
        "truth:two-classes",
    }


@pytest.mark.parametrize("name", CATALOGUE)
def test_cards_are_complete(name):
    entry = CATALOGUE[name]
    assert all((entry.title, entry.licence, entry.citation, entry.form, entry.files))
    assert entry.test not in (entry.train, entry.validation)


def test_nothing_to_judge_on_is_told():
    class Empty:
        def items(self):
            return Items(0, dict)

    entry = data_entry("pets")
    hollow = type(entry)(lambda *_, **__: Empty(), "Nothing", "none", "none", "none", "none")
    with pytest.raises(ArgumentError, match="Nothing of Nothing"):
        hollow.items()


def test_a_decorated_loader_is_a_data_set(monkeypatch):
    monkeypatch.setattr("mhex.lab.datasets.catalogue.CATALOGUE", {})
    facts = dict.fromkeys(("title", "licence", "citation", "form", "files"), "made up")

    @register_data("made-up", **facts, test="all")
    def load_made_up(split, *, limit=None):
        texts = ("a b", "c")[:limit]
        return TextSet(texts=texts, labels=torch.tensor([0, 1])[:limit], classes=("n", "p"), split=split)

    assert data_entry("made-up").items(limit=1)[0] == {"text": "a b", "label": 0}
    with pytest.raises(ArgumentError, match="'made-up'"):
        data_entry("made-upp")
