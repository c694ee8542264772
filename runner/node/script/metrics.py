"""Metrics of the script: lines of its metrics file, and regular expressions over its output.

Another process evaluates the expressions (`pattern_worker`).
"""

from __future__ import annotations

import functools
import json
import logging
import os
import re
import stat
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from runner.node.script import pattern_worker
from runner.node.script.command import dies_with_parent
from runner.node.script.redaction import Redactor
from runner.node.script.shipper import LineQueue
from runner.protocol.codec import now_text, parse_json
from runner.protocol.metrics import MAX_NAMES, MetricPoint, MetricValue, ResumeMark

if TYPE_CHECKING:
    from runner.node.script.metric_sources import RepeatedValues

logger = logging.getLogger(__name__)


READ_BYTES = 1024 * 1024
MAX_NAME_CHARS = 1000
# Longer lines are ignored to bound memory.
MAX_JSON_BYTES = 8 * READ_BYTES


class MetricLog:
    """Collects metrics from any thread and remembers the last value of each name.

    `warn` shows a warning in the run's events. `observe` gets the name, value and step of each.
    """

    def __init__(
        self,
        attempt: int,
        queue: LineQueue,
        redactor: Redactor | None = None,
        *,
        warn: Callable[[str], None] = logger.warning,
        observe: Callable[[str, float, int | None], None] | None = None,
    ) -> None:
        self._redactor = redactor or Redactor()
        self._repeated: RepeatedValues | None = None
        self._wanted: Mapping[frozenset[str], str] = {}
        self._attempt = attempt
        self._queue = queue
        self._last: dict[str, MetricValue] = {}
        self._step: int | None = None
        self._lock = threading.Lock()
        self._has_warned = False
        self.warn = warn
        self._observe = observe

    @property
    def is_crowded(self) -> bool:
        """True if metrics arrive faster than they are shipped."""
        return self._queue.is_crowded

    def compare_sources(self, wanted: Iterable[str]) -> None:
        """Count values once that several sources report, as of now.

        Args:
            wanted: names under which metrics are recorded however a source spells them.
        """
        from runner.node.script.metric_sources import (  # noqa: PLC0415  few scripts need it
            RepeatedValues,
            words_in,
        )

        self._repeated = RepeatedValues()
        self._wanted = {words_in(name): name for name in wanted}

    def add(
        self,
        name: str,
        value: float,
        step: int | None,
        *,
        source: str = "",
        precision: float = 0.0,
        wait: bool = False,
    ) -> None:
        """Write one value. NaN and infinities become strings, because JSON has no such numbers.

        Args:
            name: the name of the metric.
            value: its value.
            step: the step, or None.
            source: where the value was found; empty for the metrics file.
            precision: how much a rounded value may differ from the exact one.
            wait: block while the queue is crowded. The thread that empties the queue must not wait.
        """
        if source and self._repeated is not None:
            name, is_repeated = self._compare(self._repeated, source, name, value, precision)
            if is_repeated:
                return
        # JSON can contain lone surrogates, which cannot be encoded as UTF-8.
        name = self._redactor.text(name.encode(errors="replace").decode())
        line = MetricPoint(now_text(), self._attempt, step, name, value, source).to_json()
        shown: MetricValue = line["value"]
        with self._lock:
            if is_stored := name in self._last or len(self._last) < MAX_NAMES:
                self._last[name] = shown
            self._step = self._step if step is None else step
        if self._observe is not None:
            self._observe(name, value, step)
        self._queue.put(json.dumps(line, allow_nan=False).encode(), wait=wait)
        if not is_stored and not self._has_warned:
            self._has_warned = True
            self.warn(
                f"there are more than {MAX_NAMES} names of metrics: those after the first "
                f"{MAX_NAMES}, such as {name[:100]!r}, are in metrics.jsonl only"
            )

    def _compare(
        self, repeated: RepeatedValues, source: str, name: str, value: float, precision: float
    ) -> tuple[str, bool]:
        """Return the name to record, and True if another source has reported the value."""
        from runner.node.script.metric_sources import words_in  # noqa: PLC0415

        if self._wanted:
            name = self._wanted.get(words_in(name), name)
        # A wanted metric must not get lost because a source reported it under another name.
        is_wanted = name in self._wanted.values()
        with self._lock:
            return name, repeated.is_repeated(source, name, value, precision, by_name=is_wanted)

    def mark_resume(self, continues: int, until: str) -> None:
        """Write that this attempt continues from a checkpoint, before its values.

        Args:
            continues: the attempt of the checkpoint; 0 for the beginning.
            until: when the checkpoint was taken, or an empty string.
        """
        mark = ResumeMark(now_text(), self._attempt, continues, until)
        self._queue.put(json.dumps(mark.to_json()).encode())

    def recall(self, values: Mapping[str, MetricValue]) -> None:
        """Add last values of earlier attempts, which are already in metrics.jsonl."""
        with self._lock:
            for name, value in list(values.items())[:MAX_NAMES]:
                self._last.setdefault(self._redactor.text(name), value)

    def last(self) -> dict[str, MetricValue]:
        """Return the last values of the first 1,000 metrics, in order of first appearance."""
        with self._lock:
            return dict(self._last)

    def last_step(self) -> int | None:
        """Return the last step of any metric, or None."""
        with self._lock:
            return self._step


