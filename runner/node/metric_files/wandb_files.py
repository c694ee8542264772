"""Read the history in the files of Weights & Biases: a log of protocol buffers.

A `.wandb` file has a header of seven bytes, and blocks in the log format of LevelDB
(github.com/google/leveldb/blob/main/doc/log_format.md, 2026-11-29). The messages `Record`,
`HistoryRecord` and `HistoryItem` are in wandb/proto/wandb_internal.proto. No specification is
public; a test compares this reader with a file that wandb wrote.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

from runner.node.metric_files.protobuf import iterate_fields, to_bytes, to_signed
from runner.node.metric_files.reading import READ_BYTES, FileReader, FoundValue
from runner.protocol.codec import parse_json

HEADER = b":W&B\xe1\xbe\x00"
_BLOCK_BYTES = 32768
_RECORD = struct.Struct("<IHB")  # checksum, size and kind of a part of a record
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
# Fields of the messages.
_HISTORY, _SUMMARY, _ITEM, _HISTORY_STEP = 2, 3, 1, 2
_KEY, _NESTED_KEY, _JSON = 1, 2, 16
_NUMBER = 1
MAX_RECORD_BYTES = READ_BYTES // 2  # larger ones are not read
MAX_JSON_BYTES = 64  # a longer value is no number


class WandbFile(FileReader):
    """Reads a `.wandb` file while it grows. A record counts when it is complete."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = len(HEADER)  # the start of the first record that is not complete
        self._logged: set[str] = set()  # names in the history
        self._summary: dict[str, float] = {}  # the last values, also of those that are logged

    def read(self) -> Iterator[FoundValue]:
        """Yield the values of new records of the history. Raise ValueError for a damaged file."""
        with self._path.open("rb") as file:
            while True:
                file.seek(self._offset)
                data = file.read(READ_BYTES + _BLOCK_BYTES)
                used = yield from self._read_records(data)
                if not used:
                    return
                self._offset += used

    def _read_records(self, data: bytes) -> Generator[FoundValue, None, int]:
        """Yield the values in the records of `data`. Return how many bytes were used."""
        at = used = size = 0
        parts: list[bytes] = []
        while (part := self._next_part(data, at)) is not None:
            kind, content, at = part
            if kind in (_FULL, _FIRST):
                parts, size = [], 0
            elif not parts:  # of a record that is too long
                used = at
                continue
            size += len(content)
            parts.append(content)
            if kind in (_FULL, _LAST) and size <= MAX_RECORD_BYTES:
                yield from self._read_record(b"".join(parts))
            if kind in (_FULL, _LAST) or size > MAX_RECORD_BYTES:
                parts, used = [], at  # the rest of a record that is too long is no message
        return used

    def _next_part(self, data: bytes, at: int) -> tuple[int, bytes, int] | None:
        """Return kind, content and end of the part of a record at `at`, or None if incomplete."""
        left = _BLOCK_BYTES - (self._offset + at) % _BLOCK_BYTES
        if left < _RECORD.size:  # a block ends with zeros
            at, left = at + left, _BLOCK_BYTES
        if at + _RECORD.size > len(data):
            return None
        _, size, kind = _RECORD.unpack_from(data, at)
        if kind == 0 and size == 0:  # not written yet
            return None
        if kind not in (_FULL, _FIRST, _MIDDLE, _LAST) or size > left - _RECORD.size:
            raise ValueError(f"the record at byte {self._offset + at} is damaged")
        end = at + _RECORD.size + size
        return (kind, data[at + _RECORD.size : end], end) if end <= len(data) else None

    def _read_record(self, record: bytes) -> Iterator[FoundValue]:
        for number, value in iterate_fields(record):
            if number == _HISTORY:
                for found in _read_history(to_bytes(value)):
                    self._logged.add(found.name)
                    yield found
            elif number == _SUMMARY:
                self._read_summary(to_bytes(value))

    def finish(self) -> Iterator[FoundValue]:
        """Yield values of the summary that the script did not log, too."""
        for name, value in self._summary.items():
            if name not in self._logged:
                yield FoundValue(name, value, None)

    def _read_summary(self, summary: bytes) -> None:
        for number, value in iterate_fields(summary):
            if number != _ITEM:
                continue
            key, text = _read_item(to_bytes(value))
            parsed = _number(text)
            if parsed is not None and not key.startswith("_"):
                self._summary[key] = parsed


def _read_history(history: bytes) -> Iterator[FoundValue]:
    step: int | None = None
    found: list[tuple[str, float]] = []
    for number, value in iterate_fields(history):
        if number == _ITEM:
            key, text = _read_item(to_bytes(value))
            if key == "_step":
                step = int(float(text))
            elif not key.startswith("_") and (parsed := _number(text)) is not None:
                found.append((key, parsed))
        elif number == _HISTORY_STEP:
            step = 0
            for inner, number_of_step in iterate_fields(to_bytes(value)):
                if inner == _NUMBER:
                    step = to_signed(number_of_step)
    for name, number in found:
        yield FoundValue(name, number, step)


def _read_item(item: bytes) -> tuple[str, bytes]:
    key, nested, text = "", list[str](), b""
    for number, value in iterate_fields(item):
        if number == _KEY:
            key = to_bytes(value).decode("utf-8", "replace")
        elif number == _NESTED_KEY:
            nested.append(to_bytes(value).decode("utf-8", "replace"))
        elif number == _JSON:
            text = to_bytes(value)
    return key or ".".join(nested), text


def _number(text: bytes) -> float | None:
    if len(text) > MAX_JSON_BYTES:
        return None
    try:
        value: Any = parse_json(text)
    except ValueError:
        return None
    if value in ("NaN", "Infinity", "-Infinity"):
        return float(value)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number else None
