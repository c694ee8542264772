"""The streams of an attempt: `events.jsonl` with the stages, stdout, stderr and metrics."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.node.failures import StageFailedError
from runner.node.script.command import kill_remaining_processes
from runner.node.script.metrics import (
    MAX_JSON_BYTES,
    MetricLog,
    MetricPatterns,
    MetricsFileReader,
    parse_metrics,
)
from runner.node.script.redaction import Redactor
from runner.node.script.shipper import FileSource, LineQueue, Shipper, finish_all, ship_rest
from runner.node.script.workspace import AttemptDirs
from runner.node.storage.blobs import AppendBlob, BlobShrankError, ContainerClient
from runner.node.storage.http import StorageRequestError
from runner.protocol.checkpoints import CheckpointManifest
from runner.protocol.codec import now_text, parse_json
from runner.protocol.metrics import MAX_NAMES, MetricPoint, MetricValue, json_value
from runner.protocol.paths import RunPaths
from runner.protocol.results import (
    ALIVE_STAGE,
    AttemptStart,
    StageEvent,
    StageState,
    sign_interval_s,
)
from runner.protocol.run_spec import RunSpec

if TYPE_CHECKING:
    from runner.node.metric_files.aim_folders import AskPython
    from runner.node.metric_files.watch import MetricFiles
    from runner.node.script.printed import PrintedMetrics

logger = logging.getLogger(__name__)

# More frequent progress does not help a reader, and the number of blocks is limited.
PROGRESS_EVERY_S = 0.25
UNCHANGED_EVERY_S = 15.0
MAX_KEPT_EVENTS = 200
FIRST_EVENTS_S = 0.3  # on a prepared node, the stages before the command take less

# The progress callback of a stage: (message, done, total, unit).
Report = Callable[..., None]


def throttle_repeats(report: Report) -> Report:
    """Return a callback for polling loops that drops repeated progress for UNCHANGED_EVERY_S."""
    last: tuple[object, ...] = ()
    at: float | None = None

    def report_changed(*progress: str | float) -> None:
        nonlocal last, at
        if progress != last or at is None or time.monotonic() - at > UNCHANGED_EVERY_S:
            last, at = progress, time.monotonic()
            report(*progress)

    return report_changed


class EventLog:
    """Writes the events of an attempt. `stages_s` has the duration of each stage.

    Args:
        queue: receives the events as lines.
        redactor: hides secrets.
        on_stage: called with the name and the message of each stage that begins.
    """

    def __init__(
        self,
        queue: LineQueue,
        redactor: Redactor | None = None,
        on_stage: Callable[[str, str], None] | None = None,
    ) -> None:
        self.queue = queue
        self._redactor = redactor or Redactor()
        self._on_stage = on_stage
        self._last_progress: float | None = None
        self._summary = ""
        self._written: list[bytes] | None = []
        self.current = "code"
        self.stages_s: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str, message: str = "") -> Generator[Report, None, None]:
        """Run the block as a stage, and write its start and its end or failure.

        Yields the progress callback of the stage.
        """
        started = time.monotonic()
        self.current = name
        self._last_progress = None  # the first progress of a stage is always shown
        self._summary = ""
        self._write(name, "start", message)
        if self._on_stage is not None:
            self._on_stage(name, message)
        logger.info("%s ...", message or name)

        def report(
            text: str,
            done: float | None = None,
            total: float | None = None,
            unit: str | None = None,
        ) -> None:
            self._progress(name, text, done, total, unit)

        state: StageState = "failed"
        why = ""
        try:
            yield report
            state, why = "end", self._summary
        except StageFailedError as err:
            why = err.message
            raise
        finally:
            self.stages_s[name] = round(time.monotonic() - started, 3)
            self._write(name, state, why)
            logger.info("%s: %s after %.1f s", name, state, self.stages_s[name])

    def summarise(self, text: str) -> None:
        """Set the message for the end of the current stage."""
        self._summary = text

    @property
    def content(self) -> bytes | None:
        """The events of the attempt, or None if there were too many to keep."""
        return None if self._written is None else b"\n".join(self._written)

    def clean(self, text: str) -> str:
        """Return the text without secrets."""
        return self._redactor.text(text)

    def add(self, stage: str, state: StageState, message: str, **numbers: float | str) -> None:
        """Write an event that does not belong to the current stage. Thread-safe."""
        logger.log(logging.WARNING if state == "failed" else logging.INFO, "%s", message)
        self._write(stage, state, message, numbers)

    def _progress(
        self, stage: str, text: str, done: float | None, total: float | None, unit: str | None
    ) -> None:
        now = time.monotonic()
        whole = done is not None and done == total
        last = self._last_progress
        if last is not None and now - last < PROGRESS_EVERY_S and not whole:
            return
        self._last_progress = now
        numbers = {"done": done, "total": total, "unit": unit}
        self._write(stage, "progress", text, {k: v for k, v in numbers.items() if v is not None})

    def _write(
        self, stage: str, state: StageState, message: str, more: dict[str, Any] | None = None
    ) -> None:
        event = StageEvent(0, now_text(), stage, state, self.clean(message))
        line = json.dumps({**event.to_json(), **(more or {})}).encode()
        self.queue.put(line)
        if self._written is not None:
            self._written.append(line)
            if len(self._written) > MAX_KEPT_EVENTS:
                self._written = None


class SignsOfLife:
    """Adds a line to the events now and then, which shows that the agent was alive at that time.

    The end of an attempt whose node is lost without a notice is on no other record.
    """

    def __init__(self, queue: LineQueue) -> None:
        self._queue = queue
        self._began = self._last = time.monotonic()
        self._stopped = False

    def poll(self, ending: bool) -> None:
        """Add a line if it is due, until the end of the attempt is recorded."""
        now = time.monotonic()
        due = self._last + sign_interval_s(now - self._began)
        if ending or self._stopped or now < due:
            return
        self._last = now
        line = StageEvent(0, now_text(), ALIVE_STAGE, "progress", "").to_json()
        self._queue.put(json.dumps(line).encode())

    def stop(self) -> None:
        """Add no more lines, because the end of the attempt is recorded."""
        self._stopped = True


_ATTEMPT_FILE = ".attempt"  # in the folder of the logs: the run, and the number of the attempt


def record_attempt(logs: Path, run_id: str, number: int) -> None:
    """Record which attempt writes these logs, for `ship_remaining_logs`. Raise OSError."""
    (logs / _ATTEMPT_FILE).write_text(f"{run_id} {number}", encoding="ascii")


def ship_remaining_logs(
    runs: ContainerClient, paths: RunPaths, work_dir: Path, redactor: Redactor
) -> None:
    """Append the output that an agent which was killed in this folder did not ship.

    Call this before the next attempt claims its number, so that its part of the log does not
    contain this output. Errors are only logged.
    """
    logs = work_dir / "logs"
    if not (logs / _ATTEMPT_FILE).is_file():
        return
    kill_remaining_processes(work_dir, logs)
    try:
        run_id, _, text = (logs / _ATTEMPT_FILE).read_text(encoding="ascii").rpartition(" ")
        if run_id != paths.run_id:  # the attempt before was of another run
            return
        number = int(text)
        start = AttemptStart.load(runs.get(paths.attempt_start(number)) or b"")
        if start is None or runs.head(paths.attempt_start(number + 1)) is not None:
            return
        offsets = {paths.stdout: start.stdout_offset, paths.stderr: start.stderr_offset}
        for name, offset in offsets.items():
            source = FileSource(logs / Path(name).name, redactor=redactor)
            source.freeze()
            try:
                size = ship_rest(source, runs, name, offset)
            finally:
                source.close()
            if size:
                logger.info("appended %d bytes of attempt %d to %s", size, number, name)
    except (OSError, ValueError, StorageRequestError, BlobShrankError) as err:
        logger.warning("the log of the attempt before may be incomplete: %s", err)


class Streams:
    """Starts all shippers. To ship the rest, call `finish_script`, then `finish_events`."""

    def __init__(
        self,
        runs: ContainerClient,
        paths: RunPaths,
        attempt: int,
        dirs: AttemptDirs,
        events: EventLog,
        redactor: Redactor,
        *,
        patterns: Mapping[str, str],
        observe: Callable[[str, float, int | None], None] | None = None,
    ) -> None:
        self.signs = SignsOfLife(events.queue)
        metric_lines, warn = LineQueue(), partial(events.add, "metrics", "failed")
        self.metrics = MetricLog(attempt, metric_lines, redactor, warn=warn, observe=observe)
        self._patterns = MetricPatterns(patterns, self.metrics, warn)
        self._metrics_file = MetricsFileReader(dirs.metrics, self.metrics)
        self._runs, self._paths = runs, paths
        self._steps_before: Mapping[str, int] = {}  # of the checkpoint that the script continues
        self._printed: dict[str, PrintedMetrics] = {}
        self._files: MetricFiles | None = None
        self._is_script_finished = False
        self._logs = (
            FileSource(dirs.stdout, partial(self._feed, "stdout"), redactor),
            FileSource(dirs.stderr, partial(self._feed, "stderr"), redactor),
        )
        self._stdout = Shipper(self._logs[0], AppendBlob(runs, paths.stdout))
        self._stderr = Shipper(self._logs[1], AppendBlob(runs, paths.stderr))
        self._metrics = Shipper(
            metric_lines, AppendBlob(runs, paths.metrics), self._metrics_file.poll
        )
        self._events = Shipper(
            events.queue,
            AppendBlob(runs, paths.attempt_events(attempt)),
            self.signs.poll,
            first_wait_s=FIRST_EVENTS_S,
        )
        self._shippers = (self._events, self._stdout, self._stderr, self._metrics)
        for shipper in self._shippers:
            shipper.start()

    def _feed(self, stream: str, data: bytes) -> None:
        self._patterns.feed(data, stream)
        if stream in self._printed:
            self._printed[stream].feed(data)

    def search_metrics(
        self,
        wanted: Iterable[str],
        folders: Callable[[], Iterable[str]] | None = None,
        ask: AskPython | None = None,
    ) -> None:
        """Read metrics from stdout, stderr and the files that tools write.

        The search ends when the script writes to the metrics file.

        Args:
            wanted: names of metrics, in addition to usual ones.
            folders: returns the folders with files of tools; None searches no files.
            ask: runs a program with the Python of the script, which reads databases of Aim.
        """
        from runner.node.metric_files.watch import MetricFiles  # noqa: PLC0415  few scripts need it
        from runner.node.script.printed import (  # noqa: PLC0415
            PrintedMetrics,
            PrintedSteps,
            is_metric_of,
        )

        def is_needless() -> bool:
            return self._metrics_file.has_content

        names, steps = frozenset(wanted), PrintedSteps(self._steps_before)
        self.metrics.compare_sources(names)
        self._printed = {
            stream: PrintedMetrics(
                self.metrics, names, source=stream, steps=steps, is_needless=is_needless
            )
            for stream in ("stdout", "stderr")
        }
        if folders is not None:
            self._files = MetricFiles(
                folders, self.metrics.add, is_metric_of(names), is_needless, ask
            )
            self._files.start()

    def continue_from(self, checkpoint: CheckpointManifest | None) -> None:
        """Record that the script continues from a checkpoint of this run, or from the beginning."""
        if checkpoint is None:
            self.metrics.mark_resume(0, "")
            return
        self.metrics.mark_resume(checkpoint.attempt, checkpoint.time)
        self._steps_before = self._load_steps(checkpoint)

    def _load_steps(self, checkpoint: CheckpointManifest) -> dict[str, int]:
        """Return the last step of each metric before a checkpoint, from the newest values."""
        try:
            found = self._runs.head(self._paths.metrics)
            size = found.size_bytes if found is not None else 0
            start = max(size - TAIL_BYTES, 0)
            text = self._runs.get_range(self._paths.metrics, start, size - start) if size else b""
        except StorageRequestError as err:
            logger.warning("metrics without a step are counted from 1: %s", err)
            return {}
        steps: dict[str, int] = {}
        for line in text.splitlines():
            point = MetricPoint.load(line)
            if point is None or point.step is None or point.attempt > checkpoint.attempt:
                continue
            if point.time <= checkpoint.time:
                steps[point.name] = point.step
        return steps

    @property
    def is_searched(self) -> bool:
        """True if stdout is searched for metrics without a pattern."""
        return "stdout" in self._printed and self._printed["stdout"].is_on

    def finish_script(self, timeout_s: float | None = None) -> None:
        """Ship the rest of logs and metrics, once. Raise the error that ended a stream."""
        if self._is_script_finished:
            return
        self._is_script_finished = True
        for log in self._logs:
            log.freeze()  # a process that survives the script must not delay the run
        try:
            finish_all([self._stdout, self._stderr], timeout_s)
        finally:
            # The last line of stdout may contain a metric without a newline.
            self._patterns.finish(timeout_s)
            for printed in self._printed.values():
                printed.finish()
            if self._files is not None:
                self._files.finish(timeout_s)
            finish_all([self._metrics], timeout_s)
            self._metrics_file.close()

    def finish_events(self, timeout_s: float | None = None) -> None:
        """Ship the rest of the events."""
        finish_all([self._events], timeout_s)

    def await_end(self) -> None:
        """Wait for shippers that did not end in the time of `finish_script` and `finish_events`."""
        for shipper in self._shippers:
            shipper.join()


TAIL_BYTES = 1024 * 1024  # of stdout that are searched when the script has ended


def wanted_metrics(spec: RunSpec) -> set[str]:
    """Return the names of the metrics that the recipe or the sweep of a run refers to."""
    return {*spec.named_metrics, *(each.metric for each in spec.expect)}


def last_metrics(
    metrics_file: Path, stdout: Path, spec: RunSpec, *, any_form: bool
) -> dict[str, MetricValue]:
    """Return the last values of the metrics that a script which succeeded wrote or printed.

    Args:
        metrics_file: its metrics file, whose values take precedence.
        stdout: the copy of its stdout, of which only the end is searched.
        spec: the run.
        any_form: if the metrics file has no metric, also recognise the forms in which scripts
            usually print metrics, without patterns.
    """
    named = _last_written(metrics_file)
    return {**_last_printed(stdout, spec, any_form=any_form and not named), **named}


def _last_written(path: Path) -> dict[str, MetricValue]:
    values: dict[str, MetricValue] = {}
    if not path.is_file():
        return values
    with path.open("rb") as lines:
        while line := lines.readline(MAX_JSON_BYTES):
            try:
                found = parse_metrics(parse_json(line))
            except (ValueError, TypeError, OverflowError):
                continue
            for name, value, _ in found:
                if name in values or len(values) < MAX_NAMES:
                    values[name] = json_value(value)
    return values


def _last_printed(path: Path, spec: RunSpec, *, any_form: bool) -> dict[str, MetricValue]:
    if not (spec.metric_patterns or any_form) or not path.is_file():
        return {}
    from runner.node.script.printed import PrintedMetrics  # noqa: PLC0415  few scripts need it

    queue = LineQueue()
    queue.close()  # nothing reads it
    log = MetricLog(0, queue)
    try:
        if any_form:
            search: PrintedMetrics | MetricPatterns = PrintedMetrics(log, wanted_metrics(spec))
        else:
            search = MetricPatterns(spec.metric_patterns, log)
        with path.open("rb") as text:
            text.seek(max(path.stat().st_size - TAIL_BYTES, 0))
            search.feed(text.read(TAIL_BYTES))
        search.finish()
    except Exception:  # the script succeeded, whatever its last metrics are
        logger.exception("the end of stdout could not be searched for metrics")
    return log.last()
