"""Class weights of the channels: non-negativity, sharpness, and the memory of what was computed."""

from __future__ import annotations

import copy
import gc
import itertools
import math
import weakref
from collections.abc import Callable

import pytest
import timm
import torch
from torch import Tensor, nn

import mhex
from mhex.heads.call_record import HeadReading
from mhex.heads.explainer_block import ExplainerBlock
from mhex.heads.predictors import watched
from mhex.heads.saliency import (
    _CACHES,
    MapSettings,
    adjusted_weights,
    block_maps,
    class_weights,
    forget_weights,
    shares,
)


def gaussian(classes: int = 9, channels: int = 64, draws: int = 1) -> Tensor:
    return torch.randn(draws, classes, channels, dtype=torch.float64).squeeze(0)


def test_no_sharpness_gives_the_matrix() -> None:
    matrix = gaussian()
    assert adjusted_weights(matrix, 1.0, 0.0, 0.0).equal(matrix)
    assert adjusted_weights(matrix, 0.0, 0.0, 0.0).equal(matrix.clamp_min(0))


@pytest.mark.parametrize("sharpness", [1.0, 1.5])
def test_full_sharpness_gives_nothing(sharpness: float) -> None:
    one_sided = torch.zeros(3, 4, dtype=torch.float64)
    one_sided[1, 2], one_sided[2, 3] = 5.0, -7.0  # a share of 1, up to the epsilon
    for matrix in (gaussian(), one_sided):
        assert adjusted_weights(matrix, 1.0, sharpness, sharpness).eq(0).all()


def test_affine_in_alpha() -> None:
    matrix = gaussian()
    none, some, all_ = (adjusted_weights(matrix, alpha, 0.15, 0.12) for alpha in (0.0, 0.3, 1.0))
    torch.testing.assert_close(some, 0.7 * none + 0.3 * all_, rtol=1e-12, atol=0)
    assert not none.equal(all_)


def test_shares_are_bounded_and_the_kept_set_shrinks() -> None:
    positive = gaussian().clamp_min(0)
    positive[:, 5] = 0  # nobody's channel
    part = shares(positive)
    assert float(part.min()) >= 0
    assert float(part.sum(0).max()) <= 1
    assert part[:, 5].eq(0).all()
    kept = [adjusted_weights(positive, 1.0, ss, ss) != 0 for ss in (0.0, 0.1, 0.25, 0.4, 0.6)]
    for before, after in itertools.pairwise(kept):
        assert bool((before | ~after).all()), "what is kept at a higher threshold is kept at a lower one"
        assert int(after.sum()) < int(before.sum())
    for ss, mask in zip((0.1, 0.25, 0.4, 0.6), kept[1:], strict=True):
        assert int(mask.sum(0).max()) <= math.ceil(1 / ss) - 1


def test_a_share_at_the_threshold_is_not_kept() -> None:
    positive = gaussian().clamp_min(0)
    column = int(positive[2].argmax())
    threshold = float(shares(positive)[2, column])
    assert adjusted_weights(positive, 1.0, threshold, 0.0)[2, column] == 0
    assert adjusted_weights(positive, 1.0, threshold * (1 - 1e-12), 0.0)[2, column] > 0


def test_thresholds_of_both_sides_are_their_own() -> None:
    matrix = torch.tensor([[6.0, -6.0], [4.0, -4.0]])
    torch.testing.assert_close(adjusted_weights(matrix, 1.0, 0.5, 0.0), torch.tensor([[6.0, -6.0], [0.0, -4.0]]))
    torch.testing.assert_close(adjusted_weights(matrix, 0.5, 0.0, 0.5), torch.tensor([[6.0, -3.0], [4.0, 0.0]]))


@pytest.mark.parametrize(("sharpness", "percent"), [(0.0, 50), (0.211, 22), (0.311, 12), (0.411, 6)])
def test_how_much_is_kept_of_gaussian_weights(sharpness: float, percent: int) -> None:
    draws = [adjusted_weights(gaussian(), 0.0, sharpness, 0.0) for _ in range(60)]
    assert 100 * float((torch.stack(draws) != 0).double().mean()) == pytest.approx(percent, abs=1)


def test_scaling_a_column_changes_no_share() -> None:
    positive = gaussian().clamp_min(0)
    scale = torch.linspace(0.5, 20, positive.shape[1], dtype=torch.float64)
    torch.testing.assert_close(shares(positive * scale), shares(positive), rtol=1e-6, atol=1e-9)
    matrix = gaussian()
    kept = adjusted_weights(matrix, 0.5, 0.2, 0.2)
    torch.testing.assert_close(adjusted_weights(matrix * scale, 0.5, 0.2, 0.2), kept * scale)


def test_one_class_is_two_opposite_ones() -> None:
    row = gaussian(1)
    weights = adjusted_weights(row, 0.5, 0.0, 0.0)
    assert weights.shape == (2, 64)
    assert weights[1].equal(row[0].clamp_min(0) - 0.5 * (-row[0]).clamp_min(0))
    assert weights[0].equal((-row[0]).clamp_min(0) - 0.5 * row[0].clamp_min(0))


# --- what was computed is kept, and no longer than it holds -----------------------------------------------------------

SETTINGS = (0.5, 0.2, 0.2)


