from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import mhex
from mhex.errors import ArgumentError, ArgumentTypeError
from mhex.zoo import list_models, load, shipped
from support.zoo_models import CLASSES, MEAN, NETWORKS, STD, write_resident, write_zoo


@pytest.mark.parametrize("name", NETWORKS)
def test_a_resident_gives_what_the_stored_model_gives(name: str, tmp_path: Path) -> None:
    stored = write_resident(tmp_path, name)
    bundle = load(f"zoo:{name}", tmp_path)
    x = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(bundle.model(x), stored(x))
    assert not any(module.training for module in bundle.model.modules())
    assert {p.dtype for p in bundle.model.parameters()} == {torch.float32}
    assert bundle.name == f"zoo:{name}"
    assert bundle.class_names == CLASSES
    assert bundle.card["accuracy"]["images"] == 12


def test_a_resident_is_explained_by_class_name(tmp_path: Path, photo: Image.Image) -> None:
    write_zoo(tmp_path)
    explanation = mhex.explain(load("zoo:pets-vit", tmp_path), photo, method="gae", target=["Pug", "Bengal"])
    assert explanation.scores.shape == (1, 2, 4, 4)
    assert explanation.target_names(0) == ["Pug", "Bengal"]


def test_the_whole_photo_is_squashed_scaled_and_normalised(tmp_path: Path, photo: Image.Image) -> None:
    write_zoo(tmp_path)
    preprocess = load("zoo:pets-vit", tmp_path).preprocess
    assert preprocess is not None
    x = preprocess(photo)
    assert x.shape == (3, 32, 32)
    assert x.dtype == torch.float32
    red = (torch.tensor([1.0, 0.0, 0.0]) - torch.tensor(MEAN)) / torch.tensor(STD)
    blue = (torch.tensor([0.0, 0.0, 1.0]) - torch.tensor(MEAN)) / torch.tensor(STD)
    # Left and right ends are there, so nothing was cropped; the edge is in the middle.
    torch.testing.assert_close(x[:, :, 0], red[:, None].expand(3, 32), atol=1e-5, rtol=0)
    torch.testing.assert_close(x[:, :, 31], blue[:, None].expand(3, 32), atol=1e-5, rtol=0)


def test_photos_are_made_small_as_in_training(tmp_path: Path) -> None:
    from mhex.inputs.preprocess import Preprocess

    write_zoo(tmp_path)
    pixels = torch.randint(0, 256, (3, 160, 160), dtype=torch.uint8)
    preprocess = load("zoo:pets-vit", tmp_path).preprocess
    assert preprocess is not None
    ours = preprocess(Image.fromarray(pixels.permute(1, 2, 0).numpy()))
    trained = Preprocess(32, 32, tuple(MEAN), tuple(STD))(pixels[None])[0]
    # PIL rounds to whole grey values: half a value of 255, divided by the spread.
    torch.testing.assert_close(ours, trained, atol=1.5 / 255 / min(STD), rtol=0)


def test_unknown_names_offer_near_ones_and_cannot_leave_the_folder(tmp_path: Path) -> None:
    write_zoo(tmp_path / "zoo")
    write_resident(tmp_path, "pets-vit")
    with pytest.raises(ArgumentError, match="Did you mean 'pets-vit'"):
        load("zoo:pets-vitt", tmp_path / "zoo")
    with pytest.raises(ArgumentError, match="Unknown zoo model"):
        load("zoo:../pets-vit", tmp_path / "zoo")


def test_an_empty_zoo_says_so(tmp_path: Path) -> None:
    assert list_models(tmp_path) == []
    with pytest.raises(ArgumentError, match="zoo is empty"):
        load("zoo:pets-vit", tmp_path)


def test_weights_that_miss_a_key_or_bring_one_are_refused(tmp_path: Path) -> None:
    write_zoo(tmp_path)
    file = tmp_path / "pets-vit.safetensors"
    weights = load_file(file)
    weights["head.surplus"] = weights.pop("head.bias")
    weights["cls_token"] = torch.zeros(1, 1, 25)
    save_file(weights, file)
    with pytest.raises(ArgumentError) as told:
        load("zoo:pets-vit", tmp_path)
    for words in (
        "1 missing keys (head.bias)",
        "1 unexpected keys (head.surplus)",
        "cls_token is (1, 1, 25) instead of",
    ):
        assert words in str(told.value)


def test_a_missing_weights_file_and_a_broken_card_are_told(tmp_path: Path) -> None:
    write_zoo(tmp_path)
    (tmp_path / "pets-vit.safetensors").unlink()
    with pytest.raises(ArgumentError, match="there is none"):
        load("zoo:pets-vit", tmp_path)
    (tmp_path / "pets-vit.json").write_text("{nope", encoding="utf-8")
    with pytest.raises(ArgumentError, match="cannot be read"):
        load("zoo:pets-vit", tmp_path)
    (tmp_path / "pets-vit.json").write_text(json.dumps({"title": "x"}), encoding="utf-8")
    with pytest.raises(ArgumentError, match=r"'architecture'.* are missing"):
        load("zoo:pets-vit", tmp_path)


def test_models_of_the_package_come_before_those_that_were_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package, own = tmp_path / "package", tmp_path / "own"
    monkeypatch.setattr(shipped, "WEIGHTS", package)
    monkeypatch.setenv("MHEX_MODELS", str(own))
    write_resident(own, "pets-vit", title="built here")
    write_resident(package, "pets-resnet10t")
    assert load("zoo:pets-vit").card["title"] == "built here"
    write_resident(package, "pets-vit", title="of the package")
    assert load("zoo:pets-vit").card["title"] == "of the package"


def test_the_list_comes_from_the_cards(tmp_path: Path) -> None:
    write_zoo(tmp_path)
    (tmp_path / "pets-resnet10t.safetensors").unlink()
    rows = {row["name"]: row for row in list_models(tmp_path)}
    assert list(rows) == ["zoo:pets-resnet10t", "zoo:pets-vit"]
    assert rows["zoo:pets-resnet10t"]["megabytes"] is None
    vit = rows["zoo:pets-vit"]
    assert vit["classes"] == 6
    assert vit["megabytes"] == round((tmp_path / "pets-vit.safetensors").stat().st_size / 1e6, 2)
    assert vit["accuracy"]["cat_dog"] == 0.5
    assert vit["licence"].startswith("Apache-2.0")


@pytest.mark.parametrize("name", ["pets-vit", "hub:pets", "zoo:", "", "ZOO:pets-vit"])
def test_other_forms_are_refused_with_the_three_that_exist(name: str) -> None:
    with pytest.raises(ArgumentError) as told:
        load(name)
    for form in ("zoo:NAME", "timm:NAME[:weights.safetensors]", "hf:FOLDER"):
        assert form in str(told.value)


def test_a_name_that_is_no_string_is_refused() -> None:
    with pytest.raises(ArgumentTypeError, match="got int"):
        load(3)  # type: ignore[arg-type]
