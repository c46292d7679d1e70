"""A sample that cannot be read, or for which the model gives NaN, costs itself and nothing else, and is told."""

from __future__ import annotations

import json
import pickle
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import mhex
from mhex.errors import ArgumentError, MhexWarning, NotFiniteOutputError, UnsupportedModelError
from mhex.inputs.samples import in_samples
from mhex.judge import cases
from mhex.lab.datasets import load_folder
from support.method_races import Linear, images
from support.method_races import run as raced


class Fussy(nn.Module):
    """A linear model whose scores are NaN for images with a pixel above 50."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Linear()

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.inner(x)
        return scores.masked_fill((x > 50).flatten(1).any(1)[:, None], torch.nan)


def spoiled(count: int, *places: int) -> Tensor:
    x = images(count).clone()
    x[list(places), 0, 0, 0] = 99
    return x


def judged(data: Any, model: nn.Module | None = None, **options: Any) -> mhex.Report:
    methods = options.pop("methods", ["input-x-gradient"])
    return mhex.evaluate(model or Fussy(), data, methods, ["compactness", DELETION], **options)


DELETION: Any = ("deletion", {"reference": "zero", "steps": 4})


def quiet(data: Any, **options: Any) -> mhex.Report:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return judged(data, **options)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Six photos of two classes, of which the third and the last cannot be read."""
    folder = tmp_path / "photos"
    for number in range(6):
        path = folder / ("cat" if number < 3 else "dog") / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.linear_gradient("L").rotate(30 * number).convert("RGB").save(path)
    damaged, empty = folder / "cat" / "2.png", folder / "dog" / "5.png"
    damaged.write_bytes(damaged.read_bytes()[:900])
    empty.write_bytes(b"")
    return folder


def prepared(photo: Image.Image) -> Tensor:
    pixels = torch.frombuffer(bytearray(photo.resize((8, 8)).convert("L").tobytes()), dtype=torch.uint8)
    return pixels.view(1, 8, 8).double() / 255 - 0.5


def of_folder(folder: Path, **options: Any) -> mhex.Report:
    return judged(load_folder(folder).items(), preprocess=prepared, batch_size=2, **options)


def test_damaged_photos_are_left_out_and_told(photos: Path, tmp_path: Path) -> None:
    with pytest.warns(MhexWarning, match=r"2 of 6 samples could not be judged: sample 2: 2\.png .*; sample 5: 5\.png"):
        report = of_folder(photos, out=tmp_path / "out")
    assert report.values("compactness")[0].tolist() == [0, 1, 3, 4]
    assert list(report.lost) == [2, 5]
    again = mhex.Report.load(tmp_path / "out")
    assert again.lost == report.lost
    assert again.broken == ""
    for form in ("text", "markdown", "latex", "html"):
        assert "2.png cannot be decoded" in " ".join(again.table(form).split()).replace("\\", "")
    assert mhex.Report.load(again.to_parquet(tmp_path / "rows.parquet")).lost == report.lost
    assert again.only(metrics=["compactness"]).lost == report.lost


def test_a_photo_that_is_mended_is_added_by_its_number(photos: Path, tmp_path: Path) -> None:
    with pytest.warns(MhexWarning):
        of_folder(photos, out=tmp_path / "out")
    Image.new("RGB", (9, 9), "red").save(photos / "cat" / "2.png")
    with pytest.warns(MhexWarning, match=r"1 of 6 samples could not be judged: sample 5"):
        report = of_folder(photos, out=tmp_path / "out")
    assert report.values("compactness")[0].tolist() == [0, 1, 2, 3, 4]


def test_photos_that_are_opened_later_are_tried_when_they_are_read(photos: Path) -> None:
    opened = [Image.open(photos / "cat" / name) for name in ("0.png", "2.png", "1.png")]
    lost: dict[int, str] = {}
    batches = list(in_samples(opened, 8, None, lost))
    assert [batch.ids for batch in batches] == [(0, 2)]
    assert list(lost) == [1]
    pairs = [(one, 0) for one in map(Image.open, [photos / "cat" / "2.png", photos / "cat" / "0.png"])]
    assert [batch.ids for batch in in_samples(pairs, 8)] == [(1,)]


def test_nothing_that_can_be_read_is_an_error(photos: Path) -> None:
    for path in photos.rglob("*.png"):
        path.write_bytes(b"no photo")
    with pytest.raises(ArgumentError, match=r"none of 6 can: sample 0: 0\.png cannot be decoded .*; and 1 more\.$"):
        of_folder(photos)
    with pytest.raises(ArgumentError, match="none of 6 can"):
        raced(Linear(), data=load_folder(photos).items(), preprocess=prepared)


def test_loaders_end_with_their_first_error() -> None:
    def broken() -> Any:
        yield images(1)[0]
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        quiet(broken(), batch_size=1)

    class Batches:
        def __len__(self) -> int:
            return 2

        def __getitem__(self, place: int) -> Tensor:
            if place:
                raise OSError("the disk is gone")
            return images(2)

    with pytest.raises(ArgumentError, match="batch 1 cannot: the disk is gone"):
        quiet(Batches())


