"""Patches that a Vision Transformer is not given: the same as a forward pass written out without them."""

from collections import Counter

import pytest
import torch

from mhex.capture import Batch, logits_of
from mhex.errors import ArgumentError, CaptureError
from mhex.metrics.case import Case
from mhex.metrics.deletion import Deletion
from mhex.metrics.saco import GroupProtocol
from mhex.perturb import PerturbationSweep, Subject, counts
from support.models import FAMILIES, call
from support.snapshot import Snapshot

COUNT, STEPS = 3, 5


def timm_by_hand(model, x, chosen):
    tokens = model.norm_pre(model._pos_embed(model.patch_embed(x)))[:, chosen]
    for block in model.blocks:
        tokens = block(tokens)
    return model.forward_head(model.norm(tokens))


def hf_by_hand(model, x, chosen):
    backbone = model.vit if hasattr(model, "vit") else model.deit
    tokens = backbone.embeddings(x)[:, chosen]
    for layer in backbone.layers:
        tokens = layer(tokens)
    tokens = backbone.layernorm(tokens)
    if hasattr(model, "distillation_classifier"):
        return (model.cls_classifier(tokens[:, 0]) + model.distillation_classifier(tokens[:, 1])) / 2
    return model.classifier(tokens[:, 0])


def torchvision_by_hand(model, x, chosen):
    tokens = torch.cat([model.class_token.expand(len(x), -1, -1), model._process_input(x)], 1)
    tokens = (tokens + model.encoder.pos_embedding)[:, chosen]
    for layer in model.encoder.layers:
        tokens = layer(tokens)
    return model.heads(model.encoder.ln(tokens)[:, 0])


BY_HAND = {
    "timm_vit": timm_by_hand,
    "timm_deit_distilled": timm_by_hand,
    "timm_registers": timm_by_hand,
    "hf_vit": hf_by_hand,
    "hf_deit": hf_by_hand,
    "hf_deit_teacher": hf_by_hand,
    "tv_vit": torchvision_by_hand,
    "timm_vit_heads": timm_by_hand,
}


def setting(name):
    """A model, images and maps on its grid, all scores different."""
    family = FAMILIES[name]
    patches = family.grid[0] * family.grid[1]
    order = [torch.randperm(patches, generator=torch.Generator().manual_seed(n)) for n in range(COUNT)]
    return family, family.model(), family.inputs(COUNT), torch.stack(order).double().view(COUNT, *family.grid)


@pytest.mark.parametrize("name", BY_HAND)
@torch.no_grad()
def test_dropping_is_a_forward_pass_without_these_tokens(name):
    family, model, x, maps = setting(name)
    before = Snapshot(model)
    subject = Subject(model, x)
    result = PerturbationSweep("drop", "patch", STEPS)(subject, None, maps)
    before.check()
    patches = maps[0].numel()
    assert subject.passes == COUNT * 2 * STEPS
    for row in range(COUNT):
        ranked = maps[row].flatten().argsort(descending=True)
        for k, n in enumerate(counts(torch.tensor(patches), STEPS).tolist()):
            for place, gone in enumerate((ranked[:n], ranked[patches - n :])):
                stay = sorted(set(range(patches)) - set(gone.tolist()))
                chosen = [*range(family.prefix), *(family.prefix + one for one in stay)]
                wanted = BY_HAND[name](model, x[row : row + 1], chosen)[0]
                assert torch.allclose(result.z[place, row, k, :2], wanted[result.classes[row, :2]], atol=1e-9)
                assert int(result.top[place, row, k]) == int(wanted.argmax())


@pytest.mark.parametrize("name", BY_HAND)
@torch.no_grad()
def test_nothing_dropped_is_the_clean_pass(name):
    _, model, x, maps = setting(name)
    batch = Subject(model, x).batch
    everything = torch.ones(COUNT, maps[0].numel(), dtype=torch.bool)
    found = logits_of(model, Batch("image", batch.args, batch.kwargs, COUNT, patches=everything))
    assert torch.equal(found, call(model, x))
    fewer = everything.clone()
    fewer[1, :2] = False  # other samples keep all
    found = logits_of(model, Batch("image", batch.args, batch.kwargs, COUNT, patches=fewer))
    assert torch.allclose(found[[0, 2]], call(model, x)[[0, 2]], atol=1e-9)
    assert not torch.allclose(found[1], call(model, x)[1], atol=1e-3)


