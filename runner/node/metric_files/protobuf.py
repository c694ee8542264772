"""Decode protocol buffers without their schemas, as far as metric files need it.

The encoding is described at protobuf.dev/programming-guides/encoding (2026-11-29).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

Field = tuple[int, int | bytes]  # the number of a field and its value
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MAX_VARINT_BITS = 64


def iterate_fields(data: bytes) -> Iterator[Field]:
    """Yield the fields of a message: integers, or the bytes of numbers, texts and messages.

    Raises:
        ValueError: the message is damaged.
    """
    at, end = 0, len(data)
    while at < end:
        key, at = _varint(data, at)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, at = _varint(data, at)
            yield number, value
            continue
        if kind == _BYTES:
            size, at = _varint(data, at)
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"a field has the unknown wire type {kind}")
        if at + size > end:
            raise ValueError("a field is longer than its message")
        yield number, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < _MAX_VARINT_BITS:
        if at >= len(data):
            raise ValueError("a number is incomplete")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValueError("a number is too long")


def to_signed(value: int | bytes) -> int:
    """Return the value of a field of type int64."""
    if isinstance(value, bytes):
        raise ValueError("expected a number")
    return value - (1 << 64) if value >= 1 << 63 else value


def to_bytes(value: int | bytes) -> bytes:
    """Return the bytes of a field that is a text or a message."""
    if isinstance(value, int):
        raise ValueError("expected bytes")
    return value


def to_floats(value: int | bytes, kind: str = "f") -> tuple[float, ...]:
    """Return the numbers of a field: one, or several packed ones; `kind` is that of `struct`."""
    data, size = to_bytes(value), struct.calcsize(kind)
    if len(data) % size:
        raise ValueError("numbers are incomplete")
    return struct.unpack(f"<{len(data) // size}{kind}", data)
