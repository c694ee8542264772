"""Events of runs at an OTLP endpoint, received by a server that speaks its protocol."""

from __future__ import annotations

import json
import threading
from collections.abc import Generator, Sequence
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

from runner.features.export.otlp import (
    EventStream,
    OtlpSender,
    RunEvents,
    endpoint_address,
    event_id,
)
from runner.flows.runs.timeline import TimelineEvent
from runner.protocol.errors import RunnerError
from runner.protocol.run_spec import RunSpec, parse_run
from tests.loopback import QuietServer

NOW = datetime(2026, 11, 24, 12, 0, 0, 250000, tzinfo=UTC)


def run_spec(number: int = 1) -> RunSpec:
    run_id = f"mnist-20261124-12000{number}-abcd"
    batch = {"pool": "t4", "vm_size": "local", "spot": True, "job_id": "digits", "task_id": run_id}
    document = {
        "format": 1, "run_id": run_id, "experiment": "digits", "created": NOW.isoformat(),
        "recipe": {"name": "mnist"}, "params": {}, "batch": batch,
    }  # fmt: skip
    return parse_run(json.dumps(document).encode(), run_id)


EVENTS = (
    TimelineEvent(NOW, "client", "submitted"),
    TimelineEvent(NOW + timedelta(seconds=5), "attempt 1", "started on node tvm-1", 1, -2.5),
    TimelineEvent(NOW + timedelta(seconds=9), "eviction", "node tvm-1 was evicted"),
    TimelineEvent(None, "job digits", "does not exist any more"),
)


class Collector:
    """An OTLP endpoint over HTTP, which answers `status`."""

    def __init__(self) -> None:
        self.status = 200
        self.requests: list[Any] = []
        self.headers: list[dict[str, str]] = []
        collector = self

        class _Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
                    ExportLogsServiceRequest,
                )

                content = self.rfile.read(int(self.headers["Content-Length"]))
                assert self.path == "/v1/logs"
                assert self.headers["Content-Type"] == "application/x-protobuf"
                collector.headers.append({k.lower(): v for k, v in self.headers.items()})
                if collector.status == 200:
                    collector.requests.append(ExportLogsServiceRequest.FromString(content))
                self.send_response(collector.status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name there
                pass

        self.server = QuietServer(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def records(self) -> list[Any]:
        return [
            record
            for request in self.requests
            for resource in request.resource_logs
            for scope in resource.scope_logs
            for record in scope.log_records
        ]


@pytest.fixture
def collector() -> Generator[Collector]:
    found = Collector()
    thread = threading.Thread(target=found.server.serve_forever, daemon=True)
    thread.start()
    yield found
    found.server.shutdown()
    found.server.server_close()
    thread.join()


@pytest.mark.feature(57)
def test_events_are_sent_as_log_records_with_time_and_run(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "api-key=secret")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    record = run_spec()
    OtlpSender(collector.url, "local").send(record, EVENTS)
    first, second, third, last = collector.records()
    assert first.time_unix_nano == int(NOW.timestamp() * 10**6) * 1000
    assert [each.body.string_value for each in (first, second, third, last)] == [
        each.event for each in EVENTS
    ]
    assert [each.severity_text for each in (first, second, third, last)] == [
        "INFO", "INFO", "WARN", "INFO",
    ]  # fmt: skip
    assert last.time_unix_nano == 0
    assert last.observed_time_unix_nano > 0
    found = {each.key: each.value for each in second.attributes}
    assert found["runner.run_id"].string_value == record.run_id
    assert found["runner.pool"].string_value == "t4"
    assert found["runner.source"].string_value == "attempt 1"
    assert found["runner.attempt"].int_value == 1
    assert found["runner.clock_offset_s"].double_value == -2.5
    assert found["runner.event_id"].string_value == event_id(record, EVENTS[1])
    [resource] = collector.requests[0].resource_logs
    named = {each.key: each.value.string_value for each in resource.resource.attributes}
    assert (named["service.name"], named["runner.target"]) == ("runner", "local")
    assert collector.headers[0]["api-key"] == "secret"


def test_refusing_or_stopped_endpoint_is_an_error_with_the_reason(
    collector: Collector, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    collector.status = 403
    with pytest.raises(RunnerError, match="did not accept") as refused:
        OtlpSender(collector.url, "local").send(run_spec(), EVENTS)
    assert (refused.value.code, "403" in (refused.value.why or "")) == ("R-OTLP-EXPORT", True)
    collector.server.shutdown()
    collector.server.server_close()
    with pytest.raises(RunnerError, match="did not accept"):
        OtlpSender(collector.url, "local").send(run_spec(), EVENTS)
    assert not [each for each in caplog.records if each.name.startswith("opentelemetry")]


@pytest.mark.parametrize(
    ("uri", "env", "address"),
    [
        ("http://c:4318", {}, "http://c:4318/v1/logs"),
        ("https://c/otlp/v1/logs", {}, "https://c/otlp/v1/logs"),
        (None, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318/"}, "http://c:4318/v1/logs"),
        (None, {"OTEL_EXPORTER_OTLP_LOGS_ENDPOINT": "http://c/mine"}, "http://c/mine"),
        (None, {}, None),
        ("localhost:4317", {}, None),
        ("grpc://c:4317", {}, None),
    ],
)
def test_endpoint_is_that_of_the_option_or_the_environment(
    uri: str | None, env: dict[str, str], address: str | None
) -> None:
    if address is not None:
        assert endpoint_address(uri, env) == address
        return
    with pytest.raises(RunnerError) as caught:
        endpoint_address(uri, env)
    assert caught.value.code == "R-OTLP-URI"


def test_events_are_sent_again_only_if_refused() -> None:
    runs = [RunEvents(run_spec(), EVENTS[:1], False), RunEvents(run_spec(2), EVENTS[:1], False)]
    sent: list[tuple[str, int]] = []
    asked: list[frozenset[str]] = []
    is_down = False

    def load(ended: frozenset[str]) -> Sequence[RunEvents]:
        asked.append(ended)
        return [each for each in runs if each.spec.run_id not in ended]

    def send(spec: RunSpec, events: Sequence[TimelineEvent]) -> None:
        if is_down:
            raise RunnerError("R-OTLP-EXPORT", "no answer")
        sent.append((spec.run_id, len(events)))

    stream = EventStream(load, send, frozenset({"before-20261124-110000-abcd"}))
    assert (stream.send_new(), stream.send_new()) == (2, 0)
    runs[0] = RunEvents(runs[0].spec, EVENTS, True)
    is_down = True
    with pytest.raises(RunnerError):
        stream.send_new()
    is_down = False
    assert stream.send_new() == 3
    assert (runs[0].spec.run_id, 3) in sent
    stream.send_new()
    assert asked[0] == {"before-20261124-110000-abcd"}
    assert runs[0].spec.run_id in asked[-1]
