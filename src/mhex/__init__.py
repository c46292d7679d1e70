"""mhex: explain neural networks, and prove the explanations.

The public names are loaded on first use, so that `import mhex` and `mhex --help` are quick.
"""

import sys
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import TYPE_CHECKING, Any

from mhex.errors import MhexError

if TYPE_CHECKING:
    from mhex.bundle import Bundle as Bundle
    from mhex.concept import Concept as Concept
    from mhex.explain import explain as explain
    from mhex.explainer import Explainer as Explainer
    from mhex.explanation import Explanation as Explanation
    from mhex.heads import Scaffold as Scaffold
    from mhex.heads import attach as attach
    from mhex.judge.evaluation import evaluate as evaluate
    from mhex.judge.report import Report as Report
    from mhex.methods import list_methods as list_methods
    from mhex.metrics import list_metrics as list_metrics
    from mhex.recommend.answer import Recommendation as Recommendation
    from mhex.recommend.call import recommend as recommend
    from mhex.zoo import load as load

try:
    __version__ = version("mhex")
except PackageNotFoundError:  # running from a source tree that was not installed
    __version__ = "0+unknown"

_HOMES = {
    "Bundle": "mhex.bundle",
    "Concept": "mhex.concept",
    "Explainer": "mhex.explainer",
    "Explanation": "mhex.explanation",
    "Recommendation": "mhex.recommend",
    "Report": "mhex.judge",
    "Scaffold": "mhex.heads",
    "attach": "mhex.heads",
    "evaluate": "mhex.judge",
    "explain": "mhex.explain",
    "list_methods": "mhex.methods",
    "list_metrics": "mhex.metrics",
    "load": "mhex.zoo",
    "recommend": "mhex.recommend",
}
__all__ = ["MhexError", "__version__", *_HOMES]
_ROOMS = ("data", "metrics", "perturb", "tuning", "viz")  # of use to users, and loaded on first use too


class _Package(ModuleType):
    """`mhex.explain` is the function, also after the module of the same name was imported."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


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
