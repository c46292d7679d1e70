"""The metrics of one pass with a part hidden: closed-form values, presets, and what is forbidden."""

import math

import pytest
import torch

from mhex.errors import ArgumentError
from mhex.metrics.average_drop import AverageDrop, average_drop
from mhex.metrics.case import Case
from mhex.metrics.effective_average_drop import EffectiveAverageDrop, area_weight, effective_average_drop
from mhex.metrics.increase_in_confidence import IncreaseInConfidence, increase_in_confidence
from mhex.metrics.soft_average_drop import SoftAverageDrop, soft_average_drop
from mhex.perturb import MaskedPass, Subject, minmax
from support.additive_models import Additive, bin4
from support.tiny_bert import TEXTS, ask, bert, scores_of, tokenizer

FIRST = torch.tensor([0])


def near(value, wanted):
    assert torch.allclose(torch.as_tensor(value).double(), torch.tensor(wanted).double(), atol=1e-6, rtol=0)


def masked(mode, saliency=None, x=None, **options):
    model, image, ideal = bin4()
    chosen = ideal if saliency is None else saliency
    return MaskedPass(mode, **options)(model, image if x is None else x, chosen, FIRST, label=FIRST)


def case_of(count=5, batch_size=None):
    """Random images and maps of BIN4's model."""
    draw = torch.Generator().manual_seed(2)
    x, saliency = (torch.randn(count, *shape, generator=draw).double() for shape in ((1, 2, 2), (2, 2)))
    subject = Subject(bin4()[0], x, label=torch.arange(count) % 2, batch_size=batch_size)
    return Case(subject, saliency, subject.predicted)


@pytest.mark.parametrize(("mode", "wanted"), [("remove", 0.110243), ("keep", 0.006783), ("soft-keep", 0.008780)])
def test_average_drop(mode, wanted):
    near(average_drop(masked(mode)), [wanted])


def test_average_drop_absolute():
    near(average_drop(masked("remove"), relative=False), [1024 / 1025 - 8 / 9])


def test_a_drop_is_never_below_zero_unless_absolute():
    result = masked("remove", x=-torch.ones(1, 1, 2, 2).double())
    near(average_drop(result), [0.0])
    assert float(average_drop(result, relative=False)) < 0


def test_the_threshold_is_strict():
    half = torch.tensor([[[1.0, 0.5], [0.5, 0.0]]]).double()
    near(average_drop(masked("remove", half)), average_drop(masked("remove", half, threshold=0.7)).tolist())


def test_increase_in_confidence():
    for mode in ("keep", "soft-keep"):
        near(increase_in_confidence(masked(mode)), [0.0])
    ones = torch.ones(1, 1, 2, 2).double()
    near(increase_in_confidence(masked("keep", threshold=-1.0)), [0.0])  # x' = x
    near(increase_in_confidence(masked("keep", x=-ones), "explained"), [1.0])


def test_soft_average_drop():
    model = Additive(torch.tensor([[2.0, 0.0]]), math.log(2), second=True)
    x = torch.tensor([[[[1.0, 0.0]]]]).double()
    soft = MaskedPass("soft-remove", "mean")
    near(soft_average_drop(soft(model, x, x[:, 0], FIRST)), [1 / 6])
    model, _, ideal = bin4()
    x = torch.tensor([[[[1.0, 1.0], [0.0, 0.0]]]]).double()
    near(soft_average_drop(soft(model, x, ideal, FIRST)), [0.039819])


def test_soft_average_drop_is_of_maps_scaled_from_0_to_1():
    model, x, ideal = bin4()
    x = x * torch.tensor([[1.0, 1.0], [0.0, 0.0]])
    soft = MaskedPass("soft-remove", "mean")
    plain, bent, moved, flat = (
        float(soft_average_drop(soft(model, x, maps, FIRST)))
        for maps in (ideal, ideal**3, 3 * ideal + 7, 0 * ideal + 1)
    )
    assert moved == pytest.approx(plain, abs=1e-12)
    assert abs(bent - plain) > 1e-4
    assert flat == 0


