"""Losses, the running sum, and what predicts."""

import math

import pytest
import timm
import torch
from torch.nn import functional as F

import mhex
from mhex.errors import ArgumentError, ArgumentTypeError, CaptureError
from mhex.heads.losses import combined_loss, running_sum
from support.hosts import CLASSES, attached, inputs, run, stir

LABELS = torch.tensor([0, 3, 2])


@pytest.fixture
def scores():
    torch.manual_seed(0)
    return list(torch.randn(8, 3, CLASSES, dtype=torch.float64))


@pytest.fixture
def ready():
    scaffold = stir(attached("timm_resnet18", dtype=torch.float64, preset="paper"))
    model = scaffold.model
    output = run(model, inputs("timm_resnet18", dtype=torch.float64))
    return scaffold, output


def test_running_sum(scores):
    """Invariant 15."""
    published = [1, 0.8, 0.64, 0.512, 0.4096, 0.32768, 0.262144, 0.2097152]
    wanted = sum(weight * logits for weight, logits in zip(published, reversed(scores), strict=True))
    assert torch.allclose(running_sum(scores, 0.8), wanted, rtol=1e-12)
    assert torch.equal(running_sum(scores, 0), scores[-1])
    assert torch.allclose(running_sum(scores, 1), sum(scores), rtol=1e-12)
    with pytest.raises(ArgumentError, match="decay"):
        running_sum(scores, 1.2)


def test_one_head_makes_both_modes_equal(scores):
    both = [combined_loss(scores[:1], LABELS, mode) for mode in ("pretrain", "finetune")]
    assert torch.equal(*both)


def test_losses_of_a_model(ready):
    scaffold, output = ready
    heads = list(scaffold.head_logits.values())
    each = [F.cross_entropy(y, LABELS) for y in heads]
    own = F.cross_entropy(output, LABELS)
    assert torch.allclose(scaffold.loss(LABELS), sum(each) + own)
    assert torch.allclose(scaffold.loss(LABELS, classifier=False), sum(each))
    assert torch.allclose(scaffold.loss(LABELS, reduction="mean"), (sum(each) + own) / 9)
    weights = [0.5] * 8 + [2.0]
    assert torch.allclose(scaffold.loss(LABELS, weights=weights), 0.5 * sum(each) + 2 * own)
    total = running_sum([*heads, output], 0.7)
    assert torch.allclose(scaffold.loss(LABELS, mode="pretrain", decay=0.7), F.cross_entropy(total, LABELS))
    assert torch.allclose(
        scaffold.loss(LABELS, "pretrain", classifier=False), F.cross_entropy(running_sum(heads, 0.8), LABELS)
    )
    assert torch.allclose(scaffold.loss(LABELS[:, None]), sum(each) + own)
    soft = F.one_hot(LABELS, CLASSES).double() * 0.9 + 0.025
    assert torch.allclose(scaffold.loss(soft, classifier=False), sum(F.cross_entropy(y, soft) for y in heads))


def test_a_fresh_identity_start_costs_the_logarithm_of_the_classes():
    scaffold = attached("timm_resnet18")
    model = scaffold.model
    run(model, inputs("timm_resnet18"))
    assert float(scaffold.loss(LABELS, classifier=False)) == pytest.approx(8 * math.log(CLASSES), rel=1e-6)


def test_several_labels():
    scaffold = stir(attached("timm_resnet18", preset="paper", multi_label=True))
    model = scaffold.model
    run(model, inputs("timm_resnet18"))
    targets = torch.tensor([[1, 0, 1, 0], [0, 0, 0, 0], [1, 1, 1, 1]])
    heads = list(scaffold.head_logits.values())
    wanted = sum(F.binary_cross_entropy_with_logits(y, targets.float()) for y in heads)
    assert torch.allclose(scaffold.loss(targets, classifier=False), wanted)
    assert scaffold.head_predictions["layer1.0"].shape == (3, CLASSES)
    assert scaffold.head_predictions["layer1.0"].dtype == torch.bool
    with pytest.raises(ArgumentError, match=r"\(3, 4\)"):
        scaffold.loss(LABELS)
    with pytest.raises(ArgumentError, match="0 to 1"):
        scaffold.loss(targets.float().where(targets > 0, torch.nan))


def test_one_class_score():
    scaffold = stir(attached("timm_resnet18", 1, preset="paper"))
    run(scaffold.model, inputs("timm_resnet18"))
    labels = torch.tensor([0, 1, 1])
    wanted = sum(F.binary_cross_entropy_with_logits(y[:, 0], labels.float()) for y in scaffold.head_logits.values())
    assert torch.allclose(scaffold.loss(labels, classifier=False), wanted)


