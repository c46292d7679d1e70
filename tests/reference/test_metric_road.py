"""ROAD: imputation, its closed forms and an outside package, and the score."""

import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.sparse import lil_matrix
from scipy.sparse.linalg import spsolve

from mhex.errors import ArgumentError
from mhex.metrics.aopc import AOPC
from mhex.metrics.case import Case
from mhex.metrics.road import ROAD, road
from mhex.perturb import PerturbationSweep, Subject, imputed
from mhex.perturb import references as imputation
from support.additive_models import Additive, fix10, sweep_of


def centre_kept(side, share):
    """A square in the middle is kept, and all around it is gone."""
    half = round(side * share**0.5 / 2)
    holes = torch.ones(side, side, dtype=torch.bool)
    holes[side // 2 - half : side // 2 + half, side // 2 - half : side // 2 + half] = False
    return holes


def random_holes(count, side, share, seed=0):
    return torch.rand(count, side, side, generator=torch.Generator().manual_seed(seed)) < share


def ramp(side):
    rows, columns = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    return (2.0 * rows - 3.0 * columns).double()[None, None]


def test_a_constant_image_is_reproduced():
    x = torch.tensor([0.7, -2.0, 0.1]).double().view(1, 3, 1, 1).expand(2, 3, 9, 9).contiguous()
    found = imputed(x, random_holes(2, 9, 0.9))
    assert torch.allclose(found, x, atol=1e-12)


def test_a_ramp_is_exact_inside():
    x = ramp(10)
    holes = torch.zeros(1, 10, 10, dtype=torch.bool)
    holes[:, 2:8, 3:7] = True
    assert torch.allclose(imputed(torch.where(holes[:, None], 99.0, x), holes), x, atol=1e-6)


def test_a_ramp_at_the_border_is_off_by_one():
    x = ramp(7)
    holes = torch.zeros(1, 7, 7, dtype=torch.bool)
    holes[:, 0, 3] = True
    assert float((imputed(x, holes) - x)[0, 0, 0, 3]) == pytest.approx(1.0, abs=1e-6)


def test_a_single_pixel_is_the_weighted_mean_of_its_neighbours():
    x = torch.tensor([[1.0, 2, 3], [4, 0, 6], [7, 8, 100]]).double()[None, None]
    holes = torch.zeros(1, 3, 3, dtype=torch.bool)
    holes[:, 1, 1] = True
    assert float(imputed(x, holes)[0, 0, 1, 1]) == pytest.approx(12.583333, abs=1e-6)


def test_kept_pixels_stay_and_an_image_without_any_becomes_its_mean():
    x = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0)).double()
    holes = random_holes(2, 8, 0.5)
    holes[1] = True
    found = imputed(x, holes)
    assert torch.equal(found[0][:, ~holes[0]], x[0][:, ~holes[0]])
    assert torch.allclose(found[1], x[1].mean((1, 2), keepdim=True).expand(3, 8, 8))


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_imputation_is_that_of_pytorch_grad_cam(share):
    package = pytest.importorskip("pytorch_grad_cam.metrics.road")
    x = torch.randn(2, 3, 20, 20, generator=torch.Generator().manual_seed(1))
    holes = random_holes(2, 20, share)
    holes[1] = False
    holes[1, 4:16, 0:14] = True  # one large hole at the border
    found = imputed(x.double(), holes)
    imputer = package.NoisyLinearImputer(noise=0)
    for n in range(2):
        wanted = imputer(x[n], (~holes[n]).float())
        assert torch.allclose(found[n], wanted.double(), atol=1e-5)
        assert torch.allclose(imputed(x[n : n + 1], holes[n : n + 1])[0], wanted, atol=1e-4)  # float32


