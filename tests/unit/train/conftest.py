"""A data folder with made-up files, and recipes."""

import pytest

from mhex.train.recipe_files import read_recipe


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
