"""Loading must not touch the network: any attempt to connect fails the test."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest
from PIL import Image


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def refuse(*arguments: Any) -> None:
        pytest.fail(f"tried to connect to {arguments[1:]}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    return


@pytest.fixture
def photo() -> Image.Image:
    """40 x 20 pixels, red on the left, blue on the right."""
    picture = Image.new("RGB", (40, 20), (255, 0, 0))
    picture.paste((0, 0, 255), (20, 0, 40, 20))
    return picture
