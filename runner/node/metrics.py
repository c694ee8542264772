"""Metrics: read from the script's file, brought to one form; `patterns` finds those in stdout."""

from __future__ import annotations

import json
import logging
import math
import os
import stat
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, cast

from runner.node.clock import now_text
from runner.node.documents import parse_json
from runner.node.lines import LineQueue
from runner.node.redaction import Redactor

logger = logging.getLogger(__name__)

MetricValue = float | str  # a str is "NaN", "Infinity" or "-Infinity"

READ_BYTES = 1024 * 1024
MAX_NAME_CHARS = 1000
# Of the last values, which result.json holds and every list of runs reads.
MAX_NAMES = 1000
# Longer than this is no line of metrics; without an end it would eat the node's memory.
MAX_JSON_BYTES = 8 * READ_BYTES


class MetricLog:
    """Collects metrics from any thread and remembers the last value of each name."""

    def __init__(self, attempt: int, queue: LineQueue, redactor: Redactor | None = None) -> None:
        self._redactor = redactor or Redactor()
        self._attempt = attempt
        self._queue = queue
        self._last: dict[str, MetricValue] = {}
        self._step: int | None = None
        self._lock = threading.Lock()
        self._complained = False
        self.warn: Callable[[str], None] = logger.warning  # for the reader of the run

    @property
    def is_crowded(self) -> bool:
        """Whether metrics come faster than they can be shipped."""
        return self._queue.is_crowded

    def add(self, name: str, value: float, step: int | None, *, wait: bool = False) -> None:
        """Write one value; NaN and infinities become strings, as JSON has none.

        With `wait` the caller is held back while the queue is crowded; the thread that empties the
        queue must not wait for itself.
        """
        shown = json_value(value)
        # JSON can spell half a character, which no text that leaves here can hold.
        name = self._redactor.text(name.encode(errors="replace").decode())
        line = {
            "time": now_text(),
            "attempt": self._attempt,
            "step": step,
            "name": name,
            "value": shown,
        }
        with self._lock:
            if is_kept := name in self._last or len(self._last) < MAX_NAMES:
                self._last[name] = shown
            self._step = self._step if step is None else step
        self._queue.put(json.dumps(line, allow_nan=False).encode(), wait=wait)
        if not is_kept and not self._complained:
            self._complained = True
            self.warn(
                f"there are more than {MAX_NAMES} names of metrics: those after the first "
                f"{MAX_NAMES}, such as {name[:100]!r}, are in metrics.jsonl only"
            )

    def recall(self, values: Mapping[str, MetricValue]) -> None:
        """Last values of before this attempt, which were written then."""
        with self._lock:
            for name, value in list(values.items())[:MAX_NAMES]:
                self._last.setdefault(self._redactor.text(name), value)

    def last(self) -> dict[str, MetricValue]:
        """The last value of each of the first 1,000 metrics, in order of first appearance."""
        with self._lock:
            return dict(self._last)

    def last_step(self) -> int | None:
        """The step that was named last."""
        with self._lock:
            return self._step


class MetricsFile:
    """Follows `$RUNNER_METRICS_FILE`; a line without its newline waits until it is whole."""

    def __init__(self, path: Path, log: MetricLog) -> None:
        self._path = path
        self._log = log
        self._file: BinaryIO | None = None
        self._rest = b""
        self._in_long_line = False
        self._complained = False

    def poll(self, final: bool = False) -> None:
        """Take over the lines added since the last call; at the end also one without a newline."""
        while not self._log.is_crowded:
            chunk = self._read()
            if not chunk:
                if final:
                    self._take(self._rest)
                    self._rest = b""
                return
            for line in self._lines(chunk):
                self._take(line)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def _lines(self, chunk: bytes) -> list[bytes]:
        """The lines that end in the chunk; what is too long to be one is left out."""
        *lines, rest = chunk.split(b"\n")
        if not lines:
            self._rest = b"" if self._in_long_line else self._rest + rest
        else:
            lines[0] = b"" if self._in_long_line else self._rest + lines[0]
            self._rest, self._in_long_line = rest, False
        if len(self._rest) > MAX_JSON_BYTES:
            self._complain(f"it is longer than {MAX_JSON_BYTES} bytes")
            self._rest, self._in_long_line = b"", True
        return lines

    def _complain(self, why: object) -> None:
        if not self._complained:
            logger.warning("a line of the metrics file is not a metric: %s", why)
            self._complained = True

    def _read(self) -> bytes:
        """The next bytes; from the beginning where the script wrote the file anew."""
        chunk = self._file.read(READ_BYTES) if self._file and not self._file.closed else b""
        if chunk:
            return chunk
        try:
            now = self._path.stat()
            if not stat.S_ISREG(now.st_mode) or self._is_read_to(now):
                return b""
            self.close()
            self._rest, self._in_long_line = b"", False
            self._file = self._path.open("rb", buffering=0)
            return self._file.read(READ_BYTES)
        except OSError:
            return b""  # not there, or not any more

    def _is_read_to(self, now: os.stat_result) -> bool:
        if self._file is None or self._file.closed:
            return False
        same = os.path.samestat(os.fstat(self._file.fileno()), now)
        return same and now.st_size >= self._file.tell()

    def _take(self, line: bytes) -> None:
        if not line.strip():
            return
        try:
            found = parse_metrics(parse_json(line))
        except (ValueError, TypeError, OverflowError, RecursionError) as err:
            self._complain(err)
            return
        for name, value, step in found:
            self._log.add(name, value, step)


def parse_metrics(raw: Any) -> list[tuple[str, float, int | None]]:
    """The metrics of one line: `{"name", "value", "step"}`, or `{"step", "loss": ..., ...}`.

    In the second form what is no number is left out. Raises ValueError where nothing is a metric.
    """
    if not isinstance(raw, dict):
        raise ValueError("expected a JSON object")
    fields = cast("dict[str, Any]", raw)
    step = fields.get("step")
    if step is not None:
        step = int(step)
    if "name" in fields and "value" in fields:
        return [(_name(fields["name"]), _number(fields["value"], "value"), step)]
    found: list[tuple[str, float, int | None]] = []
    problem: Exception | None = None
    for name, value in fields.items():
        if name not in ("step", "time", "attempt"):
            try:
                found.append((_name(name), _number(value, name), step))
            except (ValueError, OverflowError) as err:
                problem = err
    if problem is not None and not found:
        raise problem
    return found


def _name(name: Any) -> str:
    text = str(name)
    if len(text) > MAX_NAME_CHARS:
        raise ValueError(f"a name of {len(text)} characters")
    return text


def _number(value: Any, name: str) -> float:
    if isinstance(value, (bool, int, float)):
        return float(value)
    if isinstance(value, str):
        return float(value)  # "NaN", "Infinity": what JSON cannot say as a number
    raise ValueError(f"{name[:MAX_NAME_CHARS]} is not a number")


def json_value(value: float) -> MetricValue:
    """As JSON has it: what is no number to JSON becomes a string."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value
