"""`import mhex` is light."""

import subprocess
import sys

HEAVY = ["timm", "transformers", "torchvision", "matplotlib", "scipy", "PIL", "typer", "rich", "pyarrow", "accelerate",
         "safetensors", "torchmetrics"]  # fmt: skip


def test_import_loads_torch_and_numpy_only():
    code = f"import sys, torch; before = set(sys.modules); import mhex; mhex.list_methods(); print([m for m in {HEAVY} if m in sys.modules and m not in before])"  # noqa: E501
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_every_public_name_exists():
    import mhex

    assert all(hasattr(mhex, name) for name in mhex.__all__)
