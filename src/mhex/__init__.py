"""mhex: explain neural networks, and prove the explanations.

The public names are loaded on first use, so that `import mhex` and `mhex --help` are quick.
"""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from mhex.errors import MhexError

if TYPE_CHECKING:
    from mhex._explain import explain
    from mhex.bench import Recommendation, Report, evaluate, recommend
    from mhex.bundle import Bundle
    from mhex.concept import Concept
    from mhex.explanation import Explanation
    from mhex.heads import Scaffold
    from mhex.heads.attach import attach
    from mhex.metrics.registry import list_metrics
    from mhex.registry import list_methods
    from mhex.zoo import load

try:
    __version__ = version("mhex")
except PackageNotFoundError:  # running from a source tree that was not installed
    __version__ = "0+unknown"

__all__ = [
    "Bundle",
    "Concept",
    "Explanation",
    "MhexError",
    "Recommendation",
    "Report",
    "Scaffold",
    "__version__",
    "attach",
    "evaluate",
    "explain",
    "list_methods",
    "list_metrics",
    "load",
    "recommend",
]

_HOMES = {
    "Bundle": "mhex.bundle",
    "Concept": "mhex.concept",
    "Explanation": "mhex.explanation",
    "Scaffold": "mhex.heads",
    "attach": "mhex.heads",
    "Recommendation": "mhex.bench",
    "Report": "mhex.bench",
    "evaluate": "mhex.bench",
    "recommend": "mhex.bench",
    "list_metrics": "mhex.metrics.registry",
    "explain": "mhex._explain",
    "list_methods": "mhex.registry",
    "load": "mhex.zoo",
}


_ROOMS = ("data", "metrics", "perturb", "tuning", "viz")  # of use to users, and loaded on first use too


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(f"mhex.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'mhex' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES, *_ROOMS})
