"""The small parts of the loop: seeds, orders, rates, groups, averages, views, measures."""

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from timm.utils import ModelEmaV3
from torch import nn

from mhex.errors import ArgumentError
from mhex.inputs.preprocess import Preprocess, squash
from mhex.lab.config.recipe import RecipeTraining
from mhex.lab.train.evaluate import accuracy
from mhex.lab.train.objective import Ensemble
from mhex.lab.train.optimiser import Average, freeze, learning_mode, parameter_groups, rate_factor
from mhex.lab.train.samples import derive, epoch_order, held_out


def test_seeds_differ_by_place():
    places = [derive(1, "order", 0), derive(1, "order", 1), derive(2, "order", 0), derive(1, "augment", 0)]
    assert len(set(places)) == 4
    assert derive(1, "order", 0) == places[0]
    assert all(0 <= place < 2**63 for place in places)


def test_epochs_pass_over_all_samples_in_orders_of_their_own():
    first, second = epoch_order(12, 4, 0, 0), epoch_order(12, 4, 0, 1)
    assert first.shape == (3, 4)
    assert sorted(first.flatten().tolist()) == sorted(second.flatten().tolist()) == list(range(12))
    assert first.tolist() != second.tolist()
    assert epoch_order(13, 4, 0, 0).shape == (3, 4)
    assert epoch_order(3, 8, 0, 0).shape == (1, 8)
    assert set(epoch_order(3, 8, 0, 0).flatten().tolist()) == {0, 1, 2}


@pytest.mark.parametrize(("count", "share", "expected"), [(10, 0.2, 2), (7, 0.5, 3), (100, 0.29, 29), (3, 0.0, 0)])
def test_so_many_samples_are_held_out(count, share, expected):
    assert int(held_out(count, share, "news").sum()) == expected


def test_held_out_samples_have_no_period():
    out = held_out(1000, 0.1, "news")
    assert not torch.equal(out, held_out(1000, 0.1, "pets"))
    assert held_out(1000, 0.2, "news")[out].all()
    # Of samples that repeat ten classes in turn, evenly spaced ones would all be of one class.
    counts = torch.bincount(out.nonzero().flatten() % 10, minlength=10)
    assert int(counts.min()) > 3
    assert int(out[:500].sum()) in range(35, 66)


def test_rates_rise_and_fall():
    rates = [rate_factor("cosine", step, 100, 0.1) for step in range(100)]
    assert rates[0] == pytest.approx(0.1)
    assert rates[9] == pytest.approx(1.0)
    assert rates[55] == pytest.approx(0.5)
    assert 0 <= rates[99] < 0.001
    assert [rate_factor("linear", step, 10, 0.0, 0.2) for step in (0, 5)] == pytest.approx([1.0, 0.6])
    assert {rate_factor("constant", step, 10, 0.0) for step in range(10)} == {1.0}
    assert rate_factor("cosine", 0, 10, 0.0) == 1.0
    assert rate_factor("cosine", 10**9 - 1, 10**9, 0.0, 0.2) == pytest.approx(0.2)


def test_one_cycle_is_torchs():
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    theirs = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=1.0, total_steps=50, pct_start=0.3, cycle_momentum=False
    )
    for step in range(50):
        assert rate_factor("one-cycle", step, 50, 0.3) == pytest.approx(optimizer.param_groups[0]["lr"], abs=1e-9)
        optimizer.step()
        if step < 49:
            theirs.step()


