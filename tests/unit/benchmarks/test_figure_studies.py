"""Numbers behind the pictures of the papers: shares on parts and animals, curves image by image, powers of maps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest
import timm
import torch
from PIL import Image

import mhex
from cdam_concepts import side_by_side
from ead_contrast import highest
from gradtoken_classes import OWN, follows, share_on_part, text_pairs
from mhex.lab.datasets import Pets, TextSet
from mhex.lab.datasets.sets import two_class_items
from mhex_figures import JUDGES, area, claims, kinds_of, share_better, worst
from study_page import Interval
from two_classes import ALIKE, INSIDE, SHARE, Pairs, ahead, animals_on, both_maps, both_table, inside, view


def test_share_on_the_mask_counts_the_positive_part_of_partly_covered_patches() -> None:
    scores = torch.tensor([[[2.0, 1.0], [-5.0, 1.0]], [[-1.0, -1.0], [-1.0, 0.0]]])
    mask = torch.zeros(2, 4, 4, dtype=torch.bool)
    mask[:, :2, :1] = True  # half of the upper left patch
    found = inside(scores, mask)
    assert float(found[0]) == pytest.approx(0.25)
    assert math.isnan(float(found[1]))


def numbered_pets(count: int = 300, side: int = 8) -> Pets:
    """Photos whose first two colours are their number, two species; the animal fills the left half of each photo."""
    number = torch.arange(count)
    colours = torch.stack([number // 256, number % 256, 0 * number], 1).to(torch.uint8)
    trimaps = torch.full((count, side, side), 2, dtype=torch.uint8)
    trimaps[:, :, : side // 2] = 1
    return Pets(
        images=colours[:, :, None, None].expand(-1, -1, side, side).contiguous(),
        labels=number % 2,
        species=number % 2,
        names=tuple(map(str, range(count))),
        classes=("a", "b"),
        group_of=(0, 1),
        group_names=("cat", "dog"),
        split="test",
        trimaps=trimaps,
    )


def test_pictures_know_the_photos_of_their_halves_and_where_the_animals_are() -> None:
    pets = numbered_pets()
    pairs = side_by_side(pets, 20, seed=1)
    assert int(pairs.rows.max()) > 255  # a number takes two colours
    for photo, rows in zip(pairs.photos, pairs.rows.tolist(), strict=True):
        assert [256 * one[0] + one[1] for one in (photo.getpixel((0, 0)), photo.getpixel((7, 0)))] == rows
    items = two_class_items(pets, "side-by-side", limit=20, seed=1)
    breeds = [sorted((item["label"], item["other"])) for item in items]
    assert [sorted(one) for one in pairs.breeds.tolist()] == breeds
    assert pets.trimaps is not None
    places = animals_on(pets.trimaps, pairs.rows)
    assert places.shape == (20, 2, 8, 8)
    # The middle half of a photo has its animal in its own left half.
    assert places[0, 0, 0].tolist() == [True, True, *[False] * 6]
    assert places[0, 1, 0].tolist() == [*[False] * 4, True, True, False, False]


def test_a_map_without_a_class_has_half_and_a_likeness_of_one(vit_bundle: mhex.Bundle) -> None:
    photos = [Image.new("RGB", (32, 32), (40 * k, 90, 200 - 30 * k)) for k in range(3)]
    pairs = Pairs(photos, torch.zeros(3, 2).long(), torch.tensor([[0, 1], [2, 3], [4, 0]]), torch.zeros(3, 2).long())
    left = torch.zeros(3, 2, 32, 32, dtype=torch.bool)
    left[:, 0, :, :16] = True
    left[:, 1, :, 16:] = True
    found = both_maps(vit_bundle, pairs, left, {"attention": view("attention"), "cdam": view("cdam")}, seed=0)
    assert found["attention"][SHARE].tolist() == pytest.approx([0.5] * 3)
    assert found["attention"][INSIDE].tolist() == pytest.approx([0.5] * 3)
    assert found["attention"][ALIKE].tolist() == pytest.approx([1.0] * 3)
    assert float(found["cdam"][ALIKE].max()) < 0.999
    assert torch.allclose(found["cdam"][SHARE], found["cdam"][INSIDE])  # the halves are the animals here
    cdam = mhex.explain(vit_bundle, photos, "cdam", pairs.breeds[:, 1]).scores.double().clamp_min(0)
    other = mhex.explain(vit_bundle, photos, "cdam", pairs.breeds[:, 0]).scores.double().clamp_min(0)
    right = cdam[..., 2:].sum((1, 2)) / cdam.sum((1, 2))
    by_hand = (right + other[..., :2].sum((1, 2)) / other.sum((1, 2))) / 2
    assert torch.allclose(found["cdam"][SHARE], by_hand, atol=1e-5)


@pytest.fixture(scope="module")
def vit_bundle() -> mhex.Bundle:
    torch.manual_seed(0)
    arguments = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 3, "num_heads": 3, "num_classes": 5}
    model = timm.create_model("vit_tiny_patch16_224", **arguments).eval()

    def preprocess(photo: Any) -> torch.Tensor:
        pixels = torch.tensor(list(photo.getdata()), dtype=torch.float32).view(32, 32, 3).permute(2, 0, 1)
        return pixels / 255 - 0.5 + torch.linspace(-1, 1, 32)  # a slope, so that patches differ

    return mhex.Bundle("tiny", model, preprocess)


def test_what_is_ahead_is_told_by_pairs_on_the_same_inputs() -> None:
    base = torch.linspace(0.4, 0.8, 20).double()
    found = {
        "own": {SHARE: base},
        "low": {SHARE: base - 0.1},
        "high": {SHARE: base + 0.05},
        "same": {SHARE: base + 0.01 * (-1.0) ** torch.arange(20).double()},
    }
    words = ahead(found, "own", ["low", "high", "same"], seed=0)
    assert words.startswith("above `low` by 0.100 (0.100 to 0.100); below `high` by -0.050 ")
    assert words.endswith("not told apart from `same`")
    _, rows = both_table(found, seed=0)
    assert (rows[0][0], rows[-1][0]) == ("`high`", "`low`")


def test_share_on_a_part_of_a_text_leaves_out_what_speaks_against() -> None:
    scores = torch.tensor([0.0, 1.0, 2.0, 1.0, -9.0, 0.0])  # start, two tokens, two tokens, end
    assert share_on_part(scores, 2, False) == pytest.approx(0.75)
    assert share_on_part(scores, 2, True) == pytest.approx(0.25)
    assert math.isnan(share_on_part(-scores.abs(), 2, True))


def test_pairs_of_texts_have_two_topics_and_know_where_the_first_ends() -> None:
    def tokenizer(text: str) -> Mapping[str, Any]:
        return {"input_ids": torch.zeros(1, min(len(text.split()), 9) + 2)}  # takes nine words at most

    texts = ("a b", "c d e", "f", "g h i j", "k l m n o p q r")
    data = TextSet(labels=torch.tensor([0, 1, 0, 1, 1]), texts=texts, classes=("x", "y"), split="test")
    bundle = mhex.Bundle("fake", torch.nn.Identity(), tokenizer=tokenizer)
    whole = 0
    for seed in range(8):
        pairs = text_pairs(bundle, data, 2, seed)
        for text, topics, end in zip(pairs.texts, pairs.topics.tolist(), pairs.ends.tolist(), strict=True):
            first, second = " ".join(text.split()[:end]), " ".join(text.split()[end:])
            assert [int(data.labels[texts.index(part)]) for part in (first, second)] == topics
            assert topics[0] != topics[1]
            assert len(text.split()) <= 9
            whole += 1
    assert whole


def test_points_for_a_map_are_lower_ones_of_deletion_and_higher_ones_of_insertion() -> None:
    first = torch.tensor([[1.0, 0.2, 0.5, 0.4, 0.0]])
    second = torch.tensor([[1.0, 0.4, 0.4, 0.4, 0.0]])
    assert share_better(first, second, "deletion").tolist() == pytest.approx([0.5])
    assert share_better(first, torch.ones(1, 5), "deletion").tolist() == [1.0]
    assert share_better(first, torch.ones(1, 5), "insertion").tolist() == [0.0]
    assert area(torch.tensor([[1.0, 0.5, 0.0]])).tolist() == [0.5]


def test_one_image_of_each_kind_by_label() -> None:
    assert kinds_of([{"label": label} for label in (3, 1, 3, 0, 1)]) == [3, 1, 0]


def test_a_power_of_a_map_keeps_its_highest_quarter() -> None:
    maps = torch.rand(3, 8, 8, generator=torch.Generator().manual_seed(0))
    quarter = highest(maps, [0, 1, 2])
    assert quarter.flatten(1).sum(1).tolist() == [16.0] * 3
    assert torch.equal(quarter, highest(maps**4, [0, 1, 2]))
    assert float(maps[quarter == 1].min()) > float(maps[quarter == 0].min())


def test_a_target_is_followed_only_if_both_shares_lie_above_one_half() -> None:
    high, low = torch.linspace(0.6, 0.8, 12).double(), torch.linspace(0.4, 0.6, 12).double()
    numbers = [{OWN: {SHARE: values}} for values in (high, low)]
    assert f"`{OWN}` follows its target: the share is 0.700 " in follows(numbers[0], numbers[0], 0)
    for pair in (numbers, numbers[::-1]):
        assert "is not shown to follow its target" in follows(pair[0], pair[1], 0)


def test_claims_name_the_judges_by_which_a_curve_of_heads_is_lower() -> None:
    level = {"itself": 0.3, "a ViT": 0.6}
    curves = {
        (judge, order, name): torch.full((6, 5), level[judge] if name == "mhex" else 0.5).double()
        for judge in JUDGES
        for order in ("deletion", "insertion")
        for name in ("mhex", "gradcam")
    }
    curves["a ViT", "insertion", "mhex"] -= 0.2
    said = claims(curves)
    assert "deletion drops faster here: itself; by which insertion comes back more slowly: itself and a ViT." in said


def test_the_worst_kind_has_the_largest_area_of_deletion() -> None:
    def one(mean: float) -> Interval:
        return Interval(mean, mean, mean, 3)

    rows = [["a", *map(one, (0.9, 0.9, 0.2, 0.9, 0.7)), 3], ["b", *map(one, (0.1, 0.1, 0.4, 0.3, 0.6)), 3]]
    assert "the kind *b*: 0.400" in worst(rows)
    assert "a probability of 0.600" in worst(rows)