class MetricsFileReader:
    """Reads `$RUNNER_METRICS_FILE` while it grows. A line counts when its newline is written."""

    def __init__(self, path: Path, log: MetricLog) -> None:
        self._path = path
        self._log = log
        self._file: BinaryIO | None = None
        self._rest = b""
        self._in_long_line = False
        self._has_warned = False

    def poll(self, final: bool = False) -> None:
        """Add the metrics of new lines; if `final`, also of a last line without a newline."""
        while not self._log.is_crowded:
            chunk = self._read()
            if not chunk:
                if final:
                    self._add_line(self._rest)
                    self._rest = b""
                return
            for line in self._split_lines(chunk):
                self._add_line(line)

    @property
    def has_content(self) -> bool:
        """True if the script has written to the file."""
        try:
            return self._path.stat().st_size > 0
        except OSError:
            return False

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def _split_lines(self, chunk: bytes) -> list[bytes]:
        """Return the lines that end in the chunk, without those that are too long."""
        *lines, rest = chunk.split(b"\n")
        if not lines:
            self._rest = b"" if self._in_long_line else self._rest + rest
        else:
            lines[0] = b"" if self._in_long_line else self._rest + lines[0]
            self._rest, self._in_long_line = rest, False
        if len(self._rest) > MAX_JSON_BYTES:
            self._warn_once(f"it is longer than {MAX_JSON_BYTES} bytes")
            self._rest, self._in_long_line = b"", True
        return lines

    def _warn_once(self, why: object) -> None:
        if not self._has_warned:
            logger.warning("a line of the metrics file is not a metric: %s", why)
            self._has_warned = True

    def _read(self) -> bytes:
        """Return the next bytes. Start from the beginning if the script replaced the file."""
        chunk = self._file.read(READ_BYTES) if self._file and not self._file.closed else b""
        if chunk:
            return chunk
        try:
            now = self._path.stat()
            if not stat.S_ISREG(now.st_mode) or self._is_same_file(now):
                return b""
            self.close()
            self._rest, self._in_long_line = b"", False
            self._file = self._path.open("rb", buffering=0)
            return self._file.read(READ_BYTES)
        except OSError:
            return b""  # not created yet, or deleted

    def _is_same_file(self, now: os.stat_result) -> bool:
        """Return True if the open file was neither replaced nor truncated."""
        if self._file is None or self._file.closed:
            return False
        same = os.path.samestat(os.fstat(self._file.fileno()), now)
        return same and now.st_size >= self._file.tell()

    def _add_line(self, line: bytes) -> None:
        if not line.strip():
            return
        try:
            found = parse_metrics(parse_json(line))
        except (ValueError, TypeError, OverflowError, RecursionError) as err:
            self._warn_once(err)
            return
        for name, value, step in found:
            self._log.add(name, value, step)