class Hosted(nn.Module):
    """A host with batch norm and explainer heads under their prefix."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
        self.fc = nn.Linear(4, 2)
        self.mhex = nn.ModuleDict({"one": nn.Linear(4, 2, bias=False)})

    def forward(self, inputs):
        return self.fc(self.body(inputs).mean(dim=(2, 3)))


def names_in(model, groups):
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return [(group["lr"], group["weight_decay"], {names[id(p)] for p in group["params"]}) for group in groups]


def test_norms_and_biases_do_not_decay_and_heads_have_their_rate():
    model = Hosted()
    groups = parameter_groups(model, RecipeTraining(epochs=1, batch=1, rate=0.1, decay=0.5, head_rate=10.0))
    assert sorted(names_in(model, groups), key=str) == sorted(
        [
            (0.1, 0.5, {"body.0.weight", "fc.weight"}),
            (0.1, 0.0, {"body.0.bias", "body.1.weight", "body.1.bias", "fc.bias"}),
            (1.0, 0.5, {"mhex.one.weight"}),
        ],
        key=str,
    )
    vit = timm.create_model("test_vit", num_classes=2)
    spared = next(
        g for g in parameter_groups(vit, RecipeTraining(epochs=1, batch=1, rate=1, decay=0.5)) if not g["weight_decay"]
    )
    assert any(parameter is vit.pos_embed for parameter in spared["params"])


@pytest.mark.parametrize(
    ("kind", "learning"), [("host", {"mhex.one.weight"}), ("body", {"mhex.one.weight", "fc.weight", "fc.bias"})]
)
def test_frozen_hosts_keep_weights_and_statistics(kind, learning):
    model = Hosted()
    freeze(model, kind, ("fc.",))
    assert {name for name, parameter in model.named_parameters() if parameter.requires_grad} == learning
    before = {name: value.clone() for name, value in model.state_dict().items()}
    learning_mode(model, kind)
    model(torch.randn(4, 3, 8, 8))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    learning_mode(model, "none")
    model(torch.randn(4, 3, 8, 8))
    assert not torch.equal(model.state_dict()["body.1.running_mean"], before["body.1.running_mean"])


def test_freezing_everything_is_refused():
    with pytest.raises(ArgumentError, match="leaves nothing to learn"):
        freeze(nn.Linear(2, 2), "host", ("fc.",))


def test_the_average_is_timms():
    model = Hosted()
    ours, theirs = Average(model, 0.9), ModelEmaV3(model, decay=0.9, use_warmup=True)
    for step in range(40):
        with torch.no_grad():
            model.train()(torch.randn(2, 3, 6, 6))
            for parameter in model.parameters():
                parameter += torch.randn_like(parameter)
        ours.update(model, step)
        theirs.update(model, step=step)
    for name, value in theirs.module.state_dict().items():
        torch.testing.assert_close(ours.state[name], value)
    own = model.fc.weight.detach().clone()
    with ours.inside(model):
        assert torch.equal(model.fc.weight, ours.state["fc.weight"])
    assert torch.equal(model.fc.weight, own)


def test_ensemble_averages_logits_through_own_views():
    class Sides(nn.Module):
        def forward(self, inputs):
            return torch.full((len(inputs), 2), float(inputs.shape[-1]))

    answer = Ensemble([Sides(), Sides()], [Preprocess(8, 8), Preprocess(12, 12)])(torch.rand(3, 3, 16, 16))
    assert torch.equal(answer, torch.full((3, 2), 10.0))
    with pytest.raises(ArgumentError, match="a view for each"):
        Ensemble([Sides()], [])


def test_view_agrees_with_pil():
    photo = Image.fromarray((np.random.default_rng(0).random((40, 40, 3)) * 255).astype(np.uint8))
    ours = squash(torch.from_numpy(np.asarray(photo).copy()).permute(2, 0, 1)[None] / 255, (24, 24))[0]
    theirs = (
        torch.from_numpy(np.asarray(photo.resize((24, 24), Image.Resampling.BICUBIC)).copy()).permute(2, 0, 1) / 255
    )
    assert (ours - theirs).abs().max() < 1.5 / 255


def test_resized_photos_hold_no_values_that_a_photo_cannot_hold():
    """Bicubic weights overshoot at an edge between black and white."""
    edge = torch.zeros(1, 3, 8, 8)
    edge[..., 4:] = 1
    for side in (5, 20):
        resized = squash(edge, (side, side))
        assert (float(resized.min()), float(resized.max())) == (0.0, 1.0)


def test_view_normalises_bytes_and_shares_alike():
    view = Preprocess(4, 4, mean=(0.5, 0.25, 0.0), std=(0.5, 1.0, 2.0))
    white = torch.full((1, 3, 4, 4), 255, dtype=torch.uint8)
    torch.testing.assert_close(view(white)[0, :, 0, 0], torch.tensor([1.0, 0.75, 0.5]))
    torch.testing.assert_close(view(white), view(torch.ones(1, 3, 4, 4)))


def test_group_accuracy_sums_probabilities():
    # Class 0 alone is the likeliest, yet classes 1 and 2 of the other group outweigh it together.
    probabilities = torch.tensor([[0.4, 0.3, 0.3], [0.4, 0.3, 0.3]])
    assert accuracy(probabilities, torch.tensor([1, 0]), [0, 1, 1]) == {"class": 0.5, "group": 0.5}
    assert accuracy(probabilities, torch.tensor([1, 2]), [0, 1, 1]) == {"class": 0.0, "group": 1.0}
    assert accuracy(probabilities, torch.tensor([0, 0])) == {"class": 1.0}
    with pytest.raises(ArgumentError, match="shape"):
        accuracy(probabilities, torch.tensor([1]), [0, 1, 1])
