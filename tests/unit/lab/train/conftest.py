"""A data folder with made-up files, and recipes."""

import pytest

from mhex.lab.config.recipe import read_recipe
from mhex.lab.train.checkpoint import write_tensors
from mhex.lab.train.evaluate import make_objective
from mhex.lab.train.report import write_report


@pytest.fixture(autouse=True)
def _quick_disk(monkeypatch):
    """Files are not forced to the disk, which takes most of the time of small runs; no test cuts the power."""
    monkeypatch.setattr("mhex._files.sync", lambda path: None)
    monkeypatch.setattr("mhex.lab.train.checkpoint.sync", lambda path: None)


@pytest.fixture
def data(tmp_path, monkeypatch):
    folder = tmp_path / "data"
    folder.mkdir()
    monkeypatch.setenv("MHEX_DATA", str(folder))
    return folder


@pytest.fixture
def blood(data):
    from support.training import write_blood

    return write_blood(data)


@pytest.fixture
def recipe(tmp_path):
    """Write a recipe with changes and read it back."""
    from support.training import write_recipe

    def make(*overrides, **changes):
        return read_recipe(write_recipe(tmp_path / "small.yaml", **changes), overrides)

    return make


@pytest.fixture
def stored():
    """Write the folder of a finished run with random weights, as if a recipe had been trained; gives its network."""

    def make(recipe, folder, classes):
        network, _ = make_objective(recipe, classes, training=False)
        folder.mkdir(parents=True)
        write_tensors(network.model.state_dict(), folder / "weights.safetensors", {"digest": recipe.digest()})
        entries = {"test": {"split": "test"}, "classes": list(classes), "epochs": [], "parameters": 1}
        write_report(folder, recipe, entries)
        return network

    return make
