"""The four append blobs of an attempt: stdout, stderr, metrics and events."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from runner.node.append_blob import AppendBlob
from runner.node.attempt import AttemptDirs
from runner.node.attempts import RunBlobs
from runner.node.blobs import Container
from runner.node.lines import FileSource, LineQueue
from runner.node.metrics import MetricLog, MetricsFile
from runner.node.patterns import MetricPatterns
from runner.node.redaction import Redactor
from runner.node.sync import Shipper, finish_all


class Streams:
    """Starts shipping at once; `finish_script` and `finish_events` drain in the right order."""

    def __init__(
        self,
        runs: Container,
        blobs: RunBlobs,
        attempt: int,
        dirs: AttemptDirs,
        patterns: Mapping[str, str],
        redactor: Redactor,
    ) -> None:
        self.events = LineQueue()
        metric_lines = LineQueue()
        self.metrics = MetricLog(attempt, metric_lines, redactor)
        self._patterns = MetricPatterns(patterns, self.metrics)
        self._metrics_file = MetricsFile(dirs.metrics, self.metrics)
        self._logs = (
            FileSource(dirs.stdout, self._patterns.feed, redactor),
            FileSource(dirs.stderr, redactor=redactor),
        )
        self._stdout = Shipper(self._logs[0], AppendBlob(runs, blobs.stdout))
        self._stderr = Shipper(self._logs[1], AppendBlob(runs, blobs.stderr))
        self._metrics = Shipper(
            metric_lines, AppendBlob(runs, blobs.metrics), self._metrics_file.poll
        )
        self._events = Shipper(
            self.events, AppendBlob(runs, blobs.attempt(attempt, "events.jsonl"))
        )
        for shipper in (self._events, self._stdout, self._stderr, self._metrics):
            shipper.start()

    def warn_by(self, warn: Callable[[str], None]) -> None:
        """Whom to tell what the reader of the run must know of its metrics."""
        self.metrics.warn = self._patterns.warn = warn

    def finish_script(self, timeout_s: float | None = None) -> None:
        """Ship the rest of logs and metrics. Raises what stopped a stream."""
        for log in self._logs:
            log.freeze()  # a process that outlived the script must not hold the run
        try:
            finish_all([self._stdout, self._stderr], timeout_s)
        finally:
            # The last line of stdout may hold a metric and no newline.
            self._patterns.finish(timeout_s)
            finish_all([self._metrics], timeout_s)
            self._metrics_file.close()

    def finish_events(self, timeout_s: float | None = None) -> None:
        """Ship the rest of the events."""
        finish_all([self._events], timeout_s)
