"""Post-hoc explanation methods: one file each, one decorator each. See `mhex.registry.Method` for the contract."""

from typing import Any

from mhex.errors import ArgumentError
from mhex.registry import METHODS, Method, import_modules

import_modules(__name__)


def all_methods() -> dict[str, Method]:
    """Every registered method by name."""
    return METHODS.sorted()


def get_method(name: str) -> Method:
    """The method called `name`."""
    if name == "auto":
        raise ArgumentError("Expected a method by its name: 'auto' is for mhex.explain, which chooses one for a model.")
    return METHODS.get(name)


def list_methods() -> list[dict[str, Any]]:
    """One row per method: name, title, paper, modality, needs, signed, class_specific, passes, options."""
    return [
        {
            "name": method.name,
            "title": method.title,
            "paper": method.paper,
            "modality": ", ".join(method.modalities),
            "needs": str(method.needs),
            "signed": method.signed,
            "class_specific": method.class_specific,
            "passes": method.passes,
            "options": dict(method.options),
        }
        for method in all_methods().values()
    ]
