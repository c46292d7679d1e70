"""Optional packages: imported where they are used, with one sentence when they are missing."""

from __future__ import annotations

import importlib
from types import ModuleType

from mhex.errors import MissingExtraError


def require(module: str, extra: str | None = None) -> ModuleType:
    """Import `module`, or say how to install it.

    Args:
        module: Dotted name of the module to import.
        extra: The mhex extra that brings it; None when it is a plain dependency.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = f"mhex[{extra}]" if extra else module.split(".")[0]
        raise MissingExtraError(
            f"This needs the package {module.split('.')[0]!r}, which is not installed: pip install '{package}'."
        ) from error
