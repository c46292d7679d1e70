"""YAML files of one kind, such as recipes or suites: packaged ones by name, your own by path."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from mhex.errors import ArgumentError, unknown_name
from mhex.train.strict_yaml import KeyMistakeError, read_yaml

SUFFIXES = (".yaml", ".yml")


@dataclass(frozen=True)
class NamedFiles:
    """Where files of a kind are, and what they are called in messages.

    Attributes:
        kind: What a file holds.
        package: That has a folder of them.
        folder: The folder.
        listing: The command that lists them.
    """

    kind: str
    package: str
    folder: str
    listing: str

    def packaged(self) -> dict[str, Path]:
        """Those that come with mhex: a file for each name."""
        folder = Path(str(resources.files(self.package) / self.folder))
        return {path.stem: path for path in sorted(folder.glob("*.yaml"))}

    def find(self, wanted: str) -> Path:
        """A file.

        Args:
            wanted: A path, or the name of a packaged one.

        Raises:
            ArgumentError: There is no such file or name.
        """
        path = Path(wanted).expanduser()
        if path.is_file():
            return path
        if path.suffix in SUFFIXES or len(path.parts) > 1:
            raise ArgumentError(f"There is no {self.kind} file {wanted}; check the path, or see `{self.listing}`.")
        return self.named(wanted)

    def named(self, wanted: str) -> Path:
        """The file of a packaged one.

        Raises:
            ArgumentError: There is no such name.
        """
        packaged = self.packaged()
        if wanted not in packaged:
            raise unknown_name(self.kind, wanted, packaged)
        return packaged[wanted]

    def read(self, path: Path) -> dict[str, Any]:
        """What a file says, by its keys.

        Raises:
            ArgumentError: It cannot be read, or is no mapping; one sentence that names the file.
        """
        try:
            raw = read_yaml(path.read_text(encoding="utf-8"))
        except KeyMistakeError as error:
            raise ArgumentError(f"{path.name}: {error}.") from error
        except yaml.YAMLError as error:
            raise ArgumentError(f"{path.name} is not valid YAML: {' '.join(str(error).split())}.") from error
        except (OSError, UnicodeDecodeError) as error:
            raise ArgumentError(f"The {self.kind} {path} cannot be read: {error}.") from error
        if not isinstance(raw, dict):
            raise ArgumentError(
                f"{path.name}: a {self.kind} should be a mapping of keys to values, not {type(raw).__name__}."
            )
        return raw