def exact(image, hole):
    """By a sparse solver, one row for each removed pixel."""
    height, width = hole.shape
    number = {place: n for n, place in enumerate(map(tuple, hole.nonzero().tolist()))}
    matrix, right = lil_matrix((len(number), len(number))), np.zeros((len(number), len(image)))
    for (row, column), n in number.items():
        for down, across in itertools.product((-1, 0, 1), repeat=2):
            place = (row + down, column + across)
            if place == (row, column) or not (0 <= place[0] < height and 0 <= place[1] < width):
                continue
            weight = 1 / 6 if 0 in (down, across) else 1 / 12
            matrix[n, n] += weight
            if place in number:
                matrix[n, number[place]] -= weight
            else:
                right[n] += weight * image[:, place[0], place[1]].numpy()
    found = image.clone()
    found[:, hole] = torch.from_numpy(spsolve(matrix.tocsc(), right).reshape(len(number), len(image)).T)
    return found


def smooth_holes(height, width, share, seed):
    """As the maps of attention have them: few and large."""
    coarse = torch.rand(1, 1, 4, 5, generator=torch.Generator().manual_seed(seed)).double()
    fine = F.interpolate(coarse, size=(height, width), mode="bilinear")[0, 0]
    return (fine.flatten().argsort(stable=True).argsort() < int(share * fine.numel())).view_as(fine)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("size", [(48, 64), (45, 61), (7, 90)])
def test_large_holes_are_what_a_sparse_solver_gives_within_few_steps(size, share, monkeypatch):
    monkeypatch.setattr(imputation, "_MOST_STEPS", 40)
    x = torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(3)).double()
    holes = torch.stack([smooth_holes(*size, share, seed) for seed in (0, 1)])
    found, single = imputed(x, holes), imputed(x.float(), holes)
    for n in range(2):
        wanted = exact(x[n], holes[n])
        assert torch.allclose(found[n], wanted, atol=1e-7)
        # With a pixel or two kept, single precision itself knows no more.
        assert torch.allclose(single[n].double(), wanted, atol=1e-4 if share < 0.99 else 1e-3)


def test_half_precision_is_solved_in_single():
    x = torch.randn(1, 3, 24, 24, generator=torch.Generator().manual_seed(4)).bfloat16()
    holes = smooth_holes(24, 24, 0.7, 0)[None]
    found = imputed(x, holes)
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, imputed(x.float(), holes).bfloat16())


def test_narrow_images():
    x = torch.tensor([1.0, 0, 0, 0, 9]).double().view(1, 1, 1, 5)
    holes = torch.tensor([[[False, True, True, True, False]]])
    assert torch.allclose(imputed(x, holes), torch.tensor([1.0, 3, 5, 7, 9]).double(), atol=1e-9)
    assert torch.allclose(imputed(x.mT, holes.mT), torch.tensor([1.0, 3, 5, 7, 9]).double()[:, None], atol=1e-9)


def test_images_of_a_batch_do_not_touch_each_other():
    x = torch.randn(3, 2, 9, 9, generator=torch.Generator().manual_seed(2)).double()
    holes = random_holes(3, 9, 0.6)
    whole = imputed(x, holes)
    for n in range(3):
        assert torch.allclose(imputed(x[n : n + 1], holes[n : n + 1]), whole[n : n + 1], atol=1e-12)


def test_road_of_additive_units_is_half_the_gap_of_both_orders():
    """Ten additive units: what is left after each tenth is known."""
    left_mif = [sum(range(1, 11 - k)) for k in range(1, 10)]
    left_lif = [sum(range(k + 1, 11)) for k in range(1, 10)]
    p = [torch.tensor(left).double().sub(27.5).sigmoid() for left in (left_mif, left_lif)]
    wanted = float((p[1] - p[0]).mean() / 2)
    assert float(road(sweep_of(fix10(), 10))) == pytest.approx(wanted, abs=1e-6)
    assert float(road(sweep_of(fix10(), 20))) == pytest.approx(wanted, abs=1e-6)
    metric = ROAD(reference="zero", tie="stable")
    model, x, saliency = fix10()
    metric.update(*metric.of(Case(Subject(model, x), saliency, torch.tensor([0]))))
    found = metric.compute()["all"]
    assert found["value"]["value"] == pytest.approx(wanted, abs=1e-6)
    hits = [float(found[f"mif_{q}"]["value"]) for q in range(10, 100, 10)]
    assert hits == [float(left > 27.5) for left in left_mif]
    assert [float(found[f"lif_{q}"]["value"]) for q in range(10, 100, 10)] == [float(left > 27.5) for left in left_lif]


