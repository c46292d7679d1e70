"""Judging: rows, resuming, caches, what is refused, and that nothing depends on how samples are batched."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import mhex
from mhex.errors import ArgumentError, ArgumentTypeError, MhexWarning, UnsupportedModelError
from mhex.inputs.samples import Samples
from mhex.judge import evaluation as judging
from mhex.judge.cases import digests
from mhex.perturb import PerturbationSweep, Subject
from mhex.perturb import subject as subjects

ZERO = {"reference": "zero", "steps": 10}
DELETION = "deletion (reference=zero, steps=10)"
METRICS = [("deletion", ZERO), ("perturbation-auc", ZERO), "segmentation", "average-drop"]


class Small(nn.Module):
    """A network of two convolutions, whose passes are counted."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 6, 3, 2, 1), nn.Conv2d(6, 8, 3, 2, 1)
        self.head = nn.Linear(8, 4)
        self.seen = 0

    def forward(self, x: Tensor) -> Tensor:
        self.seen += len(x)
        x = torch.relu(self.second(torch.relu(self.first(x))))
        return 3 * self.head(x.mean((2, 3)))


@pytest.fixture
def model() -> Small:
    torch.manual_seed(0)
    return Small().double().eval()


@pytest.fixture
def data() -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(1)
    masks = (torch.rand(5, 16, 16) > 0.5).long()
    return torch.randn(5, 3, 16, 16).double(), torch.tensor([0, 1, 2, 3, 0]), masks


def rows_of(report: mhex.Report) -> dict[tuple[Any, ...], float]:
    names = ("image", "method", "options", "metric", "column")
    return {tuple(row[name] for name in names): row["value"] for row in report.rows.to_pylist()}


def assert_equal_rows(one: mhex.Report, other: mhex.Report) -> None:
    assert one.rows.num_rows == other.rows.num_rows
    first, second = rows_of(one), rows_of(other)
    assert len(first) == one.rows.num_rows
    assert first.keys() == second.keys()
    for key, value in first.items():
        both = math.isnan(value) and math.isnan(second[key])
        assert both or math.isclose(value, second[key], rel_tol=1e-9, abs_tol=1e-12), key


def test_every_image_method_and_number_has_a_row(model: Small, data: Any) -> None:
    report = mhex.evaluate(model, data, ["gradcam", ("lrp", {"rule": "gamma"})], METRICS)
    assert report.methods == [
        "gradcam",
        "lrp (rule=gamma)",
        "control:random",
        "control:gaussian",
        "control:sobel",
    ]
    names = ("deletion", "perturbation-auc", "segmentation", "average-drop")
    wide = sum(len(mhex.metrics.get_metric(name).metric.columns) for name in names)
    assert report.rows.num_rows == 5 * 5 * wide
    assert sorted(set(report.rows.column("image").to_pylist())) == list(range(5))


def test_values_are_those_of_the_function_by_hand(model: Small, data: Any) -> None:
    x, y, _ = data
    report = mhex.evaluate(model, (x, y), ["gradcam"], [("deletion", ZERO)], controls=False)
    maps = mhex.explain(model, x, "gradcam").scores
    sweep = PerturbationSweep("zero", "pixel", 10)
    result = sweep(Subject(model, x, y), None, maps, model(x).argmax(1))
    wanted = torch.trapezoid(result.curve("mif"), dx=0.1, dim=1)
    found = report.per_image(DELETION)["gradcam"]
    assert torch.allclose(found, wanted, 1e-9)


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("inner", [1, 3, None])
def test_batches_change_nothing(model: Small, data: Any, size: int, inner: int | None) -> None:
    metrics = [("deletion", ZERO), "average-drop", ("box-sensitivity", {"sizes": (4, 6), "count": 12})]
    wanted = mhex.evaluate(model, data, ["gradcam"], metrics)
    assert_equal_rows(mhex.evaluate(model, data, ["gradcam"], metrics, batch_size=size, inner_batch=inner), wanted)


