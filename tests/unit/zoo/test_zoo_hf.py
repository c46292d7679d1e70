from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import mhex
from mhex.errors import ArgumentError
from mhex.zoo import load
from support.zoo_models import write_bert, write_hf_vit


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hf")
    write_bert(folder / "bert")
    write_hf_vit(folder / "vit")
    return folder


@pytest.fixture
def bert(stored: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(stored / "bert", tmp_path / "bert"))


@pytest.fixture
def vit(stored: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(stored / "vit", tmp_path / "vit"))


def _change_json(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def test_a_text_classifier(bert: Path) -> None:
    bundle = load(f"hf:{bert}")
    assert bundle.class_names == ["bad", "so so", "good"]
    assert bundle.preprocess is None
    assert not bundle.model.training
    # The folder holds half precision; explaining needs float32.
    assert {p.dtype for p in bundle.model.parameters()} == {torch.float32}
    explanation = mhex.explain(bundle, "a fine film .", method="gae", target="good")
    assert explanation.tokens == [["[CLS]", "a", "fine", "film", ".", "[SEP]"]]
    assert explanation.target_names(0) == ["good"]


def test_an_image_classifier(vit: Path, photo: Image.Image) -> None:
    bundle = load(f"hf:{vit}")
    assert bundle.class_names == ["cat", "dog"]
    assert bundle.tokenizer is None
    assert bundle.card["modality"] == "image"
    assert mhex.explain(bundle, photo, method="gae", target="dog").scores.shape == (1, 4, 4)


def test_pixels_are_what_the_folders_processor_makes_of_them(vit: Path, photo: Image.Image) -> None:
    from transformers import AutoImageProcessor

    preprocess = load(f"hf:{vit}").preprocess
    assert preprocess is not None
    theirs = AutoImageProcessor.from_pretrained(vit)(photo, return_tensors="pt")["pixel_values"][0]
    # Filters differ by rounding at the edge between the colours; elsewhere the pixels are equal.
    assert (preprocess(photo) - theirs).abs().mean() < 0.01
    torch.testing.assert_close(preprocess(photo)[:, :, :12], theirs[:, :, :12])


def test_a_processor_that_does_not_normalise(vit: Path) -> None:
    _change_json(vit / "preprocessor_config.json", do_normalize=False, image_mean=[0.5, 0.4, 0.3])
    preprocess = load(f"hf:{vit}").preprocess
    assert preprocess is not None
    red = preprocess(Image.new("RGB", (32, 32), (255, 0, 51)))
    torch.testing.assert_close(red[:, 0, 0], torch.tensor([1.0, 0.0, 0.2]))


def test_a_processor_that_crops_is_taken_without_the_crop(vit: Path, photo: Image.Image) -> None:
    from transformers import BitImageProcessor

    BitImageProcessor(size={"shortest_edge": 36}, crop_size={"height": 32, "width": 32}).save_pretrained(vit)
    preprocess = load(f"hf:{vit}").preprocess
    assert preprocess is not None
    x = preprocess(photo)
    assert x.shape == (3, 32, 32)
    assert x[0, 0, 0] > x[0, 0, 31]  # red is left: both ends of the photo are there
    assert x[2, 0, 0] < x[2, 0, 31]


def test_what_is_no_folder_is_told() -> None:
    with pytest.raises(ArgumentError, match="download the model first"):
        load("hf:someone/some-model")


def test_a_folder_without_or_with_a_broken_config(bert: Path) -> None:
    (bert / "config.json").write_text("{nope")
    with pytest.raises(ArgumentError, match="Expected JSON"):
        load(f"hf:{bert}")
    (bert / "config.json").write_text(20_000 * "[")
    with pytest.raises(ArgumentError, match="nested more than 64 levels deep"):
        load(f"hf:{bert}")
    (bert / "config.json").write_text("[]")
    with pytest.raises(ArgumentError, match="Expected a JSON object"):
        load(f"hf:{bert}")
    (bert / "config.json").unlink()
    with pytest.raises(ArgumentError, match=r"Expected config\.json"):
        load(f"hf:{bert}")


@pytest.mark.parametrize("architectures", [["BertForMaskedLM"], [], None])
def test_what_is_no_classifier_is_refused(bert: Path, architectures: Any) -> None:
    _change_json(bert / "config.json", architectures=architectures)
    with pytest.raises(ArgumentError, match=f"names {'BertForMaskedLM' if architectures else 'no architecture'}"):
        load(f"hf:{bert}")


def test_only_safetensors_will_do(bert: Path) -> None:
    (bert / "model.safetensors").unlink()
    with pytest.raises(ArgumentError, match="holds no weights"):
        load(f"hf:{bert}")
    torch.save({}, bert / "pytorch_model.bin")
    with pytest.raises(ArgumentError, match=r"only pytorch_model\.bin, a pickle"):
        load(f"hf:{bert}")
    (bert / "model.safetensors").write_bytes(b"no weights at all, but long enough")
    with pytest.raises(ArgumentError, match="not safetensors, or damaged"):
        load(f"hf:{bert}")


def test_weights_without_the_classifier_are_refused_not_made_up(bert: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = bert / "model.safetensors"
    weights = load_file(file)
    weights.pop("classifier.weight")
    weights["bert.pooler.dense.bias"] = torch.zeros(3)
    save_file(weights, file, metadata={"format": "pt"})
    with pytest.raises(ArgumentError) as told:
        load(f"hf:{bert}")
    assert "1 missing keys (classifier.weight)" in str(told.value)
    assert "1 wrong shapes (bert.pooler.dense.bias is (3,) instead of (16,))" in str(told.value)
    assert "LOAD REPORT" not in capfd.readouterr().err


def test_code_in_a_folder_is_never_run(bert: Path, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    (bert / "code.py").write_text(f"open({str(mark)!r}, 'w')\nclass Config: pass\nclass Model: pass\n")
    _change_json(
        bert / "config.json",
        model_type="made-up",
        auto_map={"AutoConfig": "code.Config", "AutoModelForSequenceClassification": "code.Model"},
    )
    with pytest.raises(ArgumentError, match="never run"):
        load(f"hf:{bert}")
    assert not mark.exists()


def test_a_missing_tokenizer_is_not_replaced_by_an_empty_one(bert: Path) -> None:
    (bert / "tokenizer.json").unlink()
    with pytest.raises(ArgumentError, match="Expected a tokenizer"):
        load(f"hf:{bert}")


def test_a_missing_image_processor_is_told(vit: Path) -> None:
    (vit / "preprocessor_config.json").unlink()
    with pytest.raises(ArgumentError, match="Expected an image processor"):
        load(f"hf:{vit}")


def test_transformers_is_left_as_talkative_as_it_was(bert: Path) -> None:
    from transformers.utils import logging

    logging.set_verbosity_info()
    logging.enable_progress_bar()
    try:
        load(f"hf:{bert}")
        assert logging.get_verbosity() == logging.INFO
        assert logging.is_progress_bar_enabled()
    finally:
        logging.set_verbosity_warning()