def test_wrong_items_are_mistakes_and_no_losses() -> None:
    with pytest.raises(ArgumentError, match="Expected inputs under one of the keys"):
        judged([{"imgae": images(1)[0]}, {"image": images(1)[0]}])


def test_explain_names_the_samples_whose_scores_are_not_finite() -> None:
    with pytest.raises(
        NotFiniteOutputError, match=r"not finite for samples 1, 3 of this batch, .* leave them out"
    ) as told:
        mhex.explain(Fussy(), spoiled(5, 1, 3), "input-x-gradient")
    assert isinstance(told.value, UnsupportedModelError)
    assert told.value.samples == (1, 3)
    again = pickle.loads(pickle.dumps(told.value))
    assert (str(again), again.samples, again.count) == (str(told.value), (1, 3), 5)
    with pytest.raises(NotFiniteOutputError, match="not finite for this input, so there is nothing to explain"):
        mhex.explain(Fussy(), spoiled(1, 0), "input-x-gradient")


@pytest.mark.parametrize("size", [1, 2, 5])
def test_nan_scores_cost_their_sample(size: int, tmp_path: Path) -> None:
    whole = judged(images(5))
    with pytest.warns(
        MhexWarning, match="2 of 5 samples could not be judged: samples 1, 3: the model's scores are not"
    ):
        report = judged(spoiled(5, 1, 3), batch_size=size, out=tmp_path, pictures=2)
    rest = [0, 2, 4]
    for metric in whole.metrics:
        for method, wanted in whole.values(metric)[1].items():
            numbers = report.values(metric)[1][method]
            assert torch.allclose(numbers[rest], wanted[rest], 1e-9)
            assert numbers[[1, 3]].isnan().all()
    assert {(cell.n, cell.skipped) for cell in report.summary(50)} == {(3, 2)}
    assert report.curves(report.metrics[1])[0].tolist() == rest
    assert not any(cell.verdict is not None and cell.verdict.apart for cell in report.summary(50))
    assert "samples 1, 3: the model's scores are not finite" in " ".join(mhex.Report.load(tmp_path).table().split())


def test_a_run_with_nan_scores_is_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = quiet(spoiled(4, 2), out=tmp_path)
    monkeypatch.setattr(cases.Explainer, "__call__", None)  # nothing is made once more
    with pytest.warns(MhexWarning, match="1 of 4 samples could not be judged"):
        again = judged(spoiled(4, 2), out=tmp_path)
    assert again.rows.num_rows == first.rows.num_rows
    assert mhex.Report.load(tmp_path).lost == first.lost


def test_nan_scores_of_the_explained_model_beside_another_evaluator() -> None:
    report = quiet(spoiled(4, 2), evaluator=Linear())
    assert list(report.lost) == [2]
    numbers = report.values("compactness")[1]["input-x-gradient"]
    assert numbers.isnan().any(1).tolist() == [False, False, True, False]


def test_nan_scores_of_changed_inputs_cost_the_metric_that_asked() -> None:
    """The noise of one sample leaves the range in which the model has scores."""
    x = images(3).clone()
    x[1, 0, 0, 0] = 49.9999
    metrics: Any = ["compactness", ("max-sensitivity", {"draws": 8, "units": "model"})]
    for size in (1, 3):
        with pytest.warns(MhexWarning, match="'input-x-gradient' gave maps that are not finite for 1 of 3 samples"):
            report = mhex.evaluate(Fussy(), x, ["input-x-gradient"], metrics, batch_size=size, controls=False)
        numbers = [report.values(name)[1]["input-x-gradient"].isnan().any(1).tolist() for name in report.metrics]
        assert numbers == [[False] * 3, [False, True, False]]


def test_nan_scores_of_all_samples_are_an_error() -> None:
    with pytest.raises(ArgumentError, match="3 of 3 samples could not be judged"):
        quiet(spoiled(3, 0, 1, 2))
    with pytest.raises(ArgumentError, match="none of 3 can: samples 0, 1, 2: the model's scores are not finite"):
        raced(Fussy(), data=spoiled(3, 0, 1, 2))


def test_a_race_goes_on_without_them(tmp_path: Path, photos: Path) -> None:
    order = torch.randperm(9, generator=torch.Generator().manual_seed(0)).tolist()
    found = raced(Fussy(), data=spoiled(9, order[0], order[4]), out=tmp_path / "out")
    assert found.lost == dict.fromkeys((order[0], order[4]), "the model's scores are not finite")
    assert {line.images for line in found.table} == {7}
    first, second = sorted((order[0], order[4]))
    assert f"Not judged: 2 samples (samples {first}, {second}: the model's scores are not finite)." in str(found)
    told = json.loads((tmp_path / "out" / "recommendation.json").read_text("utf-8"))
    assert {int(number) for number in told["lost"]} == {order[0], order[4]}
    assert mhex.Report.load(tmp_path / "out").lost == found.lost
    found = raced(Linear(), data=load_folder(photos).items(), preprocess=prepared)
    assert {line.images for line in found.table} == {4}
    assert {number: reason.split()[0] for number, reason in found.lost.items()} == {2: "2.png", 5: "5.png"}