def fresh(block: ExplainerBlock) -> Tensor:
    return adjusted_weights(copy.deepcopy(block).equivalent_matrix().detach(), *SETTINGS)


def step(block: ExplainerBlock, optimizer: type[torch.optim.Optimizer], **options: bool) -> None:
    for parameter in block.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer(block.parameters(), lr=0.1, **options).step()


def other_state(block: ExplainerBlock) -> dict[str, Tensor]:
    return {name: value + 0.5 for name, value in block.state_dict().items()}


def through_data(block: ExplainerBlock) -> None:
    block.w2.weight.data[1, 3] += 0.25


def swapped_rows(block: ExplainerBlock) -> None:
    block.w2.weight.data.copy_(block.w2.weight.data.flip(0))


def another_parameter(block: ExplainerBlock) -> None:
    block.w1.weight = nn.Parameter(torch.randn_like(block.w1.weight))


CHANGES: dict[str, Callable[[ExplainerBlock], object]] = {
    "sgd": lambda block: step(block, torch.optim.SGD),
    "adamw_foreach": lambda block: step(block, torch.optim.AdamW, foreach=True),
    "adamw_fused": lambda block: step(block, torch.optim.AdamW, fused=True),
    "load_state_dict": lambda block: block.load_state_dict(other_state(block)),
    "load_state_dict_assign": lambda block: block.load_state_dict(other_state(block), assign=True),
    "half": lambda block: block.half(),
    "double": lambda block: block.double(),
    "data": through_data,
    "swapped_rows": swapped_rows,
    "another_parameter": another_parameter,
}


@pytest.mark.parametrize("coupling", ["shared", "separate"])
@pytest.mark.parametrize("change", CHANGES)
def test_every_change_of_the_weights_is_noticed(change: str, coupling: str) -> None:
    block = ExplainerBlock(16, 5, preset="paper", coupling=coupling)
    before = class_weights(block, *SETTINGS)
    assert class_weights(block, *SETTINGS) is before, "kept"
    CHANGES[change](block)
    after = class_weights(block, *SETTINGS)
    assert after is not before
    assert after.dtype == torch.promote_types(block.w2.weight.dtype, torch.float32)
    assert after.equal(fresh(block))


@pytest.mark.parametrize("change", ["sgd", "data", "swapped_rows"])
def test_a_prepared_explainer_sees_changed_heads(change: str) -> None:
    """Also a change that leaves no mark, which is found out after the map was made, and the map is made again."""
    model = timm.create_model("resnet10t", num_classes=5).eval()
    blocks = [block for _, block in mhex.attach(model, 5).heads.named_modules() if isinstance(block, ExplainerBlock)]
    for block in blocks:
        nn.init.normal_(block.w1.weight)  # 0 before training
    explainer, x = mhex.Explainer(model, "mhex"), torch.randn(2, 3, 32, 32)
    before = explainer(x, 1).scores
    assert explainer(x, 1).scores.equal(before)
    for block in blocks:
        CHANGES[change](block)
    after = explainer(x, 1).scores
    assert (after - before).abs().max() > 1e-3 * before.abs().max() > 0
    forget_weights(blocks)
    assert after.equal(explainer(x, 1).scores)


def test_a_check_holds_all_that_it_reads() -> None:
    """A recorded pass reads the memory of weights and of prints again: nothing else may be put there meanwhile."""
    model = timm.create_model("resnet10t", num_classes=5).eval()
    heads = mhex.attach(model, 5).heads
    names, x = list(heads.named_blocks()), torch.randn(1, 3, 32, 32)
    for block in heads.named_blocks().values():
        nn.init.normal_(block.w1.weight)  # 0 before training
    settings = MapSettings(alpha=1.0, sharpness=0.0, negative_sharpness=0.0, layer_factor=1.0, activation="sum")
    checks: list[tuple[Tensor, Callable[[], None]]] = []
    with watched(model) as run:
        for _ in range(2):
            reading = HeadReading(run(x), heads)
            block_maps(
                reading, names, torch.zeros(1, 1).long(), settings, lambda flag, react: checks.append((flag, react))
            )
    assert len(checks) == 1, "the first call has no earlier weights to check"
    assert not bool(checks[0][0])
    caches = [_CACHES[heads[name]] for name in names]
    memory = [weakref.ref(tensor) for cache in caches for tensor in (cache.prints, *cache.weights.values())]
    del caches
    forget_weights(heads.named_blocks().values())
    gc.collect()
    assert all(tensor() is not None for tensor in memory)
    checks.clear()
    gc.collect()
    assert all(tensor() is None for tensor in memory)


def test_settings_have_weights_of_their_own_and_few_are_kept() -> None:
    block = ExplainerBlock(16, 5, preset="paper")
    for alpha in (0.0, 0.25, 0.5, 0.75, 1.0, 0.0):
        wanted = adjusted_weights(block.equivalent_matrix().detach(), alpha, 0.2, 0.1)
        assert class_weights(block, alpha, 0.2, 0.1).equal(wanted)
    assert not class_weights(block, 1.0, 0.2, 0.1).requires_grad


def test_nothing_is_kept_in_the_block_or_after_it() -> None:
    block = ExplainerBlock(16, 5)
    names = set(block.__dict__)
    kept = weakref.ref(class_weights(block, *SETTINGS))
    assert set(block.__dict__) == names
    assert kept() is not None
    del block
    gc.collect()
    assert kept() is None
