"""Cosines of gate and head: what goes in, what comes out, and that the model is left alone."""

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import mhex
from mhex.errors import ArgumentError, ArgumentTypeError, CaptureError
from mhex.heads.predictors import watched
from support.collaboration import CLASSES, Net, with_heads
from support.snapshot import Snapshot


@pytest.fixture
def scaffold():
    return with_heads(Net())


@pytest.fixture
def batch():
    return torch.randn(5, 3, 8, 8, dtype=torch.float64), torch.tensor([0, 1, 2, 3, 4])


def close(a, b):
    torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


@pytest.mark.parametrize("chunk", [1, 2, 5, 100])
def test_chunks_change_nothing(scaffold, batch, chunk):
    x, y = batch
    whole, parts = scaffold.collaboration(x, y), scaffold.collaboration(x, y, chunk=chunk)
    assert whole.cosine.shape == (5, 2)
    assert whole.blocks == scaffold.names[:2]
    assert whole.heads == scaffold.names
    for field in ("cosine", "p_orig", "losses"):
        close(getattr(parts, field), getattr(whole, field))
    assert torch.equal(parts.labels, y)
    assert not any(getattr(whole, field).requires_grad for field in ("cosine", "p_orig", "losses"))


def test_a_loader_gives_the_same_as_its_samples_at_once(scaffold, batch):
    x, y = batch
    found = scaffold.collaboration(DataLoader(TensorDataset(x, y[:, None]), 2), chunk=3, progress=True)
    close(found.cosine, scaffold.collaboration(x, y).cosine)
    assert torch.equal(found.labels, y)


def test_dictionaries(scaffold, batch):
    x, y = batch

    class Named(type(scaffold.model)):
        def forward(self, pixels, shared=None):
            assert shared is None or shared.shape == (1, 3)
            return super().forward(pixels)

    model = Named()
    own = with_heads(model)
    expected = own.collaboration({"pixels": x}, y).cosine
    shared = torch.zeros(1, 3)
    close(own.collaboration({"shared": shared, "pixels": x}, y, chunk=2).cosine, expected)
    close(own.collaboration({"pixels": x, "labels": y}).cosine, expected)
    close(own.collaboration([{"pixels": x[:3], "labels": y[:3]}, {"pixels": x[3:], "label": y[3:]}]).cosine, expected)


def test_classes_may_be_numbered_in_any_order(scaffold, batch):
    x, y = batch
    before = scaffold.collaboration(x, y).cosine
    order = torch.tensor([2, 0, 1, 4, 3])
    for block in scaffold.heads.blocks:
        block.w2.weight.data = block.w2.weight.data[order]
    close(scaffold.collaboration(x, order.argsort()[y]).cosine, before)


def test_a_fixed_gate_does_not_pull(batch):
    assert not with_heads(Net(), preset="probe").collaboration(*batch).cosine.any()
    assert with_heads(Net(), preset="paper").collaboration(*batch).cosine.all()


def test_untrained_identity_heads_do_not_pull(batch):
    model = Net().double()
    assert not mhex.attach(model, CLASSES).collaboration(*batch).cosine.any()


def test_no_active_channel_means_no_pull(scaffold, batch):
    x, y = batch
    with watched(scaffold.model) as run:
        highest = run(x).blocks[scaffold.names[0]].pooled.amax(0)
    assert (highest > 0.02).any()
    with torch.no_grad():
        scaffold.model.units[0].norm.bias.sub_(highest + 0.01)  # of the first block, h = 0: no gradient reaches W1
    with watched(scaffold.model) as run:
        seen = run(x)
        assert not seen.blocks[scaffold.names[0]].features.any()
        assert seen.outputs[scaffold.names[0]].any()  # but something flows on, so that the gate matters
    found = scaffold.collaboration(x, y).cosine
    assert not found[:, 0].any()
    assert found[:, 1].all()


