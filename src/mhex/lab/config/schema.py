"""YAML files of one kind, such as recipes or suites: packaged ones by name, your own by path."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from mhex.errors import ArgumentError, unknown_name

_DEEPEST = 64  # levels; Python gives up at about a thousand, in whatever code comes first


class KeyMistakeError(yaml.YAMLError):
    """YAML that is valid and does not say what its writer means."""


class Shallow(yaml.SafeLoader):
    """Builds plain values, and refuses those that are nested too deeply, which would end in an error of Python's."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._within: list[str | None] = []  # anchors of the nodes around the one that is read; most have none

    def compose_node(self, parent: Any, index: Any) -> Any:
        """A node that is not nested too deeply, and not inside itself."""
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent) and event.anchor in self._within:
            raise KeyMistakeError(f"*{event.anchor} in line {line} stands inside what it stands for")
        if len(self._within) >= _DEEPEST:
            raise KeyMistakeError(f"line {line} is nested more than {_DEEPEST} levels deep")
        self._within.append(event.anchor)
        node = super().compose_node(parent, index)
        self._within.pop()
        return node


class _Strict(Shallow):
    """Also refuses what a reader of the file would not see."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        """A mapping whose keys are written once and have values."""
        seen: set[tuple[str, str]] = set()
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if (key.tag, key.value) in seen:  # the last one would win without a word
                raise KeyMistakeError(_at(key, "is written twice"))
            seen.add((key.tag, key.value))
            if isinstance(value, yaml.ScalarNode) and value.tag == "tag:yaml.org,2002:null" and not value.value:
                raise KeyMistakeError(
                    _at(key, "has no value; write one, {} for a section of defaults, or null for none")
                )
        return super().construct_mapping(node, deep=deep)


def _at(key: yaml.ScalarNode, words: str) -> str:
    return f"the key {key.value!r} in line {key.start_mark.line + 1} {words}"


def read_yaml(text: str) -> Any:
    """Plain values from YAML.

    Args:
        text: Of a whole file.

    Raises:
        KeyMistakeError: A key is written twice in one mapping or has no value, or a value is nested too deeply.
        yaml.YAMLError: It is not YAML.
    """
    try:
        return yaml.load(text, _Strict)
    except ValueError as error:  # such as a date in the month 13
        raise KeyMistakeError(f"a value cannot be read: {error}") from error


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
