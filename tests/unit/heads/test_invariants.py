"""The invariants of the method on stock hosts, from one recorded forward pass of each.

What is checked where (numbers as in the specification of the method; hosts are `MAIN`: ResNets of torchvision and
timm with both kinds of units, a small BERT, a timm ViT):

| invariant | where |
|---|---|
| 1 head identity, 18 padding (scores), 19 batch and classes (scores) | test_block.py; other masks in test_masks.py |
| 3 identity start, 4 probe, 5 attach and detach, 20 layer-norm scale | test_attach.py |
| 2, 6 to 15, 17, 18 and 19 (maps, cosines), 21, 22, 28 | here; 6 of full-sized hosts in test_summary.py |
| 16 strip and fold | test_strip.py, test_fold.py |
| 27 Pearson, 31 entropy values (no host) | test_correlation.py, tests/reference/test_entropy_values.py |

14 needs units that end in a ReLU, which BERT and ViT have not; 18 and 20 are about text alone, 28 about images alone.
"""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import mhex
from mhex.heads import Scaffold
from mhex.heads.call_record import HeadReading
from mhex.heads.predictors import watched
from mhex.heads.saliency import adjusted_weights, block_maps, combined, settle, shares
from support.hosts import CLASSES, MAIN, attached, inputs, stir

pytestmark = pytest.mark.filterwarnings("ignore:The heads have:mhex.errors.MhexWarning")
LABELS = torch.tensor([0, 3, 1])


on_hosts = pytest.mark.parametrize("name", MAIN)
on_resnets = pytest.mark.parametrize("name", [name for name in MAIN if "resnet" in name or "bottlenecks" in name])
on_images = pytest.mark.parametrize("name", [name for name in MAIN if name != "hf_bert"])


@dataclass(frozen=True)
class Case:
    """A host with heads, and what one forward pass of three samples showed; for tests that change nothing."""

    scaffold: Scaffold
    batch: Any
    reading: HeadReading

    @property
    def index(self) -> Tensor:
        return torch.arange(CLASSES).expand(3, -1)

    def maps(self, **options: Any) -> dict[str, Tensor]:
        """Maps (3, n, positions) of all blocks; raw weights unless told otherwise."""
        made = block_maps(self.reading, self.reading.names, self.index, settle("text", **options))
        return {name: one.flatten(2) for name, one in made.items()}

    def mean(self, one: Tensor, name: str) -> Tensor:
        """Mean over the positions that are pooled."""
        keep = self.reading.call.blocks[name].keep
        if keep is None:
            return one.mean(-1)
        return (one * keep[:, None]).sum(-1) / keep.sum(1)[:, None]

    def shortcut_mean(self, name: str, both: bool) -> Tensor:
        """Mean (3, C) of the shortcut, or of the sum."""
        seen = self.reading.call.blocks[name]
        z = seen.shortcut + seen.branch if both else seen.shortcut
        return self.mean(z.flatten(2) if z.dim() == 4 else z.mT, name)


def made(name: str, **options: Any) -> Case:
    scaffold = stir(attached(name, dtype=torch.float64, **{"preset": "paper", **options}))
    batch = inputs(name, dtype=torch.float64)
    with watched(scaffold.model) as run:
        return Case(scaffold, batch, HeadReading(run(batch), scaffold.heads))


@functools.cache
def case(name: str) -> Case:
    return made(name)


def sample(batch: Any, row: int) -> Any:
    return batch[row : row + 1] if isinstance(batch, Tensor) else {k: v[row : row + 1] for k, v in batch.items()}


def close(got: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-10)


@on_hosts
def test_02_gates_lie_between_0_and_1_and_rest_without_input(name: str) -> None:
    seen = case(name)
    for block, output in seen.reading.call.blocks.items():
        u = output.features @ seen.scaffold.heads[block].w1.weight.T
        inside = output.gate[u.abs() < 30]  # beyond, 1 is the nearest number that there is
        assert 0 < float(inside.min()) < float(inside.max()) < 1
        assert 0 <= float(output.gate.min()) <= float(output.gate.max()) <= 1
        x, r = -output.shortcut.abs(), -output.branch.abs()
        still = seen.scaffold.heads[block](x, r, output.keep)[1]
        assert not bool(still.logits.any())
        assert bool((still.gate == 0.5).all())


@on_hosts
def test_06_heads_have_two_matrices_for_each_block(name: str) -> None:
    scaffold = case(name).scaffold
    widths = [seen.pooled.shape[1] for seen in case(name).reading.call.blocks.values()]
    assert sum(p.numel() for p in scaffold.head_parameters()) == CLASSES * sum(widths) + sum(c * c for c in widths)


@on_hosts
def test_07_the_mean_of_a_map_of_active_channels_is_the_logit(name: str) -> None:
    seen = case(name)
    for block, one in seen.maps(active_only=True).items():
        close(seen.mean(one, block), seen.reading.call.logits[block])


