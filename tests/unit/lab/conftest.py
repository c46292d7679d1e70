"""Stand-in models and data for suites."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Folders of the models and of the data; tests only read them."""
    from support.suites import write_models, write_pets

    return write_models(tmp_path_factory.mktemp("models")), write_pets(tmp_path_factory.mktemp("data"))


@pytest.fixture
def _places(folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MHEX_MODELS", str(folders[0]))
    monkeypatch.setenv("MHEX_DATA", str(folders[1]))