@pytest.mark.parametrize(
    ("labels", "error", "said"),
    [
        (torch.tensor([0, 1, CLASSES]), ArgumentError, "0 to 3"),
        (torch.tensor([0, -1, 2]), ArgumentError, "0 to 3"),
        (torch.tensor([0, 1]), ArgumentError, r"\(3,\)"),
        (torch.zeros(3, 5), ArgumentError, r"\(3, 5\)"),
        (torch.tensor([0.0, 1.0, 2.0]), ArgumentTypeError, "integer"),
        ([0, 1, 2], ArgumentTypeError, "tensor"),
    ],
)
def test_wrong_labels(ready, labels, error, said):
    with pytest.raises(error, match=said):
        ready[0].loss(labels)


@pytest.mark.parametrize(
    "options", [{"mode": "train"}, {"reduction": "none"}, {"decay": 2.0, "mode": "pretrain"}, {"weights": [1.0]}]
)
def test_wrong_options_of_the_loss_are_refused(ready, options):
    with pytest.raises(ArgumentError):
        ready[0].loss(LABELS, **options)


def test_what_predicts(ready):
    scaffold, output = ready
    assert scaffold.predict_from == "classifier"
    assert torch.equal(scaffold.logits, output)
    heads = list(scaffold.head_logits.values())
    scaffold.predict_from = "last_head"
    assert torch.equal(scaffold.logits, heads[-1])
    scaffold.predict_from = "sum"
    assert torch.allclose(scaffold.logits, running_sum([*heads, output], 0.8))
    with pytest.raises(ArgumentError, match="last_head"):
        scaffold.predict_from = "last"
    scaffold.predict_from = None
    assert scaffold.predict_from == "classifier"


@pytest.mark.parametrize("preset", ["paper", "probe"])
def test_a_classifier_left_out_of_the_loss(preset):
    """It has not followed the gates, so it neither predicts nor counts in the sum; a probe's gates never move."""
    scaffold = stir(attached("timm_resnet18", dtype=torch.float64, preset=preset))
    model = scaffold.model
    output = run(model, inputs("timm_resnet18", dtype=torch.float64))
    heads = list(scaffold.head_logits.values())
    scaffold.loss(LABELS, "pretrain", classifier=False)
    assert scaffold.predict_from == ("sum" if preset == "paper" else "classifier")
    assert torch.allclose(scaffold.logits, running_sum(heads, 0.8) if preset == "paper" else output)
    scaffold.loss(LABELS, "finetune", classifier=False)
    assert scaffold.predict_from == ("last_head" if preset == "paper" else "classifier")
    scaffold.loss(LABELS, "pretrain")
    assert scaffold.predict_from == "classifier"
    assert torch.allclose(scaffold.reading.sum, running_sum([*heads, output], 0.8))
    folded = scaffold.fold("sum")
    scaffold.loss(LABELS, "pretrain", classifier=False)
    batch = inputs("timm_resnet18", dtype=torch.float64)
    assert torch.allclose(folded(batch), running_sum([*heads, output], 0.8))
    assert torch.allclose(scaffold.fold("sum")(batch), running_sum(heads, 0.8))


def test_what_predicts_without_a_classifier():
    model = timm.create_model("resnet18", num_classes=0, channels=(64, 16, 24, 32)).eval()
    batch = inputs("timm_resnet18")
    scaffold = stir(mhex.attach(model, CLASSES, preset="paper"))
    assert run(model, batch).shape == (3, 32)
    assert scaffold.predict_from == "last_head"
    scaffold.loss(LABELS, "pretrain", classifier=False)
    assert scaffold.predict_from == "sum"
    assert torch.allclose(scaffold.logits, running_sum(list(scaffold.head_logits.values()), 0.8))


def test_return_heads(ready):
    scaffold, output = ready
    batch = inputs("timm_resnet18", dtype=torch.float64)
    with torch.no_grad():
        plain, rich = scaffold(batch), scaffold(batch, return_heads=True)
    assert torch.equal(plain, output)
    assert torch.equal(rich.output, output)
    assert len(rich.heads) == 8
    assert torch.allclose(rich.sum, running_sum([*rich.heads, output], 0.8))


def test_equivalent_matrix_by_name(ready):
    scaffold, _ = ready
    block = scaffold.heads["layer2.1"]
    assert torch.allclose(scaffold.equivalent_matrix("layer2.1"), block.w2.weight @ block.w1.weight)
    with pytest.raises(ArgumentError, match=r"layer2\.1"):
        scaffold.equivalent_matrix("layer2.11")


def test_reading_before_any_call():
    scaffold = attached("timm_resnet18")
    for read in ("head_logits", "head_predictions", "logits", "predictions"):
        with pytest.raises(CaptureError, match="call the model"):
            getattr(scaffold, read)
