"""Suite files: packaged ones by name, your own by path."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import yaml

from mhex.bench.suite import Suite
from mhex.bench.suite_check import check_suite
from mhex.errors import ArgumentError, unknown_name
from mhex.train.schema import build
from mhex.train.strict_yaml import KeyMistakeError, read_yaml

_SUFFIXES = (".yaml", ".yml")


def packaged_suites() -> dict[str, Path]:
    """The suites that come with mhex: a file for each name."""
    folder = Path(str(resources.files("mhex.bench") / "suites"))
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def find_suite(wanted: str) -> Path:
    """The file of a suite.

    Args:
        wanted: A path, or the name of a packaged suite.

    Raises:
        ArgumentError: There is no such file or name.
    """
    path = Path(wanted).expanduser()
    if path.is_file():
        return path
    if path.suffix in _SUFFIXES or len(path.parts) > 1:
        raise ArgumentError(f"There is no suite file {wanted}; check the path, or see `mhex bench --list`.")
    packaged = packaged_suites()
    if wanted not in packaged:
        raise unknown_name("suite", wanted, packaged)
    return packaged[wanted]


def read_suite(path: Path) -> Suite:
    """Read a suite file, and check all that can be checked without weights and data.

    Args:
        path: The file.

    Raises:
        ArgumentError: One sentence that names the file and the key.
    """
    try:
        raw = read_yaml(path.read_text(encoding="utf-8"))
    except KeyMistakeError as error:
        raise ArgumentError(f"{path.name}: {error}.") from error
    except yaml.YAMLError as error:
        raise ArgumentError(f"{path.name} is not valid YAML: {' '.join(str(error).split())}.") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ArgumentError(f"The suite {path} cannot be read: {error}.") from error
    if not isinstance(raw, dict):
        raise ArgumentError(f"{path.name}: a suite should be a mapping of keys to values, not {type(raw).__name__}.")
    suite = build(Suite, raw, path.name)
    check_suite(suite, path.name)
    return suite