@on_hosts
def test_08_what_the_relu_and_the_gate_take_away(name: str) -> None:
    seen = case(name)
    plain, gated = seen.maps(), seen.maps(activation="gated_sum")
    clipped = 0
    for block, output in seen.reading.call.blocks.items():
        matrix = seen.scaffold.equivalent_matrix(block)
        mean = seen.mean(plain[block], block)
        close(mean - seen.reading.call.logits[block], output.pooled.clamp_max(0) @ matrix.T)
        lost = seen.shortcut_mean(block, both=seen.scaffold.settings.gate_target == "sum")
        close(seen.mean(gated[block], block), mean - ((1 - output.gate) * lost) @ matrix.T)
        clipped += int((output.pooled < 0).sum())
    assert clipped


@on_hosts
def test_09_separate_heads_average_the_gated_map(name: str) -> None:
    seen = made(name, coupling="separate")
    for block, one in seen.maps(activation="gated").items():
        close(seen.mean(one, block), seen.reading.call.logits[block])
        assert torch.equal(seen.scaffold.equivalent_matrix(block), seen.scaffold.heads[block].w2.weight)


@on_hosts
def test_10_maps_are_affine_in_alpha(name: str) -> None:
    none, some, full = (case(name).maps(alpha=alpha, sharpness=0.3) for alpha in (0.0, 0.3, 1.0))
    for block in some:
        close(some[block], 0.7 * none[block] + 0.3 * full[block])
        assert not torch.equal(none[block], full[block])


@on_hosts
def test_11_to_13_weights_of_channels(name: str) -> None:
    for block in case(name).reading.names:
        matrix = case(name).scaffold.equivalent_matrix(block)
        assert torch.equal(adjusted_weights(matrix, 1, 0, 0), matrix)
        assert not bool(adjusted_weights(matrix, 1, 1, 1).any())
        share, kept = shares(matrix.clamp_min(0)), []
        assert 0 <= float(share.min()) <= float(share.max()) <= 1
        assert float(share.sum(0).max()) <= 1
        for sharpness in (0.0, 0.2, 0.3, 0.6):
            kept.append(adjusted_weights(matrix, 0, sharpness, sharpness) > 0)
            assert sharpness == 0 or int(kept[-1].sum(0).max()) <= math.ceil(1 / sharpness) - 1
        assert all(
            bool((less <= more).all()) and int(less.sum()) < int(more.sum()) for more, less in itertools.pairwise(kept)
        )
        large = matrix.clamp_min(0).sum(0) > 1e-3  # beside which the small number in the denominator is nothing
        scaled = shares(1e3 * matrix.clamp_min(0))
        torch.testing.assert_close(scaled[:, large], share[:, large], rtol=2e-5, atol=0)
    for one in case(name).maps(sharpness=1.0).values():
        assert not bool(one.any())


@on_resnets
def test_14_positive_weights_on_what_units_return_give_no_negative_maps(name: str) -> None:
    seen = case(name)
    for block, one in seen.maps(alpha=0, activation="output").items():
        assert float(one.min()) >= 0
        assert float(one.max()) > 0
        output = seen.reading.call.blocks[block]
        wanted = F.relu(output.gate[:, :, None, None] * output.shortcut + output.branch)
        close(seen.reading.call.outputs[block], wanted)


@on_hosts
def test_15_running_sum(name: str) -> None:
    seen = case(name)
    model, scaffold = seen.scaffold.model, seen.scaffold
    with torch.no_grad():
        model(seen.batch) if isinstance(seen.batch, Tensor) else model(**seen.batch)
    said = scaffold.reading.heads_only
    total = sum(0.5 ** (len(said) - 1 - place) * one for place, one in enumerate(said))
    close(scaffold.loss(LABELS, "pretrain", decay=0.5, classifier=False), F.cross_entropy(total, LABELS))
    close(scaffold.loss(LABELS, "pretrain", decay=0.0, classifier=False), F.cross_entropy(said[-1], LABELS))
    every = sum(F.cross_entropy(one, LABELS) for one in said)
    close(scaffold.loss(LABELS, "finetune", classifier=False), every)


@on_hosts
def test_15_one_head_makes_both_modes_equal(name: str) -> None:
    scaffold = stir(attached(name, preset="paper", where=[case(name).reading.names[1]]))
    batch = inputs(name)
    scaffold.model(batch) if isinstance(batch, Tensor) else scaffold.model(**batch)
    one, other = (scaffold.loss(LABELS, mode, classifier=False) for mode in ("pretrain", "finetune"))
    assert torch.equal(one, other)


