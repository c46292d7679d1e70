"""The real program, in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

# Small work on a shared machine: threads that wait for each other would take most of the time.
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
MHEX = [sys.executable, "-c", "from mhex.cli import main; main()"]


def _run(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*MHEX, *map(str, arguments)], cwd=cwd, capture_output=True, env=ENVIRONMENT, text=True, timeout=60
    )


def test_a_photo_is_explained(cat: Path, tmp_path: Path) -> None:
    done = _run("explain", cat, "--model", "timm:test_resnet", "--method", "gradcam", "--target", "top2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert sorted(f.name for f in (tmp_path / "out" / "explain").iterdir()) == ["cat.gradcam.png"]
    assert "Traceback" not in done.stderr


def test_a_mistake_ends_with_2_and_one_line(tmp_path: Path) -> None:
    done = _run("explain", "none.jpg", "--model", "timm:test_resnet", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == "mhex: Expected a photo, but none.jpg is no file; check the path.\n"


def test_import_and_help_load_nothing_heavy(tmp_path: Path) -> None:
    code = (
        "import sys\nimport mhex\n"
        "assert not {'typer', 'rich', 'safetensors'} & set(sys.modules)\n"
        "from mhex.cli import main\nsys.argv = ['mhex', '--help']\n"
        "try:\n    main()\nexcept SystemExit as leave:\n    assert leave.code == 0\n"
        "slow = 'torch timm transformers matplotlib skimage scipy PIL torchvision'\n"
        "heavy = set(slow.split()) & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, env=ENVIRONMENT, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="signals differ")
def test_ctrl_c_ends_with_130_and_no_traceback(cat: Path, tmp_path: Path) -> None:
    code = (
        "import signal, sys, time, mhex\nfrom mhex.cli import main\n"
        # Processes that a shell starts in the background ignore the signal, and so would this one.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "def forever(*a, **k):\n    print('ready', flush=True)\n    time.sleep(60)\n"
        "mhex.load = forever\n"
        f"sys.argv = ['mhex', 'explain', {str(cat)!r}, '--model', 'timm:test_resnet', '--method', 'gradcam']\nmain()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in errors
