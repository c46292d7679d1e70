"""Classes by name: labels and targets."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import mhex
from mhex.bundle import Bundle
from mhex.errors import ArgumentError, MhexWarning
from mhex.inputs.samples import ClassLabel, in_samples
from mhex.lab.datasets import load_csv, load_folder
from support.models import CLASSES
from support.tiny_models import pictures, tiny

NAMES = ["tabby cat", "beagle", "pug", "Bengal", "boxer", "Sphynx", "top2"]
X, Y = pictures(4), torch.tensor([3, 0, 6, 1])
BY_LABEL: Any = [("deletion", {"reference": "zero", "steps": 4, "scored": "label"})]


def values(report: mhex.Report) -> torch.Tensor:
    return report.values(report.metrics[0])[1]["gradcam"]


def judged(data: Any, **options: Any) -> torch.Tensor:
    given = {"controls": False, "class_names": NAMES, **options}
    model = given.pop("model", None) or tiny("cnn")
    return values(mhex.evaluate(model, data, ["gradcam"], BY_LABEL, **given))


def test_labels_by_name() -> None:
    assert len(NAMES) == CLASSES
    wanted = judged((X, Y))
    names = [NAMES[int(y)] for y in Y]
    assert torch.equal(judged((X, names)), wanted)
    assert torch.equal(judged(list(zip(X, names, strict=True))), wanted)
    assert torch.equal(judged(({"image": x, "label": n} for x, n in zip(X, names, strict=True))), wanted)
    assert torch.equal(judged((X, np.array(names))), wanted)
    assert torch.equal(judged((X, [3, "TABBY CAT", "top2", 1])), wanted)  # numbers among them, and any case
    assert torch.equal(judged((X, names), target="label"), judged((X, Y), target="label"))
    assert torch.allclose(judged(list(zip(X, names, strict=True)), batch_size=1), wanted, 1e-9)


def test_who_knows_the_names() -> None:
    names = [NAMES[int(y)] for y in Y]
    wanted = judged((X, Y))
    bundle = Bundle("", tiny("cnn"), class_names=NAMES)
    assert torch.equal(judged((X, names), model=bundle, class_names=None), wanted)
    model = tiny("cnn")
    model.config = type("Config", (), {"id2label": dict(enumerate(NAMES))})()  # type: ignore[assignment]
    assert torch.equal(judged((X, names), model=model, class_names=None), wanted)
    assert torch.equal(judged((X, names), class_names=dict(enumerate(NAMES))), wanted)
    with pytest.raises(ArgumentError, match=r"has no class names, so 'Bengal' means nothing; give a number or class_n"):
        judged((X, names), class_names=None)
    with pytest.raises(ArgumentError, match="Expected 7 class names"):
        judged((X, names), class_names=NAMES[:3])


def test_names_that_nobody_knows() -> None:
    with pytest.raises(ArgumentError, match="Unknown class 'beegle'"):
        judged((X, ["pug", "beegle", "pug", "pug"]))
    with pytest.raises(ArgumentError, match="Unknown class 'predict'"):
        judged((X, Y), target="predict")


@pytest.mark.parametrize("target", ["tabby cat", "Tabby Cat", np.int64(0)])
def test_the_target_by_name(target: Any, tmp_path: Any) -> None:
    """The same rows, in the same folder, as by number."""
    wanted = judged((X, Y), target=0, out=tmp_path)
    assert torch.equal(judged((X, Y), target=target, out=tmp_path), wanted)
    assert torch.equal(judged((X, Y), target=target), wanted)
    assert not torch.equal(judged((X, Y), target="beagle"), wanted)


def test_targets_that_are_no_class() -> None:
    for target in (99, -1):
        with pytest.raises(ArgumentError, match=f"Expected a class from 0 to 6, but got target {target}"):
            judged((X, Y), target=target)
    for target in (True, None, 2.0):
        with pytest.raises(ArgumentError, match="'predicted', 'label', or a class by number or name, but got"):
            judged((X, Y), target=target)


def test_missing_labels_among_names() -> None:
    (batch,) = in_samples(list(zip(X, ["pug", None, "pug", 4], strict=True)), 8)
    assert batch.has("label")
    numbered = batch.numbered(lambda given: torch.tensor([NAMES.index(n) if isinstance(n, str) else n for n in given]))
    assert numbered.label is not None
    assert numbered.label.tolist() == [2, -1, 2, 4]
    assert not numbered.names
    (batch,) = in_samples([{"image": x, "other": "pug"} for x in X], 8)
    assert batch.has("other")


def test_texts_and_their_classes() -> None:
    from support.tiny_bert import bert
    from support.tiny_bert import tokenizer as make_tokenizer

    model = bert()
    classes = [model.config.id2label[i] for i in range(2)]
    texts = ["the movie was good", "a bad bad film", "good"]
    by_name = [(text, classes[n % 2]) for n, text in enumerate(texts)]
    by_number = [(text, n % 2) for n, text in enumerate(texts)]
    reports = [
        mhex.evaluate(model, data, ["attention"], ["perturbation-auc"], tokenizer=make_tokenizer())
        for data in (by_name, iter(by_name), by_number, {"text": texts, "label": [classes[n % 2] for n in range(3)]})
    ]
    first, *others = (report.values(report.metrics[0])[1]["attention"] for report in reports)
    assert all(torch.equal(first, other) for other in others)


def labels_for_model(data: Any, **options: Any) -> list[int]:
    """The labels by which a model of `NAMES` is judged on photos: the classes that are explained."""
    from mhex.judge.cases import Run

    given: Any = {"class_names": NAMES, "preprocess": lambda photo: X[0], **options}
    run = Run(tiny("cnn"), in_samples(data, 8), {}, target="label", **given)
    label = run.first.numbered(run.numbers).numbered(run.numbers).label
    assert label is not None
    return label.tolist()


def folders(place: Path, *names: str) -> Any:
    for name in names:
        (place / name).mkdir()
        Image.new("RGB", (8, 8)).save(place / name / "a.png")
    return load_folder(place).items()


def test_folders_with_the_names_of_classes(tmp_path: Path) -> None:
    items = folders(tmp_path, "Beagle", "Bengal", "Sphynx")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert labels_for_model(items) == [1, 3, 5]
        assert labels_for_model(items[1:]) == labels_for_model([items[1], items[2]]) == [3, 5]
        assert labels_for_model(items, class_names=None) == [0, 1, 2]  # a model without names
    assert [item["label"] for item in items] == [0, 1, 2]
    again = pickle.loads(pickle.dumps(items[2]["label"]))  # as workers of a loader do
    assert isinstance(again, ClassLabel)
    assert (again, again.classes) == (2, ("Beagle", "Bengal", "Sphynx"))


@pytest.mark.parametrize("names", [("Bengal", "Siamese"), ("moth", "Siamese"), ("0", "2"), (*"abcdefgh",)])
def test_folders_with_other_names_are_taken_by_number(names: tuple[str, ...], tmp_path: Path) -> None:
    """With one warning; also where there are more of them than classes."""
    items = folders(tmp_path, *names)
    with pytest.warns(MhexWarning, match="The labels of the data are taken as class numbers") as caught:
        assert labels_for_model(items) == list(range(len(names)))
    assert len(caught) == 1
    assert "'Bengal'" not in str(caught[0].message)  # which is one of the model's classes


def test_folders_with_numbers_of_classes(tmp_path: Path) -> None:
    items = folders(tmp_path, "0", "1")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert labels_for_model(items) == [0, 1]


def test_tables_with_the_names_of_classes(tmp_path: Path) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    path = tmp_path / "list.csv"
    path.write_text("image,label\na.png,pug\na.png,bengal\n", "utf-8")
    assert labels_for_model(load_csv(path).items()) == [2, 3]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the order of the model, in the words of the user
        assert labels_for_model(load_csv(path, classes=["pug", "bengal"]).items()) == [0, 1]
    path.write_text("text,label\na good film,good\na bad film,bad\n", "utf-8")
    label = load_csv(path).items()[0]["label"]
    assert isinstance(label, ClassLabel)
    assert label.classes == ("bad", "good")


def test_folders_are_judged_by_name(tmp_path: Path) -> None:
    items = folders(tmp_path, "Bengal", "Sphynx")
    wanted = [{**item, "label": number} for item, number in zip(items, (3, 5), strict=True)]
    options: Any = {"preprocess": lambda photo: X[0], "target": "label"}
    assert torch.equal(judged(items, **options), judged(wanted, **options))
    assert not torch.equal(judged(items, **options), judged(items, **options, class_names=None))
