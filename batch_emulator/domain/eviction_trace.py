"""Traces of spot capacity, so that evictions can be replayed as measured or as designed.

A trace is a file of JSON lines or CSV with a header; the first character decides which. An entry
gives, for a pool, the number of spot nodes to evict or the capacity from then on:

    {"time": 120, "pool": "gpus", "evict": 2}
    {"time": 300, "pool": "gpus", "capacity": 0, "notice": 0}

`time` counts seconds from the creation of the pool, also across restarts. `pool` is an id; without
it (or with `*`) the entry applies to every pool. `notice` overrides the notice in seconds. In CSV
the columns are `time,pool,evict,capacity,notice`; a field may be empty.

Two formats of public traces are read as capacities too: the JSON documents of
https://github.com/skypilot-org/spot-traces, and CSV with the columns `Time` and `T3` of
https://github.com/ddps-lab/spotlake-open-data (both read 2026-11-29).
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, cast

EVICTIONS_VARIABLE = "BATCH_EMULATOR_EVICTIONS"
EVICTED_VARIABLE = "BATCH_EMULATOR_EVICTED"  # the number of these evictions before this attempt
_MOST_PLANNED = 1000
_LONGEST_S = 10**9
_COLUMNS = frozenset(["time", "pool", "evict", "capacity", "notice"])
# What a row of SpotLake is about: a trace has the rows of one.
_SPOTLAKE_KEYS = ("InstanceTier", "InstanceType", "Region", "AZ", "AvailabilityZone")


class TraceError(Exception):
    """A trace cannot be read; the message has the file, the line and the reason."""


@dataclass(frozen=True, slots=True)
class TraceEntry:
    """At `time_s` after a pool's creation: evict `evict` nodes, or set the capacity."""

    time_s: float
    pool: str = "*"
    evict: int | None = None
    capacity: int | None = None
    notice_s: float | None = None

    def concerns(self, pool_key: str) -> bool:
        """Return True if the entry applies to the pool."""
        return self.pool in ("*", pool_key)


@dataclass(frozen=True, slots=True)
class PlannedEviction:
    """An eviction that a task requests, `after_s` after its start; None is the default."""

    after_s: float
    notice_s: float | None = None
    away_s: float | None = None


def planned_evictions(body: Mapping[str, Any]) -> list[PlannedEviction]:
    """Return the evictions that a task requests in its environment. This variable is ours [S].

    Its value is a JSON list with an entry `[after, notice, away]` in seconds for each eviction: the
    node is evicted `after` seconds after the start of an attempt. Notice and away may be null or
    missing.

    Raises:
        ValueError: the value is not such a list.
    """
    settings = body.get("environmentSettings") or ()
    text = next((s.get("value") for s in settings if s.get("name") == EVICTIONS_VARIABLE), None)
    try:
        rows: Any = json.loads(text) if text else []
    except RecursionError as err:
        raise ValueError("too many brackets") from err
    if not isinstance(rows, list) or len(cast("list[Any]", rows)) > _MOST_PLANNED:
        raise ValueError(f"expected a list of at most {_MOST_PLANNED} evictions")
    return [_planned(row) for row in cast("list[Any]", rows)]


def _planned(row: Any) -> PlannedEviction:
    cells = cast("list[Any]", row) if isinstance(row, list) else []
    if not 1 <= len(cells) <= 3 or cells[0] is None or not all(map(_is_time, cells)):
        raise ValueError(f"{row!r}: expected [after, notice, away] in seconds from 0 on")
    return PlannedEviction(*cells)


def _is_time(cell: Any) -> bool:
    number = isinstance(cell, int | float) and not isinstance(cell, bool)
    return cell is None or (number and 0 <= cell <= _LONGEST_S)


def load_trace(path: Path, *, in_order: bool = False) -> tuple[TraceEntry, ...]:
    """Return the entries of a trace file, sorted by time.

    Args:
        path: the trace file.
        in_order: raise TraceError if the entries of the file are not sorted.

    Raises:
        TraceError: the file cannot be read or is invalid.
    """
    text = _read_text(path)
    public = _public_trace(path, text)
    if public:
        return tuple(_changes(public))
    found: list[TraceEntry] = []
    for line, row in _rows(path, text):
        try:
            entry = _entry(row)
            if in_order and found and entry.time_s < found[-1].time_s:
                raise ValueError(f"time {entry.time_s:g} is before {found[-1].time_s:g} above it")
            found.append(entry)
        except (ValueError, OverflowError) as err:
            raise TraceError(f"{path}, line {line}: {err}") from err
    if not found:
        raise TraceError(f"{path} has no entries")
    return tuple(sorted(found, key=lambda entry: entry.time_s))


