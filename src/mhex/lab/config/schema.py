"""YAML files of one kind, such as recipes and suites: packaged ones by name, your own by path."""

import copy
import functools
import re
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, ConfigDict, Field

from mhex.errors import ArgumentError, unknown_name

SUFFIXES = (".yaml", ".yml")
_DEEPEST = 64  # levels; Python gives up at about a thousand, in whatever code comes first
_MOST = 100_000  # values that a file with aliases stands for; aliases of aliases grow with each level

Count = Annotated[int, Field(ge=1)]
Natural = Annotated[int, Field(ge=0)]
NotNegative = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]
ShareBelowOne = Annotated[float, Field(ge=0, lt=1)]


class FileSection(BaseModel):
    """Keys of a file: frozen, all of them known, all numbers finite."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class KeyMistakeError(yaml.YAMLError):
    """YAML that is valid and does not say what its writer means."""


class _StrictLoader(yaml.SafeLoader):
    """Builds plain values, and refuses what a reader of the file would not see, or what Python cannot hold."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._anchors: list[str | None] = []  # of the nodes around the one that is read; most have none
        self._sizes: dict[str | None, int] = {}  # values that an anchor stands for
        self._values = 0  # so far, with those that aliases stand for

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Read a node that is not nested too deeply, not inside itself, and not far larger than it is written."""
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        line = event.start_mark.line + 1
        is_alias = isinstance(event, yaml.AliasEvent)
        if is_alias and event.anchor in self._anchors:
            raise KeyMistakeError(f"*{event.anchor} in line {line} stands inside what it stands for")
        if len(self._anchors) >= _DEEPEST:
            raise KeyMistakeError(f"line {line} is nested more than {_DEEPEST} levels deep")
        before = self._values
        self._values += self._sizes.get(event.anchor, 0) if is_alias else 1
        if is_alias and self._values > _MOST:
            raise KeyMistakeError(f"with *{event.anchor} in line {line}, aliases stand for more than {_MOST:,} values")
        self._anchors.append(event.anchor)
        node = super().compose_node(parent, index)
        self._anchors.pop()
        self._sizes[event.anchor] = self._values - before
        return node

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        """Build a mapping whose keys are texts, are written once and have values."""
        keys: set[tuple[str, str]] = set()
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            place = f"the key {key.value!r} in line {key.start_mark.line + 1}"
            if (key.tag, key.value) in keys:  # the last one would win without a word
                raise KeyMistakeError(f"{place} is written twice")
            keys.add((key.tag, key.value))
            if not key.tag.endswith((":str", ":merge")):
                raise KeyMistakeError(f"{place} should be a text; put it in quotes")
            if isinstance(value, yaml.ScalarNode) and value.tag.endswith(":null") and not value.value:
                advice = "write one, {} for a section of defaults, or null for none"
                raise KeyMistakeError(f"{place} has no value; {advice}")
        return super().construct_mapping(node, deep=deep)


_EXPONENT = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+")  # YAML 1.1 wants a dot and a sign, and nobody means a text
_StrictLoader.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+0123456789"))


def read_yaml(text: str) -> Any:
    """Read plain values from YAML; a `KeyMistakeError` tells of valid YAML that does not say what its writer means."""
    return copy.deepcopy(_parsed(text))  # the caller may change what it gets


@functools.lru_cache(maxsize=256)  # packaged files are read again and again, by what names or lists them
def _parsed(text: str) -> Any:
    try:
        return yaml.load(text, _StrictLoader)
    except ValueError as error:  # such as a date in the month 13
        raise KeyMistakeError(f"a value cannot be read: {error}") from error


@dataclass(frozen=True)
class NamedFiles:
    """Where files of a kind are, and what they are called in messages."""

    kind: str  # what a file holds; the folder of packaged ones in `mhex.lab` has this name with an s
    listing: str  # the command that lists them

    def packaged(self) -> dict[str, Path]:
        """Give the files that come with mhex by their names."""
        folder = Path(str(resources.files("mhex.lab") / f"{self.kind}s"))
        return {path.stem: path for path in sorted(folder.glob("*.yaml"))}

    def find(self, name: str) -> Path:
        """Find a file by its path or by the name of a packaged one, or refuse the name."""
        path = Path(name).expanduser()
        if path.is_file():
            return path
        if path.suffix in SUFFIXES or len(path.parts) > 1:
            raise ArgumentError(f"There is no {self.kind} file {name}; check the path, or see `{self.listing}`.")
        packaged = self.packaged()
        if name not in packaged:
            raise unknown_name(self.kind, name, packaged)
        return packaged[name]

    def read(self, path: Path) -> dict[str, Any]:
        """Read a file as a mapping of its keys, or refuse it in one sentence that names it."""
        try:
            raw = read_yaml(path.read_text(encoding="utf-8"))
        except KeyMistakeError as error:
            raise ArgumentError(f"{path.name}: {error}.") from error
        except yaml.YAMLError as error:
            raise ArgumentError(f"{path.name} is not valid YAML: {' '.join(str(error).split())}.") from error
        except (OSError, UnicodeDecodeError) as error:
            raise ArgumentError(f"The {self.kind} {path} cannot be read: {error}.") from error
        if not isinstance(raw, dict):
            words = f"a {self.kind} should be a mapping of keys to values, not {type(raw).__name__}"
            raise ArgumentError(f"{path.name}: {words}.")
        return raw