def test_the_mean_colour_is_of_each_channel():
    x = torch.tensor([[[[1.0, 0.0]], [[4.0, 2.0]]]]).double()
    model = Additive(torch.tensor([[1.0, 0.0, 2.0, 0.0]]), second=True)
    result = MaskedPass("soft-remove", "mean")(model, x, torch.tensor([[[1.0, 0.0]]]).double(), FIRST)
    near(result.after[:, 0], [torch.sigmoid(torch.tensor(0.5 + 2 * 3.0).double()).item()])


def test_area_weights():
    areas = torch.tensor([0.0, 0.1, 0.2, 0.25, 0.3, 0.5, 0.75, 1.0]).double()
    near(area_weight(areas), [0.0, 0.498723, 0.924283, 1.0, 0.924739, 0.277778, 0.060729, 0.019455])


def test_effective_average_drop():
    near(effective_average_drop(masked("remove")), [0.006695])
    near(effective_average_drop(masked("remove"), area_threshold=0.5), [0.030623])
    near(EffectiveAverageDrop(area_threshold=0.5).score(masked("remove")), [[0.030623, 0.5]])


def test_a_constant_map_has_no_area_and_no_drop():
    flat = torch.full((1, 2, 2), 3.0).double()
    assert not minmax(flat).any()
    near(average_drop(masked("remove", flat)), [0.0])
    near(effective_average_drop(masked("remove", flat)), [0.0])
    near(soft_average_drop(masked("soft-remove", flat, reference="mean")), [0.0])


def test_directions():
    assert AverageDrop().higher_is_better is True
    assert AverageDrop("gradcampp").higher_is_better is False
    assert AverageDrop(mode="keep").better == (False, None)
    assert AverageDrop("gradcampp").clone().higher_is_better is False
    assert SoftAverageDrop().higher_is_better is EffectiveAverageDrop().higher_is_better is True


@pytest.mark.parametrize("mode", ["remove", "soft-remove"])
def test_increase_needs_what_is_kept(mode):
    with pytest.raises(ArgumentError, match="measure the opposite"):
        IncreaseInConfidence(mode=mode)


def test_drops_refuse():
    with pytest.raises(ArgumentError, match="mode to be one of"):
        MaskedPass("hide")
    with pytest.raises(ArgumentError, match="give label="):
        average_drop(MaskedPass()(*bin4(), FIRST), "label")
    with pytest.raises(ArgumentError, match="scored to be one of"):
        average_drop(masked("remove"), "other")
    with pytest.raises(ArgumentError, match="reference to be one of"):
        masked("remove", reference="drop")
    with pytest.raises(ArgumentError, match="no part 'cut'"):
        AverageDrop(cut=3)
    with pytest.raises(ArgumentError, match=r"Unknown preset 'gradcam'. Did you mean 'gradcampp'"):
        AverageDrop("gradcam")
    with pytest.raises(ArgumentError, match="rounding to be 'up' or 'down'"):
        MaskedPass(rounding="half")
    with pytest.raises(ArgumentError, match="at least one token"):
        MaskedPass(most=0)


@pytest.mark.parametrize("metric", [AverageDrop, SoftAverageDrop, EffectiveAverageDrop, IncreaseInConfidence])
def test_a_batch_is_its_singles_whatever_the_chunks(metric):
    whole = case_of()
    rows = metric().score(*metric().of(whole))
    assert torch.allclose(metric().score(*metric().of(case_of(batch_size=2))), rows)
    for n in range(5):
        subject = Subject(bin4()[0], whole.subject.main[n : n + 1], ids=[n])
        alone = Case(subject, whole.saliency[n : n + 1], whole.explained[n : n + 1])
        assert torch.allclose(metric().score(*metric().of(alone))[0], rows[n])