def test_forms_of_data_are_the_same(model: Small, data: Any) -> None:
    x, y, masks = data
    wanted = mhex.evaluate(model, data, ["gradcam"], METRICS)
    items = [{"inputs": a, "label": int(b), "mask": c} for a, b, c in zip(x, y, masks, strict=True)]
    loader = DataLoader(TensorDataset(x, y, masks), batch_size=2)
    lists = [(x[:3], y[:3].tolist(), masks[:3]), (x[3:], y[3:].tolist(), masks[3:])]
    loaders = (loader, iter(lists))
    for form in (items, *loaders, {"inputs": x, "label": y, "mask": masks}, TensorDataset(x, y, masks)):
        assert_equal_rows(mhex.evaluate(model, form, ["gradcam"], METRICS, batch_size=3), wanted)
    photos = [Image.new("RGB", (16, 16), (40 * n, 80, 120)) for n in range(3)]

    def tensor(photo: Any) -> Tensor:
        return torch.tensor(list(photo.getdata())).double().view(16, 16, 3).permute(2, 0, 1) / 255

    report = mhex.evaluate(model, photos, ["gradcam"], [("deletion", ZERO)], preprocess=tensor, limit=2)
    assert sorted(set(report.rows.column("image").to_pylist())) == [0, 1]


def test_passes_are_shared(model: Small, data: Any) -> None:
    """One sweep of both orders serves all metrics that can read it, and boxes serve all methods."""
    x, y, _ = data
    curves = [(name, ZERO) for name in ("deletion", "insertion", "aopc", "log-odds", "perturbation-auc", "fidelity")]
    mhex.evaluate(model, (x, y), ["gradcam"], curves[-1:], controls=False)
    alone, model.seen = model.seen, 0
    mhex.evaluate(model, (x, y), ["gradcam"], curves, controls=False)
    assert model.seen == alone
    boxes = [("box-sensitivity", {"sizes": (4, 6), "count": 10})]
    model.seen = 0
    mhex.evaluate(model, x, ["gradcam"], boxes, controls=False)
    one, model.seen = model.seen, 0
    mhex.evaluate(model, x, ["gradcam"], boxes)
    assert model.seen == one  # control maps need no pass of their own


