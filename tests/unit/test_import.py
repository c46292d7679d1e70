"""`import mhex` is light, and its names come when they are asked for."""

import json
import subprocess
import sys

import pytest

HEAVY = ["timm", "transformers", "torchvision", "matplotlib", "scipy", "PIL", "typer", "rich", "pyarrow", "accelerate",
         "safetensors", "torchmetrics", "pydantic", "yaml"]  # fmt: skip
PROGRAM = f"""
import json, sys, mhex
answers = {{"torch at first": "torch" in sys.modules, "error": mhex.MhexError.__name__}}
import torch
before = set(sys.modules)
mhex.list_methods(), mhex.explain
answers["heavy"] = [m for m in {HEAVY} if m in sys.modules and m not in before]
answers["functions"] = [f.__name__ for f in (mhex.tuning.tune_sigma, mhex.viz.scatter, mhex.data.load_pets)]
print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def answers():
    """What a process of its own says that begins with `import mhex`."""
    result = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    return json.loads(result.stdout)


def test_torch_is_loaded_on_first_use(answers):
    assert (answers["torch at first"], answers["error"]) == (False, "MhexError")


def test_import_loads_torch_and_numpy_only(answers):
    assert answers["heavy"] == []


def test_rooms_come_with_the_package(answers):
    assert answers["functions"] == ["tune_sigma", "scatter", "load_pets"]


def test_every_public_name_exists():
    import mhex

    assert all(hasattr(mhex, name) for name in mhex.__all__)
    assert set(mhex.__all__) <= set(dir(mhex))
    assert callable(mhex.explain)
    with pytest.raises(AttributeError, match="no attribute 'explian'"):
        mhex.explian  # noqa: B018
