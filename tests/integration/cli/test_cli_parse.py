from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from mhex import methods as library
from mhex.capture import Needs
from mhex.cli._console import output_folder, unique_labels
from mhex.cli._parse import check_device, parse_methods, parse_options, parse_target, parse_task
from mhex.errors import ArgumentError
from mhex.registry import METHODS, Method

NAMES = ["Pug", "Egyptian Mau", "cat, tabby", "7", "top2"]


@pytest.mark.parametrize(
    ("text", "names", "expected"),
    [
        (None, NAMES, None),
        ("Pug", NAMES, "Pug"),
        ("egyptian mau", NAMES, "egyptian mau"),
        ("3", NAMES, 3),
        ("3", None, 3),
        ("Pug,3", NAMES, ["Pug", 3]),
        (" Pug , Egyptian Mau ,", NAMES, ["Pug", "Egyptian Mau"]),
        ("top3", NAMES, "top3"),
        ("top3", None, "top3"),
        # Names come first: one with a comma, one that looks like a number, one that looks like top2.
        ("Cat, tabby", NAMES, "Cat, tabby"),
        ("7", NAMES, "7"),
        ("7,8", NAMES, ["7", 8]),
        ("top2,Pug", NAMES, ["top2", "Pug"]),
    ],
)
def test_targets(text: str | None, names: list[str] | None, expected: Any) -> None:
    assert parse_target(text, names) == expected


@pytest.mark.parametrize("text", ["", " ", ",", "top3,Pug"])
def test_targets_that_mean_nothing(text: str) -> None:
    with pytest.raises(ArgumentError, match="--target"):
        parse_target(text, NAMES)


def test_methods_are_parsed_and_unknown_names_refused() -> None:
    assert parse_methods("gae, rollout,,gae") == ["gae", "rollout"]
    assert parse_methods("all") == list(library.all_methods())
    with pytest.raises(ArgumentError, match="Did you mean 'rollout'"):
        parse_methods("gae,rolout")
    with pytest.raises(ArgumentError, match="at least one method"):
        parse_methods(" ,")
    assert parse_methods("auto,gae", auto=True) == ["auto", "gae"]
    with pytest.raises(ArgumentError, match="Unknown method 'auto'"):
        parse_methods("auto")


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> str:
    """A method with an option of every kind."""

    def function(
        trace: Any,
        y: Any,
        *,
        steps: int = 5,
        sigma: float = 0.5,
        flip: bool = False,
        mode: str = "mean",
        start_block: int = 1,
        ratio: float | None = None,
        sharpness: float | str = "auto",
    ) -> Tensor:
        raise NotImplementedError

    everything = library.all_methods()
    needs = Needs(keep={"features": "last"})
    method = Method("made-up", function, "", "", False, "F", "", "", needs=needs, modalities=("image",))
    monkeypatch.setattr(METHODS, "entries", {**everything, "made-up": method})
    return "made-up"


def test_options_take_the_type_of_their_default(made_up: str) -> None:
    pairs = ["steps=7", "sigma=2", "flip=Yes", "mode=1", "ratio=0.25", "sharpness=auto", "layer=0.conv"]
    options = parse_options(pairs, [made_up])[made_up]
    assert options == {
        "steps": 7,
        "sigma": 2.0,
        "flip": True,
        "mode": "1",
        "ratio": 0.25,
        "sharpness": "auto",
        "layer": "0.conv",
    }
    assert isinstance(options["sigma"], float)
    assert parse_options(["sharpness=3"], [made_up])[made_up] == {"sharpness": 3.0}
    assert parse_options(["mode=a=b"], [made_up])[made_up] == {"mode": "a=b"}


