"""Named models: `load` turns a name into a model with its preprocessing, class names and card."""

from mhex.zoo.names import load
from mhex.zoo.residents import list_models

__all__ = ["list_models", "load"]
