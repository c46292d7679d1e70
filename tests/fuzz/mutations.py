"""Damaged copies of files, the same in every run: bytes, plain values, and texts in JSON, YAML and CSV."""

from __future__ import annotations

import copy
import csv
import io
import json
import re
import struct
from random import Random
from typing import Any

import yaml

from support.damaged_files import Damage

_HUGE = (0, 1, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 2**40, 2**62, 2**63 - 1, 2**64 - 1)
_PATHS = ("../../beside/trap", "/etc/hostname", "../beside", ".", "", "a\x00b", "~", "x" * 300)
_NUMBERS = (0, -1, 3, 2**31, 2**63, -(2**63), 10**30, 0.5, -0.0, 5e-324, -1e308, float("nan"), float("inf"))
_TEXTS = ("word", "1e999", "\ud7ff\u202e", "\ud800", "\x1b[31m", "{}", "%s %n", "0" * 400, "\U0001f600\u0301")
_PLAIN = (*_NUMBERS, None, True, False, [], {}, [None], [[1, 2], [3]], {"a": 1}, *_TEXTS, *_PATHS)
_DEPTHS = (20, 70, 2_000, 100_000)
_KEY = re.compile(rb'"(?:[^"\\]|\\.)*"\s*:')


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
    """A plain value with one to three changes: other types, missing, swapped and strange keys, paths, huge numbers."""
    value = copy.deepcopy(value)
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        value = _changed(value, random)
    return value


def _changed(value: Any, random: Random) -> Any:
    inside = isinstance(value, (dict, list)) and len(value) > 0
    if not inside or random.random() < 0.05:
        return copy.deepcopy(random.choice(_PLAIN))
    keys = list(value) if isinstance(value, dict) else range(len(value))
    key, action = random.choice(keys), random.random()
    if action < 0.7:
        value[key] = _changed(value[key], random)
    elif action < 0.78:
        del value[key]
    elif action < 0.86:
        other = random.choice(keys)
        value[key], value[other] = value[other], value[key]
    elif isinstance(value, dict):
        name = random.choice(("", "word", "../beside", key.upper() if isinstance(key, str) else "1"))
        value[name] = value.pop(key) if random.random() < 0.5 else copy.deepcopy(random.choice(_PLAIN))
    else:
        value.insert(key, copy.deepcopy(random.choice((*_PLAIN, value[key]))))
    return value


def _strange_text(content: bytes, random: Random) -> bytes:
    """JSON that no writer makes: keys twice, deep nesting, endless digits, control signs, other encodings."""
    kind = random.randrange(6)
    if kind == 0:
        depth = random.choice(_DEPTHS)
        piece = b"[" * depth + b"]" * random.choice((depth, 0))
    elif kind == 1:
        piece = random.choice((b"1" * 5000, b"-0", b"1e400", b"NaN", b"-Infinity", b'"\\ud800"', b'"\x01\t"', b"'a'"))
    elif kind == 2:
        return random.choice((b"\xef\xbb\xbf" + content, content.decode().encode("utf-16"), content + content))
    else:
        piece = b""
    places = list(_KEY.finditer(content))
    if not places:
        return piece or damaged_bytes(content, random)
    key = random.choice(places)
    if piece:
        comma = content.find(b",", key.end())
        return content[: key.end()] + piece + content[len(content) if comma < 0 else comma :]
    value = json.dumps(random.choice(_PLAIN)).encode()
    return content[: key.start()] + key[0] + value + b"," + content[key.start() :]


def damaged_json(content: bytes, random: Random) -> bytes:
    """Values changed, or the text, or bytes."""
    action = random.random()
    if action < 0.25:
        return damaged_bytes(content, random)
    if action < 0.35:
        return _strange_text(content, random)
    return json.dumps(damaged_value(json.loads(content), random)).encode()


def damaged_lines(content: bytes, random: Random) -> bytes:
    """One line of a file with a JSON value in each, or bytes."""
    lines = content.splitlines()
    place = random.randrange(len(lines))
    lines[place] = damaged_json(lines[place], random)
    return b"\n".join(lines)


_YAML_LINES = (
    *(
        "? [a, b]\n: 1",
        "<<: {a: 1}",
        "<<: 3",
        "a: &a [*a]",
        "b: *nowhere",
        "!!python/object:os.system {}",
        "---",
        "...",
    ),
    *("c: !!binary 'x'", "d: 2001-13-01", "e: !!set {a, b}", "f: !!float x", "\tg: 1", "name: 1", "1: 2", "null: 3"),
    *("h: &h {a: 1}\ni: {<<: *h}", "j: 0x" + "f" * 5000, "k: " + "1" * 5000, "l: 1:60:60", "%YAML 9.9", "m: >9\n  a"),
    *("n: '\\ud800'", 'o: "\\ud800"', "p: " + "[" * 70, "q: " + "{a: " * 2_000, "- r", "s: |\n\x07", "t: .nan", "u: ~"),
)


def damaged_yaml(content: bytes, random: Random) -> bytes:
    """Values changed, or lines put in or twice, or bytes."""
    action = random.random()
    if action < 0.25:
        return damaged_bytes(content, random)
    if action < 0.4:
        lines = content.decode().splitlines()
        place = random.randrange(len(lines))
        indent = " " * random.choice((0, 0, 2, 4))
        lines.insert(place, random.choice((lines[place], indent + random.choice(_YAML_LINES))))
        return "\n".join(lines).encode()
    value = damaged_value(yaml.load(content, yaml.CSafeLoader), random)
    try:
        return yaml.dump(value, Dumper=yaml.CSafeDumper, allow_unicode=True).encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON, a part of YAML, can say
        return json.dumps(value).encode()


_CELLS = (
    "",
    " ",
    '"',
    '""',
    "a\nb",
    "a\r",
    "\x00",
    "=1+1",
    "x" * 140_000,
    "\u202e",
    "-1",
    "nan",
    "99999999999",
    "\u00b2",
    "9" * 5000,
    *_PATHS,
)


def damaged_csv(content: bytes, random: Random) -> bytes:
    """Cells and lines changed, other separators, ends of lines and encodings, or bytes."""
    if random.random() < 0.3:
        return damaged_bytes(content, random)
    rows = list(csv.reader(io.StringIO(content.decode(), newline="")))
    for _ in range(random.choice((1, 1, 2))):
        row, other = random.choice(rows), random.choice(rows)
        place, action = random.randrange(len(row) + 1), random.randrange(7)
        if action == 0:
            row.insert(place, random.choice(_CELLS))
        elif action == 1:
            del row[place - 1 : place]
        elif action == 2:
            rows.append(list(row))
        elif action == 3 and len(rows) > 1:
            rows.remove(row)
        elif action == 4:
            row[:], other[:] = other[:], row[:]
        elif row:
            row[place - 1] = random.choice((*_CELLS, random.choice(other or [""])))
    stream = io.StringIO(newline="")
    common = random.random() < 0.7
    ends, separators = ("\n", "\r\n", "\r", "\n\n"), (",", ";", "\t")
    writer = csv.writer(
        stream,
        delimiter="," if common else random.choice(separators),
        lineterminator="\n" if common else random.choice(ends),
        quoting=csv.QUOTE_MINIMAL if common else csv.QUOTE_ALL,
    )
    writer.writerows(rows)
    encoding = "utf-8" if common else random.choice(("utf-8", "utf-8-sig", "utf-16", "latin-1"))
    return stream.getvalue().encode(encoding, "replace")