@pytest.mark.parametrize(
    ("method", "pair", "value"),
    [
        ("cdam", "closed_form=true", True),
        ("cdam", "site=block_input", "block_input"),
        ("cdam-smooth", "n=5", 5),
        ("cdam-smooth", "sigma=1e-2", 0.01),
        ("cdam-smooth", "sigma=0", 0.0),
        ("cdam-integrated", "rule=right", "right"),
        ("gradtoken", "per_head=on", True),
        ("gradtoken", "center_keys=No", False),
        ("tokentm", "weights=length+direction", "length+direction"),
        ("tokentm", "ffn=0", False),
        ("vit-cx", "max_masks=8", 8),
        ("vit-cx", "max_masks=none", None),
        ("vit-cx", "distance=0.2", 0.2),
        ("smoothgrad", "times_input=yes", True),
        ("smoothgrad", "times_input=none", None),
        ("occlusion", "patch=16", 16),
        ("occlusion", "fill=blur", "blur"),
        ("occlusion", "fill=103", 103),
        ("occlusion", "fill=0.5", 0.5),
        ("rise", "p=0.3", 0.3),
        ("rise", "fill=103", 103),
        ("shap", "batch_size=none", None),
        ("integrated-gradients", "baseline=black", "black"),
        ("attention", "head=2", 2),
        ("attention", "head=None", None),
        ("mhex", "alpha=1", 1.0),
        ("mhex", "sharpness=auto", "auto"),
        ("gradcam", "layer=none", None),
    ],
)
def test_options_of_the_methods(method: str, pair: str, value: Any) -> None:
    (got,) = parse_options([pair], [method])[method].values()
    assert got == value
    assert type(got) is type(value)


@pytest.mark.parametrize(
    ("method", "pair", "words"),
    [
        ("vit-cx", "max_masks=many", "whole number"),
        ("vit-cx", "max_masks=2.5", "whole number"),
        ("vit-cx", "noise=none", "Expected a number"),
        ("cdam", "closed_form=none", "true or false"),
        ("cdam-smooth", "n=5.0", "whole number"),
        ("mhex", "alpha=half", "Expected a number"),
        ("smoothgrad", "times_input=2", "true or false"),
        ("rise", "fill=mean", "whole number"),
    ],
)
def test_options_of_the_methods_that_cannot_be(method: str, pair: str, words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        parse_options([pair], [method])


def test_a_class_named_like_a_concept_is_a_class() -> None:
    assert parse_target("concept:art", ["Concept:art", "b"]) == "concept:art"
    assert parse_target("concept:art,b", ["Concept:art", "b"]) == ["concept:art", "b"]


def test_an_unknown_task_is_refused() -> None:
    assert parse_task(None) is None
    assert [parse_task(t) for t in ("regression", "multi-label")] == ["regression", "multi-label"]
    with pytest.raises(ArgumentError, match=r"regression after --task, but got 'rank'"):
        parse_task("rank")


def test_an_option_goes_to_the_methods_that_have_it(made_up: str) -> None:
    assert parse_options(["start_block=2", "steps=3"], ["gae", "attention", made_up]) == {
        "gae": {"start_block": 2},
        "attention": {},
        made_up: {"start_block": 2, "steps": 3},
    }


@pytest.mark.parametrize(
    ("pair", "words"),
    [
        ("start_block", "key=value"),
        ("=2", "key=value"),
        ("start_block=two", "whole number"),
        ("start_block=1.5", "whole number"),
        ("sigma=wide", "Expected a number"),
        ("flip=maybe", "true or false"),
        ("startblock=2", r"Their options: .*start_block=1"),
    ],
)
def test_options_that_cannot_be(made_up: str, pair: str, words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        parse_options([pair], ["gae", made_up])


def test_devices_that_do_not_exist_are_refused() -> None:
    assert check_device("cpu") == "cpu"
    for device in ("gpu", "cuda:99", "cuda:x"):
        with pytest.raises(ArgumentError, match=device):
            check_device(device)


def test_labels_never_collide() -> None:
    assert unique_labels(["cat", "dog"]) == ["cat", "dog"]
    assert unique_labels(["cat", "cat", "Cat"]) == ["cat", "cat-2", "Cat-3"]
    assert unique_labels(["cat", "cat", "cat-2"]) == ["cat", "cat-3", "cat-2"]
    assert unique_labels(["cat-2", "cat", "cat", "cat-2"]) == ["cat-2", "cat", "cat-3", "cat-2-2"]


def test_an_output_folder_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ArgumentError, match=r"Cannot write to .*--out"):
        output_folder(tmp_path / "file" / "folder")
    with pytest.raises(ArgumentError, match=r"Cannot write to .*--out"):
        output_folder(tmp_path / "file")
    folder = output_folder(tmp_path / "a" / "b")
    assert list(folder.iterdir()) == []


def test_only_devices_that_are_here_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert [check_device(device) for device in ("cuda", "cuda:0", "cuda:1")] == ["cuda", "cuda:0", "cuda:1"]
    with pytest.raises(ArgumentError, match="got 'cuda:2' and 2 CUDA devices"):
        check_device("cuda:2")
