"""Watch a run: state, stages, log and metrics as they change, until it ends.

Everything is read from blob by byte offset, so watching can begin late, break off and begin again,
on any machine. Lost contact is waited out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass

from runner.azure.auth.credentials import Connection
from runner.azure.batch.jobs import count_nodes, get_task, read_task_file
from runner.azure.faults import SERVICES_DOWN
from runner.core.states import RunState, RunStatus, TaskView, decide_status
from runner.flows.runs.documents import load_result, runs_container
from runner.flows.runs.events import (
    ContactLost,
    ContactRestored,
    LogSkipped,
    LogStream,
    LogText,
    MetricSeen,
    NodesSeen,
    RunEnded,
    StageReported,
    StatusChanged,
    StillWatching,
    WatchEvent,
)
from runner.flows.runs.logs import LineCursor, TextCursor, tail_offset
from runner.flows.runs.view import explain_queue_reason
from runner.protocol.errors import RunnerError
from runner.protocol.metrics import parse_metric_line
from runner.protocol.paths import RunPaths
from runner.protocol.results import SIDE_STAGES, RunResult, parse_event_line
from runner.protocol.run_spec import RunSpec

_BEAT_S = 1.0
CONTACT_TIMEOUT_S = (
    300.0  # without contact, before watching gives up; the run itself is not concerned
)
_TASK_OUTPUT_CHARS = 4000
_LAST = ("export", "end")  # after it the agent commits the result


@dataclass(frozen=True, slots=True)
class PollIntervals:
    """Seconds between two looks at each source."""

    tick: float = 0.1
    log: float = 0.2
    quiet_log: float = 0.5
    quiet_after: float = 5.0
    events: float = 0.5
    early_events: float = 0.2  # stages before and after the command are short
    metrics: float = 2.0
    task: float = 1.0
    running_task: float = 2.0
    nodes: float = 3.0
    attempt: float = 5.0
    retry: float = 1.0


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """`tail` leaves out all but the last lines of what was printed before; None shows all."""

    tail: int | None = None
    streams: tuple[LogStream, ...] = ("stdout", "stderr")
    intervals: PollIntervals = PollIntervals()
    contact_timeout_s: float = CONTACT_TIMEOUT_S
    beats: bool = False
    node: int = 0  # whose log


def watch_run(
    connection: Connection, record: RunSpec, options: WatchOptions | None = None
) -> Iterator[WatchEvent]:
    """Yield what happens to a run from now on; the last event is RunEnded.

    Raises RunnerError after five minutes without contact.
    """
    options = options or WatchOptions()
    watcher = _RunWatcher(connection, record, options)
    lost_since: float | None = None
    beat = _Timer()
    while not watcher.ended:
        if options.beats and beat.due(_BEAT_S):
            yield StillWatching()
        try:
            for event in watcher.poll():
                if lost_since is not None and isinstance(event, RunEnded):
                    lost_since = None
                    yield ContactRestored()
                yield event
        except RunnerError as err:
            now = time.monotonic()
            watcher.contact_was_lost = True
            if err.code != SERVICES_DOWN or (
                lost_since and now - lost_since > options.contact_timeout_s
            ):
                raise
            if lost_since is None:
                lost_since = now
                yield ContactLost(err.why)
            time.sleep(options.intervals.retry)
            continue
        if lost_since is not None:
            lost_since = None
            yield ContactRestored()
        if not watcher.ended:
            time.sleep(options.intervals.tick)


class _Timer:
    """Whether it is time to look again; `soon` makes it so."""

    def __init__(self) -> None:
        self._next = 0.0

    def due(self, interval_s: float) -> bool:
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + interval_s
        return True

    def soon(self) -> None:
        self._next = 0.0


class _LogTail:
    """One log stream, read from where the user wants it."""

    def __init__(self, stream: LogStream, cursor: TextCursor) -> None:
        self.stream: LogStream = stream
        self.cursor = cursor
        self.timer = _Timer()
        self.last_output = time.monotonic()
        self.lost_from: int | None = None

    def read(self) -> str:
        """New text; what an attempt sends again after its service lost it is not new."""
        text = self.cursor.read()
        if text:
            self.lost_from = None
        return text

    def begin_attempt(self) -> None:
        """Another attempt writes where the blob ends, however far was read before."""
        if self.lost_from is not None:
            self.cursor.go_back(self.lost_from)
            self.lost_from = None


class _RunWatcher:
    """What has been seen of a run. An error leaves it as it was: the next look repeats."""

    def __init__(self, connection: Connection, record: RunSpec, options: WatchOptions) -> None:
        self.ended = False
        self.contact_was_lost = False
        self._connection = connection
        self._record = record
        self._options = options
        self._intervals = options.intervals
        self._container = runs_container(connection)
        self._paths = RunPaths(record.run_id)
        self._logs: list[_LogTail] | None = None
        self._metrics = LineCursor(self._container, self._paths.metrics)
        self._events: LineCursor | None = None
        self._attempt = 0
        self._stage: str | None = None
        self._leaving = False  # the agent's last stage has passed: the result is near
        self._status: RunStatus | None = None
        self._timers: dict[str, _Timer] = {}

    def poll(self) -> Generator[WatchEvent]:
        """Look at everything that is due; at Batch last, since blob says most without it."""
        yield from self._open_logs()
        self._after_lost_contact()
        intervals = self._intervals
        if self._due(
            "events", intervals.events if self._stage == "command" else intervals.early_events
        ):
            yield from self._retrying("events", self._poll_events)
        yield from self._poll_logs()
        if self._due("metrics", intervals.metrics):
            yield from self._retrying("metrics", self._poll_metrics)
        if self._due("task", self._task_interval()):
            yield from self._retrying("task", self._poll_task)
        if self._waiting() and self._due("nodes", intervals.nodes):
            yield from self._retrying("nodes", self._poll_nodes)

    def _due(self, name: str, interval_s: float) -> bool:
        return self._timers.setdefault(name, _Timer()).due(interval_s)

    def _retrying(
        self, name: str, poll: Callable[[], Generator[WatchEvent]]
    ) -> Generator[WatchEvent]:
        try:
            yield from poll()
        except RunnerError:
            self._timers[name].soon()
            raise

    def _task_interval(self) -> float:
        if self._leaving and not self._waiting():
            return self._intervals.log
        return self._intervals.running_task if self._running() else self._intervals.task

    def _running(self) -> bool:
        return self._status is not None and self._status.state is RunState.RUNNING

    def _waiting(self) -> bool:
        return self._status is not None and self._status.state is RunState.QUEUED

    def _open_logs(self) -> Generator[WatchEvent]:
        if self._logs is not None:
            return
        logs: list[_LogTail] = []
        skipped: list[LogSkipped] = []
        for stream in self._options.streams:
            blob = RunPaths(self._paths.run_id, self._options.node).log(stream)
            offset = 0
            if self._options.tail is not None:
                offset = tail_offset(self._container, blob, self._options.tail)
            if offset:
                skipped.append(LogSkipped(stream, offset))
            logs.append(_LogTail(stream, TextCursor(self._container, blob, offset)))
        self._logs = logs
        yield from skipped

    def _after_lost_contact(self) -> None:
        if self.contact_was_lost:
            # A service that was killed may have lost what it was given last: the run's description.
            self._container.create(self._paths.run, self._record.to_json())
            for log in self._logs or ():
                log.lost_from = log.cursor.lost_from()
            self.contact_was_lost = False

    def _poll_logs(self) -> Generator[WatchEvent]:
        for log in self._logs or ():
            quiet = time.monotonic() - log.last_output > self._intervals.quiet_after
            if not log.timer.due(self._intervals.quiet_log if quiet else self._intervals.log):
                continue
            if text := log.read():
                log.last_output = time.monotonic()
                log.timer.soon()  # more may be waiting
                yield LogText(log.stream, text)

    def _drain_logs(self) -> Generator[WatchEvent]:
        for log in self._logs or ():
            while text := log.read():
                yield LogText(log.stream, text)

    def _poll_metrics(self) -> Generator[WatchEvent]:
        for line in self._metrics.read():
            if point := parse_metric_line(line):
                yield MetricSeen(point)

    def _poll_events(self) -> Generator[WatchEvent]:
        self._find_attempt()
        if self._events is None:
            return
        for line in self._events.read():
            event = parse_event_line(line, self._attempt)
            if event is None:
                continue
            if event.stage in SIDE_STAGES:
                yield StageReported(event)
                continue
            if event.stage != self._stage:
                self._timers.setdefault("task", _Timer()).soon()
            self._stage = event.stage
            self._leaving = event.state == "failed" or (event.stage, event.state) == _LAST
            if event.stage == "command" and event.state in {"end", "failed"}:
                yield from self._drain_logs()  # what the script printed comes before its end
            yield StageReported(event)

    def _find_attempt(self) -> None:
        """Go on to the next attempt once it has started."""
        interval = self._intervals.attempt if self._attempt and self._running() else 0.0
        if not self._due("attempt", interval):
            return
        while self._container.size(self._paths.attempt_start(self._attempt + 1)) is not None:
            self._attempt += 1
            self._events = LineCursor(self._container, self._paths.attempt_events(self._attempt))
            self._stage, self._leaving = None, False
            for log in self._logs or ():
                log.begin_attempt()

    def _poll_nodes(self) -> Generator[WatchEvent]:
        yield NodesSeen(count_nodes(self._connection, self._record.pool))

    def _poll_task(self) -> Generator[WatchEvent]:
        task: TaskView | None = None
        result = load_result(self._container, self._record.run_id)
        if result is None:
            task = get_task(self._connection, self._record.job_id, self._record.task_id)
        if result is None and (task is None or task.phase == "completed"):
            result = load_result(self._container, self._record.run_id)
        status = decide_status(result, task, self._attempt, self._stage)
        status = explain_queue_reason(self._connection, self._record, status, self._attempt)
        if status.state.final:
            yield from self._end(status, result, task)
            return
        if status != self._status:
            self._status = status
            yield StatusChanged(status, self._attempt)

    def _end(
        self, status: RunStatus, result: RunResult | None, task: TaskView | None
    ) -> Generator[WatchEvent]:
        yield from self._poll_events()
        yield from self._drain_logs()
        yield from self._poll_metrics()
        output = "" if result or task is None else self._task_output()
        self.ended = True
        yield RunEnded(status, result, output)

    def _task_output(self) -> str:
        """What the task itself printed: the agent's own trouble, or Batch's."""
        for name in ("stderr.txt", "stdout.txt"):
            found = read_task_file(
                self._connection, self._record.job_id, self._record.task_id, name
            )
            if found and found.strip():
                return found.decode("utf-8", "replace")[-_TASK_OUTPUT_CHARS:]
        return ""
