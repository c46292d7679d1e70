"""YAML without its two traps: a key that is written twice, and a key without a value."""

from __future__ import annotations

from typing import Any

import yaml


class KeyMistakeError(yaml.YAMLError):
    """YAML that is valid and does not say what its writer means."""


class _Strict(yaml.SafeLoader):
    """Builds plain values, as the safe loader does, and refuses what a reader of the file would not see."""

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
        KeyMistakeError: A key is written twice in one mapping, or has no value.
        yaml.YAMLError: It is not YAML.
    """
    return yaml.load(text, _Strict)
