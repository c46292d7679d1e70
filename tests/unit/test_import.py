"""`import mhex` is light."""

import subprocess
import sys

import pytest

HEAVY = ["timm", "transformers", "torchvision", "matplotlib", "scipy", "PIL", "typer", "rich", "pyarrow", "accelerate",
         "safetensors", "torchmetrics", "pydantic", "yaml"]  # fmt: skip


def test_import_loads_torch_and_numpy_only():
    lines = (
        "import sys, torch",
        "before = set(sys.modules)",
        "import mhex",
        "mhex.list_methods(), mhex.explain",
        f"print([m for m in {HEAVY} if m in sys.modules and m not in before])",
    )
    result = subprocess.run([sys.executable, "-c", "; ".join(lines)], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_torch_is_loaded_on_first_use():
    code = "import sys, mhex; print('torch' in sys.modules, mhex.MhexError.__name__)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["False", "MhexError"]


def test_every_public_name_exists():
    import mhex

    assert all(hasattr(mhex, name) for name in mhex.__all__)
    assert set(mhex.__all__) <= set(dir(mhex))
    assert callable(mhex.explain)
    with pytest.raises(AttributeError, match="no attribute 'explian'"):
        mhex.explian  # noqa: B018


def test_rooms_come_with_the_package():
    functions = ("mhex.tuning.tune_sigma", "mhex.viz.scatter", "mhex.data.load_pets")
    code = f"import mhex; print({', '.join(f'{name}.__name__' for name in functions)})"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["tune_sigma", "scatter", "load_pets"]
