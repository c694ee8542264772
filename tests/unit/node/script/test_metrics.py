from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from runner.node.script import shipper as lines_module
from runner.node.script.metrics import MetricLog, MetricsFileReader, parse_metrics
from runner.node.script.redaction import Redactor
from runner.node.script.shipper import LineQueue
from runner.protocol.metrics import MAX_NAMES, MetricPoint
from tests.logs import own_records


@pytest.fixture
def queue() -> LineQueue:
    return LineQueue()


@pytest.fixture
def log(queue: LineQueue) -> MetricLog:
    return MetricLog(2, queue)


def written(queue: LineQueue) -> list[dict[str, Any]]:
    return [json.loads(line) for line in queue.peek().splitlines()]


def triples(queue: LineQueue) -> list[tuple[str, Any, int | None]]:
    return [(m["name"], m["value"], m["step"]) for m in written(queue)]


def test_both_forms_of_metric_lines_are_accepted(
    queue: LineQueue, log: MetricLog, tmp_path: Path
) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(
        '{"name": "loss", "value": 0.5, "step": 1}\n'
        '{"step": 2, "loss": 0.25, "val_accuracy": 1}\n'
        '{"test_accuracy": 0.99}\n'
    )
    MetricsFileReader(path, log).poll()
    assert triples(queue) == [
        ("loss", 0.5, 1),
        ("loss", 0.25, 2),
        ("val_accuracy", 1.0, 2),
        ("test_accuracy", 0.99, None),
    ]
    assert {line["attempt"] for line in written(queue)} == {2}


def test_client_reads_what_the_agent_writes(queue: LineQueue, log: MetricLog) -> None:
    log.add("val_accuracy", 0.5, 3)
    log.add("loss", float("nan"), None)
    points = [MetricPoint.load(line) for line in queue.peek().decode().splitlines()]
    assert [(p.name, p.step, p.attempt) for p in points if p] == [
        ("val_accuracy", 3, 2),
        ("loss", None, 2),
    ]


def test_nan_and_infinities_become_strings(
    queue: LineQueue, log: MetricLog, tmp_path: Path
) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"a": NaN, "b": Infinity, "c": -Infinity, "d": "NaN"}\n')
    MetricsFileReader(path, log).poll()
    assert log.last() == {"a": "NaN", "b": "Infinity", "c": "-Infinity", "d": "NaN"}
    assert [m["value"] for m in written(queue)] == ["NaN", "Infinity", "-Infinity", "NaN"]


def test_incomplete_line_waits_for_its_end(
    queue: LineQueue, log: MetricLog, tmp_path: Path
) -> None:
    path = tmp_path / "metrics.jsonl"
    reader = MetricsFileReader(path, log)
    reader.poll()  # the script has not made it yet
    with path.open("a") as out:
        out.write('{"loss": ')
        out.flush()
        reader.poll()
        assert triples(queue) == []
        out.write("0.5}")
        out.flush()
        reader.poll()
        assert triples(queue) == []
    reader.poll(final=True)
    assert triples(queue) == [("loss", 0.5, None)]


def test_invalid_metric_line_is_skipped(
    queue: LineQueue, log: MetricLog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('nonsense\n[1]\n{"loss": {}}\n{"step": "x", "a": 1}\n\xff\n{"loss": 1}\n')
    MetricsFileReader(path, log).poll()
    assert triples(queue) == [("loss", 1.0, None)]
    assert len(own_records(caplog)) == 1


def test_crowded_queue_delays_the_metrics_file(
    queue: LineQueue, log: MetricLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines_module, "MAX_PENDING_BYTES", 10)
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"loss": 1}\n')
    reader = MetricsFileReader(path, log)
    queue.put(b"x" * 20)
    reader.poll()
    assert log.last() == {}
    queue.peek()
    queue.advance()
    reader.poll()
    assert log.last() == {"loss": 1.0}


@pytest.mark.parametrize(
    "line",
    [
        b'{"name": "%s", "value": 1}' % (b"n" * 5_000_000),
        b'{"%s": 1}' % (b"n" * 5_000_000),
        b"x" * 30_000_000,
    ],
)
def test_too_long_metric_line_is_skipped(
    queue: LineQueue, log: MetricLog, tmp_path: Path, line: bytes
) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(line)
    reader = MetricsFileReader(path, log)
    reader.poll()
    assert len(reader._rest) <= 8 * 1024 * 1024
    with path.open("ab") as out:
        out.write(b'\n{"loss": 2}\n')
    reader.poll()
    assert triples(queue) == [("loss", 2.0, None)]
    reader.close()


def test_lone_surrogate_in_a_metric_name_is_replaced(queue: LineQueue) -> None:
    redactor = Redactor()
    redactor.add("a-secret")
    log = MetricLog(1, queue, redactor)
    for name in ("loss\ud800", "a-secret\udfff", "plain"):
        log.add(name, 1.0, None)
    assert [name for name, _, _ in triples(queue)] == ["loss?", "***?", "plain"]


@pytest.mark.parametrize("raw", [[], 3, None, {"loss": None}, {"loss": []}, {"loss": "high"}])
def test_invalid_metric_raises_an_error(raw: object) -> None:
    with pytest.raises((ValueError, TypeError)):
        parse_metrics(raw)


@pytest.mark.parametrize("anew", ["truncated", "replaced", "removed first"])
def test_replaced_metrics_file_is_read_from_its_start(
    log: MetricLog, tmp_path: Path, anew: str
) -> None:
    path = tmp_path / "metrics.jsonl"
    reader = MetricsFileReader(path, log)
    path.write_text('{"loss": 0.5, "step": 1}\n{"loss": 0.25, "step": 2}\n{"los')
    reader.poll()
    assert log.last() == {"loss": 0.25}
    if anew == "replaced":
        (tmp_path / "new").write_text('{"loss": 0.125}\n')
        (tmp_path / "new").rename(path)
    else:
        if anew == "removed first":
            path.unlink()
            reader.poll()
        path.write_text('{"loss": 0.125}\n')
    reader.poll()
    assert log.last() == {"loss": 0.125}
    reader.close()


@pytest.mark.parametrize(
    "line", ['{"step": 1e400, "loss": 1}', '{"loss": 1' + "0" * 400 + "}", "[" * 100_000]
)
def test_number_out_of_range_is_skipped(
    queue: LineQueue, log: MetricLog, tmp_path: Path, line: str
) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(line + '\n{"loss": 2}\n')
    MetricsFileReader(path, log).poll()
    assert triples(queue) == [("loss", 2.0, None)]


def test_text_values_are_skipped_among_numbers() -> None:
    raw = {"step": 1, "loss": 0.5, "optimizer": "adam", "val_loss": None}
    assert parse_metrics(raw) == [("loss", 0.5, 1)]


def test_names_after_the_first_thousand_are_not_last_values(
    queue: LineQueue, log: MetricLog
) -> None:
    said: list[str] = []
    log.warn = said.append
    for number in range(MAX_NAMES + 50):
        log.add(f"m{number}", float("nan"), number)
    log.add("m0", 2.0, None)
    assert list(log.last()) == [f"m{number}" for number in range(MAX_NAMES)]
    assert (log.last()["m0"], log.last()["m1"]) == (2.0, "NaN")
    assert len(written(queue)) == MAX_NAMES + 51
    assert len(said) == 1
    assert "'m1000'" in said[0]
