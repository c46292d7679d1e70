"""Batched augmentation and mixing."""

import pytest
import torch

from mhex._schema import build
from mhex.errors import ArgumentError
from mhex.lab.config.recipe import RecipeAugment
from mhex.lab.train.augment import augment, draw, inside, mix

STRENGTHS = ("rotate", "flip", "light", "colour", "cast", "grey", "cutmix", "mixup")


def calm(**changes):
    return RecipeAugment(**{"scale": (1, 1), "ratio": (1, 1), **dict.fromkeys(STRENGTHS, 0), **changes})


@pytest.fixture
def photos():
    return torch.randint(0, 256, (6, 3, 16, 16), dtype=torch.uint8)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def changed(photos, settings, seed=0, side=16):
    return augment(photos, draw(len(photos), settings, seeded(seed)), side)


def mixed(pixels, targets, settings, seed=1):
    draws = draw(len(pixels), settings, seeded(seed))
    return mix(pixels, pixels[draws.partner], targets, targets[draws.partner], draws)


def test_no_change_at_zero_strength(photos):
    torch.testing.assert_close(changed(photos, calm()), photos / 255, atol=1e-5, rtol=0)


def test_flip_mirrors(photos):
    torch.testing.assert_close(changed(photos, calm(flip=1)), photos.flip(-1) / 255, atol=1e-5, rtol=0)


def test_shape_range_and_seed(photos):
    strong = RecipeAugment(erase=0.5)
    first, again, other = (changed(photos, strong, seed, 24) for seed in (3, 3, 4))
    assert first.shape == (6, 3, 24, 24)
    assert 0 <= first.min() < first.max() <= 1
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_a_part_of_a_batch_is_changed_as_in_the_whole(photos):
    draws = draw(6, RecipeAugment(erase=0.5), seeded())
    whole = augment(photos, draws, 16)
    part = slice(2, 5)
    torch.testing.assert_close(augment(photos[part], draws.take(part), 16), whole[part], atol=1e-6, rtol=0)


def test_crops_stay_inside_the_photo():
    # A bright frame around a dark photo: a crop of a quarter of the area may show it, reflection never adds to it.
    ramp = torch.arange(64, dtype=torch.uint8).expand(50, 3, 64, 64) * 4
    cropped = changed(ramp, calm(scale=(0.25, 0.25)), side=32)
    spread = cropped[:, 0, 0, -1] - cropped[:, 0, 0, 0]
    # Half of the width, less one output pixel, of a ramp that rises by 252 over 63 pixels.
    torch.testing.assert_close(spread, torch.full((50,), 31 * 4 / 255), atol=5e-3, rtol=0)
    assert cropped[:, 0, 0, 0].std() > 0.05


def test_grey_loses_all_colour(photos):
    grey = changed(photos, calm(grey=1))
    assert (grey.max(dim=1).values - grey.min(dim=1).values).max() < 1e-5


def test_erase_covers_each_chosen_photo(photos):
    erased = changed(photos, calm(erase=1))
    touched = (erased - photos / 255).abs().amax(dim=1) > 1e-4
    assert touched.flatten(1).any(dim=1).all()
    assert touched.float().mean() < 0.5


def test_boxes_cover_what_is_asked():
    middles = torch.rand(2000, 2, generator=seeded())
    boxes = torch.cat([middles, torch.full((2000, 1), 0.25)], dim=1)
    assert inside(torch.zeros(5, 3), 32).sum() == 0
    # A box of half the side, centred anywhere, keeps 7/8 of each side on average: (1/2 * 7/8)^2.
    assert abs(inside(boxes, 32).float().mean().item() - (0.5 * 0.875) ** 2) < 0.01


@pytest.mark.parametrize(("cutmix", "mixup"), [(1.0, 0.0), (0.0, 1.0), (0.5, 0.3)])
def test_mixed_targets_sum_to_one_and_follow_the_pixels(cutmix, mixup):
    # Photo k is plain with value k, so the mean of a mixed photo tells the shares that its target must tell.
    count = 8
    pixels = torch.arange(count).view(-1, 1, 1, 1).expand(-1, 3, 20, 20).float()
    photos, targets = mixed(pixels, torch.eye(count), calm(cutmix=cutmix, mixup=mixup))
    torch.testing.assert_close(targets.sum(dim=1), torch.ones(count))
    torch.testing.assert_close(photos.mean(dim=(1, 2, 3)), targets @ torch.arange(count).float())
    assert (targets.max(dim=1).values < 1).any()


def test_cutmix_pastes_and_mixup_blends():
    pixels = torch.arange(8).view(-1, 1, 1, 1).expand(-1, 3, 20, 20).float()
    pasted, _ = mixed(pixels, torch.eye(8), calm(cutmix=1))
    blended, _ = mixed(pixels, torch.eye(8), calm(mixup=1))
    assert torch.equal(pasted, pasted.round())
    assert all(len(photo.unique()) == 1 for photo in blended)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"cutmix": 0.7, "mixup": 0.7}, "sum to at most 1"),
        ({"scale": [0.9, 0.2]}, "ascending shares"),
        ({"scale": [0, 0.5]}, "ascending shares"),
        ({"ratio": [2.0, 0.5]}, "ascending numbers"),
    ],
)
def test_settings_are_checked(changes, words):
    with pytest.raises(ArgumentError, match=f"small.yaml: .*{words}"):
        build(RecipeAugment, changes, "small.yaml")