@on_hosts
def test_17_layer_weights(name: str) -> None:
    seen = case(name)
    settings = settle("text", layer_factor=0.7)
    layers = block_maps(seen.reading, seen.reading.names, seen.index, settings)
    total = combined(layers, settings, (32, 32))
    wanted = torch.zeros(())
    for one in layers.values():  # first to last
        grown = one if one.dim() == 3 else F.interpolate(one, size=(32, 32), mode="bilinear", align_corners=False)
        wanted = 0.7 * wanted + grown
    close(total, wanted)
    options = {"alpha": 1, "sharpness": 0, "activation": "sum", "blocks": "all", "layer_factor": 0.7}
    e = mhex.explain(seen.scaffold.model, seen.batch, "mhex", target=2, per_layer=True, **options)
    assert tuple(e.layers) == seen.reading.names


def test_18_padding_changes_no_map() -> None:
    seen = case("hf_bert")
    longer = {key: F.pad(value, (0, 4)) for key, value in seen.batch.items()}
    with watched(seen.scaffold.model) as run:
        one = HeadReading(run(longer), seen.scaffold.heads)
    real = seen.batch["attention_mask"].bool()[:, None].expand(-1, CLASSES, -1)
    padded = block_maps(one, one.names, seen.index, settle("text"))
    for block, found in seen.maps().items():
        close(padded[block][..., : found.shape[-1]][real], found[real])


@on_hosts
def test_19_maps_of_a_batch_are_those_of_its_samples_and_classes_permute(name: str) -> None:
    seen = case(name)
    whole = seen.maps(sharpness=0.3)
    for row in range(2):
        with watched(seen.scaffold.model) as run:
            one = HeadReading(run(sample(seen.batch, row)), seen.scaffold.heads)
        alone = block_maps(one, one.names, seen.index[:1], settle("text", sharpness=0.3))
        for block, found in alone.items():
            close(found.flatten(2)[0], whole[block][row])
    order = torch.tensor([2, 0, 3, 1])
    for block in seen.reading.names:
        matrix = seen.scaffold.equivalent_matrix(block)
        close(adjusted_weights(matrix[order], 0.5, 0.3, 0.2), adjusted_weights(matrix, 0.5, 0.3, 0.2)[order])


@on_hosts
def test_19_cosines_of_a_batch_are_those_of_its_samples(name: str) -> None:
    seen = case(name)
    whole = seen.scaffold.collaboration(seen.batch, LABELS)
    assert whole.blocks == seen.reading.names[:-1]
    assert bool(whole.cosine.any(0).all())
    for row in range(2):
        alone = seen.scaffold.collaboration(sample(seen.batch, row), LABELS[row : row + 1])
        torch.testing.assert_close(alone.cosine[0], whole.cosine[row], rtol=1e-6, atol=1e-9)


@on_hosts
def test_21_and_22_gradients_have_rank_one_and_reach_no_later_gate(name: str) -> None:
    """Of one sample: the gradient of a head's own loss is written out, and the cosine is that of two vectors."""
    seen = case(name)
    scaffold, one, label = seen.scaffold, sample(seen.batch, 1), LABELS[1:2]
    model, names = scaffold.model, seen.reading.names
    model(one) if isinstance(one, Tensor) else model(**one)
    losses = [F.cross_entropy(y, label) for y in scaffold.head_logits.values()]
    weights = [scaffold.heads[block].w1.weight for block in names]
    cosine = scaffold.collaboration(one, label).cosine[0]
    for place, block in enumerate(names[:2] + names[-1:]):
        place = place if place < 2 else len(names) - 1
        by = torch.autograd.grad(losses[place], weights, retain_graph=True, allow_unused=True)
        assert all(gradient is None for gradient in by[place + 1 :])  # causality
        features = seen.reading.call.blocks[block].features[1]
        error = seen.reading.call.logits[block][1].softmax(0) - F.one_hot(label[0], CLASSES)
        close(by[place], torch.outer(scaffold.heads[block].w2.weight.T @ error, features).detach())
        if place + 1 < len(names):
            (gate,) = torch.autograd.grad(losses[place + 1], [weights[place]], retain_graph=True)
            assert int(torch.linalg.matrix_rank(gate, rtol=1e-9)) == 1
            close(F.cosine_similarity(gate.flatten(), by[place].flatten(), 0, 1e-300), cosine[place])


@on_hosts
def test_22_the_last_gate_is_read_by_no_head(name: str) -> None:
    seen = case(name)
    with watched(seen.scaffold.model, nudge=True, graph=True) as run:
        call = run(sample(seen.batch, 0))
        first, last = seen.reading.names[0], seen.reading.names[-1]
        gates = [call.blocks[first].gate, call.blocks[last].gate]
        by = torch.autograd.grad(call.logits[last].square().sum(), gates, allow_unused=True)
    assert bool(by[0].any())
    assert by[1] is None


@on_images
def test_28_grid_of_parts(name: str) -> None:
    names = case(name).reading.names
    scaffold = stir(attached(name, preset="paper", where=[names[-2], names[-1]]))
    found = scaffold.confidence_map(inputs(name, 1), LABELS[:1])
    assert found.map.shape == (1, 7, 7)
    assert float(found.map.min()) == 0
    assert float(found.map.max()) == 1
