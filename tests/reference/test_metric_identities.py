"""What must hold between metrics, whatever the model and the maps."""

from types import SimpleNamespace

import pytest
import torch

from mhex.errors import ArgumentError, MhexWarning
from mhex.metrics.case import Case
from mhex.metrics.deletion import deletion
from mhex.metrics.fidelity import fidelity
from mhex.metrics.insertion import insertion
from mhex.metrics.registry import get_metric
from mhex.perturb import MaskedPass, PerturbationSweep, Subject, area, counts, ranks
from support.additive_models import Additive
from support.tiny_models import pictures, tiny

NAMES = (
    "aopc",
    "average-drop",
    "deletion",
    "effective-average-drop",
    "fidelity",
    "increase-in-confidence",
    "insertion",
    "log-odds",
    "perturbation-auc",
    "soft-average-drop",
)
COLOURS = SimpleNamespace(mean=[0.4], std=[0.5])
COUNT = 5


def subject_of(part=slice(None), model=None, **options):
    """Some of five images, with labels and their numbers in the data set."""
    label = torch.tensor([0, 1, 2, 1, 0])
    ids = torch.arange(20, 20 + COUNT)
    options = {"preprocess": COLOURS, **options}
    return Subject(model or tiny("cnn"), pictures(COUNT)[part], label[part], ids[part].tolist(), **options)


def maps(part=slice(None)):
    """With ties in them."""
    return torch.randn(COUNT, 4, 4, generator=torch.Generator().manual_seed(8)).round(decimals=0)[part]


def additive(height, width, count=3):
    """Images, a model that is not linear in its probabilities, and maps with ties."""
    random = torch.Generator().manual_seed(4)
    model = Additive(torch.randn(3, height * width, generator=random))
    x = torch.randn(count, 1, height, width, generator=random, dtype=torch.float64)
    return model, x, torch.randn(count, height, width, generator=random).round(decimals=0)


def inserted_by_hand(model, x, saliency, subject, steps):
    """Probabilities of the class while the most important units are put into a black image, (B, T + 1)."""
    units = saliency[0].numel()
    place = ranks(saliency.flatten(1), subject.ids)
    curve = []
    for n in counts(torch.tensor(units), steps).tolist():
        put = torch.where((place < n).view_as(saliency)[:, None], x, torch.zeros_like(x))
        curve.append(model(put).softmax(1).gather(1, subject.predicted[:, None]))
    return torch.cat(curve, 1)


@pytest.mark.parametrize(
    ("height", "width", "steps"), [(4, 4, 4), (4, 4, 5), (2, 5, 7), (3, 5, 5), (3, 3, 7), (3, 3, 1)]
)
def test_insertion_is_removal_of_the_least_read_backwards(height, width, steps):
    model, x, saliency = additive(height, width)
    subject = Subject(model, x)
    result = PerturbationSweep("zero", steps=steps)(subject, None, saliency)
    by_hand = inserted_by_hand(model, x, saliency, subject, steps)
    assert torch.allclose(result.curve("lif").flip(1), by_hand, atol=1e-12)
    assert torch.allclose(insertion(result), area(by_hand), atol=1e-12)
    assert torch.allclose(insertion(result), area(result.curve("lif")), atol=1e-15)


def test_an_odd_number_of_units_has_no_middle():
    """With even steps the point in the middle is off by one unit, and it alone."""
    model, x, saliency = additive(3, 5)
    subject = Subject(model, x)
    result = PerturbationSweep("zero", steps=4)(subject, None, saliency)
    off = (result.curve("lif").flip(1) - inserted_by_hand(model, x, saliency, subject, 4)).abs().amax(0) > 1e-12
    assert off.tolist() == [False, False, True, False, False]


def test_reversed_maps_swap_the_orders():
    subject = subject_of()
    saliency = torch.randn(COUNT, 4, 4, generator=torch.Generator().manual_seed(8))  # no ties
    sweep = PerturbationSweep("mean", steps=8)
    one, other = sweep(subject, None, saliency), sweep(subject, None, -saliency)
    assert torch.allclose(one.curve("mif"), other.curve("lif"), atol=1e-12)
    assert torch.allclose(fidelity(one)[:, 0], -fidelity(other)[:, 0], atol=1e-9)