# Images that hold NaN


def with_nan(count: int, *places: int) -> Tensor:
    x = images(count).clone()
    x[list(places), 0, 0, 0] = torch.nan
    return x


def test_explain_names_the_images_that_hold_nan() -> None:
    with pytest.raises(ArgumentError, match="Expected finite images, but samples 1, 3 hold NaN or infinity"):
        mhex.explain(Linear(), with_nan(5, 1, 3), "input-x-gradient")
    with pytest.raises(ArgumentError, match="Expected finite images, but sample 0 holds NaN or infinity"):
        mhex.explain(Linear(), with_nan(1, 0), "input-x-gradient")


@pytest.mark.parametrize("form", [list, lambda x: x, lambda x: {"pixel_values": x}, lambda x: (x, torch.zeros(len(x)))])
@pytest.mark.parametrize("size", [1, 5])
def test_images_with_nan_cost_their_sample(form: Any, size: int) -> None:
    with pytest.warns(MhexWarning, match="2 of 5 samples could not be judged: samples 0, 3: the input holds NaN"):
        report = judged(form(with_nan(5, 0, 3)), Linear(), batch_size=size)
    assert list(report.lost) == [0, 3]
    numbers, values = report.values("compactness")
    assert numbers.tolist() == [1, 2, 4]
    wanted = judged(images(5), Linear()).values("compactness")[1]["input-x-gradient"][[1, 2, 4]]
    assert torch.allclose(values["input-x-gradient"], wanted, 1e-9)


def test_images_that_all_hold_nan_are_an_error() -> None:
    for run in (quiet, lambda data: raced(Linear(), data=data)):
        with pytest.raises(ArgumentError, match="none of 2 can: samples 0, 1: the input holds NaN or infinity"):
            run(with_nan(2, 0, 1))


def gradients(*white: int) -> list[Image.Image]:
    """Eight photos, of which some are white."""
    grey = [Image.linear_gradient("L").rotate(30 * number) for number in range(8)]
    return [Image.new("L", (8, 8), 255) if number in white else photo for number, photo in enumerate(grey)]


def spoil_white(photo: Image.Image) -> Tensor:
    """A preprocessing that divides by zero where a photo is all the same."""
    pixels = prepared(photo)
    return pixels / (0 if bool((pixels == 0.5).all()) else 1)


@pytest.mark.parametrize("size", [1, 2, 8])
def test_photos_that_preprocessing_turns_into_nan_cost_themselves(size: int, tmp_path: Path) -> None:
    options: Any = {"preprocess": spoil_white, "batch_size": size, "out": tmp_path}
    message = "3 of 8 samples could not be judged: samples 0, 1, 5: the input holds NaN"
    with pytest.warns(MhexWarning, match=message):
        report = judged(gradients(0, 1, 5), Linear(), **options)
    assert report.lost == dict.fromkeys((0, 1, 5), "the input holds NaN or infinity")
    wanted = judged(gradients(), Linear(), preprocess=prepared)
    rest = [2, 3, 4, 6, 7]
    for metric in wanted.metrics:
        numbers, values = report.values(metric)
        assert numbers.tolist() == rest
        assert torch.allclose(values["input-x-gradient"], wanted.values(metric)[1]["input-x-gradient"][rest], 1e-9)
    with pytest.warns(MhexWarning, match=message):  # the same call goes on
        assert judged(gradients(0, 1, 5), Linear(), **options).lost == report.lost


def test_a_photo_that_preprocessing_turns_into_nan_is_named_by_explain() -> None:
    with pytest.raises(ArgumentError, match="Expected finite images, but sample 2 holds NaN"):
        mhex.explain(Linear(), gradients(2), "input-x-gradient", preprocess=spoil_white)


def test_photos_that_preprocessing_turns_all_into_nan_are_an_error() -> None:
    for run in (quiet, lambda data, **options: raced(Linear(), data=data, **options)):
        with pytest.raises(ArgumentError, match="none of 8 can: samples 0, 1, 2, 3, 4 and 3 more: the input holds NaN"):
            run(gradients(*range(8)), preprocess=spoil_white)


def test_a_race_goes_on_without_photos_that_preprocessing_turns_into_nan() -> None:
    order = torch.randperm(8, generator=torch.Generator().manual_seed(0)).tolist()
    places = (0, 2, 3, 4)  # the first piece, a whole one, and half of one
    answer = raced(Linear(), data=gradients(*(order[place] for place in places)), preprocess=spoil_white)
    assert answer.lost == {order[place]: "the input holds NaN or infinity" for place in places}
    assert {line.images for line in answer.table} == {4}


def test_infinity_in_the_precision_of_the_model_costs_its_sample() -> None:
    x = images(4).clone()
    x[1, 0, 0, 0] = 1e39
    assert list(quiet(x, model=Linear().float()).lost) == [1]


def test_a_race_goes_on_without_images_that_hold_nan() -> None:
    answer = raced(Linear(), data=with_nan(9, 2, 5))
    assert answer.lost == dict.fromkeys((2, 5), "the input holds NaN or infinity")
    assert {line.images for line in answer.table} == {7}