def read_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the number and the object of each line of JSON lines, or of CSV with a header.

    Raises TraceError.
    """
    yield from _rows(path, _read_text(path))


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeError) as err:
        raise TraceError(f"{path} cannot be read: {err}") from err


def _rows(path: Path, text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        yield from _json_lines(text) if text.lstrip().startswith("{") else _csv(text)
    except (ValueError, csv.Error) as err:
        raise TraceError(f"{path}: {err}") from err


def _json_lines(text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                row: Any = json.loads(line)
            except (ValueError, RecursionError) as err:
                raise ValueError(f"line {number}: not JSON: {err}") from err
            if not isinstance(row, dict):
                raise ValueError(f"line {number}: an object is expected")
            yield number, cast("dict[str, Any]", row)


def _csv(text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    reader = csv.DictReader(text.splitlines())
    for row in reader:
        cells = cast("dict[str | None, Any]", row)
        if None in cells:
            raise ValueError(f"line {reader.line_num}: more cells than the header names")
        yield reader.line_num, {str(k): v.strip() for k, v in cells.items() if v and v.strip()}


def _public_trace(path: Path, text: str) -> list[tuple[float, int]]:
    """Return time and capacity of each measurement of a public trace; empty for our own format."""
    head = text.lstrip()[:4096]
    header = head.partition("\n")[0].strip().split(",")
    try:
        if head.startswith("{") and '"gap_seconds"' in head:
            return _spot_traces(json.loads(text))
        if {"Time", "T3"} <= set(header):
            return _spotlake(text)
    except (ValueError, RecursionError, csv.Error) as err:
        raise TraceError(f"{path}: {err}") from err
    return []


def _spot_traces(document: Any) -> list[tuple[float, int]]:
    """Read `{"metadata": {"gap_seconds": 300}, "data": [4, 4, 0]}`: nodes at each measurement."""
    try:
        gap_s, data = document["metadata"]["gap_seconds"], document["data"]
    except (KeyError, TypeError) as err:
        raise ValueError("metadata.gap_seconds and data are expected") from err
    if isinstance(gap_s, bool) or not isinstance(gap_s, int | float) or not 0 < gap_s <= _LONGEST_S:
        raise ValueError(f"gap_seconds is {gap_s!r}, a number above 0 is expected")
    if not isinstance(data, list) or not data:
        raise ValueError("data has no measurements")
    counts = cast("list[Any]", data)
    return [(n * gap_s, _whole({"data": each}, "data") or 0) for n, each in enumerate(counts)]


def _spotlake(text: str) -> list[tuple[float, int]]:
    """Read rows of SpotLake: T3 is the largest number of nodes with a good placement score."""
    found: list[tuple[datetime, int]] = []
    kinds: set[tuple[str, ...]] = set()
    reader = csv.DictReader(text.splitlines())
    for row in reader:
        try:
            time = datetime.fromisoformat((row["Time"] or "").strip())
            found.append((time.replace(tzinfo=None), _whole(row, "T3") or 0 if row["T3"] else 0))
        except ValueError as err:
            raise ValueError(f"line {reader.line_num}: {err}") from err
        kinds.add(tuple(row.get(key) or "" for key in _SPOTLAKE_KEYS))
    if len(kinds) > 1:
        names = " and ".join(" ".join(filter(None, each)) for each in sorted(kinds)[:2])
        raise ValueError(f"it has rows of {names}; keep those of one size in one zone")
    found.sort()
    return [((time - found[0][0]).total_seconds(), count) for time, count in found]


def _changes(measured: Iterable[tuple[float, int]]) -> Iterator[TraceEntry]:
    """Yield an entry for each change of the capacity."""
    before: int | None = None
    for time_s, count in measured:
        if count != before:
            yield TraceEntry(time_s, capacity=count)
        before = count


def _entry(row: dict[str, Any]) -> TraceEntry:
    _refuse_unknown(row)
    if row.get("time") is None:
        raise ValueError("it has no 'time', in seconds")
    evict, capacity = (_whole(row, name) for name in ("evict", "capacity"))
    if (evict is None) == (capacity is None):
        raise ValueError("it needs either 'evict' or 'capacity', a number of nodes")
    notice = None if row.get("notice") is None else _seconds(row, "notice")
    pool = row.get("pool") or "*"
    if not isinstance(pool, str):
        raise ValueError(f"'pool' is {pool!r}, an id is expected")
    return TraceEntry(_seconds(row, "time"), pool.lower(), evict, capacity, notice)


def _refuse_unknown(names: Iterable[str]) -> None:
    unknown = sorted(set(names) - _COLUMNS)
    if unknown:
        raise ValueError(f"unknown {', '.join(unknown)}; it may have {', '.join(sorted(_COLUMNS))}")


def _number(row: dict[str, Any], name: str, kind: str) -> float:
    value = row[name]
    try:
        if isinstance(value, bool):
            raise TypeError
        number = float(value)
    except (TypeError, ValueError) as err:
        raise ValueError(f"'{name}' is {value!r}, {kind} is expected") from err
    if not math.isfinite(number) or not 0 <= number <= _LONGEST_S:
        raise ValueError(f"'{name}' is {value!r}, {kind} is expected")
    return number


def _seconds(row: dict[str, Any], name: str) -> float:
    return _number(row, name, "a number of seconds from 0 on")


def _whole(row: dict[str, Any], name: str) -> int | None:
    if row.get(name) is None:
        return None
    number = _number(row, name, "a whole number from 0 on")
    if not number.is_integer():
        raise ValueError(f"'{name}' is {row[name]!r}, a whole number from 0 on is expected")
    return int(number)