def test_heads_that_are_certain(batch):
    x, _ = batch
    cosines = []
    for dtype in (torch.float32, torch.float64):
        scaffold = with_heads(Net())
        for block in scaffold.heads.blocks:
            block.w2.weight.data.mul_(30)
        scaffold.model.to(dtype)
        scaffold.model(x.to(dtype))
        for right in scaffold.head_predictions.values():  # labels with which one head after the other is right and sure
            cosines.append(scaffold.collaboration(x.to(dtype), right))
    single, double = cosines[:3], cosines[3:]
    assert min(float(c.losses.min()) for c in double) < 1e-9
    for a, b in zip(single, double, strict=True):
        assert torch.equal(a.labels, b.labels)
        torch.testing.assert_close(a.cosine.double(), b.cosine, rtol=0, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype):
    x, y = torch.randn(8, 3, 112, 112), torch.arange(8) % CLASSES  # sums over many positions must not overflow
    scaffold = with_heads(Net())
    expected = scaffold.collaboration(x.double(), y)
    scaffold.model.to(dtype)
    found = scaffold.collaboration(x.to(dtype), y)
    assert found.cosine.dtype == found.losses.dtype == found.p_orig.dtype == torch.float32
    bound = 0.15 if dtype == torch.bfloat16 else 0.02
    assert (found.cosine.double() - expected.cosine).abs().max() < bound


@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_left_alone(scaffold, batch, training):
    scaffold.model.train(training)
    scaffold.model.units[1].eval()
    scaffold.model.stem.weight.requires_grad_(False)
    scaffold.head_parameters().__next__().grad = torch.ones(6, 6, dtype=torch.float64)
    snapshot = Snapshot(scaffold.model)
    scaffold.collaboration(*batch)
    with pytest.raises(RuntimeError):
        scaffold.collaboration(batch[0][:, :2], batch[1])
    with torch.no_grad():
        scaffold.collaboration(*batch)
    snapshot.check()
    with pytest.raises(CaptureError):  # no graph is kept
        _ = scaffold.reading


def test_training_mode_does_not_matter(scaffold, batch):
    expected = scaffold.collaboration(*batch).cosine
    scaffold.model.train()
    close(scaffold.collaboration(*batch).cosine, expected)


def test_confidence_comes_from_what_predicts(scaffold, batch):
    x, y = batch
    scaffold.predict_from = "last_head"
    found = scaffold.collaboration(x, y)
    close(found.p_orig, (-found.losses[:, -1]).exp())
    scaffold.predict_from = "classifier"
    close(scaffold.collaboration(x, y).p_orig, scaffold.model(x).softmax(1).gather(1, y[:, None])[:, 0].detach())


def test_refusals(scaffold, batch):
    x, y = batch
    for coupling, word in (("separate", "coupling=.separate"), ("head_only", "coupling=.head_only")):
        with pytest.raises(ArgumentError, match=word):
            mhex.attach(Net(), CLASSES, coupling=coupling).collaboration(x, y)
    with pytest.raises(ArgumentError, match="at least two blocks"):
        mhex.attach(Net(), CLASSES, where="first1").collaboration(x, y)
    with pytest.raises(ArgumentError, match="labels of shape"):
        scaffold.collaboration(x, y[:3])
    with pytest.raises(ArgumentError, match="labels from 0 to 4"):
        scaffold.collaboration(x, y + 1)
    with pytest.raises(ArgumentError, match="beside a batch"):
        scaffold.collaboration(x)
    with pytest.raises(ArgumentError, match="brings its own"):
        scaffold.collaboration([(x, y)], y)
    with pytest.raises(ArgumentError, match="at least one sample"):
        scaffold.collaboration([])
    with pytest.raises(ArgumentError, match="empty batch"):
        scaffold.collaboration(x[:0], y[:0])
    with pytest.raises(ArgumentTypeError, match="a generator or a loader, but got int"):
        scaffold.collaboration(3)
    for chunk in (0, 1.5, True):
        with pytest.raises(ArgumentError, match="chunk"):
            scaffold.collaboration(x, y, chunk=chunk)


def test_parallel_units_are_refused(batch):
    class Parallel(Net):
        def forward(self, x):
            x = self.stem(x).relu()
            return self.head((self.units[0](x) + self.units[1](x)).mean((2, 3)))

    scaffold = with_heads(Parallel(units=2))
    with pytest.raises(CaptureError, match="parallel paths"):
        scaffold.collaboration(*batch)
