"""Read the state of a run from blob storage and Batch until it ends.

Watching reads blobs by byte offset, so it can start late, stop, and start again on any machine. It
waits while services do not respond.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from runner.azure.auth.credentials import Connection
from runner.azure.batch.jobs import get_task
from runner.azure.faults import TRANSIENT_CODES
from runner.core.states import (
    IN_ITS_TASK,
    RunState,
    RunStatus,
    TaskView,
    WaitCause,
    decide_status,
)
from runner.core.units import format_duration
from runner.flows.runs import events
from runner.flows.runs.cancel import cancel_run
from runner.flows.runs.documents import (
    LineCursor,
    TextCursor,
    load_result,
    runs_container,
)
from runner.flows.runs.logs import tail_offset, task_output
from runner.flows.runs.stuck import (
    PoolFacts,
    explain_queue_reason,
    load_pool_facts,
)
from runner.protocol.errors import RunnerError
from runner.protocol.metrics import MetricPoint
from runner.protocol.paths import RunPaths
from runner.protocol.results import SIDE_STAGES, RunResult, parse_event_line
from runner.protocol.run_spec import RunSpec

if TYPE_CHECKING:
    from runner.flows.runs.moving.fallback import Fallback

_BEAT_S = 1.0
CONTACT_TIMEOUT_S = 300.0  # without a response; then watching ends, and the run continues
_TASK_OUTPUT_CHARS = 4000
_LAST_STAGE = ("export", "end")  # after this event, the agent commits the result


@dataclass(frozen=True, slots=True)
class PollIntervals:
    """Seconds between two reads of each source."""

    tick: float = 0.1
    log: float = 0.2
    quiet_log: float = 0.5
    quiet_after: float = 5.0
    events: float = 0.5
    early_events: float = 0.2  # while stages are short: before and after the command
    metrics: float = 2.0
    task: float = 1.0
    running_task: float = 2.0
    nodes: float = 3.0
    fallback: float = 5.0
    move: float = 0.5  # while the run is being moved to another pool
    attempt: float = 5.0
    retry: float = 1.0


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """Options of watching; `tail` limits the lines of earlier output, None shows all.

    A run that has been stuck for `fail_if_stuck_s` is cancelled; None waits without limit.
    """

    tail: int | None = None
    streams: tuple[events.LogStream, ...] = ("stdout", "stderr")
    intervals: PollIntervals = PollIntervals()
    contact_timeout_s: float = CONTACT_TIMEOUT_S
    beats: bool = False
    ranks: tuple[int, ...] = (0,)  # ranks whose logs are read
    fail_if_stuck_s: float | None = None


def watch_run(
    connection: Connection, spec: RunSpec, options: WatchOptions | None = None
) -> Iterator[events.WatchEvent]:
    """Yield the events of a run from now on; the last one is RunEnded.

    Raises:
        RunnerError: the services did not respond for `contact_timeout_s`.
    """
    options = options or WatchOptions()
    watcher = _RunWatcher(connection, spec, options)
    lost_since: float | None = None
    beat = _Timer()
    while not watcher.ended:
        if options.beats and beat.due(_BEAT_S):
            yield events.StillWatching()
        try:
            for event in watcher.poll():
                if lost_since is not None and isinstance(event, events.RunEnded):
                    lost_since = None
                    yield events.ContactRestored()
                yield event
            watcher.give_up_if_stuck()
        except RunnerError as err:
            now = time.monotonic()
            watcher.contact_was_lost = True
            if err.code not in TRANSIENT_CODES or (
                lost_since and now - lost_since > options.contact_timeout_s
            ):
                raise
            if lost_since is None:
                lost_since = now
                yield events.ContactLost(err.why)
            time.sleep(options.intervals.retry)
            continue
        if lost_since is not None:
            lost_since = None
            yield events.ContactRestored()
        if not watcher.ended:
            time.sleep(options.intervals.tick)


class _Timer:
    """Limits how often a source is read."""

    def __init__(self) -> None:
        self._next: float | None = None  # now

    def due(self, interval_s: float) -> bool:
        now = time.monotonic()
        if self._next is not None and now < self._next:
            return False
        self._next = now + interval_s
        return True

    def soon(self) -> None:
        self._next = None


class _LogTail:
    """One log stream."""

    def __init__(self, stream: events.LogStream, cursor: TextCursor, rank: int) -> None:
        self.stream: events.LogStream = stream
        self.rank = rank
        self.cursor = cursor
        self.timer = _Timer()
        self.last_output = time.monotonic()
        self.lost_from: int | None = None

    def read(self) -> str:
        """Return new text. Text that storage lost and the agent sends again is not repeated."""
        text = self.cursor.read()
        if text:
            self.lost_from = None
        return text

    def begin_attempt(self) -> None:
        """Continue at the end of the blob if bytes were lost: the next attempt appends there."""
        if self.lost_from is not None:
            self.cursor.go_back(self.lost_from)
            self.lost_from = None


def _open_fallback(connection: Connection, spec: RunSpec) -> Fallback | None:
    """Return the fall-back of a run with a job of its own; others have none."""
    if not spec.job_id.startswith(spec.run_id):
        return None
    from runner.flows.runs.moving.fallback import Fallback  # noqa: PLC0415  few runs have one

    return Fallback(connection, spec)


class _RunWatcher:
    """The state of a watched run. After an error it is unchanged, and the next poll reads again."""

    def __init__(self, connection: Connection, spec: RunSpec, options: WatchOptions) -> None:
        self.ended = False
        self.contact_was_lost = False
        self._connection = connection
        self._spec = spec
        self._options = options
        self._intervals = options.intervals
        self._container = runs_container(connection)
        self._paths = RunPaths(spec.run_id)
        self._logs: list[_LogTail] | None = None
        self._metrics = LineCursor(self._container, self._paths.metrics)
        self._events: LineCursor | None = None
        self._attempt = 0
        self._stage: str | None = None
        self._leaving = False  # the last stage of the agent has ended, so the result follows
        self._status: RunStatus | None = None
        self._pool = spec.pool  # a run may be moved while it is watched
        self._facts: PoolFacts | None = None
        self._stuck_since: float | None = None
        self._gave_up: WaitCause | None = None
        self._timers: dict[str, _Timer] = {}
        self._fallback = _open_fallback(connection, spec)
        self._is_moving = False
        self._refusal = ""  # of the last move, as it was reported

    def poll(self) -> Generator[events.WatchEvent]:
        """Read every source that is due, Batch last: blob storage usually has the answer."""
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
        every_s = intervals.move if self._is_moving else intervals.fallback
        if self._fallback is not None and not self.ended and self._due("fallback", every_s):
            yield from self._retrying("fallback", self._poll_fallback)

    def give_up_if_stuck(self) -> None:
        """Cancel a run that has been stuck for too long; the next poll reads its end."""
        limit, since, status = self._options.fail_if_stuck_s, self._stuck_since, self._status
        if limit is None or since is None or status is None or status.cause is None:
            return
        if self.ended or time.monotonic() - since < limit:
            return
        task = get_task(self._connection, self._spec.job_id, self._spec.task_id)
        if task is None or task.phase != "active":  # it got a node since the last poll
            return
        why = f"the run was stuck for {format_duration(limit)}: {status.cause.message}"
        if cancel_run(self._connection, self._spec, why).changed:
            self._gave_up = status.cause
        self._stuck_since = None
        self._timers.setdefault("task", _Timer()).soon()

    def _time_stuck(self, status: RunStatus) -> None:
        """Remember since when the run is stuck. A resize that adds no node does not reset this."""
        helped = self._facts is not None and self._facts.may_run_tasks
        if status.stuck:
            self._stuck_since = self._stuck_since or time.monotonic()
        elif status.state is not RunState.QUEUED or helped:
            self._stuck_since = None

    def _due(self, name: str, interval_s: float) -> bool:
        return self._timers.setdefault(name, _Timer()).due(interval_s)

    def _retrying(
        self, name: str, poll: Callable[[], Generator[events.WatchEvent]]
    ) -> Generator[events.WatchEvent]:
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

    def _open_logs(self) -> Generator[events.WatchEvent]:
        if self._logs is not None:
            return
        logs: list[_LogTail] = []
        skipped: list[events.LogSkipped] = []
        options = self._options
        for rank, stream in itertools.product(options.ranks, options.streams):
            blob = RunPaths(self._paths.run_id, rank).log(stream)
            offset = 0
            if options.tail is not None:
                offset = tail_offset(self._container, blob, options.tail)
            if offset:
                skipped.append(events.LogSkipped(stream, offset))
            logs.append(_LogTail(stream, TextCursor(self._container, blob, offset), rank))
        self._logs = logs
        yield from skipped

    def _after_lost_contact(self) -> None:
        if self.contact_was_lost:
            # A killed local service may have lost its last write, run.json.
            self._container.create(self._paths.run, self._spec.to_json())
            for log in self._logs or ():
                log.lost_from = log.cursor.lost_from()
            self.contact_was_lost = False

    def _poll_logs(self) -> Generator[events.WatchEvent]:
        for log in self._logs or ():
            quiet = time.monotonic() - log.last_output > self._intervals.quiet_after
            if not log.timer.due(self._intervals.quiet_log if quiet else self._intervals.log):
                continue
            if text := log.read():
                log.last_output = time.monotonic()
                log.timer.soon()  # more text may follow
                yield events.LogText(log.stream, text, log.rank)

    def _drain_logs(self) -> Generator[events.WatchEvent]:
        for log in self._logs or ():
            while text := log.read():
                yield events.LogText(log.stream, text, log.rank)

    def _poll_metrics(self) -> Generator[events.WatchEvent]:
        for line in self._metrics.read():
            if point := MetricPoint.load(line):
                yield events.MetricSeen(point)

    def _poll_events(self) -> Generator[events.WatchEvent]:
        self._find_attempt()
        if self._events is None:
            return
        for line in self._events.read():
            event = parse_event_line(line, self._attempt)
            if event is None:
                continue
            if event.stage in SIDE_STAGES:
                yield events.StageReported(event)
                continue
            if event.stage != self._stage:
                self._timers.setdefault("task", _Timer()).soon()
            self._stage = event.stage
            self._leaving = event.state == "failed" or (event.stage, event.state) == _LAST_STAGE
            if event.stage == "command" and event.state in {"end", "failed"}:
                yield from self._drain_logs()  # show all output of the script before its end
            yield events.StageReported(event)

    def _find_attempt(self) -> None:
        """Continue with the next attempt once it has started."""
        interval = self._intervals.attempt if self._attempt and self._running() else 0.0
        if not self._due("attempt", interval):
            return
        while self._container.size(self._paths.attempt_start(self._attempt + 1)) is not None:
            self._attempt += 1
            self._events = LineCursor(self._container, self._paths.attempt_events(self._attempt))
            self._stage, self._leaving = None, False
            for log in self._logs or ():
                log.begin_attempt()

    def _poll_nodes(self) -> Generator[events.WatchEvent]:
        self._facts = load_pool_facts(self._connection, self._pool, self._facts)
        yield events.NodesSeen(self._facts.counts)

    def _poll_fallback(self) -> Generator[events.WatchEvent]:
        """Take the next step of a move to another pool, or begin one that is due."""
        try:
            state = self._fallback.step() if self._fallback is not None else None
        except RunnerError as err:
            if err.code in TRANSIENT_CODES:
                raise
            # Who may follow a run need not be allowed to move it.
            self._is_moving = False
            if self._spec.fallback is not None and err.what != self._refusal:
                self._refusal = err.what
                yield events.MoveRefused(err.what)
            return
        if state is None:
            return
        self._is_moving = bool(state.moving_to) and not state.moved
        before, self._spec = self._spec, state.spec
        if len(before.moved_from) == len(state.spec.moved_from):
            return
        from runner.core.planning.fallback import describe_stay  # noqa: PLC0415  few runs move

        for stay in state.spec.moved_from[len(before.moved_from) :]:
            why = describe_stay(stay, state.spec.fallback)
            yield events.RunMoved(stay.pool, state.spec.pool, why)

    def _poll_task(self) -> Generator[events.WatchEvent]:
        task: TaskView | None = None
        result = load_result(self._container, self._spec.run_id)
        if result is None:
            task = get_task(self._connection, self._spec.job_id, self._spec.task_id)
        if result is None and (task is None or task.phase == "completed"):
            result = load_result(self._container, self._spec.run_id)
        in_turn = self._spec.is_later_in_task
        status = decide_status(result, task, self._attempt, self._stage, in_turn=in_turn)
        if status.state is RunState.QUEUED and status.reason != IN_ITS_TASK:
            status = explain_queue_reason(
                self._connection, self._spec, status, task, self._attempt, self._read_pool
            )
        self._time_stuck(status)
        if status.state.final:
            yield from self._end(status, result, task)
            return
        if status != self._status:
            self._status = status
            yield events.StatusChanged(status, self._attempt)

    def _read_pool(self, pool_id: str) -> PoolFacts | None:
        """Return the facts of a pool, or None if the last ones are of another pool."""
        if pool_id.lower() != self._pool.lower():
            self._pool, self._facts = pool_id, None
        return self._facts

    def _end(
        self, status: RunStatus, result: RunResult | None, task: TaskView | None
    ) -> Generator[events.WatchEvent]:
        yield from self._poll_events()
        yield from self._drain_logs()
        yield from self._poll_metrics()
        output = ""
        if result is None and task is not None:
            output = task_output(self._connection, self._spec, _TASK_OUTPUT_CHARS)
        self.ended = True
        yield events.RunEnded(status, result, output, self._gave_up)
