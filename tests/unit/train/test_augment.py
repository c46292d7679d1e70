"""Batched augmentation and mixing."""

from dataclasses import replace

import pytest
import torch

from mhex.errors import ArgumentError
from mhex.train.augment import Augment, augment, boxes, mix

CALM = Augment(
    canvas=16, scale=(1, 1), ratio=(1, 1), rotate=0, flip=0, light=0, colour=0, cast=0, grey=0, cutmix=0, mixup=0
)


@pytest.fixture
def photos():
    return torch.randint(0, 256, (6, 3, 16, 16), dtype=torch.uint8)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def test_no_change_at_zero_strength(photos):
    torch.testing.assert_close(augment(photos, CALM, seeded()), photos / 255, atol=1e-5, rtol=0)


def test_flip_mirrors(photos):
    flipped = augment(photos, replace(CALM, flip=1), seeded())
    torch.testing.assert_close(flipped, photos.flip(-1) / 255, atol=1e-5, rtol=0)


def test_shape_range_and_seed(photos):
    strong = Augment(canvas=24, erase=0.5)
    first, again, other = (augment(photos, strong, seeded(seed)) for seed in (3, 3, 4))
    assert first.shape == (6, 3, 24, 24)
    assert 0 <= first.min() < first.max() <= 1
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_crops_stay_inside_the_photo():
    # A bright frame around a dark photo: a crop of a quarter of the area may show it, reflection never adds to it.
    ramp = torch.arange(64, dtype=torch.uint8).expand(50, 3, 64, 64) * 4
    cropped = augment(ramp, replace(CALM, canvas=32, scale=(0.25, 0.25)), seeded())
    spread = cropped[:, 0, 0, -1] - cropped[:, 0, 0, 0]
    # Half of the width, less one output pixel, of a ramp that rises by 252 over 63 pixels.
    torch.testing.assert_close(spread, torch.full((50,), 31 * 4 / 255), atol=5e-3, rtol=0)
    assert cropped[:, 0, 0, 0].std() > 0.05


def test_grey_loses_all_colour(photos):
    grey = augment(photos, replace(CALM, grey=1), seeded())
    assert (grey.max(dim=1).values - grey.min(dim=1).values).max() < 1e-5


def test_erase_covers_each_chosen_photo(photos):
    erased = augment(photos, replace(CALM, erase=1), seeded())
    changed = (erased - photos / 255).abs().amax(dim=1) > 1e-4
    assert changed.flatten(1).any(dim=1).all()
    assert changed.float().mean() < 0.5


def test_boxes_cover_what_is_asked():
    inside = boxes(torch.full((2000,), 0.25), 32, seeded()).float().mean()
    assert boxes(torch.zeros(5), 32, seeded()).sum() == 0
    # A box of half the side, centred anywhere, keeps 7/8 of each side on average: (1/2 * 7/8)^2.
    assert abs(inside.item() - (0.5 * 0.875) ** 2) < 0.01


@pytest.mark.parametrize(("cutmix", "mixup"), [(1.0, 0.0), (0.0, 1.0), (0.5, 0.3)])
def test_mixed_targets_sum_to_one_and_follow_the_pixels(cutmix, mixup):
    # Photo k is plain with value k, so the mean of a mixed photo tells the shares that its target must tell.
    count = 8
    pixels = torch.arange(count).view(-1, 1, 1, 1).expand(-1, 3, 20, 20).float()
    mixed, targets = mix(pixels, torch.eye(count), replace(CALM, cutmix=cutmix, mixup=mixup), seeded(1))
    torch.testing.assert_close(targets.sum(dim=1), torch.ones(count))
    torch.testing.assert_close(mixed.mean(dim=(1, 2, 3)), targets @ torch.arange(count).float())
    assert (targets.max(dim=1).values < 1).any()


def test_cutmix_pastes_and_mixup_blends():
    pixels = torch.arange(8).view(-1, 1, 1, 1).expand(-1, 3, 20, 20).float()
    pasted, _ = mix(pixels, torch.eye(8), replace(CALM, cutmix=1), seeded(1))
    blended, _ = mix(pixels, torch.eye(8), replace(CALM, mixup=1), seeded(1))
    assert torch.equal(pasted, pasted.round())
    assert all(len(photo.unique()) == 1 for photo in blended)


def test_settings_are_checked():
    with pytest.raises(ArgumentError, match="sum to at most 1"):
        Augment(canvas=8, cutmix=0.7, mixup=0.7)
    with pytest.raises(ArgumentError, match="ascending shares"):
        Augment(canvas=8, scale=(0.9, 0.2))