def test_a_broken_run_goes_on(model: Small, data: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is lost and nothing computed twice; the result is that of a run that was not broken."""
    wanted = mhex.evaluate(model, data, ["gradcam", "layercam"], METRICS, batch_size=2)
    whole, calls = judging.case_of, 0

    def breaking(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 8:
            raise KeyboardInterrupt
        return whole(*args)

    monkeypatch.setattr(judging, "case_of", breaking)
    with pytest.raises(KeyboardInterrupt):
        mhex.evaluate(model, data, ["gradcam", "layercam"], METRICS, batch_size=2, out=tmp_path)
    kept = mhex.Report.load(tmp_path)
    assert 0 < kept.rows.num_rows < wanted.rows.num_rows
    calls = 100
    made: list[int] = []
    monkeypatch.setattr(judging, "case_of", lambda *args: made.append(1) or whole(*args))
    report = mhex.evaluate(model, data, ["gradcam", "layercam"], METRICS, batch_size=2, out=tmp_path)
    assert len(made) == 3 * 5 - 7  # batches times methods and controls, less those that were done
    assert_equal_rows(report, wanted)
    assert_equal_rows(mhex.Report.load(tmp_path), wanted)
    made.clear()
    mhex.evaluate(model, data, ["gradcam", "layercam"], METRICS, batch_size=2, out=tmp_path)
    assert not made


def test_cached_maps_are_judged_again(model: Small, data: Any, tmp_path: Any) -> None:
    x, y, _ = data
    mhex.evaluate(model, (x, y), ["gradcam"], [("deletion", ZERO)], controls=False, cache=tmp_path)
    model.seen = 0
    wanted = mhex.evaluate(model, (x, y), ["gradcam"], ["compactness"], controls=False)
    fresh, model.seen = model.seen, 0
    found = mhex.evaluate(model, (x, y), ["gradcam"], ["compactness"], controls=False, cache=tmp_path)
    assert model.seen <= fresh - 5  # what is left is the clean pass, and a look at the model
    assert_equal_rows(found, wanted)
    model.head.weight.data += 1  # another model has maps of its own
    model.seen = 0
    mhex.evaluate(model, (x, y), ["gradcam"], ["compactness"], controls=False, cache=tmp_path)
    assert model.seen == fresh


def test_reports_are_saved_and_joined(model: Small, data: Any, tmp_path: Any) -> None:
    report = mhex.evaluate(model, data, ["gradcam"], METRICS)
    assert_equal_rows(mhex.Report.load(report.to_parquet(tmp_path / "rows.parquet")), report)
    other = mhex.evaluate(model, data, ["layercam"], METRICS)
    joined = report.merge(other, report)
    assert joined.methods == [*report.methods, "layercam"]
    both = mhex.evaluate(model, data, ["gradcam", "layercam"], METRICS)
    assert_equal_rows(joined, both)
    assert joined.only(methods=["layercam"]).methods == ["layercam"]


def test_a_report_prints_tables_with_its_samples_and_settings(model: Small, data: Any) -> None:
    report = mhex.evaluate(model, data, ["gradcam", "layercam"], METRICS[:2])
    text = report.table(width=200)
    assert f"{DELETION} ↓" in text
    assert "perturbation-auc (reference=zero, steps=10) difference ↑" in text
    assert "n = 5; 5 samples are too few to show any difference; reference=zero, steps=10" in text
    assert report.compare("deletion")["gradcam", "layercam"].n == 5  # the only deletion is found by its name alone
    assert report.table("markdown").count("|---") == 3
    assert r"\begin{tabular}{lrr}" in report.table("latex")
    assert "<table>" in report.to_html()
    assert "positive_on_correct" in report.table(outputs="all")
    with pytest.raises(ArgumentError, match="Expected form to be one of"):
        report.table("word")


def test_the_best_is_marked_alone_only_if_it_is_shown_to_be(model: Small) -> None:
    """A map that is right for an additive model beats the controls; two equal ones are both marked."""
    torch.manual_seed(3)
    x = torch.randn(40, 3, 16, 16).double()
    report = mhex.evaluate(model, x, ["input-x-gradient", ("occlusion", {"fill": "zero", "patch": 2})], ["saco"])
    cells = {cell.method: cell for cell in report.summary() if cell.output == "value"}
    marked = {name for name, cell in cells.items() if cell.marked}
    best = max(cells.values(), key=lambda cell: cell.value)
    assert best.method in marked
    assert "control:random" not in marked
    pair = report.compare("saco")[best.method, "control:random"]
    assert pair.difference > 0
    assert pair.adjusted < 0.05


def test_what_is_refused(model: Small, data: Any) -> None:
    x, y, _ = data
    with pytest.raises(ArgumentError, match="'segmentation' needs a mask"):
        mhex.evaluate(model, (x, y), ["gradcam"], ["segmentation"])
    with pytest.raises(ArgumentError, match="'perturbation-auc' needs a label"):
        mhex.evaluate(model, x, ["gradcam"], ["perturbation-auc"])
    with pytest.raises(ArgumentError, match="needs another class"):
        mhex.evaluate(model, x, ["gradcam"], ["class-discrimination"])
    with pytest.raises(UnsupportedModelError, match="gae"):
        mhex.evaluate(model, x, ["gae"], ["deletion"])
    with pytest.raises(ArgumentError, match="'deletions'"):
        mhex.evaluate(model, x, ["gradcam"], ["deletions"])
    with pytest.raises(ArgumentError, match="The protocol has no part"):
        mhex.evaluate(model, x, ["gradcam"], [("deletion", {"stepps": 3})])
    with pytest.raises(ArgumentError, match="is not defined for image models"):
        mhex.evaluate(model, x, ["gradcam"], ["token-f1"])
    with pytest.raises(ArgumentError, match="at least one sample"):
        mhex.evaluate(model, [], ["gradcam"], ["deletion"])
    with pytest.raises(ArgumentError, match="gradcam twice"):
        mhex.evaluate(model, x, ["gradcam", "gradcam"], ["deletion"])
    with pytest.raises(ArgumentError, match="batch_size to be a whole number"):
        mhex.evaluate(model, x, ["gradcam"], ["deletion"], batch_size=0)
    with pytest.raises(ArgumentTypeError, match=r"a list.*but got str"):
        mhex.evaluate(model, "photos", ["gradcam"], ["deletion"])
    with pytest.raises(ArgumentError, match="target='label'"):
        mhex.evaluate(model, x, ["gradcam"], [("deletion", ZERO)], target="label")
    with pytest.raises(ArgumentError, match="outputs 'logits' or 'probabilities'"):
        mhex.evaluate(model, x, ["gradcam"], [("deletion", ZERO)], outputs="shares")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="Expected outputs between 0 and 1"):
        mhex.evaluate(model, x, ["gradcam"], [("deletion", ZERO)], outputs="probabilities")


def test_black_needs_the_normalisation(model: Small, data: Any) -> None:
    with pytest.raises(ArgumentError, match="preprocess= with mean and std for the reference 'black'"):
        mhex.evaluate(model, data, ["gradcam"], ["aopc"])


def test_class_discrimination_of_a_map_that_knows_no_class(model: Small, data: Any) -> None:
    """Images with one class alone are skipped, and said to be."""
    x, y, _ = data
    other = torch.tensor([1, -1, 0, 0, 2])
    items = {"inputs": x, "label": y, "other": other}
    part = {"reference": "zero", "steps": 5, "sizes": (4,), "count": 8}
    known = {
        k: v for k, v in part.items() if hasattr(mhex.metrics.get_metric("class-discrimination").presets["default"], k)
    }
    report = mhex.evaluate(model, items, ["eigencam"], [("class-discrimination", known)], target="label")
    cell = next(cell for cell in report.summary() if cell.method == "eigencam")
    assert cell.value == 0
    assert (cell.n, cell.skipped) == (4, 1)


def test_texts_have_protocols_of_their_own_and_padding_changes_nothing() -> None:
    """Words and tokens are judged by protocols of their own, and padding changes nothing."""
    from support.tiny_bert import bert
    from support.tiny_bert import tokenizer as make_tokenizer

    model, tokenizer = bert(), make_tokenizer()
    texts = ["the movie was good", "a bad bad film", "good"]
    items = [{"text": text, "label": n % 2} for n, text in enumerate(texts)]
    metrics = ["deletion", "aopc", "compactness", "comprehensiveness"]
    report = mhex.evaluate(model, items, ["gae", "attention"], metrics, tokenizer=tokenizer)
    assert report.methods == ["gae", "attention", "control:random", "control:first", "control:last"]
    assert "reference=drop" in report.protocol("deletion:text")
    alone = mhex.evaluate(model, items, ["gae", "attention"], metrics, tokenizer=tokenizer, batch_size=1)
    assert_equal_rows(report, alone)


def test_other_data_seeds_and_models_are_not_taken_for_these(model: Small, data: Any, tmp_path: Any) -> None:
    """In the folder of a run, and in the cache of maps."""
    x, y, _ = data
    kept = {"out": tmp_path / "rows", "cache": tmp_path / "maps", "controls": False}
    mhex.evaluate(model, (x, y), ["gradcam"], [("deletion", ZERO)], **kept)
    fresh = mhex.evaluate(model, (x.flip(0), y), ["gradcam"], [("deletion", ZERO)], controls=False)
    assert_equal_rows(mhex.evaluate(model, (x.flip(0), y), ["gradcam"], [("deletion", ZERO)], **kept), fresh)
    for changes in ({"target": "label"}, {"seed": 3}, {"task": "multi-label"}):
        with pytest.raises(ArgumentError, match="of another model, target, task or seed"):
            mhex.evaluate(model, (x, y), ["gradcam"], [("deletion", ZERO)], **kept, **changes)
    model.head.weight.data = model.head.weight.data.flip(0)  # the same numbers in another order
    with pytest.raises(ArgumentError, match="of another model, target, task or seed"):
        mhex.evaluate(model, (x, y), ["gradcam"], [("deletion", ZERO)], **kept)
    wanted = mhex.evaluate(model, (x, y), ["gradcam"], ["compactness"], controls=False)
    found = mhex.evaluate(model, (x, y), ["gradcam"], ["compactness"], controls=False, cache=tmp_path / "maps")
    assert_equal_rows(found, wanted)


def test_a_report_has_what_was_asked_for(model: Small, data: Any, tmp_path: Any) -> None:
    """Once each, also where the folder has more, and less."""
    x, y, _ = data
    few = mhex.evaluate(model, (x, y), ["gradcam"], [("deletion", ZERO)], controls=False, out=tmp_path, limit=2)
    assert few.rows.num_rows == 2
    whole = mhex.evaluate(model, (x, y), ["gradcam"], [("deletion", ZERO)], controls=False, out=tmp_path)
    assert whole.rows.num_rows == mhex.Report.load(tmp_path).rows.num_rows == 5
    again = mhex.evaluate(model, (x, y), ["layercam"], [("deletion", ZERO)], controls=False, out=tmp_path, limit=2)
    assert again.methods == ["layercam"]
    assert again.rows.num_rows == 2
    two = [("deletion", ZERO), ("deletion", {**ZERO, "reference": "mean"})]
    both = mhex.evaluate(model, (x, y), ["gradcam"], two, controls=False, out=tmp_path)
    assert both.metrics == [DELETION, "deletion (reference=mean, steps=10)"]
    assert both.rows.num_rows == 10
    with pytest.raises(ArgumentError, match="Expected each metric once"):
        mhex.evaluate(model, (x, y), ["gradcam"], [two[0], two[0]])


def test_a_loaded_report_knows_its_protocols(model: Small, data: Any, tmp_path: Any) -> None:
    metrics = [("average-drop", {"mode": "keep"}), ("segmentation", {"chosen_on": "all"}), "deletion:mhex"]
    report = mhex.evaluate(model, data, ["gradcam", "layercam"], metrics)
    loaded = mhex.Report.load(report.to_parquet(tmp_path / "rows.parquet"))
    assert loaded.table(outputs="all") == report.table(outputs="all")
    assert "average-drop (mode=keep) ↓" in loaded.table(width=200)


def test_the_seed_reaches_the_boxes(model: Small, data: Any) -> None:
    boxes = [("box-sensitivity", {"sizes": (4, 6), "count": 12})]
    one, other = (mhex.evaluate(model, data[0], ["gradcam"], boxes, controls=False, seed=seed) for seed in (0, 7))
    assert not torch.equal(*(next(iter(r.per_image(r.metrics[0]).values())) for r in (one, other)))


def test_word_numbers_of_texts_stay_lists() -> None:
    from mhex.inputs.samples import in_samples

    items = [{"text": "a b c", "rationale": [0, 2]}, {"text": "d e", "rationale": [1]}]
    (batch,) = in_samples(items, 4)
    assert batch.rationale == [[0, 2], [1]]


def test_masks_of_cropped_photos_are_not_guessed(model: Small) -> None:
    photo = Image.new("RGB", (48, 16), (90, 80, 120))

    def crop(photo: Any) -> Tensor:
        inside = photo.crop((16, 0, 32, 16))
        return torch.tensor(list(inside.getdata())).double().view(16, 16, 3).permute(2, 0, 1) / 255

    items = [{"image": photo, "mask": torch.ones(16, 48).long()}]
    with pytest.raises(ArgumentError, match="does not say that it crops nothing"):
        mhex.evaluate(model, items, ["gradcam"], ["segmentation"], preprocess=crop)


def test_another_judge_does_not_choose_the_class(model: Small, data: Any) -> None:
    """The class that the explained model predicts is explained, and the other model's outputs are read."""
    torch.manual_seed(9)
    judge = Small().double().eval()
    judge.head.bias.data[3] = 50.0
    x, _, _ = data
    seen: list[Tensor] = []
    whole = judging.case_of
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(judging, "case_of", lambda *args: seen.append(whole(*args).explained) or whole(*args))
        mhex.evaluate(model, x, ["gradcam"], [("deletion", ZERO)], controls=False, evaluator=judge)
    assert torch.equal(seen[0], model(x).argmax(1))
    assert bool((judge(x).argmax(1) == 3).all())


@pytest.mark.parametrize("name", ["label", "mask", "other", "tiles", "rationale"])
def test_a_sample_is_known_by_what_the_data_says_of_it(model: Small, name: str) -> None:
    """So that rows by another mask are not taken for these."""
    x = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(0)).double()
    subject = Subject(model, x)
    zeros, one = torch.zeros(2, 4).long(), torch.tensor([[0] * 4, [0, 0, 0, 1]])
    forms: dict[str, Any] = {
        "label": (zeros[:, 0], one[:, 3]),
        "other": (zeros[:, 0], one[:, 3]),
        "tiles": (zeros, one),
        "mask": ([row.view(2, 2) for row in zeros], [row.view(2, 2) for row in one]),
        "rationale": ([[0], [0]], [[0], [1]]),
    }
    before, after = (digests(Samples(x, (0, 1), **{name: value}), subject) for value in forms[name])
    assert before[0] == after[0]
    assert before[1] != after[1]
    assert digests(Samples(x, (0, 1)), subject)[0] != before[0]


