"""The pinned versions let every extra, and the packages of planned ones, resolve to what is current."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
CONSTRAINTS = ROOT / "constraints.txt"
# What must be met, and the major version that is current.
CURRENT = {
    "gradio>=6": {"gradio": 6},
    "ray[data]": {"ray": 2},
    "torch-geometric": {"torch-geometric": 2},
    "sphinx pydata-sphinx-theme myst-parser myst-nb": {"sphinx": 9, "myst-parser": 5, "myst-nb": 1},
}
# What gradio 6.31.0 declares of packages whose newest releases it does not take.
BOUNDS = ("pillow>=8.0,<13.0", "tomlkit>=0.12.0,<0.15.0", "huggingface-hub>=1.16.0,<3.0", "pandas<4.0", "typer<1.0")


def _pins() -> dict[str, Version]:
    lines = [line for line in CONSTRAINTS.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    pairs = [re.fullmatch(r"([\w.-]+)==([\w.]+)", line) for line in lines]
    assert all(pairs), "every line is a pin"
    return {canonicalize_name(pair[1]): Version(pair[2]) for pair in pairs if pair}


@pytest.mark.parametrize("bound", BOUNDS)
def test_pins_are_within_what_gradio_takes(bound: str) -> None:
    requirement = Requirement(bound)
    assert requirement.specifier.contains(_pins()[requirement.name])


def test_packages_of_planned_extras_are_pinned_to_their_current_major() -> None:
    pins = _pins()
    majors = {name: major for wanted in CURRENT.values() for name, major in wanted.items()}
    assert {name: pins[name].major for name in majors} == majors


def test_what_the_package_asks_for_is_pinned_within_its_bounds() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [line for lines in project["optional-dependencies"].values() for line in lines]
    pins = _pins()
    for line in [*project["dependencies"], *extras]:
        requirement = Requirement(line)
        if requirement.name != "mhex":
            assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)]), line


@pytest.mark.slow
@pytest.mark.parametrize("wanted", CURRENT)
def test_pip_resolves_to_current_majors(wanted: str, tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip"]
    listed = subprocess.run([*pip, "index", "versions", "gradio"], capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("There is no package index to ask.")
    report = tmp_path / "report.json"
    names = [name.split(">")[0] for name in wanted.split()]  # without a lower bound, so that pip may go back
    asked = [*pip, "install", "--quiet", "--dry-run", "--ignore-installed", "--report", str(report)]
    done = subprocess.run([*asked, "-c", str(CONSTRAINTS), *names], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    installed = [entry["metadata"] for entry in json.loads(report.read_text(encoding="utf-8"))["install"]]
    versions = {canonicalize_name(entry["name"]): Version(entry["version"]) for entry in installed}
    assert {name: versions[name].major for name in CURRENT[wanted]} == CURRENT[wanted]
