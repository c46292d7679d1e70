"""Blocks count in the order in which they run, whatever the order in which the host lists them."""

import json

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import mhex
from mhex.errors import ArgumentError, CaptureError
from mhex.heads.call_record import CallRecord, in_order
from support.hosts import CLASSES, stir

pytestmark = pytest.mark.filterwarnings("ignore::mhex.errors.MhexWarning")
RUN = ("c", "a", "b")  # as the host runs them; it lists a, b, c


class Unit(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(6, 6, 3, padding=1)

    def forward(self, x):
        return torch.relu(x + self.conv(x))


class Shuffled(nn.Module):
    """Runs its units in another order than it lists them; in training it may skip some, and run an extra one."""

    def __init__(self, extra=False):
        super().__init__()
        self.a, self.b, self.c = Unit(), Unit(), Unit()
        self.extra = Unit() if extra else None
        self.stem, self.fc = nn.Conv2d(3, 6, 1), nn.Linear(6, CLASSES)
        self.skip = ()

    def forward(self, x):
        x = self.stem(x)
        for name in RUN:
            if not (self.training and name in self.skip):
                x = getattr(self, name)(x)
        if self.training and self.extra is not None:
            x = self.extra(x)
        return self.fc(x.mean((2, 3)))


def made(**options):
    torch.manual_seed(0)
    model = Shuffled(options.pop("extra", False)).eval()
    return model, stir(mhex.attach(model, CLASSES, preset="paper", **options)), torch.randn(3, 3, 8, 8)


def test_names_are_known_after_a_call():
    model, scaffold, x = made()
    assert scaffold.names == ("a", "b", "c")
    model(x)
    assert scaffold.names == RUN == tuple(scaffold.head_logits) == tuple(scaffold.heads.named_blocks())
    assert [row.name for row in scaffold.summary().rows] == list(RUN)
    assert scaffold.settings.junctions == ("a", "b", "c")  # and with it the keys of the weights
    assert scaffold.heads["c"] is scaffold.heads.blocks[2]


def test_maps_weigh_blocks_by_when_they_run():
    model, _, x = made()
    whole = mhex.explain(model, x, "mhex", target=1, layer_factor=0.5, per_layer=True)
    assert whole.options["blocks"] == list(RUN) == list(whole.layers)
    weighted = sum(w * whole.layers[name] for name, w in zip(RUN, (0.25, 0.5, 1), strict=True))
    assert torch.allclose(whole.scores, weighted.reshape(whole.scores.shape), rtol=1e-5)
    for wanted, name in (("first1", "c"), ("last1", "b")):
        alone = mhex.explain(model, x, "mhex", target=1, blocks=wanted)
        assert torch.equal(alone.scores, mhex.explain(model, x, "mhex", target=1, blocks=[name]).scores)


def test_losses_and_predictions_of_the_last():
    model, scaffold, x = made()
    labels = torch.tensor([0, 1, 2])
    model(x)
    said = scaffold.head_logits
    scores = torch.zeros(())
    for name in RUN:
        scores = said[name] + 0.5 * scores
    wanted = nn.functional.cross_entropy(model(x) + 0.5 * scores, labels)
    assert torch.allclose(scaffold.loss(labels, mode="pretrain", decay=0.5), wanted)
    scaffold.predict_from = "last_head"
    assert torch.equal(scaffold.logits, said["b"])
    assert torch.allclose(scaffold.fold()(x), said["b"], rtol=1e-5)
    scaffold.strip_heads()
    assert [name for name, block in scaffold.heads.named_blocks().items() if block.w2 is not None] == ["b"]
    assert torch.equal(scaffold.predict(x), said["b"])


def test_collaboration_goes_from_block_to_block():
    model, scaffold, x = made()
    assert scaffold.collaboration(x, torch.tensor([0, 1, 2])).blocks == ("c", "a")
    scaffold.detach()
    probe = mhex.attach(model, CLASSES, preset="probe")
    report = probe.fit((x.repeat(4, 1, 1, 1), torch.arange(12) % 3))
    assert [block.name for block in report.blocks] == list(RUN)


@pytest.mark.parametrize("leave", ["strip_heads", "fold"])
def test_before_a_call_the_last_is_not_known(leave, tmp_path):
    model, scaffold, x = made()
    scaffold.predict_from = "last_head"
    with pytest.raises(CaptureError, match="call the model once"):
        getattr(scaffold, leave)()
    wanted = scaffold.predict(x)
    scaffold.save(tmp_path / "h.safetensors")
    scaffold.detach()
    again = mhex.attach(model, weights=tmp_path / "h.safetensors")  # the file knows
    assert again.names == RUN
    getattr(again, leave)()
    assert torch.equal(again.predict(x), wanted)


def test_one_block_is_the_last():
    scaffold = made(where=["a"])[1]
    scaffold.predict_from = "last_head"
    assert scaffold.strip_heads() == 0


def test_units_that_training_skips_or_adds():
    model, scaffold, x = made(extra=True)
    model.train()
    model.skip = ("b",)
    model(x)
    assert scaffold.heads.order == ("c", "a", "extra")
    assert set(scaffold.names) == {"a", "b", "c", "extra"}
    model.eval()
    model(x)
    model.train()
    model(x)
    assert scaffold.heads.order == RUN  # as in evaluation, which predictions are about
    model.eval()
    scaffold.predict_from = "last_head"
    wanted = scaffold.predict(x)
    scaffold.strip_heads()
    assert torch.equal(scaffold.predict(x), wanted)


def test_a_call_that_fails_shows_nothing():
    model, scaffold, x = made()
    model.fc = nn.Linear(5, 5)
    with pytest.raises(RuntimeError):
        model(x)
    assert scaffold.heads.order == ()


def test_a_stripped_unit_that_runs_twice_is_noticed():
    model, scaffold, x = made()
    model(x)
    scaffold.strip_heads()
    model.b = model.a
    with pytest.raises(CaptureError, match="ran twice"):
        model(x)


def test_names_are_sorted_by_the_recorded_order():
    assert in_order((), "abc") == ("a", "b", "c")
    assert in_order("cab", "abc") == ("c", "a", "b")
    assert in_order("cb", "abc") == ("a", "c", "b")
    assert in_order("ca", "abcd") == ("c", "d", "a", "b")


def test_evaluation_counts_before_training():
    record = CallRecord()
    record.note("ab", evaluated=False)
    record.note("abc", evaluated=False)
    assert record.ran == ("a", "b", "c")
    record.note("ca", evaluated=True)
    record.note("abc", evaluated=False)
    assert record.ran == ("c", "a")


def test_files_without_an_order_and_with_a_strange_one(tmp_path):
    model, scaffold, x = made()
    model(x)
    path = tmp_path / "h.safetensors"
    scaffold.save(path)
    scaffold.detach()
    settings = json.dumps(
        {"num_classes": CLASSES, "junctions": ["a", "b", "c"], "channels": [6] * 3, "preset": "paper"}
    )
    for extras, said in (({"order": ["z"]}, "'z'"), ({"forward": 1}, "forward")):
        header = {"format": "mhex heads 1", "settings": settings, "extras": json.dumps(extras)}
        save_file(load_file(path), tmp_path / "odd.safetensors", metadata=header)
        with pytest.raises(ArgumentError, match=said):
            mhex.attach(model, weights=tmp_path / "odd.safetensors")
    header["extras"] = "{}"
    save_file(load_file(path), tmp_path / "old.safetensors", metadata=header)
    assert mhex.attach(model, weights=tmp_path / "old.safetensors").heads.order == ()


def test_blocks_of_davit_are_in_the_order_in_which_they_run():
    """Its blocks list both convolutions of positions first, and run one of them between attention and MLP."""
    torch.manual_seed(0)
    model = timm.create_model(
        "davit_tiny", num_classes=CLASSES, depths=(1, 1), embed_dims=(8, 8), num_heads=(1, 1), window_size=2
    ).eval()
    scaffold, x = mhex.attach(model, CLASSES, preset="paper"), torch.randn(2, 3, 32, 32)
    written = scaffold.names
    model(x)
    assert scaffold.names == tuple(scaffold.head_logits) != written
    assert mhex.explain(model, x, "mhex").options["blocks"] == list(scaffold.names)
