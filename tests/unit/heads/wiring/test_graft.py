"""Forwards that are rewritten: what they are called with, what they call, what they return."""

import pytest
import torch
from torch import nn

import mhex
from mhex.errors import CaptureError, UnsupportedModelError
from mhex.heads.predictors import watched
from support.hosts import host, inputs, run
from support.residual_units import CLASSES, WIDTH, Net, TextNet, Unit, images

pytestmark = pytest.mark.filterwarnings("ignore:The heads have:mhex.errors.MhexWarning")


# --- units that run all their children -----------------------------------------------------------------------------


class Row(nn.Sequential):
    """A residual unit that is a list of layers."""

    def forward(self, x):
        return x + super().forward(x)


@pytest.mark.parametrize("source", ["classifier", "last_head", "sum"])
def test_units_that_run_their_children_can_be_folded(source):
    torch.manual_seed(0)
    model, x = (
        Net(Row(nn.Conv2d(WIDTH, WIDTH, 1), nn.BatchNorm2d(WIDTH)), Row(nn.Conv2d(WIDTH, WIDTH, 1))).eval(),
        images(),
    )
    scaffold = mhex.attach(model, CLASSES, preset="paper")
    scaffold.predict_from = source
    model(x)
    wanted = scaffold.logits
    assert scaffold.names == ("units.0", "units.1")
    assert torch.allclose(scaffold.fold()(x), wanted, atol=1e-6)


def test_a_whole_model_that_runs_its_children():
    class Whole(nn.Sequential):
        def forward(self, x):
            return (x + super().forward(x)).mean((2, 3))

    model, x = Whole(nn.Conv2d(3, 3, 1), nn.ReLU(), nn.Conv2d(3, 3, 1)).eval(), images()
    before = model(x)
    scaffold = mhex.attach(model, 3)
    assert torch.equal(model(x), before)
    assert scaffold.names == ("(model)",)
    assert "mhex" not in type(model).forward.__code__.co_names
    assert torch.equal(scaffold.fold("classifier")(x), before)
    scaffold.detach()
    assert torch.equal(model(x), before)


# --- the model as a unit -------------------------------------------------------------------------------------------


class Rooted(Net):
    """Adds in its own forward, and returns a dictionary."""

    def forward(self, x):
        x = self.stem(x)
        x = torch.relu(x + self.units[0].body(x))
        return {"logits": self.head(torch.relu(x + self.units[1].body(x)).mean((2, 3)))}


def test_a_model_that_adds_itself_and_returns_a_dictionary():
    model, x = Rooted(Unit(), Unit()).eval(), images()
    scaffold = mhex.attach(model, CLASSES, where=["(model):1", "(model)"])
    assert scaffold.names == ("(model):1", "(model)")
    assert "(model):1" in str(scaffold.summary())
    with watched(model) as see:
        call = see(x)
    assert set(call.blocks) == set(scaffold.names)
    assert call.outputs == {}  # a dictionary is no feature map
    assert mhex.explain(model, x, method="mhex").scores.shape == (2, 6, 6)
    assert set(scaffold.head_accuracy((x, torch.tensor([0, 1])))) >= set(scaffold.names)


def test_outputs_of_units_are_still_seen():
    model, x = Net(Unit()).eval(), images()
    mhex.attach(model, CLASSES)
    with watched(model) as see:
        call = see(x)
    seen = call.blocks["units.0"]
    assert torch.equal(call.outputs["units.0"], seen.shortcut + seen.branch)


# --- arguments that are None by default ----------------------------------------------------------------------------


