"""A stand-in zoo, photos, and a way to run the command line inside the test's process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner, Result


@pytest.fixture(scope="session")
def zoo_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from support.zoo_models import write_zoo

    return write_zoo(tmp_path_factory.mktemp("zoo"))


@pytest.fixture(scope="session")
def bert_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from support.zoo_models import write_bert

    return write_bert(tmp_path_factory.mktemp("hf") / "bert")


@pytest.fixture
def zoo(zoo_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The stand-in zoo in place of the shipped one."""
    monkeypatch.setattr("mhex.zoo.shipped.WEIGHTS", zoo_folder)
    return zoo_folder


@pytest.fixture
def cat(tmp_path: Path) -> Path:
    path = tmp_path / "photos" / "cat.png"
    path.parent.mkdir()
    Image.linear_gradient("L").resize((60, 40)).convert("RGB").save(path)
    return path


@pytest.fixture
def run() -> Callable[..., Result]:
    """Run `mhex` with arguments; an unexpected exception is raised, not swallowed."""
    from mhex.cli import app

    def invoke(*arguments: object) -> Result:
        return CliRunner().invoke(app, [str(a) for a in arguments], prog_name="mhex", catch_exceptions=False)

    return invoke
