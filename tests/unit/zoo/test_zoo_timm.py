from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file

from mhex.errors import ArgumentError
from mhex.zoo import load

SMALL = "test_resnet"  # timm's own tiny model


def _save(path: Path, **arguments: Any) -> torch.nn.Module:
    model = timm.create_model(SMALL, pretrained=False, **arguments).eval()
    save_file(model.state_dict(), path)
    return model


def test_random_weights_are_the_same_every_time_and_said_to_be_random() -> None:
    before = torch.random.get_rng_state()
    one = load(f"timm:{SMALL}")
    assert torch.equal(before, torch.random.get_rng_state())
    torch.rand(1)  # whatever was drawn meanwhile
    two = load(f"timm:{SMALL}")
    assert one.card["weights"] == "random"
    assert "random" in one.card["warning"]
    assert not one.model.training
    for a, b in zip(one.model.parameters(), two.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_weights_bring_their_number_of_classes(tmp_path: Path) -> None:
    stored = _save(tmp_path / "mine.safetensors", num_classes=5)
    bundle = load(f"timm:{SMALL}:{tmp_path / 'mine.safetensors'}")
    x = torch.randn(2, 3, 64, 64)
    torch.testing.assert_close(bundle.model(x), stored(x))
    assert bundle.model(x).shape == (2, 5)
    assert bundle.card["classes"] == 5
    assert "warning" not in bundle.card


def test_two_classifiers_and_half_precision(tmp_path: Path) -> None:
    name = "deit_tiny_distilled_patch16_224"
    small = {"img_size": 224, "embed_dim": 192, "depth": 12}
    model = timm.create_model(name, pretrained=False, num_classes=4, **small).half()
    save_file(model.state_dict(), tmp_path / "deit.safetensors")
    bundle = load(f"timm:{name}:{tmp_path / 'deit.safetensors'}")
    assert bundle.card["classes"] == 4
    assert {p.dtype for p in bundle.model.parameters()} == {torch.float32}


def test_preprocessing_is_the_models_own_without_the_crop(photo: Image.Image) -> None:
    bundle = load(f"timm:{SMALL}")
    config = timm.data.resolve_model_data_config(bundle.model)
    assert bundle.preprocess is not None
    x = bundle.preprocess(photo)
    assert tuple(x.shape) == config["input_size"]
    red = (torch.tensor([1.0, 0.0, 0.0]) - torch.tensor(config["mean"])) / torch.tensor(config["std"])
    torch.testing.assert_close(x[:, 0, 0], red)


def test_colours_are_normalised_as_timm_does_it() -> None:
    preprocess = load("timm:resnet10t").preprocess
    assert preprocess is not None
    assert (tuple(preprocess.mean), tuple(preprocess.std)) == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def test_photos_of_models_that_are_no_squares_are_high_and_wide_as_timm_says(monkeypatch: pytest.MonkeyPatch) -> None:
    configuration = timm.data.resolve_model_data_config
    sizes = {"input_size": (3, 48, 32)}
    monkeypatch.setattr(timm.data, "resolve_model_data_config", lambda model: {**configuration(model), **sizes})
    preprocess = load(f"timm:{SMALL}").preprocess
    assert preprocess is not None
    assert (preprocess.height, preprocess.width) == (48, 32)


def test_unknown_names_offer_near_ones() -> None:
    with pytest.raises(ArgumentError, match=r"Did you mean.*'resnet18'"):
        load("timm:resnet_18")
    with pytest.raises(ArgumentError, match=r"Did you mean.*vit_tiny_patch16_224\.augreg"):
        load("timm:vit_tiny_patch16_224.augreg_in22k")
    with pytest.raises(ArgumentError, match="no name is near"):
        load("timm:qqqqqqqq")


@pytest.mark.parametrize("name", ["timm:hf-hub:timm/resnet18.a1_in1k", "timm:local-dir:somewhere"])
def test_addresses_that_timm_would_follow_are_no_names(name: str) -> None:
    with pytest.raises(ArgumentError, match="Unknown timm model"):
        load(name)


def test_a_model_without_classifier_is_refused() -> None:
    with pytest.raises(ArgumentError, match="no classifier"):
        load("timm:vit_small_patch14_reg4_dinov2")


def test_weights_of_another_model_are_refused_with_some_keys(tmp_path: Path) -> None:
    other = timm.create_model("test_vit", pretrained=False)
    save_file(other.state_dict(), tmp_path / "other.safetensors")
    with pytest.raises(ArgumentError, match=r"missing keys \(.*, \.\.\.\).*unexpected keys.*same architecture"):
        load(f"timm:{SMALL}:{tmp_path / 'other.safetensors'}")


class _Trap:
    """Leaves a mark when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return (Path.touch, (self.mark,))


@pytest.mark.parametrize("name", ["weights.pt", "weights.pth", "pytorch_model.bin", "weights.safetensors"])
def test_pickles_are_never_opened_whatever_their_name(name: str, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    (tmp_path / name).write_bytes(pickle.dumps(_Trap(mark)))
    with pytest.raises(ArgumentError, match=r"a pickle.*save_file"):
        load(f"timm:{SMALL}:{tmp_path / name}")
    torch.save({"fc.weight": torch.zeros(2)}, tmp_path / name)
    with pytest.raises(ArgumentError, match=r"a pickle.*save_file"):
        load(f"timm:{SMALL}:{tmp_path / name}")
    assert not mark.exists()


def test_files_that_are_missing_empty_or_something_else(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="there is none"):
        load(f"timm:{SMALL}:{tmp_path / 'none.safetensors'}")
    with pytest.raises(ArgumentError, match="is a folder"):
        load(f"timm:{SMALL}:{tmp_path}")
    with pytest.raises(ArgumentError, match="leave the last ':' out"):
        load(f"timm:{SMALL}:")
    file = tmp_path / "empty.safetensors"
    file.touch()
    with pytest.raises(ArgumentError, match="an empty file"):
        load(f"timm:{SMALL}:{file}")
    file.write_bytes(b"just some text that is no weights file at all")
    with pytest.raises(ArgumentError, match="not safetensors, or damaged"):
        load(f"timm:{SMALL}:{file}")


def test_a_cut_off_file_is_told(tmp_path: Path) -> None:
    file = tmp_path / "cut.safetensors"
    _save(file)
    file.write_bytes(file.read_bytes()[:5000])
    with pytest.raises(ArgumentError, match="not safetensors, or damaged"):
        load(f"timm:{SMALL}:{file}")
