"""mhex: explain neural networks, and prove the explanations."""

from importlib.metadata import PackageNotFoundError, version

from mhex.bundle import Bundle
from mhex.errors import MhexError
from mhex.explain import explain
from mhex.explanation import Explanation
from mhex.registry import list_methods

try:
    __version__ = version("mhex")
except PackageNotFoundError:  # running from a source tree that was not installed
    __version__ = "0+unknown"


def load(name: str) -> Bundle:
    """Load a model by name: `zoo:NAME`, `timm:NAME[:weights.safetensors]` or `hf:FOLDER`."""
    from mhex.zoo import load as load_bundle

    return load_bundle(name)


__all__ = ["Bundle", "Explanation", "MhexError", "__version__", "explain", "list_methods", "load"]
