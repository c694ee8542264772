"""Read the scalars of TensorBoard's event files: records with protocol buffers.

The records are those of TFRecord (tensorflow.org/tutorials/load_data/tfrecord), the messages
`Event` and `Summary` of TensorFlow (tensorflow/core/util/event.proto and
framework/summary.proto, 2026-11-29).
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterator
from pathlib import Path

from runner.node.metric_files.protobuf import iterate_fields, to_bytes, to_floats, to_signed
from runner.node.metric_files.reading import READ_BYTES, FileReader, FoundValue

NAME_PART = "tfevents"  # of the names of all event files; TensorBoard reads no others
_HEAD = struct.Struct("<QI")  # the size of a record and the checksum of the size
_CHECKSUM_BYTES = 4
MAX_RECORD_BYTES = 1 << 20  # larger ones are graphs and pictures, and not read
_MASK = 0xA282EAD8
# Fields of the messages.
_STEP, _SUMMARY, _VALUE = 2, 5, 1
_TAG, _SIMPLE_VALUE, _TENSOR, _METADATA = 1, 2, 8, 9
_TYPE, _SHAPE, _CONTENT, _FLOATS, _DOUBLES = 1, 2, 4, 5, 6
_PLUGIN, _PLUGIN_NAME, _DIMENSION = 1, 1, 2
_FLOAT, _DOUBLE = 1, 2


class EventFile(FileReader):
    """Reads an event file while it grows. A record counts when it is complete."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._scalars: set[str] = set()  # tags whose metadata says that they are scalars

    def read(self) -> Iterator[FoundValue]:
        """Yield the scalars of new records. Raise ValueError if the file is damaged."""
        with self._path.open("rb") as file:
            while True:
                file.seek(self._offset)
                data = file.read(READ_BYTES + MAX_RECORD_BYTES)
                used = yield from self._read_records(data)
                if not used:
                    return
                self._offset += used

    def _read_records(self, data: bytes) -> Generator[FoundValue, None, int]:
        """Yield the values in the records of `data`. Return how many bytes were used."""
        at = 0
        while at + _HEAD.size <= len(data):
            size, checksum = _HEAD.unpack_from(data, at)
            if _masked_crc(data[at : at + 8]) != checksum:
                raise ValueError(f"the record at byte {self._offset + at} is damaged")
            end = at + _HEAD.size + size + _CHECKSUM_BYTES
            if end > len(data):
                if size <= MAX_RECORD_BYTES:
                    break
                return end if self._has_bytes(self._offset + end) else at
            yield from self._read_event(data[at + _HEAD.size : end - _CHECKSUM_BYTES])
            at = end
        return at

    def _has_bytes(self, size: int) -> bool:
        return self._path.stat().st_size >= size

    def _read_event(self, event: bytes) -> Iterator[FoundValue]:
        step, summary = 0, b""
        for number, value in iterate_fields(event):
            if number == _STEP:
                step = to_signed(value)
            elif number == _SUMMARY:
                summary = to_bytes(value)
        for number, value in iterate_fields(summary):
            if number == _VALUE and (found := self._read_value(to_bytes(value))) is not None:
                yield FoundValue(*found, step)

    def _read_value(self, message: bytes) -> tuple[str, float] | None:
        tag, simple, tensor, plugin = "", None, b"", ""
        for number, value in iterate_fields(message):
            if number == _TAG:
                tag = to_bytes(value).decode("utf-8", "replace")
            elif number == _SIMPLE_VALUE:
                simple = to_floats(value)[0]
            elif number == _TENSOR:
                tensor = to_bytes(value)
            elif number == _METADATA:
                plugin = _plugin(to_bytes(value))
        if plugin == "scalars":
            self._scalars.add(tag)
        if simple is not None:
            return tag, simple
        if tensor and tag in self._scalars:
            scalar = _scalar(tensor)
            return None if scalar is None else (tag, scalar)
        return None


def _plugin(metadata: bytes) -> str:
    for number, value in iterate_fields(metadata):
        if number == _PLUGIN:
            for inner, name in iterate_fields(to_bytes(value)):
                if inner == _PLUGIN_NAME:
                    return to_bytes(name).decode("utf-8", "replace")
    return ""


def _scalar(tensor: bytes) -> float | None:
    """Return the value of a tensor without dimensions, or None for another one."""
    kind, content = 0, b""
    values: tuple[float, ...] = ()
    for number, value in iterate_fields(tensor):
        if number == _TYPE:
            kind = to_signed(value)
        elif number == _SHAPE and any(n == _DIMENSION for n, _ in iterate_fields(to_bytes(value))):
            return None
        elif number == _CONTENT:
            content = to_bytes(value)
        elif number in (_FLOATS, _DOUBLES):
            values = to_floats(value, "f" if number == _FLOATS else "d")
    if not values and content and kind in (_FLOAT, _DOUBLE):
        values = to_floats(content, "f" if kind == _FLOAT else "d")
    return values[0] if len(values) == 1 else None


def _crc_table() -> list[int]:
    """Return the table of CRC-32C (RFC 3720, appendix B.4)."""
    table: list[int] = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    return table


_CRC_TABLE = _crc_table()


def _masked_crc(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = (crc >> 8) ^ _CRC_TABLE[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + _MASK) & 0xFFFFFFFF
