"""Send the events of runs to an OTLP endpoint as log records, with OpenTelemetry's exporter.

The exporter reads its headers, certificates and timeout from the `OTEL_EXPORTER_OTLP_*` variables:
https://opentelemetry.io/docs/specs/otel/protocol/exporter (read 2026-11-24).
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

from runner.azure.auth.credentials import Connection, connect
from runner.azure.storage.blobs import in_parallel
from runner.core.settings import Settings
from runner.flows.extras import load_extra
from runner.flows.runs.history import list_runs
from runner.flows.runs.timeline import TimelineEvent, load_timeline
from runner.protocol.errors import RunnerError
from runner.protocol.run_spec import RunSpec

_EXTRA = "otlp"
_PATH = "/v1/logs"
# For a request with its retries, unless OTEL_EXPORTER_OTLP_TIMEOUT is set.
_TIMEOUT_S = 10.0
_VARIABLES = ("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_TIMEOUTS = ("OTEL_EXPORTER_OTLP_LOGS_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT")
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
_BAD_WORDS = ("failed", "lost", "gap:", "was evicted", "error")


@dataclass(frozen=True, slots=True)
class RunEvents:
    """The events of a run; `is_final` is True if there will be no more."""

    spec: RunSpec
    events: Sequence[TimelineEvent]
    is_final: bool


def endpoint_address(uri: str | None, env: Mapping[str, str]) -> str:
    """Return the address for log records of `uri`, by default that of the environment.

    Raises:
        RunnerError: R-OTLP-URI, there is none, or it is not an HTTP address.
    """
    given = uri or next(filter(None, map(env.get, _VARIABLES)), "")
    parts = urlsplit(given)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise RunnerError(
            "R-OTLP-URI",
            f"invalid OTLP endpoint {given!r}" if given else "no OTLP endpoint",
            why="only OTLP over HTTP is supported" if given else f"{_VARIABLES[1]} is not set",
            fix="use the address of a collector: http://localhost:4318",
        )
    is_whole = parts.path.endswith(_PATH) or (not uri and env.get(_VARIABLES[0]))
    return given if is_whole else given.rstrip("/") + _PATH


def event_id(spec: RunSpec, event: TimelineEvent) -> str:
    """Return an ID that is the same for each transfer of the event."""
    at = event.at.isoformat() if event.at else ""
    text = "\n".join((spec.run_id, at, event.source, event.event, str(event.attempt)))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


class OtlpSender:
    """Sends events to one endpoint."""

    def __init__(self, uri: str | None, target: str, env: Mapping[str, str] = os.environ) -> None:
        """Load OpenTelemetry. Raise R-EXTRA-MISSING or R-OTLP-URI."""
        self.address = endpoint_address(uri, env)
        exporters = load_extra(_EXTRA, "opentelemetry.exporter.otlp.proto.http._log_exporter")
        self._logs = load_extra(_EXTRA, "opentelemetry._logs")
        self._sdk = load_extra(_EXTRA, "opentelemetry.sdk._logs")
        self._memory = load_extra(_EXTRA, "opentelemetry.sdk._logs.export")
        self._resource = load_extra(_EXTRA, "opentelemetry.sdk.resources").Resource.create(
            {"service.name": env.get("OTEL_SERVICE_NAME") or "runner", "runner.target": target}
        )
        timeout = None if any(map(env.get, _TIMEOUTS)) else _TIMEOUT_S
        session = None
        if urlsplit(self.address).hostname in _LOOPBACK:
            session = load_extra(_EXTRA, "requests").Session()
            session.trust_env = False  # bypass proxies for this machine
        self._exporter = exporters.OTLPLogExporter(
            endpoint=self.address, timeout=timeout, session=session
        )

    def send(self, spec: RunSpec, events: Sequence[TimelineEvent]) -> None:
        """Send events of a run in one request. Raise R-OTLP-EXPORT."""
        if not events:
            return
        batch = self._records(spec, events)
        with _problems() as problems:
            result = self._exporter.export(batch)
        if getattr(result, "name", "") != "SUCCESS":
            raise RunnerError(
                "R-OTLP-EXPORT",
                f"{self.address} did not accept the events of {spec.run_id}",
                why=problems[0] if problems else "the exporter gave no reason",
                fix="check that a collector listens there: curl -i -X POST " + self.address,
            )

    def _records(self, spec: RunSpec, events: Sequence[TimelineEvent]) -> Sequence[Any]:
        """Return the events as log records of the SDK, whose classes differ between versions."""
        exports = self._memory
        collected = getattr(exports, "InMemoryLogRecordExporter", exports.InMemoryLogExporter)()
        provider = self._sdk.LoggerProvider(resource=self._resource, shutdown_on_exit=False)
        provider.add_log_record_processor(exports.SimpleLogRecordProcessor(collected))
        written = provider.get_logger("runner.events")
        for each in events:
            written.emit(self._log_record(spec, each))
        return collected.get_finished_logs()

    def _log_record(self, spec: RunSpec, event: TimelineEvent) -> Any:
        is_bad = event.source == "eviction" or any(word in event.event for word in _BAD_WORDS)
        level = "WARN" if is_bad else "INFO"
        attributes: dict[str, Any] = {
            "runner.event_id": event_id(spec, event),
            "runner.run_id": spec.run_id,
            "runner.experiment": spec.experiment,
            "runner.recipe": spec.recipe,
            "runner.pool": spec.pool,
            "runner.job_id": spec.job_id,
            "runner.source": event.source,
            "runner.clock_offset_s": event.offset_s,
        }
        if event.attempt is not None:
            attributes["runner.attempt"] = event.attempt
        return self._logs.LogRecord(
            timestamp=_nanoseconds(event.at) if event.at else None,
            observed_timestamp=_nanoseconds(datetime.now(UTC)),
            severity_text=level,
            severity_number=self._logs.SeverityNumber[level],
            body=event.event,
            attributes=attributes,
        )


def _nanoseconds(moment: datetime) -> int:
    return round(moment.timestamp() * 1_000_000) * 1000


@contextmanager
def _problems() -> Generator[list[str]]:
    """Collect the log messages of OpenTelemetry instead of printing them."""
    texts: list[str] = []

    class _Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            texts.append(record.getMessage().splitlines()[0])

    theirs, handler = logging.getLogger("opentelemetry"), _Collect()
    before = theirs.propagate
    theirs.addHandler(handler)
    theirs.propagate = False
    try:
        yield texts
    finally:
        theirs.propagate = before
        theirs.removeHandler(handler)


def export_to_otlp(connection: Connection, spec: RunSpec, sender: OtlpSender) -> int:
    """Send all events of a run. Return their number."""
    events = load_timeline(connection, spec)
    sender.send(spec, events)
    return len(events)


def active_events(settings: Settings, ended: frozenset[str]) -> list[RunEvents]:
    """Return the events of all runs of all teams that are not in `ended`."""
    rows = [
        (part, row)
        for part, row in _all_runs(settings)
        if row.spec is not None and row.run_id not in ended
    ]

    def load(found: tuple[Connection, Any]) -> RunEvents:
        part, row = found
        is_final = row.status is not None and row.status.state.final
        return RunEvents(row.spec, load_timeline(part, row.spec), is_final)

    return in_parallel(load, rows)


class EventStream:
    """Sends each event of a run once, unless the run had ended before.

    Rejected events are sent again at the next call.
    """

    def __init__(
        self,
        load: Callable[[frozenset[str]], Sequence[RunEvents]],
        send: Callable[[RunSpec, Sequence[TimelineEvent]], None],
        ended: frozenset[str] = frozenset(),
    ) -> None:
        self._load = load
        self._send = send
        self._ended = set(ended)
        self._sent: dict[str, set[str]] = {}

    def send_new(self) -> int:
        """Send new events. Return their number. Raise RunnerError if the endpoint rejects them."""
        count = 0
        for each in self._load(frozenset(self._ended)):
            run_id = each.spec.run_id
            known = self._sent.setdefault(run_id, set())
            new = {event_id(each.spec, event): event for event in each.events}
            unsent = [event for key, event in new.items() if key not in known]
            self._send(each.spec, unsent)
            known.update(new)
            count += len(unsent)
            if each.is_final:
                self._ended.add(run_id)
                del self._sent[run_id]
        return count

    def run(self, every_s: float, stop: threading.Event, warn: Callable[[str], None]) -> None:
        """Send new events until `stop`; a continuing problem is reported only once."""
        problem = ""
        while not stop.is_set():
            try:
                self.send_new()
                problem = ""
            except RunnerError as err:
                if err.what != problem:
                    warn(f"{err.what}: {err.why}" if err.why else err.what)
                problem = err.what
            stop.wait(every_s)


def ended_runs(settings: Settings) -> frozenset[str]:
    """Return the runs that have ended."""
    rows = (row for _, row in _all_runs(settings))
    return frozenset(row.run_id for row in rows if row.status and row.status.state.final)


def _all_runs(settings: Settings) -> Iterator[tuple[Connection, Any]]:
    for part in connect(settings.for_whole_stack()).parts():
        yield from ((part, row) for row in list_runs(part, limit=None).rows)