def test_metrics_of_the_same_mask_share_its_pass():
    case = case_of()
    AverageDrop().of(case)
    passes = case.subject.passes
    EffectiveAverageDrop().of(case)
    AverageDrop("mhex").of(case)
    assert case.subject.passes == passes == 10  # as they are, and with the region removed
    IncreaseInConfidence().of(case)
    AverageDrop("gradcampp").of(case)
    assert case.subject.passes == 15


def test_unsure_images_are_counted():
    metric = AverageDrop("mhex")
    metric.update(*metric.of(case_of(40)))
    found = metric.compute()
    case = case_of(40)
    p = case.subject.logits.softmax(1).gather(1, case.subject.label[:, None])[:, 0]
    assert (found["n"], found["n_skipped"]) == (40, 0)
    assert found["all"]["unsure"]["value"] == pytest.approx(float((p < 0.01).double().mean()))
    assert 0 < found["all"]["unsure"]["value"] < 1


# --- texts -----------------------------------------------------------------------------------------------------------


def text_drop(preset, text, number):
    """Drops by hand: the `number` highest tokens of one text masked, relative to what was there and absolute."""
    ids, scores = tokenizer()(text)["input_ids"], scores_of(TEXTS)[TEXTS.index(text)]
    order = sorted(range(1, len(ids) - 1), key=lambda n: -float(scores[n]))
    before = ask(ids).softmax(0)
    after = ask([tokenizer().mask_token_id if n in order[:number] else i for n, i in enumerate(ids)]).softmax(0)
    label = int(before.argmax()) if preset == "text" else 1
    drop = float(before[label] - after[label])
    return max(0.0, drop / float(before[label])) if preset == "text" else drop


@pytest.mark.parametrize(("preset", "numbers"), [("text", (1, 1, 2)), ("mhex_text", (2, 1, 4))])
def test_text_presets_mask_so_many_tokens(preset, numbers):
    # 10, 2 and 20 tokens: a tenth rounded up, or a fifth rounded down, at least one.
    subject = Subject(bert(), TEXTS, label=[1, 1, 1], tokenizer=tokenizer())
    metric = AverageDrop(preset)
    found = metric.score(*metric.of(Case(subject, scores_of(TEXTS))))[:, 0]
    near(found, [text_drop(preset, text, number) for text, number in zip(TEXTS, numbers, strict=True)])


def test_a_text_may_bound_how_many_tokens():
    subject = Subject(bert(), TEXTS, label=[1, 1, 1], tokenizer=tokenizer())
    metric = AverageDrop("mhex_text", fraction=1.0, most=3)
    found = metric.score(*metric.of(Case(subject, scores_of(TEXTS))))[:, 0]
    near(found, [text_drop("mhex_text", text, number) for text, number in zip(TEXTS, (3, 2, 3), strict=True)])
    assert AverageDrop("mhex_text").protocol.most == 20


@pytest.mark.parametrize(
    ("fraction", "rounding", "numbers"),
    # Of 10, 2 and 20 tokens: 2.5, 0.5 and 5; or 2.2, 0.44 and 4.4, where the nearest number is not the one above.
    [(0.25, "down", (2, 1, 5)), (0.25, "up", (3, 1, 5)), (0.22, "down", (2, 1, 4)), (0.22, "up", (3, 1, 5))],
)
def test_shares_of_tokens_are_rounded(fraction, rounding, numbers):
    subject = Subject(bert(), TEXTS, label=[1, 1, 1], tokenizer=tokenizer())
    metric = AverageDrop("mhex_text", fraction=fraction, rounding=rounding)
    found = metric.score(*metric.of(Case(subject, scores_of(TEXTS))))[:, 0]
    near(found, [text_drop("mhex_text", text, number) for text, number in zip(TEXTS, numbers, strict=True)])


def test_texts_need_a_reference_of_theirs():
    case = Case(Subject(bert(), TEXTS, tokenizer=tokenizer()), scores_of(TEXTS))
    with pytest.raises(ArgumentError, match="a reference of texts"):
        AverageDrop().of(case)
