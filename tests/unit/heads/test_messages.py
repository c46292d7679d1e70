"""What a user who holds heads wrongly is told."""

import math
import warnings
from types import SimpleNamespace

import pytest
import torch
from PIL import Image
from torch import nn

import mhex
from mhex.errors import ArgumentError, ArgumentTypeError, CaptureError, MhexWarning
from mhex.heads import pearson, study
from support.hosts_with_heads import host, inputs, with_heads

X, Y = inputs("tv_resnet"), torch.tensor([0, 3, 1, 6])


class Unnamed(nn.Module):
    """Its last layer does not tell that it is a classifier."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.scores = inner, nn.Linear(7, 7)

    def forward(self, x):
        return self.scores(self.inner(x))


# --- what predicts ----------------------------------------------------------------------------------------------------


def test_what_predicts_is_known_before_a_call():
    scaffold = with_heads("tv_resnet")
    assert scaffold.predict_from == mhex.Scaffold(scaffold.model).predict_from == "classifier"
    scaffold.model(X)
    assert scaffold.predict_from == "classifier"
    other = with_heads("tv_resnet", 5)
    assert other.predict_from == "last_head"
    other.heads.mode = "pretrain"
    assert other.predict_from == "sum"
    other.model(X)
    assert other.predict_from == "sum"


def test_what_predicts_may_have_to_be_seen():
    scaffold = mhex.attach(Unnamed(host("tv_resnet")), 7, preset="paper")
    with pytest.raises(CaptureError, match=r"not known yet what predicts: call the model once"):
        _ = scaffold.predict_from
    scaffold.heads.joined = False  # then the classifier does not predict, whatever it returns
    assert scaffold.predict_from == "last_head"
    scaffold.heads.joined = True
    scaffold.predict(X)  # lets go of its calls, and yet has shown it
    assert scaffold.predict_from == "classifier"


def test_other_classes_than_the_model():
    scaffold = with_heads("tv_resnet", 5)
    scaffold.predict_from = "classifier"  # nothing shows yet that it cannot
    with pytest.raises(ArgumentError, match=r"cannot predict: set scaffold.predict_from to 'last_head'"):
        mhex.explain(scaffold.model, X, method="mhex")
    scaffold.predict_from = None
    scaffold.model(X)
    with pytest.raises(ArgumentError, match=r"cannot join in the loss: pass classifier=False") as error:
        scaffold.loss(Y % 5)
    assert "predict_from" not in str(error.value)
    with pytest.raises(ArgumentError, match="5 classes, and the model returns 7 class scores"):
        scaffold.predict_from = "classifier"
    assert mhex.explain(scaffold.model, X, method="mhex").scores.shape[0] == 4


# --- heads that say nothing -------------------------------------------------------------------------------------------


def test_untrained_heads_warn_when_they_explain():
    scaffold = with_heads("tv_resnet", active=False)
    for _ in range(2):  # also from weights that were kept
        with pytest.warns(MhexWarning, match="say nothing yet") as seen:
            mhex.explain(scaffold.model, X, method="mhex", target="top2")
        assert len(seen) == 1
    with torch.no_grad():
        scaffold.heads["layer2.0"].w1.weight[0, 0] = 1.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mhex.explain(scaffold.model, X, method="mhex")
    with pytest.warns(MhexWarning, match="say nothing yet"):
        mhex.explain(scaffold.model, X, method="mhex", blocks="first1")


def test_stripped_heads_say_nothing():
    scaffold = with_heads("tv_resnet")
    scaffold.predict_from = "classifier"
    scaffold.strip_heads()
    scaffold.model(X)
    for name in ("head_logits", "head_predictions"):
        with pytest.raises(CaptureError, match="were stripped"):
            getattr(scaffold, name)


def test_detached_heads(tmp_path):
    scaffold = with_heads("tv_resnet", active=False)
    model = scaffold.model
    model(X)
    scaffold.detach()
    tries = [
        scaffold.detach,
        scaffold.summary,
        scaffold.freeze_host,
        lambda: scaffold.loss(Y),
        lambda: scaffold.fit((X, Y)),
        lambda: scaffold.save(tmp_path / "heads.safetensors"),
        lambda: scaffold.head_predictions,
        lambda: scaffold.predict_from,
        lambda: scaffold.predict(X),
        lambda: scaffold(X),
        lambda: scaffold.collaboration(X, Y),
        lambda: scaffold.ramp(1, 2),
    ]
    for again in (False, True):
        for attempt in tries:
            with pytest.raises(ArgumentError, match="These heads were detached; attach heads again"):
                attempt()
        if not again:
            mhex.attach(model, 7)  # other heads are not these
    assert scaffold.num_classes == scaffold.settings.num_classes == 7  # what they were may be asked
    assert repr(scaffold) == "Scaffold(detached from ResNet)"
    assert not any(tmp_path.iterdir())


# --- gates ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [(-1, 10), (0, 0), (1, -3), (1, 10, 1.5), (1, 10, -0.1), (1, math.nan)])
def test_ramp_refuses(wrong):
    scaffold = with_heads("tv_resnet", preset="warmup")
    with pytest.raises(ArgumentError, match="Expected s"):
        scaffold.ramp(*wrong)
    with pytest.raises(ArgumentTypeError, match="step of training"):
        scaffold.ramp("1", 10)
    assert not any(float(block.strength) for block in scaffold.heads.blocks)
    scaffold.ramp(11, 10, 1.0)
    assert all(float(block.strength) == 1 for block in scaffold.heads.blocks)


@pytest.mark.parametrize("preset", ["paper", "identity", "warmup"])
def test_probe_stays_at_one(preset):
    probe, other = with_heads("tv_resnet", preset="probe"), with_heads("tv_resnet", preset=preset)
    if preset == "warmup":
        probe.model.load_state_dict(other.model.state_dict())  # whose gates are off still
        other.ramp(1, 100)
    before = {name: value.clone() for name, value in probe.heads.state_dict().items()}
    for strict in (True, False):
        with pytest.raises(ArgumentError, match="keeps every gate at exactly 1"):
            probe.model.load_state_dict(other.model.state_dict(), strict=strict)
    assert all(torch.equal(value, before[name]) for name, value in probe.heads.state_dict().items())
    with torch.no_grad():
        probe.heads.blocks[0].strength.fill_(1.0)
    with pytest.raises(ArgumentError, match="attach new ones with preset="):
        probe.fit((X, Y))


# --- arguments --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        ({"where": 3}, ArgumentTypeError, "a list of connections, but got 3"),
        ({"where": "layer1.0"}, ArgumentError, r"where=\['layer1.0'\]"),
        ({"num_classes": None}, ArgumentTypeError, "weights="),
        ({"multi_label": "yes"}, ArgumentTypeError, "multi_label to be True or False"),
        ({"exclude_special": True}, ArgumentError, "carry feature maps"),
    ],
)
def test_attach_refuses(options, kind, text):
    model = host("tv_resnet")
    with pytest.raises(kind, match=text):
        mhex.attach(model, **{"num_classes": 7, **options})
    assert not hasattr(model, "mhex")


def test_attach_to_what_is_no_plain_model():
    bundle = SimpleNamespace(model=host("tv_resnet"))
    for call in (lambda: mhex.attach(bundle, 7), lambda: mhex.Scaffold(bundle)):
        with pytest.raises(ArgumentTypeError, match=r"bundle.model"):
            call()
    scaffold = with_heads("tv_resnet")
    scaffold.model(X)
    for source in ("classifier", "last_head"):
        with pytest.raises(ArgumentError, match="folded model"):
            mhex.attach(scaffold.fold(source), 7)


def test_more_blocks_than_there_are():
    with pytest.warns(MhexWarning, match="where=.first99.: the model has 4 residual connections"):
        assert len(mhex.attach(host("tv_resnet"), 7, where="first99").names) == 4


def test_data_of_the_wrong_kind():
    scaffold = with_heads("tv_resnet", preset="probe")
    with pytest.raises(ArgumentError, match="got 4 labels and 3 inputs"):
        scaffold.fit((X[:3], Y))
    with pytest.raises(ArgumentError, match=r"image\[None\]"):
        scaffold.confidence_map(X[0], Y[0])
    with pytest.raises(ArgumentError, match="but got list of Image: turn images"):
        scaffold.collaboration([Image.new("RGB", (8, 8))], Y)


# --- studies ----------------------------------------------------------------------------------------------------------


def test_study_takes_a_pair_and_makes_folders(tmp_path):
    scaffold = with_heads("tv_resnet")
    whole = scaffold.collaboration_study((X, Y), {"own": torch.arange(4.0)})
    torch.testing.assert_close(whole.collaboration.cosine, scaffold.collaboration(X, Y).cosine)
    assert whole.collaboration.save(tmp_path / "no" / "folder" / "a.png").is_file()
    (tmp_path / "file").touch()
    with pytest.raises(ArgumentError, match="Cannot write to"):
        whole.save(tmp_path / "file" / "a.png")
    with pytest.raises(ArgumentTypeError, match=r"values \(N,\)"):
        study(whole.collaboration, torch.arange(4.0))


@pytest.mark.parametrize(
    ("x", "y", "why"), [([1, 1, 1], [1, 2, 3], "x does not vary"), ([1, 2], [3, 4], "three samples, and there are 2")]
)
def test_no_correlation_is_said(x, y, why):
    with pytest.warns(MhexWarning, match=why):
        assert math.isnan(pearson(x, y).coefficient)


def test_study_without_correlations_warns_once():
    scaffold = with_heads("tv_resnet", preset="probe")  # whose gates do not pull
    with pytest.warns(MhexWarning, match="3 of 3 correlations do not exist") as seen:
        scaffold.collaboration_study((X, Y))
    assert len(seen) == 1