def test_batches_and_chunks_do_not_matter():
    _, model, x, maps = setting("timm_vit")
    sweep, maps = PerturbationSweep("drop", "patch", STEPS), (maps // 4).double()  # ties
    whole = sweep(Subject(model, x, ids=[4, 5, 6]), None, maps)
    small = sweep(Subject(model, x, ids=[4, 5, 6], batch_size=4), None, maps)
    assert torch.allclose(whole.z, small.z, atol=1e-9)
    for n in range(COUNT):
        single = sweep(Subject(model, x[n : n + 1], ids=[4 + n]), None, maps[n : n + 1])
        assert torch.allclose(whole.z[:, n], single.z[:, 0], atol=1e-9)


def test_a_random_sweep_runs_the_patches_alone_that_stay():
    """Counts differ from image to image: each different one is one batch, the most patches first."""
    family, model, x, maps = setting("timm_vit")
    subject, patches = Subject(model, x), maps[0].numel()
    _ = subject.logits
    batches = []
    watch = model.blocks[-1].register_forward_pre_hook(lambda _, args: batches.append(tuple(args[0].shape[:2])))
    result = PerturbationSweep("drop", "patch", 8, grid="random")(subject, None, maps)
    watch.remove()
    stay = Counter()
    for row in result.removed.tolist():
        between = set(row) - {0, patches}
        stay.update([patches - n for n in between] + list(between) + [0])  # by both orders, and nothing once
    assert batches == [(stay[n], family.prefix + n) for n in sorted(stay, reverse=True)]
    assert sum(stay.elements()) < 0.6 * patches * stay.total()
    every = PerturbationSweep("drop", "patch", patches)(Subject(model, x), None, maps)
    for order, number in (("mif", result.removed), ("lif", (patches - result.removed).flip(1))):
        assert torch.allclose(result.curve(order), every.curve(order).gather(1, number), atol=1e-9)


def test_metrics_and_groups_can_drop():
    _, model, x, maps = setting("timm_vit")
    metric = Deletion(reference="drop", granularity="patch", steps=STEPS)
    metric.update(*metric.of(Case(Subject(model, x), maps)))
    sweep = PerturbationSweep("drop", "patch", STEPS)
    curve = sweep(Subject(model, x), None, maps).curve("mif")
    assert torch.allclose(metric.rows()[1][:, 0], torch.trapezoid(curve, dx=1 / STEPS, dim=1), atol=1e-9)
    groups = GroupProtocol("drop", 4, granularity="patch")(
        Subject(model, x), None, maps
    )  # of 6 patches each, the first at first
    four = PerturbationSweep("drop", "patch", 4)(Subject(model, x), None, maps).curve("mif")
    assert torch.allclose(groups.drop[:, 0, 0], four[:, 0] - four[:, 1], atol=1e-9)


def test_finer_maps_are_averaged_over_patches():
    _, model, x, maps = setting("timm_vit")
    noise = torch.rand(COUNT, 8, 12, generator=torch.Generator().manual_seed(3)).double()
    fine = maps.repeat_interleave(2, 1).repeat_interleave(2, 2) + noise - 0.5
    coarse = fine.unflatten(2, (6, 2)).unflatten(1, (4, 2)).mean((2, 4))
    sweep = PerturbationSweep("drop", "patch", STEPS)
    assert torch.equal(sweep(model, x, fine).z, sweep(model, x, coarse).z)
    found = sweep(model, x, 100 * noise)  # the highest of a patch says little of its mean
    cells = noise.unflatten(2, (6, 2)).unflatten(1, (4, 2))
    assert torch.equal(found.z, sweep(model, x, cells.mean((2, 4))).z)
    assert not torch.allclose(found.z, sweep(model, x, cells.amax((2, 4))).z)


@pytest.mark.parametrize("place", ["first", "last"])
def test_the_model_is_left_as_found_after_an_error(place):
    family, _, x, maps = setting("timm_vit")
    model = family.fresh()
    norm = model.blocks[0 if place == "first" else -1].norm1

    def fail(module, args):
        if args[0].shape[1] < family.prefix + maps[0].numel():  # not in the clean pass
            raise RuntimeError("broken")

    norm.register_forward_pre_hook(fail)
    before = Snapshot(model)
    with pytest.raises(RuntimeError, match="broken"):
        PerturbationSweep("drop", "patch", STEPS)(model, x, maps)
    before.check()


def test_another_number_of_tokens_is_told():
    family, _, x, maps = setting("timm_vit")
    model = family.fresh()
    model.blocks.insert(0, model.blocks[0])  # runs twice, and the second time some are gone
    before = Snapshot(model)
    with pytest.raises(CaptureError, match="of 25 tokens before the first block"):
        PerturbationSweep("drop", "patch", STEPS)(model, x, maps)
    before.check()


@pytest.mark.parametrize("name", ["timm_resnet", "timm_swin", "timm_avg", "timm_avg_class_token", "hf_dinov2"])
def test_other_models_are_refused(name):
    family = FAMILIES[name]
    subject = Subject(family.model(), family.inputs(1))
    with pytest.raises(ArgumentError, match=r"Transformer that reads its class token.*hide pixels") as said:
        PerturbationSweep("drop", "patch", STEPS)(subject, None, torch.zeros(1, 2, 2))
    assert type(family.model()).__name__ in str(said.value)
    assert subject.passes == 0


def test_wrong_granularity_and_grids_are_told():
    _, model, x, maps = setting("timm_vit")
    with pytest.raises(ArgumentError, match=r"Expected granularity 'patch'.* but got 'pixel'"):
        PerturbationSweep("drop", "pixel", STEPS)(model, x, maps)
    with pytest.raises(ArgumentError, match=r"grid of the model's patches, 4x6.* but got 2x3"):
        PerturbationSweep("drop", "patch", STEPS)(model, x, maps[:, ::2, ::2])