def test_the_score_of_a_flipped_map_is_its_negative_and_it_shares_the_sweep():
    model = Additive(torch.randn(2, 100, generator=torch.Generator().manual_seed(0)))
    x = torch.rand(2, 1, 10, 10, generator=torch.Generator().manual_seed(1)).double()
    maps = torch.rand(2, 10, 10, generator=torch.Generator().manual_seed(2)).double()
    case = Case(Subject(model, x), maps)
    metric, other = ROAD(), AOPC(reference="impute", steps=10)
    metric.update(*metric.of(case))
    assert case.subject.passes == 2 * 20
    other.update(*other.of(case))
    assert case.subject.passes == 2 * 20
    value = metric.rows()[1][:, 0]
    back = ROAD()
    back.update(*back.of(Case(Subject(model, x), -maps)))
    assert torch.allclose(back.rows()[1][:, 0], -value, atol=1e-9)
    assert bool((value.abs() <= 0.5).all())
    assert bool((value != 0).all())


def test_batches_and_chunks_do_not_matter():
    model = Additive(torch.randn(2, 100, generator=torch.Generator().manual_seed(0)))
    x = torch.rand(3, 1, 10, 10, generator=torch.Generator().manual_seed(1)).double()
    maps = torch.randint(5, (3, 10, 10), generator=torch.Generator().manual_seed(2)).double()
    sweep = PerturbationSweep("impute", steps=10)
    whole = road(sweep(Subject(model, x, ids=[3, 4, 5]), None, maps))
    small = road(sweep(Subject(model, x, ids=[3, 4, 5], batch_size=4), None, maps))
    singles = [road(sweep(Subject(model, x[n : n + 1], ids=[3 + n]), None, maps[n : n + 1])) for n in range(3)]
    assert torch.allclose(whole, small, atol=1e-6)
    assert torch.allclose(whole, torch.cat(singles), atol=1e-6)


def test_wrong_steps_and_missing_labels_are_told():
    with pytest.raises(ArgumentError, match="multiple of 10"):
        road(sweep_of(fix10(), 5))
    model, x, saliency = fix10()
    metric = ROAD("road", reference="zero")
    with pytest.raises(ArgumentError, match="label="):
        metric.update(*metric.of(Case(Subject(model, x), saliency)))


def test_an_offset_costs_no_accuracy():
    """Float32, a bright image of little contrast, of which the centre alone is kept: what is known lies far away."""
    x = 2 + 0.05 * torch.randn(1, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    holes = centre_kept(224, 0.1)[None]
    wanted = imputed(x.double(), holes)
    assert float((imputed(x, holes) - wanted).abs().max()) < 2e-5
    assert float((imputed(x + 100, holes) - 100 - wanted).abs().max()) < 1e-4  # numbers there are 8e-6 apart


def test_a_batch_in_single_precision_is_its_images():
    x = 2 + 0.05 * torch.randn(3, 3, 32, 40, generator=torch.Generator().manual_seed(1))
    holes = torch.stack([smooth_holes(32, 40, share, seed) for seed, share in enumerate((0.3, 0.9, 1.0))])
    whole = imputed(x, holes)
    for n in range(3):
        assert torch.allclose(imputed(x[n : n + 1], holes[n : n + 1]), whole[n : n + 1], atol=1e-6, rtol=0)