def test_class_agnostic_maps_do_not_discriminate():
    """The same map for both classes, the logit of the first read twice: exactly zero."""
    subject, saliency = subject_of(), maps()
    first, second = torch.tensor([0, 1, 2, 1, 0]), torch.tensor([1, 2, 0, 0, 2])
    sweep = PerturbationSweep("blur", steps=5)
    right = sweep(subject, None, saliency, first)
    wrong = sweep(subject, None, saliency, second, other_class=first)
    assert torch.equal(fidelity(right) - fidelity(wrong, scored="other"), torch.zeros(COUNT, 3, dtype=torch.float64))
    # It is not that nothing is measured.
    assert not torch.equal(fidelity(right), fidelity(wrong))
    assert bool((fidelity(right)[:, 0] != 0).all())


def values(name, subject, saliency):
    """The metric after one batch."""
    metric = get_metric(name).metric()
    metric.update(*metric.of(Case(subject, saliency)))
    return metric


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_is_the_mean_of_singles(name):
    whole = values(name, subject_of(), maps()).compute()
    metric = get_metric(name).metric()
    rows = []
    for k in range(COUNT):
        part = slice(k, k + 1)
        results = metric.of(Case(subject_of(part), maps(part)))
        metric.update(*results)
        rows.append(metric.score(*results).double().view(1, -1))
    assert whole["value"] == pytest.approx(float(metric.summary(torch.cat(rows))[0]), abs=1e-9)
    together = metric.compute()
    assert together["n"] == COUNT
    for output, found in together["all"].items():
        assert found == pytest.approx(whole["all"][output], abs=1e-9, nan_ok=True), output


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [1, 3, 64])
def test_sizes_of_passes_do_not_matter(name, size):
    wanted = values(name, subject_of(), maps()).rows()[1]
    found = values(name, subject_of(batch_size=size), maps()).rows()[1]
    assert torch.allclose(found, wanted, atol=1e-9, equal_nan=True)


@pytest.mark.parametrize("reference", ["zero", "mean", "blur", "black", "impute"])
def test_sizes_of_passes_do_not_matter_for_any_reference(reference):
    sweep = PerturbationSweep(reference, steps=4)
    wanted = deletion(sweep(subject_of(), None, maps()))
    assert torch.allclose(deletion(sweep(subject_of(batch_size=3), None, maps())), wanted, atol=1e-6)
    back = torch.tensor([4, 2, 0, 1, 3])
    turned = subject_of(back)
    assert torch.allclose(deletion(sweep(turned, None, maps(back))), wanted[back], atol=1e-6)


class Softmaxed(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model(x).softmax(1)


@pytest.mark.parametrize("runner", [PerturbationSweep("zero", steps=4), MaskedPass()])
def test_a_softmax_at_the_end_changes_nothing(runner):
    with pytest.warns(MhexWarning, match="ends in a softmax"):
        ended = runner(subject_of(model=Softmaxed(tiny("cnn"))), None, maps())
    plain = runner(subject_of(model=tiny("cnn")), None, maps())
    tensors = [(value, getattr(ended, name)) for name, value in vars(plain).items() if isinstance(value, torch.Tensor)]
    assert tensors
    for value, other in tensors:
        torch.testing.assert_close(other, value, equal_nan=True)


@pytest.mark.parametrize("runner", [PerturbationSweep("zero", steps=4), MaskedPass()])
def test_bad_input_is_refused_in_a_sentence(runner):
    for wrong in (maps()[:3], maps()[:, None], maps()[0], maps().tolist()):
        with pytest.raises(ArgumentError, match=r"one map for each of 5 samples, of shape \(B, H, W\)"):
            runner(subject_of(), None, wrong)
    with pytest.raises(ArgumentError, match=r"size of the images, 4x4, .* but got 6x6"):
        runner(subject_of(), None, torch.zeros(COUNT, 6, 6))
    for bad in (torch.nan, torch.inf):
        with pytest.raises(ArgumentError, match="finite maps"):
            runner(subject_of(), None, maps().index_fill(0, torch.tensor([2]), bad))
    broken = Additive(torch.full((2, 16), torch.nan))
    with pytest.raises(ArgumentError, match="gave NaN"):
        runner(subject_of(model=broken), None, maps())


def test_coarse_maps_are_not_of_the_wrong_size():
    result = PerturbationSweep("zero", "patch", 4)(subject_of(), None, maps()[:, ::2, ::2])
    assert result.units.tolist() == [4] * COUNT
    with pytest.raises(ArgumentError, match="grid divides images"):
        PerturbationSweep("zero", "patch", 4)(subject_of(), None, torch.zeros(COUNT, 3, 3))