def test_parts_of_protocols_that_functions_have(model: Small, data: Any) -> None:
    zero: Any = {"reference": "zero", "steps": 5}
    metrics: Any = [("log-odds", {**zero, "true_odds": one}) for one in (False, True)]
    metrics += [("fidelity", {**zero, "centred": one}) for one in (False, True)]
    report = mhex.evaluate(model, data[0], ["gradcam"], metrics, controls=False)
    assert "true_odds=True" in report.protocol(report.metrics[1])
    assert "centred=True" in report.protocol(report.metrics[3])
    for plain, other in (report.metrics[:2], report.metrics[2:]):
        first, second = (report.values(name)[1]["gradcam"] for name in (plain, other))
        assert not torch.allclose(first, second, rtol=1e-3)


class Counting:
    """A preprocessing that counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, photo: Image.Image) -> Tensor:
        self.calls += 1
        return torch.from_numpy(np.array(photo)).permute(2, 0, 1).double() / 255


def photographs(count: int) -> list[Image.Image]:
    draw = np.random.default_rng(0)
    return [Image.fromarray(draw.integers(0, 255, (16, 16, 3), dtype=np.uint8)) for _ in range(count)]


@pytest.mark.parametrize("judge", [False, True], ids=["own", "evaluator"])
def test_a_photo_is_preprocessed_once(model: Small, judge: bool) -> None:
    """For all methods, controls and metrics, with another model as evaluator, and where maps are made again."""
    counting = Counting()
    evaluator = copy.deepcopy(model) if judge else None
    metrics: Any = [("deletion", ZERO), ("max-sensitivity", {"draws": 1, "units": "model"})]
    methods = ["gradcam", "layercam", "input-x-gradient", "occlusion"]
    asked: Any = {"preprocess": counting, "batch_size": 2, "evaluator": evaluator}
    report = mhex.evaluate(model, photographs(5), methods, metrics, **asked)
    assert counting.calls == 5
    assert report.skipped()["gradcam"][DELETION] == 0


def test_a_race_preprocesses_a_photo_once(model: Small) -> None:
    counting = Counting()
    given: Any = {"methods": ["gradcam", "layercam"], "images": 7, "preprocess": counting, "score": ("deletion", ZERO)}
    answer = mhex.recommend(model, photographs(9), 600, **given)
    assert answer.table[0].images == counting.calls == 7


class Sick(Small):
    """A model that gives NaN for dark photos."""

    def forward(self, x: Tensor) -> Tensor:
        scores = super().forward(x)
        return scores.masked_fill(x.flatten(1).sum(1, keepdim=True) == 0, torch.nan)


def test_photos_beside_one_without_scores_are_preprocessed_once() -> None:
    torch.manual_seed(0)
    model, counting = Sick().double(), Counting()
    photos, metrics = photographs(3), [("deletion", {"reference": "mean", "steps": 10})]
    photos[1] = Image.new("RGB", (16, 16))
    with pytest.warns(MhexWarning, match="1 of 3 samples could not be judged"):
        report = mhex.evaluate(model, photos, ["gradcam"], metrics, preprocess=counting)
    assert counting.calls == 3
    healthy = Small().double()
    healthy.load_state_dict(model.state_dict())
    wanted = mhex.evaluate(healthy, photos, ["gradcam"], metrics, preprocess=Counting()).values("deletion")[1][
        "gradcam"
    ]
    assert bool(wanted.isfinite().all())
    torch.testing.assert_close(report.values("deletion")[1]["gradcam"][[0, 2]], wanted[[0, 2]])


def test_what_an_evaluator_returns_is_recognised_once(model: Small, data: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A later batch whose scores happen to look like probabilities is read as the first one."""
    original, asked = subjects.find_ending, []

    def watched(module: Any, batch: Any, logits: Any, outputs: Any, *rest: Any) -> Any:
        asked.append((module is evaluator, outputs))
        return original(module, batch, logits, outputs, *rest)

    monkeypatch.setattr(subjects, "find_ending", watched)
    evaluator = copy.deepcopy(model)
    mhex.evaluate(model, data[0], ["gradcam"], [("deletion", ZERO)], evaluator=evaluator, batch_size=2)
    assert asked.count((True, None)) == 1
    assert asked.count((True, "logits")) == 3