def parse_metrics(raw: Any) -> list[tuple[str, float, int | None]]:
    """Return the name, value and step of each metric in one line.

    The line is `{"name", "value", "step"}` or `{"step", "loss": ..., ...}`. In the second form,
    values that are not numbers are skipped.

    Raises:
        ValueError: the line contains no metric.
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
        return float(value)  # "NaN", "Infinity", which JSON numbers cannot express
    raise ValueError(f"{name[:MAX_NAME_CHARS]} is not a number")


# Longer lines are truncated to bound memory.
MAX_LINE_CHARS = 64 * 1024
LINE_END = re.compile(r"[\r\n]+")
PIECE_CHARS = 256 * 1024
# If more text is pending, shipping the log waits once for the search. Then text is skipped.
MAX_PENDING_CHARS = 16 * 1024 * 1024
BACKLOG_WAIT_S = 5.0
FINISH_S = 30.0  # time limit for the pending text when the script has ended
MAX_RESTARTS = 5
RESTART_PAUSE_S = 0.2


class MetricPatterns:
    """Finds metrics in stdout and stderr, with one regular expression per name.

    The value is the group `value`, or else the first group. The step is the group `step`, or else
    the number of values of that name in this attempt. `warn` shows a warning in the run's events.
    """

    def __init__(
        self,
        patterns: Mapping[str, str],
        log: MetricLog,
        warn: Callable[[str], None] = logger.warning,
    ) -> None:
        self._patterns = dict(patterns)
        self._log = log
        self.warn = warn
        self._counts = dict.fromkeys(patterns, 0)
        self._rests = {"stdout": "", "stderr": ""}
        self._pending: deque[str] = deque()  # the worker is searching the first piece
        self._pending_chars = 0
        self._changed = threading.Condition()
        self._is_late = False
        self._closed = False
        self._process: subprocess.Popen[str] | None = None
        self._thread = threading.Thread(target=self._run, name="patterns", daemon=True)
        if patterns:
            # Start the worker before the script, whose end kills all processes that started later.
            self._process = _start(self._patterns)
            self._thread.start()

    def feed(self, data: bytes, stream: str = "stdout") -> None:
        """Add the next bytes of stdout or stderr to the text to search."""
        if not self._patterns or self._closed:
            return
        # A character split at the end of a block is replaced, which cannot affect a number.
        text = self._rests[stream] + data.decode("utf-8", errors="replace")
        *lines, rest = LINE_END.split(text)
        self._rests[stream] = rest[-MAX_LINE_CHARS:]
        self._add(lines)

    def finish(self, timeout_s: float | None = None) -> None:
        """Search the last line too, and wait until all text is searched, or for the time limit."""
        if not self._patterns or self._closed:
            return
        self._closed = True
        self._add(list(self._rests.values()))
        with self._changed:
            self._changed.notify_all()
        self._thread.join(FINISH_S if timeout_s is None else min(timeout_s, FINISH_S))
        if self._thread.is_alive():
            self.warn(f"{self._pending_chars} characters of output were not searched for metrics")
            self._patterns = {}
            self._kill()

    def _add(self, lines: list[str]) -> None:
        piece: list[str] = []
        size = 0
        for line in lines:
            piece.append(line[:MAX_LINE_CHARS])
            size += len(piece[-1]) + 1
            if size > PIECE_CHARS:
                self._put("\n".join(piece))
                piece, size = [], 0
        if piece:
            self._put("\n".join(piece))

    def _put(self, piece: str) -> None:
        with self._changed:
            until = time.monotonic() + (0 if self._is_late or self._closed else BACKLOG_WAIT_S)
            while self._pending_chars > MAX_PENDING_CHARS and time.monotonic() < until:
                self._changed.wait(0.1)
            if self._pending_chars > MAX_PENDING_CHARS:
                if not self._is_late:
                    self._is_late = True
                    self.warn(
                        "metrics.patterns are slower than the script prints: not all of the output "
                        "is searched for metrics. Write them to $RUNNER_METRICS_FILE, or simplify "
                        f"{', '.join(sorted(self._patterns))}"
                    )
                return
            self._pending.append(piece)
            self._pending_chars += len(piece)
            self._changed.notify_all()

    def _run(self) -> None:
        """Thread body: send pieces to the worker and read its answers. Restart it if it died."""
        restarts = 0
        while (piece := self._await_piece()) is not None:
            answer = _exchange(self._process, piece)
            if answer is not None:
                self._add_answer(answer)
                self._remove_piece()
            elif self._patterns and restarts < MAX_RESTARTS:
                self._kill()
                # The end of the script may have killed the worker, and would kill the next one too.
                time.sleep(restarts * RESTART_PAUSE_S)
                restarts += 1
                self._process = _start(self._patterns)
            else:
                self._give_up()
        self._kill()

    def _await_piece(self) -> str | None:
        with self._changed:
            while not self._pending and not self._closed and self._patterns:
                self._changed.wait(1.0)
            return self._pending[0] if self._pending and self._patterns else None

    def _remove_piece(self) -> None:
        with self._changed:
            self._pending_chars -= len(self._pending.popleft())
            self._changed.notify_all()

    def _add_answer(self, answer: dict[str, Any]) -> None:
        for name, value, step in answer["found"]:
            self._counts[name] += 1
            at = self._counts[name] if step is None else step
            self._log.add(name, value, at, source="pattern", wait=True)
        for name, why in answer["refused"].items():
            pattern = self._patterns.pop(name)
            self.warn(
                f"metrics.patterns.{name} is switched off: {pattern!r} is not a valid expression "
                f"in the node's Python {sys.version.split()[0]}: {why}"
            )
        for name in answer["stopped"]:
            pattern = self._patterns.pop(name)
            self.warn(
                f"metrics.patterns.{name} is switched off: searching a line for {pattern!r} took "
                f"longer than {pattern_worker.LINE_S:g} s, {pattern_worker.MAX_SLOW_LINES} times. "
                "Write it without repetitions inside of repetitions, such as (a+)+"
            )

    def _give_up(self) -> None:
        if self._patterns:
            self.warn(
                "metrics.patterns are switched off, because the worker process died repeatedly"
            )
        with self._changed:
            self._patterns = {}
            self._pending.clear()
            self._pending_chars = 0

    def _kill(self) -> None:
        process = self._process
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            # Pending data is discarded. The other thread may close the pipe, too.
            with suppress(OSError, ValueError):
                if pipe is not None:
                    pipe.close()


def _start(patterns: Mapping[str, str]) -> subprocess.Popen[str] | None:
    """Start the worker and send it the patterns. Return None if it cannot be started."""
    try:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _source()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="ascii",  # `json.dumps` writes only ASCII
            start_new_session=True,  # signals to the agent's process group must not end it
            preexec_fn=dies_with_parent(),  # noqa: PLW1509 - one system call, no locks, no imports
        )
    except OSError as err:
        logger.warning("the search for metrics cannot be started: %s", err)
        return None
    _exchange(process, (dict(patterns), pattern_worker.LINE_S), answers=False)
    return process


@functools.cache
def _source() -> str:
    """Return the worker's source, cached because the script may delete the agent's archive."""
    loader = pattern_worker.__loader__
    return loader.get_source(pattern_worker.__name__)  # type: ignore[union-attr]


def _exchange(
    process: subprocess.Popen[str] | None, message: object, *, answers: bool = True
) -> dict[str, Any] | None:
    """Send a message to the worker. Return its answer, or None if the worker is dead.

    With `answers=False`, the worker sends no answer, and {} is returned.
    """
    if process is None or process.stdin is None or process.stdout is None:
        return None
    try:
        process.stdin.write(json.dumps(message) + "\n")
        process.stdin.flush()
        return parse_json(process.stdout.readline()) if answers else {}
    except (OSError, ValueError):
        return None