class TwoMasks(nn.Module):
    """A unit whose forward takes another way with each of two masks."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, attention_mask=None, key_padding_mask=None):
        y = self.body(x)
        if attention_mask is not None:
            y = y * attention_mask[..., None]
        if key_padding_mask is not None:
            y = y * (1 - key_padding_mask[..., None])
        return x + y


def test_a_call_with_two_masks_is_refused_in_words():
    model, ids = TextNet(TwoMasks()).eval(), torch.randint(1, 50, (2, 6))
    real = torch.ones(2, 6)
    real[:, 4:] = 0
    wanted = model(ids, real)
    mhex.attach(model, CLASSES)
    torch.testing.assert_close(model(ids, real), wanted)
    with pytest.raises(
        CaptureError,
        match="called with attention_mask and key_padding_mask, with which",
    ):
        model(ids, real, key_padding_mask=1 - real)


class Masked(nn.Module):
    """Tests its mask, and adds to it before it adds its branch."""

    def __init__(self):
        super().__init__()
        self.norm, self.mlp = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x, attention_mask=None, *, scale=None, offset=1.0):
        y = self.norm(x)
        if attention_mask is not None:
            y = y + (attention_mask[..., None] + 0.0)
            y = y * attention_mask[..., None]
        if scale is not None:
            y = y * scale
        return x + self.mlp(y) * offset


def test_a_unit_that_tests_its_mask():
    torch.manual_seed(0)
    model, ids = TextNet(Masked()).eval(), torch.randint(1, 50, (2, 6))
    mask = torch.tensor([[1] * 6, [1] * 4 + [0] * 2])
    before = model(ids), model(ids, mask), model(ids, offset=0.5), model(ids, mask, offset=0.5)
    assert len({tuple(logits.flatten().tolist()) for logits in before}) == 4
    scaffold = mhex.attach(model, CLASSES)
    after = model(ids), model(ids, mask), model(ids, offset=0.5), model(ids, mask, offset=0.5)
    assert all(torch.equal(a, b) for a, b in zip(after, before, strict=True))
    nn.init.normal_(scaffold.heads["block"].w1.weight)
    model(ids, mask)
    padded = scaffold.head_logits["block"][1]
    model(ids[1:, :4], mask[1:, :4])
    assert torch.allclose(scaffold.head_logits["block"][0], padded, atol=1e-6)
    wanted, folded = model(ids, mask), scaffold.fold("classifier")
    assert torch.allclose(folded(ids, mask), wanted, atol=1e-6)
    with pytest.raises(CaptureError, match=r"block was called with scale.*where=\[\.\.\.\]"):
        model(ids, scale=2.0)
    with pytest.raises(CaptureError, match="called with attention_mask and scale"):
        folded(ids, mask, scale=2.0)


def test_a_unit_that_takes_anything():
    class Open(Masked):
        def forward(self, x, attention_mask=None, *rest, offset=1.0, **more):
            return x + (self.mlp(x) if attention_mask is None else self.norm(self.mlp(x))) * offset

    model, ids = TextNet(Open()).eval(), torch.randint(1, 50, (2, 6))
    before = model(ids, offset=0.5), model(ids, torch.ones(2, 6), offset=0.5)
    mhex.attach(model, CLASSES)
    assert torch.equal(model(ids, offset=0.5), before[0])
    assert torch.equal(model(ids, torch.ones(2, 6), offset=0.5), before[1])


class Starred(Masked):
    """Takes further arguments in their order, and a mask and a number by name alone."""

    def forward(self, x, *rest, attention_mask=None, offset=1.0):
        y = self.mlp(x) if attention_mask is None else self.mlp(x) * attention_mask[..., None]
        return x + y * offset * (rest[0] if self.reads else 1.0)


@pytest.mark.parametrize("count", [0, 1, 2, 3])
@pytest.mark.parametrize("named", [{}, {"offset": 0.5}, {"attention_mask": torch.tensor([[1.0] * 4 + [0.0] * 2])}])
def test_further_arguments_are_not_taken_for_those_with_names(count, named):
    torch.manual_seed(0)
    unit = Starred()
    unit.reads = False
    model, x = Net(nn.Identity()), torch.rand(1, 6, 8)
    model.units[0] = unit.eval()
    rest = [torch.full((1, 6, 1), 3.0 + place) for place in range(count)]
    before = unit(x, *rest, **named)
    mhex.attach(model, CLASSES, where=["units.0"])
    assert torch.equal(unit(x, *rest, **named), before)


def test_further_arguments_may_be_read():
    torch.manual_seed(0)
    unit = Starred()
    unit.reads = True
    model, x, factor = Net(nn.Identity()), torch.rand(1, 6, 8), torch.full((1, 6, 1), 3.0)
    model.units[0] = unit.eval()
    before = unit(x, factor, "more", offset=0.5)
    mhex.attach(model, CLASSES, where=["units.0"])
    assert torch.equal(unit(x, factor, "more", offset=0.5), before)


def test_a_mask_that_leads_to_code_that_cannot_be_traced():
    class Looking(Masked):
        def forward(self, x, attention_mask=None):
            if attention_mask is not None and bool(attention_mask.all()):
                return x
            return x + self.mlp(x)

    model, ids = TextNet(Looking()).eval(), torch.randint(1, 50, (2, 6))
    before = model(ids)
    mhex.attach(model, CLASSES)
    assert torch.equal(model(ids), before)
    with pytest.raises(CaptureError, match="block was called with attention_mask"):
        model(ids, torch.ones(2, 6))


def test_additions_are_told_apart_in_training():
    """In training another addition comes first, and takes its name in the graph."""

    class Noisy(Unit):
        def forward(self, x):
            y = self.body(x)
            if self.training:
                y = y + x.mean()
            return x + y

    model, x = Net(Noisy()), images()
    for mode in (True, False):
        model.train(mode)
        before = model(x)
        scaffold = mhex.attach(model, CLASSES)
        assert torch.equal(model(x), before)
        nn.init.normal_(scaffold.heads["units.0"].w1.weight)
        with watched(model) as see:
            seen = see(x).blocks["units.0"]
        assert torch.allclose(seen.shortcut, model.stem(x))
        scaffold.detach()


def test_a_unit_that_adds_in_evaluation_only_is_refused():
    class Once(Unit):
        def forward(self, x):
            return self.body(x) if self.training else x + self.body(x)

    with pytest.raises(UnsupportedModelError, match=r"units\.0 adds its shortcut elsewhere"):
        mhex.attach(Net(Once()), CLASSES)


# --- hooks ---------------------------------------------------------------------------------------------------------


INSIDE = ("attention", "attention.self", "attention.output", "attention.output.dense", "intermediate", "output")


@pytest.mark.parametrize("order", ["hooks first", "heads first"])
def test_hooks_on_modules_inside_of_units(order):
    """All of them fire, those of modules whose code became part of the layer too, as often as in a plain model."""
    model, batch, seen = host("hf_bert"), inputs("hf_bert"), []
    plain = run(model, batch)
    if order == "heads first":
        mhex.attach(model, CLASSES)
    layer = model.bert.encoder.layer[0]
    for name in INSIDE:
        module = layer.get_submodule(name)
        module.register_forward_pre_hook(lambda m, args, name=name: seen.append(("before", name, m, len(args))))
        module.register_forward_hook(lambda m, args, out, name=name: seen.append(("after", name, m, len(args))))
    expected = []
    if order == "hooks first":
        run(model, batch)
        expected, seen[:] = list(seen), []
        mhex.attach(model, CLASSES)
    assert torch.equal(run(model, batch), plain)
    assert {(when, name) for when, name, *_ in seen} == {(when, n) for n in INSIDE for when in ("before", "after")}
    assert len(seen) == 2 * len(INSIDE)
    assert all(m is layer.get_submodule(name) for _, name, m, _ in seen)
    assert not expected or seen == expected


def test_hooks_inside_of_units_may_change_what_flows():
    """As in a plain model, for as long as they are registered: they are not part of the code that was traced."""
    model, batch = host("hf_bert"), inputs("hf_bert")
    plain, output = run(model, batch), model.bert.encoder.layer[0].output
    handles = [
        output.register_forward_pre_hook(lambda m, args, kwargs: ((2 * args[0], *args[1:]), kwargs), with_kwargs=True),
        output.register_forward_pre_hook(lambda m, args: (args[0], args[1] + 1)),
        output.register_forward_hook(lambda m, args, kwargs, out: 3 * out, with_kwargs=True),
    ]
    changed = run(model, batch)
    mhex.attach(model, CLASSES)
    assert torch.equal(run(model, batch), changed)
    for handle in handles:
        handle.remove()
    assert torch.equal(run(model, batch), plain)