def test_a_report_is_saved_as_a_run_is(model: Small, data: Any, tmp_path: Path) -> None:
    wanted = mhex.evaluate(model, data, ["gradcam"], METRICS, out=tmp_path / "run", batch_size=2)
    assert wanted.save(tmp_path / "saved") == tmp_path / "saved"
    saved = mhex.Report.load(tmp_path / "saved")
    assert_equal_rows(saved, wanted)
    assert saved.lost == wanted.lost
    assert saved.remarks == []
    metric = next(name for name in wanted.metrics if wanted.has_curves(name))
    torch.testing.assert_close(saved.curves(metric)[2], wanted.curves(metric)[2], equal_nan=True)
    assert (tmp_path / "saved" / "run.json").read_text() == (tmp_path / "run" / "run.json").read_text()
    # The same call finds all of its rows there.
    again = mhex.evaluate(model, data, ["gradcam"], METRICS, out=tmp_path / "saved", batch_size=2)
    assert_equal_rows(again, wanted)
    assert len(list((tmp_path / "saved").glob("part-*.parquet"))) == 1
    with pytest.raises(ArgumentError, match=r"Expected a folder without rows, but .* has some"):
        wanted.save(tmp_path / "saved")


def test_sweeps_run_the_model_under_the_autocast_of_the_caller() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)).eval()
    seen: list[bool] = []
    model[0].register_forward_hook(lambda *_: seen.append(torch.is_autocast_enabled("cpu")))
    data = [(torch.randn(3, 8, 8), 0) for _ in range(2)]
    with torch.backends.mkldnn.flags(enabled=False), torch.autocast("cpu", torch.bfloat16):
        mhex.evaluate(model, data, methods=["gradcam"], metrics=["deletion"], progress=False)
    assert len(seen) > 2
    assert all(seen)
