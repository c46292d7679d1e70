"""Damaged copies of files that stay whole as containers: safetensors, Parquet, PNG and numpy archives."""

from __future__ import annotations

import functools
import io
import json
import struct
import zipfile
import zlib
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from mutations import damaged_bytes, damaged_json, damaged_value

_DTYPES = {
    **{"BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2, "I32": 4},
    **{"U32": 4, "F32": 4, "F64": 8, "I64": 8, "U64": 8, "C64": 8},
}


def _header(content: bytes) -> tuple[dict[str, Any], bytes]:
    (length,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def _file(header: dict[str, Any], data: bytes) -> bytes:
    coded = json.dumps(header).encode()
    return struct.pack("<Q", len(coded)) + coded + data


def damaged_safetensors(content: bytes, random: Random) -> bytes:
    """Whole tensors of other kinds, shapes and names, or values in the header or in its texts changed, or bytes."""
    action = random.random()
    if action < 0.25:
        return damaged_bytes(content, random)
    header, data = _header(content)
    texts = header.get("__metadata__") or {}
    if action < 0.55 and texts:
        key = random.choice(list(texts))
        try:
            json.loads(texts[key])
            texts[key] = damaged_json(texts[key].encode(), random).decode("utf-8", "replace")
        except ValueError:  # a plain text
            texts[key] = str(damaged_value(texts[key], random))
        return _file(header, data)
    if action < 0.75:
        return _file(damaged_value(header, random), data)
    return _other_tensors(header, data, random)


def _other_tensors(header: dict[str, Any], data: bytes, random: Random) -> bytes:
    """A whole file, whose offsets are right, with other tensors in it."""
    entries = {name: header[name] for name in header if name != "__metadata__"}
    parts = {name: data[slice(*entry["data_offsets"])] for name, entry in entries.items()}
    for _ in range(random.choice((1, 1, 2))):
        name, other = random.choice(list(entries)), random.choice(list(entries))
        entry, action = entries[name], random.randrange(8)
        if action < 3:
            kind = random.choice([kind for kind, size in _DTYPES.items() if len(parts[name]) % size == 0])
            count = len(parts[name]) // _DTYPES[kind]
            shapes = ([count], [1, count], [count, 1], [1] * 20 + [count], [count, 1, 1, 1], entry["shape"])
            fitting = [shape for shape in shapes if functools.reduce(int.__mul__, shape, 1) == count]
            entries[name] = {"dtype": kind, "shape": random.choice(fitting)}
        elif action == 3:
            entries[name], entries[other] = entries[other], entries[name]
            parts[name], parts[other] = parts[other], parts[name]
        elif action == 4 and len(entries) > 1:
            del entries[name], parts[name]
        elif action == 5:
            title = random.choice(("", "word", "../beside", name + ".int8_scale", name.upper(), "\ud800", "a\x00"))
            entries[title], parts[title] = dict(entry), parts[name]
        elif action == 6:
            parts[name] = random.choice((b"\xff", b"\x7f\xf0", b"\x00")) * len(parts[name])
            parts[name] = parts[name][: functools.reduce(int.__mul__, entry["shape"], 1) * _DTYPES[entry["dtype"]]]
        else:
            shape = random.choice(([], [0], [0, 2**40], [1], [2] * 8))
            size = functools.reduce(int.__mul__, shape, 1) * _DTYPES[entry["dtype"]]
            entries[name], parts[name] = {"dtype": entry["dtype"], "shape": shape}, bytes(size)
    place, whole = 0, {}
    for name, entry in entries.items():
        whole[name] = {**entry, "data_offsets": [place, place + len(parts[name])]}
        place += len(parts[name])
    facts = {"__metadata__": header["__metadata__"]} if "__metadata__" in header else {}
    return _file({**facts, **whole}, b"".join(parts[name] for name in entries))


# --- Parquet ---------------------------------------------------------------------------------------------------------

_TYPES = (pa.string(), pa.binary(), pa.int8(), pa.int64(), pa.uint64(), pa.float32(), pa.float16(), pa.bool_())
_TYPES = (*_TYPES, pa.list_(pa.string()), pa.large_string(), pa.date32(), pa.timestamp("ns"), pa.decimal128(9, 2))
_UNFIT = (pa.ArrowException, TypeError, ValueError, KeyError, OverflowError, AttributeError, RecursionError)


@functools.cache
def _table(content: bytes) -> Any:
    return pq.read_table(io.BytesIO(content))


def damaged_parquet(content: bytes, random: Random) -> bytes:
    """Values, types, names and order of columns changed, and facts in the header, or bytes."""
    if random.random() < 0.35:
        return damaged_bytes(content, random)
    table = _table(content)
    for _ in range(random.choice((1, 1, 2))):
        try:
            table = _other_table(table, random)
        except _UNFIT:
            table = table.slice(0, random.randrange(3))
    buffer = io.BytesIO()
    try:
        pq.write_table(table, buffer, use_dictionary=random.random() < 0.5)
    except _UNFIT:
        return damaged_bytes(content, random)
    return buffer.getvalue()


def _other_table(table: Any, random: Random) -> Any:
    place, action = random.randrange(table.num_columns), random.random()
    field = table.schema.field(place)
    if action < 0.5:
        values = damaged_value(table.column(place).to_pylist(), random)
        kind = None if random.random() < 0.4 else field.type
        array = pa.array(values, kind)
        if len(array) != table.num_rows:
            table = table.select([place])
            return table.set_column(0, field, array) if kind else pa.table({field.name: array})
        return table.set_column(place, field.name, array)
    if action < 0.65:
        kind = random.choice(_TYPES)
        try:
            return table.set_column(place, field.name, table.column(place).cast(kind))
        except _UNFIT:
            return table.set_column(place, field.name, pa.nulls(table.num_rows, kind))
    if action < 0.7:
        return table.set_column(place, field.name, table.column(place).dictionary_encode())
    if action < 0.75:
        name = random.choice(("", "word", "a.b", "../beside", "\x00", field.name.upper()))
        return table.set_column(place, name, table.column(place))
    if action < 0.8:
        return table.append_column(field.name, table.column(place))
    if action < 0.85:
        return table.remove_column(place)
    if action < 0.9:
        return table.select(random.sample(table.column_names, table.num_columns))
    if action < 0.95:
        return pa.concat_tables([table] * random.choice((0, 2, 40)) or [table.slice(0, 0)])
    facts = dict(table.schema.metadata or {}) or {b"mhex": b'{"lost": {"1": "a"}, "broken": ""}'}
    key = random.choice(list(facts))
    return table.replace_schema_metadata({**facts, key: damaged_json(facts[key] or b"{}", random)})


# --- PNG -------------------------------------------------------------------------------------------------------------

_KINDS = (b"tRNS", b"PLTE", b"iCCP", b"eXIf", b"zTXt", b"iTXt", b"gAMA", b"sBIT", b"acTL", b"fdAT", b"IDAT", b"IEND")


def damaged_png(content: bytes, random: Random) -> bytes:
    """Chunks changed, with their checksums put right, or bytes."""
    if random.random() < 0.35:
        return damaged_bytes(content, random)
    chunks, place = [], 8
    while place < len(content):
        (length,) = struct.unpack(">I", content[place : place + 4])
        chunks.append((content[place + 4 : place + 8], content[place + 8 : place + 8 + length]))
        place += 12 + length
    for _ in range(random.choice((1, 1, 2))):
        place, action = random.randrange(len(chunks)), random.randrange(6)
        kind, data = chunks[place]
        if action == 0:
            sizes = (0, 1, 11, 13, 5000, 2**16, 2**31 - 1, 2**32 - 1)
            width, height = (random.choice((12, random.choice(sizes))) for _ in range(2))
            rest = [
                random.choice(choices) for choices in ((8, 1, 16, 3), (2, 0, 3, 4, 6, 7), (0, 1), (0, 1), (0, 1, 9))
            ]
            chunks[0] = b"IHDR", struct.pack(">II5B", width, height, *rest)
        elif action == 1:
            chunks[place] = kind, damaged_bytes(data, random)
        elif action == 2:
            chunks.insert(place, (random.choice(_KINDS), random.randbytes(random.choice((0, 1, 3, 8, 90)))))
        elif action == 3:
            chunks.insert(random.randrange(len(chunks)), chunks.pop(place))
        elif action == 4 and len(chunks) > 1:
            del chunks[place]
        else:
            pixels = zlib.compress(bytes(random.choice((0, 1, 37, 444, 10_000))))
            chunks = [(kind, pixels if kind == b"IDAT" else data) for kind, data in chunks]
    parts = (struct.pack(">I", len(data)) + kind + data + _checksum(kind + data) for kind, data in chunks)
    return content[:8] + b"".join(parts)


def _checksum(data: bytes) -> bytes:
    return struct.pack(">I", zlib.crc32(data))


# --- numpy archives --------------------------------------------------------------------------------------------------

_DESCRIPTIONS = (
    "'|O'",
    "'<f8'",
    "'|b1'",
    "'>i2'",
    "'<U3'",
    "'<c16'",
    "'|V8'",
    "[('a', '<i4')]",
    "'word'",
    "3",
    "'<i8'",
)
_SHAPES = ("()", "(0,)", "(3,)", "(3, 28)", "(3, 0, 28)", "(-3, 28, 28)", "(1000000000000,)", "3", "'a'", f"({2**64},)")


def damaged_archive(content: bytes, random: Random) -> bytes:
    """Arrays of other kinds and shapes, members that are missing or have strange names, or bytes."""
    if random.random() < 0.35:
        return damaged_bytes(content, random)
    members = dict(_members(content))
    for _ in range(random.choice((1, 1, 2))):
        name, action = random.choice(list(members)), random.randrange(7)
        if action == 6:  # far more rows than there are, in all arrays alike
            members = {name: data.replace(b"(3, ", b"(3000000000, ") for name, data in members.items()}
        elif action < 3:
            members[name] = _other_array(members[name], random)
        elif action == 3 and len(members) > 1:
            del members[name]
        elif action == 4:
            members[random.choice(("../beside/trap.npy", "word", "", name + "/", "a\x00.npy"))] = members.pop(name)
        else:
            members[name] = damaged_bytes(members[name], random)
    buffer, packing = io.BytesIO(), random.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
    with zipfile.ZipFile(buffer, "w", packing, compresslevel=1) as archive:
        for name, data in members.items():
            archive.writestr(zipfile.ZipInfo(name), data, packing)
    return buffer.getvalue()


@functools.cache
def _members(content: bytes) -> tuple[tuple[str, bytes], ...]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return tuple((name, archive.read(name)) for name in archive.namelist())


def _other_array(content: bytes, random: Random) -> bytes:
    if not content.startswith(b"\x93NUMPY\x01"):
        return damaged_bytes(content, random)
    length = struct.unpack("<H", content[8:10])[0]
    data = content[10 + length :]
    description, shape, order = "'|u1'", "(3, 28, 28)" if len(data) > 3 else "(3, 1)", "False"
    kind = random.randrange(4)
    if kind == 0:
        description = random.choice(_DESCRIPTIONS)
    elif kind == 1:
        shape = random.choice(_SHAPES)
    elif kind == 2:
        order = random.choice(("True", "None", "[]"))
    else:
        data = random.choice((data + bytes(9), data[:-1], bytes(8 * len(data)), b"", b"\xff" * len(data)))
    text = f"{{'descr': {description}, 'fortran_order': {order}, 'shape': {shape}, }}\n".encode()
    if random.random() < 0.1:
        text = random.choice((b"[" * 5000, b"__import__('os')", b"{}\n", text.replace(b"shape", b"shap")))
    return content[:8] + struct.pack("<H", len(text)) + text + data
