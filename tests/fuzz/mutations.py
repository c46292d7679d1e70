"""Damaged copies of files, the same in every run: bytes, and values inside JSON, YAML and safetensors headers."""

from __future__ import annotations

import copy
import json
import struct
from collections.abc import Callable
from random import Random
from typing import Any

import yaml

Damage = Callable[[bytes, Random], bytes]

_HUGE = (0, 1, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 2**40, 2**62, 2**63 - 1, 2**64 - 1)
_PATHS = ("../../beside/trap", "/etc/hostname", "../beside", ".", "", "a\x00b", "~", "x" * 300)
_VALUES = (None, True, False, 0, -1, 3, 10**30, 0.5, -1e308, float("nan"), float("inf"), [], {}, [None], [[1, 2], [3]])
_PLAIN = (*_VALUES, {"a": 1}, "word", "1e999", "\ud7ff\u202e", *_PATHS)


def damaged_bytes(content: bytes, random: Random) -> bytes:
    """One to three changes of bytes."""
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        content = random.choice(_CHANGES)(content, random)
    return content


def _flip(content: bytes, random: Random) -> bytes:
    changed = bytearray(content)
    for _ in range(random.choice((1, 1, 4, 16)) if content else 0):
        changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
    return bytes(changed)


def _cut(content: bytes, random: Random) -> bytes:
    return content[: random.randrange(len(content) + 1)]


def _splice(content: bytes, random: Random) -> bytes:
    """A piece of the file in another place of it: put between, or over what is there."""
    first, last = sorted(random.randrange(len(content) + 1) for _ in range(2))
    piece = content[first : min(last, first + 64)]
    place = random.randrange(len(content) + 1)
    return content[:place] + piece + content[place + random.choice((0, len(piece))) :]


def _drop(content: bytes, random: Random) -> bytes:
    place = random.randrange(len(content) + 1)
    return content[:place] + content[place + random.choice((1, 4, 32)) :]


def _number(content: bytes, random: Random) -> bytes:
    """A number that is a length somewhere, over what is there; most of them near the start, where headers are."""
    size, order = random.choice((1, 2, 4, 8)), random.choice("<>")
    code = order + {1: "B", 2: "H", 4: "I", 8: "Q"}[size]
    number = struct.pack(code, random.choice(_HUGE) % 2 ** (8 * size))
    place = random.randrange(min(len(content), random.choice((16, 64, 10**9))) + 1)
    return content[:place] + number + content[place + size :]


def _noise(content: bytes, random: Random) -> bytes:
    place = random.randrange(len(content) + 1)
    return content[:place] + random.randbytes(random.choice((1, 8, 64))) + content[place:]


_CHANGES: tuple[Damage, ...] = (_flip, _flip, _cut, _splice, _drop, _number, _number, _noise)


def damaged_value(value: Any, random: Random) -> Any:
    """A plain value with one to three changes inside: other types, missing and strange keys, paths, huge numbers."""
    value = copy.deepcopy(value)
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        value = _changed(value, random)
    return value


def _changed(value: Any, random: Random) -> Any:
    inside = isinstance(value, (dict, list)) and len(value) > 0
    if not inside or random.random() < 0.05:
        return copy.deepcopy(random.choice(_PLAIN))
    key = random.choice(list(value)) if isinstance(value, dict) else random.randrange(len(value))
    action = random.random()
    if action < 0.75:
        value[key] = _changed(value[key], random)
    elif action < 0.85:
        del value[key]
    elif isinstance(value, dict):
        name = random.choice(("", "word", "../beside", key.upper() if isinstance(key, str) else "1"))
        value[name] = value.pop(key) if random.random() < 0.5 else copy.deepcopy(random.choice(_PLAIN))
    else:
        value.insert(key, copy.deepcopy(random.choice((*_PLAIN, value[key]))))
    return value


def damaged_json(content: bytes, random: Random) -> bytes:
    """Values changed, or bytes."""
    if random.random() < 0.3:
        return damaged_bytes(content, random)
    return json.dumps(damaged_value(json.loads(content), random)).encode()


def damaged_lines(content: bytes, random: Random) -> bytes:
    """One line of a file with a JSON value in each, or bytes."""
    lines = content.splitlines()
    place = random.randrange(len(lines))
    lines[place] = damaged_json(lines[place], random)
    return b"\n".join(lines)


def damaged_yaml(content: bytes, random: Random) -> bytes:
    """Values changed, or bytes."""
    if random.random() < 0.3:
        return damaged_bytes(content, random)
    value = damaged_value(yaml.load(content, yaml.CSafeLoader), random)
    return yaml.dump(value, Dumper=yaml.CSafeDumper, allow_unicode=True).encode("utf-8", "replace")


def damaged_safetensors(content: bytes, random: Random) -> bytes:
    """The header's values changed, with its length put right, or values inside its texts, or bytes."""
    if random.random() < 0.3:
        return damaged_bytes(content, random)
    (length,) = struct.unpack("<Q", content[:8])
    header, rest = json.loads(content[8 : 8 + length]), content[8 + length :]
    texts = header.get("__metadata__") or {}
    if texts and random.random() < 0.6:
        key = random.choice(list(texts))
        try:
            texts[key] = json.dumps(damaged_value(json.loads(texts[key]), random))
        except ValueError:  # a plain text
            texts[key] = str(damaged_value(texts[key], random))
    else:
        header = damaged_value(header, random)
    coded = json.dumps(header).encode()
    return struct.pack("<Q", len(coded)) + coded + rest
