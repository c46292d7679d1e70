"""Suite files: packaged ones by name, your own by path."""

from __future__ import annotations

from pathlib import Path

from mhex._schema import build
from mhex.lab.config.schema import NamedFiles
from mhex.lab.config.suite import Suite
from mhex.lab.config.suite_check import check_suite

_SUITES = NamedFiles("suite", "mhex.lab", "suites", "mhex bench --list")


def packaged_suites() -> dict[str, Path]:
    """The suites that come with mhex: a file for each name."""
    return _SUITES.packaged()


def find_suite(wanted: str) -> Path:
    """The file of a suite, by its path or the name of a packaged one.

    Raises:
        ArgumentError: There is no such file or name.
    """
    return _SUITES.find(wanted)


def read_suite(path: Path) -> Suite:
    """Read a suite file, and check all that can be checked without weights and data.

    Args:
        path: The file.

    Raises:
        ArgumentError: One sentence that names the file and the key.
    """
    suite = build(Suite, _SUITES.read(path), path.name)
    check_suite(suite, path.name)
    return suite
