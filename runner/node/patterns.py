"""Metrics in stdout: what the recipe's regular expressions find, searched by another process."""

from __future__ import annotations

import functools
import json
import logging
import platform
import re
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from runner.node import pattern_worker
from runner.node.documents import parse_json
from runner.node.metrics import MetricLog
from runner.node.orphans import dies_with_parent

logger = logging.getLogger(__name__)

# A longer "line" is not text somebody printed; it is cut so that memory stays bounded.
MAX_LINE_CHARS = 64 * 1024
LINE_END = re.compile(r"[\r\n]+")
PIECE_CHARS = 256 * 1024
# The log waits for the search where it is only a burst, and then goes on without it.
MAX_PENDING_CHARS = 16 * 1024 * 1024
PATIENCE_S = 5.0
# For what is left when the script has ended.
FINISH_S = 30.0
RESTARTS = 5
RESTART_S = 0.2


class MetricPatterns:
    """Finds metrics in stdout, one regular expression a name.

    The value is the group `value`, else the first group. The step is the group `step`, else the
    count of values of that name in this attempt. `warn` gets what the reader of the run must know.
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
        self._rest = ""
        self._pending: deque[str] = deque()  # the first is being searched
        self._pending_chars = 0
        self._changed = threading.Condition()
        self._is_late = False
        self._closed = False
        self._process: subprocess.Popen[str] | None = None
        self._thread = threading.Thread(target=self._run, name="patterns", daemon=True)
        if patterns:
            # Before the script, whose end is the end of every process that began after it.
            self._process = _start(self._patterns)
            self._thread.start()

    def feed(self, data: bytes) -> None:
        """The next bytes of stdout, to be searched soon."""
        if not self._patterns or self._closed:
            return
        # A character cut in two by the block's end is replaced: no number is lost by that.
        text = self._rest + data.decode("utf-8", errors="replace")
        *lines, rest = LINE_END.split(text)
        self._rest = rest[-MAX_LINE_CHARS:]
        self._add(lines)

    def finish(self, timeout_s: float | None = None) -> None:
        """Look at a last line without a newline, and wait for what is not searched yet."""
        if not self._patterns or self._closed:
            return
        self._closed = True
        self._add([self._rest])
        with self._changed:
            self._changed.notify_all()
        self._thread.join(FINISH_S if timeout_s is None else min(timeout_s, FINISH_S))
        if self._thread.is_alive():
            self.warn(f"{self._pending_chars} characters of stdout were not searched for metrics")
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
            until = time.monotonic() + (0 if self._is_late or self._closed else PATIENCE_S)
            while self._pending_chars > MAX_PENDING_CHARS and time.monotonic() < until:
                self._changed.wait(0.1)
            if self._pending_chars > MAX_PENDING_CHARS:
                if not self._is_late:
                    self._is_late = True
                    self.warn(
                        "metrics.patterns are slower than the script prints: not all of stdout is "
                        "searched for metrics. Write them to $RUNNER_METRICS_FILE, or simplify "
                        f"{', '.join(sorted(self._patterns))}"
                    )
                return
            self._pending.append(piece)
            self._pending_chars += len(piece)
            self._changed.notify_all()

    def _run(self) -> None:
        """Thread body: a piece to the process, its answer back; a process that died is replaced."""
        restarts = 0
        while (piece := self._next()) is not None:
            answer = _ask(self._process, piece)
            if answer is not None:
                self._take(answer)
                self._done()
            elif self._patterns and restarts < RESTARTS:
                self._kill()
                # The end of a script is that of what began after it: not for another one, then.
                time.sleep(restarts * RESTART_S)
                restarts += 1
                self._process = _start(self._patterns)
            else:
                self._give_up()
        self._kill()

    def _next(self) -> str | None:
        with self._changed:
            while not self._pending and not self._closed and self._patterns:
                self._changed.wait(1.0)
            return self._pending[0] if self._pending and self._patterns else None

    def _done(self) -> None:
        with self._changed:
            self._pending_chars -= len(self._pending.popleft())
            self._changed.notify_all()

    def _take(self, answer: dict[str, Any]) -> None:
        for name, value, step in answer["found"]:
            self._counts[name] += 1
            self._log.add(name, value, self._counts[name] if step is None else step, wait=True)
        for name, why in answer["refused"].items():
            pattern = self._patterns.pop(name)
            self.warn(
                f"metrics.patterns.{name} is switched off: {pattern!r} is no expression to the "
                f"node's Python {platform.python_version()}: {why}"
            )
        for name in answer["stopped"]:
            pattern = self._patterns.pop(name)
            self.warn(
                f"metrics.patterns.{name} is switched off: searching a line for {pattern!r} took "
                f"longer than {pattern_worker.LINE_S:g} s, {pattern_worker.STRIKES} times. Write "
                "it without repetitions inside of repetitions, such as (a+)+"
            )

    def _give_up(self) -> None:
        if self._patterns:
            self.warn("metrics.patterns are switched off: the process that searches keeps dying")
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
            with suppress(OSError):  # what was not written is not wanted
                if pipe is not None:
                    pipe.close()


def _start(patterns: Mapping[str, str]) -> subprocess.Popen[str] | None:
    """The worker, ready for pieces; None where it cannot be started."""
    try:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _source()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="ascii",  # JSON that is all ASCII
            start_new_session=True,  # what ends the script's group, or ours, is not for it
            preexec_fn=dies_with_parent(),  # noqa: PLW1509 - one system call, no locks, no imports
        )
    except OSError as err:
        logger.warning("the search for metrics cannot be started: %s", err)
        return None
    _ask(process, (dict(patterns), pattern_worker.LINE_S), answers=False)
    return process


@functools.cache
def _source() -> str:
    """Kept: a script may have removed the agent's archive when another worker is started."""
    loader = pattern_worker.__loader__
    return loader.get_source(pattern_worker.__name__)  # type: ignore[union-attr]


def _ask(
    process: subprocess.Popen[str] | None, what: object, *, answers: bool = True
) -> dict[str, Any] | None:
    """The worker's answer; None from one that is dead."""
    if process is None or process.stdin is None or process.stdout is None:
        return None
    try:
        process.stdin.write(json.dumps(what) + "\n")
        process.stdin.flush()
        return parse_json(process.stdout.readline()) if answers else {}
    except (OSError, ValueError):
        return None
