"""YAML without its traps: a key that is written twice, a key without a value, and nesting without end."""

from __future__ import annotations

from typing import Any

import yaml

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
