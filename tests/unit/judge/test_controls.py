"""Control maps: from the seed and the image alone, and with the values that theory asks for."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import ndimage

from mhex.errors import ArgumentError
from mhex.judge import control
from mhex.judge.controls import controls_of
from mhex.metrics.fidelity import Fidelity, fidelity
from mhex.perturb import PerturbationSweep, Subject
from support.models import FAMILIES
from support.tiny_models import pictures, tiny


def images(count=3, height=6, width=9, channels=3, ids=None, **options):
    x = torch.randn(count, channels, height, width, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.LazyLinear(4)).double()
    model(x)
    return Subject(model, x, ids=ids, **options)


@pytest.mark.parametrize("name", controls_of("image"))
def test_maps_of_images(name):
    subject = images()
    found = control(name, subject)
    assert found.shape == (3, 6, 9)
    assert bool(found.isfinite().all())
    result = PerturbationSweep("mean", steps=4)(subject, None, found)
    assert fidelity(result).shape == (3, 3)


def test_random_maps_come_from_seed_and_id():
    whole = control("random", images(ids=[5, 6, 7]))
    assert not torch.equal(whole[0], whole[1])
    other = images(ids=[9, 7, 1])  # another batch, another place in it
    assert torch.equal(control("random", other)[1], whole[2])
    assert not torch.equal(control("random", images(ids=[5, 6, 7]), seed=1), whole)
    assert float(whole.min()) >= 0
    assert float(whole.max()) < 1


def test_random_maps_are_uniform():
    found = control("random", images(count=40, height=32, width=32)).flatten()
    assert float(found.mean()) == pytest.approx(0.5, abs=0.01)
    assert float(found.var()) == pytest.approx(1 / 12, abs=0.002)


def test_random_maps_do_not_decide():
    """As many orders are one way as the other: `A_LIF - A_MIF` is zero on average, for any model."""
    model, x = tiny("cnn"), pictures(4)
    repeats = 250
    subject = Subject(model, x.repeat_interleave(repeats, 0))
    sweep = PerturbationSweep("zero", steps=4)
    result = sweep(subject, None, control("random", subject, seed=3))
    difference = fidelity(result)[:, 0].view(4, repeats)
    error = difference.std(1) / math.sqrt(repeats)
    assert bool((error > 0).all())
    assert bool((difference.mean(1).abs() < 3 * error).all())
    # The test can tell: an informed map, each pixel's own effect, is far away.
    single = Subject(model, x)
    own = torch.zeros(4, 16, dtype=torch.float64)
    for pixel in range(16):
        without = x.flatten(1).clone()
        without[:, pixel] = 0
        logits = model(without.view_as(x))
        own[:, pixel] = (single.logits - logits).gather(1, single.predicted[:, None])[:, 0]
    informed = fidelity(sweep(single, None, own.view(4, 4, 4)))[:, 0]
    assert bool((informed > 20 * error).all())


def test_interval_of_random_maps_holds_zero():
    subject = Subject(tiny("cnn"), pictures(200))
    metric = Fidelity(reference="zero", steps=4)
    metric.update(PerturbationSweep("zero", steps=4)(subject, None, control("random", subject, seed=1)))
    found = metric.compute()
    assert found["ci_low"] < 0 < found["ci_high"]


@pytest.mark.parametrize(("height", "width"), [(6, 9), (8, 8), (1, 5)])
def test_gaussian_by_its_formula(height, width):
    found = control("gaussian", images(height=height, width=width))
    y, x = np.mgrid[:height, :width]
    wanted = np.exp(
        -((y - (height - 1) / 2) ** 2) / (2 * (height / 4) ** 2) - (x - (width - 1) / 2) ** 2 / (2 * (width / 4) ** 2)
    )
    assert np.allclose(found.numpy(), wanted, atol=1e-6)
    assert torch.equal(found[0], found[2])


def test_sobel_beside_scipy():
    subject = images()
    grey = subject.batch.pixels.mean(1).numpy()
    wanted = [np.hypot(ndimage.sobel(one, 0), ndimage.sobel(one, 1)) for one in grey]
    assert np.allclose(control("sobel", subject).numpy(), wanted, atol=1e-10)


def test_sobel_sees_colours_before_normalisation():
    std = torch.tensor([0.1, 0.2, 0.4], dtype=torch.float64)
    subject = images(preprocess=SimpleNamespace(mean=[0.5, 0.4, 0.3], std=std.tolist()))
    grey = (subject.batch.pixels * std.view(3, 1, 1)).mean(1).numpy()
    wanted = [np.hypot(ndimage.sobel(one, 0), ndimage.sobel(one, 1)) for one in grey]
    assert np.allclose(control("sobel", subject).numpy(), wanted, atol=1e-10)


def test_random_maps_of_texts():
    family = FAMILIES["hf_bert"]
    inputs = family.inputs(3)
    subject = Subject(family.model(), inputs, ids=[4, 5, 6])
    found = control("random", subject)
    real = inputs["attention_mask"].bool()
    assert found.shape == real.shape
    assert bool((found[~real] == 0).all())
    short = {name: value[1:2, : int(real[1].sum())] for name, value in inputs.items()}  # without its padding
    alone = control("random", Subject(family.model(), short, ids=[5]))
    assert torch.equal(alone[0], found[1, real[1]])
    assert PerturbationSweep("pad", "token", 3)(subject, None, found).units.tolist()
    for name in ("gaussian", "sobel"):
        with pytest.raises(ArgumentError, match=f"'{name}' needs images, but got texts; choose random, first, last"):
            control(name, subject)


@pytest.mark.parametrize("side", ["right", "left"])
def test_maps_of_position(side):
    """Scores fall or rise from token to token, whatever padding the batch has, on whichever side."""
    family = FAMILIES["hf_bert"]
    inputs = family.inputs(3)
    if side == "left":
        inputs = {name: value.flip(1) for name, value in inputs.items()}
    real = inputs["attention_mask"].bool()
    assert not bool(real.all()), "the batch should have padding"
    subject = Subject(family.model(), inputs)
    for name in ("first", "last"):
        found = control(name, subject)
        assert torch.equal(found, control(name, subject, seed=1))
        assert bool((found[~real] == 0).all())
        for row, tokens in zip(found, real, strict=True):
            count = int(tokens.sum())
            rising = torch.arange(1, count + 1) / count
            assert torch.allclose(row[tokens], rising.flip(0) if name == "first" else rising)


def test_maps_of_position_are_for_texts_alone():
    for name in ("first", "last"):
        with pytest.raises(
            ArgumentError, match=f"'{name}' needs texts, but got images; choose random, gaussian, sobel"
        ):
            control(name, images())


def test_unknown_control():
    with pytest.raises(ArgumentError, match="'sobel'"):
        control("sobell", images())


def test_the_callers_autocast_changes_no_control():
    subject = Subject(tiny("cnn").float(), pictures(2).float())
    for name in controls_of("image"):
        wanted = control(name, subject)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert torch.equal(control(name, subject), wanted), name
